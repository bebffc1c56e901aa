//! The doors between the rooms: reads the sources and fails on a name that a room must not use.
//!
//! `docs/architecture.md` says what the rooms are for. Every exception is listed here, with its
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A source file without its comments and tests.
struct Source {
    /// From `src/` on, with forward slashes.
    path: String,
    lines: Vec<(usize, String)>,
}

/// Names that not every room may use.
struct Door {
    names: &'static [&'static str],
    rooms: Rooms,
    /// What would go wrong otherwise.
    why: &'static str,
}

/// Paths from `src/` on, or their beginnings.
enum Rooms {
    /// Only these may.
    Only(&'static [&'static str]),
    /// All but these may.
    Not(&'static [&'static str]),
}

const DOORS: &[Door] = &[
    Door {
        names: &["ureq"],
        // The crate's documentation warns of ureq's own logs.
        rooms: Rooms::Only(&["transport/", "lib.rs"]),
        why: "one HTTP library, in one room",
    },
    Door {
        names: &["prost"],
        rooms: Rooms::Only(&["wire/"]),
        why: "protobuf stays in the codecs",
    },
    Door {
        names: &["env::var", "env::vars", "env::var_os", "env::home_dir"],
        rooms: Rooms::Only(&["config/", "bin/"]),
        why: "the environment is read in one place",
    },
    Door {
        names: &[
            "Instant::now",
            "SystemTime::now",
            "Timestamp::now",
            "Zoned::now",
            "thread::spawn",
            "thread::Builder",
            "thread::sleep",
            "thread::scope",
        ],
        rooms: Rooms::Only(&[
            "runtime/",
            "local/",
            "train/",
            "bin/",
            // Templates that print the date ask what time it is.
            "text/chat.rs",
            // The redirects of a request share its limit.
            "transport/mod.rs",
            // The program that prints a credential has a time limit and a thread that reads it.
            "transport/auth/command.rs",
            // Files of a hub are locked, and looked at by age, as its own tools do.
            "text/hub",
            // The model is told today's date, unless the caller gives one.
            "text/renderers/gpt_oss.rs",
        ]),
        why: "time and threads belong to rooms that own them",
    },
    Door {
        names: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        rooms: Rooms::Only(&["bin/"]),
        why: "the library prints nothing",
    },
    Door {
        names: &["json!"],
        rooms: Rooms::Not(&["local/state/", "local/work/"]),
        why: "replies have types, and are made by the handlers",
    },
    Door {
        names: &[
            "Refusal",
            "Reply",
            "crate::local::http",
            "crate::local::api",
        ],
        rooms: Rooms::Not(&["local/state/", "local/work/", "local/engine/"]),
        why: "stores, jobs and the engine know nothing of replies",
    },
    Door {
        names: &["hyper", "tokio"],
        rooms: Rooms::Not(&[
            "local/engine/",
            "local/work/",
            "client/",
            "runtime/",
            "transport/",
        ]),
        why: "the one async runtime is the server's",
    },
    Door {
        names: &["crate::transport"],
        rooms: Rooms::Not(&["client/", "types/", "wire/", "loss/", "train/"]),
        why: "requests are built and sent below the façade",
    },
    Door {
        names: &["crate::client", "crate::runtime", "crate::transport"],
        rooms: Rooms::Not(&["local/", "types/", "wire/", "loss/"]),
        why: "these rooms stand to the left of the client, or serve it",
    },
    Door {
        names: &["crate::local", "crate::train"],
        rooms: Rooms::Not(&[
            "types/",
            "wire/",
            "transport/",
            "runtime/",
            "loss/",
            "text/",
        ]),
        why: "only the façade starts a server, and nothing below it trains",
    },
];

impl Rooms {
    fn allow(&self, path: &str) -> bool {
        let named = |rooms: &[&str]| rooms.iter().any(|room| path.starts_with(room));
        match self {
            Self::Only(rooms) => named(rooms),
            Self::Not(rooms) => !named(rooms),
        }
    }
}

#[test]
fn no_room_uses_what_it_must_not() {
    let mut broken = Vec::new();
    for source in sources() {
        for door in DOORS {
            if door.rooms.allow(&source.path) {
                continue;
            }
            for (number, line) in &source.lines {
                if let Some(name) = door.names.iter().find(|name| uses(line, name)) {
                    broken.push(format!(
                        "src/{}:{number}: `{name}` ({})",
                        source.path, door.why
                    ));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn the_rooms_of_runtime_and_local_have_no_cycle() {
    for house in ["runtime", "local"] {
        let doors = rooms_used(house);
        assert!(doors.len() > 3, "{house} has rooms: {doors:?}");
        if let Some(cycle) = cycle(&doors) {
            panic!("{house}: {}\nall: {doors:#?}", cycle.join(" -> "));
        }
    }
}

#[test]
fn functions_of_the_facade_are_short() {
    let mut long = Vec::new();
    for source in sources() {
        if !source.path.starts_with("client/") {
            continue;
        }
        for (name, first, lines) in functions(&source) {
            if lines > 25 {
                long.push(format!(
                    "src/{}:{first}: {name} has {lines} lines",
                    source.path
                ));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_dependency_has_its_line() {
    let papers = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for (_, name) in dependencies() {
        assert!(papers.contains(&format!("`{name}`")), "{name} has no line");
    }
}

#[test]
fn every_dependency_is_used() {
    let library: Vec<String> = sources()
        .into_iter()
        .flat_map(|source| source.lines.into_iter().map(|(_, line)| line))
        .collect();
    let mut everything = String::new();
    for folder in ["src", "tests", "benches", "examples"] {
        let mut files = Vec::new();
        collect(&root().join(folder), &mut files);
        let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
        everything.extend(texts);
    }
    for (section, name) in dependencies() {
        let path = format!("{}::", name.replace('-', "_"));
        let used = match section.contains("dev-") {
            true => uses(&everything, &path),
            false => library.iter().any(|line| uses(line, &path)),
        };
        assert!(used, "nothing uses {name}");
    }
}

/// The manifest's sections and the names in them, without the package itself.
fn dependencies() -> Vec<(String, String)> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (mut section, mut found) = ("", Vec::new());
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name;
            continue;
        }
        let name: String = line
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c))
            .collect();
        let dependency = section.contains("dependencies") && !name.is_empty();
        if dependency && line[name.len()..].starts_with(" =") && name != "tinker-sdk" {
            found.push((section.to_owned(), name));
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_doors_would_notice() {
    assert!(uses("use ureq::Agent;", "ureq"));
    assert!(!uses("let ureqs = 1;", "ureq"));
    assert!(uses("    std::env::var(\"X\")", "env::var"));
    assert!(!uses("    println(x)", "println!"));
    let graph = BTreeMap::from([
        ("a".to_owned(), BTreeSet::from(["b".to_owned()])),
        ("b".to_owned(), BTreeSet::from(["c".to_owned()])),
        ("c".to_owned(), BTreeSet::from(["a".to_owned()])),
    ]);
    assert_eq!(cycle(&graph).unwrap().len(), 4);
    let code = "fn a() {\n    1\n}\n/* b */ // c\n#[cfg(test)]\nmod tests {\n    x\n}\nfn d() {}\n";
    let lines = code_of(code);
    let text: Vec<&str> = lines.iter().map(|(_, line)| line.trim()).collect();
    assert_eq!(text, ["fn a() {", "1", "}", "fn d() {}"]);
}

/// Which rooms of a house each of its rooms names.
fn rooms_used(house: &str) -> BTreeMap<String, BTreeSet<String>> {
    let prefix = format!("{house}/");
    let mut doors: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let inside: Vec<Source> = sources()
        .into_iter()
        .filter(|source| source.path.starts_with(&prefix))
        .collect();
    let room = |path: &str| {
        let rest = &path[prefix.len()..];
        rest.split('/')
            .next()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned()
    };
    let rooms: BTreeSet<String> = inside.iter().map(|source| room(&source.path)).collect();
    for source in &inside {
        let own = room(&source.path);
        // The house's own face and the options that reach every room.
        if own == "mod" || own == "builder" {
            continue;
        }
        let depth =
            source.path.matches('/').count() - usize::from(source.path.ends_with("/mod.rs"));
        let up = "super::".repeat(depth);
        let entry = doors.entry(own.clone()).or_default();
        for (_, line) in &source.lines {
            for marker in [
                format!("crate::{house}::"),
                format!("in crate::{house}::"),
                up.clone(),
            ] {
                for (at, _) in line.match_indices(&marker) {
                    let rest = &line[at + marker.len()..];
                    if marker == up && (at >= 2 && line[..at].ends_with("::")) {
                        continue;
                    }
                    let names = rest.strip_prefix('{').unwrap_or(rest);
                    let first: String = names
                        .chars()
                        .take_while(|c| c.is_alphanumeric() || *c == '_')
                        .collect();
                    if rooms.contains(&first) && first != own && first != "mod" {
                        entry.insert(first);
                    }
                }
            }
        }
    }
    doors
}

/// A way through the rooms that comes back to where it began.
fn cycle(doors: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn walk(
        at: &str,
        doors: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if let Some(first) = way.iter().position(|room| room == at) {
            way.drain(..first);
            way.push(at.to_owned());
            return true;
        }
        if done.contains(at) {
            return false;
        }
        way.push(at.to_owned());
        for next in doors.get(at).into_iter().flatten() {
            if walk(next, doors, way, done) {
                return true;
            }
        }
        way.pop();
        done.insert(at.to_owned());
        false
    }
    let mut done = BTreeSet::new();
    doors.keys().find_map(|room| {
        let mut way = Vec::new();
        walk(room, doors, &mut way, &mut done).then_some(way)
    })
}

/// Name, first line and number of lines of every function.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize, usize, usize)> = None;
    for (number, line) in &source.lines {
        let indent = line.len() - line.trim_start().len();
        let words = line.trim_start();
        if let Some((name, first, start, count)) = &mut open {
            *count += 1;
            if indent == *start && words.starts_with('}') {
                found.push((std::mem::take(name), *first, *count));
                open = None;
            }
            continue;
        }
        let Some((before, rest)) = words.split_once("fn ") else {
            continue;
        };
        let modifiers = before.split_whitespace().all(|word| {
            word.starts_with("pub")
                || matches!(word, "const" | "async" | "unsafe")
                || word.ends_with(')')
        });
        if modifiers && !words.ends_with('}') && !words.ends_with(';') {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            open = Some((name, *number, indent, 1));
        }
    }
    found
}

/// Whether a line has the name as a word of its own.
fn uses(line: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        let ends_as_word = name.chars().next_back().is_some_and(word);
        !(before.is_some_and(word) || ends_as_word && after.is_some_and(word))
    })
}

fn sources() -> Vec<Source> {
    let root = root().join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    files
        .into_iter()
        .filter_map(|file| {
            let path = file.strip_prefix(&root).unwrap();
            let path = path.to_string_lossy().replace('\\', "/");
            let text = fs::read_to_string(&file).unwrap();
            (!is_test(&path)).then(|| Source {
                lines: code_of(&text),
                path,
            })
        })
        .collect()
}

/// Whole files that exist for tests only.
fn is_test(path: &str) -> bool {
    path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.starts_with("wire/conformance/")
        || path == "local/engine/fixtures.rs"
        || path == "client/parity.rs"
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The lines of code, without comments and without what is compiled for tests only.
fn code_of(text: &str) -> Vec<(usize, String)> {
    let mut out = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[cfg(test)]") || trimmed.starts_with("#[cfg(all(test") {
            let indent = line.len() - trimmed.len();
            // The item that follows, to its end.
            for (_, line) in lines.by_ref() {
                let ends = line.len() - line.trim_start().len() == indent;
                let end = line.trim_end();
                if ends && (end.ends_with(';') || end.ends_with('}')) {
                    break;
                }
            }
            continue;
        }
        if trimmed.starts_with("//") || trimmed.starts_with("/*") || trimmed.is_empty() {
            continue;
        }
        let code = match line.find(" // ") {
            Some(at) => &line[..at],
            None => line,
        };
        out.push((index + 1, code.to_owned()));
    }
    out
}
