//! A bad day: training, sampling, listing and a console while faults rain, clocks jump, the disk is
//! full and the server is killed.
//!
//! `TINKER_TEST_LONG=SECONDS` makes it a long one.

mod clock;
mod console;
mod front;
mod model;
mod program;
mod trouble;
mod work;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tinker::local::LocalServer;

use self::clock::Clock;
use self::console::Watcher;
use self::front::Front;
use self::program::{Program, Usage};
use self::work::{Note, Trainer};
use crate::server::process::Process;

/// The day is the same every time.
const SEED: u64 = 6;
/// Steps between two deaths of the server.
const STEPS: usize = 30;
/// Deaths of the server on a short day.
const DEATHS: usize = 3;
/// Which of three servers finds the disk full.
const FULL: usize = 1;
/// No file may then have more blocks of 512 bytes than this: records fit, weights do not.
const BLOCKS: u32 = 64;
/// Long enough for any machine; only a defect takes it.
const PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn a_bad_day_leaves_no_trace() {
    if program::is_meant() {
        return program::run();
    }
    let long = std::env::var("TINKER_TEST_LONG").ok();
    let limit = long.map(|seconds| Duration::from_secs(seconds.parse().unwrap_or(1).max(60)));
    let began = Instant::now();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (report, data) = (
        folder.path().join("report.json"),
        folder.path().join("data"),
    );
    let clock = Clock::build(folder.path());
    let front = Front::start(SEED);
    let mut program = Program::start(&front.address, &report, &clock);
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    let (mut events, mut there) = (0, BTreeSet::new());
    for life in 0.. {
        let server = serve(&data, life % 3 == FULL, &clock);
        let watcher = Watcher::start(&server.url);
        front.lead_to(&server.url);
        front.wait_for_steps(front.accepted() + STEPS, PATIENCE);
        watcher.wait(PATIENCE);
        say(&format!("server {life}: {:?}", began.elapsed()));
        clients.push(program.usage());
        servers.push(Usage::of(server.id()));
        let is_last = life >= DEATHS && limit.is_none_or(|limit| began.elapsed() >= limit);
        if is_last {
            program.stop();
            say(&format!("stopped: {:?}", began.elapsed()));
            there = checkpoints(&server.url);
        }
        front.lead_to("");
        server.kill();
        events += watcher.join();
        if is_last {
            break;
        }
    }
    say(&format!(
        "{} servers, {events} events of the console",
        servers.len()
    ));
    say(&format!(
        "{:?}, troubles: {:?}",
        began.elapsed(),
        front.struck()
    ));
    say(&format!("clients {clients:?}\nservers {servers:?}"));
    let kinds = front.struck().len();
    assert_eq!(kinds, trouble::KINDS, "{:?}", front.struck());
    let report = read(&report);
    check_kept(&there, &report);
    check(&front, &there, &report);
    clock.check(&clients);
    program::flat(&clients);
    program::flat(&servers);
    program::grows_no_more(&clients);
}

#[allow(clippy::print_stdout, reason = "what a long day was like")]
fn say(text: &str) {
    println!("{text}");
}

fn read(report: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap()
}

/// A server whose disk may be full, and whose clock jumps.
fn serve(data: &Path, is_full: bool, clock: &Clock) -> Process {
    let binary = env!("CARGO_BIN_EXE_tinker");
    let mut command = match is_full && cfg!(unix) {
        true => {
            // Ignored, the signal of the limit leaves the write with an error.
            let script = r#"trap '' XFSZ; ulimit -f "$0"; exec "$@""#;
            let mut shell = Command::new("sh");
            shell.args(["-c", script, &BLOCKS.to_string(), binary]);
            shell
        }
        false => Command::new(binary),
    };
    // Nobody reads what a server says of its disk before it has ended.
    command.args(["serve", "--port", "0", "--log", "off", "--threads", "1"]);
    command.args(["--save-every", "1", "--data"]).arg(data);
    clock.set(&mut command);
    Process::spawn(command)
}

/// The paths of all checkpoints there are.
#[track_caller]
fn checkpoints(url: &str) -> BTreeSet<String> {
    let all = work::service(url).rest().user_checkpoints(100);
    let paths: tinker::Result<_> = all.map(|one| Ok(one?.tinker_path)).collect();
    paths.unwrap()
}

/// What was acknowledged is there; what was deleted is not.
#[track_caller]
fn check_kept(there: &BTreeSet<String>, report: &Value) {
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    for run in report["trainers"].as_array().unwrap() {
        for path in texts(&run["kept"]) {
            assert!(there.contains(&path), "{path} is lost");
        }
        for deletion in run["deleted"].as_array().unwrap() {
            let deletion = texts(deletion);
            let is_there = there.contains(&deletion[0]);
            match deletion[1].as_str() {
                "Done" => assert!(!is_there, "{deletion:?}"),
                "None" => assert!(is_there, "{deletion:?}"),
                _ => {}
            }
        }
    }
}

/// Nothing lost, nothing doubled, nothing said that is not so.
#[track_caller]
fn check(front: &Front, there: &BTreeSet<String>, report: &Value) {
    let record = front.record();
    assert_eq!(model::violations(&record), [""; 0]);
    let calm = LocalServer::builder().start().unwrap();
    let (mut steps, mut errors) = (0, 0);
    let [trainers, samplers] = ["trainers", "samplers"].map(|who| report[who].as_array().unwrap());
    for run in trainers.iter().chain(samplers) {
        for error in run["errors"].as_array().unwrap() {
            assert!(model::is_true(&record, there, error), "{error}");
            errors += 1;
        }
    }
    for (worker, run) in trainers.iter().enumerate() {
        let mut undisturbed = Trainer::new(worker, &calm.base_url(), Box::new(|_| ()));
        for (step, loss) in run["losses"].as_array().unwrap().iter().enumerate() {
            undisturbed.step();
            let (found, expected) = (loss.as_f64().unwrap(), undisturbed.losses[step]);
            let difference = (found - expected).abs();
            assert!(
                difference < 1e-5,
                "run {worker}, step {step}: {found}, not {expected}"
            );
            steps += 1;
        }
    }
    let stop = AtomicBool::new(false);
    let mut samples = 0;
    for run in samplers {
        let drawn = run["drawn"].as_array().unwrap();
        assert!(!drawn.is_empty(), "a sampler drew nothing");
        // A few of each do: every one was drawn alone.
        let first = drawn[0][0].as_i64().unwrap();
        let mut again = Vec::new();
        stop.store(false, Ordering::SeqCst);
        work::sample(&calm.base_url(), first, &stop, |note| {
            let Note::Drawn(sample) = note else {
                panic!("{note:?} on a calm day")
            };
            again.push(sample);
            stop.store(again.len() == drawn.len().min(50), Ordering::SeqCst);
        });
        assert_eq!(again, drawn[..again.len()]);
        samples += drawn.len();
    }
    let listings = &report["listings"];
    say(&format!(
        "{steps} steps, {samples} samples, {listings} listings, {errors} errors"
    ));
    assert!(listings.as_u64() > Some(0));
}
