//! The clients against bare HTTP exchanges of the same bytes, in the same run.
//!
//! ```text
//! cargo bench --bench clients
//! ```
//!
//! A stub service runs in a process of its own, so its work does not count. Every measurement
//! runs in a fresh process too, which makes its peak memory its own. What decides is the ratio
//! of two lines, not the seconds. `benches/compare.py` puts the official Python SDK beside it.

#![allow(clippy::print_stdout, reason = "the figures are this program's output")]
#![allow(clippy::unwrap_used, reason = "a measurement that fails should stop")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tinker::config::Config;
use tinker::types::{LossOutput, SampledSequence, StopReason};
use tinker::unversioned::{Intervals as _, bench as wire};
use tinker::{
    AdamParams, Datum, ForwardBackwardOutput, LoraConfig, LossFn, ModelInput, SampleOptions,
    SampleRequest, SampleResponse, SamplingParams, ServiceClient, TensorData, TrainingClient,
};

const SAMPLES: usize = 10_000;
const STEPS: usize = 200;
/// Prompts, samples of each and tokens of a sample, as a round of reinforcement learning has them.
const GROUPS: (usize, u32, u32) = (200, 16, 512);
/// Numbers in the large results that are decoded.
const VALUES: usize = 6_250_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", scheme, sample, train, flags] => {
            serve(
                scheme,
                sample.parse().unwrap(),
                train.parse().unwrap(),
                flags,
            );
        }
        ["run", name, url] => run(name, url),
        ["encode", path] => std::fs::write(path, large_sample()).unwrap(),
        words if words.contains(&"--bench") => measure(),
        // Cargo passes `--bench` to measure; without it there is only to show that this builds.
        _ => println!("run with `cargo bench --bench clients`"),
    }
}

fn measure() {
    println!(
        "{:<34} {:>8} {:>8} {:>9} {:>8}",
        "", "wall s", "cpu s", "peak MB", "threads"
    );
    let sampling = [
        ("sample: bare ureq, 400 threads", "bare_sample", "{}"),
        ("sample: SDK", "sample", "{}"),
        (
            "sample: SDK with poller",
            "sample",
            r#"{"sample_use_retrieve_futures":true}"#,
        ),
    ];
    for (title, name, flags) in sampling {
        print_row(title, &run_apart(name, 50, 0, flags));
    }
    // Every sample of these must arrive, or the measurement stops.
    for (title, flags) in [
        ("sample: SDK, 256 descriptors", "{}"),
        ("  with poller", r#"{"sample_use_retrieve_futures":true}"#),
    ] {
        print_row(title, &run_within(256, "sample", 50, flags));
    }
    for (title, name) in [
        ("sample over TLS: bare ureq", "bare_sample"),
        ("sample over TLS: SDK", "sample"),
    ] {
        let row = run_over("https", name, 50, 0, "{}");
        print_row(title, &row);
        let count = |index: usize| row["handshakes"][index].as_u64().unwrap();
        println!(
            "{:<34} {:>8} handshakes, {} of them resumed",
            "",
            count(0),
            count(1)
        );
    }
    for (title, name) in [
        ("200 steps: bare ureq", "bare_train"),
        ("200 steps: SDK", "train"),
        ("200 steps: SDK, 2,000 samples open", "flood"),
    ] {
        let row = run_apart(name, 600_000, 5, "{}");
        print_row(title, &row);
        if let Some(gap) = row["heartbeat_gap"].as_f64() {
            println!(
                "{:<34} {gap:>8.2} s at most between heartbeats due every 0.10 s",
                ""
            );
        }
    }
    for (title, name) in [
        ("67 MB forward_backward: bare", "bare_big"),
        ("67 MB: SDK", "big"),
    ] {
        print_row(title, &run_apart(name, 0, 0, "{}"));
    }
    print_row(
        "2,000 samples of 10 s: SDK",
        &run_apart("slow", 10_000, 0, "{}"),
    );
}

fn print_row(title: &str, row: &Value) {
    let number = |name: &str| row[name].as_f64().unwrap();
    println!(
        "{title:<34} {:>8.2} {:>8.2} {:>9.0} {:>8}",
        number("wall"),
        number("cpu"),
        number("peak"),
        number("threads")
    );
}

/// Starts the stub and one measurement, each in its own process.
fn run_apart(name: &str, sample: u64, train: u64, flags: &str) -> Value {
    run_over("http", name, sample, train, flags)
}

fn run_over(scheme: &str, name: &str, sample: u64, train: u64, flags: &str) -> Value {
    let this = Command::new(std::env::current_exe().unwrap());
    run_as(this, scheme, name, sample, train, flags)
}

/// The same where the measured process may open so many files.
fn run_within(files: u32, name: &str, sample: u64, flags: &str) -> Value {
    let mut shell = Command::new("sh");
    let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
    shell
        .args(["-c", &limited])
        .arg(std::env::current_exe().unwrap());
    run_as(shell, "http", name, sample, 0, flags)
}

fn run_as(
    mut measured: Command,
    scheme: &str,
    name: &str,
    sample: u64,
    train: u64,
    flags: &str,
) -> Value {
    let this = std::env::current_exe().unwrap();
    let mut stub = Command::new(&this)
        .args([
            "serve",
            scheme,
            &sample.to_string(),
            &train.to_string(),
            flags,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(stub.stdout.take().unwrap())
        .read_line(&mut url)
        .unwrap();
    let measured = measured
        .args(["run", name, url.trim()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let process = measured.id();
    let (ended, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    let output = thread::scope(|scope| {
        // From outside, so that it costs the measured process nothing.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(status(process, "Threads:").unwrap_or(0), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let output = measured.wait_with_output().unwrap();
        ended.store(true, Ordering::Relaxed);
        output
    });
    stub.kill().unwrap();
    stub.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures: Value = serde_json::from_str(text.trim())
        .unwrap_or_else(|_| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    figures["threads"] = most.into_inner().into();
    figures
}

fn run(name: &str, url: &str) {
    let prepared = prepare(name, url);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    prepared();
    println!(
        "{}",
        json!({
            "wall": start.elapsed().as_secs_f64(),
            "cpu": cpu_seconds() - cpu,
            "peak": status(std::process::id(), "VmHWM:").unwrap() as f64 / 1024.0,
            "heartbeat_gap": (name == "flood").then(|| heartbeat_gap(url)),
            "handshakes": url.starts_with("https").then(|| handshakes(url)),
        })
    );
    std::process::exit(0);
}

/// Everything before the clock starts.
fn prepare(name: &str, url: &str) -> Box<dyn FnOnce()> {
    let url = url.to_owned();
    let service = || {
        let config = Config::default()
            .with_base_url(&url)
            .with_api_key("tml-bench")
            .with_root_certificates(AUTHORITY);
        ServiceClient::new(config).unwrap()
    };
    let training = || {
        service()
            .create_lora_training_client("m", LoraConfig::rank(4))
            .unwrap()
    };
    match name {
        "bare_sample" => Box::new(move || bare_samples(&url, SAMPLES, 1, 64)),
        "bare_groups" => {
            let (prompts, samples, tokens) = GROUPS;
            Box::new(move || bare_samples(&url, prompts, samples, tokens))
        }
        "groups" => {
            let (prompts, samples, tokens) = GROUPS;
            let sampler = service().create_sampling_client("m").unwrap();
            sampler
                .sample(&prompt(), SamplingParams::max_tokens(64))
                .unwrap();
            let options = SampleOptions::from(SamplingParams::max_tokens(tokens));
            let options = options.with_num_samples(samples);
            Box::new(move || {
                let requests = (0..prompts).map(|_| SampleRequest::new(prompt(), &options));
                for (_, result) in sampler.sample_batch(requests).with_window(prompts) {
                    assert_eq!(result.unwrap().sequences.len(), samples as usize);
                }
            })
        }
        "first" => {
            let service = service();
            Box::new(move || {
                let sampler = service.create_sampling_client("m").unwrap();
                sampler
                    .sample(&prompt(), SamplingParams::max_tokens(64))
                    .unwrap();
            })
        }
        "idle" => {
            let sampler = service().create_sampling_client("m").unwrap();
            let params = SamplingParams::max_tokens(64);
            sampler.sample(&prompt(), &params).unwrap();
            Box::new(move || {
                thread::sleep(Duration::from_secs(30));
                drop(sampler);
            })
        }
        "decode" => {
            let body = large_sample();
            Box::new(move || drop(std::hint::black_box(wire::decode_sample(body).unwrap())))
        }
        "sample" => {
            let sampler = service().create_sampling_client("m").unwrap();
            let params = SamplingParams::max_tokens(64);
            sampler.sample(&prompt(), &params).unwrap();
            Box::new(move || {
                let requests = (0..SAMPLES).map(|_| SampleRequest::new(prompt(), &params));
                for (_, result) in sampler.sample_batch(requests).with_window(SAMPLES) {
                    assert_eq!(result.unwrap().sequences[0].tokens.len(), 64);
                }
            })
        }
        "slow" => {
            let sampler = service().create_sampling_client("m").unwrap();
            let params = SamplingParams::max_tokens(64);
            Box::new(move || {
                let requests = (0..2_000).map(|_| SampleRequest::new(prompt(), &params));
                let results = sampler.sample_batch(requests).with_window(2_000);
                assert_eq!(results.filter(|(_, result)| result.is_ok()).count(), 2_000);
            })
        }
        "flood" => {
            let config = Config::default()
                .with_base_url(&url)
                .with_api_key("tml-bench")
                .with_heartbeat_interval(Duration::from_millis(100));
            let service = ServiceClient::new(config).unwrap();
            let sampler = service.create_sampling_client("m").unwrap();
            let training = service
                .create_lora_training_client("m", LoraConfig::rank(4))
                .unwrap();
            let data = batch(32, 512);
            let params = SamplingParams::max_tokens(64);
            let open: Vec<_> = (0..2_000)
                .map(|_| sampler.submit_sample(&prompt(), &params).unwrap())
                .collect();
            while sampler.progress().waiting > 0 {
                thread::sleep(Duration::from_millis(10));
            }
            warm_up(&training, &data);
            Box::new(move || {
                for _ in 0..STEPS {
                    let adam = AdamParams::default();
                    let step = training.train_step(&data, LossFn::CrossEntropy, adam);
                    step.unwrap().join().unwrap();
                }
                std::mem::forget(open);
            })
        }
        "bare_train" => {
            let data = batch(32, 512);
            let mut body = Vec::new();
            wire::encode_request(&data, &mut body).unwrap();
            Box::new(move || bare_steps(&url, &body))
        }
        "train" => {
            let (training, data) = (training(), batch(32, 512));
            warm_up(&training, &data);
            Box::new(move || {
                let adam = AdamParams::default();
                for _ in 0..STEPS {
                    training
                        .train_step(&data, LossFn::CrossEntropy, adam)
                        .unwrap()
                        .join()
                        .unwrap();
                }
            })
        }
        "bare_big" => {
            let data = batch(1024, 4096);
            Box::new(move || bare_big(&url, &data))
        }
        "big" => {
            let (training, data) = (training(), batch(1024, 4096));
            warm_up(&training, &data[..1]);
            Box::new(move || {
                let step = training
                    .forward_backward(&data, LossFn::CrossEntropy)
                    .unwrap();
                step.join().unwrap();
            })
        }
        other => panic!("no measurement {other}"),
    }
}

/// Opens the connections before the clock starts.
fn warm_up(training: &TrainingClient, data: &[Datum]) {
    let pass = training.forward_backward(data, LossFn::CrossEntropy);
    pass.unwrap().join().unwrap();
}

fn prompt() -> ModelInput {
    ModelInput::from_ints((0..256).map(|token| 1000 + token).collect::<Vec<i32>>())
}

fn batch(datums: usize, tokens: usize) -> Vec<Datum> {
    let datum = |_| {
        Datum::new(ModelInput::from_ints(vec![7; tokens]))
            .with_target_tokens(vec![8_i64; tokens])
            .with_weights(vec![1.0_f32; tokens])
    };
    (0..datums).map(datum).collect()
}

const AUTHORITY: &str = include_str!("../tests/fixtures/tls/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../tests/fixtures/tls/server.pem");
const KEY: &[u8] = include_bytes!("../tests/fixtures/tls/server.key");

/// An agent like those of the SDK, with nothing around it.
fn agent(idle: usize) -> ureq::Agent {
    use ureq::tls::{Certificate, RootCerts, TlsConfig};
    let authority = Certificate::from_pem(AUTHORITY.as_bytes()).unwrap();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[authority]));
    ureq::Agent::config_builder()
        .tls_config(tls.build())
        .max_idle_connections(idle)
        .max_idle_connections_per_host(idle)
        .build()
        .into()
}

/// What the SDK sends with every request, so that the exchanges are the same.
const HEADERS: [(&str, &str); 12] = [
    ("accept", "application/json"),
    ("user-agent", "tinker-sdk/0.1.0 (Rust)"),
    ("x-api-key", "tml-bench"),
    (
        "x-idempotency-key",
        "tinker-sdk-retry-5b1e3c52-7d0c-4f0e-9a3b-2f6d1c8e4a70",
    ),
    ("x-stainless-arch", "x64"),
    ("x-stainless-async", "false"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-package-version", "0.36.0"),
    ("x-stainless-read-timeout", "45"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-runtime", "rust"),
    ("x-stainless-runtime-version", "1.95"),
];

/// What it adds when it asks for a result.
const RESULT_HEADERS: [(&str, &str); 4] = [
    ("x-stainless-raw-response", "raw"),
    ("x-tinker-create-promise-roundtrip-time", "0"),
    ("x-tinker-request-iteration", "0"),
    ("x-tinker-request-type", "Sample"),
];

fn post(agent: &ureq::Agent, url: &str, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let mut request = agent
        .post(format!("{url}/api/v1/{path}"))
        .header("content-type", kind);
    let more: &[_] = match path {
        "retrieve_future" => &RESULT_HEADERS,
        _ => &[],
    };
    for (name, value) in HEADERS.iter().chain(more) {
        request = request.header(*name, *value);
    }
    let mut answer = request.send(body).unwrap();
    answer
        .body_mut()
        .with_config()
        .limit(u64::MAX)
        .read_to_vec()
        .unwrap()
}

fn submit(agent: &ureq::Agent, url: &str, path: &str, kind: &str, body: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(&post(agent, url, path, kind, body)).unwrap();
    answer["request_id"].as_str().unwrap().to_owned()
}

fn retrieve(agent: &ureq::Agent, url: &str, id: &str) -> Vec<u8> {
    let body = json!({"request_id": id, "allow_metadata_only": true}).to_string();
    post(
        agent,
        url,
        "retrieve_future",
        "application/json",
        body.as_bytes(),
    )
}

fn bare_samples(url: &str, count: usize, samples: u32, most: u32) {
    let agent = agent(400);
    let left = AtomicUsize::new(count);
    let tokens: Vec<i32> = (0..256).map(|token| 1000 + token).collect();
    let body = json!({
        "num_samples": samples, "prompt": {"chunks": [{"tokens": tokens, "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": most, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": "S1:sample:0", "seq_id": 0, "prompt_logprobs": false,
        "topk_prompt_logprobs": 0, "topk_sample_logprobs": 0, "prompt_alt_tokens_k": 0,
        "type": "sample",
    })
    .to_string();
    thread::scope(|scope| {
        for _ in 0..400 {
            thread::Builder::new()
                .stack_size(256 * 1024)
                .spawn_scoped(scope, || {
                    while left
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                        .is_ok()
                    {
                        let id =
                            submit(&agent, url, "asample", "application/json", body.as_bytes());
                        assert!(!retrieve(&agent, url, &id).is_empty());
                    }
                })
                .unwrap();
        }
    });
}

/// Two submissions one after the other, then both results.
fn bare_steps(url: &str, body: &[u8]) {
    let agent = agent(4);
    let optim = json!({
        "model_id": "S1:train:0", "seq_id": 1, "type": "optim_step", "adam_params": {
            "learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
            "weight_decay": 0.0, "grad_clip_norm": 0.0,
        },
    })
    .to_string();
    for _ in 0..STEPS {
        let kind = "application/x-protobuf";
        let first = submit(&agent, url, "forward_backward", kind, body);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| retrieve(&agent, url, &first));
            let second = submit(
                &agent,
                url,
                "optim_step",
                "application/json",
                optim.as_bytes(),
            );
            retrieve(&agent, url, &second);
            waiting.join().unwrap();
        });
    }
}

/// The chunks of the large call, encoded beforehand, eight at a time.
fn bare_big(url: &str, data: &[Datum]) {
    let agent = agent(16);
    let config = tinker::unversioned::ClientConfig::default();
    let chunks = tinker::types::chunk_ranges(
        data,
        config.fwdbwd_max_chunk_len,
        config.fwdbwd_max_chunk_bytes_count,
    );
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut body = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(chunk) = chunks.get(index) else {
                        return;
                    };
                    wire::encode_request(&data[chunk.range.clone()], &mut body).unwrap();
                    let kind = "application/x-protobuf";
                    let id = submit(&agent, url, "forward_backward", kind, &body);
                    assert!(!retrieve(&agent, url, &id).is_empty());
                }
            });
        }
    });
}

/// How many there were, and how many of them were resumed.
fn handshakes(url: &str) -> Value {
    let answer = post(&agent(1), url, "handshakes", "application/json", b"{}");
    serde_json::from_slice(&answer).unwrap()
}

fn heartbeat_gap(url: &str) -> f64 {
    let answer = post(&agent(1), url, "heartbeat_gap", "application/json", b"{}");
    String::from_utf8(answer).unwrap().parse().unwrap()
}

/// What the system says of a process, if it is there.
fn status(process: u32, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// User and system time of all threads.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

/// The stub: accepts everything at once, and finishes each request `millis` later.
fn serve(scheme: &str, sample: u64, train: u64, flags: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{scheme}://{}", listener.local_addr().unwrap());
    let tls = (scheme == "https").then(server_config);
    let stub = Arc::new(Stub {
        sample_latency: Duration::from_millis(sample),
        train_latency: Duration::from_millis(train),
        heartbeats: Mutex::default(),
        flags: flags.to_owned(),
        next: AtomicUsize::new(0),
        accepted: Mutex::default(),
        sample: sample_result(1, 64),
        group: sample_result(GROUPS.1 as usize, GROUPS.2 as usize),
        output: training_result(),
        handshakes: [const { AtomicUsize::new(0) }; 2],
    });
    for stream in listener.incoming() {
        let (stub, tls, stream) = (stub.clone(), tls.clone(), stream.unwrap());
        stream.set_nodelay(true).unwrap();
        thread::Builder::new()
            .stack_size(256 * 1024)
            .spawn(move || match tls {
                None => stub.connection(stream),
                Some(tls) => stub.secure_connection(tls, stream),
            })
            .unwrap();
    }
}

fn server_config() -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(CERTIFICATE).unwrap()],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        )
        .unwrap();
    Arc::new(config)
}

fn sample_result(sequences: usize, tokens: usize) -> Vec<u8> {
    let mut sequence = SampledSequence::new(StopReason::Length, vec![5; tokens]);
    sequence.logprobs = Some(vec![-0.5; tokens]);
    wire::encode_sample(&SampleResponse::new(vec![sequence; sequences]))
}

/// Fifty megabytes of tokens and log-probabilities.
fn large_sample() -> Vec<u8> {
    sample_result(2, VALUES / 2)
}

fn training_result() -> Vec<u8> {
    let output = LossOutput::from([("logprobs".to_owned(), TensorData::from(vec![-1.0_f32; 512]))]);
    let metrics = [("loss:sum".to_owned(), 1.0)].into();
    let result = ForwardBackwardOutput::new("TorchLossReturn", vec![output; 32], metrics);
    wire::encode_output(&result).unwrap()
}

/// What matters here of a request for samples.
#[derive(serde::Deserialize)]
struct Asked {
    num_samples: u32,
}

struct Stub {
    sample_latency: Duration,
    train_latency: Duration,
    /// The last heartbeat and the longest time between two.
    heartbeats: Mutex<(Option<Instant>, Duration)>,
    flags: String,
    next: AtomicUsize,
    /// When each request is due, and its result; taken by its first poll.
    accepted: Mutex<HashMap<String, (Instant, Vec<u8>)>>,
    sample: Vec<u8>,
    /// What a request for many samples gets.
    group: Vec<u8>,
    output: Vec<u8>,
    /// All, and those that were resumed.
    handshakes: [AtomicUsize; 2],
}

impl Stub {
    fn secure_connection(&self, tls: Arc<rustls::ServerConfig>, mut stream: TcpStream) {
        let mut connection = rustls::ServerConnection::new(tls).unwrap();
        if connection.complete_io(&mut stream).is_err() {
            return;
        }
        self.handshakes[0].fetch_add(1, Ordering::Relaxed);
        if connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed) {
            self.handshakes[1].fetch_add(1, Ordering::Relaxed);
        }
        self.connection(rustls::StreamOwned::new(connection, stream));
    }

    fn connection(&self, stream: impl Read + Write) {
        let mut reader = BufReader::new(stream);
        while let Some((path, body)) = read_request(&mut reader) {
            let (kind, answer) = self.answer(path.trim_start_matches("/api/v1/"), &body);
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
                answer.len()
            );
            let whole = [head.as_bytes(), &answer].concat();
            let stream = reader.get_mut();
            if stream.write_all(&whole).is_err() || stream.flush().is_err() {
                return;
            }
        }
    }

    fn answer(&self, path: &str, body: &[u8]) -> (&'static str, Vec<u8>) {
        const JSON: &str = "application/json";
        const PROTO: &str = "application/x-protobuf";
        match path {
            "client/config" => (JSON, self.flags.clone().into_bytes()),
            "create_session" => (
                JSON,
                br#"{"session_id":"S1","type":"create_session"}"#.to_vec(),
            ),
            "create_sampling_session" => (
                JSON,
                br#"{"sampling_session_id":"S1:sample:0","type":"create_sampling_session"}"#
                    .to_vec(),
            ),
            "telemetry" => (JSON, br#"{"status":"accepted"}"#.to_vec()),
            "create_model" => (
                JSON,
                self.accept(br#"{"model_id":"S1:train:0","type":"create_model"}"#.to_vec()),
            ),
            "optim_step" => (JSON, self.accept(br#"{"metrics":{}}"#.to_vec())),
            "asample" => {
                let request: Asked = serde_json::from_slice(body).unwrap();
                let (count, result) = match request.num_samples {
                    1 => (1, &self.sample),
                    _ => (GROUPS.1, &self.group),
                };
                let latency = self.sample_latency;
                (JSON, self.accept_in(latency, count, result.clone()))
            }
            "session_heartbeat" => {
                let mut heartbeats = self.heartbeats.lock().unwrap();
                let now = Instant::now();
                if let Some(last) = heartbeats.0.replace(now) {
                    heartbeats.1 = heartbeats.1.max(now - last);
                }
                (JSON, br#"{"type":"session_heartbeat"}"#.to_vec())
            }
            "handshakes" => {
                let counts = self.handshakes.each_ref();
                let counts = counts.map(|count| count.load(Ordering::Relaxed));
                (JSON, json!(counts).to_string().into_bytes())
            }
            "heartbeat_gap" => {
                let gap = self.heartbeats.lock().unwrap().1.as_secs_f64();
                (JSON, gap.to_string().into_bytes())
            }
            "forward_backward" => (JSON, self.accept(self.output.clone())),
            "retrieve_futures" => (JSON, self.completions()),
            "retrieve_future" => {
                let request: Value = serde_json::from_slice(body).unwrap();
                let id = request["request_id"].as_str().unwrap();
                let (due, result) = self.accepted.lock().unwrap().remove(id).unwrap();
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let kind = if result.starts_with(b"{") {
                    JSON
                } else {
                    PROTO
                };
                (kind, result)
            }
            _ => (JSON, b"{}".to_vec()),
        }
    }

    fn accept(&self, result: Vec<u8>) -> Vec<u8> {
        self.accept_in(self.train_latency, 1, result)
    }

    fn accept_in(&self, latency: Duration, sequences: u32, result: Vec<u8>) -> Vec<u8> {
        let id = format!("r{}", self.next.fetch_add(1, Ordering::Relaxed));
        let ids: Vec<String> = (0..sequences)
            .map(|number| format!("{id}-{number}"))
            .collect();
        let answer = json!({"request_id": id, "sample_sequence_ids": ids});
        self.accepted
            .lock()
            .unwrap()
            .insert(id, (Instant::now() + latency, result));
        answer.to_string().into_bytes()
    }

    /// Those that are due, told once; waits a little if there are none.
    fn completions(&self) -> Vec<u8> {
        for _ in 0..500 {
            let due: Vec<Value> = self
                .accepted
                .lock()
                .unwrap()
                .iter()
                .filter(|(_, (due, _))| *due <= Instant::now())
                .map(|(id, (_, result))| {
                    json!({"state": "finished", "request_id": id,
                           "response_payload_uncompressed_size": result.len()})
                })
                .collect();
            if !due.is_empty() {
                return json!({"completions": due, "cursor": 1})
                    .to_string()
                    .into_bytes();
            }
            thread::sleep(Duration::from_millis(10));
        }
        br#"{"completions":[],"cursor":1}"#.to_vec()
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|count| *count > 0)?;
    let path = line.split_whitespace().nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}
