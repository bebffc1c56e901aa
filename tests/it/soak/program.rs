//! The program under test, as a process of its own, and what it takes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::clock::Clock;
use super::work::{self, Note, Notes, Trainer};

const TEST: &str = "soak::a_bad_day_leaves_no_trace";
const ADDRESS: &str = "TINKER_TEST_SOAK_ADDRESS";
const REPORT: &str = "TINKER_TEST_SOAK_REPORT";
const TRAINERS: usize = 3;
const SAMPLERS: usize = 3;
/// KiB that the allocator may come to need more in half a day, whatever its length.
const GROWTH: u64 = 3 * 1024;

/// What a process takes, where the system says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    kib: u64,
    threads: u64,
    files: u64,
    /// By how many seconds its clock is wrong.
    pub(super) clock_off: u64,
}

impl Usage {
    pub(super) fn of(process: u32) -> Self {
        let folder = format!("/proc/{process}");
        let Ok(status) = std::fs::read_to_string(format!("{folder}/status")) else {
            return Self::default();
        };
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self {
            // Its own, without the pages of its file, which are there as the system likes.
            kib: number("RssAnon:"),
            threads: number("Threads:"),
            files: std::fs::read_dir(format!("{folder}/fd")).unwrap().count() as u64,
            clock_off: 0,
        }
    }
}

/// In the second half of the day a process takes what it took in the first: a burst may come at any
/// time, a leak stays.
#[track_caller]
pub(super) fn flat(usage: &[Usage]) {
    let (first, second) = usage.split_at(usage.len() / 2);
    let check = |name: &str, of: fn(&Usage) -> u64, more: u64| {
        let most = first.iter().map(of).max().unwrap();
        let least = second.iter().map(of).min().unwrap();
        assert!(least <= most + more, "{name}: {usage:?}");
    };
    check("threads", |usage| usage.threads, 16);
    check("descriptors", |usage| usage.files, 16);
    check("memory in KiB", |usage| usage.kib, 16 * 1024);
}

/// On a long day memory does not grow from its second quarter, when everything has been used, to its
/// last, by the middle of what was seen in each.
#[track_caller]
pub(super) fn grows_no_more(usage: &[Usage]) {
    let quarter = usage.len() / 4;
    if quarter < 10 {
        return;
    }
    let middle = |part: &[Usage]| {
        let mut kib: Vec<u64> = part.iter().map(|usage| usage.kib).collect();
        kib.sort_unstable();
        kib[kib.len() / 2]
    };
    let (second, last) = (
        middle(&usage[quarter..2 * quarter]),
        middle(&usage[3 * quarter..]),
    );
    assert!(last <= second + GROWTH, "{second} to {last} KiB: {usage:?}");
}

pub(super) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    report: std::path::PathBuf,
}

impl Program {
    pub(super) fn start(address: &str, report: &Path, clock: &Clock) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", TEST, "--nocapture"])
            .env(ADDRESS, address)
            .env(REPORT, report)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        clock.set(&mut command);
        let mut child = command.spawn().unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            report: report.to_owned(),
        }
    }

    #[track_caller]
    pub(super) fn usage(&mut self) -> Usage {
        writeln!(self.input, "time").unwrap();
        let time = loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the program ended");
            // The test runner's own words may share the line.
            if let Some((_, time)) = line.split_once("time=") {
                break time.trim().parse::<u64>().unwrap();
            }
        };
        Usage {
            clock_off: time.abs_diff(seconds()),
            ..Usage::of(self.child.id())
        }
    }

    /// Ends the day; the report is there when this returns.
    #[track_caller]
    pub(super) fn stop(&mut self) {
        writeln!(self.input, "stop").unwrap();
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success(), "the program failed");
        assert!(self.report.exists());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Whether this process is the program.
pub(super) fn is_meant() -> bool {
    std::env::var_os(ADDRESS).is_some()
}

/// The program's side: works until it is told to stop, every other worker in clear text.
#[allow(clippy::print_stdout, reason = "how the program tells the test")]
pub(super) fn run() {
    let address = std::env::var(ADDRESS).unwrap();
    let urls = ["https", "http"].map(|scheme| format!("{scheme}://{address}"));
    let url = |worker: usize| urls[worker % 2].as_str();
    let stop = &AtomicBool::new(false);
    let stopped = || stop.load(Ordering::SeqCst);
    let report = PathBuf::from(std::env::var(REPORT).unwrap());
    let train = |worker| {
        let mut trainer = Trainer::new(worker, url(worker), notes(&report, "trainer", worker));
        while !stopped() {
            trainer.step();
        }
        json!({"losses": trainer.losses, "kept": trainer.kept, "deleted": trainer.deleted})
    };
    let sample = |worker| {
        let first = worker as i64 * 1_000_000;
        work::sample(url(worker), first, stop, notes(&report, "sampler", worker));
        json!({})
    };
    let mut day = std::thread::scope(|scope| {
        let trainers: Vec<_> = (0..TRAINERS)
            .map(|n| scope.spawn(move || train(n)))
            .collect();
        let samplers: Vec<_> = (1..=SAMPLERS)
            .map(|n| scope.spawn(move || sample(n)))
            .collect();
        let lister = scope.spawn(|| work::list(url(0), stop));
        for line in std::io::stdin().lines() {
            match line.unwrap().as_str() {
                "time" => println!("\ntime={}", seconds()),
                _ => break,
            }
        }
        stop.store(true, Ordering::SeqCst);
        let all = |workers: Vec<ScopedJoinHandle<'_, Value>>| -> Vec<Value> {
            let ended = workers.into_iter().map(|one| one.join().unwrap());
            ended.collect()
        };
        json!({"trainers": all(trainers), "samplers": all(samplers),
            "listings": lister.join().unwrap()})
    });
    for (list, who, first) in [("trainers", "trainer", 0), ("samplers", "sampler", 1)] {
        for (index, worker) in day[list].as_array_mut().unwrap().iter_mut().enumerate() {
            let [drawn, errors] = noted(&report, who, first + index);
            (worker["drawn"], worker["errors"]) = (drawn.into(), errors.into());
        }
    }
    std::fs::write(report, day.to_string()).unwrap();
}

/// Where a worker's notes are.
fn notebook(report: &Path, who: &str, worker: usize) -> PathBuf {
    report.with_file_name(format!("{who}-{worker}.jsonl"))
}

/// Writes notes down, a line each.
fn notes(report: &Path, who: &str, worker: usize) -> Notes {
    let mut file = File::create(notebook(report, who, worker)).unwrap();
    Box::new(move |note| {
        let (kind, value) = match note {
            Note::Drawn(value) => (0, value),
            Note::Error(value) => (1, value),
        };
        writeln!(file, "{}", json!([kind, value])).unwrap();
    })
}

/// What was drawn, and the errors.
fn noted(report: &Path, who: &str, worker: usize) -> [Vec<Value>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    let text = std::fs::read_to_string(notebook(report, who, worker)).unwrap();
    for line in text.lines() {
        let (kind, value): (usize, Value) = serde_json::from_str(line).unwrap();
        all[kind].push(value);
    }
    all
}

#[test]
#[should_panic(expected = " KiB: ")]
fn memory_that_grows_all_day_is_noticed() {
    let life = |life: u64| Usage {
        kib: 16_000 + 100 * life,
        ..Usage::default()
    };
    grows_no_more(&(0..80).map(life).collect::<Vec<_>>());
}
