//! Bytes to types and back: request envelopes, protobuf, dialects. No I/O, no clock.

#[cfg(feature = "zstd")]
pub(crate) mod compress;
mod le;
pub(crate) mod proto;
pub(crate) mod reply;
pub(crate) mod route;

#[cfg(test)]
mod conformance;
