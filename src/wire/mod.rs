//! Bytes to types and back: request envelopes, protobuf, dialects. No I/O, no clock.

pub(crate) mod route;
