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
mod hub;
mod selection;
mod special;
mod tokenizer;

#[cfg(feature = "chat")]
pub use chat::{ChatOptions, Message};
pub use selection::TokenizerId;
pub use tokenizer::Tokenizer;
