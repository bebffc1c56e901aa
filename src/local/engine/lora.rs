//! Low-rank adapters: what training changes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::config::Config;
use super::gemm::{View, product};
use super::linear::{Lora, Slot};
use super::matrix::Matrix;
use super::model::{Projection, Weights};
use super::pass::Gradients;
use super::rng::Rng;
use crate::error::{Error, Result};

/// The numerator of LoRA's scale: every adapter adds `ALPHA / rank * B A` to its weights.
///
/// A fixed numerator makes good learning rates nearly independent of the rank.
pub(crate) const ALPHA: f32 = 32.0;

/// Which weights an adapter corrects, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoraSpec {
    pub(crate) rank: usize,
    pub(crate) seed: u64,
    pub(crate) attn: bool,
    pub(crate) mlp: bool,
    pub(crate) unembed: bool,
}

/// A low-rank correction of a base model.
///
/// All parameters sit in one vector, so optimiser and checkpoints treat them as one; a clone is
/// a snapshot that further training leaves alone.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    spec: LoraSpec,
    parts: Arc<[Part]>,
    params: Vec<f32>,
    merged: OnceLock<Arc<Merged>>,
}

/// One corrected matrix and the place of its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) target: Target,
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// Place of `A`, `[rank, inputs]`.
    pub(crate) a: Range<usize>,
    /// Place of `B`, `[outputs, rank]`.
    pub(crate) b: Range<usize>,
}

/// A matrix that can be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Layer(usize, Projection),
    Head,
}

impl Target {
    /// The module path checkpoints use.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Layer(layer, projection) => format!("model.layers.{layer}.{}", projection.path()),
            Self::Head => "lm_head".to_owned(),
        }
    }
}

impl LoraSpec {
    /// Refuses ranks and selections that cannot be trained.
    ///
    /// # Errors
    ///
    /// If the rank is 0 or exceeds the model's width, or nothing is selected.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        if self.rank == 0 || self.rank > config.width {
            return Err(Error::invalid(
                "lora_config.rank",
                format!("must be between 1 and {}, got {}", config.width, self.rank),
            ));
        }
        if !(self.attn || self.mlp || self.unembed) {
            return Err(Error::invalid(
                "lora_config",
                "at least one of train_attn, train_mlp and train_unembed must be true",
            ));
        }
        Ok(())
    }

    /// Whether adapters of both have the same matrices; what they began with does not matter.
    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        let seed = other.seed;
        Self { seed, ..*self } == *other
    }

    /// How many parameters the adapter has.
    pub(crate) fn params(&self, config: &Config) -> usize {
        let targets = self.targets(config).into_iter();
        let part = |(_, outputs, inputs): (Target, usize, usize)| self.rank * (outputs + inputs);
        targets.map(part).sum()
    }

    fn targets(&self, config: &Config) -> Vec<(Target, usize, usize)> {
        let mut targets = Vec::new();
        for layer in 0..config.layers.len() {
            for projection in Projection::ALL {
                let wanted = if projection.is_attention() {
                    self.attn
                } else {
                    self.mlp
                };
                if wanted {
                    let (outputs, inputs) = projection.shape(config);
                    targets.push((Target::Layer(layer, projection), outputs, inputs));
                }
            }
        }
        if self.unembed {
            targets.push((Target::Head, config.vocab, config.width));
        }
        targets
    }
}

impl Adapter {
    /// A fresh adapter: `A` random from the seed, `B` zero, so the model is unchanged at first.
    ///
    /// # Errors
    ///
    /// See [`LoraSpec::check`].
    pub(crate) fn new(spec: LoraSpec, config: &Config) -> Result<Self> {
        let mut adapter = Self::zeros(spec, config)?;
        for (index, part) in adapter.parts.iter().enumerate() {
            let mut rng = Rng::stream(adapter.spec.seed, index as u64);
            let bound = 1.0 / (part.inputs as f64).sqrt();
            for value in &mut adapter.params[part.a.clone()] {
                *value = ((2.0 * rng.unit() - 1.0) * bound) as f32;
            }
        }
        Ok(adapter)
    }

    /// An adapter with every parameter 0, to be filled.
    ///
    /// # Errors
    ///
    /// See [`LoraSpec::check`].
    pub(crate) fn zeros(spec: LoraSpec, config: &Config) -> Result<Self> {
        spec.check(config)?;
        let mut end = 0;
        let mut place = |len: usize| {
            end += len;
            end - len..end
        };
        let parts: Arc<[Part]> = spec
            .targets(config)
            .into_iter()
            .map(|(target, outputs, inputs)| Part {
                target,
                outputs,
                inputs,
                a: place(spec.rank * inputs),
                b: place(outputs * spec.rank),
            })
            .collect();
        Ok(Self {
            spec,
            parts,
            params: vec![0.0; end],
            merged: OnceLock::new(),
        })
    }

    /// What it corrects.
    pub(crate) fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// The corrected matrices and where their parameters are.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// All parameters.
    pub(crate) fn params(&self) -> &[f32] {
        &self.params
    }

    /// All parameters, to be changed; forgets the merged weights.
    pub(crate) fn params_mut(&mut self) -> &mut [f32] {
        self.merged = OnceLock::new();
        &mut self.params
    }

    /// Memory it takes, with the merged weights if there are any.
    pub(crate) fn bytes(&self) -> usize {
        let merged = self.merged.get().map_or(0, |merged| merged.bytes());
        size_of_val(&self.params[..]) + merged
    }

    /// The factor before `B A`.
    pub(crate) fn scale(&self) -> f32 {
        ALPHA / self.spec.rank as f32
    }

    /// The correction of one projection.
    pub(crate) fn projection(&self, layer: usize, projection: Projection) -> Option<Lora<'_>> {
        self.find(Target::Layer(layer, projection))
    }

    /// The correction of the head.
    pub(crate) fn head(&self) -> Option<Lora<'_>> {
        self.find(Target::Head)
    }

    /// The base's corrected matrices, computed once per state of the parameters.
    pub(crate) fn merged(&self, weights: &Weights) -> &Merged {
        self.merged
            .get_or_init(|| Arc::new(Merged::new(self, weights)))
    }

    /// Empty gradient slots: whole matrices for a merged pass, else low-rank ones.
    pub(crate) fn slots(&self, config: &Config, unmerged: bool) -> Gradients {
        let mut gradients = Gradients::frozen(config);
        for part in self.parts.iter() {
            *gradients.slot(part.target) = if unmerged {
                Slot::Lora {
                    a: vec![0.0; part.a.len()],
                    b: vec![0.0; part.b.len()],
                }
            } else {
                Slot::Dense(vec![0.0; part.outputs * part.inputs])
            };
        }
        gradients
    }

    /// Adds gradients of a pass to a vector laid out like the parameters.
    ///
    /// A whole matrix's gradient `G` becomes `scale * Bᵀ G` for `A` and `scale * G Aᵀ` for `B`.
    pub(crate) fn collect(&self, gradients: &mut Gradients, out: &mut [f32]) {
        let (rank, scale) = (self.spec.rank, self.scale());
        for part in self.parts.iter() {
            let (outputs, inputs) = (part.outputs, part.inputs);
            match gradients.slot(part.target) {
                Slot::Frozen => {}
                Slot::Lora { a, b } => {
                    super::linear::add(&mut out[part.a.clone()], a);
                    super::linear::add(&mut out[part.b.clone()], b);
                }
                Slot::Dense(gradient) => {
                    let gradient = View::new(gradient, outputs, inputs);
                    let a = View::new(&self.params[part.a.clone()], rank, inputs);
                    let b = View::new(&self.params[part.b.clone()], outputs, rank);
                    product(
                        scale,
                        b.transposed(),
                        gradient,
                        1.0,
                        &mut out[part.a.clone()],
                        inputs,
                    );
                    product(
                        scale,
                        gradient,
                        a.transposed(),
                        1.0,
                        &mut out[part.b.clone()],
                        rank,
                    );
                }
            }
        }
    }

    fn find(&self, target: Target) -> Option<Lora<'_>> {
        let part = self.parts.iter().find(|part| part.target == target)?;
        Some(Lora {
            a: &self.params[part.a.clone()],
            b: &self.params[part.b.clone()],
            rank: self.spec.rank,
            scale: self.scale(),
        })
    }
}

/// A base's matrices with an adapter added in; those it leaves alone are absent.
#[derive(Debug)]
pub(crate) struct Merged {
    layers: Vec<[Option<Matrix>; 7]>,
    head: Option<Matrix>,
}

impl Merged {
    /// Models up to this many weights are merged; larger ones would cost too much memory.
    pub(crate) const LIMIT: usize = 8 << 20;

    fn new(adapter: &Adapter, weights: &Weights) -> Self {
        let mut merged = Self {
            layers: vec![[const { None }; 7]; weights.layers.len()],
            head: None,
        };
        let rank = adapter.spec.rank;
        for part in adapter.parts.iter() {
            let (base, place) = match part.target {
                Target::Layer(layer, projection) => {
                    let index = projection as usize;
                    (
                        &weights.layers[layer].projections[index],
                        &mut merged.layers[layer][index],
                    )
                }
                Target::Head => (weights.head(), &mut merged.head),
            };
            let mut sum = base.to_f32();
            let a = View::new(&adapter.params[part.a.clone()], rank, part.inputs);
            let b = View::new(&adapter.params[part.b.clone()], part.outputs, rank);
            product(adapter.scale(), b, a, 1.0, &mut sum, part.inputs);
            *place = Some(Matrix::new(part.outputs, part.inputs, sum));
        }
        merged
    }

    fn bytes(&self) -> usize {
        let matrices = self.layers.iter().flatten().flatten().chain(&self.head);
        matrices.map(|matrix| matrix.len() * size_of::<f32>()).sum()
    }

    /// The merged matrix of one projection, if the adapter corrects it.
    pub(crate) fn projection(&self, layer: usize, projection: Projection) -> Option<&Matrix> {
        self.layers[layer][projection as usize].as_ref()
    }

    /// The merged head, if the adapter corrects it.
    pub(crate) fn head(&self) -> Option<&Matrix> {
        self.head.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many numbers do not make the same matrices.
    #[test]
    fn shapes_are_told_apart_and_seeds_are_not() {
        let spec = LoraSpec {
            rank: 4,
            seed: 1,
            attn: true,
            mlp: false,
            unembed: false,
        };
        let other = |change: fn(&mut LoraSpec)| {
            let mut other = spec.clone();
            change(&mut other);
            spec.has_shape_of(&other)
        };
        assert!(other(|spec| spec.seed = 9));
        assert!(!other(|spec| spec.rank = 8));
        assert!(!other(|spec| (spec.attn, spec.mlp) = (false, true)));
        assert!(!other(|spec| spec.unembed = true));
    }
}
