//! The commands, a file per noun.

pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod chat;
pub(crate) mod checkpoint;
pub(crate) mod compare;
#[cfg(feature = "local")]
pub(crate) mod console;
pub(crate) mod cost;
pub(crate) mod data;
pub(crate) mod doctor;
pub(crate) mod help;
pub(crate) mod model;
pub(crate) mod prompts;
#[cfg(feature = "local")]
pub(crate) mod proxy;
pub(crate) mod records;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod sample;
pub(crate) mod sampler;
pub(crate) mod score;
#[cfg(feature = "local")]
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod tokenize;
pub(crate) mod train;
