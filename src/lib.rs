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

#[allow(dead_code, reason = "until the clients land")]
mod runtime;

pub mod client;

pub mod loss;

#[cfg(feature = "text")]
pub mod text;

#[cfg(feature = "local")]
#[allow(dead_code, reason = "until the server is whole")]
pub mod local;

pub use error::{Error, Result};
pub use types::{
    AdamParams, Datum, ForwardBackwardOutput, LoraConfig, LossFn, ModelInput, SampleOptions,
    SampleRequest, SampleResponse, SamplingParams, TensorData, TinkerPath,
};

#[cfg(test)]
#[path = "../tests/it/support/scripted.rs"]
mod scripted;
