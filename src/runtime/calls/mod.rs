//! A request with its retries: the link to a service, the retry loop, downloads.

mod carry;
pub(crate) mod download;
pub(crate) mod files;
mod link;
mod metrics;
pub(crate) mod part;
mod retry;
pub(crate) mod stage;
#[cfg(feature = "archive")]
pub(crate) mod unpack;

pub(crate) use crate::transport::{Body, Head, Part, Request, Response, Source};

pub(crate) use self::link::{Link, config_body};
pub(crate) use self::retry::{AttemptError, BILLING_PAUSE, Effort, is_unknown};
