//! What survives: a restart, a damaged file, a kill at any moment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use tinker::local::LocalServer;

use super::process::Process;
use super::{Caller, Model};

#[test]
fn runs_checkpoints_and_usage_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = || LocalServer::builder().data(folder.path()).start().unwrap();
    let server = start();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut seq_id = 1;
    model.train(&mut seq_id, &["hello"]);
    let body =
        json!({"model_id": model.id, "seq_id": seq_id, "path": "a", "user_metadata": {"k": "v"}});
    let path = caller.call("save_weights", body)["path"].clone();
    seq_id += 1;
    let expected = model.train(&mut seq_id, &["hello"]);
    let (runs, checkpoints) = (caller.get("training_runs"), caller.get("checkpoints"));
    drop(server);

    let server = start();
    assert!(server.problems().is_empty());
    let again = Caller::new(&server);
    assert_eq!(again.get("checkpoints"), checkpoints);
    assert_eq!(again.get("training_runs")["cursor"], runs["cursor"]);
    let old = json!({"session_id": caller.session});
    let found = again.ok("sessions/search", old.clone())["sessions"][0]["status"]["type"].clone();
    assert_eq!(found, "active", "its model is in training again");
    again.ok("session_heartbeat", old);
    let body =
        json!({"session_id": again.session, "model_seq_id": 0, "path": path, "optimizer": true});
    let resumed = Model {
        caller: &again,
        id: again.call("load_weights", body)["model_id"]
            .as_str()
            .unwrap()
            .to_owned(),
    };
    assert_eq!(resumed.train(&mut 1, &["hello"]), expected);
}

#[test]
fn damaged_files_are_named_and_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let start = || LocalServer::builder().data(folder.path()).start().unwrap();
    let server = start();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    for (seq_id, name) in [(1, "weights"), (2, "record"), (3, "good")] {
        let body = json!({"model_id": model.id, "seq_id": seq_id, "path": name});
        caller.call("save_weights", body);
    }
    drop(server);
    let mut weights = None;
    for file in files(folder.path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name == "weights.json" {
            let record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            weights = Some(file.with_file_name(record["file"].as_str().unwrap()));
        } else if name == "record.json" {
            std::fs::write(&file, b"{\"path\":").unwrap();
        }
    }
    let weights = weights.unwrap();
    let mut bytes = std::fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&weights, bytes).unwrap();

    let server = start();
    assert!(
        server.problems()[0].contains("record.json"),
        "{:?}",
        server.problems()
    );
    let caller = Caller::new(&server);
    let load = |number: u64, name: &str| {
        let path = format!("tinker://{}/weights/{name}", model.id);
        let body = json!({"session_id": caller.session, "model_seq_id": number, "path": path, "optimizer": true});
        caller.post("load_weights", body)
    };
    assert_eq!(load(0, "record").status, 404);
    let result = caller.wait(&load(1, "weights").json());
    assert!(
        result["error"].as_str().unwrap().contains("damaged"),
        "{result}"
    );
    let result = caller.wait(&load(2, "good").json());
    assert_eq!(result.get("error"), None);
    // The record, the weights it named, and the weights that were set aside.
    assert_eq!(server.problems().len(), 3);
    assert_eq!(load(3, "weights").status, 404, "set aside");
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_data_folder_belongs_to_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let start = || LocalServer::builder().data(folder.path()).start();
    let first = start().unwrap();
    let refused = start().unwrap_err().to_string();
    assert!(refused.contains("another server"), "{refused}");
    drop(first);
    start().unwrap();
}

#[test]
fn stopping_does_not_wait_for_long_samples() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let body = json!({"base_model": caller.base_model(), "num_samples": 512,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104]}]},
        "sampling_params": {"max_tokens": 4000, "stop": []}});
    caller.ok("asample", body);
    // Drawn to the end these would take minutes.
    drop(server);
}

#[test]
fn serve_writes_its_port_and_stops_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("port");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tinker"))
        .args(["serve", "--port", "0", "--port-file"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut url).unwrap();
    let port = std::fs::read_to_string(&file).unwrap();
    assert_eq!(url, format!("http://127.0.0.1:{port}"));
    if cfg!(unix) {
        let told = Command::new("kill").arg(child.id().to_string()).status();
        assert!(told.unwrap().success());
        assert!(child.wait().unwrap().success(), "a clean end");
    } else {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn killed_at_any_moment_it_loses_at_most_what_was_under_way() {
    let long = std::env::var("TINKER_TEST_LONG").is_ok();
    let rounds = if long { 50 } else { 5 };
    let folder = tempfile::tempdir().unwrap();
    let mut saved: Vec<(String, f64)> = Vec::new();
    for round in 0..rounds {
        let data = ["--data".as_ref(), folder.path().as_os_str()];
        let process = Process::start(data);
        let caller = Caller::at(process.url.clone());
        // Everything that was acknowledged is there and says the same.
        let listed = caller.get("checkpoints?limit=1000");
        for (path, _) in &saved {
            let there = listed["checkpoints"].as_array().unwrap().iter();
            assert!(
                there.clone().any(|one| one["tinker_path"] == json!(path)),
                "{path}"
            );
        }
        let mut seq_id = 2;
        let model = match saved.last() {
            None => caller.model(0),
            Some((path, expected)) => {
                let body = json!({"session_id": caller.session, "model_seq_id": 0,
                    "path": path, "optimizer": true});
                let id = caller.call("load_weights", body)["model_id"].clone();
                let model = Model {
                    caller: &caller,
                    id: id.as_str().unwrap().to_owned(),
                };
                let loss =
                    caller.call("forward", model.forward(1, &["hello"]))["metrics"]["loss:sum"]
                        .clone();
                assert_eq!(loss, json!(expected), "round {round}");
                model
            }
        };
        if saved.is_empty() {
            caller.call("forward", model.forward(1, &["hello"]));
        }
        for step in 0..3 {
            model.train(&mut seq_id, &["hello"]);
            let body =
                json!({"model_id": model.id, "seq_id": seq_id, "path": format!("{round}-{step}")});
            let path = caller.call("save_weights", body)["path"]
                .as_str()
                .unwrap()
                .to_owned();
            let result = caller.call("forward", model.forward(seq_id + 1, &["hello"]));
            saved.push((path, result["metrics"]["loss:sum"].as_f64().unwrap()));
            seq_id += 2;
        }
        // Something is under way when the end comes: a save, a load or a pass.
        match round % 3 {
            0 => {
                let body = json!({"model_id": model.id, "seq_id": seq_id, "path": "half"});
                caller.ok("save_weights", body);
            }
            1 => {
                let body = json!({"model_id": model.id, "seq_id": seq_id,
                    "path": saved[0].0, "optimizer": true});
                caller.ok("load_weights", body);
            }
            _ => drop(caller.ok("forward_backward", model.pass(seq_id, &["hello"; 50]))),
        }
        let said = process.kill();
        assert!(!said.contains("damaged"), "{said}");
    }
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    assert_eq!(server.problems(), Vec::<String>::new());
}
