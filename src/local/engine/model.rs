//! The base model: frozen weights shared by every adapter, and the threads that run them.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::awake::Awake;
use super::config::Config;
use super::linear::Linear;
use super::lora::{Adapter, Merged};
use super::matrix::Matrix;
use super::memory;
use super::panels::Rounding;
use super::rope::Rotary;
use super::scratch::Scratch;
use crate::error::{Context, Error, Result};
use crate::sync::lock;

/// A model's frozen weights, shared by every adapter on it, and the thread pool that runs it.
///
/// Cloning shares both. Calls may come from any plain thread; they queue for the pool's threads.
#[derive(Clone)]
pub(crate) struct Base {
    inner: Arc<Inner>,
}

struct Inner {
    weights: Weights,
    /// The same in fewer bits, if samples are drawn from them.
    quantised: Option<Weights>,
    threads: Threads,
    scratch: Mutex<Vec<Scratch>>,
}

/// The threads that compute; models may share them, so that no more cores are busy.
#[derive(Debug, Clone)]
pub(crate) struct Threads(Arc<rayon::ThreadPool>);

impl Threads {
    /// So many threads; 0 means one per core.
    ///
    /// # Errors
    ///
    /// If they cannot be started.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("tinker-engine-{index}"))
            .build()
            .map_err(|error| {
                Error::Internal(Context::caused("cannot start the engine's threads", error))
            })?;
        Ok(Self(Arc::new(pool)))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.current_num_threads()
    }
}

/// Every tensor of a decoder.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) config: Config,
    pub(crate) embed: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    /// `None` when the head is the embedding.
    pub(crate) head: Option<Matrix>,
    /// The tables of the configuration's rotary positions.
    pub(crate) rotaries: Vec<Rotary>,
}

/// One decoder layer.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) projections: [Matrix; 7],
    /// What projections add to their outputs; mostly nothing.
    pub(crate) biases: [Option<Vec<f32>>; 7],
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) after_norms: Option<AfterNorms>,
}

/// Norms on every query and key head.
#[derive(Debug, Clone)]
pub(crate) struct HeadNorms {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
}

/// Norms of what attention and MLP add to the stream.
#[derive(Debug, Clone)]
pub(crate) struct AfterNorms {
    pub(crate) attention: Vec<f32>,
    pub(crate) mlp: Vec<f32>,
}

/// The seven projections of a layer, in the order they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Projection {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Projection {
    /// All of them, in storage order.
    pub(crate) const ALL: [Self; 7] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// The module path checkpoints use.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// Whether it belongs to attention (else to the MLP).
    pub(crate) fn is_attention(self) -> bool {
        matches!(self, Self::Q | Self::K | Self::V | Self::O)
    }

    /// Whether it adds a bias.
    pub(crate) fn has_bias(self, config: &Config) -> bool {
        match self {
            Self::Q | Self::K | Self::V => config.bias.qkv,
            Self::O => config.bias.output,
            Self::Gate | Self::Up | Self::Down => config.bias.mlp,
        }
    }

    /// Outputs and inputs.
    pub(crate) fn shape(self, config: &Config) -> (usize, usize) {
        let (width, q, kv, mlp) = (
            config.width,
            config.q_width(),
            config.kv_width(),
            config.mlp,
        );
        match self {
            Self::Q => (q, width),
            Self::K | Self::V => (kv, width),
            Self::O => (width, q),
            Self::Gate | Self::Up => (mlp, width),
            Self::Down => (width, mlp),
        }
    }
}

impl Weights {
    /// The matrix that turns hidden states into logits.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// The same with its matrices in Q8_0, for sampling. What is only looked up stays as it is.
    fn quantised(&self) -> Self {
        let layer = |layer: &Layer| Layer {
            projections: layer.projections.each_ref().map(Matrix::quantised),
            ..layer.clone()
        };
        let tied = self.head.is_none();
        Self {
            config: self.config.clone(),
            embed: match tied {
                true => self.embed.quantised(),
                false => self.embed.clone(),
            },
            layers: self.layers.iter().map(layer).collect(),
            norm: self.norm.clone(),
            head: self.head.as_ref().map(Matrix::quantised),
            rotaries: self.rotaries.clone(),
        }
    }

    /// All matrices.
    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(|layer| &layer.projections);
        layers.chain(&self.head).chain([&self.embed])
    }

    /// Number of weights in all matrices.
    pub(crate) fn len(&self) -> usize {
        self.matrices().map(Matrix::len).sum()
    }
}

impl Base {
    /// Puts weights to work.
    pub(crate) fn on(threads: &Threads, weights: Weights) -> Self {
        Self {
            inner: Arc::new(Inner {
                weights,
                quantised: None,
                threads: threads.clone(),
                scratch: Mutex::default(),
            }),
        }
    }

    /// The same with samples drawn from weights in Q8_0. A small model stays as it is.
    ///
    /// # Panics
    ///
    /// If it is shared already.
    pub(crate) fn sampling_quantised(mut self) -> Self {
        let inner = Arc::get_mut(&mut self.inner).expect("a model is shared after it is placed");
        if inner.weights.len() > Merged::LIMIT {
            let weights = &inner.weights;
            inner.quantised = Some(inner.threads.0.install(|| weights.quantised()));
        }
        self
    }

    /// Whether samples are drawn from other weights than training goes on from.
    pub(crate) fn samples_quantised(&self) -> bool {
        self.inner.quantised.is_some()
    }

    /// The weights that samples are drawn from.
    pub(crate) fn sampler(&self) -> &Weights {
        self.inner.quantised.as_ref().unwrap_or(&self.inner.weights)
    }

    /// How many clones there are, this one included.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    /// Bytes that its matrices take, in memory or mapped.
    pub(crate) fn bytes(&self) -> usize {
        let all = [self.weights()].into_iter().chain(&self.inner.quantised);
        all.flat_map(Weights::matrices).map(Matrix::bytes).sum()
    }

    /// The model's shape.
    pub(crate) fn config(&self) -> &Config {
        &self.inner.weights.config
    }

    /// The frozen weights.
    pub(crate) fn weights(&self) -> &Weights {
        &self.inner.weights
    }

    /// A number that tells models apart, whatever they are called: of all norms, which are few and
    /// differ between any two trainings.
    pub(crate) fn fingerprint(&self) -> u64 {
        let weights = self.weights();
        let norms = weights.layers.iter().map(|layer| &layer.attention_norm[..]);
        let all = norms.chain([&weights.norm[..]]).flatten();
        let mut sum = 0xCBF2_9CE4_8422_2325 ^ weights.len() as u64;
        for value in all {
            sum = (sum ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01B3);
        }
        sum
    }

    /// Number of threads that work on it.
    pub(crate) fn threads(&self) -> usize {
        self.inner.threads.count()
    }

    /// Runs `work` on the pool and waits for it.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let large = self.weights().len() > Merged::LIMIT;
        self.inner.threads.0.install(|| {
            let _awake = large.then(Awake::new);
            work()
        })
    }

    /// Lends recycled buffers to `work`: fresh pages would cost more than the arithmetic.
    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut scratch = lock(&self.inner.scratch).pop().unwrap_or_default();
        let result = work(&mut scratch);
        let mut kept = lock(&self.inner.scratch);
        let bytes: usize = kept.iter().map(Scratch::bytes).sum();
        if bytes + scratch.bytes() <= memory::kept() {
            kept.push(scratch);
        }
        result
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base")
            .field("config", self.config())
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

/// A base with an adapter applied: what a pass runs on.
///
/// Small models are run with the adapter merged into the weights, which makes passes cheaper;
/// large ones keep the base untouched and add the low-rank product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Net<'a> {
    pub(crate) weights: &'a Weights,
    merged: Option<&'a Merged>,
    adapter: Option<&'a Adapter>,
    large: bool,
}

impl<'a> Net<'a> {
    /// The base alone, or with an adapter in the cheaper of the two ways.
    pub(crate) fn new(weights: &'a Weights, adapter: Option<&'a Adapter>) -> Self {
        let large = weights.len() > Merged::LIMIT;
        let merged = adapter
            .filter(|_| !large)
            .map(|adapter| adapter.merged(weights));
        Self {
            weights,
            merged,
            adapter: adapter.filter(|_| merged.is_none()),
            large,
        }
    }

    /// The adapter kept apart from the weights, whatever the model's size.
    #[cfg(test)]
    pub(crate) fn unmerged(weights: &'a Weights, adapter: &'a Adapter) -> Self {
        Self {
            weights,
            merged: None,
            adapter: Some(adapter),
            large: weights.len() > Merged::LIMIT,
        }
    }

    /// Whether low-rank products are computed apart from the weights.
    pub(crate) fn is_unmerged(&self) -> bool {
        self.adapter.is_some()
    }

    /// One projection of one layer.
    pub(crate) fn projection(&self, layer: usize, projection: Projection) -> Linear<'a> {
        let base = &self.weights.layers[layer].projections[projection as usize];
        Linear {
            weight: self
                .merged
                .and_then(|merged| merged.projection(layer, projection))
                .unwrap_or(base),
            lora: self
                .adapter
                .and_then(|adapter| adapter.projection(layer, projection)),
            bias: self.weights.layers[layer].biases[projection as usize].as_deref(),
            large: self.large,
            rounding: Rounding::Half,
        }
    }

    /// The head.
    pub(crate) fn head(&self) -> Linear<'a> {
        Linear {
            weight: self
                .merged
                .and_then(Merged::head)
                .unwrap_or(self.weights.head()),
            lora: self.adapter.and_then(Adapter::head),
            bias: None,
            large: self.large,
            rounding: Rounding::Twice,
        }
    }
}
