//! Threads and memory, counted in a child process that this test binary starts from itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tinker::config::Config;
use tinker::types::FinishReason;
use tinker::unversioned::Intervals as _;
use tinker::{
    AdamParams, Datum, Error, LossFn, ModelInput, SampleRequest, SamplingParams, ServiceClient,
};

use crate::support::fake::{Fake, result_of, route, train};
use crate::support::logs;
use crate::support::scripted::{Gate, Recorded, Reply};

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
        Self::run(Command::new(std::env::current_exe().unwrap()), test, url)
    }

    /// The same in a process that may open so many files.
    fn start_within(files: u32, test: &str, url: &str) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        shell
            .args(["-c", &limited])
            .arg(std::env::current_exe().unwrap());
        Self::run(shell, test, url)
    }

    fn run(mut command: Command, test: &str, url: &str) -> Self {
        let mut child = command
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
        .with_heartbeat_interval(BEAT)
        .with_close_timeout(Duration::from_millis(100));
    ServiceClient::new(config).unwrap()
}

/// How often the children's sessions give a sign of life.
const BEAT: Duration = Duration::from_millis(20);

/// When heartbeats arrived.
fn heartbeats(fake: &Fake) -> Arc<Mutex<Vec<Instant>>> {
    let beats = Arc::new(Mutex::new(Vec::new()));
    let seen = beats.clone();
    fake.server
        .on("POST", &route("session_heartbeat"), move |_| {
            seen.lock().unwrap().push(Instant::now());
            Reply::json(&json!({"type": "session_heartbeat"}))
        });
    beats
}

/// Waits until this many heartbeats have arrived.
fn wait_for_beats(fake: &Fake, count: usize) {
    fake.server.wait_until(|requests| {
        let is_beat = |request: &&Recorded| request.path.ends_with("session_heartbeat");
        requests.iter().filter(is_beat).count() >= count
    });
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
fn two_thousand_polls_cost_a_small_thread_each_and_delay_no_heartbeat() {
    const NAME: &str =
        "resources::two_thousand_polls_cost_a_small_thread_each_and_delay_no_heartbeat";
    if let Some(url) = child_url() {
        return wait_for_samples(&url, 2_000);
    }
    let fake = Fake::start();
    let gate = Gate::new();
    let stalled = Reply::json(&json!({"type": "try_again"})).after(&gate);
    fake.server
        .always("POST", "/api/v1/retrieve_future", stalled);
    let beats = heartbeats(&fake);
    let mut child = Helper::start(NAME, &fake.server.url());
    // All of them are polled at once.
    gate.wait_for(2_000);
    let so_far = beats.lock().unwrap().len();
    wait_for_beats(&fake, so_far + 10);
    let late = beats
        .lock()
        .unwrap()
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max();
    assert!(late < Some(BEAT + Duration::from_secs(2)), "{late:?}");
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
    // As many as submit at once, while they are warm.
    assert!(threads < 450, "{threads} threads");
    assert!(megabytes < 60, "{megabytes} MB");
    drop(child);
    gate.open();
}

/// Samples in a process with few descriptors, while the program opens files and trains.
fn sample_with_few_descriptors(url: &str) {
    logs::capture();
    let service = client(url);
    let training = train(&service);
    let sampler = service.create_sampling_client("some/model").unwrap();
    let requests = (0..600).map(|_| {
        let prompt = ModelInput::from_ints(vec![1; 16]);
        SampleRequest::new(prompt, SamplingParams::max_tokens(4))
    });
    let (mut arrived, mut opened) = (0, 0);
    for (_, result) in sampler.sample_batch(requests) {
        arrived += u64::from(result.is_ok());
        opened += u64::from(std::fs::File::open("/dev/null").is_ok());
    }
    let trained = training.optim_step(AdamParams::default()).unwrap().join();
    let warnings = logs::with("`ulimit -n`").len() as u64;
    report(
        "few",
        &[arrived, opened, u64::from(trained.is_ok()), warnings],
    );
    std::process::exit(0);
}

#[track_caller]
fn check_few_descriptors(test: &str, files: u32, flags: serde_json::Value, in_flight: usize) {
    if let Some(url) = child_url() {
        return sample_with_few_descriptors(&url);
    }
    let fake = Fake::with_flags(flags);
    let gate = Gate::new();
    let held = gate.clone();
    fake.server.on(
        "POST",
        &route("retrieve_future"),
        move |request| match request.header("x-tinker-request-type").unwrap() {
            "Sample" => Reply::json(&result_of("Sample")).after(&held),
            other => Reply::json(&result_of(other)),
        },
    );
    let mut child = Helper::start_within(files, &format!("resources::{test}"), &fake.server.url());
    gate.wait_for(in_flight);
    gate.open();
    assert_eq!(child.read("few"), [600, 600, 1, 1]);
    // Nothing was sent twice for want of a descriptor.
    assert_eq!(fake.bodies("asample").len(), 600);
}

#[test]
fn at_128_descriptors_all_samples_arrive_and_files_can_be_opened() {
    let name = "at_128_descriptors_all_samples_arrive_and_files_can_be_opened";
    check_few_descriptors(name, 128, json!({}), 24);
}

#[test]
fn at_256_descriptors_all_samples_arrive_and_files_can_be_opened() {
    let name = "at_256_descriptors_all_samples_arrive_and_files_can_be_opened";
    check_few_descriptors(name, 256, json!({}), 48);
}

/// Processor time of this process so far, in hundredths of a second.
fn processor_time() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after_name) = text.rsplit_once(')').unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Three heartbeats are what an idle session does in 30 s, and may cost 5 ms; here the same
/// three hundred times over.
#[test]
fn an_idle_session_costs_at_most_5_ms_of_processor_time_in_30_s() {
    const NAME: &str = "resources::an_idle_session_costs_at_most_5_ms_of_processor_time_in_30_s";
    const BEATS: usize = 900;
    if let Some(url) = child_url() {
        let config = Config::default()
            .with_base_url(url)
            .with_api_key("tml-test")
            .with_heartbeat_interval(Duration::from_millis(1));
        let service = ServiceClient::new(config).unwrap();
        service.session_id().unwrap();
        wait_for_word();
        let before = processor_time();
        report("begun", &[]);
        wait_for_word();
        report("spent", &[processor_time() - before]);
        std::process::exit(0);
    }
    let fake = Fake::start();
    let beats = heartbeats(&fake);
    let mut child = Helper::start(NAME, &fake.server.url());
    wait_for_beats(&fake, 10);
    child.go_on();
    child.read("begun");
    let before = beats.lock().unwrap().len();
    wait_for_beats(&fake, before + BEATS);
    child.go_on();
    let [hundredths] = child.read("spent")[..] else {
        panic!()
    };
    let milliseconds = 10.0 * hundredths as f64 / (BEATS / 3) as f64;
    assert!(milliseconds <= 5.0, "{milliseconds} ms");
}

#[test]
fn killing_the_server_ends_everything_and_leaves_no_thread() {
    const NAME: &str = "resources::killing_the_server_ends_everything_and_leaves_no_thread";
    if let Some(url) = child_url() {
        let before = status("Threads:");
        let config = Config::default()
            .with_base_url(url)
            .with_api_key("tml-test")
            .with_patience(Duration::from_millis(200))
            .with_result_patience(Duration::from_millis(200))
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
        let _ = service.close_as(FinishReason::Errored, None);
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
