//! Tokenizers, and the chat templates that come with them.
//!
//! ```no_run
//! use tinker::ModelInput;
//! use tinker::text::Tokenizer;
//!
//! let tokenizer = Tokenizer::for_model("Qwen/Qwen3-8B")?;
//! let prompt = ModelInput::from_ints(tokenizer.encode("The weather today is")?);
//! # Ok::<(), tinker::Error>(())
//! ```

#[cfg(feature = "chat")]
mod chat;
mod convert;
pub mod data;
mod hub;
mod json;
mod letters;
mod message;
pub mod renderers;
mod selection;
mod short;
mod space;
mod special;
mod stream;
#[cfg(feature = "chat")]
mod template;
mod tokenizer;

#[cfg(feature = "chat")]
pub use chat::ChatOptions;
pub use data::{DatumOptions, Example, Reduction};
pub use hub::{Hub, HubCommit, HubProgress, Repo, RepoFiles, UploadOptions};
pub use json::Json;
pub(crate) use json::Style;
pub use message::{Message, ToolCall, UnparsedToolCall};
pub use renderers::{Delta, ParseStream, Parsed, Renderer, Termination, TrainOnWhat};
pub use selection::TokenizerId;
pub use stream::DecodeStream;
pub use tokenizer::{Specials, Tokenizer};

#[cfg(feature = "local")]
pub(crate) use convert::to_gguf;
