//! Results of forward and backward passes, and how those of several requests are folded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TensorData;
use crate::{Error, Result};

/// What the loss function returned for one example, by name.
pub type LossOutput = BTreeMap<String, TensorData>;

/// The result of a forward (and backward) pass over a batch.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardBackwardOutput {
    /// The kind of records in `loss_fn_outputs`.
    #[serde(default)]
    pub loss_fn_output_type: String,
    /// One record per example, in the order of the batch.
    pub loss_fn_outputs: Vec<LossOutput>,
    /// What the service measured. A name ends in how it is folded over requests: `loss:sum`.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// The exact value of folded `hash2` metrics, which need all 64 bits; `metrics` has the
    /// nearest float.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hashes: BTreeMap<String, u64>,
}

impl ForwardBackwardOutput {
    /// A result from its parts.
    pub fn new(
        loss_fn_output_type: impl Into<String>,
        loss_fn_outputs: Vec<LossOutput>,
        metrics: BTreeMap<String, f64>,
    ) -> Self {
        Self {
            loss_fn_output_type: loss_fn_output_type.into(),
            loss_fn_outputs,
            metrics,
            hashes: BTreeMap::new(),
        }
    }

    /// The loss over the whole batch: the metric `loss:sum`, a sum over the targets of all examples
    /// that is not divided by anything ([`LossFn`](crate::LossFn)).
    pub fn loss(&self) -> Option<f64> {
        self.metrics.get("loss:sum").copied()
    }

    /// A tensor the loss function returned for an example.
    pub fn output(&self, example: usize, name: &str) -> Option<&TensorData> {
        self.loss_fn_outputs.get(example)?.get(name)
    }

    /// The log-probability of each target token of an example.
    ///
    /// ```
    /// use tinker::{TensorData, types::ForwardBackwardOutput};
    ///
    /// let record = [("logprobs".to_owned(), TensorData::from(vec![-0.5f32, -1.0]))].into();
    /// let output = ForwardBackwardOutput::new("TorchLossReturn", vec![record], Default::default());
    /// assert_eq!(output.logprobs(0), Some(&[-0.5, -1.0][..]));
    /// assert_eq!(output.logprobs(1), None);
    /// ```
    pub fn logprobs(&self, example: usize) -> Option<&[f32]> {
        self.output(example, "logprobs")?.as_f32()
    }

    /// Folds the results of the requests one call was cut into.
    ///
    /// Records are joined in order. Metrics are folded by the last part of their name: `mean`
    /// weighted by the number of records, `sum`, `min`, `max`, `slack` (the maximum less the
    /// mean), `hash2` (a sum of 64 wrapping bits) and `unique` (every value, the later ones
    /// under a numbered name); a name without exactly one `:` counts as `unique`. Names come from
    /// the first result; one that a later result lacks, or that ends in an unknown word, is
    /// dropped.
    ///
    /// # Errors
    ///
    /// If a mean has no records to weigh it, or a hash is not a number.
    ///
    /// ```
    /// use tinker::types::ForwardBackwardOutput;
    ///
    /// let part = |loss: f64| {
    ///     let metrics = [("loss:sum".to_owned(), loss)].into();
    ///     ForwardBackwardOutput::new("", vec![Default::default()], metrics)
    /// };
    /// let whole = ForwardBackwardOutput::combine(vec![part(1.0), part(2.0)])?;
    /// assert_eq!(whole.loss(), Some(3.0));
    /// assert_eq!(whole.loss_fn_outputs.len(), 2);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn combine(parts: Vec<Self>) -> Result<Self> {
        let mut combined = Self::default();
        let Some(first) = parts.first() else {
            return Ok(combined);
        };
        combined
            .loss_fn_output_type
            .clone_from(&first.loss_fn_output_type);
        for name in first.metrics.keys() {
            combined.fold_metric(name, &parts)?;
        }
        combined.loss_fn_outputs = parts
            .into_iter()
            .flat_map(|part| part.loss_fn_outputs)
            .collect();
        Ok(combined)
    }

    fn fold_metric(&mut self, name: &str, parts: &[Self]) -> Result<()> {
        let mut words = name.split(':');
        let reduction = match (words.next(), words.next(), words.next()) {
            (Some(_), Some(reduction), None) => reduction,
            // A name that says nothing about folding costs nobody a result.
            _ => "unique",
        };
        let values: Option<Vec<f64>> = parts
            .iter()
            .map(|part| part.metrics.get(name).copied())
            .collect();
        let Some(values) = values else {
            return Ok(());
        };
        let folded = match reduction {
            "mean" => weighted_mean(name, &values, parts)?,
            "sum" => values.iter().sum(),
            "min" => values.iter().copied().fold(f64::INFINITY, nan_min),
            "max" => values.iter().copied().fold(f64::NEG_INFINITY, nan_max),
            "slack" => {
                let largest = values.iter().copied().fold(f64::NEG_INFINITY, nan_max);
                largest - weighted_mean(name, &values, parts)?
            }
            "hash2" => {
                let hash = fold_hash(name, &values)?;
                self.hashes.insert(name.to_owned(), hash);
                hash as f64
            }
            "unique" => {
                for (index, &value) in values.iter().enumerate().skip(1) {
                    self.metrics.insert(format!("{name}_{index}"), value);
                }
                values[0]
            }
            _ => return Ok(()),
        };
        self.metrics.insert(name.to_owned(), folded);
        Ok(())
    }
}

fn nan_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.min(b)
    }
}

fn nan_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

fn weighted_mean(name: &str, values: &[f64], parts: &[ForwardBackwardOutput]) -> Result<f64> {
    let weights = parts.iter().map(|part| part.loss_fn_outputs.len() as f64);
    let total: f64 = weights.clone().sum();
    if total == 0.0 {
        return Err(Error::invalid(
            format!("metrics[{name:?}]"),
            "a mean cannot be folded over results without records",
        ));
    }
    Ok(values
        .iter()
        .zip(weights)
        .map(|(value, weight)| value * weight)
        .sum::<f64>()
        / total)
}

fn fold_hash(name: &str, values: &[f64]) -> Result<u64> {
    values.iter().try_fold(0u64, |sum, &value| {
        if !value.is_finite() {
            return Err(Error::invalid(
                format!("metrics[{name:?}]"),
                format!("a hash must be a finite number, got {value}"),
            ));
        }
        Ok(sum.wrapping_add(low_64_bits(value)))
    })
}

/// The integer part modulo 2^64, as two's complement.
fn low_64_bits(value: f64) -> u64 {
    const TWO_64: f64 = 18_446_744_073_709_551_616.0;
    let whole = value.trunc();
    let magnitude = (whole.abs() % TWO_64) as u64;
    if whole < 0.0 {
        magnitude.wrapping_neg()
    } else {
        magnitude
    }
}
