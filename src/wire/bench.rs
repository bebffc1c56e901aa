//! What `benches/` measures. Not part of the API: these names may change at any time.

#![allow(clippy::missing_errors_doc, reason = "hidden: for the benches alone")]

use super::forward_backward::{ForwardBackwardRequest, encode_forward_backward};
use super::{output, sample};
use crate::Result;
use crate::types::{Datum, ForwardBackwardOutput, SampleResponse};

/// Encodes a training request, replacing what `out` held.
pub fn encode_request(data: &[Datum], out: &mut Vec<u8>) -> Result<()> {
    let request = ForwardBackwardRequest {
        model_id: "S1:train:0",
        seq_id: Some(1),
        data,
        loss_fn: "cross_entropy",
        loss_fn_config: None,
        forward_only: false,
    };
    encode_forward_backward(&request, out)
}

/// Encodes a training result.
pub fn encode_output(result: &ForwardBackwardOutput) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    output::encode_forward_backward_output(result, &mut body)?;
    Ok(body)
}

/// Decodes a training result.
pub fn decode_output(body: Vec<u8>) -> Result<ForwardBackwardOutput> {
    output::decode_forward_backward_proto(body)
}

/// Encodes a sampling result.
pub fn encode_sample(result: &SampleResponse) -> Vec<u8> {
    let mut body = Vec::new();
    sample::encode_sample(result, &mut body);
    body
}

/// Decodes a sampling result.
pub fn decode_sample(body: Vec<u8>) -> Result<SampleResponse> {
    sample::decode_sample_proto(body)
}
