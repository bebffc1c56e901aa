//! Fine-tune and sample language models with [Tinker] from plain, blocking Rust.
//!
//! [Tinker]: https://thinkingmachines.ai/tinker

pub mod error;

pub mod types;

#[allow(dead_code, reason = "until the clients land")]
mod wire;

#[allow(dead_code, reason = "until the clients land")]
mod transport;

pub mod config;

mod runtime;

pub mod client;

pub mod loss;

#[cfg(feature = "text")]
pub mod text;

#[cfg(feature = "local")]
pub mod local;

pub use client::{RestClient, SamplingClient, ServiceClient, TrainingClient};
pub use error::{Error, Result};
pub use runtime::pending::{AsCompleted, Pending, as_completed, join_all};
#[cfg(feature = "text")]
pub use text::Tokenizer;
pub use types::{
    AdamParams, Datum, ForwardBackwardOutput, LoraConfig, LossFn, ModelInput, OptimStepResponse,
    SampleOptions, SampleRequest, SampleResponse, SamplingParams, TensorData, TinkerPath,
};
#[doc(hidden)]
pub use wire::bench as __bench;

/// For tests of this crate and of programs that use it.
#[doc(hidden)]
pub mod testing {
    pub use crate::runtime::clock::{Clock, Recording};
}

#[cfg(test)]
#[path = "../tests/it/support/scripted.rs"]
mod scripted;
