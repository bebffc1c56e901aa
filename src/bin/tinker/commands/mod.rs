//! The commands, one module per noun.

#[cfg(feature = "local")]
pub(crate) mod serve;
