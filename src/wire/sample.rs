//! Results of sampling as protobuf, both ways.

use prost::Message;
use prost::bytes::Bytes;

use super::sink::{Body, Sink, encode};
use super::tensor::{TensorBody, mismatch};
use super::{le, proto, tensor};
use crate::error::{Context, Error, Result};
use crate::types::{
    PromptAltTokens, SampleResponse, SampledSequence, StopReason, TensorData, TopkLogprobs,
};

/// Reads a result. The body is released before returning.
///
/// Sequences have no ids here: those came with the submission.
///
/// # Errors
///
/// [`Error::Reply`] if it is damaged or contradicts itself.
pub(crate) fn decode_sample_proto(body: Vec<u8>) -> Result<SampleResponse> {
    let message = proto::SampleResponse::decode(Bytes::from(body)).map_err(|error| {
        Error::Reply(Context::caused("the result is not a valid message", error))
    })?;
    let sequences = message.sequences.iter().map(decode_sequence);
    let mut response = SampleResponse::new(sequences.collect::<Result<_>>()?);
    response.prompt_logprobs =
        floats("prompt_logprobs", message.prompt_logprobs.as_ref())?.map(Into::into);
    response.topk_prompt_logprobs = decode_topk(
        "topk_prompt_logprobs",
        message.topk_prompt_logprobs.as_ref(),
    )?;
    response.target_prompt_logprobs = message
        .target_prompt_logprobs
        .map(|message| tensor::decode("target_prompt_logprobs", &message))
        .transpose()?;
    response.prompt_alt_tokens = message
        .prompt_alt_tokens
        .map(decode_alt_tokens)
        .transpose()?;
    response.prompt_cache_hit_tokens = message.prompt_cache_hit_tokens.into();
    Ok(response)
}

fn decode_sequence(message: &proto::SampledSequence) -> Result<SampledSequence> {
    let stop_reason = match proto::StopReason::try_from(message.stop_reason) {
        Ok(proto::StopReason::Stop) => StopReason::Stop,
        Ok(proto::StopReason::Length) => StopReason::Length,
        // Newer services may know more.
        Err(_) => StopReason::Unknown,
    };
    let tokens: Vec<i32> = le::read("tokens", &message.tokens)?;
    let mut sequence = SampledSequence::new(stop_reason, tokens);
    sequence.logprobs = floats("logprobs", message.logprobs.as_ref())?;
    sequence.topk_logprobs = decode_topk(
        "topk_sampled_logprobs",
        message.topk_sampled_logprobs.as_ref(),
    )?;
    Ok(sequence)
}

/// Absent and empty both mean that none were computed.
fn floats(what: &str, bytes: Option<&Bytes>) -> Result<Option<Vec<f32>>> {
    match bytes {
        Some(bytes) if !bytes.is_empty() => le::read(what, bytes).map(Some),
        _ => Ok(None),
    }
}

fn decode_topk(what: &str, message: Option<&proto::TopkLogprobs>) -> Result<Option<TopkLogprobs>> {
    let Some(message) = message.filter(|message| message.k != 0 && message.length != 0) else {
        return Ok(None);
    };
    let cells = u64::from(message.k) * u64::from(message.length);
    // Extra bytes are ignored, as the official SDK does; missing ones are an error.
    let take = |bytes: &Bytes| {
        usize::try_from(cells)
            .ok()
            .and_then(|cells| cells.checked_mul(4))
            .and_then(|length| (length <= bytes.len()).then(|| bytes.slice(..length)))
            .ok_or_else(|| {
                Error::Reply(Context::new(format!(
                    "{what}: {} bytes do not hold {} positions of {}",
                    bytes.len(),
                    message.length,
                    message.k
                )))
            })
    };
    let token_ids = le::read(what, &take(&message.token_ids)?)?;
    let logprobs = le::read(what, &take(&message.logprobs)?)?;
    TopkLogprobs::new(token_ids, logprobs, message.k as usize)
        .map(Some)
        .map_err(|error| mismatch(what, &error))
}

fn decode_alt_tokens(message: proto::PromptAltTokens) -> Result<PromptAltTokens> {
    let read = |what: &str, message: Option<proto::Tensor>| -> Result<TensorData> {
        tensor::decode(what, &message.unwrap_or_default())
    };
    Ok(PromptAltTokens {
        tokens: read("prompt_alt_tokens.tokens", message.tokens)?,
        logprobs: read("prompt_alt_tokens.logprobs", message.logprobs)?,
    })
}

/// Writes a result, replacing what `out` held. Ids of sequences are not part of it.
pub(crate) fn encode_sample(response: &SampleResponse, out: &mut Vec<u8>) {
    encode(&ResponseBody(response), out);
}

struct ResponseBody<'a>(&'a SampleResponse);

impl Body for ResponseBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let response = self.0;
        for sequence in &response.sequences {
            sink.message(1, &SequenceBody(sequence));
        }
        if let Some(logprobs) = &response.prompt_logprobs {
            sink.present_numbers(2, logprobs.as_raw());
        }
        if let Some(topk) = &response.topk_prompt_logprobs {
            sink.message(3, &TopkBody(topk));
        }
        sink.integer(4, response.prompt_cache_hit_tokens);
        if let Some(tensor) = &response.target_prompt_logprobs {
            sink.message(5, &TensorBody(tensor));
        }
        if let Some(alternatives) = &response.prompt_alt_tokens {
            sink.message(6, &AltTokensBody(alternatives));
        }
    }
}

struct SequenceBody<'a>(&'a SampledSequence);

impl Body for SequenceBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let sequence = self.0;
        let stop_reason = match sequence.stop_reason {
            StopReason::Stop => proto::StopReason::Stop,
            StopReason::Length | StopReason::Unknown => proto::StopReason::Length,
        };
        sink.integer(1, stop_reason as i64);
        sink.numbers(2, sequence.tokens.as_slice());
        if let Some(logprobs) = &sequence.logprobs {
            sink.present_numbers(3, logprobs);
        }
        if let Some(topk) = &sequence.topk_logprobs {
            sink.message(4, &TopkBody(topk));
        }
    }
}

struct TopkBody<'a>(&'a TopkLogprobs);

impl Body for TopkBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.numbers(1, self.0.token_ids());
        sink.numbers(2, self.0.logprobs());
        sink.integer(3, self.0.k() as i64);
        sink.integer(4, self.0.len() as i64);
    }
}

struct AltTokensBody<'a>(&'a PromptAltTokens);

impl Body for AltTokensBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.message(1, &TensorBody(&self.0.tokens));
        sink.message(2, &TensorBody(&self.0.logprobs));
    }
}
