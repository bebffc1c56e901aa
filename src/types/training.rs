//! What training is told and what it answers: LoRA, losses, saved weights, model information.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::macros::open_enum;
use super::{ModelId, OptimizerConfig, SamplingSessionId};
use crate::{Error, Result};

/// The adapter a model is trained with.
///
/// ```
/// use tinker::LoraConfig;
///
/// let config = LoraConfig::rank(32).with_seed(7).with_train_unembed(false);
/// assert_eq!(config.rank, 32);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Dimension of the low-rank matrices.
    pub rank: u32,
    /// Seed of their initial values. Default: chosen by the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Whether the unembedding layer gets an adapter. Default: true.
    #[serde(default = "yes")]
    pub train_unembed: bool,
    /// Whether the MLP (and mixture-of-experts) layers get adapters. Default: true.
    #[serde(default = "yes")]
    pub train_mlp: bool,
    /// Whether the attention layers get adapters. Default: true.
    #[serde(default = "yes")]
    pub train_attn: bool,
}

fn yes() -> bool {
    true
}

impl LoraConfig {
    /// An adapter of this rank on every layer.
    pub fn rank(rank: u32) -> Self {
        Self {
            rank,
            seed: None,
            train_unembed: true,
            train_mlp: true,
            train_attn: true,
        }
    }

    /// Sets the seed of the initial values.
    #[must_use]
    pub fn with_seed(mut self, seed: i64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Says whether the unembedding layer gets an adapter.
    #[must_use]
    pub fn with_train_unembed(mut self, train: bool) -> Self {
        self.train_unembed = train;
        self
    }

    /// Says whether the MLP layers get adapters.
    #[must_use]
    pub fn with_train_mlp(mut self, train: bool) -> Self {
        self.train_mlp = train;
        self
    }

    /// Says whether the attention layers get adapters.
    #[must_use]
    pub fn with_train_attn(mut self, train: bool) -> Self {
        self.train_attn = train;
        self
    }

    /// Checks that the adapter has a rank and trains something.
    ///
    /// # Errors
    ///
    /// If the rank is 0 or every kind of layer is switched off.
    pub fn validate(&self) -> Result<()> {
        if self.rank == 0 {
            return Err(Error::invalid(
                "lora_config.rank",
                "must be at least 1, got 0",
            ));
        }
        if !(self.train_unembed || self.train_mlp || self.train_attn) {
            return Err(Error::invalid(
                "lora_config",
                "at least one of train_unembed, train_mlp and train_attn must be true",
            ));
        }
        Ok(())
    }
}

open_enum! {
    /// A loss function the service runs.
    ///
    /// Every loss is a sum over the target tokens of all examples, to be made small, so gradients
    /// scale with the number of tokens that count; divide weights or advantages yourself for a
    /// mean. In the formulas `p` is the log probability the model gives a target now, `q` the one
    /// in `logprobs`, under the policy that sampled it, `r = exp(p - q)` their ratio, `A` the
    /// advantage, `w` the weight. A positive advantage makes its token more likely.
    ///
    /// | loss | the term of a token | reads | settings and their defaults |
    /// |---|---|---|---|
    /// | `cross_entropy` | `-w p` | `weights` | |
    /// | `importance_sampling` | `-r A` | `logprobs`, `advantages` | |
    /// | `ppo` | `-min(r A, clip(r) A)` | the same, and thresholds | `clip_low_threshold` 0.8, `clip_high_threshold` 1.2 |
    /// | `cispo` | `-clip(r) A p`, the ratio held constant | the same | `clip_low_threshold` 0, `clip_high_threshold` 4 |
    /// | `dro` | `-(A p - beta/2 (p - q)²)` | `logprobs`, `advantages` | `beta` 0.05 (our reading) |
    /// | `gspo` | as `ppo`, with one `r` for the sequence: `exp(mean(p - q))` | the same as `ppo`, and `sequence_ratio_mask` | thresholds 0.9997 and 1.0004 (our reading) |
    /// | `stable_reinforce` | not published | what [`SamplingClient::with_stability_info`] recorded | |
    /// | `custom` | your own, see [`loss`](crate::loss) | what it names | `loss_id` |
    ///
    /// The hosted service does not publish its formulas and defaults; these are the embedded
    /// engine's, after the service's documentation and, where that is silent ("our reading"),
    /// after the papers. Say a setting that matters.
    ///
    /// Every loss also reads `target_tokens`, and all inputs align with it: entry `i` is about the
    /// token that follows position `i` of the model's input, so targets are the tokens shifted by
    /// one, and prompt positions have weight or advantage 0. [`Datum::supervised`] and
    /// [`Datum::policy`] build such examples. `cross_entropy` takes several targets per position
    /// too (`[length, k]`, weights alike). `ppo`, `cispo` and `gspo` take thresholds of the
    /// tokens' own in inputs named like the settings. The mean of `gspo` is over the tokens where
    /// `sequence_ratio_mask` is not 0; without it, where the advantage is not 0.
    ///
    /// ```
    /// use tinker::LossFn;
    /// assert_eq!(LossFn::CrossEntropy.as_str(), "cross_entropy");
    /// assert_eq!(LossFn::from("dppo"), LossFn::Other("dppo".into()));
    /// assert_eq!(LossFn::Dro.inputs(), ["target_tokens", "logprobs", "advantages"]);
    /// ```
    ///
    /// [`Datum::supervised`]: crate::Datum::supervised
    /// [`Datum::policy`]: crate::Datum::policy
    /// [`SamplingClient::with_stability_info`]: crate::SamplingClient::with_stability_info
    LossFn {
        /// Weighted negative log-likelihood of the targets.
        CrossEntropy = "cross_entropy",
        /// Policy gradient with importance weights.
        ImportanceSampling = "importance_sampling",
        /// Clipped policy gradient.
        Ppo = "ppo",
        /// Policy gradient with clipped importance weights.
        Cispo = "cispo",
        /// Direct reward optimisation.
        Dro = "dro",
        /// Policy gradient with sequence-level ratios.
        Gspo = "gspo",
        /// Policy gradient over recorded stability information.
        StableReinforce = "stable_reinforce",
        /// A loss of your own, uploaded before and named in the configuration.
        Custom = "custom",
    }
}

impl LossFn {
    /// The loss inputs it reads, as far as that is known: none for a loss of your own or one that
    /// this version does not know.
    pub fn inputs(&self) -> &'static [&'static str] {
        // Each list is the beginning of the one for the loss that reads most.
        const POLICY: &[&str] = &[
            "target_tokens",
            "logprobs",
            "advantages",
            "clip_low_threshold",
            "clip_high_threshold",
            "sequence_ratio_mask",
        ];
        match self {
            Self::CrossEntropy => &["target_tokens", "weights"],
            Self::ImportanceSampling | Self::Dro => &POLICY[..3],
            Self::Ppo | Self::Cispo => &POLICY[..5],
            Self::Gspo => POLICY,
            Self::StableReinforce | Self::Custom | Self::Other(_) => &[],
        }
    }

    /// An input among these that no loss reads, which is probably misspelt.
    pub(crate) fn misspelt<'a>(
        &self,
        mut names: impl Iterator<Item = &'a String>,
    ) -> Option<&'a str> {
        let known = |name: &str| name == "weights" || Self::Gspo.inputs().contains(&name);
        match self.inputs() {
            [] => None,
            _ => names.find(|name| !known(name)).map(String::as_str),
        }
    }

    /// The loss with one of its settings.
    ///
    /// ```
    /// let loss = tinker::LossFn::Ppo.with("clip_low_threshold", 0.8).with("clip_high_threshold", 1.2);
    /// assert_eq!(loss.config.len(), 2);
    /// ```
    pub fn with(self, name: impl Into<String>, value: impl Into<LossConfigValue>) -> Loss {
        Loss::from(self).with(name, value)
    }
}

/// A setting of a loss function: a number or a text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum LossConfigValue {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// Refuses NaN and infinities, which JSON has no form for; protobuf requests carry them.
impl Serialize for LossConfigValue {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) if number.is_finite() => serializer.serialize_f64(*number),
            Self::Number(number) => Err(serde::ser::Error::custom(format_args!(
                "{number} cannot be written as JSON; must be finite"
            ))),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl From<f64> for LossConfigValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<i32> for LossConfigValue {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for LossConfigValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for LossConfigValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The settings of a loss function, by name.
pub type LossConfig = BTreeMap<String, LossConfigValue>;

/// A loss function and its settings.
///
/// Calls that take one accept a bare [`LossFn`] too.
///
/// ```
/// use tinker::{LossFn, types::Loss};
/// let plain: Loss = LossFn::CrossEntropy.into();
/// assert!(plain.config.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The function.
    pub function: LossFn,
    /// Its settings. Default: none.
    pub config: LossConfig,
}

impl Loss {
    /// Adds a setting.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<LossConfigValue>) -> Self {
        self.config.insert(name.into(), value.into());
        self
    }

    /// Checks that its settings can be written down. Loops call this before they begin.
    ///
    /// # Errors
    ///
    /// If a number is not finite.
    pub fn validate(&self) -> Result<()> {
        for (name, value) in &self.config {
            if let LossConfigValue::Number(number) = value
                && !number.is_finite()
            {
                let field = format!("loss_fn_config.{name}");
                return Err(Error::invalid(
                    field,
                    format!("must be finite, got {number}"),
                ));
            }
        }
        Ok(())
    }
}

impl From<LossFn> for Loss {
    fn from(function: LossFn) -> Self {
        Self {
            function,
            config: LossConfig::new(),
        }
    }
}

/// The answer to an optimiser step.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStepResponse {
    /// What the service measured, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<BTreeMap<String, f64>>,
}

/// Where a training checkpoint was saved.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveWeightsResponse {
    /// Its path.
    pub path: String,
}

/// Where weights for sampling were saved: under a path if they were named, otherwise as a
/// sampling session.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveWeightsForSamplerResponse {
    /// Their path, if they were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The sampling session that uses them, if they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_id: Option<SamplingSessionId>,
}

/// Where weights for other programs were saved.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaveWeightsExternalResponse {
    /// Their path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Their size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// The answer to loading weights.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadWeightsResponse {
    /// The path they were loaded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The model they were loaded into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ModelId>,
}

/// What the service knows about a model being trained.
#[doc(alias = "GetInfoResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its id.
    pub model_id: ModelId,
    /// Its architecture, name and tokenizer.
    pub model_data: ModelData,
    /// The optimiser it was created with.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    /// Whether it trains an adapter.
    #[serde(default)]
    pub is_lora: Option<bool>,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// The model's name.
    #[serde(default)]
    pub model_name: Option<String>,
}

/// The architecture, name and tokenizer of a model.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelData {
    /// The architecture.
    #[serde(default)]
    pub arch: Option<String>,
    /// The model's name.
    #[serde(default)]
    pub model_name: Option<String>,
    /// The tokenizer's id, where it is not that of the model's name.
    #[serde(default)]
    pub tokenizer_id: Option<String>,
}

/// What is needed to continue from a checkpoint.
#[doc(alias = "WeightsInfoResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfo {
    /// The model it was trained from.
    pub base_model: String,
    /// The optimiser it was trained with.
    #[serde(default)]
    pub optimizer_config: OptimizerConfig,
    /// Whether it is an adapter.
    pub is_lora: bool,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// Whether the unembedding layer has an adapter.
    #[serde(default)]
    pub train_unembed: Option<bool>,
    /// Whether the MLP layers have adapters.
    #[serde(default)]
    pub train_mlp: Option<bool>,
    /// Whether the attention layers have adapters.
    #[serde(default)]
    pub train_attn: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_or_texts() {
        let loss = LossFn::Custom.with("loss_id", "L-1").with("beta", 2);
        assert_eq!(
            serde_json::to_string(&loss.config).unwrap(),
            r#"{"beta":2.0,"loss_id":"L-1"}"#
        );
        let infinite = LossFn::Ppo.with("clip", f64::INFINITY);
        let error = serde_json::to_string(&infinite.config).unwrap_err();
        assert!(error.to_string().contains("must be finite"), "{error}");
    }

    #[test]
    fn an_input_that_no_loss_reads_is_found() {
        let check = |loss: LossFn, names: &[&str], expected: Option<&str>| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(loss.misspelt(names.iter()), expected);
        };
        check(LossFn::CrossEntropy, &["target_tokens", "weights"], None);
        check(
            LossFn::CrossEntropy,
            &["target_tokens", "weight"],
            Some("weight"),
        );
        check(LossFn::Ppo, &["advantage", "logprobs"], Some("advantage"));
        // Some servers read the weights of every loss.
        check(LossFn::Ppo, &["advantages", "logprobs", "weights"], None);
        check(LossFn::Custom, &["mine"], None);
        check(LossFn::from("dppo"), &["mine"], None);
    }

    #[test]
    fn an_adapter_needs_a_rank_and_a_layer() {
        assert!(LoraConfig::rank(1).validate().is_ok());
        assert!(LoraConfig::rank(0).validate().is_err());
        let nothing = LoraConfig::rank(1)
            .with_train_attn(false)
            .with_train_mlp(false)
            .with_train_unembed(false);
        assert!(nothing.validate().is_err());
    }
}
