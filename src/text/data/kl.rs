//! How far a policy has moved from another, and advantages that hold it back.
//!
//! The datums are those of [`trajectory_datums`](super::trajectory_datums), with their `mask`.
//! The other policy's log-probabilities are those of the [`full_sequence`] of each datum, one
//! per token, as `compute_logprobs` gives them.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::types::{Datum, ModelInput};

/// The sequence a datum was made from: its input and the last target.
///
/// # Errors
///
/// If the datum has no targets.
pub fn full_sequence(datum: &Datum) -> Result<ModelInput> {
    let targets = datum.input("target_tokens").and_then(|t| t.as_i64());
    let last = targets.and_then(|targets| targets.last()).copied();
    let last = last.and_then(|token| i32::try_from(token).ok());
    let last = last.ok_or_else(|| Error::invalid("target_tokens", "must end with a token"))?;
    Ok(datum.model_input().clone().append_ints([last]))
}

/// A penalty on being less likely under a reference than under the policy that sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlPenalty {
    /// How much it counts.
    pub coefficient: f32,
    /// How much of the penalty of later tokens an earlier one bears; 0 is none of it.
    pub discount: f32,
}

impl KlPenalty {
    /// Checks that it is one. Loops call this before they begin.
    ///
    /// # Errors
    ///
    /// If the coefficient is not finite, or the discount not from 0 to 1.
    pub fn validate(&self) -> Result<()> {
        if !self.coefficient.is_finite() {
            let problem = format!("must be finite, got {}", self.coefficient);
            return Err(Error::invalid("coefficient", problem));
        }
        if !(0.0..=1.0).contains(&self.discount) {
            let problem = format!("must be from 0 to 1, got {}", self.discount);
            return Err(Error::invalid("discount", problem));
        }
        Ok(())
    }

    /// Adds to every sampled token's advantage how much less its log-probability differs from
    /// the reference than the average does. Returns that average, `kl_policy_base`.
    ///
    /// # Errors
    ///
    /// If a datum lacks an input or has another number of log-probabilities.
    pub fn apply(&self, data: &mut [Datum], reference: &[Vec<f32>]) -> Result<f32> {
        let gaps = gaps(data, reference)?;
        let average = mean_gap(&gaps);
        for (datum, gap) in data.iter_mut().zip(&gaps) {
            let added = gap.diff.iter().zip(&gap.mask);
            let added = added.map(|(diff, mask)| self.coefficient * mask * (average - diff));
            self.add(datum, added.collect())?;
        }
        Ok(average)
    }

    /// Distillation: adds to every sampled token's advantage how much more likely the teacher
    /// finds it. Returns `teacher_kl` and, for each number in `datasets` (one per datum),
    /// `teacher_kl/dataset_<i>`.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply), and if there is not one dataset number per datum.
    pub fn distill(
        &self,
        data: &mut [Datum],
        teacher: &[Vec<f32>],
        datasets: &[usize],
    ) -> Result<BTreeMap<String, f64>> {
        same_count("datasets", datasets.len(), data.len())?;
        let gaps = gaps(data, teacher)?;
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for ((datum, gap), dataset) in data.iter_mut().zip(&gaps).zip(datasets) {
            let added = gap.diff.iter().zip(&gap.mask);
            let added = added.map(|(diff, mask)| -self.coefficient * mask * diff);
            self.add(datum, added.collect())?;
            let sum = sums.entry(*dataset).or_default();
            sum.0 += total(&gap.diff);
            sum.1 += total(&gap.mask);
        }
        let mut metrics = BTreeMap::from([("teacher_kl".to_owned(), f64::from(mean_gap(&gaps)))]);
        for (dataset, (gap, count)) in sums {
            if count > 0.0 {
                metrics.insert(format!("teacher_kl/dataset_{dataset}"), gap / count);
            }
        }
        Ok(metrics)
    }

    fn add(&self, datum: &mut Datum, mut added: Vec<f32>) -> Result<()> {
        if self.discount > 0.0 {
            added = discounted_future_sum(&added, self.discount);
        }
        let advantages = floats(datum, "advantages")?;
        same_count("advantages", advantages.len(), added.len())?;
        let sum: Vec<f32> = advantages.iter().zip(added).map(|(a, b)| a + b).collect();
        *datum = datum.clone().with_advantages(sum);
        Ok(())
    }
}

/// Each value with all later ones, every step on counting `gamma` times as much.
///
/// ```
/// use tinker::text::data::discounted_future_sum;
///
/// assert_eq!(discounted_future_sum(&[1.0, 0.0, 4.0], 0.5), [2.0, 2.0, 4.0]);
/// ```
pub fn discounted_future_sum(values: &[f32], gamma: f32) -> Vec<f32> {
    let mut sums = values.to_vec();
    for index in (0..values.len().saturating_sub(1)).rev() {
        sums[index] += gamma * sums[index + 1];
    }
    sums
}

/// How the training policy differs from the one that sampled, over all sampled tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlEstimate {
    /// The mean difference of log-probabilities.
    pub v1: f64,
    /// Half the mean of its square.
    pub v2: f64,
    /// The entropy of the sampling policy: minus the mean of its log-probabilities.
    pub entropy: f64,
}

impl KlEstimate {
    /// Compares with the log-probabilities of the training step, one per position of each datum.
    ///
    /// # Errors
    ///
    /// If a datum lacks an input, the lengths differ, or no token was sampled.
    pub fn of_training(data: &[Datum], training: &[Vec<f32>]) -> Result<Self> {
        same_count("training", training.len(), data.len())?;
        let mut pairs = Vec::new();
        for (datum, training) in data.iter().zip(training) {
            pairs.extend(sampled_pairs(datum, training)?);
        }
        Self::new(&pairs)
    }

    /// Compares with another sampler's log-probabilities of the [`full_sequence`] of each datum.
    ///
    /// # Errors
    ///
    /// As [`of_training`](Self::of_training).
    pub fn of_sampler(data: &[Datum], full: &[Vec<f32>]) -> Result<Self> {
        let later = |logprobs: &Vec<f32>| logprobs.get(1..).unwrap_or_default().to_vec();
        let later: Vec<Vec<f32>> = full.iter().map(later).collect();
        Self::of_training(data, &later)
    }

    fn new(pairs: &[(f32, f32)]) -> Result<Self> {
        if pairs.is_empty() {
            return Err(Error::invalid("mask", "no token was sampled"));
        }
        let mean = |value: fn(&(f32, f32)) -> f32| {
            let sum: f64 = pairs.iter().map(|pair| f64::from(value(pair))).sum();
            sum / pairs.len() as f64
        };
        Ok(Self {
            v1: mean(|(sampled, other)| sampled - other),
            v2: 0.5 * mean(|(sampled, other)| (sampled - other).powi(2)),
            entropy: -mean(|(sampled, _)| *sampled),
        })
    }
}

struct Gap {
    diff: Vec<f32>,
    mask: Vec<f32>,
}

fn gaps(data: &[Datum], full: &[Vec<f32>]) -> Result<Vec<Gap>> {
    same_count("logprobs", full.len(), data.len())?;
    let each = data.iter().zip(full).enumerate();
    each.map(|(index, (datum, full))| {
        gap(datum, full).map_err(|error| error.within(&format!("data[{index}]")))
    })
    .collect()
}

fn gap(datum: &Datum, full: &[f32]) -> Result<Gap> {
    let sampled = floats(datum, "logprobs")?;
    let mask = floats(datum, "mask")?;
    same_count("logprobs", full.len(), sampled.len() + 1)?;
    same_count("mask", mask.len(), sampled.len())?;
    let each = sampled.iter().zip(&full[1..]).zip(mask);
    let diff = each.map(|((sampled, other), mask)| (sampled - other) * mask);
    Ok(Gap {
        diff: diff.collect(),
        mask: mask.to_vec(),
    })
}

fn mean_gap(gaps: &[Gap]) -> f32 {
    let sum: f64 = gaps.iter().map(|gap| total(&gap.diff)).sum();
    let count: f64 = gaps.iter().map(|gap| total(&gap.mask)).sum();
    match count > 0.0 {
        true => (sum / count) as f32,
        false => 0.0,
    }
}

/// A batch has millions of tokens: added up in single precision, the later ones are rounded away.
fn total(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}

fn sampled_pairs(datum: &Datum, other: &[f32]) -> Result<Vec<(f32, f32)>> {
    let sampled = floats(datum, "logprobs")?;
    let mask = floats(datum, "mask")?;
    same_count("logprobs", other.len(), sampled.len())?;
    same_count("mask", mask.len(), sampled.len())?;
    let each = sampled.iter().zip(other).zip(mask);
    let counted = each.filter(|(_, mask)| **mask > 0.0);
    Ok(counted.map(|((a, b), _)| (*a, *b)).collect())
}

fn floats<'a>(datum: &'a Datum, name: &str) -> Result<&'a [f32]> {
    let values = datum.input(name).and_then(|tensor| tensor.as_f32());
    values.ok_or_else(|| Error::invalid(name, "the datum has no such loss input of floats"))
}

fn same_count(field: &str, given: usize, needed: usize) -> Result<()> {
    match given == needed {
        true => Ok(()),
        false => Err(Error::invalid(
            field,
            format!("{given} given, {needed} needed"),
        )),
    }
}
