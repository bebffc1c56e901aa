//! A bad day: training, sampling and listing while faults rain and the server is killed.
//!
//! `TINKER_TEST_LONG=SECONDS` makes it a long one.

mod front;
mod model;
mod work;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tinker::local::LocalServer;

use self::front::Front;
use self::work::Trainer;
use crate::server::process::Process;
use crate::support::http as plain;

const TEST: &str = "soak::a_bad_day_leaves_no_trace";
const URL: &str = "TINKER_TEST_SOAK_URL";
const REPORT: &str = "TINKER_TEST_SOAK_REPORT";
const TRAINERS: usize = 3;
const SAMPLERS: usize = 3;
/// Steps between two deaths of the server.
const STEPS: usize = 60;
/// Long enough for any machine; only a defect takes it.
const PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn a_bad_day_leaves_no_trace() {
    if let Ok(url) = std::env::var(URL) {
        return program(&url);
    }
    let long = std::env::var("TINKER_TEST_LONG").ok();
    let limit = long.map(|seconds| Duration::from_secs(seconds.parse().unwrap_or(1).max(60)));
    let began = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let data = folder.path().join("data");
    let serve = || Process::start(["--save-every", "1", "--data", data.to_str().unwrap()]);
    let front = Front::start(7);
    let mut server = serve();
    front.lead_to(&server.url);
    let mut program = Program::start(&front.url, &report);
    let mut usage = Vec::new();
    let mut deaths = 0;
    while deaths < 3 || limit.is_some_and(|limit| began.elapsed() < limit) {
        front.wait_for_steps(front.accepted() + STEPS, PATIENCE);
        usage.push(program.usage());
        let page = plain::request(&server.url, "GET", "/", &[], b"").unwrap();
        assert_eq!(page.status, 200);
        front.lead_to("");
        server.kill();
        server = serve();
        front.lead_to(&server.url);
        deaths += 1;
    }
    front.wait_for_steps(front.accepted() + STEPS, PATIENCE);
    usage.push(program.usage());
    program.stop();
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    println!(
        "{deaths} deaths, {} requests ill-treated, usage {usage:?}",
        front.troubled()
    );
    check(&front, &report);
    flat(&usage);
}

/// Nothing lost, nothing doubled, nothing said that is not so.
#[track_caller]
#[allow(clippy::print_stdout, reason = "what a long day was like")]
fn check(front: &Front, report: &Value) {
    let record = front.record();
    assert_eq!(model::violations(&record), [""; 0]);
    let calm = LocalServer::builder().start().unwrap();
    let (mut steps, mut errors) = (0, 0);
    for (worker, run) in report["trainers"].as_array().unwrap().iter().enumerate() {
        for error in run["errors"].as_array().unwrap() {
            assert!(model::is_true(&record, error), "{error}");
            errors += 1;
        }
        let mut undisturbed = Trainer::new(worker, &calm.base_url());
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
    let samples = report["samples"].as_array().unwrap();
    let stop = AtomicBool::new(false);
    for drawn in samples {
        let drawn = drawn.as_array().unwrap();
        assert!(!drawn.is_empty(), "a sampler drew nothing");
        // A few of each do: every one was drawn alone.
        let first = drawn[0][0].as_i64().unwrap();
        let count = std::cell::Cell::new(0);
        stop.store(false, Ordering::SeqCst);
        let again = work::sample(&calm.base_url(), first, &stop, || {
            count.set(count.get() + 1);
            stop.store(count.get() == drawn.len().min(50), Ordering::SeqCst);
        });
        assert_eq!(again, drawn[..again.len()]);
    }
    let drawn: usize = samples
        .iter()
        .map(|one| one.as_array().unwrap().len())
        .sum();
    println!(
        "{steps} steps, {drawn} samples, {} listings, {errors} errors",
        report["listings"]
    );
    assert!(report["listings"].as_u64() > Some(0));
}

/// Memory, threads and descriptors of the program at the end of the day, beside its morning.
#[track_caller]
fn flat(usage: &[Vec<u64>]) {
    let (Some(first), Some(last)) = (usage.first(), usage.last()) else {
        return;
    };
    if let ([memory, threads, files], [memory_then, threads_then, files_then]) =
        (&last[..], &first[..])
    {
        assert!(*threads <= threads_then + 32, "threads: {usage:?}");
        assert!(*files <= files_then + 32, "descriptors: {usage:?}");
        assert!(
            *memory <= memory_then + 32 * 1024,
            "memory in KiB: {usage:?}"
        );
    }
}

/// The program under test, as a process of its own.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(url: &str, report: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(URL, url)
            .env(REPORT, report)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    #[track_caller]
    fn usage(&mut self) -> Vec<u64> {
        writeln!(self.input, "usage").unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the program ended"
            );
            // The test runner's own words may share the line.
            if let Some((_, numbers)) = line.split_once("usage=") {
                let numbers = numbers.split_whitespace();
                return numbers.map(|number| number.parse().unwrap()).collect();
            }
        }
    }

    #[track_caller]
    fn stop(mut self) {
        writeln!(self.input, "stop").unwrap();
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success(), "the program failed");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program's side.
#[allow(clippy::print_stdout, reason = "how the program tells the test")]
fn program(url: &str) {
    let stop = &AtomicBool::new(false);
    let stopped = || stop.load(Ordering::SeqCst);
    let report = std::thread::scope(|scope| {
        let train = |worker| {
            let mut trainer = Trainer::new(worker, url);
            while !stopped() {
                trainer.step();
            }
            json!({"losses": trainer.losses, "errors": trainer.errors})
        };
        let trainers: Vec<_> = (0..TRAINERS)
            .map(|n| scope.spawn(move || train(n)))
            .collect();
        let samplers: Vec<_> = (1..=SAMPLERS)
            .map(|n| scope.spawn(move || work::sample(url, n as i64 * 1_000_000, stop, || ())))
            .collect();
        let lister = scope.spawn(|| work::list(url, stop));
        for line in std::io::stdin().lines() {
            match line.unwrap().as_str() {
                "usage" => println!("\nusage={}", usage()),
                _ => break,
            }
        }
        stop.store(true, Ordering::SeqCst);
        let trainers: Vec<Value> = trainers
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect();
        let samples: Vec<_> = samplers
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect();
        json!({"trainers": trainers, "samples": samples, "listings": lister.join().unwrap()})
    });
    std::fs::write(std::env::var(REPORT).unwrap(), report.to_string()).unwrap();
}

/// Memory in KiB, threads and descriptors of this process, where the system says.
fn usage() -> String {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return String::new();
    };
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    format!("{} {} {files}", number("VmRSS:"), number("Threads:"))
}
