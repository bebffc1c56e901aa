//! The commands, a file per noun.

pub(crate) mod auth;
pub(crate) mod billing;
pub(crate) mod checkpoint;
pub(crate) mod model;
pub(crate) mod records;
pub(crate) mod run;
#[cfg(feature = "local")]
pub(crate) mod serve;
pub(crate) mod session;
