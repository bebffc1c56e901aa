//! Bytes to types and back: request envelopes, protobuf, dialects. No I/O, no clock.

pub mod bench;
#[cfg(feature = "zstd")]
pub(crate) mod compress;
pub(crate) mod decoders;
pub(crate) mod dialect;
pub(crate) mod forward_backward;
pub(crate) mod handle;
mod le;
mod lenient;
pub(crate) mod output;
pub(crate) mod proto;
pub(crate) mod query;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod sample;
mod sink;
pub(crate) mod sse;
mod tensor;

#[cfg(test)]
mod conformance;

/// The release of the reference SDK whose protocol this is; sent wherever it says its version.
pub(crate) const PROTOCOL_VERSION: &str = "0.36.0";
