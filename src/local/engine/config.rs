//! The shape of a decoder, read from a checkpoint's `config.json`.

use serde::{Deserialize, Serialize};

use super::decode::MAX_HEAD;
use crate::error::{Context, Error, Result};

/// The decoders this engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Family {
    /// Llama 3 and its relatives.
    Llama,
    /// Qwen 3: the same with a norm on every query and key head.
    Qwen3,
}

/// The shape of a Llama-like decoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) family: Family,
    pub(crate) vocab: usize,
    pub(crate) width: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) mlp: usize,
    pub(crate) norm_eps: f32,
    pub(crate) rope_theta: f64,
    pub(crate) rope_scaling: Option<RopeScaling>,
    pub(crate) tied_head: bool,
    pub(crate) max_positions: usize,
    pub(crate) eos: Vec<u32>,
}

/// The long-context frequencies of Llama 3.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeScaling {
    pub(crate) factor: f64,
    pub(crate) low_frequency: f64,
    pub(crate) high_frequency: f64,
    pub(crate) original_positions: f64,
}

impl Config {
    /// Reads a Hugging Face `config.json`, old spellings or new.
    ///
    /// # Errors
    ///
    /// Whatever this engine does not run is refused by name: other architectures, attention
    /// bias, mixtures of experts, sliding windows, other rotary scalings.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let raw: Raw = serde_json::from_slice(json)
            .map_err(|error| Error::Config(Context::caused("config.json cannot be read", error)))?;
        raw.check()?;
        let family = match raw.model_type.as_str() {
            "llama" => Family::Llama,
            _ => Family::Qwen3,
        };
        let (rope_theta, rope_scaling) = raw.rope()?;
        let config = Self {
            family,
            vocab: raw.vocab_size,
            width: raw.hidden_size,
            layers: raw.num_hidden_layers,
            heads: raw.num_attention_heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim: raw
                .head_dim
                .unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1)),
            mlp: raw.intermediate_size,
            norm_eps: raw.rms_norm_eps,
            rope_theta,
            rope_scaling,
            tied_head: raw.tie_word_embeddings,
            max_positions: raw.max_position_embeddings,
            eos: raw
                .eos_token_id
                .map(OneOrMany::into_vec)
                .unwrap_or_default(),
        };
        config.validate()?;
        Ok(config)
    }

    /// Inverse frequencies of the rotary positions, one per pair of channels.
    pub(crate) fn frequencies(&self) -> Vec<f32> {
        (0..self.head_dim / 2)
            .map(|pair| {
                let exponent = 2.0 * pair as f64 / self.head_dim as f64;
                let frequency = self.rope_theta.powf(-exponent);
                match &self.rope_scaling {
                    Some(scaling) => scaling.scale(frequency) as f32,
                    None => frequency as f32,
                }
            })
            .collect()
    }

    /// Width of all query heads together.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn validate(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab),
            ("hidden_size", self.width),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate_size", self.mlp),
        ];
        for (name, size) in sizes {
            if size == 0 || size > 1 << 24 {
                return Err(Error::invalid(
                    name,
                    format!("{size} is not a sensible size"),
                ));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::invalid(
                "num_key_value_heads",
                format!("{} does not divide {} heads", self.kv_heads, self.heads),
            ));
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim > MAX_HEAD {
            let problem = format!("must be even and at most {MAX_HEAD}");
            return Err(Error::invalid("head_dim", problem));
        }
        Ok(())
    }
}

impl RopeScaling {
    /// Llama 3's rule: long wavelengths are stretched, short ones kept, those between blended.
    fn scale(&self, frequency: f64) -> f64 {
        let wavelength = std::f64::consts::TAU / frequency;
        let longest = self.original_positions / self.low_frequency;
        let shortest = self.original_positions / self.high_frequency;
        if wavelength < shortest {
            frequency
        } else if wavelength > longest {
            frequency / self.factor
        } else {
            let blend = (self.original_positions / wavelength - self.low_frequency)
                / (self.high_frequency - self.low_frequency);
            (1.0 - blend) * frequency / self.factor + blend * frequency
        }
    }
}

/// `config.json` as written by any version of transformers.
#[derive(Debug, Deserialize)]
struct Raw {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "default_positions")]
    max_position_embeddings: usize,
    eos_token_id: Option<OneOrMany>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Rope>,
    rope_parameters: Option<Rope>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    layer_types: Option<Vec<String>>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

impl Raw {
    fn check(&self) -> Result<()> {
        let refuse = |field: &str, problem: String| Err(Error::invalid(field, problem));
        if !matches!(self.model_type.as_str(), "llama" | "qwen3") {
            let problem = format!(
                "`{}` is not supported, only llama and qwen3 are",
                self.model_type
            );
            return refuse("model_type", problem);
        }
        if self.attention_bias {
            return refuse(
                "attention_bias",
                "attention with bias is not supported".into(),
            );
        }
        if self.mlp_bias {
            return refuse("mlp_bias", "an MLP with bias is not supported".into());
        }
        if self.use_sliding_window {
            return refuse(
                "use_sliding_window",
                "sliding windows are not supported".into(),
            );
        }
        if let Some(kind) = self
            .layer_types
            .iter()
            .flatten()
            .find(|kind| *kind != "full_attention")
        {
            return refuse(
                "layer_types",
                format!("`{kind}` is not supported, only full_attention is"),
            );
        }
        if self
            .num_experts
            .or(self.num_local_experts)
            .is_some_and(|count| count > 0)
        {
            return refuse(
                "num_experts",
                "mixtures of experts are not supported".into(),
            );
        }
        if let Some(act) = self.hidden_act.as_ref().filter(|act| *act != "silu") {
            return refuse(
                "hidden_act",
                format!("`{act}` is not supported, only silu is"),
            );
        }
        if self.quantization_config.is_some() {
            return refuse(
                "quantization_config",
                "quantised weights are not supported".into(),
            );
        }
        Ok(())
    }

    fn rope(&self) -> Result<(f64, Option<RopeScaling>)> {
        let rope = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref());
        let theta = rope
            .and_then(|rope| rope.rope_theta)
            .or(self.rope_theta)
            .unwrap_or(10_000.0);
        let Some(rope) = rope else {
            return Ok((theta, None));
        };
        let missing = |name: &str| Error::invalid(format!("rope_scaling.{name}"), "is missing");
        match rope.rope_type.as_deref() {
            None | Some("default") => Ok((theta, None)),
            Some("llama3") => {
                let scaling = RopeScaling {
                    factor: rope.factor.ok_or_else(|| missing("factor"))?,
                    low_frequency: rope
                        .low_freq_factor
                        .ok_or_else(|| missing("low_freq_factor"))?,
                    high_frequency: rope
                        .high_freq_factor
                        .ok_or_else(|| missing("high_freq_factor"))?,
                    original_positions: rope
                        .original_max_position_embeddings
                        .ok_or_else(|| missing("original_max_position_embeddings"))?,
                };
                Ok((theta, Some(scaling)))
            }
            Some(other) => Err(Error::invalid(
                "rope_scaling.rope_type",
                format!("`{other}` is not supported, only default and llama3 are"),
            )),
        }
    }
}

fn default_eps() -> f32 {
    1e-6
}

fn default_positions() -> usize {
    2048
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(extra: &str) -> String {
        format!(
            r#"{{"model_type": "qwen3", "vocab_size": 264, "hidden_size": 96, "num_hidden_layers": 3,
                "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256 {extra}}}"#
        )
    }

    #[test]
    fn reads_old_and_new_spellings() {
        let old = json(r#", "rope_theta": 5e5, "torch_dtype": "bfloat16", "eos_token_id": 257"#);
        let new = json(
            r#", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16",
               "eos_token_id": [257]"#,
        );
        let old = Config::parse(old.as_bytes()).unwrap();
        assert_eq!(old, Config::parse(new.as_bytes()).unwrap());
        assert_eq!((old.rope_theta, old.head_dim), (5e5, 24));
        let factors = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3""#;
        let old = json(&format!(
            r#", "rope_theta": 5e5, "rope_scaling": {{{factors}}}"#
        ));
        let new = json(&format!(
            r#", "rope_parameters": {{"rope_theta": 5e5, {factors}}}"#
        ));
        let old = Config::parse(old.as_bytes()).unwrap();
        assert_eq!(old, Config::parse(new.as_bytes()).unwrap());
        assert_eq!(old.rope_scaling.unwrap().original_positions, 8192.0);
    }

    #[test]
    fn refuses_what_it_does_not_run_by_name() {
        #[track_caller]
        fn check(extra: &str, expected: &str) {
            let message = Config::parse(json(extra).as_bytes())
                .unwrap_err()
                .to_string();
            assert!(message.contains(expected), "{message}");
        }
        check(r#", "attention_bias": true"#, "attention with bias");
        check(r#", "mlp_bias": true"#, "an MLP with bias");
        check(r#", "num_experts": 8"#, "mixtures of experts");
        check(r#", "num_local_experts": 8"#, "mixtures of experts");
        check(r#", "use_sliding_window": true"#, "sliding windows");
        check(
            r#", "layer_types": ["sliding_attention"]"#,
            "sliding_attention",
        );
        check(
            r#", "rope_scaling": {"type": "yarn", "factor": 4.0}"#,
            "yarn",
        );
        check(r#", "hidden_act": "gelu""#, "gelu");
        check(r#", "head_dim": 7"#, "must be even");
        check(r#", "quantization_config": {}"#, "quantised");
        let other = json("").replace("qwen3", "mamba");
        let message = Config::parse(other.as_bytes()).unwrap_err().to_string();
        assert!(message.contains("`mamba` is not supported"), "{message}");
    }
}
