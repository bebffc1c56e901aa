//! Fine-tune and sample language models with [Tinker] from plain, blocking Rust.
//!
//! ```rust
//! use tinker::{AdamParams, Datum, LoraConfig, LossFn, ModelInput, SamplingParams, ServiceClient};
//!
//! fn main() -> tinker::Result<()> {
//!     let service = ServiceClient::local()?; // or ServiceClient::from_env()?
//!     let training = service.create_lora_training_client("tinker-local/tiny", LoraConfig::rank(8))?;
//!     let tokenizer = training.tokenizer()?;
//!
//!     let prompt = tokenizer.encode("English: hello\nPig Latin:")?;
//!     let answer = tokenizer.encode_plain(" ellohay\n")?;
//!     let data = [Datum::supervised(&prompt, &answer)];
//!     for _ in 0..10 {
//!         // Both are submitted before either is awaited: one round trip instead of two.
//!         let step = training.forward_backward(&data, LossFn::CrossEntropy)?;
//!         let optim = training.optim_step(AdamParams::learning_rate(5e-3))?;
//!         println!("loss {:?}", step.join()?.loss());
//!         optim.join()?;
//!     }
//!
//!     let sampler = training.save_weights_and_get_sampling_client()?;
//!     let said = sampler.sample(&ModelInput::from_ints(prompt), SamplingParams::max_tokens(16))?;
//!     println!("{}", tokenizer.decode(&said.sequences[0].tokens)?);
//!     Ok(())
//! }
//! ```
//!
//! Calls return values or [`Pending`] handles; nothing is async. Submit what belongs together, then
//! join. The same program runs on the embedded engine ([`ServiceClient::local`], feature `local`), on
//! the hosted service ([`ServiceClient::from_env`]), and on any compatible server
//! ([`Config::with_base_url`](config::Config::with_base_url)).
//!
//! # Code map
//!
//! | to | see |
//! |---|---|
//! | connect, create models and samplers, go on from checkpoints | [`ServiceClient`] |
//! | train: `forward_backward`, `optim_step`, saving | [`TrainingClient`] |
//! | sample one prompt or a million, score text | [`SamplingClient`] |
//! | list runs, checkpoints, sessions, usage; download weights | [`RestClient`] |
//! | wait for results | [`Pending`], [`join_all`], [`as_completed`] |
//! | build inputs and read outputs | [`types`] |
//! | write a loss of your own | [`loss`] |
//! | turn text and chats into tokens | [`text`] (features `text`, `chat`) |
//! | train with ready loops, keep a run's files | [`train`] (feature `text`) |
//! | draw curves | [`plot`] |
//! | configure: keys, URLs, proxies, timeouts | [`config`] |
//! | handle failures | [`error`] |
//! | run everything on this machine | [`local`] (feature `local`) |
//!
//! # Logs
//!
//! Logging goes through the [`log`] crate; without a logger nothing is written. The levels mean: *warn*,
//! someone should act; *info*, worth knowing but nothing to act on; *debug*, a line per request;
//! *trace*, wire detail. This crate never logs keys, header values or signed URLs; `ureq` prints whole
//! URLs at its own trace level, so filter that target if you log at trace.
//!
//! # Telemetry
//!
//! Logs stay on this machine; telemetry is what the client reports to the service it talks to, as the
//! Python SDK does: when a session starts and ends, errors of failed calls, and how long requests
//! took, with the operating system and the SDK's version, in batches, never in the way of a call. It
//! carries no prompts, no data and no credentials. `TINKER_TELEMETRY=0` or
//! [`Config::with_telemetry(false)`](config::Config::with_telemetry) turns it off.
//!
//! # Forking
//!
//! A client's threads do not exist in a forked child, so after `fork` without `exec` make a new client.
//!
//! [Tinker]: https://thinkingmachines.ai/tinker

pub mod error;

mod descriptors;

mod files;

mod sync;

#[cfg(any(feature = "text", feature = "local"))]
#[allow(dead_code, reason = "each feature uses a part")]
mod gguf;

// Its tokenizer is text's, its weights are the engine's.
#[cfg(feature = "local")]
mod builtin;

pub mod types;

#[allow(dead_code, reason = "a part is the embedded server's alone")]
mod wire;

mod transport;

pub mod config;

mod runtime;

pub mod client;

pub mod loss;

#[cfg(feature = "text")]
pub mod text;

pub mod plot;

#[cfg(feature = "text")]
pub mod train;

#[cfg(feature = "local")]
pub mod local;

pub use client::{RestClient, SamplingClient, ServiceClient, TrainingClient};
pub use error::{Error, Result};
pub use runtime::pending::{AsCompleted, Pending, Trouble, as_completed, join_all};
#[cfg(feature = "text")]
pub use text::Tokenizer;
pub use types::{
    AdamParams, Datum, ForwardBackwardOutput, LoraConfig, LossFn, ModelInput, OptimStepResponse,
    SampleOptions, SampleRequest, SampleResponse, SamplingParams, TensorData, TinkerPath,
};

#[doc(hidden)]
pub mod unversioned;

// What tests share names the crate as a user does.
#[cfg(test)]
extern crate self as tinker;
#[cfg(all(test, feature = "local"))]
#[path = "../tests/it/support/local.rs"]
mod local_clients;
#[cfg(test)]
#[path = "../tests/it/support/python.rs"]
mod python;
#[cfg(test)]
#[path = "../tests/it/support/scripted.rs"]
mod scripted;

/// Guides, for reading from top to bottom. Their code is compiled and run with the tests.
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("../docs/from-python.md")]
    pub mod from_python {}

    #[doc = include_str!("../docs/reinforcement.md")]
    pub mod reinforcement {}

    #[doc = include_str!("../docs/sampling.md")]
    pub mod sampling {}

    #[doc = include_str!("../docs/errors.md")]
    pub mod errors {}

    #[doc = include_str!("../docs/custom-losses.md")]
    pub mod custom_losses {}

    #[doc = include_str!("../docs/threads.md")]
    pub mod threads {}

    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("../docs/servers.md")]
    pub mod servers {}
}

/// The README's code, compiled, and run where it keeps no files.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
