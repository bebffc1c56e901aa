//! Random numbers, weights and shapes, and models on threads of their own, for tests and for the shipped
//! model's recipe.

use std::path::Path;

use crate::error::Result;
use crate::local::engine::inside::{
    Activation, AfterNorms, Base, Bias, Config, Family, HeadNorms, Layer, LayerKind, LoraSpec,
    Matrix, Projection, Rng, Rope, Threads, Usual, Weights,
};

impl Rng {
    /// A whole number in `[0, limit)`; `limit` must not be 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    /// A standard normal number (Box-Muller).
    pub(crate) fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}

impl Config {
    /// The embedded byte-level model: 256 bytes and eight markers.
    pub(crate) fn tiny() -> Self {
        Self {
            family: Family::named("qwen3").expect("in the table"),
            vocab: 264,
            width: 96,
            layers: vec![
                LayerKind {
                    rope: Some(0),
                    window: None
                };
                3
            ],
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            rotary_dim: 32,
            mlp: 256,
            activation: Activation::Silu,
            norm_eps: 1e-6,
            query_scale: 32f32.sqrt().recip(),
            bias: Bias::default(),
            ropes: vec![Rope::plain(10_000.0)],
            tied_head: true,
            max_positions: 4096,
            eos: vec![257],
            usual: Usual::default(),
        }
    }
}

impl Weights {
    /// Random weights that depend on the seed alone.
    pub(crate) fn random(config: Config, seed: u64) -> Self {
        let mut tensors = 0;
        let mut matrix = |rows: usize, cols: usize, std: f32| {
            tensors += 1;
            let mut rng = Rng::stream(seed, tensors);
            Matrix::new(
                rows,
                cols,
                (0..rows * cols).map(|_| rng.normal() * std).collect(),
            )
        };
        let embed = matrix(config.vocab, config.width, 0.02);
        let head = (!config.tied_head).then(|| matrix(config.vocab, config.width, 0.02));
        let layers = (0..config.layers.len())
            .map(|_| Layer {
                projections: Projection::ALL.map(|projection| {
                    let (outputs, inputs) = projection.shape(&config);
                    matrix(outputs, inputs, (inputs as f32).sqrt().recip())
                }),
                biases: Projection::ALL.map(|projection| {
                    let outputs = projection.shape(&config).0;
                    projection.has_bias(&config).then(|| vec![0.1; outputs])
                }),
                attention_norm: vec![1.0; config.width],
                mlp_norm: vec![1.0; config.width],
                head_norms: config.family.head_norms.then(|| HeadNorms {
                    q: vec![1.0; config.head_dim],
                    k: vec![1.0; config.head_dim],
                }),
                after_norms: config.family.after_norms.then(|| AfterNorms {
                    attention: vec![1.0; config.width],
                    mlp: vec![1.0; config.width],
                }),
            })
            .collect();
        Self {
            embed,
            layers,
            norm: vec![1.0; config.width],
            head,
            rotaries: config.rotaries(),
            config,
        }
    }
}

impl LoraSpec {
    /// Every matrix, at this rank.
    pub(crate) fn new(rank: usize, seed: u64) -> Self {
        Self {
            rank,
            seed,
            attn: true,
            mlp: true,
            unembed: true,
        }
    }
}

/// The number is of threads; 0 means one per core.
impl Base {
    pub(crate) fn new(weights: Weights, threads: usize) -> Result<Self> {
        Ok(Self::on(&Threads::new(threads)?, weights))
    }

    pub(crate) fn builtin(threads: usize) -> Result<Self> {
        Self::new(Weights::builtin()?, threads)
    }

    pub(crate) fn load(folder: &Path, threads: usize) -> Result<Self> {
        Self::new(Weights::load(folder)?, threads)
    }

    pub(crate) fn load_gguf(path: &Path, threads: usize) -> Result<Self> {
        Self::new(Weights::load_gguf(path)?, threads)
    }
}
