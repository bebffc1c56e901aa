//! Learning from the distributions of a teacher: soft targets.

use super::dataset::Dataset;
use super::fault;
use super::scores::floats;
use crate::client::SamplingClient;
use crate::text::data::full_sequence;
use crate::types::TopkLogprobs;
use crate::types::{Datum, ModelInput, SampleOptions, SampleRequest, SamplingParams, TensorData};
use crate::{Error, Result};

/// Data whose targets are what a teacher finds likely, not one token each: off-policy
/// distillation with [`Supervised`](super::Supervised).
///
/// For each batch the teacher scores the whole sequences; each target becomes its likeliest
/// tokens, weighted by their probability among themselves. Targets without weight stay without.
///
/// ```no_run
/// use tinker::train::{Batches, SoftTargets, Supervised};
///
/// # fn example(service: tinker::ServiceClient, run: &mut tinker::train::Run, data: Batches) -> tinker::Result<()> {
/// let teacher = service.create_sampling_client("Qwen/Qwen3-32B")?;
/// let soft = SoftTargets::new(data, teacher);
/// Supervised::new("Qwen/Qwen3-8B").train(&service, run, &soft)?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SoftTargets<D> {
    data: D,
    teacher: SamplingClient,
    k: u32,
}

impl<D: Dataset> SoftTargets<D> {
    /// Data as a teacher sees it, with the 20 likeliest tokens for each target.
    pub fn new(data: D, teacher: SamplingClient) -> Self {
        Self {
            data,
            teacher,
            k: 20,
        }
    }

    /// Sets how many tokens each target becomes; the service gives at most 20. Default: 20.
    #[must_use]
    pub fn with_k(mut self, k: u32) -> Self {
        self.k = k;
        self
    }
}

impl<D: Dataset> Dataset for SoftTargets<D> {
    fn batches(&self) -> usize {
        self.data.batches()
    }

    fn batch(&self, epoch: usize, index: usize) -> Result<Vec<Datum>> {
        check_k(self.k)?;
        let data = self.data.batch(epoch, index)?;
        let prompts = data.iter().map(full_sequence).collect::<Result<Vec<_>>>()?;
        let likeliest = likeliest(&self.teacher, prompts, self.k)?;
        let soft = data.iter().zip(&likeliest).map(|(datum, likeliest)| {
            let weights = floats(datum, "weights")?;
            let mut targets = Soft::new(weights.len(), self.k as usize);
            // Scores begin with the first token, which is no target.
            let skipped = likeliest.len().saturating_sub(weights.len());
            for (place, _) in weights
                .iter()
                .enumerate()
                .filter(|(_, weight)| **weight > 0.0)
            {
                targets.set(place, likeliest.row(place + skipped), i32::MAX);
            }
            targets.into_datum(datum.model_input().clone())
        });
        soft.collect()
    }
}

/// The likeliest tokens at every place of prompts.
///
/// # Errors
///
/// If scoring fails or gives none.
pub(super) fn likeliest(
    teacher: &SamplingClient,
    prompts: Vec<ModelInput>,
    k: u32,
) -> Result<Vec<TopkLogprobs>> {
    let options = SampleOptions::from(SamplingParams::max_tokens(1))
        .with_prompt_logprobs(true)
        .with_topk_prompt_logprobs(k);
    let requests = prompts
        .into_iter()
        .map(|prompt| SampleRequest::new(prompt, options.clone()));
    let scored = teacher.sample_batch(requests).with_window(64).in_order();
    let rows = scored.map(|(_, response)| {
        let topk = response?.topk_prompt_logprobs;
        topk.ok_or_else(|| fault::reply("no likeliest tokens came with the scores"))
    });
    rows.collect()
}

/// Targets that are distributions: a row of tokens and probabilities for each place.
#[derive(Debug)]
pub(super) struct Soft {
    k: usize,
    targets: Vec<i64>,
    weights: Vec<f32>,
    /// The sum of the rows' entropies, and how many rows have one.
    pub(super) entropy: f64,
    pub(super) rows: usize,
}

impl Soft {
    pub(super) fn new(places: usize, k: usize) -> Self {
        Self {
            k,
            targets: vec![0; places * k],
            weights: vec![0.0; places * k],
            entropy: 0.0,
            rows: 0,
        }
    }

    /// Sets a row to probabilities that add up to one. Tokens that are not below `vocabulary` are
    /// left out, and what is left of the row repeats its first token without weight.
    pub(super) fn set(&mut self, place: usize, row: Option<(&[i32], &[f32])>, vocabulary: i32) {
        let (tokens, logprobs) = row.unwrap_or_default();
        let known: Vec<(i32, f32)> = tokens
            .iter()
            .copied()
            .zip(logprobs.iter().copied())
            .filter(|(token, _)| *token < vocabulary)
            .take(self.k)
            .collect();
        let Some(&(first, _)) = known.first() else {
            return;
        };
        let highest = known
            .iter()
            .map(|row| row.1)
            .fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = known.iter().map(|row| (row.1 - highest).exp()).sum();
        let total = highest + sum.ln();
        let start = place * self.k;
        self.targets[start..start + self.k].fill(first.into());
        for (cell, (token, logprob)) in known.iter().enumerate() {
            let share = logprob - total;
            self.targets[start + cell] = (*token).into();
            self.weights[start + cell] = share.exp();
            self.entropy -= f64::from(share.exp() * share);
        }
        self.rows += 1;
    }

    pub(super) fn into_datum(self, input: ModelInput) -> Result<Datum> {
        let shape = vec![self.targets.len() / self.k.max(1), self.k];
        let targets = TensorData::from(self.targets).with_shape(shape.clone())?;
        let weights = TensorData::from(self.weights).with_shape(shape)?;
        Ok(Datum::new(input)
            .with_target_tokens(targets)
            .with_weights(weights))
    }
}

/// Refuses a number of tokens that cannot be asked for.
pub(super) fn check_k(k: u32) -> Result<()> {
    match k {
        1..=20 => Ok(()),
        k => Err(Error::invalid(
            "topk",
            format!("must be from 1 to 20, got {k}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_distributions() {
        let mut soft = Soft::new(3, 3);
        soft.set(1, Some((&[7, 900, 8], &[-1.0, -1.5, -2.0])), 100);
        soft.set(2, None, 100);
        let ln = (1.0f32 + (-1.0f32).exp()).ln();
        assert_eq!(soft.targets[3..6], [7, 8, 7]);
        assert!((soft.weights[3] - (-ln).exp()).abs() < 1e-6 && soft.weights[5] == 0.0);
        assert!((soft.weights[3] + soft.weights[4] - 1.0).abs() < 1e-6);
        assert_eq!(soft.rows, 1);
        let datum = soft
            .into_datum(ModelInput::from_ints(vec![1, 2, 3]))
            .unwrap();
        assert_eq!(datum.input("weights").unwrap().shape(), Some(&[3, 3][..]));
    }
}
