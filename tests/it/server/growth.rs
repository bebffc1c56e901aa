//! What must not grow with use: work on the thread of the connections, lists, the ledger, records.

#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tinker::local::LocalServer;
use tinker::types::Timestamp;

use super::Caller;
#[cfg(target_os = "linux")]
use super::process::Process;
use crate::support::http::{self as plain, Reply};

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(ending));
    found.sort();
    found
}

fn weights_folder(data: &Path, run: &str, kind: &str) -> PathBuf {
    let run = run.replace(':', "%3A");
    data.join("checkpoints").join(run).join(kind)
}

/// Puts a pipe in the place of a file: whoever reads it waits until somebody writes.
fn replace_by_pipe(file: &Path) {
    fs::remove_file(file).unwrap();
    assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
}

/// A request about a checkpoint.
type Asking<'a> = &'a (dyn Fn(&Value) -> Reply + Sync);

/// While a checkpoint is read, for whatever request, the others are answered; and it is read once.
#[test]
fn checkpoints_are_read_off_the_thread_of_the_connections_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    model.train(&mut 1, &["hello"]);
    let url = &caller.url;
    let openai = |path: &Value| {
        let body = json!({"model": path, "prompt": "hi", "max_tokens": 2, "temperature": 0});
        let body = body.to_string();
        plain::request(url, "POST", "/oai/api/v1/completions", &[], body.as_bytes()).unwrap()
    };
    let native = |path: &Value| {
        let body = json!({"model_path": path, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
            "sampling_params": {"max_tokens": 2, "temperature": 0.0}});
        plain::post(url, "asample", body)
    };
    let session = |path: &Value| {
        let body = json!({"session_id": caller.session, "sampling_session_seq_id": 0,
            "model_path": path});
        plain::post(url, "create_sampling_session", body)
    };
    let asked: [(&str, Asking<'_>); 3] = [
        ("openai", &openai),
        ("asample", &native),
        ("session", &session),
    ];
    for (seq_id, (name, ask)) in (3..).zip(asked) {
        let body = json!({"model_id": model.id, "seq_id": seq_id, "path": name});
        let path = caller.call("save_weights_for_sampler", body)["path"].clone();
        let kind = weights_folder(folder.path(), &model.id, "sampler_weights");
        let record = fs::read(kind.join(format!("{name}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let file = kind.join(record["file"].as_str().unwrap());
        let weights = fs::read(&file).unwrap();
        replace_by_pipe(&file);
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| ask(&path));
            // Opens when the server reads it.
            let mut pipe = fs::File::options().write(true).open(&file).unwrap();
            assert_eq!(plain::get(url, "healthz").status, 200, "{name}");
            pipe.write_all(&weights).unwrap();
            drop(pipe);
            assert_eq!(answer.join().unwrap().status, 200, "{name}");
        });
        // Nobody writes to the pipe any more, so reading again would never end.
        assert_eq!(openai(&path).status, 200, "{name}");
        assert_eq!(native(&path).status, 200, "{name}");
    }
}

/// How much more work eight times as many runs are, each with checkpoints.
#[cfg(target_os = "linux")]
#[test]
fn listing_runs_is_linear() {
    let work = |runs: usize| {
        let folder = tempfile::tempdir().unwrap();
        let data = ["--data".as_ref(), folder.path().as_os_str()];
        let process = Process::start(data);
        let caller = Caller::at(process.url.clone());
        let model = caller.model(0);
        let body = json!({"model_id": model.id, "seq_id": 1, "path": "a"});
        caller.call("save_weights", body);
        process.kill();
        multiply(folder.path(), &model.id, runs);

        let process = Process::start(data);
        let list = || plain::get(&process.url, "training_runs?limit=100000").json();
        let listed = list();
        let listed = listed["training_runs"].as_array().unwrap();
        assert_eq!(listed.len(), runs + 1);
        for run in listed {
            assert!(run["last_checkpoint"]["checkpoint_id"].is_string(), "{run}");
        }
        let before = process.ticks();
        for _ in 0..60 {
            list();
        }
        let ticks = process.ticks() - before;
        process.kill();
        ticks
    };
    let (few, many) = (work(300), work(2400));
    println!("300 runs: {few} ticks, 2,400 runs: {many}");
    // Eight where it is linear and 64 where it is not; a tick more or less must not decide.
    assert!(many < 24 * (few + 2), "{few} ticks became {many}");
}

/// Copies a run and its checkpoint this many times, under other names.
#[cfg(target_os = "linux")]
fn multiply(data: &Path, run: &str, times: usize) {
    let escaped = run.replace(':', "%3A");
    let record = fs::read_to_string(data.join("runs").join(format!("{escaped}.json"))).unwrap();
    let from = weights_folder(data, run, "weights");
    let checkpoint = fs::read_to_string(from.join("a.json")).unwrap();
    for number in 0..times {
        let (id, name) = (format!("copy{number}"), format!("copy{number}.json"));
        fs::write(data.join("runs").join(name), record.replace(run, &id)).unwrap();
        let to = weights_folder(data, &id, "weights");
        fs::create_dir_all(&to).unwrap();
        let checkpoint = checkpoint.replace(run, &id);
        for name in ["a", "b", "c"] {
            let path = format!("{id}/weights/a");
            let checkpoint = checkpoint.replace(&path, &format!("{id}/weights/{name}"));
            fs::write(to.join(format!("{name}.json")), checkpoint).unwrap();
        }
        let file: Value = serde_json::from_str(&checkpoint).unwrap();
        fs::write(to.join(file["file"].as_str().unwrap()), b"").unwrap();
    }
}

/// The janitor comes round every few milliseconds where models are saved that often.
fn busy_janitor(folder: &Path) -> tinker::local::Builder {
    LocalServer::builder()
        .data(folder)
        .save_every(Duration::from_millis(40))
}

#[test]
fn the_ledger_is_appended_to_and_written_anew_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    let server = busy_janitor(folder.path()).start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut seq_id = 1;
    let beat = json!({"session_id": caller.session});
    let mut content = String::new();
    for _ in 0..4 {
        model.train(&mut seq_id, &["hello"]);
        // Waits until that is in the file.
        loop {
            let now = match &files(&ledger, ".jsonl")[..] {
                [file] => fs::read_to_string(file).unwrap(),
                _ => String::new(),
            };
            if now.len() > content.len() {
                assert!(
                    now.starts_with(&content),
                    "{now} does not continue {content}"
                );
                content = now;
                break;
            }
            caller.ok("session_heartbeat", beat.clone());
        }
    }
    let hour = Timestamp::now().as_second() / 3600 * 3600;
    let at = |second| Timestamp::from_second(second).unwrap().to_string();
    let (from, to) = (at(hour - 7200), at(hour + 7200));
    let path = format!("billing/usage/events?starting_on={from}&ending_before={to}");
    let usage = |server: &LocalServer| {
        let reply = plain::get(&server.base_url(), &path);
        reply.json()["data"].clone()
    };
    let before = usage(&server);
    assert_eq!(before[0]["event_info"]["token_count"], 16, "{before}");
    drop(server);
    let first = files(&ledger, ".jsonl");
    let server = busy_janitor(folder.path()).start().unwrap();
    assert_eq!(usage(&server), before);
    let caller = Caller::new(&server);
    caller.model(0).train(&mut 1, &["hello"]);
    drop(server);
    // The first lines of a new process go into a new file, with all there is, in as few lines as
    // it needs; the old one is gone.
    let second = files(&ledger, ".jsonl");
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first, second);
    let lines = |files: &[PathBuf]| fs::read_to_string(&files[0]).unwrap().lines().count();
    assert!(content.lines().count() >= 4, "{content}");
    assert!(
        lines(&second) <= 2 + 1,
        "one line for each session and kind"
    );
}

#[test]
fn ended_sessions_and_runs_without_checkpoints_are_pruned_by_count_and_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let long = Duration::from_secs(24 * 3600);
    let server = busy_janitor(folder.path())
        .keep_records(long, 3)
        .start()
        .unwrap();
    let url = server.base_url();
    let mut kept = String::new();
    for number in 0..8 {
        let caller = Caller::at(url.clone());
        let model = caller.model(0);
        if number == 0 {
            let body = json!({"model_id": model.id, "seq_id": 1, "path": "a"});
            caller.call("save_weights", body);
            kept = model.id.clone();
        }
        let body = json!({"reason": {"type": "success"}});
        caller.ok(&format!("sessions/{}/finish", caller.session), body);
    }
    let count = |url: &str, path: &str, list: &str| {
        let reply = plain::get(url, path).json();
        reply[list].as_array().unwrap().len()
    };
    let on_disk = |what: &str| files(&folder.path().join(what), ".json").len();
    // A list that is too long is a sweep too early.
    while count(&url, "sessions?limit=100", "sessions") > 3 || on_disk("sessions") > 3 {}
    while count(&url, "training_runs", "training_runs") > 4 || on_disk("runs") > 4 {}
    assert_eq!(on_disk("sessions"), 3);
    assert_eq!(
        on_disk("runs"),
        4,
        "the latest three, and the one with a checkpoint"
    );
    drop(server);

    let server = busy_janitor(folder.path())
        .keep_records(Duration::ZERO, 100)
        .start()
        .unwrap();
    let url = server.base_url();
    while on_disk("sessions") > 0 || on_disk("runs") > 1 {
        plain::get(&url, "healthz");
    }
    let runs = plain::get(&url, "training_runs").json();
    assert_eq!(runs["training_runs"][0]["training_run_id"], json!(kept));
}
