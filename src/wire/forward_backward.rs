//! Requests of `forward_backward` as protobuf, both ways.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

use super::sink::{Body, DoubleEntry, Entry, Sink, encode};
use super::tensor::TensorBody;
use super::{le, proto, tensor};
use crate::error::{Error, Result};
use crate::types::{
    Chunk, Datum, ImageFormat, LossConfig, LossConfigValue, ModelInput, ProvenanceSpan, SpanKind,
};

/// One `forward_backward` request: a stretch of a batch, and the loss to run on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardBackwardRequest<'a> {
    pub(crate) model_id: &'a str,
    /// Its place in the model's sequence; without one the message says 0.
    pub(crate) seq_id: Option<u64>,
    pub(crate) data: &'a [Datum],
    pub(crate) loss_fn: &'a str,
    /// Without settings, or with none in it, nothing is written in the protobuf dialect.
    pub(crate) loss_fn_config: Option<&'a LossConfig>,
    /// Computes the loss but no gradients.
    pub(crate) forward_only: bool,
}

impl ForwardBackwardRequest<'_> {
    /// Checks everything that cannot be encoded as protobuf, so that encoding cannot fail.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] names the first such value.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.seq_id.is_some_and(|id| id > i32::MAX as u64) {
            return Err(Error::invalid(
                "seq_id",
                format!("must be at most {}, got {:?}", i32::MAX, self.seq_id),
            ));
        }
        for (index, datum) in self.data.iter().enumerate() {
            check_datum(datum).map_err(|error| error.within(&format!("data[{index}]")))?;
        }
        Ok(())
    }
}

fn check_datum(datum: &Datum) -> Result<()> {
    datum.validate()?;
    for (index, chunk) in datum.model_input().chunks().iter().enumerate() {
        let refuse = |problem: String| {
            Err(Error::invalid(
                format!("model_input.chunks[{index}]"),
                problem,
            ))
        };
        match chunk {
            Chunk::ImageAssetPointer(_) => {
                return refuse(
                    "image asset pointers cannot be sent to forward_backward; send the image itself"
                        .to_owned(),
                );
            }
            Chunk::Image(image) if image.expected_tokens.is_some_and(|n| n > i32::MAX as u32) => {
                return refuse(format!("expected_tokens must be at most {}", i32::MAX));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Encodes a request, replacing what `out` held: sizes first, then each array copied once.
///
/// # Errors
///
/// As [`ForwardBackwardRequest::validate`].
pub(crate) fn encode_forward_backward(
    request: &ForwardBackwardRequest<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    request.validate()?;
    encode(request, out);
    Ok(())
}

impl Body for ForwardBackwardRequest<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.bytes(1, self.model_id.as_bytes());
        sink.integer(2, self.seq_id.unwrap_or(0) as i64);
        for datum in self.data {
            sink.message(3, &DatumBody(datum));
        }
        sink.bytes(4, self.loss_fn.as_bytes());
        // Services of before 0.26.2 know only the old map, of numbers, and so does SkyRL; the new
        // one also holds texts. The reference fills both.
        for (key, value) in self.loss_fn_config.into_iter().flatten() {
            if let LossConfigValue::Number(value) = *value {
                sink.message(5, &DoubleEntry { key, value });
            }
        }
        sink.integer(6, i64::from(self.forward_only));
        for (key, value) in self.loss_fn_config.into_iter().flatten() {
            let value = ConfigBody(value);
            sink.message(7, &Entry { key, value });
        }
    }
}

struct ConfigBody<'a>(&'a LossConfigValue);

impl Body for ConfigBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        match self.0 {
            LossConfigValue::Number(number) => sink.present_double(1, *number),
            LossConfigValue::Text(text) => sink.present_bytes(2, text.as_bytes()),
        }
    }
}

struct DatumBody<'a>(&'a Datum);

impl Body for DatumBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        for chunk in self.0.model_input().chunks() {
            sink.message(1, &ChunkBody(chunk));
        }
        for (key, tensor) in self.0.loss_fn_inputs() {
            let value = TensorBody(tensor);
            sink.message(2, &Entry { key, value });
        }
        if let Some(provenance) = self.0.provenance() {
            for span in provenance.model_input() {
                sink.message(3, &SpanBody(span));
            }
            for span in provenance.loss_fn_inputs() {
                sink.message(4, &SpanBody(span));
            }
        }
    }
}

struct ChunkBody<'a>(&'a Chunk);

impl Body for ChunkBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let number = match self.0 {
            Chunk::EncodedText(_) => 1,
            Chunk::Image(_) => 2,
            Chunk::Dmel(_) => 3,
            // Refused by `validate`; there is no field for it.
            _ => return,
        };
        sink.message(number, &ChunkContent(self.0));
    }
}

struct ChunkContent<'a>(&'a Chunk);

impl Body for ChunkContent<'_> {
    fn write(&self, sink: &mut impl Sink) {
        match self.0 {
            Chunk::EncodedText(text) => sink.numbers(1, text.tokens.as_slice()),
            Chunk::Image(image) => {
                sink.bytes(1, &image.data);
                sink.bytes(2, image.format.as_str().as_bytes());
                if let Some(tokens) = image.expected_tokens {
                    sink.present_integer(3, i64::from(tokens));
                }
            }
            Chunk::Dmel(dmel) => sink.bytes(1, &dmel.dmel),
            _ => {}
        }
    }
}

struct SpanBody<'a>(&'a ProvenanceSpan);

impl Body for SpanBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let number = match self.0.kind() {
            SpanKind::Prompt => 1,
            SpanKind::Sampled => 2,
        };
        sink.message(number, &SpanContent(self.0));
    }
}

struct SpanContent<'a>(&'a ProvenanceSpan);

impl Body for SpanContent<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.bytes(1, self.0.sequence_id().as_bytes());
        sink.integer(2, self.0.offset());
        sink.integer(3, self.0.length());
    }
}

/// A request as a server reads it, in either dialect.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OwnedForwardBackwardRequest {
    pub(crate) model_id: String,
    pub(crate) seq_id: Option<u64>,
    pub(crate) data: Vec<Datum>,
    pub(crate) loss_fn: String,
    pub(crate) loss_fn_config: LossConfig,
    pub(crate) forward_only: bool,
}

impl OwnedForwardBackwardRequest {
    /// The same request, borrowed for encoding.
    pub(crate) fn as_request(&self) -> ForwardBackwardRequest<'_> {
        ForwardBackwardRequest {
            model_id: &self.model_id,
            seq_id: self.seq_id,
            data: &self.data,
            loss_fn: &self.loss_fn,
            loss_fn_config: Some(&self.loss_fn_config),
            forward_only: self.forward_only,
        }
    }
}

/// Reads a protobuf request, on the server. Arrays are copied once; the body is released.
///
/// # Errors
///
/// [`Error::Invalid`] if it is damaged or holds values that do not fit together.
pub(crate) fn decode_forward_backward_request(
    body: Vec<u8>,
) -> Result<OwnedForwardBackwardRequest> {
    let message = proto::ForwardBackwardRequest::decode(Bytes::from(body))
        .map_err(|error| Error::invalid("body", format!("is not a valid message: {error}")))?;
    let seq_id = u64::try_from(message.seq_id)
        .map_err(|_| Error::invalid("seq_id", "must not be negative"))?;
    let data = message.data.into_iter().enumerate();
    Ok(OwnedForwardBackwardRequest {
        model_id: message.model_id,
        seq_id: (seq_id != 0).then_some(seq_id),
        data: data
            .map(|(index, datum)| decode_datum(&format!("data[{index}]"), datum))
            .collect::<Result<_>>()?,
        loss_fn: message.loss_fn,
        loss_fn_config: decode_config(message.loss_fn_config, message.loss_fn_config_v2),
        forward_only: message.forward_only,
    })
}

/// The newer map wins; the older one fills in what only it has.
fn decode_config(
    numbers: BTreeMap<String, f64>,
    values: BTreeMap<String, proto::LossConfigValue>,
) -> LossConfig {
    let mut config: LossConfig = numbers
        .into_iter()
        .map(|(key, number)| (key, LossConfigValue::Number(number)))
        .collect();
    for (key, value) in values {
        let value = match value.value {
            Some(proto::LossConfigValueKind::Number(number)) => LossConfigValue::Number(number),
            Some(proto::LossConfigValueKind::Text(text)) => LossConfigValue::Text(text),
            None => continue,
        };
        config.insert(key, value);
    }
    config
}

fn decode_datum(at: &str, datum: proto::Datum) -> Result<Datum> {
    let chunks = datum
        .model_input
        .into_iter()
        .enumerate()
        .map(|(index, chunk)| decode_chunk(&format!("{at}.model_input[{index}]"), chunk))
        .collect::<Result<Vec<_>>>()?;
    let mut decoded = Datum::new(ModelInput::from_chunks(chunks));
    for (name, message) in datum.loss_fn_inputs {
        let field = format!("{at}.loss_fn_inputs.{name}");
        let tensor = tensor::decode(&field, &message).map_err(as_input)?;
        decoded = decoded.with(name, tensor);
    }
    let model_input = decode_spans(at, "model_input_spans", datum.model_input_spans)?;
    let loss_fn_inputs = decode_spans(at, "loss_fn_input_spans", datum.loss_fn_input_spans)?;
    if model_input.is_empty() && loss_fn_inputs.is_empty() {
        return Ok(decoded);
    }
    decoded
        .with_provenance(model_input, loss_fn_inputs)
        .map_err(|error| error.within(at))
}

fn decode_chunk(at: &str, chunk: proto::Chunk) -> Result<Chunk> {
    match chunk.chunk {
        Some(proto::ChunkKind::EncodedText(text)) => {
            let tokens = le::read::<i32>(at, &text.tokens).map_err(as_input)?;
            Ok(Chunk::tokens(tokens))
        }
        Some(proto::ChunkKind::Image(image)) => {
            let format = match image.format.as_str() {
                "png" => ImageFormat::Png,
                "jpeg" => ImageFormat::Jpeg,
                other => {
                    return Err(Error::invalid(
                        format!("{at}.format"),
                        format!("must be png or jpeg, got {other:?}"),
                    ));
                }
            };
            let chunk = Chunk::image(image.data.to_vec(), format);
            match image.expected_tokens.map(u32::try_from) {
                None => Ok(chunk),
                Some(Ok(tokens)) => Ok(chunk.with_expected_tokens(tokens)),
                Some(Err(_)) => Err(Error::invalid(
                    format!("{at}.expected_tokens"),
                    "must not be negative",
                )),
            }
        }
        Some(proto::ChunkKind::Dmel(dmel)) => {
            Chunk::dmel(dmel.dmel.to_vec()).map_err(|error| error.within(at))
        }
        None => Err(Error::invalid(at, "holds no known kind of chunk")),
    }
}

fn decode_spans(
    at: &str,
    field: &str,
    spans: Vec<proto::ProvenanceSpan>,
) -> Result<Vec<ProvenanceSpan>> {
    let decode = |(index, span): (usize, proto::ProvenanceSpan)| {
        let span = match span.span {
            Some(proto::ProvenanceSpanKind::PromptTokens(span)) => {
                ProvenanceSpan::prompt(span.sequence_id, span.offset, span.length)
            }
            Some(proto::ProvenanceSpanKind::SampledTokens(span)) => {
                ProvenanceSpan::sampled(span.sequence_id, span.offset, span.length)
            }
            None => Err(Error::invalid("span", "holds no known kind")),
        };
        span.map_err(|error| error.within(&format!("{at}.{field}[{index}]")))
    };
    spans.into_iter().enumerate().map(decode).collect()
}

/// The array readers blame an answer; here the fault lies in a request.
fn as_input(error: Error) -> Error {
    match error {
        Error::Reply(context) => Error::invalid("body", context.message),
        other => other,
    }
}
