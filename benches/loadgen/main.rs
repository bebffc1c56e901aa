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

mod faults;
mod measure;
mod process;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, bail};
use tinker::TrainingClient;
use tinker::types::Stop;
use tinker::{Datum, LoraConfig, ModelInput, SamplingClient, SamplingParams, ServiceClient};

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
        let sampler = service.create_sampling_client(self.model(&service)?)?;
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
