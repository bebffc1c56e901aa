//! Rotary positions: frequencies and their stretching for long contexts.

use std::f64::consts::TAU;

use serde::Deserialize;

use crate::error::{Error, Result};

/// The rotary positions of some layers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rope {
    pub(crate) theta: f64,
    pub(crate) scaling: Scaling,
}

/// How frequencies are changed for contexts longer than the model first saw.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scaling {
    None,
    /// Every position counts as a fraction of one.
    Linear {
        factor: f64,
    },
    /// Llama 3: long wavelengths are stretched, short ones kept, those between blended.
    Llama3 {
        factor: f64,
        low_frequency: f64,
        high_frequency: f64,
        original_positions: f64,
    },
    /// YaRN: the same by channel instead of by wavelength, and attention is sharpened.
    Yarn {
        factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        original_positions: f64,
        /// Whether the blended channels begin and end at whole ones.
        truncate: bool,
        attention: f64,
    },
    /// A divisor for each pair of channels, as GGUF files carry them.
    Factors(Vec<f32>),
}

/// Inverse frequencies, one per rotated pair of channels, and what cosines and sines are
/// multiplied by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rotary {
    pub(crate) frequencies: Vec<f32>,
    pub(crate) factor: f32,
}

impl Rope {
    /// Plain rotary positions.
    pub(crate) fn plain(theta: f64) -> Self {
        Self {
            theta,
            scaling: Scaling::None,
        }
    }

    /// The table for heads of which `dim` channels are rotated.
    pub(crate) fn rotary(&self, dim: usize) -> Rotary {
        let frequency = |pair: usize| self.theta.powf(-2.0 * pair as f64 / dim as f64);
        let scaled = |pair: usize| self.scaling.scale(pair, dim, self.theta, frequency(pair));
        Rotary {
            frequencies: (0..dim / 2).map(|pair| scaled(pair) as f32).collect(),
            factor: match self.scaling {
                Scaling::Yarn { attention, .. } => attention as f32,
                _ => 1.0,
            },
        }
    }
}

impl Scaling {
    fn scale(&self, pair: usize, dim: usize, theta: f64, frequency: f64) -> f64 {
        match *self {
            Self::Factors(ref factors) => match factors.get(pair) {
                Some(factor) => frequency / f64::from(*factor),
                None => frequency,
            },
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_frequency,
                high_frequency,
                original_positions,
            } => {
                let wavelength = TAU / frequency;
                if wavelength < original_positions / high_frequency {
                    frequency
                } else if wavelength > original_positions / low_frequency {
                    frequency / factor
                } else {
                    let blend = (original_positions / wavelength - low_frequency)
                        / (high_frequency - low_frequency);
                    (1.0 - blend) * frequency / factor + blend * frequency
                }
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_positions,
                truncate,
                ..
            } => {
                let channel = |rotations: f64| {
                    dim as f64 * (original_positions / (rotations * TAU)).ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (channel(beta_fast), channel(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                // Equal ends would divide by zero; transformers moves them apart by as much.
                let span = if low == high { 0.001 } else { high - low };
                let stretched = ((pair as f64 - low) / span).clamp(0.0, 1.0);
                frequency / factor * stretched + frequency * (1.0 - stretched)
            }
        }
    }
}

/// `rope_scaling` or `rope_parameters` of a `config.json`, in any version's spelling.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct RawRope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    pub(crate) rope_theta: Option<f64>,
    pub(crate) partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

impl RawRope {
    /// What the settings mean.
    ///
    /// # Errors
    ///
    /// If a kind of scaling is not run here or lacks a setting; the message names it.
    pub(crate) fn scaling(&self, max_positions: usize) -> Result<Scaling> {
        let need = |value: Option<f64>, name: &str| match value {
            Some(value) if value.is_finite() && value > 0.0 => Ok(value),
            Some(value) => Err(Error::invalid(
                format!("rope_scaling.{name}"),
                format!("must be a positive number, got {value}"),
            )),
            None => Err(Error::invalid(format!("rope_scaling.{name}"), "is missing")),
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(Scaling::None),
            Some("linear") => Ok(Scaling::Linear {
                factor: need(self.factor, "factor")?,
            }),
            Some("llama3") => Ok(Scaling::Llama3 {
                factor: need(self.factor, "factor")?,
                low_frequency: need(self.low_freq_factor, "low_freq_factor")?,
                high_frequency: need(self.high_freq_factor, "high_freq_factor")?,
                original_positions: need(
                    self.original_max_position_embeddings,
                    "original_max_position_embeddings",
                )?,
            }),
            Some("yarn") => {
                let original = self
                    .original_max_position_embeddings
                    .unwrap_or(max_positions as f64);
                let factor = match self.factor {
                    None => {
                        max_positions as f64
                            / need(Some(original), "original_max_position_embeddings")?
                    }
                    given => need(given, "factor")?,
                };
                Ok(Scaling::Yarn {
                    factor,
                    beta_fast: need(self.beta_fast.or(Some(32.0)), "beta_fast")?,
                    beta_slow: need(self.beta_slow.or(Some(1.0)), "beta_slow")?,
                    original_positions: need(Some(original), "original_max_position_embeddings")?,
                    truncate: self.truncate.unwrap_or(true),
                    attention: self.attention(factor),
                })
            }
            Some(other) => Err(Error::invalid(
                "rope_scaling.rope_type",
                format!("`{other}` is not supported, only default, linear, llama3 and yarn are"),
            )),
        }
    }

    /// How much YaRN sharpens attention.
    fn attention(&self, factor: f64) -> f64 {
        let strength = |by: f64| match factor > 1.0 {
            true => 0.1 * by * factor.ln() + 1.0,
            false => 1.0,
        };
        let set = |value: Option<f64>| value.filter(|value| *value != 0.0);
        match (
            self.attention_factor,
            set(self.mscale),
            set(self.mscale_all_dim),
        ) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all)) => strength(mscale) / strength(all),
            _ => strength(1.0),
        }
    }
}
