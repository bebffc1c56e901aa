//! The shape of a decoder, read from a checkpoint's `config.json`.

use serde::Deserialize;

use super::decode::MAX_HEAD;
use super::family::{Activation, Family, Windows};
use super::rope::{RawRope, Rope, Rotary};
use crate::error::{Context, Error, Result};

/// The shape of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) family: &'static Family,
    pub(crate) vocab: usize,
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Channels of a head that are rotated; the rest know nothing of positions.
    pub(crate) rotary_dim: usize,
    pub(crate) mlp: usize,
    pub(crate) activation: Activation,
    pub(crate) norm_eps: f32,
    /// What scores are multiplied by.
    pub(crate) query_scale: f32,
    pub(crate) bias: Bias,
    /// The rotary positions there are; layers name theirs.
    pub(crate) ropes: Vec<Rope>,
    /// How each layer differs from the others.
    pub(crate) layers: Vec<LayerKind>,
    pub(crate) tied_head: bool,
    pub(crate) max_positions: usize,
    pub(crate) eos: Vec<u32>,
    pub(crate) usual: Usual,
}

/// How its makers recommend to sample from a model; what they do not mention is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
pub(crate) struct Usual {
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) top_k: Option<i64>,
}

/// Which projections have a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Bias {
    pub(crate) qkv: bool,
    pub(crate) output: bool,
    pub(crate) mlp: bool,
}

/// What one layer does its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LayerKind {
    /// Which of the rotary positions it uses, if any.
    pub(crate) rope: Option<usize>,
    /// How many positions it sees, its own among them.
    pub(crate) window: Option<usize>,
}

impl Config {
    /// Refuses tokens outside the vocabulary.
    ///
    /// # Errors
    ///
    /// Names the first token that is too large and its place.
    pub(crate) fn check_tokens(&self, field: &str, tokens: &[u32]) -> Result<()> {
        let vocab = self.vocab;
        match tokens.iter().position(|token| *token as usize >= vocab) {
            None => Ok(()),
            Some(index) => Err(Error::invalid(
                format!("{field}[{index}]"),
                format!(
                    "token {} is outside the vocabulary of {vocab}",
                    tokens[index]
                ),
            )),
        }
    }

    /// Reads a Hugging Face `config.json`, old spellings or new.
    ///
    /// # Errors
    ///
    /// Whatever this engine does not run is refused by name: other architectures, mixtures of
    /// experts, soft-capped logits, other rotary scalings, quantised weights.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let raw: Raw = serde_json::from_slice(json)
            .map_err(|error| Error::Config(Context::caused("config.json cannot be read", error)))?;
        let family = Family::named(&raw.model_type).ok_or_else(|| {
            let problem = format!(
                "`{}` is not supported, only {} are",
                raw.model_type,
                Family::names()
            );
            Error::invalid("model_type", problem)
        })?;
        raw.check()?;
        let heads = raw.num_attention_heads;
        let head_dim = match (raw.head_dim, family.scaled_embedding) {
            (Some(dim), _) => dim,
            (None, true) => 256,
            (None, false) => raw.hidden_size / heads.max(1),
        };
        let (ropes, layers) = raw.layers(family)?;
        let own_bias = raw.attention_bias;
        let config = Self {
            family,
            vocab: raw.vocab_size,
            width: raw.hidden_size,
            heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(heads),
            head_dim,
            rotary_dim: (head_dim as f64 * raw.rotated()) as usize,
            mlp: raw.intermediate_size,
            activation: raw.activation(family)?,
            norm_eps: raw.rms_norm_eps.unwrap_or(family.defaults.norm_eps),
            query_scale: match raw
                .query_pre_attn_scalar
                .filter(|_| family.scaled_embedding)
            {
                Some(scalar) => scalar.powf(-0.5) as f32,
                None if family.scaled_embedding => 0.0625,
                None => (head_dim as f32).sqrt().recip(),
            },
            bias: Bias {
                qkv: own_bias || family.qkv_bias,
                output: own_bias,
                mlp: raw.mlp_bias,
            },
            ropes,
            layers,
            tied_head: raw.tie_word_embeddings.unwrap_or(family.defaults.tied_head),
            max_positions: raw
                .max_position_embeddings
                .unwrap_or(family.defaults.max_positions),
            eos: raw
                .eos_token_id
                .map(OneOrMany::into_vec)
                .unwrap_or_default(),
            usual: Usual::default(),
        };
        config.validate()?;
        Ok(config)
    }

    /// Adds what `generation_config.json` says: more tokens that end a sequence, and how to sample.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub(crate) fn with_generation(mut self, json: &[u8]) -> Result<Self> {
        let generation: Generation = serde_json::from_slice(json).map_err(|error| {
            Error::Config(Context::caused("cannot read generation_config.json", error))
        })?;
        let ends = generation.eos_token_id.map(OneOrMany::into_vec);
        for end in ends.unwrap_or_default() {
            if !self.eos.contains(&end) {
                self.eos.push(end);
            }
        }
        self.usual = generation.usual;
        Ok(self)
    }

    /// Width of all query heads together.
    pub(crate) fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The tables of its rotary positions.
    pub(crate) fn rotaries(&self) -> Vec<Rotary> {
        let table = |rope: &Rope| rope.rotary(self.rotary_dim);
        self.ropes.iter().map(table).collect()
    }

    /// What embeddings are multiplied by.
    pub(crate) fn embed_scale(&self) -> f32 {
        match self.family.scaled_embedding {
            true => (self.width as f32).sqrt(),
            false => 1.0,
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab),
            ("hidden_size", self.width),
            ("num_hidden_layers", self.layers.len()),
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
        let rotated = self.rotary_dim;
        if rotated == 0 || !rotated.is_multiple_of(2) || rotated > self.head_dim {
            let problem = "must leave an even number of channels to rotate";
            return Err(Error::invalid("partial_rotary_factor", problem));
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err(Error::invalid("sliding_window", "must not be 0"));
        }
        Ok(())
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
    rms_norm_eps: Option<f32>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: Option<usize>,
    eos_token_id: Option<OneOrMany>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RopeParameters>,
    partial_rotary_factor: Option<f64>,
    #[serde(alias = "hidden_activation")]
    hidden_act: Option<String>,
    query_pre_attn_scalar: Option<f64>,
    final_logit_softcapping: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    #[serde(alias = "_sliding_window_pattern")]
    sliding_window_pattern: Option<usize>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    quantization_config: Option<serde_json::Value>,
}

/// Tells a setting that is null from one that is absent.
fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Newer versions keep all rotary settings here, by kind of layer where kinds differ.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RopeParameters {
    ByLayer {
        full_attention: Box<RawRope>,
        sliding_attention: Box<RawRope>,
    },
    One(Box<RawRope>),
}

/// `generation_config.json` as it is written.
#[derive(Debug, Deserialize)]
struct Generation {
    eos_token_id: Option<OneOrMany>,
    #[serde(flatten)]
    usual: Usual,
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
        let experts = self.num_experts.or(self.num_local_experts).unwrap_or(0) > 0;
        let refused = [
            (
                experts,
                "num_experts",
                "mixtures of experts are not supported",
            ),
            (
                self.final_logit_softcapping.is_some(),
                "final_logit_softcapping",
                "soft-capped logits are not supported",
            ),
            (
                self.attn_logit_softcapping.is_some(),
                "attn_logit_softcapping",
                "soft-capped attention is not supported",
            ),
            (
                self.quantization_config.is_some(),
                "quantization_config",
                "quantised folders are not supported (a GGUF file may be quantised)",
            ),
        ];
        match refused.iter().find(|(present, ..)| *present) {
            Some((_, field, problem)) => Err(Error::invalid(*field, *problem)),
            None => Ok(()),
        }
    }

    fn activation(&self, family: &Family) -> Result<Activation> {
        let Some(name) = &self.hidden_act else {
            return Ok(family.defaults.activation);
        };
        Activation::named(name).ok_or_else(|| {
            let problem = format!("`{name}` is not supported, only silu and gelu_pytorch_tanh are");
            Error::invalid("hidden_act", problem)
        })
    }

    /// The share of a head's channels that is rotated.
    fn rotated(&self) -> f64 {
        let new = match &self.rope_parameters {
            Some(RopeParameters::One(rope)) => rope.partial_rotary_factor,
            _ => None,
        };
        new.or(self.partial_rotary_factor).unwrap_or(1.0)
    }

    /// The rotary positions there are, and what each layer does with them.
    fn layers(&self, family: &Family) -> Result<(Vec<Rope>, Vec<LayerKind>)> {
        let windows = self.windows(family)?;
        let (far, near) = self.ropes(family)?;
        let local = usize::from(near.is_some());
        let kinds = (0..self.num_hidden_layers)
            .map(|layer| LayerKind {
                rope: self.has_rope(layer).then_some(if windows[layer].is_some() {
                    local
                } else {
                    0
                }),
                window: windows[layer],
            })
            .collect();
        Ok(([Some(far), near].into_iter().flatten().collect(), kinds))
    }

    /// The rotary positions of most layers, and those of layers with a window where they differ.
    fn ropes(&self, family: &Family) -> Result<(Rope, Option<Rope>)> {
        let positions = self
            .max_position_embeddings
            .unwrap_or(family.defaults.max_positions);
        let rope = |raw: Option<&RawRope>, theta: f64| {
            Ok::<_, Error>(Rope {
                theta: raw.and_then(|raw| raw.rope_theta).unwrap_or(theta),
                scaling: raw.cloned().unwrap_or_default().scaling(positions)?,
            })
        };
        let theta = self.rope_theta.unwrap_or(family.defaults.rope_theta);
        let local = self.rope_local_base_freq.unwrap_or(10_000.0);
        let differ = family.windows == Windows::Pattern;
        match &self.rope_parameters {
            Some(RopeParameters::ByLayer {
                full_attention,
                sliding_attention,
            }) => Ok((
                rope(Some(full_attention), theta)?,
                Some(rope(Some(sliding_attention), local)?),
            )),
            Some(RopeParameters::One(raw)) => {
                Ok((rope(Some(raw), theta)?, differ.then(|| Rope::plain(local))))
            }
            None => Ok((
                rope(self.rope_scaling.as_ref(), theta)?,
                differ.then(|| Rope::plain(local)),
            )),
        }
    }

    /// Whether a layer rotates at all.
    fn has_rope(&self, layer: usize) -> bool {
        if self.model_type != "smollm3" {
            return true;
        }
        match &self.no_rope_layers {
            Some(layers) => layers.get(layer).is_none_or(|rotates| *rotates != 0),
            None => !(layer + 1).is_multiple_of(self.no_rope_layer_interval.unwrap_or(4).max(1)),
        }
    }

    /// How many positions each layer sees.
    fn windows(&self, family: &Family) -> Result<Vec<Option<usize>>> {
        let window = self
            .sliding_window
            .unwrap_or(family.defaults.sliding_window);
        let slides = |layer: usize| match family.windows {
            Windows::Never => false,
            Windows::Every => true,
            Windows::FromLayer => {
                self.use_sliding_window && layer >= self.max_window_layers.unwrap_or(28)
            }
            Windows::Pattern => {
                !(layer + 1).is_multiple_of(self.sliding_window_pattern.unwrap_or(6).max(1))
            }
            Windows::WithoutRope => self.use_sliding_window && !self.has_rope(layer),
        };
        let Some(types) = &self.layer_types else {
            return Ok((0..self.num_hidden_layers)
                .map(|layer| window.filter(|_| slides(layer)))
                .collect());
        };
        if types.len() != self.num_hidden_layers {
            let problem = format!("names {} of {} layers", types.len(), self.num_hidden_layers);
            return Err(Error::invalid("layer_types", problem));
        }
        let kinds = types.iter().map(|kind| match kind.as_str() {
            "full_attention" => Ok(None),
            "sliding_attention" => window.map(Some).ok_or_else(|| {
                Error::invalid("sliding_window", "is missing, though layer_types needs it")
            }),
            other => Err(Error::invalid(
                "layer_types",
                format!("`{other}` is not supported, only full_attention and sliding_attention"),
            )),
        });
        kinds.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::rope::Scaling;
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
        assert_eq!(
            (&old.ropes[..], old.head_dim),
            (&[Rope::plain(5e5)][..], 24)
        );
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
        assert!(matches!(
            old.ropes[0].scaling,
            Scaling::Llama3 {
                original_positions: 8192.0,
                ..
            }
        ));
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
        check(r#", "num_experts": 8"#, "mixtures of experts");
        check(r#", "num_local_experts": 8"#, "mixtures of experts");
        check(r#", "final_logit_softcapping": 30.0"#, "soft-capped logits");
        check(
            r#", "attn_logit_softcapping": 50.0"#,
            "soft-capped attention",
        );
        check(
            r#", "layer_types": ["full_attention", "linear_attention", "full_attention"]"#,
            "linear_attention",
        );
        check(r#", "layer_types": ["full_attention"]"#, "names 1 of 3");
        check(
            r#", "sliding_window": 0, "use_sliding_window": true, "max_window_layers": 0"#,
            "must not be 0",
        );
        check(
            r#", "rope_scaling": {"type": "longrope", "factor": 4.0}"#,
            "longrope",
        );
        check(r#", "rope_scaling": {"type": "linear"}"#, "is missing");
        check(
            r#", "partial_rotary_factor": 0.05"#,
            "even number of channels",
        );
        check(r#", "hidden_act": "gelu""#, "gelu");
        check(r#", "head_dim": 7"#, "must be even");
        check(r#", "quantization_config": {}"#, "quantised");
        let other = json("").replace("qwen3", "mamba");
        let message = Config::parse(other.as_bytes()).unwrap_err().to_string();
        assert!(message.contains("`mamba` is not supported"), "{message}");
    }

    /// Which layers rotate, and how much each sees, in every family's own way of saying so.
    #[test]
    fn layers_follow_the_family() {
        #[track_caller]
        fn check(family: &str, extra: &str, expected: [(Option<usize>, Option<usize>); 3]) {
            let json = json(extra).replace("qwen3", family);
            let layers = Config::parse(json.as_bytes()).unwrap().layers;
            let layers: Vec<_> = layers.iter().map(|kind| (kind.rope, kind.window)).collect();
            assert_eq!(layers, expected);
        }
        let plain = (Some(0), None);
        check("llama", r#", "sliding_window": 7"#, [plain; 3]);
        check(
            "qwen2",
            r#", "sliding_window": 7, "max_window_layers": 1"#,
            [plain; 3],
        );
        let window = (Some(0), Some(7));
        check(
            "qwen2",
            r#", "sliding_window": 7, "max_window_layers": 1, "use_sliding_window": true"#,
            [plain, window, window],
        );
        check("mistral", r#", "sliding_window": null"#, [plain; 3]);
        check("mistral", "", [(Some(0), Some(4096)); 3]);
        check("phi3", "", [plain; 3]);
        let local = (Some(1), Some(7));
        check(
            "gemma3_text",
            r#", "sliding_window": 7, "sliding_window_pattern": 3"#,
            [local, local, plain],
        );
        check(
            "gemma3_text",
            r#", "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention", "full_attention"]"#,
            [plain, local, plain],
        );
        check(
            "smollm3",
            r#", "no_rope_layers": [1, 0, 1]"#,
            [plain, (None, None), plain],
        );
        check(
            "smollm3",
            r#", "no_rope_layer_interval": 3"#,
            [plain, plain, (None, None)],
        );
    }
}
