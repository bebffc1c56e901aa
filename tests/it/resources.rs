//! Threads and memory, counted in a child process that this test binary starts from itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tinker::config::Config;
use tinker::types::FinishReason;
use tinker::{AdamParams, Datum, Error, LossFn, ModelInput, SamplingParams, ServiceClient};

use crate::support::fake::{Fake, result_of, train};
use crate::support::scripted::{Gate, Reply};

const URL: &str = "TINKER_TEST_CHILD_URL";

/// The child's side of a test: it runs the same test with the server's address set.
fn child_url() -> Option<String> {
    std::env::var(URL).ok()
}

struct Helper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    fn start(test: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    fn go_on(&mut self) {
        writeln!(self.input).unwrap();
    }

    /// The numbers the child reports in its next line of that name.
    fn read(&mut self, name: &str) -> Vec<u64> {
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the child ended"
            );
            // The test runner's own words may share the line.
            if let Some((_, rest)) = line.split_once(&format!("{name}=")) {
                return rest
                    .split_whitespace()
                    .map(|word| word.parse().unwrap())
                    .collect();
            }
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A line of `/proc/self/status`.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[allow(clippy::print_stdout, reason = "how the child tells its parent")]
fn report(name: &str, numbers: &[u64]) {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    println!("\n{name}={}", words.join(" "));
}

fn client(url: &str) -> ServiceClient {
    let config = Config::default()
        .with_base_url(url)
        .with_api_key("tml-test")
        .with_telemetry(false)
        .with_close_timeout(Duration::from_millis(100));
    ServiceClient::new(config).unwrap()
}

/// Submits samples that the service does not finish, and says what they cost while they wait.
fn wait_for_samples(url: &str, count: usize) {
    let before = status("VmRSS:");
    let sampler = client(url).create_sampling_client("some/model").unwrap();
    let prompt = ModelInput::from_ints(vec![1; 16]);
    let pending: Vec<_> = (0..count)
        .map(|_| {
            sampler
                .submit_sample(&prompt, SamplingParams::max_tokens(4))
                .unwrap()
        })
        .collect();
    wait_for_word();
    report(
        "waiting",
        &[
            status("Threads:"),
            status("VmHWM:").saturating_sub(before) / 1024,
        ],
    );
    drop(pending);
    std::process::exit(0);
}

#[test]
#[cfg(target_os = "linux")]
fn two_thousand_polls_cost_a_small_thread_each() {
    if let Some(url) = child_url() {
        return wait_for_samples(&url, 2_000);
    }
    let fake = Fake::start();
    let gate = Gate::new();
    let stalled = Reply::json(&json!({"type": "try_again"})).after(&gate);
    fake.server
        .always("POST", "/api/v1/retrieve_future", stalled);
    let mut child = Helper::start(
        "resources::two_thousand_polls_cost_a_small_thread_each",
        &fake.server.url(),
    );
    // All of them are polled at once.
    gate.wait_for(2_000);
    child.go_on();
    let [threads, megabytes] = child.read("waiting")[..] else {
        panic!()
    };
    assert!((2_000..2_050).contains(&threads), "{threads} threads");
    assert!(megabytes < 150, "{megabytes} MB");
    drop(child);
    gate.open();
}

#[test]
#[cfg(target_os = "linux")]
fn a_poller_needs_no_thread_per_sample() {
    if let Some(url) = child_url() {
        return wait_for_samples(&url, 2_000);
    }
    let fake = Fake::with_flags(json!({"sample_use_retrieve_futures": true}));
    let gate = Gate::new();
    let stalled = Reply::json(&json!({"completions": [], "cursor": 0})).after(&gate);
    fake.server
        .always("POST", "/api/v1/retrieve_futures", stalled);
    let mut child = Helper::start(
        "resources::a_poller_needs_no_thread_per_sample",
        &fake.server.url(),
    );
    fake.server.wait_until(|requests| {
        requests
            .iter()
            .filter(|request| request.path.ends_with("asample"))
            .count()
            == 2_000
    });
    child.go_on();
    let [threads, megabytes] = child.read("waiting")[..] else {
        panic!()
    };
    assert!(threads < 100, "{threads} threads");
    assert!(megabytes < 40, "{megabytes} MB");
    drop(child);
    gate.open();
}

#[test]
#[cfg(target_os = "linux")]
fn killing_the_server_ends_everything_and_leaves_no_thread() {
    const NAME: &str = "resources::killing_the_server_ends_everything_and_leaves_no_thread";
    if let Some(url) = child_url() {
        let before = status("Threads:");
        let config = Config::default()
            .with_base_url(url)
            .with_api_key("tml-test")
            .with_patience(Duration::from_millis(200))
            .with_stuck_after(Duration::from_millis(500))
            .with_close_timeout(Duration::from_millis(200));
        let service = ServiceClient::new(config).unwrap();
        let training = train(&service);
        let sampler = service.create_sampling_client("some/model").unwrap();
        let prompt = ModelInput::from_ints(vec![1]);
        let optim = training.optim_step(AdamParams::default()).unwrap();
        let datum = Datum::new(prompt.clone())
            .with_target_tokens(vec![2])
            .with_weights(vec![1.0]);
        let mut chunks = training
            .forward_backward_chunks(&[datum], LossFn::CrossEntropy)
            .unwrap();
        let sample = sampler
            .submit_sample(&prompt, SamplingParams::max_tokens(4))
            .unwrap();
        wait_for_word();
        let chunk = chunks.next().unwrap();
        assert!(chunks.next().is_none());
        drop(chunks);
        let errors = [optim.join().err(), chunk.err(), sample.join().err()];
        for error in errors.iter().flatten() {
            assert!(
                matches!(
                    error,
                    Error::Connection(_) | Error::Timeout(_) | Error::Lost(_)
                ),
                "{error:?}"
            );
        }
        let _ = service.close(FinishReason::Errored, None);
        drop((service, training, sampler));
        report("threads", &[before, status("Threads:")]);
        std::process::exit(0);
    }
    let fake = Fake::start();
    let gate = Gate::new();
    let held = gate.clone();
    fake.server.on(
        "POST",
        "/api/v1/retrieve_future",
        move |request| match request.header("x-tinker-request-type") {
            Some("CreateModel") => Reply::json(&result_of("CreateModel")),
            _ => Reply::json(&json!({"type": "try_again"})).after(&held),
        },
    );
    let mut child = Helper::start(NAME, &fake.server.url());
    // All operations have been accepted and are being polled.
    gate.wait_for(3);
    drop(fake);
    child.go_on();
    let [before, after] = child.read("threads")[..] else {
        panic!()
    };
    assert_eq!(before, after);
}
