//! Samples: permits, bytes and backoff (the rate limit) in front of the network, retries behind it.

mod backoff;
mod dispatch;
mod progress;
mod sampler;

pub(crate) use self::backoff::Backoff;
pub(crate) use self::dispatch::Dispatcher;
pub use self::progress::SamplingProgress;
pub(crate) use self::progress::arrival;
pub(crate) use self::sampler::{Job, POLLED_POSTS, Sampler};
