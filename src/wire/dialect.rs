//! The JSON dialect of older and self-hosted servers, and choosing a decoder by content type.
//!
//! Services up to SDK 0.24 ("the JSON era") take `forward` and `forward_backward` as JSON and answer
//! results as JSON. SkyRL 0.3.0 still knows nothing else; newer SkyRL answers by `Accept`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::forward_backward::{
    ForwardBackwardRequest, OwnedForwardBackwardRequest, decode_forward_backward_request,
};
use super::output::decode_forward_backward_proto;
use super::reply::{decode_json, is_protobuf};
use super::request::{from_json, to_json};
use super::route::{FORWARD, FORWARD_BACKWARD, Route};
use super::sample::decode_sample_proto;
use crate::error::{Context, Error, Result};
use crate::types::{
    Datum, ForwardBackwardOutput, LossConfig, LossConfigValue, ModelInput, PromptLogprobs,
    SampleResponse, TensorData, TopkLogprobs,
};

/// Where a JSON request goes: passes without gradients have an endpoint of their own.
pub(crate) fn json_route(request: &ForwardBackwardRequest<'_>) -> Route {
    if request.forward_only {
        FORWARD
    } else {
        FORWARD_BACKWARD
    }
}

/// Checks everything that cannot be written as JSON, so that encoding cannot fail.
///
/// # Errors
///
/// [`Error::Invalid`] names the first number JSON cannot hold.
pub(crate) fn validate_json(request: &ForwardBackwardRequest<'_>) -> Result<()> {
    for (name, value) in request.loss_fn_config.into_iter().flatten() {
        if matches!(value, LossConfigValue::Number(number) if !number.is_finite()) {
            return Err(Error::invalid(
                format!("loss_fn_config.{name}"),
                "must be finite to be written as JSON",
            ));
        }
    }
    for (index, datum) in request.data.iter().enumerate() {
        for (name, tensor) in datum.loss_fn_inputs() {
            tensor
                .check_finite()
                .map_err(|error| error.within(&format!("data[{index}].loss_fn_inputs.{name}")))?;
        }
    }
    Ok(())
}

/// Encodes a request as JSON. Provenance has no place in this dialect and is left out.
///
/// # Errors
///
/// As [`validate_json`].
pub(crate) fn encode_forward_backward_json(
    request: &ForwardBackwardRequest<'_>,
) -> Result<Vec<u8>> {
    validate_json(request)?;
    let input = InputJson {
        data: request.data.iter().map(DatumJson::from).collect(),
        loss_fn: request.loss_fn.into(),
        loss_fn_config: request.loss_fn_config.map(Cow::Borrowed),
    };
    let (forward_input, forward_backward_input) = if request.forward_only {
        (Some(input), None)
    } else {
        (None, Some(input))
    };
    to_json(&RequestJson {
        forward_input,
        forward_backward_input,
        model_id: request.model_id.into(),
        seq_id: request.seq_id,
    })
}

/// Reads a request in the dialect its content type announces, on the server.
///
/// # Errors
///
/// [`Error::Invalid`] if it is damaged or holds values that do not fit together.
pub(crate) fn decode_request(
    content_type: Option<&str>,
    body: Vec<u8>,
) -> Result<OwnedForwardBackwardRequest> {
    if is_protobuf(content_type) {
        return decode_forward_backward_request(body);
    }
    let request: RequestJson<'_, Datum> = from_json(&body)?;
    let (forward_only, input) = match (request.forward_input, request.forward_backward_input) {
        (Some(input), None) => (true, input),
        (None, Some(input)) => (false, input),
        _ => {
            return Err(Error::invalid(
                "body",
                "must have either forward_input or forward_backward_input",
            ));
        }
    };
    Ok(OwnedForwardBackwardRequest {
        model_id: request.model_id.into_owned(),
        seq_id: request.seq_id,
        data: input.data,
        loss_fn: input.loss_fn.into_owned(),
        loss_fn_config: input.loss_fn_config.unwrap_or_default().into_owned(),
        forward_only,
    })
}

#[derive(Serialize, Deserialize)]
struct RequestJson<'a, D> {
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_input: Option<InputJson<'a, D>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forward_backward_input: Option<InputJson<'a, D>>,
    model_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq_id: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct InputJson<'a, D> {
    data: Vec<D>,
    loss_fn: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_fn_config: Option<Cow<'a, LossConfig>>,
}

#[derive(Serialize)]
struct DatumJson<'a> {
    loss_fn_inputs: &'a BTreeMap<String, TensorData>,
    model_input: &'a ModelInput,
}

impl<'a> From<&'a Datum> for DatumJson<'a> {
    fn from(datum: &'a Datum) -> Self {
        Self {
            loss_fn_inputs: datum.loss_fn_inputs(),
            model_input: datum.model_input(),
        }
    }
}

/// Reads the result of `forward` or `forward_backward`, in whichever dialect it came.
///
/// # Errors
///
/// [`Error::Reply`] if it is damaged or contradicts itself.
pub(crate) fn decode_forward_backward(
    content_type: Option<&str>,
    body: Vec<u8>,
) -> Result<ForwardBackwardOutput> {
    if is_protobuf(content_type) {
        decode_forward_backward_proto(body)
    } else {
        decode_json(&body)
    }
}

/// Reads the result of a sample, in whichever dialect it came, and names its sequences.
///
/// `sequence_ids` came with the submission; servers of the JSON era give none.
///
/// # Errors
///
/// [`Error::Reply`] if it is damaged, contradicts itself, or does not have one id per sequence.
pub(crate) fn decode_sample(
    content_type: Option<&str>,
    body: Vec<u8>,
    sequence_ids: Option<&[String]>,
) -> Result<SampleResponse> {
    let mut response = if is_protobuf(content_type) {
        decode_sample_proto(body)?
    } else {
        let mut response = decode_json(&body)?;
        add_first_position(&mut response);
        response
    };
    let Some(ids) = sequence_ids else {
        return Ok(response);
    };
    if ids.len() != response.sequences.len() {
        return Err(Error::Reply(Context::new(format!(
            "{} sequences came where {} were named",
            response.sequences.len(),
            ids.len()
        ))));
    }
    for (sequence, id) in response.sequences.iter_mut().zip(ids) {
        sequence.sequence_id = Some(id.as_str().into());
    }
    Ok(response)
}

/// Puts back the place of the prompt's first token where a server left it out, in whichever
/// dialect it answered: there is one entry less than the prompt has tokens.
pub(crate) fn align_prompt(response: &mut SampleResponse, tokens: usize) {
    let missing = |count: Option<usize>| count.is_some_and(|count| count + 1 == tokens);
    let logprobs = response.prompt_logprobs.as_ref().map(PromptLogprobs::len);
    let topk = response.topk_prompt_logprobs.as_ref();
    if missing(logprobs) || missing(topk.map(TopkLogprobs::len)) {
        add_first_position(response);
    }
}

/// SkyRL leaves out the prompt's first token, which never has a log-probability, and sends N-1
/// values for N tokens; the hosted service sends N, the first null. Its place is put back, so that
/// entries line up with tokens on either.
fn add_first_position(response: &mut SampleResponse) {
    match &response.prompt_logprobs {
        Some(logprobs) if logprobs.is_empty() => response.prompt_logprobs = None,
        Some(logprobs) if logprobs.get(0).is_some() => {
            let padded: PromptLogprobs = std::iter::once(None).chain(logprobs.iter()).collect();
            response.prompt_logprobs = Some(padded);
        }
        _ => {}
    }
    if let Some(topk) = &response.topk_prompt_logprobs
        && topk.row(0).is_some()
    {
        let mut lists = topk.to_lists();
        lists.insert(0, None);
        response.topk_prompt_logprobs = Some(TopkLogprobs::from_lists(&lists));
    }
}

/// Writes the result of a sample as JSON, on the server.
///
/// # Errors
///
/// [`Error::Invalid`] for numbers JSON cannot hold.
pub(crate) fn encode_sample_json(response: &SampleResponse) -> Result<Vec<u8>> {
    #[derive(Serialize)]
    #[serde(tag = "type", rename = "sample")]
    struct Tagged<'a> {
        #[serde(flatten)]
        response: &'a SampleResponse,
    }
    to_json(&Tagged { response })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Option<&str> = Some("application/json");

    fn sample(body: &str) -> SampleResponse {
        decode_sample(JSON, body.into(), None).unwrap()
    }

    #[test]
    fn the_first_position_is_put_back_when_missing() {
        #[track_caller]
        fn check(list: &str, expected: Option<&[Option<f32>]>) {
            let body = format!(
                r#"{{"sequences":[{{"stop_reason":"stop","tokens":[1],"logprobs":[-0.5]}}],
                    "prompt_logprobs":{list}}}"#
            );
            let logprobs = sample(&body).prompt_logprobs;
            let logprobs = logprobs.map(|logprobs| logprobs.iter().collect::<Vec<_>>());
            assert_eq!(logprobs.as_deref(), expected, "{list}");
        }
        check("null", None);
        check("[]", None);
        check("[null,-1.0]", Some(&[None, Some(-1.0)]));
        check("[-1.0,-2.0]", Some(&[None, Some(-1.0), Some(-2.0)]));
    }

    #[test]
    fn a_prompt_of_known_length_lines_up_in_any_dialect() {
        let logprobs = |tokens| {
            let mut response = SampleResponse {
                prompt_logprobs: Some(vec![-1.0, -2.0].into()),
                ..SampleResponse::default()
            };
            align_prompt(&mut response, tokens);
            response.prompt_logprobs.unwrap().iter().collect::<Vec<_>>()
        };
        assert_eq!(logprobs(3), [None, Some(-1.0), Some(-2.0)]);
        assert_eq!(logprobs(2), [Some(-1.0), Some(-2.0)]);
    }

    #[test]
    fn top_lists_line_up_too() {
        let body = r#"{"sequences":[],"topk_prompt_logprobs":[[[7,-0.5]],null]}"#;
        let topk = sample(body).topk_prompt_logprobs.unwrap();
        assert_eq!(topk.to_lists(), [None, Some(vec![(7, -0.5)]), None]);
    }

    #[test]
    fn sequences_get_their_ids() {
        let body = r#"{"sequences":[{"stop_reason":"length","tokens":[1]}],"type":"sample"}"#;
        let ids = ["q-1".to_owned()];
        let named = decode_sample(JSON, body.into(), Some(&ids)).unwrap();
        assert_eq!(named.sequences[0].sequence_id.as_deref(), Some("q-1"));
        let error = decode_sample(JSON, body.into(), Some(&[])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unexpected answer: 1 sequences came where 0 were named"
        );
    }

    #[test]
    fn sample_results_round_trip_as_json() {
        let body = r#"{"sequences":[{"stop_reason":"length","tokens":[1,2],"logprobs":[-0.5,-1.25]}],
            "prompt_logprobs":[null,-2.0],"prompt_cache_hit_tokens":3}"#;
        let response = sample(body);
        let text = encode_sample_json(&response).unwrap();
        assert!(
            std::str::from_utf8(&text)
                .unwrap()
                .contains(r#""type":"sample""#)
        );
        assert_eq!(decode_sample(JSON, text, None).unwrap(), response);
    }

    #[test]
    fn odd_results_of_self_hosted_servers_are_read() {
        let body = r#"{"loss_fn_output_type":"scalar","loss_fn_outputs":[
            {"elementwise_loss":{"data":[0.5],"dtype":"float32","shape":[1]},
             "logprobs":{"data":[-1],"dtype":"float32"}}],"metrics":{"loss":1},"extra":[]}"#;
        let output = decode_forward_backward(None, body.into()).unwrap();
        assert_eq!(output.loss_fn_output_type, "scalar");
        assert_eq!(output.logprobs(0), Some(&[-1.0][..]));
        assert_eq!(output.metrics["loss"], 1.0);
    }
}
