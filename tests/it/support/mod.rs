//! What the features' tests share.

pub(crate) mod http;
