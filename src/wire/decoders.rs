//! Every way bytes from outside become values, by name: what property tests and fuzzers feed.

use super::dialect::{decode_forward_backward, decode_request, decode_sample};
use super::handle::SamplerHandle;
use super::reply::{
    CompletionsReply, FutureReply, PROTOBUF as MEDIA_TYPE, RetrieveReply, decode_json,
};
use super::request::{AsampleRequest, CreateModelRequest, from_json};
use crate::error::Result;
use crate::types::{ClientConfig, SessionSearch};

const PROTOBUF: Option<&str> = Some(MEDIA_TYPE);
const JSON: Option<&str> = Some("application/json");

pub(crate) type Decode = fn(&[u8]) -> Result<()>;

/// The target `decoders` under `fuzz/` gives each input to all of them.
pub(crate) const DECODERS: [(&str, Decode); 14] = [
    ("protobuf_output", |b| {
        decode_forward_backward(PROTOBUF, b.to_vec()).map(drop)
    }),
    ("protobuf_sample", |b| {
        decode_sample(PROTOBUF, b.to_vec(), None).map(drop)
    }),
    ("protobuf_request", |b| {
        decode_request(PROTOBUF, b.to_vec()).map(drop)
    }),
    ("json_output", |b| {
        decode_forward_backward(JSON, b.to_vec()).map(drop)
    }),
    ("json_sample", |b| {
        decode_sample(JSON, b.to_vec(), None).map(drop)
    }),
    ("json_request", |b| {
        decode_request(JSON, b.to_vec()).map(drop)
    }),
    ("retrieve", |b| {
        RetrieveReply::classify(JSON, b.to_vec()).map(drop)
    }),
    ("future", |b| decode_json::<FutureReply>(b).map(drop)),
    ("completions", |b| {
        decode_json::<CompletionsReply>(b).map(drop)
    }),
    ("config", |b| decode_json::<ClientConfig>(b).map(drop)),
    ("asample", |b| from_json::<AsampleRequest<'_>>(b).map(drop)),
    ("create_model", |b| {
        from_json::<CreateModelRequest<'_>>(b).map(drop)
    }),
    ("handle", |b| {
        SamplerHandle::decode(&String::from_utf8_lossy(b)).map(drop)
    }),
    ("search", |b| from_json::<SessionSearch>(b).map(drop)),
];
