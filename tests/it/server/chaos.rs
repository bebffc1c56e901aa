//! A bad day, all at once: a full disk, damaged files, slow clients, thousands of idle sockets, and
//! a kill in the middle of it. What was saved is still there.

#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::json;
use tinker::local::LocalServer;

use super::process::Process;
use super::{Caller, Model};
use crate::support::http as plain;

/// No file may grow beyond this many blocks of 512 bytes: larger writes fail as on a full disk.
/// An adapter of rank 4 fits, one of rank 64 does not.
const BLOCKS: u32 = 4096;
/// How many sockets do nothing.
const IDLE: usize = 4096;
/// What the server may take, in MiB, with all of that going on.
const MEMORY: f64 = 512.0;

#[test]
fn on_the_worst_of_days_what_was_saved_is_still_there() {
    // The same test in a process of its own is the holder of the idle sockets.
    if let Ok(url) = std::env::var(URL) {
        return hold_sockets(&url);
    }
    let long = std::env::var("TINKER_TEST_LONG").is_ok();
    let rounds = if long { 20 } else { 3 };
    let folder = tempfile::tempdir().unwrap();
    let mut saved: Vec<(String, f64)> = Vec::new();
    for round in 0..rounds {
        let process = serve(folder.path());
        let caller = Caller::at(process.url.clone());
        check(&caller, &saved);
        let idle = Idle::start(&process.url);
        assert!(idle.held >= allowed(), "only {} idle sockets", idle.held);
        let slow = slow_clients(&process.url);

        let (path, loss) = train_and_save(&caller, round);
        saved.push((path, loss));
        full_disk(&caller, folder.path());
        let answer = plain::get(&process.url, "healthz");
        assert_eq!(answer.status, 200, "beside {} idle sockets", idle.held);
        if let Some(kib) = process.memory() {
            let mib = kib / 1024.0;
            println!(
                "round {round}: {mib:.0} MiB beside {} idle sockets",
                idle.held
            );
            assert!(mib < MEMORY, "{mib} MiB");
        }
        // Something is being written when the end comes.
        let model = caller.model(9);
        let body = json!({"model_id": model.id, "seq_id": 1, "path": "half"});
        caller.ok("save_weights", body);
        process.kill();
        drop((idle, slow));
        damage(folder.path(), round);
    }
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    check(&Caller::new(&server), &saved);
    // What was damaged on purpose is named, every file of it, and nothing else is.
    let problems = server.problems();
    assert_eq!(problems.len(), 2 * rounds, "{problems:?}");
    assert!(
        problems.iter().all(|one| one.contains("odd")),
        "{problems:?}"
    );
}

/// A server whose files have a largest size, and that may have as many descriptors as the machine
/// allows.
fn serve(data: &Path) -> Process {
    // Ignored, the signal of the limit leaves the write with an error.
    let script = r#"trap '' XFSZ; ulimit -n "$(ulimit -Hn)"; ulimit -f "$0"; exec "$@""#;
    let mut command = Command::new("sh");
    command.args([
        "-c",
        script,
        &BLOCKS.to_string(),
        env!("CARGO_BIN_EXE_tinker"),
    ]);
    command.args([
        "serve",
        "--port",
        "0",
        "--threads",
        "1",
        "--save-every",
        "1",
        "--max-connections",
        "8192",
        "--data",
    ]);
    command.arg(data);
    Process::spawn(command)
}

#[track_caller]
fn check(caller: &Caller, saved: &[(String, f64)]) {
    for (number, (path, expected)) in (100..).zip(saved) {
        let body = json!({"session_id": caller.session, "model_seq_id": number, "path": path,
            "optimizer": true});
        let id = caller.call("load_weights", body)["model_id"].clone();
        let id = id.as_str().unwrap().to_owned();
        let model = Model { caller, id };
        let result = caller.call("forward", model.forward(1, &["hello"]));
        assert_eq!(result["metrics"]["loss:sum"], json!(expected), "{path}");
        caller.ok("unload_model", json!({"model_id": model.id}));
    }
}

fn train_and_save(caller: &Caller, round: usize) -> (String, f64) {
    let model = caller.model(0);
    let mut seq_id = 1;
    for _ in 0..=round {
        model.train(&mut seq_id, &["hello"]);
    }
    let body = json!({"model_id": model.id, "seq_id": seq_id, "path": "good"});
    let path = caller.call("save_weights", body)["path"].clone();
    let result = caller.call("forward", model.forward(seq_id + 1, &["hello"]));
    let loss = result["metrics"]["loss:sum"].as_f64().unwrap();
    (path.as_str().unwrap().to_owned(), loss)
}

/// A model too large for the disk is not saved, and says why without a word about where.
fn full_disk(caller: &Caller, data: &Path) {
    let body = json!({"session_id": caller.session, "model_seq_id": 1,
        "base_model": caller.base_model(), "lora_config": {"rank": 64}});
    let id = caller.call("create_model", body)["model_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    let model = Model { caller, id };
    let mut seq_id = 1;
    model.train(&mut seq_id, &["hello"]);
    let before = partial_files(data);
    let body = json!({"model_id": model.id, "seq_id": seq_id, "path": "large"});
    let result = caller.wait(&caller.ok("save_weights", body));
    let error = result["error"]
        .as_str()
        .unwrap_or_else(|| panic!("{result}"));
    assert!(error.contains("disk"), "{error}");
    assert!(!error.contains(data.to_str().unwrap()), "{error}");
    assert_eq!(partial_files(data), before, "nothing half-written stays");
}

fn partial_files(data: &Path) -> Vec<PathBuf> {
    let mut found = files(data);
    // The model's state is being saved too, in its own time.
    found.retain(|path| path.extension().is_some_and(|end| end == "partial"));
    found.retain(|path| path.starts_with(data.join("checkpoints")));
    found
}

/// Clients that begin a request and do not go on with it.
fn slow_clients(url: &str) -> Vec<TcpStream> {
    let host = url.strip_prefix("http://").unwrap();
    let begun = |number: usize| {
        let mut stream = TcpStream::connect(host).unwrap();
        let head = format!(
            "POST /api/v1/forward_backward HTTP/1.1\r\nhost: {host}\r\n\
             content-type: application/json\r\ncontent-length: 60000000\r\n\r\n{{"
        );
        // Some not even with its head.
        let sent = if number.is_multiple_of(2) {
            head.len()
        } else {
            20
        };
        stream.write_all(&head.as_bytes()[..sent]).unwrap();
        stream
    };
    (0..64).map(begun).collect()
}

/// Files that nobody wrote, and a ledger cut short.
fn damage(data: &Path, round: usize) {
    fs::write(data.join(format!("runs/odd{round}.json")), b"{\"id\":").unwrap();
    fs::create_dir_all(data.join("training")).unwrap();
    fs::write(data.join(format!("training/odd{round}.state")), b"odd").unwrap();
    if let Some(ledger) = files(&data.join("ledger")).pop() {
        let mut ledger = fs::File::options().append(true).open(ledger).unwrap();
        ledger.write_all(b"{\"count\": {\"ho").unwrap();
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// How many sockets the machine lets a process hold, with some room for its files.
fn allowed() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    most.map_or(IDLE, |most| IDLE.min((most as usize).saturating_sub(64)))
}

/// A process that holds sockets: this one needs its descriptors for other tests.
struct Idle {
    child: Child,
    /// What it says, which must have a reader to the end.
    _said: Lines<BufReader<ChildStdout>>,
    held: usize,
}

const HOLDER: &str = "server::chaos::on_the_worst_of_days_what_was_saved_is_still_there";
const URL: &str = "TINKER_TEST_IDLE_SOCKETS_AT";

impl Idle {
    fn start(url: &str) -> Self {
        let script = r#"ulimit -n "$(ulimit -Hn)"; exec "$0" "$@""#;
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", HOLDER, "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let held = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let number = line.strip_prefix("holding ")?;
            number.parse().ok()
        });
        Self {
            child,
            _said: lines,
            held: held.expect("it says how many it holds"),
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

#[allow(clippy::print_stdout, reason = "the parent process reads it")]
fn hold_sockets(url: &str) {
    let host = url.strip_prefix("http://").unwrap();
    // As many as the machine allows: what it lacks is descriptors, not a server.
    let sockets: Vec<TcpStream> = (0..IDLE)
        .map_while(|_| TcpStream::connect(host).ok())
        .collect();
    // On one processor the test runner has begun the line.
    println!("\nholding {}", sockets.len());
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end).unwrap();
}
