//! Walks through everything a Tinker-compatible server may offer, and says what it does.
//!
//! ```text
//! cargo run --release --example interop -- --base-url http://127.0.0.1:8000 \
//!     --base-model Qwen/Qwen3-0.6B [--rank 4] [--vocab 1000]
//! ```
//!
//! Prints one line of JSON per step, `{"step", "ok", "detail"}`, and fails if a step does. What a
//! server does not offer (404, 405, 501) is reported as such and is no failure. The key comes
//! from `TINKER_API_KEY`; servers without keys need none.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tinker::client::ListOptions;
use tinker::config::Config;
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ModelInput, SampleOptions, SamplingParams};
use tinker::{SamplingClient, ServiceClient, TrainingClient};

const STEPS: usize = 15;

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::from_args()?;
    let mut config = Config::from_env()?.with_base_url(&options.base_url);
    if !config.has_credential() {
        config = config.with_api_key("tml-interop");
    }
    let mut script = Script { failed: 0 };
    script.walk(&options, &ServiceClient::new(config)?);
    Ok(match script.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

struct Options {
    base_url: String,
    base_model: String,
    rank: u32,
    vocab: usize,
}

impl Options {
    fn from_args() -> anyhow::Result<Self> {
        let (mut base_url, mut base_model, mut rank, mut vocab) = (None, None, 4, 250);
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args
                .next()
                .with_context(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--base-url" => base_url = Some(value),
                "--base-model" => base_model = Some(value),
                "--rank" => rank = value.parse().context("--rank")?,
                "--vocab" => vocab = value.parse().context("--vocab")?,
                _ => bail!("unknown option {name}"),
            }
        }
        Ok(Self {
            base_url: base_url.context("--base-url is required")?,
            base_model: base_model.context("--base-model is required")?,
            rank,
            vocab,
        })
    }

    fn tokens(&self, seed: usize, count: usize) -> Vec<i32> {
        let token = |index: usize| ((seed * 13 + index * 7) % self.vocab) as i32;
        (0..count).map(token).collect()
    }

    fn data(&self) -> Vec<Datum> {
        let datum = |seed| Datum::supervised(&self.tokens(seed, 8), &self.tokens(seed + 100, 16));
        (0..4).map(datum).collect()
    }
}

/// The steps so far, as far as later ones need to know.
struct Script {
    failed: usize,
}

impl Script {
    /// Runs a step that every server must be able to do, and prints its line.
    fn must<T, D: Display>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<(T, D)>,
    ) -> Option<T> {
        match work() {
            Ok((value, detail)) => {
                self.print(name, true, &detail.to_string());
                Some(value)
            }
            Err(error) => {
                self.print(name, false, &format!("{error:#}"));
                None
            }
        }
    }

    /// Runs a step that a server need not offer.
    fn may<T, D: Display>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<(T, D)>,
    ) -> Option<T> {
        let outcome = work();
        if let Some(status) = outcome.as_ref().err().and_then(not_offered) {
            self.print(name, true, &format!("not offered ({status})"));
            return None;
        }
        self.must(name, || outcome)
    }

    fn print(&mut self, name: &str, ok: bool, detail: &str) {
        self.failed += usize::from(!ok);
        println!("{}", json!({"step": name, "ok": ok, "detail": detail}));
    }

    fn walk(&mut self, options: &Options, service: &ServiceClient) {
        self.may("capabilities", || {
            let models = service.capabilities()?;
            let names: Vec<&str> = models.model_names().collect();
            Ok(((), names.join(", ")))
        });
        let training = self.must("create", || {
            let lora = LoraConfig::rank(options.rank);
            let training = service.create_lora_training_client(&options.base_model, lora)?;
            let id = training.model_id().to_owned();
            Ok((training, id))
        });
        let Some(training) = training else { return };
        self.may("info", || {
            Ok(((), format!("{:?}", training.info()?.model_data)))
        });
        let data = options.data();
        let mut losses = Vec::new();
        for number in 1..=STEPS {
            let loss = self.must(&format!("train {number}"), || train(&training, &data));
            losses.extend(loss);
        }
        self.must("learned", || {
            let (first, last) = (
                losses.first().context("no losses")?,
                losses[losses.len() - 1],
            );
            ensure!(last < *first, "the loss went from {first} to {last}");
            Ok(((), format!("loss {first:.4} -> {last:.4}")))
        });
        self.save_and_resume(service, &training, &data);
        self.sample(options, &training);
        self.lists(service, &training);
    }

    fn save_and_resume(
        &mut self,
        service: &ServiceClient,
        training: &TrainingClient,
        data: &[Datum],
    ) {
        let path = self.may("save", || {
            let saved = training.save_state("interop")?.join()?;
            Ok((saved.path.clone(), saved.path))
        });
        let Some(path) = path else { return };
        let resumed = self.may("resume", || {
            let resumed = service.create_training_client_from_state_with_optimizer(&path)?;
            let id = resumed.model_id().to_owned();
            Ok((resumed, id))
        });
        let Some(resumed) = resumed else { return };
        let straight = self.must("train on", || train(training, data));
        let again = self.must("train resumed", || train(&resumed, data));
        if let (Some(straight), Some(again)) = (straight, again) {
            self.must("same as before", || {
                let difference = (straight - again).abs() / straight.abs().max(1e-6);
                ensure!(
                    difference < 0.02,
                    "{straight} without and {again} with a resume"
                );
                Ok(((), format!("relative difference {difference:.1e}")))
            });
        }
    }

    fn sample(&mut self, options: &Options, training: &TrainingClient) {
        let sampler = self.must("sampler", || {
            let sampler = training.save_weights_and_get_sampling_client()?;
            let id = sampler.sampling_session_id().to_owned();
            Ok((sampler, id))
        });
        let Some(sampler) = sampler else { return };
        let prompt = ModelInput::from_ints(options.tokens(0, 8));
        self.must("sample", || sample(&sampler, &prompt));
        self.may("logprobs", || {
            let logprobs = sampler.compute_logprobs(&prompt)?;
            let known = logprobs.iter().flatten().count();
            ensure!(known == 7, "{known} of 7 logprobs");
            Ok(((), format!("{known} of {}", logprobs.len())))
        });
    }

    fn lists(&mut self, service: &ServiceClient, training: &TrainingClient) {
        let rest = service.rest();
        self.may("training run", || {
            let run = rest.training_run(training.model_id(), Default::default())?;
            Ok(((), run.base_model))
        });
        self.may("training runs", || {
            let runs = rest.training_runs(ListOptions::default());
            let count = runs.take(100).collect::<tinker::Result<Vec<_>>>()?.len();
            Ok(((), count))
        });
        self.may("checkpoints", || {
            let checkpoints = rest.list_checkpoints(training.model_id())?;
            let ids: Vec<String> = checkpoints.into_iter().map(|c| c.checkpoint_id).collect();
            Ok(((), ids.join(", ")))
        });
        self.may("sessions", || {
            let sessions = rest.list_sessions(ListOptions::default())?;
            Ok(((), sessions.sessions.len()))
        });
    }
}

fn train(training: &TrainingClient, data: &[Datum]) -> anyhow::Result<(f64, String)> {
    let adam = AdamParams::learning_rate(1e-3);
    let step = training.train_step(data, LossFn::CrossEntropy, adam)?;
    let (output, _) = step.join()?;
    // Not every server reports a loss; the logprobs of the answers say the same.
    let from_logprobs = || -> Option<f64> {
        let each = (0..data.len()).map(|index| {
            let weights = data[index].input("weights")?.as_f32()?;
            let pairs = output.logprobs(index)?.iter().zip(weights);
            Some(
                pairs
                    .map(|(logprob, weight)| -f64::from(logprob * weight))
                    .sum::<f64>(),
            )
        });
        each.sum()
    };
    let loss = output
        .loss()
        .or_else(from_logprobs)
        .context("neither loss nor logprobs")?;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok((loss, format!("loss {loss:.4}")))
}

fn sample(sampler: &SamplingClient, prompt: &ModelInput) -> anyhow::Result<((), String)> {
    let params = SamplingParams::max_tokens(8).with_seed(1);
    let options = SampleOptions::from(params).with_num_samples(2);
    let response = sampler.sample(prompt, options)?;
    ensure!(
        response.sequences.len() == 2,
        "{} sequences",
        response.sequences.len()
    );
    let lengths: Vec<usize> = response.sequences.iter().map(|s| s.tokens.len()).collect();
    ensure!(
        lengths.iter().all(|length| (1..=8).contains(length)),
        "{lengths:?} tokens"
    );
    Ok(((), format!("{lengths:?} tokens")))
}

/// The status by which a server says that it does not have something.
fn not_offered(error: &anyhow::Error) -> Option<u16> {
    let status = error.downcast_ref::<tinker::Error>()?.status()?;
    matches!(status, 404 | 405 | 501).then_some(status)
}
