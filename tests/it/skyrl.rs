//! The client on SkyRL 0.3.0, a self-hosted server that speaks only JSON and only part of the protocol:
//! what it answered once, recorded, and in the long form the server itself.
//!
//! `TINKER_TEST_LONG=1 cargo test --test it skyrl` installs it (some gigabytes, under `target/`) and
//! starts it on the processor. With `TINKER_TEST_RECORD=1` too, what it answers becomes the record.

#![allow(clippy::print_stderr, reason = "says why a test was skipped")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinker::client::ListOptions;
use tinker::config::Config;
use tinker::error::Remedy;
use tinker::local::LocalServer;
use tinker::loss::{input, logprobs};
use tinker::unversioned::Clock;
use tinker::{
    AdamParams, Datum, Error, LoraConfig, LossFn, ModelInput, SampleOptions, SamplingClient,
    SamplingParams, ServiceClient, TrainingClient,
};

use crate::support::http;
use crate::support::local;
use crate::support::python::{environment_of, run};
use crate::support::scripted::{Recorded, Reply, Server};

/// The built-in model, as both servers have it.
const MODEL: &str = "org/tiny";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local/engine/builtin")
}

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/skyrl/answers.json")
}

/// One answer of the real server.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Exchange {
    /// Method and path, and the result's id where one was asked for.
    request: String,
    status: u16,
    content_type: String,
    /// JSON, or the text of what is none.
    answer: Value,
}

impl Exchange {
    fn name(request: &Recorded) -> String {
        let id = match request.path.ends_with("retrieve_future") {
            true => format!(" {}", request.json()["request_id"].as_str().unwrap()),
            false => String::new(),
        };
        format!("{} {}{id}", request.method, request.path)
    }

    fn reply(&self) -> Reply {
        let body = match &self.answer {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        Reply::bytes(&self.content_type, body).with_status(self.status)
    }
}

#[test]
fn what_skyrl_answered_is_understood() {
    let text = fs::read_to_string(record()).unwrap();
    let record: Vec<Exchange> = serde_json::from_str(&text).unwrap();
    let mut answers = BTreeMap::<String, Vec<Reply>>::new();
    for exchange in record.iter().rev() {
        let replies = answers.entry(exchange.request.clone()).or_default();
        replies.push(exchange.reply());
    }
    let (server, unknown) = (Server::start(), Arc::new(Mutex::new(BTreeSet::new())));
    let (answers, missed) = (Mutex::new(answers), Arc::clone(&unknown));
    server.otherwise(move |request| {
        let name = Exchange::name(request);
        let mut answers = answers.lock().unwrap();
        match answers.get_mut(&name) {
            // The last answer stands: heartbeats come as often as they come.
            Some(left) if left.len() > 1 => left.pop().unwrap(),
            Some(left) => left[0].clone(),
            None => {
                missed.lock().unwrap().insert(name);
                Reply::status(501)
            }
        }
    });
    let config = config(&server);
    let service = tinker::unversioned::client_with_clock(config, Clock::recorded()).unwrap();
    walk(&service);
    service.close().unwrap();
    assert!(unknown.lock().unwrap().is_empty(), "{unknown:?}");
}

#[test]
fn a_real_skyrl_trains_saves_resumes_and_samples() {
    if std::env::var_os("TINKER_TEST_LONG").is_none() {
        return;
    }
    let Some(skyrl) = SkyRl::start() else { return };
    let record = Arc::new(Mutex::new(Vec::new()));
    let front = in_front_of(&skyrl.url, Arc::clone(&record));
    let service = ServiceClient::new(config(&front)).unwrap();
    walk(&service);
    service.close().unwrap();
    drop(front);
    if std::env::var_os("TINKER_TEST_RECORD").is_some() {
        let exchanges = record.lock().unwrap();
        let mut text = serde_json::to_string_pretty(&*exchanges).unwrap();
        text.push('\n');
        fs::write(self::record(), text).unwrap();
    }
}

fn config(server: &Server) -> Config {
    Config::default()
        .with_base_url(server.url())
        .with_api_key("tml-any")
        .with_telemetry(false)
}

/// The server's process; it ends with its standard input.
struct SkyRl {
    process: Child,
    url: String,
    work: tempfile::TempDir,
}

impl SkyRl {
    fn start() -> Option<Self> {
        let Some(python) = python("3.12") else {
            eprintln!("skipped: SkyRL wants Python 3.12, which is not here");
            return None;
        };
        let packages = ["skyrl[tinker,jax]==0.3.0"];
        let python = environment_of(&python, "skyrl-0.3.0", &packages)?;
        let work = tempfile::tempdir().unwrap();
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/skyrl/serve.py"))
            .args(["--", MODEL])
            .arg(folder())
            .arg(work.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        let skyrl = Self { process, url, work };
        assert!(skyrl.url.starts_with("http"), "{}", skyrl.log());
        Some(skyrl)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.work.path().join("log")).unwrap_or_default()
    }
}

impl Drop for SkyRl {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// A Python of that version, on the path or among pyenv's.
fn python(version: &str) -> Option<PathBuf> {
    let name = format!("python{version}");
    let home = std::env::home_dir().unwrap_or_default();
    let kept = fs::read_dir(home.join(".pyenv/versions"));
    let kept = kept.into_iter().flatten().flatten();
    let kept = kept.map(|entry| entry.path().join("bin").join(&name));
    let mut all = std::iter::once(PathBuf::from(&name)).chain(kept);
    all.find(|python| run(Command::new(python).arg("--version")).is_ok())
}

/// Passes everything on, and keeps what comes back.
fn in_front_of(url: &str, record: Arc<Mutex<Vec<Exchange>>>) -> Server {
    let front = Server::start();
    let url = url.to_owned();
    front.otherwise(move |request| {
        let kept = ["content-type", "accept", "x-tinker-request-type"];
        let headers: Vec<(&str, &str)> = kept
            .iter()
            .filter_map(|name| Some((*name, request.header(name)?)))
            .collect();
        let path = match request.query.as_str() {
            "" => request.path.clone(),
            query => format!("{}?{query}", request.path),
        };
        let Ok(reply) = http::request(&url, &request.method, &path, &headers, &request.body) else {
            return Reply::hang_up();
        };
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let exchange = Exchange {
            request: Exchange::name(request),
            status: reply.status,
            content_type: reply.header("content-type").unwrap_or_default().to_owned(),
            answer: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        };
        let answer = exchange.reply();
        let mut record = record.lock().unwrap();
        // Heartbeats are all the same.
        let known = |known: &Exchange| known.request == exchange.request;
        if !request.path.ends_with("session_heartbeat") || !record.iter().any(known) {
            record.push(exchange);
        }
        answer
    });
    front
}

/// Everything a program does with a server, in one order, so that a record of it can be replayed.
fn walk(service: &ServiceClient) {
    let capabilities = service.capabilities().unwrap();
    let names: Vec<&str> = capabilities.model_names().collect();
    assert_eq!(names, [MODEL]);
    let lora = LoraConfig::rank(4).with_seed(1);
    let training = service.create_lora_training_client(MODEL, lora).unwrap();
    let info = training.info().unwrap();
    assert_eq!(info.model_data.model_name.as_deref(), Some(MODEL));

    agree_with_the_embedded_engine(&training);
    let losses: Vec<f64> = (0..3).map(|_| step(&training)).collect();
    assert!(losses[2] < losses[0], "{losses:?}");
    custom(&training);
    let path = save_and_resume(service, &training);
    sample(service, &training);
    refusals(service, &training);
    lists(service, &training, &path);
}

fn data() -> Vec<Datum> {
    ["the quick brown fox", "jumps over the dog!"]
        .iter()
        .map(|text| {
            let tokens: Vec<i32> = text.bytes().map(i32::from).collect();
            Datum::supervised(&tokens[..4], &tokens[4..])
        })
        .collect()
}

/// What a pass says of each datum's weighted tokens; this server reports no loss.
fn loss(output: &tinker::ForwardBackwardOutput) -> f64 {
    assert_eq!(output.loss(), None);
    let data = data();
    let each = data.iter().enumerate().map(|(index, datum)| {
        let weights = datum.input("weights").unwrap().as_f32().unwrap();
        let logprobs = output.logprobs(index).unwrap();
        assert_eq!(logprobs.len(), weights.len());
        let pairs = logprobs.iter().zip(weights);
        pairs
            .map(|(one, weight)| -f64::from(one * weight))
            .sum::<f64>()
    });
    each.sum()
}

fn step(training: &TrainingClient) -> f64 {
    let adam = AdamParams::learning_rate(1e-2);
    let step = training.train_step(&data(), LossFn::CrossEntropy, adam);
    let (output, stepped) = step.unwrap().join().unwrap();
    // Its own names, which are none of the service's.
    let metrics = stepped.metrics.unwrap();
    assert!(metrics["skyrl.ai/grad_norm"] > 0.0, "{metrics:?}");
    loss(&output)
}

/// A loss of one's own, computed here: its value is all there is to report.
fn custom(training: &TrainingClient) {
    let loss = -(logprobs() * input("weights")).sum();
    let pass = training.forward_backward_custom(&data(), loss).unwrap();
    let step = training.optim_step(AdamParams::learning_rate(1e-2));
    let metrics = pass.join().unwrap().metrics;
    step.unwrap().join().unwrap();
    assert!(metrics["loss:sum"] > 0.0, "{metrics:?}");
    assert_eq!(metrics.len(), 1, "{metrics:?}");
}

/// The same model, untrained, gives about the same numbers on both servers.
fn agree_with_the_embedded_engine(training: &TrainingClient) {
    let theirs = training.forward(&data(), LossFn::CrossEntropy);
    let theirs = theirs.unwrap().join().unwrap();
    let server = LocalServer::start().unwrap();
    let own = local::train(&local::service(&server));
    let ours = own.forward(&data(), LossFn::CrossEntropy).unwrap();
    let ours = ours.join().unwrap();
    for index in 0..data().len() {
        let pairs = theirs.logprobs(index).unwrap().iter();
        for (theirs, ours) in pairs.zip(ours.logprobs(index).unwrap()) {
            // It computes in bf16 throughout.
            assert!((theirs - ours).abs() < 0.25, "{theirs} and {ours}");
        }
    }
}

/// A run that was saved and resumed goes on as if nothing had been.
fn save_and_resume(service: &ServiceClient, training: &TrainingClient) -> String {
    let path = training.save_state("first").unwrap().join().unwrap().path;
    let info = service.rest().weights_info(&path).unwrap();
    assert_eq!(info.base_model, MODEL);
    let resumed = service.create_training_client_from_state_with_optimizer(&path);
    let resumed = resumed.unwrap();
    assert_ne!(resumed.model_id(), training.model_id());
    let (straight, again) = (step(training), step(&resumed));
    assert!(
        (straight - again).abs() < 0.05 * straight,
        "{straight} {again}"
    );
    path
}

fn sample(service: &ServiceClient, training: &TrainingClient) {
    let prompt = ModelInput::from_ints("the ".bytes().map(i32::from).collect::<Vec<_>>());
    let draw = |sampler: &SamplingClient| {
        let params = SamplingParams::max_tokens(4).with_seed(1).with_stop(["!"]);
        let options = SampleOptions::from(params).with_num_samples(2);
        let response = sampler.sample(&prompt, options).unwrap();
        let sequences = response.sequences.iter();
        let pairs = sequences.map(|one| (one.tokens.clone(), one.logprobs.clone().unwrap()));
        let pairs: Vec<_> = pairs.collect();
        assert_eq!(pairs.len(), 2);
        for (tokens, logprobs) in &pairs {
            assert!((1..=4).contains(&tokens.len()) && tokens.len() == logprobs.len());
        }
        pairs
    };
    let ephemeral = training.save_weights_and_get_sampling_client().unwrap();
    assert_eq!(ephemeral.base_model().unwrap(), MODEL);
    let saved = training.save_weights_for_sampler("named").unwrap();
    let path = saved.join().unwrap().path.unwrap();
    let named = training.create_sampling_client(&path).unwrap();
    assert_eq!(draw(&ephemeral), draw(&named));
    let base = service.create_sampling_client(MODEL).unwrap();
    assert_ne!(draw(&base), draw(&named));
    // It sends none for the first token, not even a null.
    let logprobs = named.compute_logprobs(&prompt).unwrap();
    assert_eq!(logprobs.len(), 4);
    assert_eq!(logprobs.iter().flatten().count(), 3);
}

/// What it refuses, and how the errors read.
fn refusals(service: &ServiceClient, training: &TrainingClient) {
    let error = training.save_state("first").unwrap().join().unwrap_err();
    assert_eq!(error.status(), Some(409));
    assert!(error.to_string().contains("already exists"), "{error}");

    let error = training.save_state("a.b").unwrap().join().unwrap_err();
    assert_eq!(
        (error.status(), error.remedy()),
        (Some(422), Remedy::FixInput)
    );
    assert!(
        error.to_string().contains("should match pattern"),
        "{error}"
    );

    // Its word for a request that failed is a 400 of the result.
    let big = LoraConfig::rank(64);
    let error = service.create_lora_training_client(MODEL, big).unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert!(error.to_string().contains("rank"), "{error}");

    // None of this ended the queue.
    step(training);
    let lost = service.create_training_client_from_state("tinker://model_none/weights/x");
    assert_eq!(lost.unwrap_err().status(), Some(404));
}

fn lists(service: &ServiceClient, training: &TrainingClient, path: &str) {
    let rest = service.rest();
    let run = training.model_id();
    let found = rest.training_run(run, Default::default()).unwrap();
    assert_eq!(
        (found.base_model.as_str(), found.lora_rank),
        (MODEL, Some(4))
    );
    let runs = rest.training_runs(ListOptions::default());
    let runs: Vec<_> = runs.map(|run| run.unwrap().training_run_id).collect();
    assert!(
        runs.iter().any(|id| id.as_str() == run.as_str()),
        "{runs:?}"
    );
    let checkpoints = rest.list_checkpoints(run).unwrap();
    assert!(checkpoints.iter().any(|one| one.tinker_path == path));
    assert_eq!(checkpoints.len(), 3, "{checkpoints:?}");
    let missing = rest.list_sessions(ListOptions::default()).unwrap_err();
    assert!(matches!(missing, Error::Status(_)), "{missing}");
    assert_eq!(missing.status(), Some(404));
}
