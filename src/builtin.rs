//! The model that ships with the crate, as it is known outside the engine: by its name and its tokenizer.

/// What clients call it.
pub(crate) const NAME: &str = "tinker-local/tiny";

/// The tokenizer: tokens 0 to 255 are bytes, the rest are markers.
pub(crate) const TOKENIZER: &str = include_str!("local/engine/builtin/tokenizer.json");

/// Chat template and special tokens, as transformers reads them.
pub(crate) const TOKENIZER_CONFIG: &str =
    include_str!("local/engine/builtin/tokenizer_config.json");
