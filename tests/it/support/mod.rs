//! What the features' tests share.

pub(crate) mod fake;
pub(crate) mod http;
pub(crate) mod hub;
pub(crate) mod local;
pub(crate) mod logs;
pub(crate) mod packages;
pub(crate) mod proto;
pub(crate) mod python;
pub(crate) mod scripted;
