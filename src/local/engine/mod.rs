//! The embedded engine: a decoder with LoRA, real gradients and KV-cache sampling.
//!
//! It computes and nothing else: no HTTP, no clock, no files but the weights it is told to read.
//! A few values are all there is to know:
//!
//! - [`Weights`]: [`Weights::builtin`] ships with the crate, [`Weights::load`] reads a folder,
//!   [`Weights::load_gguf`] a file.
//! - [`Base`]: frozen weights and the thread pool that runs them, cheap to clone and shared by
//!   everything on it.
//! - [`Trainer`]: one model in training. [`forward_backward`](Trainer::forward_backward) gathers
//!   gradients, [`optim_step`](Trainer::optim_step) uses them up; [`Trainer::adapter`] is a
//!   snapshot for sampling; [`Trainer::save`] and [`Trainer::restore`] keep adapter and optimiser
//!   bit for bit.
//! - [`Datum`] goes in, [`LossOutput`] comes out; [`Loss::parse`] knows the service's names.
//! - [`Batch`]: takes [`SampleRequest`]s and runs them side by side, round by round; each one's
//!   [`Listener`] hears of its tokens and gets its [`SampleOutput`].
//!
//! Calls block, may come from any plain thread, and share the pool's threads: however many
//! requests run at once, no more than that many cores are busy. Everything is deterministic
//! for a given seed, whatever the number of threads, because work is cut by the data alone and
//! added up in order. With AVX-512 a large model's tokens get the same log-probabilities, to the
//! last bit, whether they are sampled, read as a prompt or trained on. Wrong input is refused with
//! [`Error::Invalid`](crate::Error::Invalid) before anything is computed.
//!
//! Inside: `model` holds the weights, `pass` runs layers forward and backward over packed rows,
//! `attention`, `linear` (`panels` for large models), `ops` and `head` are their parts, `decode` goes on from keys and values
//! remembered in `pages`, `prefix` finds those of prompts read before, `gemm` and `mapping` are the
//! only places with `unsafe`.

mod adjust;
mod assemble;
mod attention;
mod awake;
mod batch;
pub(crate) mod builtin;
mod checkpoint;
mod config;
mod decode;
mod family;
mod folder;
mod gemm;
mod gguf;
mod head;
mod linear;
mod lora;
mod loss;
mod mapping;
mod matrix;
mod memory;
#[cfg(feature = "text")]
mod merge;
mod model;
mod ops;
mod optim;
mod pages;
mod panels;
mod pass;
mod peft;
mod pick;
mod prefix;
mod prompt;
mod quant;
#[cfg(test)]
mod random;
mod rng;
mod rope;
mod sample;
mod scratch;
mod train;

pub(crate) use adjust::Adjust;
pub(crate) use batch::{Batch, Listener};
pub(crate) use checkpoint::Restore;
pub(crate) use config::{Config, Usual};
#[cfg(feature = "text")]
pub(crate) use family::{Activation, Family, Windows};
#[cfg(feature = "text")]
pub(crate) use folder::{stored_as, weight_files};
#[cfg(feature = "text")]
pub(crate) use gguf::ggml_name;
pub(crate) use lora::{Adapter, LoraSpec};
pub(crate) use loss::Loss;
#[cfg(feature = "text")]
pub(crate) use merge::{Layout, MergedTensor};
pub(crate) use model::{Base, Threads, Weights};
pub(crate) use optim::AdamParams;
pub(crate) use peft::{PeftFiles, base_model};
#[cfg(feature = "text")]
pub(crate) use quant::Dtype;
#[cfg(feature = "text")]
pub(crate) use quant::quantise;
#[cfg(feature = "text")]
pub(crate) use rope::{Rope, Scaling};
pub(crate) use sample::{
    PromptTargets, SampleOutput, SampleRequest, SampledSequence, Stop, StopReason,
};
pub(crate) use train::{Datum, LossInputs, LossOutput, Trainer};

/// What the tool that makes the built-in model (`benches/builtin_model`) needs of the inside.
#[allow(unused_imports, reason = "used by that tool and by tests")]
pub(crate) mod inside {
    pub(crate) use super::config::{Bias, Config, LayerKind, Usual};
    pub(crate) use super::family::{Activation, Family};
    pub(crate) use super::gemm::{View, product};
    pub(crate) use super::linear::{Slot, add};
    pub(crate) use super::lora::{LoraSpec, Target};
    pub(crate) use super::matrix::Matrix;
    pub(crate) use super::model::{
        AfterNorms, Base, HeadNorms, Layer, Net, Projection, Threads, Weights,
    };
    pub(crate) use super::optim::AdamState;
    pub(crate) use super::pass::{Gradients, Rest, RestLayer};
    pub(crate) use super::rng::Rng;
    pub(crate) use super::rope::Rope;
    pub(crate) use super::train::{forward, run};
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
