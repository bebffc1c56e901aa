//! GGUF files as models: the shape from their values, the weights from their tensors.

use std::collections::HashMap;
use std::path::Path;

use super::assemble::TensorSource;
use super::config::{Bias, Config, LayerKind, Usual};
use super::family::{FAMILIES, Family, Windows};
use super::mapping::{Mapping, Section};
use super::matrix::{Matrix, Order};
use super::model::Weights;
use super::quant::{Dtype, widen};
use super::rope::{Rope, Scaling};
use crate::error::{Error, Result};
use crate::gguf::Gguf;

impl Weights {
    /// Loads a GGUF file, quantised or not; the numbers stay in the file and are widened when
    /// used.
    ///
    /// # Errors
    ///
    /// If the file is damaged, or of an architecture or a type this engine does not run; the
    /// message names the value or the tensor.
    pub(crate) fn load_gguf(path: &Path) -> Result<Self> {
        let file = Gguf::open(path)?;
        let tensors = Tensors::index(&file, &Mapping::open(path)?)?;
        let config = tensors.config(&file)?;
        Self::assemble(config, &tensors)
    }
}

/// Every tensor of a file, by name.
struct Tensors {
    by_name: HashMap<String, Tensor>,
    family: &'static Family,
    head_dim: usize,
}

struct Tensor {
    section: Section,
    dtype: Dtype,
    /// The slowest-running dimension first.
    shape: Vec<usize>,
}

impl Tensors {
    fn index(file: &Gguf, mapping: &Mapping) -> Result<Self> {
        let architecture = file.text("general.architecture").unwrap_or_default();
        let family = FAMILIES
            .iter()
            .find(|family| !family.gguf.is_empty() && family.gguf == architecture)
            .ok_or_else(|| {
                let known: Vec<&str> = FAMILIES.iter().map(|family| family.gguf).collect();
                let problem = format!(
                    "`{architecture}` is not supported, only {} are",
                    known
                        .join(" ")
                        .split_whitespace()
                        .collect::<Vec<_>>()
                        .join(", ")
                );
                Error::invalid("general.architecture", problem)
            })?;
        let mut by_name = HashMap::new();
        for info in file.tensors() {
            let tensor = Tensor::locate(info, file.data_start(), mapping)
                .map_err(|problem| Error::invalid(&info.name, problem))?;
            by_name.insert(info.name.clone(), tensor);
        }
        let value = |name: &str| {
            let name = format!("{}.{name}", family.gguf);
            file.whole(&name).map(|number| number as usize)
        };
        let heads = value("attention.head_count").unwrap_or(1).max(1);
        let head_dim = value("attention.key_length")
            .unwrap_or_else(|| value("embedding_length").unwrap_or(0) / heads);
        Ok(Self {
            by_name,
            family,
            head_dim,
        })
    }

    /// The shape of the model.
    fn config(&self, file: &Gguf) -> Result<Config> {
        let family = self.family;
        let key = |name: &str| format!("{}.{name}", family.gguf);
        let need = |name: &str| {
            let found = file.whole(&key(name)).map(|number| number as usize);
            found.ok_or_else(|| Error::invalid(key(name), "is missing from the GGUF file"))
        };
        let refuse = |name: &str, problem: &str| Err(Error::invalid(key(name), problem));
        if file.whole(&key("expert_count")).unwrap_or(0) > 0 {
            return refuse("expert_count", "mixtures of experts are not supported");
        }
        if file.number(&key("final_logit_softcapping")).unwrap_or(0.0) != 0.0 {
            let problem = "soft-capped logits are not supported";
            return refuse("final_logit_softcapping", problem);
        }
        let heads = need("attention.head_count")?;
        let head_dim = self.head_dim;
        let vocab = self.embedding_rows()?;
        let positions = need("context_length")?;
        let query = match family.scaled_embedding {
            // The files do not say; only the 27B model has another value than the head's width.
            true if need("block_count")? == 62 => need("embedding_length")? / heads.max(1),
            _ => head_dim,
        };
        let (ropes, layers) = self.layers(file, need("block_count")?, positions)?;
        let config = Config {
            family,
            vocab,
            width: need("embedding_length")?,
            heads,
            kv_heads: match file.whole(&key("attention.head_count_kv")) {
                Some(kv_heads) => kv_heads as usize,
                None => heads,
            },
            head_dim,
            rotary_dim: match file.whole(&key("rope.dimension_count")) {
                Some(rotated) => rotated as usize,
                None => head_dim,
            },
            mlp: need("feed_forward_length")?,
            activation: family.defaults.activation,
            norm_eps: file
                .number(&key("attention.layer_norm_rms_epsilon"))
                .map_or(family.defaults.norm_eps, |eps| eps as f32),
            query_scale: (query as f32).sqrt().recip(),
            bias: Bias {
                qkv: self.by_name.contains_key("blk.0.attn_q.bias"),
                output: self.by_name.contains_key("blk.0.attn_output.bias"),
                mlp: self.by_name.contains_key("blk.0.ffn_down.bias"),
            },
            ropes,
            layers,
            tied_head: !self.by_name.contains_key("output.weight"),
            max_positions: positions,
            eos: self.eos(file),
            usual: Usual::default(),
        };
        config.validate()?;
        Ok(config)
    }

    /// The tokens that end a text or a turn.
    fn eos(&self, file: &Gguf) -> Vec<u32> {
        let names = ["eos_token_id", "eot_token_id", "eom_token_id"];
        let ids = names.iter().filter_map(|name| {
            let id = file.whole(&format!("tokenizer.ggml.{name}"))?;
            u32::try_from(id).ok()
        });
        let mut eos = Vec::new();
        for id in ids {
            if !eos.contains(&id) {
                eos.push(id);
            }
        }
        eos
    }

    fn embedding_rows(&self) -> Result<usize> {
        let embedding = self.get("token_embd.weight")?;
        match embedding.shape[..] {
            [rows, _] => Ok(rows),
            _ => Err(Error::invalid("token_embd.weight", "is no matrix")),
        }
    }

    fn layers(
        &self,
        file: &Gguf,
        count: usize,
        positions: usize,
    ) -> Result<(Vec<Rope>, Vec<LayerKind>)> {
        let family = self.family;
        let key = |name: &str| format!("{}.{name}", family.gguf);
        let theta = file
            .number(&key("rope.freq_base"))
            .unwrap_or(family.defaults.rope_theta);
        let scaling = self.scaling(file, positions)?;
        let window = file
            .whole(&key("attention.sliding_window"))
            .map(|window| window as usize)
            .filter(|window| *window > 0);
        let kind = |layer: usize| match family.windows {
            Windows::Pattern if !(layer + 1).is_multiple_of(6) => LayerKind {
                rope: Some(1),
                window,
            },
            Windows::WithoutRope => LayerKind {
                rope: (!(layer + 1).is_multiple_of(4)).then_some(0),
                window: None,
            },
            Windows::Every => LayerKind {
                rope: Some(0),
                window,
            },
            _ => LayerKind {
                rope: Some(0),
                window: None,
            },
        };
        let mut ropes = vec![Rope { theta, scaling }];
        if family.windows == Windows::Pattern {
            ropes.push(Rope::plain(10_000.0));
        }
        Ok((ropes, (0..count.min(1 << 16)).map(kind).collect()))
    }

    fn scaling(&self, file: &Gguf, positions: usize) -> Result<Scaling> {
        let key = |name: &str| format!("{}.rope.scaling.{name}", self.family.gguf);
        let number = |name: &str| file.number(&key(name));
        if let Some(tensor) = self.by_name.get("rope_freqs.weight") {
            let mut factors = vec![0.0; tensor.shape.iter().product()];
            widen(tensor.section.bytes(), tensor.dtype, &mut factors);
            return Ok(Scaling::Factors(factors));
        }
        match file.text(&key("type")) {
            None | Some("none") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear {
                factor: number("factor")
                    .filter(|factor| *factor > 0.0)
                    .unwrap_or(1.0),
            }),
            Some("yarn") => {
                let factor = number("factor")
                    .filter(|factor| *factor > 0.0)
                    .unwrap_or(1.0);
                let attention = number("attn_factor").unwrap_or(1.0);
                Ok(Scaling::Yarn {
                    factor,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    original_positions: number("original_context_length")
                        .unwrap_or(positions as f64),
                    truncate: true,
                    attention: attention * (0.1 * factor.max(1.0).ln() + 1.0),
                })
            }
            Some(other) => Err(Error::invalid(
                key("type"),
                format!("`{other}` is not supported, only none, linear and yarn are"),
            )),
        }
    }

    fn get(&self, name: &str) -> Result<&Tensor> {
        self.by_name
            .get(name)
            .ok_or_else(|| Error::invalid(name, "is missing from the GGUF file"))
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.get(name)?;
        if tensor.shape != shape {
            let problem = format!(
                "has the shape {:?}, but the file's values say {shape:?}",
                tensor.shape
            );
            return Err(Error::invalid(name, problem));
        }
        Ok(tensor)
    }
}

impl Tensor {
    fn locate(
        info: &crate::gguf::TensorInfo,
        start: u64,
        mapping: &Mapping,
    ) -> Result<Self, String> {
        let dtype = Dtype::from_ggml(info.kind).ok_or_else(|| {
            format!(
                "is stored as ggml type {}; only F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K \
                 are read",
                info.kind
            )
        })?;
        let mut shape = Vec::new();
        for dimension in info.dimensions.iter().rev() {
            shape.push(usize::try_from(*dimension).map_err(|_| "is too large".to_owned())?);
        }
        let width = *shape.last().unwrap_or(&1);
        let numbers = shape
            .iter()
            .try_fold(1usize, |all, size| all.checked_mul(*size));
        let numbers = numbers.filter(|numbers| *numbers < 1 << 40);
        let numbers = numbers.ok_or_else(|| "is too large".to_owned())?;
        if !width.is_multiple_of(dtype.block().0) {
            return Err(format!("has rows of {width}, no whole number of blocks"));
        }
        let start = start.checked_add(info.offset);
        let start = start.and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(dtype.bytes(numbers)));
        match (start, end) {
            (Some(start), Some(end)) if end <= mapping.bytes().len() => Ok(Self {
                section: mapping.section(start..end),
                dtype,
                shape,
            }),
            _ => Err("lies beyond the end of the file".to_owned()),
        }
    }
}

impl TensorSource for Tensors {
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let name = ggml_name(name, self.family);
        let tensor = self.shaped(&name, &[rows, cols])?;
        let turned = self.family.gguf_interleaved
            && (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight"));
        let order = match turned {
            true => Order::Interleaved(self.head_dim),
            false => Order::Plain,
        };
        let section = tensor.section.clone();
        Ok(Matrix::mapped(rows, cols, section, tensor.dtype, order))
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let name = ggml_name(name, self.family);
        let tensor = self.shaped(&name, &[len])?;
        let mut out = vec![0.0; len];
        widen(tensor.section.bytes(), tensor.dtype, &mut out);
        let turned = self.family.gguf_interleaved
            && (name.ends_with("attn_q.bias") || name.ends_with("attn_k.bias"));
        if turned {
            let order = Order::Interleaved(self.head_dim);
            out = (0..len).map(|row| out[order.place(row)]).collect();
        }
        Ok(out)
    }

    /// The converter has added the 1.
    fn norms_from_one(&self, _: &Config) -> bool {
        false
    }
}

/// ggml's name of a tensor that transformers calls `name`.
pub(crate) fn ggml_name(name: &str, family: &Family) -> String {
    let renamed = match name {
        "model.embed_tokens.weight" => "token_embd.weight",
        "model.norm.weight" => "output_norm.weight",
        "lm_head.weight" => "output.weight",
        _ => "",
    };
    if !renamed.is_empty() {
        return renamed.to_owned();
    }
    let mut parts = name.splitn(4, '.').skip(2);
    let (layer, rest) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let (module, kind) = rest.rsplit_once('.').unwrap_or((rest, "weight"));
    let module = match module {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" if family.after_norms => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        other => other,
    };
    format!("blk.{layer}.{module}.{kind}")
}
