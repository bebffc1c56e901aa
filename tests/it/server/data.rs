//! The data folder: nothing that the server did not make is touched, and nothing it made is lost
//! to another version of it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Caller;

fn open(folder: &Path) -> tinker::Result<LocalServer> {
    LocalServer::builder().data(folder).start()
}

/// Clients read the tokenizer there, whatever folder they run in.
#[cfg(unix)]
#[test]
fn a_folder_named_from_here_is_found_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let named = up.join(folder.path().strip_prefix("/").unwrap());
    let server = open(&named).unwrap();
    let caller = Caller::new(&server);
    let info = caller.ok("get_info", json!({"model_id": caller.model(0).id}));
    let tokenizer = info["model_data"]["tokenizer_id"].as_str().unwrap();
    assert!(Path::new(tokenizer).is_absolute(), "{info}");
    assert!(
        Path::new(tokenizer).join("tokenizer.json").exists(),
        "{info}"
    );
}

/// Every file below a folder with its content, in order.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

fn write(folder: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path
}

/// The one file below a folder whose name ends so.
fn find(folder: &Path, ending: &str) -> PathBuf {
    let mut found = files(folder);
    found.retain(|(path, _)| path.to_string_lossy().ends_with(ending));
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.remove(0).0
}

fn edit(record: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(record, value.to_string()).unwrap();
}

/// A folder in which a checkpoint of each of these names was saved; gives their run.
fn saved(folder: &Path, names: &[&str]) -> String {
    let server = open(folder).unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    for (number, name) in (1..).zip(names) {
        let body = json!({"model_id": model.id, "seq_id": number, "path": name});
        caller.call("save_weights", body);
    }
    model.id
}

fn listed(caller: &Caller) -> Vec<String> {
    let list = caller.get("checkpoints")["checkpoints"].clone();
    let ids = list.as_array().unwrap().iter();
    let mut ids: Vec<String> = ids
        .map(|one| one["checkpoint_id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    ids
}

fn can_load(caller: &Caller, number: u64, run: &str, name: &str) -> bool {
    let body = json!({"session_id": caller.session, "model_seq_id": number,
        "path": format!("tinker://{run}/weights/{name}"), "optimizer": true});
    let reply = caller.post("load_weights", body);
    reply.status == 200 && caller.wait(&reply.json()).get("error").is_none()
}

#[test]
fn a_folder_of_others_is_refused_by_name_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "checkpoints/run/step.safetensors", b"mine");
    write(folder.path(), "checkpoints/run/notes.json", b"{");
    write(folder.path(), "model/config.json", b"{\"my\": 1}");
    write(folder.path(), "model/model.safetensors", b"my model");
    let before = files(folder.path());
    let refused = open(folder.path()).unwrap_err().to_string();
    let name = folder.path().display().to_string();
    assert!(
        refused.contains(&name) && refused.contains("not a data folder"),
        "{refused}"
    );
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_new_folder_and_an_empty_one_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    drop(open(&folder.path().join("deeper/still")).unwrap());
    drop(open(folder.path()).unwrap());
}

#[test]
fn files_of_others_within_the_data_folder_stay() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()).unwrap());
    let theirs = [
        write(folder.path(), "checkpoints/run/step.safetensors", b"mine"),
        write(folder.path(), "checkpoints/run/notes.json", b"not a record"),
        write(folder.path(), "checkpoints/run/download.partial", b"half"),
        write(folder.path(), "model/config.json", b"{\"my\": 1}"),
    ];
    let before: Vec<Vec<u8>> = theirs
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    let server = open(folder.path()).unwrap();
    let said = server.problems().join("\n");
    assert!(
        said.contains("notes.json") && said.contains("step.safetensors"),
        "{said}"
    );
    let caller = Caller::new(&server);
    // The built-in model's files, which clients load their tokenizer from, are elsewhere then.
    let model = caller.model(0);
    let info = caller.ok("get_info", json!({"model_id": model.id}));
    let tokenizer = info["model_data"]["tokenizer_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        Path::new(&tokenizer).join("tokenizer.json").exists(),
        "{tokenizer}"
    );
    drop(server);
    let after: Vec<Vec<u8>> = theirs
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    assert_eq!(after, before);
}

#[test]
fn weights_of_unreadable_records_stay() {
    let folder = tempfile::tempdir().unwrap();
    let run = saved(folder.path(), &["damaged", "good"]);
    let record = find(folder.path(), "damaged.json");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, b"{\"path\":").unwrap();
    {
        let server = open(folder.path()).unwrap();
        assert!(
            server.problems()[0].contains("damaged.json"),
            "{:?}",
            server.problems()
        );
        let caller = Caller::new(&server);
        assert_eq!(listed(&caller), ["weights/good"]);
        assert!(!can_load(&caller, 0, &run, "damaged"));
        assert!(can_load(&caller, 1, &run, "good"));
    }
    // Whoever can mend the record has everything back.
    std::fs::write(&record, whole).unwrap();
    let server = open(folder.path()).unwrap();
    assert_eq!(server.problems(), Vec::<String>::new());
    let caller = Caller::new(&server);
    assert_eq!(listed(&caller), ["weights/damaged", "weights/good"]);
    assert!(can_load(&caller, 0, &run, "damaged"));
}

#[test]
fn a_newer_version_and_back_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = saved(folder.path(), &["extended", "replaced", "plain"]);
    // What a newer version may do: add a field, or write a record this one cannot know.
    let extended = find(folder.path(), "extended.json");
    edit(&extended, |record| record["colour"] = json!("green"));
    let newer = find(folder.path(), "replaced.json");
    edit(&newer, |record| {
        *record = json!({"version": 99, "where": record["file"]})
    });
    {
        let server = open(folder.path()).unwrap();
        let said = server.problems().join("\n");
        assert!(
            said.contains("replaced.json") && said.contains("newer version"),
            "{said}"
        );
        let caller = Caller::new(&server);
        assert_eq!(listed(&caller), ["weights/extended", "weights/plain"]);
        assert!(can_load(&caller, 0, &run, "extended"));
        let published = format!("training_runs/{run}/checkpoints/weights/extended/publish");
        assert_eq!(caller.post(&published, json!({})).status, 200);
    }
    let text = std::fs::read_to_string(&extended).unwrap();
    assert!(
        text.contains("green") && text.contains("\"public\": true"),
        "{text}"
    );
    let record: Value = serde_json::from_slice(&std::fs::read(&newer).unwrap()).unwrap();
    assert_eq!(record["version"], 99);
    assert!(
        newer
            .with_file_name(record["where"].as_str().unwrap())
            .exists()
    );
}

#[test]
fn records_from_before_versions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let run = saved(folder.path(), &["old"]);
    for (path, _) in files(folder.path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.ends_with(".json")
            && path.parent() != Some(folder.path())
            && !name.contains("token")
        {
            edit(&path, |record| {
                drop(record.as_object_mut().unwrap().remove("version"))
            });
        }
    }
    let server = open(folder.path()).unwrap();
    assert_eq!(server.problems(), Vec::<String>::new());
    assert!(can_load(&Caller::new(&server), 0, &run, "old"));
}

#[test]
fn a_folder_of_a_newer_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    saved(folder.path(), &["a"]);
    let marker = folder.path().join("tinker-data.json");
    std::fs::write(&marker, b"{\"format\": 99}\n").unwrap();
    let before = files(folder.path());
    let refused = open(folder.path()).unwrap_err().to_string();
    assert!(
        refused.contains("format 99") && refused.contains("newer version"),
        "{refused}"
    );
    assert_eq!(files(folder.path()), before);
    std::fs::write(&marker, b"nonsense").unwrap();
    let refused = open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("tinker-data.json"), "{refused}");
}

#[test]
fn deletions_and_replacements_that_were_cut_short_are_finished() {
    let folder = tempfile::tempdir().unwrap();
    let run = saved(folder.path(), &["kept", "going"]);
    let record = find(folder.path(), "going.json");
    let value: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let weights = record.with_file_name(value["file"].as_str().unwrap());
    // As a crash leaves it: deleted by name, with the weights still there.
    std::fs::rename(&record, record.with_extension("deleted")).unwrap();
    // And a save that got no further than its weights.
    let half = write(
        record.parent().unwrap(),
        "0aa6a6b4-6f6c-4f3c-9d39-3f9b5a4a1c11.safetensors.partial",
        b"half",
    );
    let server = open(folder.path()).unwrap();
    assert_eq!(server.problems(), Vec::<String>::new());
    assert!(!weights.exists() && !half.exists());
    let caller = Caller::new(&server);
    assert_eq!(listed(&caller), ["weights/kept"]);
    assert!(can_load(&caller, 0, &run, "kept"));
}

#[test]
fn an_empty_key_is_refused() {
    for key in ["", " \n"] {
        let refused = LocalServer::builder().api_key(key).start().unwrap_err();
        assert!(refused.to_string().contains("api_key"), "{refused}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "key", b"\n");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tinker"))
        .args(["serve", "--port", "0", "--key-file"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&file.display().to_string()) && said.contains("empty"),
        "{said}"
    );
}

/// Whoever can write into the folder must not make the server reach out of it.
#[test]
fn records_that_name_files_elsewhere_are_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let names = ["above", "absolute", "replaces", "moved", "deleted", "good"];
    let run = saved(&data, &names);
    let precious = write(folder.path(), "precious.safetensors", b"precious");
    let above = json!("../../../../precious.safetensors");
    let absolute = json!(precious);
    let good = find(&data, "good.json");
    let theirs: Value = serde_json::from_slice(&std::fs::read(&good).unwrap()).unwrap();
    let moved = json!(format!("tinker://{run}/sampler_weights/moved"));
    for (name, field, value) in [
        ("above", "file", &above),
        ("absolute", "file", &absolute),
        ("replaces", "replaces", &absolute),
        ("moved", "path", &moved),
        ("deleted", "file", &above),
    ] {
        let record = find(&data, &format!("{name}.json"));
        edit(&record, |record| record[field] = value.clone());
        if name == "deleted" {
            std::fs::rename(&record, record.with_extension("deleted")).unwrap();
        }
    }
    // Nor may a record name what is not weights of ours.
    let stray = write(good.parent().unwrap(), "notes.safetensors", b"notes");
    let mut other = theirs.clone();
    other["path"] = json!(format!("tinker://{run}/weights/notes"));
    other["file"] = json!("notes.safetensors");
    write(
        good.parent().unwrap(),
        "notes.json",
        other.to_string().as_bytes(),
    );

    let server = open(&data).unwrap();
    let said = server.problems().join("\n");
    for name in ["above", "absolute", "replaces", "moved", "notes"] {
        assert!(
            said.contains(&format!("{name}.json cannot be read")),
            "{said}"
        );
    }
    let caller = Caller::new(&server);
    assert_eq!(listed(&caller), ["weights/good"]);
    assert!(can_load(&caller, 0, &run, "good"));
    for name in names {
        let path = format!("/api/v1/training_runs/{run}/checkpoints/weights/{name}");
        crate::support::http::request(&caller.url, "DELETE", &path, &[], b"").unwrap();
        assert!(!can_load(&caller, 1, &run, name));
    }
    drop(server);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert_eq!(std::fs::read(&stray).unwrap(), b"notes");
}
