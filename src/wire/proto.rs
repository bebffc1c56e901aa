//! The service's protobuf messages (proto3, package `tinker_public`), field by field.
//!
//! Byte strings are little-endian arrays: tokens and token ids are int32, logprobs float32,
//! offsets and sparse indices int64, tensors whatever their `dtype` says. They are [`Bytes`], so
//! a decoded message borrows from the body it came from and every array is copied only once, into
//! the value that keeps it.
//!
//! `SamplingParams`, `StopStrings` and `StopTokens` exist in the schema too, but no request or
//! answer holds them.

use std::collections::BTreeMap;

use prost::bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub(crate) model_id: String,
    #[prost(int32, tag = "2")]
    pub(crate) seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub(crate) data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub(crate) loss_fn: String,
    #[prost(btree_map = "string, double", tag = "5")]
    pub(crate) loss_fn_config: BTreeMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub(crate) forward_only: bool,
    #[prost(btree_map = "string, message", tag = "7")]
    pub(crate) loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LossConfigValue {
    #[prost(oneof = "LossConfigValueKind", tags = "1, 2")]
    pub(crate) value: Option<LossConfigValueKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum LossConfigValueKind {
    #[prost(double, tag = "1")]
    Number(f64),
    #[prost(string, tag = "2")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) model_input: Vec<Chunk>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) loss_fn_inputs: BTreeMap<String, Tensor>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) model_input_spans: Vec<ProvenanceSpan>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) loss_fn_input_spans: Vec<ProvenanceSpan>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chunk {
    #[prost(oneof = "ChunkKind", tags = "1, 2, 3")]
    pub(crate) chunk: Option<ChunkKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ChunkKind {
    #[prost(message, tag = "1")]
    EncodedText(EncodedTextChunk),
    #[prost(message, tag = "2")]
    Image(ImageChunk),
    #[prost(message, tag = "3")]
    Dmel(DmelChunk),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EncodedTextChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) tokens: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) data: Bytes,
    #[prost(string, tag = "2")]
    pub(crate) format: String,
    #[prost(int32, optional, tag = "3")]
    pub(crate) expected_tokens: Option<i32>,
    /// Never set by SDKs.
    #[prost(message, optional, tag = "4")]
    pub(crate) override_dimensions: Option<ImageDimensions>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ImageDimensions {
    #[prost(uint32, tag = "1")]
    pub(crate) width: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) height: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DmelChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) dmel: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProvenanceSpan {
    #[prost(oneof = "ProvenanceSpanKind", tags = "1, 2")]
    pub(crate) span: Option<ProvenanceSpanKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ProvenanceSpanKind {
    #[prost(message, tag = "1")]
    PromptTokens(PromptProvenanceSpan),
    #[prost(message, tag = "2")]
    SampledTokens(SampledProvenanceSpan),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PromptProvenanceSpan {
    #[prost(string, tag = "1")]
    pub(crate) sequence_id: String,
    #[prost(int64, tag = "2")]
    pub(crate) offset: i64,
    #[prost(int64, tag = "3")]
    pub(crate) length: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SampledProvenanceSpan {
    #[prost(string, tag = "1")]
    pub(crate) sequence_id: String,
    #[prost(int64, tag = "2")]
    pub(crate) offset: i64,
    #[prost(int64, tag = "3")]
    pub(crate) length: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(oneof = "TensorEncoding", tags = "1, 2")]
    pub(crate) encoding: Option<TensorEncoding>,
    #[prost(enumeration = "DType", tag = "3")]
    pub(crate) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum TensorEncoding {
    #[prost(bytes = "bytes", tag = "1")]
    Dense(Bytes),
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SparseCsr {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) values: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) crow_indices: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) col_indices: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub(crate) loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) loss_fn_outputs: Vec<ArrayRecord>,
    #[prost(btree_map = "string, double", tag = "3")]
    pub(crate) metrics: BTreeMap<String, f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ArrayRecord {
    #[prost(string, tag = "1")]
    pub(crate) type_tag: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) fields: BTreeMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub(crate) num_datums: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct BatchedTensor {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) data: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) offsets: Bytes,
    #[prost(enumeration = "DType", tag = "3")]
    pub(crate) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) trailing_shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sequences: Vec<SampledSequence>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) prompt_logprobs: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    pub(crate) topk_prompt_logprobs: Option<TopkLogprobs>,
    #[prost(int32, tag = "4")]
    pub(crate) prompt_cache_hit_tokens: i32,
    #[prost(message, optional, tag = "5")]
    pub(crate) target_prompt_logprobs: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    pub(crate) prompt_alt_tokens: Option<PromptAltTokens>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SampledSequence {
    #[prost(enumeration = "StopReason", tag = "1")]
    pub(crate) stop_reason: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) tokens: Bytes,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) logprobs: Option<Bytes>,
    #[prost(message, optional, tag = "4")]
    pub(crate) topk_sampled_logprobs: Option<TopkLogprobs>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TopkLogprobs {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) token_ids: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) logprobs: Bytes,
    #[prost(uint32, tag = "3")]
    pub(crate) k: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) length: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PromptAltTokens {
    #[prost(message, optional, tag = "1")]
    pub(crate) tokens: Option<Tensor>,
    #[prost(message, optional, tag = "2")]
    pub(crate) logprobs: Option<Tensor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum StopReason {
    Stop = 0,
    Length = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum DType {
    Unspecified = 0,
    Float32 = 1,
    Int64 = 2,
    Int32 = 3,
    Bfloat16 = 4,
}
