//! Drives a server with a defined load and prints one line of JSON about it.
//!
//! ```text
//! TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local \
//!     cargo run --release --example loadgen sample_many n=1000
//! ```
//!
//! Workloads and their keys, with the defaults:
//!
//! | workload | keys |
//! |---|---|
//! | `sample_many` | `n=1000 prompt=256 tokens=64`: all submitted, then all awaited |
//! | `sample_groups` | `prompts=200 samples=16 tokens=512 prompt=256` |
//! | `fwdbwd_big` | `datums=1024 tokens=4096`: one `forward_backward` |
//! | `train_loop` | `steps=200 datums=32 tokens=512`: `forward_backward` and `optim_step`, both submitted, then both awaited |
//! | `decode` | `kind=sample` or `kind=fwdbwd`, `mb=50 rounds=5`: a result's body into its type; needs no server |
//! | `first_sample` | process start (`BENCH_T0`) to the first tokens |
//! | `idle` | `seconds=30` |
//! | `faults_sample` | `n=1000 deadline=120`: what happens to samples when the server misbehaves |
//! | `faults_train` | `steps=50 deadline=120`: the same for training steps |
//!
//! `model=NAME` (default: the first the server offers), `rank=8` and `vocab=250` go with all.
//! `BENCH_T0` is the Unix time at which the process was started. Figures about the process come
//! from `/proc` and are 0 elsewhere than on Linux.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example prints"
)]

use std::collections::{BTreeMap, HashSet};
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tinker::client::SamplerSource;
use tinker::types::{FinishReason, LossOutput, SampledSequence, Stop, StopReason};
use tinker::{__bench as wire, AdamParams, Datum, Error, ForwardBackwardOutput, LoraConfig};
use tinker::{LossFn, ModelInput, Pending, SampleOptions, SampleResponse, SamplingClient};
use tinker::{SamplingParams, ServiceClient, TensorData, TrainingClient};

/// How long closing may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
/// When closing fails or takes longer.
const CLOSE_FAILED: u8 = 3;

fn main() -> ExitCode {
    let began = SystemTime::now();
    match Load::from_args(began).and_then(|load| load.run()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("loadgen: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for on the command line.
struct Load {
    workload: String,
    keys: BTreeMap<String, String>,
    began: SystemTime,
}

impl Load {
    fn from_args(began: SystemTime) -> anyhow::Result<Self> {
        let mut args = std::env::args().skip(1);
        let workload = args
            .next()
            .context("usage: loadgen WORKLOAD [key=value ...]")?;
        let pairs = args.map(|arg| {
            let (key, value) = arg
                .split_once('=')
                .with_context(|| format!("{arg}: not key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        });
        let keys = pairs.collect::<anyhow::Result<_>>()?;
        Ok(Self {
            workload,
            keys,
            began,
        })
    }

    fn run(&self) -> anyhow::Result<ExitCode> {
        match self.workload.as_str() {
            "sample_many" => self.sample_many(),
            "sample_groups" => self.sample_groups(),
            "fwdbwd_big" => self.fwdbwd_big(),
            "train_loop" => self.train_loop(),
            "decode" => self.decode(),
            "first_sample" => self.first_sample(),
            "idle" => self.idle(),
            "faults_sample" => return self.faults_sample(),
            "faults_train" => return self.faults_train(),
            other => bail!("no such workload: {other}"),
        }?;
        Ok(ExitCode::SUCCESS)
    }

    fn number(&self, key: &str, default: usize) -> anyhow::Result<usize> {
        match self.keys.get(key) {
            Some(text) => text
                .parse()
                .with_context(|| format!("{key}={text}: not a number")),
            None => Ok(default),
        }
    }

    fn model(&self, service: &ServiceClient) -> anyhow::Result<String> {
        match self.keys.get("model") {
            Some(name) => Ok(name.clone()),
            None => {
                let models = service.capabilities()?;
                Ok(models
                    .model_names()
                    .next()
                    .context("the server offers no model")?
                    .to_owned())
            }
        }
    }

    fn sampler(&self) -> anyhow::Result<(ServiceClient, SamplingClient)> {
        let service = ServiceClient::from_env()?;
        let source = SamplerSource::base_model(self.model(&service)?);
        let sampler = service.create_sampling_client(source)?;
        Ok((service, sampler))
    }

    fn trainer(&self) -> anyhow::Result<(ServiceClient, TrainingClient)> {
        let service = ServiceClient::from_env()?;
        let rank = LoraConfig::rank(self.number("rank", 8)? as u32);
        let training = service.create_lora_training_client(&self.model(&service)?, rank)?;
        Ok((service, training))
    }

    fn tokens(&self, seed: usize, count: usize) -> anyhow::Result<Vec<i32>> {
        let vocab = self.number("vocab", 250)?;
        let token = |index: usize| ((seed * 31 + index * 7) % vocab) as i32;
        Ok((0..count).map(token).collect())
    }

    fn prompt(&self, seed: usize) -> anyhow::Result<ModelInput> {
        let length = self.number("prompt", 256)?;
        Ok(ModelInput::from_ints(self.tokens(seed, length)?))
    }

    /// A datum of `length` tokens, each of which is to be predicted.
    fn datum(&self, seed: usize, length: usize) -> anyhow::Result<Datum> {
        let tokens = self.tokens(seed, length + 1)?;
        Ok(Datum::new(ModelInput::from_ints(&tokens[..length]))
            .with_target_tokens(&tokens[1..])
            .with_weights(vec![1.0f32; length]))
    }
}

/// Tokens are counted afterwards, so nothing but the limit may end a sequence.
fn exactly(tokens: usize) -> SamplingParams {
    SamplingParams::max_tokens(tokens as u32).with_stop(Stop::never())
}

/// Workloads that measure.
impl Load {
    fn sample_many(&self) -> anyhow::Result<()> {
        let (n, tokens) = (self.number("n", 1000)?, self.number("tokens", 64)?);
        let (_service, sampler) = self.sampler()?;
        let prompts = (0..n)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        sampler.sample(&self.prompt(n)?, exactly(tokens))?;
        let meter = Meter::start();
        let submit = |prompt: &ModelInput| sampler.submit_sample(prompt, exactly(tokens));
        let pending = prompts
            .iter()
            .map(submit)
            .collect::<tinker::Result<Vec<_>>>()?;
        let results = tinker::join_all(pending);
        let figures = meter.stop();
        check_samples(results, 1, tokens)?;
        self.report(figures, n as f64, "samples", json!({}))
    }

    fn sample_groups(&self) -> anyhow::Result<()> {
        let (prompts, samples) = (self.number("prompts", 200)?, self.number("samples", 16)?);
        let tokens = self.number("tokens", 512)?;
        let (_service, sampler) = self.sampler()?;
        let options = SampleOptions::from(exactly(tokens)).with_num_samples(samples as u32);
        let inputs = (0..prompts)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        sampler.sample(&self.prompt(prompts)?, exactly(1))?;
        let meter = Meter::start();
        let submit = |prompt: &ModelInput| sampler.submit_sample(prompt, &options);
        let pending = inputs
            .iter()
            .map(submit)
            .collect::<tinker::Result<Vec<_>>>()?;
        let results = tinker::join_all(pending);
        let figures = meter.stop();
        check_samples(results, samples, tokens)?;
        self.report(figures, (prompts * samples) as f64, "samples", json!({}))
    }

    fn fwdbwd_big(&self) -> anyhow::Result<()> {
        let (datums, tokens) = (self.number("datums", 1024)?, self.number("tokens", 4096)?);
        let (_service, training) = self.trainer()?;
        let data = (0..datums)
            .map(|i| self.datum(i, tokens))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let small = [self.datum(0, 8)?];
        training
            .forward_backward(&small, LossFn::CrossEntropy)?
            .join()?;
        let meter = Meter::start();
        let output = training
            .forward_backward(&data, LossFn::CrossEntropy)?
            .join()?;
        let figures = meter.stop();
        check_logprobs(&output, &vec![tokens; datums])?;
        self.report(figures, (datums * tokens) as f64, "tokens", json!({}))
    }

    fn train_loop(&self) -> anyhow::Result<()> {
        let (steps, datums) = (self.number("steps", 200)?, self.number("datums", 32)?);
        let tokens = self.number("tokens", 512)?;
        let (_service, training) = self.trainer()?;
        let data = (0..datums)
            .map(|i| self.datum(i, tokens))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let small = [self.datum(0, 8)?];
        training.forward(&small, LossFn::CrossEntropy)?.join()?;
        let mut outputs = Vec::with_capacity(steps);
        let meter = Meter::start();
        for _ in 0..steps {
            let gradients = training.forward_backward(&data, LossFn::CrossEntropy)?;
            let update = training.optim_step(AdamParams::default())?;
            outputs.push(gradients.join()?);
            update.join()?;
        }
        let figures = meter.stop();
        for output in &outputs {
            check_logprobs(output, &vec![tokens; datums])?;
        }
        let more = json!({"ms_per_step": figures.wall * 1e3 / steps as f64});
        self.report(figures, steps as f64, "steps", more)
    }

    fn decode(&self) -> anyhow::Result<()> {
        let values = self.number("mb", 50)? * 1_000_000 / 8;
        let rounds = self.number("rounds", 5)?;
        let kind = self.keys.get("kind").map_or("sample", String::as_str);
        let body = match kind {
            "sample" => wire::encode_sample(&large_sample(values)),
            "fwdbwd" => wire::encode_output(&large_output(2 * values))?,
            other => bail!("kind={other}: must be sample or fwdbwd"),
        };
        let decode = |body: Vec<u8>| -> tinker::Result<()> {
            match kind {
                "sample" => drop(black_box(wire::decode_sample(body)?)),
                _ => drop(black_box(wire::decode_output(body)?)),
            }
            Ok(())
        };
        decode(body.clone())?;
        let bodies: Vec<_> = (0..rounds).map(|_| body.clone()).collect();
        let meter = Meter::start();
        for body in bodies {
            decode(body)?;
        }
        let mut figures = meter.stop();
        figures.wall /= rounds as f64;
        figures.cpu /= rounds as f64;
        self.report(
            figures,
            body.len() as f64 / 1e6,
            "MB",
            json!({"kind": kind}),
        )
    }

    fn first_sample(&self) -> anyhow::Result<()> {
        let base = Process::now();
        let (_service, sampler) = self.sampler()?;
        let result = sampler.sample(&self.prompt(0)?, exactly(1))?;
        let began = match std::env::var("BENCH_T0") {
            Ok(text) => UNIX_EPOCH + Duration::from_secs_f64(text.parse().context("BENCH_T0")?),
            Err(_) => self.began,
        };
        let wall = SystemTime::now().duration_since(began)?.as_secs_f64();
        let figures = Figures {
            wall,
            cpu: Process::now().cpu,
            base_rss: base.rss,
        };
        check_samples(vec![Ok(result)], 1, 1)?;
        self.report(figures, 1.0, "samples", json!({}))
    }

    fn idle(&self) -> anyhow::Result<()> {
        let seconds = self.number("seconds", 30)?;
        let (_service, sampler) = self.sampler()?;
        sampler.sample(&self.prompt(0)?, exactly(1))?;
        let meter = Meter::start();
        thread::sleep(Duration::from_secs(seconds as u64));
        self.report(meter.stop(), seconds as f64, "seconds", json!({}))
    }

    fn report(&self, figures: Figures, units: f64, unit: &str, more: Value) -> anyhow::Result<()> {
        let mut line = json!({
            "workload": self.workload,
            "wall_s": figures.wall,
            "cpu_s": figures.cpu,
            "peak_rss_mb": Process::now().peak_rss,
            "base_rss_mb": figures.base_rss,
            "units": units,
            "unit": unit,
            "per_s": units / figures.wall,
        });
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        println!("{line}");
        Ok(())
    }
}

fn check_samples(
    results: Vec<tinker::Result<SampleResponse>>,
    samples: usize,
    tokens: usize,
) -> anyhow::Result<()> {
    for (index, result) in results.into_iter().enumerate() {
        let result = result.with_context(|| format!("sample {index}"))?;
        let lengths: Vec<usize> = result.sequences.iter().map(|s| s.tokens.len()).collect();
        ensure!(
            lengths == vec![tokens; samples],
            "sample {index} has {lengths:?} tokens"
        );
    }
    Ok(())
}

fn check_logprobs(output: &ForwardBackwardOutput, lengths: &[usize]) -> anyhow::Result<()> {
    let found: Vec<usize> = (0..output.loss_fn_outputs.len())
        .map(|index| output.logprobs(index).map_or(0, <[f32]>::len))
        .collect();
    ensure!(
        found == lengths,
        "logprobs of {found:?} tokens, expected {lengths:?}"
    );
    Ok(())
}

/// Two sequences of tokens and logprobs.
fn large_sample(values: usize) -> SampleResponse {
    let sequence = |_| {
        let tokens: Vec<i32> = (0..values as i32 / 2)
            .map(|index| index % 150_000)
            .collect();
        let mut sequence = SampledSequence::new(StopReason::Length, tokens);
        sequence.logprobs = Some(
            (0..values / 2)
                .map(|index| -(index as f32) * 1e-6)
                .collect(),
        );
        sequence
    };
    SampleResponse::new((0..2).map(sequence).collect())
}

/// Records of 4096 logprobs each.
fn large_output(values: usize) -> ForwardBackwardOutput {
    let record = |_| {
        let logprobs: Vec<f32> = (0..4096).map(|index| -(index as f32) * 1e-3).collect();
        LossOutput::from([("logprobs".to_owned(), TensorData::from(logprobs))])
    };
    let metrics = BTreeMap::from([("loss:sum".to_owned(), 1.0)]);
    let records = (0..values.div_ceil(4096)).map(record).collect();
    ForwardBackwardOutput::new("TorchLossReturn", records, metrics)
}

/// Workloads about behaviour under faults.
impl Load {
    fn deadline(&self) -> anyhow::Result<Duration> {
        Ok(Duration::from_secs(self.number("deadline", 120)? as u64))
    }

    fn faults_sample(&self) -> anyhow::Result<ExitCode> {
        let (n, limit) = (self.number("n", 1000)?, self.deadline()?);
        let (service, sampler) = self.sampler()?;
        let prompts = (0..n)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let length = |index: usize| 8 + index % 57;
        let mut tally = Tally::default();
        let (meter, threads) = (Meter::start(), ThreadCount::start());
        let deadline = Instant::now() + limit;
        let submit = |(index, prompt)| sampler.submit_sample(prompt, exactly(length(index)));
        let pending: Vec<_> = prompts.iter().enumerate().map(submit).collect();
        let results: Vec<_> = pending
            .into_iter()
            .map(|handle| wait(handle, deadline))
            .collect();
        let (figures, threads) = (meter.stop(), threads.stop());
        let mut seen = HashSet::new();
        for (index, result) in results.into_iter().enumerate() {
            tally.count(vec![result.and_then(|response| {
                let tokens: Vec<usize> =
                    response.sequences.iter().map(|s| s.tokens.len()).collect();
                let ids = response
                    .sequences
                    .iter()
                    .filter_map(|s| s.sequence_id.clone());
                if tokens != [length(index)] {
                    Err("wrong number of tokens".to_owned())
                } else if !ids.fold(true, |new, id| seen.insert(id) && new) {
                    Err("repeated sequence id".to_owned())
                } else {
                    Ok(())
                }
            })]);
        }
        self.report_faults(&tally, figures, threads, || drop(sampler), service)
    }

    fn faults_train(&self) -> anyhow::Result<ExitCode> {
        let (steps, limit) = (self.number("steps", 50)?, self.deadline()?);
        let (service, training) = self.trainer()?;
        let length = |step: usize, index: usize| 16 + (5 * step + 3 * index) % 31;
        let batch = |step: usize| (0..16).map(move |i| self.datum(step + i, length(step, i)));
        let data = (0..steps)
            .map(|step| batch(step).collect())
            .collect::<anyhow::Result<Vec<Vec<Datum>>>>()?;
        let mut tally = Tally::default();
        let (meter, threads) = (Meter::start(), ThreadCount::start());
        let deadline = Instant::now() + limit;
        let submit = |data: &Vec<Datum>| {
            let gradients = training.forward_backward(data, LossFn::CrossEntropy);
            (gradients, training.optim_step(AdamParams::default()))
        };
        let pending: Vec<_> = data.iter().map(submit).collect();
        let results: Vec<_> = pending
            .into_iter()
            .map(|(gradients, update)| (wait(gradients, deadline), wait(update, deadline)))
            .collect();
        let (figures, threads) = (meter.stop(), threads.stop());
        for (step, (gradients, update)) in results.into_iter().enumerate() {
            let lengths: Vec<usize> = (0..16).map(|index| length(step, index)).collect();
            let gradients = gradients.and_then(|output| {
                check_logprobs(&output, &lengths)
                    .map_err(|_| "wrong lengths of logprobs".to_owned())
            });
            tally.count(vec![
                gradients.map_err(|kind| format!("forward_backward: {kind}")),
                update
                    .map(drop)
                    .map_err(|kind| format!("optim_step: {kind}")),
            ]);
        }
        self.report_faults(&tally, figures, threads, || drop(training), service)
    }

    /// Prints the line, then closes: a client must come to its end whatever the server did.
    fn report_faults(
        &self,
        tally: &Tally,
        figures: Figures,
        threads_max: usize,
        release: impl FnOnce(),
        service: ServiceClient,
    ) -> anyhow::Result<ExitCode> {
        let line = json!({
            "workload": self.workload,
            "ok": tally.ok,
            "failed": tally.failed,
            "errors": tally.errors,
            "wall_s": figures.wall,
            "cpu_s": figures.cpu,
            "peak_rss_mb": Process::now().peak_rss,
            "threads_max": threads_max,
        });
        println!("{line}");
        release();
        let (sender, closed) = std::sync::mpsc::channel();
        thread::spawn(move || sender.send(service.close(FinishReason::Success, None)));
        match closed.recv_timeout(CLOSE_LIMIT) {
            Ok(Ok(())) => Ok(ExitCode::SUCCESS),
            Ok(Err(error)) => {
                eprintln!("closing failed: {error}");
                Ok(ExitCode::from(CLOSE_FAILED))
            }
            Err(_) => {
                eprintln!("closing takes more than {CLOSE_LIMIT:?}");
                // The client's threads are what hangs: do not wait for them.
                std::process::exit(CLOSE_FAILED.into());
            }
        }
    }
}

/// What became of the units of work; a unit is fine if all its calls are.
#[derive(Default)]
struct Tally {
    ok: usize,
    failed: usize,
    errors: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, calls: Vec<Result<(), String>>) {
        match calls.iter().all(Result::is_ok) {
            true => self.ok += 1,
            false => self.failed += 1,
        }
        for kind in calls.into_iter().filter_map(Result::err) {
            *self.errors.entry(kind).or_default() += 1;
        }
    }
}

fn wait<T: Send + 'static>(
    handle: tinker::Result<Pending<T>>,
    deadline: Instant,
) -> Result<T, String> {
    let mut handle = handle.map_err(|error| kind(&error))?;
    let left = deadline.saturating_duration_since(Instant::now());
    match handle.join_timeout(left) {
        Some(result) => result.map_err(|error| kind(&error)),
        None => Err("hung".to_owned()),
    }
}

/// A short name for an error: `BadRequest 400`, `Connection`, `Failed user`.
fn kind(error: &Error) -> String {
    let name = match error {
        Error::Invalid(_) => "Invalid",
        Error::Config(_) => "Config",
        Error::Credentials(_) => "Credentials",
        Error::Status(_) => match error.status().unwrap_or(0) {
            400 => "BadRequest",
            401 => "Authentication",
            403 => "PermissionDenied",
            404 => "NotFound",
            409 => "Conflict",
            422 => "UnprocessableEntity",
            429 => "RateLimit",
            500.. => "InternalServer",
            _ => "Status",
        },
        Error::Connection(_) => "Connection",
        Error::Timeout(_) => "Timeout",
        Error::Reply(_) => "Reply",
        Error::Failed(_) => "Failed",
        Error::Lost(_) => "Lost",
        Error::Broken(_) => "Broken",
        Error::Closed(_) => "Closed",
        _ => "Internal",
    };
    match (error.status(), error.category()) {
        (Some(status), _) => format!("{name} {status}"),
        (None, Some(category)) => format!("{name} {category}"),
        (None, None) => name.to_owned(),
    }
}

/// Time and processor time of the timed part.
struct Meter {
    started: Instant,
    before: Process,
}

struct Figures {
    wall: f64,
    cpu: f64,
    base_rss: f64,
}

impl Meter {
    fn start() -> Self {
        let before = Process::now();
        Self {
            started: Instant::now(),
            before,
        }
    }

    fn stop(self) -> Figures {
        let wall = self.started.elapsed().as_secs_f64();
        let cpu = Process::now().cpu - self.before.cpu;
        Figures {
            wall,
            cpu,
            base_rss: self.before.rss,
        }
    }
}

/// What the system says about this process; sizes in MB, times in seconds.
struct Process {
    cpu: f64,
    rss: f64,
    peak_rss: f64,
    threads: usize,
}

impl Process {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // After the name, which may hold anything; Linux counts in hundredths of a second.
        let after_name = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let ticks = after_name
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        Self {
            cpu: ticks.sum::<f64>() / 100.0,
            rss: field("VmRSS:") * 1024.0 / 1e6,
            peak_rss: field("VmHWM:") * 1024.0 / 1e6,
            threads: field("Threads:") as usize,
        }
    }
}

/// Looks every few milliseconds how many threads there are.
struct ThreadCount {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicUsize>,
    watcher: JoinHandle<()>,
}

impl ThreadCount {
    fn start() -> Self {
        let (stop, most) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let watcher = thread::spawn({
            let (stop, most) = (stop.clone(), most.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Without the watcher itself.
                    most.fetch_max(Process::now().threads.saturating_sub(1), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self {
            stop,
            most,
            watcher,
        }
    }

    fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.watcher.join();
        self.most.load(Ordering::Relaxed)
    }
}
