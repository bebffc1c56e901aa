//! A decoder put together from named tensors, wherever they are kept.

use super::config::Config;
use super::matrix::Matrix;
use super::model::{AfterNorms, HeadNorms, Layer, Projection, Weights};
use crate::error::Result;

/// Tensors by the names transformers gives them.
pub(crate) trait TensorSource {
    /// A matrix, `[outputs, inputs]`.
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix>;

    /// A short vector, widened.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>>;

    /// Whether norm weights are stored as their distance from 1.
    fn norms_from_one(&self, config: &Config) -> bool;
}

impl Weights {
    /// Takes every tensor of the decoder from a source.
    ///
    /// # Errors
    ///
    /// If a tensor is missing, damaged, or has another shape or type than the configuration says.
    pub(crate) fn assemble(config: Config, source: &dyn TensorSource) -> Result<Self> {
        let width = config.width;
        let parts = Parts {
            config: &config,
            source,
        };
        let layers = (0..config.layers.len())
            .map(|layer| parts.layer(&format!("model.layers.{layer}")))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            embed: source.matrix("model.embed_tokens.weight", config.vocab, width)?,
            norm: parts.norm("model.norm", width)?,
            head: match config.tied_head {
                true => None,
                false => Some(source.matrix("lm_head.weight", config.vocab, width)?),
            },
            layers,
            rotaries: config.rotaries(),
            config,
        })
    }
}

struct Parts<'a> {
    config: &'a Config,
    source: &'a dyn TensorSource,
}

impl Parts<'_> {
    fn layer(&self, prefix: &str) -> Result<Layer> {
        let (config, family) = (self.config, self.config.family);
        let (width, dim) = (config.width, config.head_dim);
        let norm = |name: &str, len: usize| self.norm(&format!("{prefix}.{name}"), len);
        let before_mlp = match family.after_norms {
            true => "pre_feedforward_layernorm",
            false => "post_attention_layernorm",
        };
        Ok(Layer {
            projections: match family.fused {
                true => self.fused(prefix)?,
                false => self.projections(prefix)?,
            },
            biases: self.biases(prefix)?,
            attention_norm: norm("input_layernorm", width)?,
            mlp_norm: norm(before_mlp, width)?,
            head_norms: match family.head_norms {
                false => None,
                true => Some(HeadNorms {
                    q: norm("self_attn.q_norm", dim)?,
                    k: norm("self_attn.k_norm", dim)?,
                }),
            },
            after_norms: match family.after_norms {
                false => None,
                true => Some(AfterNorms {
                    attention: norm("post_attention_layernorm", width)?,
                    mlp: norm("post_feedforward_layernorm", width)?,
                }),
            },
        })
    }

    fn projections(&self, prefix: &str) -> Result<[Matrix; 7]> {
        let one = |projection: Projection| {
            let (rows, cols) = projection.shape(self.config);
            let name = format!("{prefix}.{}.weight", projection.path());
            self.source.matrix(&name, rows, cols)
        };
        let all = Projection::ALL.into_iter().map(one);
        let all = all.collect::<Result<Vec<_>>>()?;
        Ok(all.try_into().expect("one for each of seven"))
    }

    /// The projections of a family that stores some of them as one.
    fn fused(&self, prefix: &str) -> Result<[Matrix; 7]> {
        let config = self.config;
        let (q, kv, mlp, width) = (
            config.q_width(),
            config.kv_width(),
            config.mlp,
            config.width,
        );
        let matrix = |name: &str, rows: usize, cols: usize| {
            self.source
                .matrix(&format!("{prefix}.{name}.weight"), rows, cols)
        };
        let qkv = matrix("self_attn.qkv_proj", q + 2 * kv, width)?;
        let gate_up = matrix("mlp.gate_up_proj", 2 * mlp, width)?;
        Ok([
            qkv.slice(0..q),
            qkv.slice(q..q + kv),
            qkv.slice(q + kv..q + 2 * kv),
            matrix("self_attn.o_proj", width, q)?,
            gate_up.slice(0..mlp),
            gate_up.slice(mlp..2 * mlp),
            matrix("mlp.down_proj", width, mlp)?,
        ])
    }

    fn biases(&self, prefix: &str) -> Result<[Option<Vec<f32>>; 7]> {
        let mut biases = [const { None }; 7];
        for projection in Projection::ALL {
            if projection.has_bias(self.config) {
                let name = format!("{prefix}.{}.bias", projection.path());
                let outputs = projection.shape(self.config).0;
                biases[projection as usize] = Some(self.source.vector(&name, outputs)?);
            }
        }
        Ok(biases)
    }

    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let mut norm = self.source.vector(&format!("{name}.weight"), len)?;
        if self.source.norms_from_one(self.config) {
            norm.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(norm)
    }
}
