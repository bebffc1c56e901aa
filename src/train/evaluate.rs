//! Measuring a model on the way.

use std::cell::OnceCell;

use super::fault;
use super::row::Row;
use super::scores::{BitsPerByte, floats, mean_nll, targets};
use super::timing::Timing;
use crate::Result;
use crate::client::{SamplingClient, TrainingClient};
use crate::text::Tokenizer;
use crate::text::data::full_sequence;
use crate::types::Datum;

/// The weights of one moment: what an evaluator measures. All evaluators of a step share one
/// sampler, which is made when the first asks for it.
#[derive(Debug)]
pub struct Snapshot<'a> {
    training: &'a TrainingClient,
    sampler: OnceCell<SamplingClient>,
}

impl<'a> Snapshot<'a> {
    /// The weights as they are now.
    pub fn of(training: &'a TrainingClient) -> Self {
        Self {
            training,
            sampler: OnceCell::new(),
        }
    }

    /// The same weights, which a sampler already holds.
    pub fn with_sampler(self, sampler: SamplingClient) -> Self {
        let _ = self.sampler.set(sampler);
        self
    }

    /// The model in training.
    pub fn training(&self) -> &TrainingClient {
        self.training
    }

    /// A sampler of these weights.
    ///
    /// # Errors
    ///
    /// If the weights cannot be saved.
    pub fn sampler(&self) -> Result<&SamplingClient> {
        if self.sampler.get().is_none() {
            let made = self.training.save_weights_and_get_sampling_client()?;
            let _ = self.sampler.set(made);
        }
        Ok(self.sampler.get().expect("it was just set"))
    }
}

/// Measures a model: names and numbers that are logged with the step's own.
///
/// ```
/// use tinker::train::{Evaluator, Row, Snapshot};
///
/// struct Greeting(tinker::ModelInput);
/// impl Evaluator for Greeting {
///     fn evaluate(&self, snapshot: &Snapshot<'_>) -> anyhow::Result<Row> {
///         let params = tinker::SamplingParams::max_tokens(8).with_temperature(0.0);
///         let said = snapshot.sampler()?.sample(&self.0, params)?;
///         Ok(Row::new().with("test/greeting_tokens", said.sequences[0].tokens.len()))
///     }
/// }
/// ```
pub trait Evaluator: Send + Sync {
    /// Measures the weights of this moment.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; it ends the run.
    fn evaluate(&self, snapshot: &Snapshot<'_>) -> anyhow::Result<Row>;
}

/// Runs evaluators one after the other.
///
/// # Errors
///
/// The first one's.
pub(super) fn evaluate_all(
    evaluators: &[Box<dyn Evaluator>],
    snapshot: &Snapshot<'_>,
    timing: &Timing,
) -> Result<Row> {
    let mut metrics = Row::new();
    for evaluator in evaluators {
        let measured = timing.span("run_evaluator", || evaluator.evaluate(snapshot));
        metrics.merge(measured.map_err(|error| fault::callback("an evaluator", error))?);
    }
    Ok(metrics)
}

/// The mean negative log-likelihood of held-out examples, `<name>/nll`, and with a tokenizer bits
/// per byte, `<name>/bpb`.
#[derive(Debug, Clone)]
#[doc(alias = "SamplerNLLEvaluator")]
pub struct NllEvaluator {
    name: String,
    data: Vec<Datum>,
    tokenizer: Option<Tokenizer>,
}

impl NllEvaluator {
    /// Examples that are scored under the name `test`.
    pub fn new(data: impl Into<Vec<Datum>>) -> Self {
        Self {
            name: "test".into(),
            data: data.into(),
            tokenizer: None,
        }
    }

    /// Scores under another name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Gives bits per byte too.
    #[must_use]
    pub fn with_tokenizer(mut self, tokenizer: Tokenizer) -> Self {
        self.tokenizer = Some(tokenizer);
        self
    }
}

impl Evaluator for NllEvaluator {
    fn evaluate(&self, snapshot: &Snapshot<'_>) -> anyhow::Result<Row> {
        let logprobs = target_logprobs(snapshot.sampler()?, &self.data)?;
        let nll = weighted_nll(&self.data, &logprobs)?;
        let mut row = Row::new().with(format!("{}/nll", self.name), nll);
        if let Some(tokenizer) = &self.tokenizer {
            let bpb = bits_per_byte(&self.data, &logprobs, tokenizer)?;
            row.set(format!("{}/bpb", self.name), bpb);
        }
        Ok(row)
    }
}

/// The log probability of every target of every datum, by a sampler.
///
/// # Errors
///
/// If a datum has no targets, or scoring fails.
pub(super) fn target_logprobs(sampler: &SamplingClient, data: &[Datum]) -> Result<Vec<Vec<f32>>> {
    let prompts = data.iter().map(full_sequence).collect::<Result<Vec<_>>>()?;
    let mut scored = vec![Vec::new(); data.len()];
    for (index, logprobs) in sampler.compute_logprobs_batch(prompts) {
        // The first token is not predicted from anything.
        scored[index] = logprobs?.as_raw().get(1..).unwrap_or_default().to_vec();
    }
    check_scored(data, &scored)?;
    Ok(scored)
}

/// Refuses scores that are not one for each target.
pub(super) fn check_scored(data: &[Datum], scored: &[Vec<f32>]) -> Result<()> {
    for (logprobs, datum) in scored.iter().zip(data) {
        check_count(targets(datum)?.len(), logprobs.len())?;
    }
    Ok(())
}

/// The same of one datum.
pub(super) fn check_count(targets: usize, scores: usize) -> Result<()> {
    match targets == scores {
        true => Ok(()),
        false => Err(fault::reply(format!(
            "{targets} targets were scored with {scores} numbers"
        ))),
    }
}

pub(super) fn weighted_nll(data: &[Datum], logprobs: &[Vec<f32>]) -> Result<f64> {
    let weights = data.iter().map(|datum| floats(datum, "weights"));
    let weights = weights.collect::<Result<Vec<_>>>()?;
    Ok(mean_nll(logprobs.iter().map(Vec::as_slice).zip(weights)))
}

pub(super) fn bits_per_byte(
    data: &[Datum],
    logprobs: &[Vec<f32>],
    tokenizer: &Tokenizer,
) -> Result<f64> {
    let specials = tokenizer.special_ids();
    let mut bits = BitsPerByte::default();
    for (datum, logprobs) in data.iter().zip(logprobs) {
        let (weights, targets) = (floats(datum, "weights")?, targets(datum)?);
        let special = |token| specials.contains(&token);
        bits.add(logprobs, weights, &targets, special, |tokens| {
            tokenizer.decode(tokens)
        })?;
    }
    Ok(bits.value())
}
