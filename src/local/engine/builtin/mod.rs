//! The model that ships with the crate: 357,000 weights, one token per byte.
//!
//! It was made by this project from synthetic string tasks; `benches/builtin_model` has the recipe. It copies,
//! reverses, sorts and spells words, adds carelessly, and knows no Pig Latin yet.

use super::config::Config;
use super::mapping::Mapping;
use super::model::Weights;
pub(crate) use crate::builtin::{NAME, TOKENIZER, TOKENIZER_CONFIG};
use crate::error::Result;

/// The weights, in bf16 under transformers' names.
pub(crate) const WEIGHTS: &[u8] = include_bytes!("model.safetensors");

/// The shape, as transformers reads it.
pub(crate) const CONFIG: &str = include_str!("config.json");

/// Begins a plain text.
pub(crate) const BOS: u32 = 256;
/// Ends a plain text.
pub(crate) const EOS: u32 = 257;
/// Fills nothing here, but tools ask for it.
pub(crate) const PAD: u32 = 258;
/// Begins a chat message.
pub(crate) const IM_START: u32 = 259;
/// Ends a chat message.
pub(crate) const IM_END: u32 = 260;

impl Weights {
    /// Those of the model that ships with the crate.
    ///
    /// # Errors
    ///
    /// If the crate was built with other files.
    pub(crate) fn builtin() -> Result<Self> {
        let config = Config::parse(CONFIG.as_bytes())?;
        let file = ("model.safetensors".to_owned(), Mapping::embedded(WEIGHTS));
        Self::from_files(config, vec![file])
    }
}

/// A text's tokens: its bytes.
pub(crate) fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The bytes of some tokens; markers have none.
pub(crate) fn decode(tokens: &[u32]) -> Vec<u8> {
    tokens
        .iter()
        .filter_map(|token| u8::try_from(*token).ok())
        .collect()
}
