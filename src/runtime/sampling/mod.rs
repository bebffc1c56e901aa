//! Samples: permits, bytes and backoff (the rate limit) in front of the network, retries behind it.

mod backoff;
mod cancel;
mod dispatch;
mod job;
mod progress;
mod room;
mod sampler;

pub use self::progress::SamplingProgress;
pub(crate) use self::progress::{Arrival, Patience};
pub(crate) use self::room::Sampling;
pub(crate) use self::sampler::{Sampler, Settings};
