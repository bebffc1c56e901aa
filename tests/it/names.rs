//! A Python user finds what they know: every name the Python SDK exports is a name of this crate
//! or finds its counterpart in the documentation's search.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::python::interpreter;

/// What a crate has without an item of its own: its name and version, and no warnings to silence.
const WITHOUT: [&str; 3] = ["__title__", "__version__", "ExperimentalWarning"];

const EXPORTED: &str = include_str!("../fixtures/python/all.json");

/// The public methods of each public class.
const METHODS: &str = include_str!("../fixtures/python/methods.json");

const LIST_METHODS: &str = r#"
import inspect, json, tinker
def public(c):
    is_method = lambda n: callable(getattr(c, n)) or isinstance(inspect.getattr_static(c, n), property)
    return sorted(n for n in vars(c) if not n.startswith("_") and is_method(n))
names = ["ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient", "APIFuture"]
names += ["LossHandle", "ModelInput", "Datum", "TensorData", "ParsedCheckpointTinkerPath"]
names += ["EncodedTextChunk", "DmelChunk"]
print(json.dumps({name: public(getattr(tinker, name)) for name in names}))
"#;

fn methods() -> BTreeMap<String, Vec<String>> {
    serde_json::from_str(METHODS).unwrap()
}

#[test]
fn every_python_method_is_in_the_guide() {
    let guide = include_str!("../../docs/from-python.md");
    // What stands in backticks is every second part.
    let code: Vec<&str> = guide.split('`').skip(1).step_by(2).collect();
    let words = code
        .iter()
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let known: BTreeSet<&str> = words.collect();
    for (class, methods) in methods() {
        for method in methods {
            let twin = method.strip_suffix("_async").unwrap_or(&method);
            assert!(known.contains(twin), "{class}.{method} is not in the guide");
        }
    }
}

fn exported() -> Vec<String> {
    serde_json::from_str(EXPORTED).unwrap()
}

#[test]
fn every_python_name_can_be_found() {
    let mut known = BTreeSet::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    collect(&root, &mut known);
    let lost: Vec<_> = exported()
        .into_iter()
        .filter(|name| !known.contains(name) && !WITHOUT.contains(&name.as_str()))
        .collect();
    assert!(lost.is_empty(), "no item and no doc alias: {lost:?}");
    for name in WITHOUT {
        assert!(!known.contains(name), "{name} has a counterpart now");
    }
}

/// The names of public items and the aliases of the documentation, in every source file.
fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, names);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            names.extend(text.lines().flat_map(declared).map(str::to_owned));
        }
    }
}

fn declared(line: &str) -> Vec<&str> {
    let line = line.trim();
    if line.starts_with("#[doc(alias") {
        // The quoted parts are every second one.
        return line.split('"').skip(1).step_by(2).collect();
    }
    // Items of macros are written without a keyword.
    let of_macro = line.strip_suffix(" {").filter(|word| !word.contains(' '));
    let kinds = ["struct", "enum", "trait", "type", "mod", "fn"];
    let item = kinds.iter().find_map(|kind| {
        let name = line
            .strip_prefix("pub ")?
            .strip_prefix(kind)?
            .strip_prefix(' ')?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    });
    of_macro.into_iter().chain(item).collect()
}

#[test]
fn the_list_is_what_the_python_sdk_exports() {
    let Some(python) = interpreter("0.36.0") else {
        return;
    };
    let script = "import json, tinker; print(json.dumps(tinker.__all__))";
    let output = Command::new(&python).args(["-c", script]).output().unwrap();
    let theirs: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(exported(), theirs);
    let output = Command::new(python)
        .args(["-c", LIST_METHODS])
        .output()
        .unwrap();
    let theirs: BTreeMap<String, Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(methods(), theirs);
}
