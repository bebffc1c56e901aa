//! The figures training is judged by, computed from log probabilities and rewards.

use std::ops::Range;

use crate::types::Datum;
use crate::{Error, Result};

/// The weighted mean of the negative log probabilities; NaN if nothing has weight.
///
/// ```
/// let nll = tinker::train::mean_nll([(&[-1.0, -2.0, -0.5][..], &[0.0, 1.0, 1.0][..])]);
/// assert_eq!(nll, 1.25);
/// ```
#[doc(alias = "compute_mean_nll")]
pub fn mean_nll<'a>(sequences: impl IntoIterator<Item = (&'a [f32], &'a [f32])>) -> f64 {
    let (mut sum, mut total) = (0.0, 0.0);
    for (logprobs, weights) in sequences {
        for (logprob, weight) in logprobs.iter().zip(weights) {
            sum += f64::from(*logprob) * f64::from(*weight);
            total += f64::from(*weight);
        }
    }
    match total {
        0.0 => f64::NAN,
        _ => -sum / total,
    }
}

/// The log probabilities of a datum's targets as bits per byte of text: a figure that models
/// with different tokenizers can be compared by.
///
/// A target counts if it has weight and is not a special token. Bytes are those of the text of
/// each unbroken run of counted targets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BitsPerByte {
    nats: f64,
    bytes: usize,
}

impl BitsPerByte {
    /// Adds one sequence; `decode` gives the text of tokens, special ones included.
    ///
    /// # Errors
    ///
    /// What `decode` returns, and [`Error::Invalid`] if there are fewer log probabilities than
    /// targets.
    pub fn add(
        &mut self,
        logprobs: &[f32],
        weights: &[f32],
        targets: &[i32],
        is_special: impl Fn(i32) -> bool,
        decode: impl Fn(&[i32]) -> Result<String>,
    ) -> Result<()> {
        if logprobs.len() < targets.len() {
            let problem = format!("{} for {} targets", logprobs.len(), targets.len());
            return Err(Error::invalid("logprobs", problem));
        }
        let counted: Vec<bool> = weights
            .iter()
            .zip(targets)
            .map(|(weight, target)| *weight > 0.0 && !is_special(*target))
            .collect();
        for run in runs(&counted) {
            self.nats -= logprobs[run.clone()]
                .iter()
                .map(|&x| f64::from(x))
                .sum::<f64>();
            self.bytes += decode(&targets[run])?.len();
        }
        Ok(())
    }

    /// The figure; NaN if no byte was counted.
    pub fn value(&self) -> f64 {
        match self.bytes {
            0 => f64::NAN,
            bytes => self.nats / (std::f64::consts::LN_2 * bytes as f64),
        }
    }
}

/// The unbroken stretches of `true`.
fn runs(counted: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, _) in counted.iter().enumerate().filter(|(_, counts)| **counts) {
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// How well a model tells chosen from rejected answers, against a reference.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DpoScores {
    /// The mean over pairs of −log σ(β·(chosen − rejected)), of log ratios to the reference.
    pub loss: f64,
    /// The share of pairs whose chosen answer has the greater log ratio.
    pub accuracy: f64,
    /// The mean of β·(chosen − rejected).
    pub margin: f64,
    /// The mean of β·chosen.
    pub chosen_reward: f64,
    /// The mean of β·rejected.
    pub rejected_reward: f64,
}

impl DpoScores {
    /// Scores pairs of log ratios, `(chosen, rejected)`, each the answer's log probability less
    /// the reference's.
    ///
    /// ```
    /// let scores = tinker::train::DpoScores::of(&[(1.0, -0.5)], 0.1);
    /// assert!((scores.margin - 0.15).abs() < 1e-12);
    /// ```
    #[doc(alias = "compute_dpo_loss")]
    pub fn of(ratios: &[(f64, f64)], beta: f64) -> Self {
        let count = ratios.len().max(1) as f64;
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            ratios.iter().map(|(c, r)| of(*c, *r)).sum::<f64>() / count
        };
        Self {
            loss: mean(&|c, r| softplus(-beta * (c - r))),
            accuracy: mean(&|c, r| f64::from(c > r)),
            margin: mean(&|c, r| beta * (c - r)),
            chosen_reward: mean(&|c, _| beta * c),
            rejected_reward: mean(&|_, r| beta * r),
        }
    }
}

/// log(1 + eˣ) without overflow.
pub(super) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Cuts `n` things into as many nearly equal parts, in order; fewer if there are not enough.
///
/// The edges are those of the Python cookbook, which asks numpy's `linspace`: where it rounds down, so
/// does this.
///
/// ```
/// use tinker::train::split;
///
/// assert_eq!(split(10, 4), [0..2, 2..5, 5..7, 7..10]);
/// assert_eq!(split(30, 22)[10..12], [13..14, 14..16]); // not 13..15, 15..16
/// ```
#[doc(alias = "split_list")]
pub fn split(n: usize, parts: usize) -> Vec<Range<usize>> {
    let parts = parts.clamp(1, n.max(1));
    let step = n as f64 / parts as f64;
    let edge = |part: usize| match part == parts {
        true => n,
        false => (part as f64 * step) as usize,
    };
    (0..parts).map(|part| edge(part)..edge(part + 1)).collect()
}

/// The target tokens of a datum.
///
/// # Errors
///
/// [`Error::Invalid`] if it has none.
pub(super) fn targets(datum: &Datum) -> Result<Vec<i32>> {
    let targets = datum.input("target_tokens").and_then(|t| t.as_i64());
    let targets = targets.ok_or_else(|| missing("target_tokens"))?;
    Ok(targets.iter().map(|&token| token as i32).collect())
}

/// A loss input of a datum as floats.
///
/// # Errors
///
/// [`Error::Invalid`] if it is not there.
pub(super) fn floats<'a>(datum: &'a Datum, name: &str) -> Result<&'a [f32]> {
    let tensor = datum.input(name).and_then(|tensor| tensor.as_f32());
    tensor.ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::invalid(
        format!("loss_fn_inputs.{name}"),
        "is missing, and this needs it",
    )
}
