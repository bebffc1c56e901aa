//! Uploads of folders to a hub.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tinker::Error;
use tinker::error::Effect;
use tinker::text::{Hub, HubCommit, UploadOptions};

use crate::support::hub::{FakeRepo, Fault, HubServer, git_sha1};
use crate::support::python;
use crate::support::scripted::{Recorded, Reply, Server};

const TOKEN: &str = "hf_writer_secret";
const NAME: &str = "me/adapter";

fn weights() -> Vec<u8> {
    (0..60_000u32).flat_map(u32::to_le_bytes).collect()
}

/// A hub that lets one token write, and a folder to upload.
struct Place {
    server: HubServer,
    folder: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let server = HubServer::start();
        server.let_write(TOKEN, "me");
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        fs::create_dir_all(folder.path().join("sub/.git")).unwrap();
        write("adapter_config.json", b"{\"r\": 2}\n");
        write("adapter_model.safetensors", &weights());
        write("empty.bin", b"");
        write("sub/notes.txt", "é\n".as_bytes());
        write("sub/.git/config", b"not for others");
        Self {
            server,
            folder,
            cache: tempfile::tempdir().unwrap(),
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.cache.path())
            .with_endpoint(self.server.url())
            .with_token(TOKEN)
    }

    fn sent(&self, part: &str) -> Vec<Recorded> {
        let mut requests = self.server.api.requests();
        requests.extend(self.server.storage.requests());
        requests.retain(|request| request.path.contains(part));
        requests
    }
}

#[test]
fn a_folder_becomes_a_commit() {
    let place = Place::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&seen);
    let repo = place.hub().create_model("adapter", true).unwrap();
    assert_eq!(repo.name(), NAME);
    assert!(place.server.repo(NAME).unwrap().private);
    let repo = repo.with_progress(move |progress| {
        heard
            .lock()
            .unwrap()
            .push((progress.file.clone(), progress.received));
    });
    let options = UploadOptions::default().with_message("first");
    let done = repo
        .upload_folder(place.folder.path(), options.clone())
        .unwrap();
    let paths = [
        "adapter_config.json",
        "adapter_model.safetensors",
        "empty.bin",
        "sub/notes.txt",
    ];
    assert_eq!(done.paths, paths);
    assert_eq!(done.pull_request, None);
    let there = place.server.repo(NAME).unwrap();
    assert_eq!(
        (done.commit.as_str(), there.messages.as_slice()),
        (there.commit.as_str(), &["first".to_owned()][..])
    );
    assert!(
        done.url
            .ends_with(&format!("{NAME}/commit/{}", there.commit)),
        "{done:?}"
    );
    assert_eq!(
        there.file("main", "adapter_model.safetensors"),
        Some((&weights()[..], true))
    );
    assert_eq!(there.file("main", "empty.bin"), Some((&b""[..], false)));
    assert_eq!(
        there.file("main", "sub/notes.txt"),
        Some(("é\n".as_bytes(), false))
    );
    assert_eq!(there.file("main", "sub/.git/config"), None);
    let last = (paths[1].to_owned(), weights().len() as u64);
    assert_eq!(seen.lock().unwrap().last(), Some(&last));

    // Again: nothing has changed, nothing is sent; then one file has.
    let again = repo
        .upload_folder(place.folder.path(), options.clone())
        .unwrap();
    assert_eq!((again.commit, again.paths), (done.commit, vec![]));
    assert_eq!(
        (place.sent("/commit/").len(), place.sent("/upload/").len()),
        (1, 1)
    );
    fs::write(place.folder.path().join("sub/notes.txt"), "more").unwrap();
    let more = repo.upload_folder(place.folder.path(), options).unwrap();
    assert_eq!(more.paths, ["sub/notes.txt"]);
    // Finding it again is no error, and what it holds stays.
    place.hub().create_model(NAME, false).unwrap();
    assert!(place.server.repo(NAME).unwrap().private);
    // What was uploaded can be downloaded.
    let file = place
        .hub()
        .model(NAME)
        .unwrap()
        .file("adapter_model.safetensors")
        .unwrap();
    assert_eq!(fs::read(file).unwrap(), weights());
}

/// Uploads a file to a hub that was told its answers, but for the one that says how to send it.
fn upload(server: &Server, mode: &str, oid: Option<String>) -> Result<HubCommit, Error> {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("a.txt"), "a").unwrap();
    let mode = json!({"files": [{"path": "a.txt", "uploadMode": mode, "oid": oid}]});
    let route = "/api/datasets/me/rows/preupload/main";
    server.reply("POST", route, Reply::json(&mode));
    let hub = Hub::new(cache.path()).with_endpoint(server.url());
    let repo = hub.with_token(TOKEN).dataset("me/rows").unwrap();
    repo.upload_folder(folder.path(), UploadOptions::default())
}

#[test]
fn a_dataset_that_is_there_is_named_by_its_own_page() {
    let server = Server::start();
    let listing = Reply::json(&json!({"sha": "abc"}));
    server.reply("GET", "/api/datasets/me/rows/revision/main", listing);
    let there = upload(&server, "regular", Some(git_sha1(b"a"))).unwrap();
    let url = format!("{}/datasets/me/rows/commit/abc", server.url());
    assert_eq!((there.url, there.paths), (url, vec![]));
}

#[test]
fn only_a_commit_has_an_effect() {
    #[track_caller]
    fn check(mode: &str, route: &str, reply: Reply, expected: Effect) {
        let server = Server::start();
        server.always("POST", route, reply);
        let error = upload(&server, mode, None).unwrap_err();
        assert_eq!(error.effect(), expected, "{error}");
    }
    let busy = || Reply::status(500).with_header("retry-after", "0");
    let batch = "/datasets/me/rows.git/info/lfs/objects/batch";
    check("lfs", batch, busy(), Effect::None);
    let commit = "/api/datasets/me/rows/commit/main";
    check("regular", commit, busy(), Effect::Unknown);
    check("regular", commit, Reply::json(&json!({})), Effect::Accepted);
}

#[cfg(unix)]
#[test]
fn no_file_of_a_folder_is_passed_over_or_sent_twice() {
    use std::os::unix::fs::symlink;

    let place = Place::new();
    let at = |name: &str| place.folder.path().join(name);
    fs::write(at("10:00\\.json"), "{}").unwrap();
    for (target, link) in [
        ("sub", "linked"),
        (".", "self"),
        ("..", "sub/up"),
        ("no", "bad"),
    ] {
        symlink(target, at(link)).unwrap();
    }
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

    let repo = place.hub().create_model(NAME, false).unwrap();
    let all = UploadOptions::default();
    let error = repo
        .upload_folder(place.folder.path(), all.clone())
        .unwrap_err();
    assert!(error.to_string().contains("bad"), "{error}");
    let most = all.with_ignore_patterns(["bad", "*.safetensors"]);
    let done = repo.upload_folder(place.folder.path(), most).unwrap();
    let expected = [
        "10:00\\.json",
        "adapter_config.json",
        "empty.bin",
        "linked/notes.txt",
        "sub/notes.txt",
    ];
    assert_eq!(done.paths, expected);
}

#[test]
fn patterns_branches_and_pull_requests() {
    let place = Place::new();
    let repo = place.hub().create_model(NAME, false).unwrap();
    let options = UploadOptions::default()
        .with_allow_patterns(["*.json", "sub/"])
        .with_ignore_patterns(["*.txt"]);
    let done = repo
        .upload_folder(place.folder.path(), options.clone())
        .unwrap();
    assert_eq!(done.paths, ["adapter_config.json"]);
    let none = UploadOptions::default().with_allow_patterns(["*.md"]);
    let error = repo.upload_folder(place.folder.path(), none).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");

    let branch = repo.clone().with_revision("step/1");
    let error = branch
        .upload_folder(place.folder.path(), UploadOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("Invalid rev id"), "{error}");
    branch.create_branch().unwrap();
    branch.create_branch().unwrap();
    branch
        .upload_folder(place.folder.path(), UploadOptions::default())
        .unwrap();
    let there = place.server.repo(NAME).unwrap();
    assert_eq!(there.paths("main").len(), 2);
    assert_eq!(there.paths("step/1").len(), 5);

    let asked = UploadOptions::default().with_create_pr(true);
    let pull = repo
        .upload_folder(place.folder.path(), asked.clone())
        .unwrap();
    assert!(
        pull.pull_request
            .unwrap()
            .contains("/me/adapter/discussions/")
    );
    assert_eq!(place.server.repo(NAME).unwrap().paths("main").len(), 2);
    let error = branch
        .upload_folder(place.folder.path(), asked)
        .unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[test]
fn large_files_go_in_parts_and_trouble_passes() {
    let place = Place::new();
    place.server.want_parts(100_000);
    place.server.fail(Fault::Busy);
    let repo = place.hub().create_model(NAME, true).unwrap();
    repo.upload_folder(place.folder.path(), UploadOptions::default())
        .unwrap();
    let parts = place.sent("/upload/");
    let sizes: Vec<usize> = parts.iter().map(|part| part.body.len()).collect();
    assert_eq!(
        sizes,
        [100_000, 100_000, 100_000, 40_000],
        "the first one twice"
    );
    let there = place.server.repo(NAME).unwrap();
    assert_eq!(
        there.file("main", "adapter_model.safetensors"),
        Some((&weights()[..], true))
    );
    // Another repository of the same hub has no need of the bytes.
    let other = place.hub().create_model("me/other", true).unwrap();
    other
        .upload_folder(place.folder.path(), UploadOptions::default())
        .unwrap();
    assert_eq!(place.sent("/upload/").len(), parts.len());
}

#[test]
fn what_the_hub_ignores_is_left_out() {
    let place = Place::new();
    let repo = FakeRepo::new("1").with_file(".gitignore", "adapter_model.safetensors\n");
    place.server.put(NAME, repo);
    let repo = place.hub().model(NAME).unwrap();
    let done = repo
        .upload_folder(place.folder.path(), UploadOptions::default())
        .unwrap();
    assert_eq!(
        done.paths,
        ["adapter_config.json", "empty.bin", "sub/notes.txt"]
    );
    assert_eq!(place.sent("/upload/").len(), 0);
}

#[test]
fn refusals_of_uploads_say_what_to_do() {
    #[track_caller]
    fn check<T: std::fmt::Debug>(outcome: Result<T, Error>, parts: &[&str]) {
        let error = outcome.unwrap_err();
        let text = format!("{error} {error:?}");
        for part in parts {
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        assert!(
            !text.contains(TOKEN) && !text.contains("hf_wrong"),
            "{text}"
        );
    }
    let place = Place::new();
    let folder = place.folder.path();
    let none = Hub::new(place.cache.path()).with_endpoint(place.server.url());
    check(none.whoami(), &["HF_TOKEN", "hf auth login"]);
    let wrong = none.clone().with_token("hf_wrong_secret");
    check(wrong.whoami(), &["HF_TOKEN"]);
    check(wrong.create_model(NAME, true), &["HF_TOKEN"]);
    check(
        place.hub().create_model("other/name", true),
        &["may not write to other/name"],
    );
    check(place.hub().with_offline(true).whoami(), &["HF_HUB_OFFLINE"]);
    let missing = place.hub().model("me/none").unwrap();
    check(
        missing.upload_folder(folder, UploadOptions::default()),
        &["no me/none"],
    );
    let repo = place.hub().create_model(NAME, true).unwrap();
    check(
        repo.upload_folder(folder.join("nope"), UploadOptions::default()),
        &["nope"],
    );
    let requests = place.server.api.requests();
    assert!(
        requests
            .iter()
            .all(|request| !request.path.contains("/commit/"))
    );
}

/// The hub of these tests takes what the Python package sends, and makes the same of it.
#[test]
fn huggingface_hub_uploads_to_the_same_hub() {
    let Some(python) = python::environment("huggingface-hub-1", &["huggingface_hub==1.2.3"]) else {
        return;
    };
    let place = Place::new();
    place.server.want_parts(100_000);
    let script = "import sys\n\
        from huggingface_hub import HfApi\n\
        api = HfApi()\n\
        assert api.whoami()['name'] == 'me'\n\
        api.create_repo('me/theirs', private=True, exist_ok=True)\n\
        api.create_repo('me/theirs', private=True, exist_ok=True)\n\
        api.create_branch('me/theirs', branch='step/1', exist_ok=True)\n\
        print(api.upload_folder(repo_id='me/theirs', folder_path=sys.argv[1], revision='step/1',\n\
            ignore_patterns=['*.txt']).oid)\n\
        print(api.upload_folder(repo_id='me/theirs', folder_path=sys.argv[1], create_pr=True).pr_url)";
    let output = Command::new(&python)
        .args(["-c", script])
        .arg(place.folder.path())
        .env("HF_HOME", place.cache.path())
        .env("HF_ENDPOINT", place.server.url())
        .env("HF_TOKEN", TOKEN)
        .env("HF_HUB_DISABLE_XET", "1")
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env_remove("HF_HUB_OFFLINE")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("/me/theirs/discussions/"));

    let ours = place.hub().create_model("me/ours", true).unwrap();
    let branch = ours.clone().with_revision("step/1");
    branch.create_branch().unwrap();
    let options = UploadOptions::default().with_ignore_patterns(["*.txt"]);
    branch.upload_folder(place.folder.path(), options).unwrap();
    let (theirs, ours) = (place.server.repo("me/theirs"), place.server.repo("me/ours"));
    let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
    assert_eq!(theirs.paths("step/1"), ours.paths("step/1"));
    for path in theirs.paths("step/1") {
        assert_eq!(
            theirs.file("step/1", path),
            ours.file("step/1", path),
            "{path}"
        );
    }
    assert!(Path::new(theirs.paths("main")[0]).ends_with(".gitattributes"));
}
