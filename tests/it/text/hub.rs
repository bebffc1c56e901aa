//! Downloads from a hub into the cache the Hugging Face tools use.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinker::Error;
use tinker::config::Timeout;
use tinker::text::{Hub, Tokenizer, TokenizerId};

use crate::support::hub::{FakeRepo, Fault, HubServer, git_sha1};
use crate::support::packages::sha256;
use crate::support::python;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn large() -> Vec<u8> {
    (0..1_000_000u32).flat_map(u32::to_le_bytes).collect()
}

/// A hub with one repository, and a cache of its own.
struct Place {
    server: HubServer,
    cache: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let server = HubServer::start();
        let tiny = Path::new("tests/fixtures/text/tiny");
        let read = |name: &str| fs::read(tiny.join(name)).unwrap();
        let repo = FakeRepo::new(COMMIT)
            .with_large_file("tokenizer.json", read("tokenizer.json"))
            .with_file("tokenizer_config.json", read("tokenizer_config.json"))
            .with_file("sub folder/a.txt", "small")
            .with_file("empty.txt", "")
            .with_large_file("weights.bin", large());
        server.put("org/tiny", repo);
        Self {
            server,
            cache: tempfile::tempdir().unwrap(),
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.cache.path()).with_endpoint(self.server.url())
    }

    fn folder(&self) -> std::path::PathBuf {
        self.cache.path().join("models--org--tiny")
    }

    fn requests(&self) -> usize {
        self.server.api.requests().len() + self.server.storage.requests().len()
    }
}

#[test]
fn files_land_in_the_layout_of_the_hugging_face_tools() {
    let place = Place::new();
    let repo = place.hub().model("org/tiny").unwrap();
    let small = repo.file("sub folder/a.txt").unwrap();
    let big = repo.file("weights.bin").unwrap();
    assert_eq!(fs::read_to_string(&small).unwrap(), "small");
    assert_eq!(fs::read(&big).unwrap(), large());
    assert_eq!(fs::read(repo.file("empty.txt").unwrap()).unwrap(), b"");

    let folder = place.folder();
    assert_eq!(
        small,
        folder
            .join("snapshots")
            .join(COMMIT)
            .join("sub folder/a.txt")
    );
    assert_eq!(
        fs::read_to_string(folder.join("refs/main")).unwrap(),
        COMMIT
    );
    let blob = |name: &str| folder.join("blobs").join(name);
    assert_eq!(fs::read(blob(&git_sha1(b"small"))).unwrap(), b"small");
    assert_eq!(fs::read(blob(&sha256(&large()))).unwrap().len(), 4_000_000);
    let locks = place.cache.path().join(".locks/models--org--tiny");
    assert!(locks.join(format!("{}.lock", sha256(&large()))).is_file());
    #[cfg(unix)]
    {
        let target = fs::read_link(&small).unwrap();
        assert_eq!(target, Path::new("../../../blobs").join(git_sha1(b"small")));
    }

    // What is there is not asked for again, and what is not there only once.
    let before = place.requests();
    assert_eq!(repo.file("weights.bin").unwrap(), big);
    assert_eq!(place.requests(), before);
    assert_eq!(repo.try_file("nothing.txt").unwrap(), None);
    assert_eq!(repo.try_file("nothing.txt").unwrap(), None);
    assert_eq!(place.requests(), before + 1);
    assert!(
        folder
            .join(".no_exist")
            .join(COMMIT)
            .join("nothing.txt")
            .is_file()
    );
    let error = repo.file("nothing.txt").unwrap_err().to_string();
    assert!(
        error.contains("org/tiny has no file nothing.txt"),
        "{error}"
    );
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let place = Place::new();
    let hub = place.hub().with_token("hf_very_secret");
    hub.model("org/tiny").unwrap().file("weights.bin").unwrap();
    let sent = |requests: &[crate::support::scripted::Recorded]| {
        requests
            .iter()
            .map(|request| request.header("authorization").map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        sent(&place.server.api.requests()),
        [Some("Bearer hf_very_secret".to_owned())]
    );
    assert_eq!(sent(&place.server.storage.requests()), [None]);
    let names = place.server.api.requests()[0].headers.clone();
    assert!(
        names.iter().all(|(name, _)| !name.starts_with("x-")),
        "{names:?}"
    );
    assert!(!format!("{hub:?}").contains("very_secret"));
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let place = Place::new();
    place.server.fail(Fault::CutAfter(1_000_000));
    place.server.fail(Fault::CutAfter(500_000));
    place.server.fail(Fault::Busy);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = Arc::clone(&seen);
    let hub = place.hub().with_progress(move |progress| {
        assert_eq!(
            (progress.file.as_str(), progress.total),
            ("weights.bin", Some(4_000_000))
        );
        observer.lock().unwrap().push(progress.received);
    });
    let file = hub.model("org/tiny").unwrap().file("weights.bin").unwrap();
    assert_eq!(fs::read(file).unwrap(), large());
    let ranges: Vec<_> = place
        .server
        .storage
        .requests()
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    let range = |from: usize| Some(format!("bytes={from}-"));
    assert_eq!(
        ranges,
        [None, range(1_000_000), range(1_500_000), range(1_500_000)]
    );
    let seen = seen.lock().unwrap();
    assert!(
        seen.is_sorted() && seen.last() == Some(&4_000_000),
        "{seen:?}"
    );
}

/// The lock of the large file, as another program holds it.
fn held(place: &Place) -> fs::File {
    let locks = place.cache.path().join(".locks/models--org--tiny");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(format!("{}.lock", sha256(&large())))).unwrap();
    lock.lock().unwrap();
    lock
}

#[test]
fn anothers_download_is_watched_and_used() {
    let place = Place::new();
    let blobs = place.folder().join("blobs");
    let digest = sha256(&large());
    let partial = blobs.join(format!("{digest}.incomplete"));
    fs::create_dir_all(&blobs).unwrap();
    fs::write(&partial, &large()[..1000]).unwrap();
    let other = Mutex::new(Some(held(&place)));
    let hub = place.hub().with_progress(move |progress| {
        assert_eq!(progress.total, Some(4_000_000));
        let Some(lock) = other.lock().unwrap().take() else {
            panic!("what is there is not fetched again");
        };
        // The other is done while it is watched.
        assert_eq!(progress.received, 1000);
        fs::write(&partial, large()).unwrap();
        fs::rename(&partial, blobs.join(&digest)).unwrap();
        drop(lock);
    });
    let file = hub.model("org/tiny").unwrap().file("weights.bin").unwrap();
    assert_eq!(fs::read(file).unwrap(), large());
    assert_eq!(place.server.storage.requests().len(), 0);
}

#[test]
fn another_program_that_brings_nothing_is_not_waited_for_without_end() {
    let place = Place::new();
    let other = held(&place);
    let hub = place.hub().with_read_timeout(Duration::from_millis(500));
    let repo = hub.model("org/tiny").unwrap();
    let error = repo.file("weights.bin").unwrap_err();
    assert!(
        matches!(error, Error::Timeout(_)) && error.is_retryable(),
        "{error:?}"
    );
    let text = error.to_string();
    for part in ["another thread or program", "models--org--tiny", ".lock"] {
        assert!(text.contains(part), "{text}");
    }
    drop(other);
    let hub = hub.with_read_timeout(Timeout::Default);
    hub.model("org/tiny").unwrap().file("weights.bin").unwrap();
}

#[test]
fn what_an_earlier_process_left_is_used_if_it_is_right() {
    #[track_caller]
    fn check(left: &[u8], fault: Option<Fault>, ranges: &[Option<&str>]) {
        let place = Place::new();
        let blobs = place.folder().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", sha256(&large()))), left).unwrap();
        fault.into_iter().for_each(|fault| place.server.fail(fault));
        let file = place
            .hub()
            .model("org/tiny")
            .unwrap()
            .file("weights.bin")
            .unwrap();
        assert!(fs::read(file).unwrap() == large());
        let requests = place.server.storage.requests();
        let asked: Vec<_> = requests
            .iter()
            .map(|request| request.header("range"))
            .collect();
        assert_eq!(asked, ranges);
    }
    check(&large()[..100], None, &[Some("bytes=100-")]);
    check(&large()[..100], Some(Fault::NoRange), &[Some("bytes=100-")]);
    // A whole file that was only not named yet needs no request.
    check(&large(), None, &[]);
    // Too much cannot be the beginning of it.
    check(&vec![7; 5_000_000], None, &[None]);
}

#[test]
fn damage_is_noticed_and_mended() {
    let place = Place::new();
    place.server.fail(Fault::Damaged);
    let file = place
        .hub()
        .model("org/tiny")
        .unwrap()
        .file("weights.bin")
        .unwrap();
    assert!(fs::read(file).unwrap() == large());
    assert_eq!(place.server.storage.requests().len(), 2);
}

#[test]
fn refusals_say_what_to_do() {
    #[track_caller]
    fn check(error: &Error, parts: &[&str]) {
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        assert!(!text.contains("hf_wrong"), "{text}");
    }
    let place = Place::new();
    let repo = || FakeRepo::new(COMMIT).with_file("a.txt", "a");
    place.server.put("org/gated", repo().gated_for("hf_right"));
    place
        .server
        .put("org/private", repo().private_for("hf_right"));
    let ask = |hub: Hub, name: &str| hub.model(name).unwrap().file("a.txt");
    let wrong = || place.hub().with_token("hf_wrong");

    let error = ask(place.hub(), "org/gated").unwrap_err();
    check(&error, &["org/gated is gated", "HF_TOKEN"]);
    assert!(matches!(error, Error::Credentials(_)));
    check(
        &ask(wrong(), "org/gated").unwrap_err(),
        &["gated", "the token in use has no access"],
    );
    check(
        &ask(place.hub(), "org/private").unwrap_err(),
        &["no model org/private", "HF_TOKEN"],
    );
    check(
        &ask(wrong(), "org/none").unwrap_err(),
        &["no model org/none", "check the name"],
    );
    // The page where a person asks for access.
    place
        .server
        .put("datasets/org/gated", repo().gated_for("hf_right"));
    let rows = place.hub().dataset("org/gated").unwrap().file("a.txt");
    let page = format!("{}/datasets/org/gated)", place.server.url());
    check(&rows.unwrap_err(), &["dataset org/gated is gated", &page]);
    let other = place.hub().model("org/tiny").unwrap().with_revision("v9");
    check(&other.file("a.txt").unwrap_err(), &["no revision v9"]);
    assert!(ask(place.hub().with_token("hf_right"), "org/gated").is_ok());

    for bad in ["", "a/b/c", "../x", "a b", "a//b"] {
        assert!(
            matches!(place.hub().model(bad), Err(Error::Invalid(_))),
            "{bad}"
        );
    }
    let tiny = place.hub().model("org/tiny").unwrap();
    for bad in ["../a", "/etc/passwd", "a/../../b"] {
        assert!(matches!(tiny.file(bad), Err(Error::Invalid(_))), "{bad}");
        assert!(
            tiny.clone().with_revision(bad).file("a.txt").is_err(),
            "{bad}"
        );
    }
}

#[test]
fn a_model_is_found_or_fetched_whole() {
    let place = Place::new();
    let id = TokenizerId::select("org/tiny", None).unwrap();
    let offline = place.hub().with_offline(true);
    let error = Tokenizer::from_hub(&offline, &id).unwrap_err().to_string();
    for part in [
        "tokenizer.json",
        "org/tiny",
        "HF_HUB_OFFLINE",
        "models--org--tiny/snapshots",
    ] {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert_eq!(place.requests(), 0);

    let tokenizer = Tokenizer::from_hub(&place.hub(), &id).unwrap();
    assert_eq!(tokenizer.name(), "org/tiny");
    assert!(tokenizer.eos_id().is_some(), "its configuration came too");
    let asked = place.requests();
    assert_eq!(asked, 4, "the list, two files, one of them by a link");
    Tokenizer::from_hub(&offline, &id).unwrap();
    assert_eq!(place.requests(), asked);

    place.server.put(
        "org/other",
        FakeRepo::new(COMMIT).with_file("config.json", "{}"),
    );
    let other = TokenizerId::select("org/other", None).unwrap();
    let error = Tokenizer::from_hub(&place.hub(), &other)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("org/other has no tokenizer.json and no tiktoken.model"),
        "{error}"
    );
}

#[test]
fn a_snapshot_is_of_one_commit() {
    let place = Place::new();
    let repo = place.hub().model("org/tiny").unwrap();
    let files = repo.files().unwrap();
    assert_eq!(files.commit, COMMIT);
    assert_eq!(files.paths.len(), 5);
    let folder = repo.snapshot(|path| path.ends_with(".txt")).unwrap();
    assert!(folder.join("sub folder/a.txt").is_file() && !folder.join("weights.bin").exists());
}

#[test]
fn many_threads_fetch_a_file_once() {
    let place = Place::new();
    let repo = place.hub().model("org/tiny").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope
                .spawn(|| assert!(fs::read(repo.file("weights.bin").unwrap()).unwrap() == large()));
        }
    });
    assert_eq!(place.server.storage.requests().len(), 1);
}

/// The Python package reads what we wrote, and we what it wrote.
#[test]
fn the_cache_is_shared_with_huggingface_hub() {
    let Some(python) = python::environment("huggingface-hub-1", &["huggingface_hub==1.2.3"]) else {
        return;
    };
    let place = Place::new();
    let run = |offline: &str, files: &[&str]| {
        let script = "import sys\n\
            from huggingface_hub import hf_hub_download, try_to_load_from_cache, _CACHED_NO_EXIST\n\
            for name in sys.argv[1:]:\n    print(hf_hub_download('org/tiny', name))\n\
            print(try_to_load_from_cache('org/tiny', 'nothing.txt') is _CACHED_NO_EXIST)";
        let output = Command::new(&python)
            .args(["-c", script])
            .args(files)
            .env("HF_HUB_CACHE", place.cache.path())
            .env("HF_ENDPOINT", place.server.url())
            .env("HF_HUB_OFFLINE", offline)
            .env("NO_PROXY", "127.0.0.1,localhost")
            .env_remove("HF_TOKEN")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let repo = place.hub().model("org/tiny").unwrap();
    let ours = repo.file("weights.bin").unwrap();
    repo.try_file("nothing.txt").unwrap();
    let theirs = run("1", &["weights.bin"]);
    let lines: Vec<&str> = theirs.lines().collect();
    assert_eq!(lines, [ours.to_str().unwrap(), "True"]);

    run("0", &["tokenizer.json", "sub folder/a.txt"]);
    let before = place.requests();
    assert_eq!(
        fs::read(repo.file("sub folder/a.txt").unwrap()).unwrap(),
        b"small"
    );
    assert!(repo.file("tokenizer.json").unwrap().is_file());
    assert_eq!(place.requests(), before);
}
