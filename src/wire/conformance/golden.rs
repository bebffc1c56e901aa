//! The recorded requests and answers of the official SDK, case by case.

use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::plain::{self, assert_same, same_answer};
use crate::error::{Error, Result};
use crate::types::*;
use crate::wire::dialect::{
    decode_forward_backward, decode_request, decode_sample, encode_forward_backward_json,
    json_route,
};
use crate::wire::forward_backward::{
    OwnedForwardBackwardRequest, decode_forward_backward_request, encode_forward_backward,
};
use crate::wire::handle::SamplerHandle;
use crate::wire::output::encode_forward_backward_output;
use crate::wire::proto;
use crate::wire::reply::*;
use crate::wire::request::*;
use crate::wire::route::{self, Route};
use crate::wire::sample::encode_sample;

const PROTOBUF: Option<&str> = Some(crate::wire::reply::PROTOBUF);

macro_rules! golden {
    ($name:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!(
            "../../../tests/fixtures/wire/",
            $name
        )))
        .unwrap()
    };
}

pub(super) fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The bytes recorded beside the tables, in `fwdbwd_request`, `fwdbwd_output` and
/// `sample_response`.
fn file(name: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/wire/");
    std::fs::read(format!("{root}{name}")).unwrap()
}

/// Reads a body as the server does and writes it as the client does.
fn echo<T: Serialize + DeserializeOwned>(body: &Value) -> Value {
    let value: T = from_json(body.to_string().as_bytes()).unwrap();
    serde_json::from_slice(&to_json(&value).unwrap()).unwrap()
}

/// Which endpoint and which struct a recorded request belongs to.
pub(super) fn request_case(name: &str, body: &Value) -> (Route, Value) {
    match name.split('/').next().unwrap() {
        "ClientConfigRequest" => (route::CLIENT_CONFIG, echo::<ClientConfigRequest>(body)),
        "CreateSessionRequest" => (route::CREATE_SESSION, echo::<CreateSessionRequest>(body)),
        "SessionHeartbeatRequest" => (
            route::SESSION_HEARTBEAT,
            echo::<SessionHeartbeatRequest>(body),
        ),
        "CreateModelRequest" => (route::CREATE_MODEL, echo::<CreateModelRequest>(body)),
        "GetInfoRequest" => (route::GET_INFO, echo::<GetInfoRequest>(body)),
        "OptimStepRequest" => {
            let read: OptimStepRequest = from_json(body.to_string().as_bytes()).unwrap();
            let params = read.params().unwrap();
            let built = OptimStepRequest::new(read.model_id.clone(), read.seq_id, &params);
            assert_eq!(built, read);
            (route::OPTIM_STEP, echo::<OptimStepRequest>(body))
        }
        "SaveWeightsRequest" => (route::SAVE_WEIGHTS, echo::<SaveWeightsRequest>(body)),
        "SaveWeightsForSamplerRequest" => (
            route::SAVE_WEIGHTS_FOR_SAMPLER,
            echo::<SaveWeightsForSamplerRequest>(body),
        ),
        "SaveWeightsExternalRequest" => (
            route::SAVE_WEIGHTS_EXTERNAL,
            echo::<SaveWeightsExternalRequest>(body),
        ),
        "LoadWeightsRequest" => (route::LOAD_WEIGHTS, echo::<LoadWeightsRequest>(body)),
        "CreateSamplingSessionRequest" => (
            route::CREATE_SAMPLING_SESSION,
            echo::<CreateSamplingSessionRequest>(body),
        ),
        "JoinSamplingSessionRequest" => (
            route::JOIN_SAMPLING_SESSION,
            echo::<JoinSamplingSessionRequest>(body),
        ),
        "SampleRequest" => (route::ASAMPLE, echo::<AsampleRequest>(body)),
        "FutureRetrieveRequest" => (route::RETRIEVE_FUTURE, echo::<RetrieveFutureRequest>(body)),
        "FuturesRetrieveRequest" => (
            route::RETRIEVE_FUTURES,
            echo::<RetrieveFuturesRequest>(body),
        ),
        "CopyWeightsRequest" => (route::COPY_WEIGHTS, echo::<CopyWeightsRequest>(body)),
        "CreateCustomLossRequest" => (
            route::CREATE_CUSTOM_LOSS,
            echo::<CreateCustomLossRequest>(body),
        ),
        "SessionSearchRequest" => (route::SEARCH_SESSIONS, echo::<SessionSearch>(body)),
        "weights_info" => (route::WEIGHTS_INFO, echo::<WeightsInfoRequest>(body)),
        "auth_token" => (route::AUTH_TOKEN, echo::<AuthTokenRequest>(body)),
        "cancel_future" => (route::CANCEL_FUTURE, echo::<CancelFutureRequest>(body)),
        "session_finish" => (route::FINISH_SESSION, echo::<FinishSessionRequest>(body)),
        "set_ttl" => (route::SET_CHECKPOINT_TTL, echo::<SetTtlRequest>(body)),
        "assign_project" => (
            route::ASSIGN_SESSION_PROJECT,
            echo::<AssignProjectRequest>(body),
        ),
        other => panic!("no struct for {other}"),
    }
}

#[test]
fn requests_are_written_as_recorded() {
    let golden = golden!("requests.json");
    for case in list(&golden["requests"]) {
        let name = text(case, "name");
        let (route, written) = request_case(name, &case["json"]);
        assert_same(&written, &case["json"], name);
        let wire: Value = serde_json::from_str(text(case, "wire_text")).unwrap();
        assert_same(&written, &wire, name);
        let endpoint = format!("{} /api/v1/{}", route.method.as_str(), route.template);
        assert_eq!(endpoint, text(case, "endpoint"), "{name}");
    }
}

#[test]
fn stop_is_sent_as_given() {
    for case in list(&golden!("requests.json")["stop_variants"]) {
        let params = SamplingParams {
            stop: serde_json::from_value(case["stop"].clone()).unwrap(),
            ..SamplingParams::default()
        };
        let written = serde_json::to_value(&params).unwrap();
        assert_same(
            &written,
            &case["sampling_params"],
            &case["stop"].to_string(),
        );
    }
}

#[test]
fn refused_requests_cannot_be_built() {
    let user = |count: usize| {
        SessionSearch::default().with_owner(SearchOwner::User {
            owner_urns: vec!["x".to_owned(); count],
        })
    };
    for case in list(&golden!("requests.json")["client_side_rejections"]) {
        let refused = match text(case, "case") {
            // There is no way to give a struct a field or a tag it does not have.
            "unknown field" | "frozen type tag" => true,
            "adam extra field" => serde_json::from_value::<AdamParams>(json!({"lr": 1})).is_err(),
            "dimuon negative lr" => DimuonParams::learning_rate(-1.0).validate().is_err(),
            "dimuon nan lr" => DimuonParams::learning_rate(f64::NAN).validate().is_err(),
            "dimuon beta1 1" => DimuonParams::learning_rate(1.0)
                .with_beta1(1.0)
                .validate()
                .is_err(),
            "search limit 0" => SessionSearch::default().with_limit(0).validate().is_err(),
            "search limit 201" => SessionSearch::default().with_limit(201).validate().is_err(),
            "search 11 owners" => user(11).validate().is_err(),
            "search empty display name" => SessionSearch::default()
                .with_display_name("")
                .validate()
                .is_err(),
            "image format gif" => serde_json::from_value::<ImageFormat>(json!("gif")).is_err(),
            "loss input rank 3" => CustomLossInput::new("x", 3).is_err(),
            other => panic!("no check for {other}"),
        };
        assert_eq!(json!(refused), case["rejected"], "{case}");
    }
}

fn training_cases() -> Vec<(String, Vec<u8>, OwnedForwardBackwardRequest, Value)> {
    let golden = golden!("fwdbwd_request.json");
    let cases = list(&golden["cases"]).iter().map(|case| {
        let bytes = unhex(text(case, "hex"));
        assert_eq!(file(text(case, "file")), bytes);
        let request = plain::read_request(&case["request"]);
        (
            text(case, "name").to_owned(),
            bytes,
            request,
            case["request"].clone(),
        )
    });
    cases.collect()
}

#[test]
fn training_requests_are_encoded_as_recorded() {
    let mut out = vec![1; 100];
    for (name, expected, request, _) in training_cases() {
        encode_forward_backward(&request.as_request(), &mut out).unwrap();
        let decode = |bytes: &[u8]| proto::ForwardBackwardRequest::decode(bytes).unwrap();
        assert_eq!(decode(&out), decode(&expected), "{name}");
        // The recorded maps are sorted, as ours always are.
        assert_eq!(out, expected, "{name}");
        let read = decode_forward_backward_request(expected).unwrap();
        assert_same(&plain::request(&read), &plain::request(&request), &name);
    }
}

#[test]
fn refused_training_requests_are_refused() {
    let datum = |input: ModelInput| Datum::new(input).with_target_tokens(vec![1i64, 2]);
    let simple = datum(ModelInput::from_ints(vec![1, 2]));
    let encode = |seq_id: u64, datum: Datum| -> Result<()> {
        let request = OwnedForwardBackwardRequest {
            model_id: "m".into(),
            seq_id: Some(seq_id),
            data: vec![datum],
            loss_fn: "cross_entropy".into(),
            loss_fn_config: LossConfig::new(),
            forward_only: false,
        };
        encode_forward_backward(&request.as_request(), &mut Vec::new())
    };
    encode(1, simple.clone()).unwrap();
    let span = |id: &str, offset, length| ProvenanceSpan::prompt(id, offset, length);
    for case in list(&golden!("fwdbwd_request.json")["rejections"]) {
        let refused = match text(case, "case") {
            "image asset pointer chunk" => {
                let image = Chunk::image_asset("s3://x", ImageFormat::Png);
                encode(1, datum(ModelInput::from_chunks(vec![image]))).is_err()
            }
            "seq_id over int32" => encode(1 << 31, simple.clone()).is_err(),
            "token over int32" => ModelInput::try_from_ints(vec![1i64 << 31]).is_err(),
            "crow without col" => serde_json::from_value::<TensorData>(
                json!({"data": [1], "dtype": "int64", "shape": [1, 1], "sparse_crow_indices": [0, 1]}),
            )
            .is_err(),
            "one span list only" => simple
                .clone()
                .with_provenance(vec![span("q", 0, 2).unwrap()], vec![])
                .is_err(),
            "spans do not tile" => simple
                .clone()
                .with_provenance(vec![span("q", 0, 1).unwrap()], vec![span("q", 0, 2).unwrap()])
                .is_err(),
            "span empty sequence id" => span("", 0, 1).is_err(),
            "span negative offset" => span("q", -1, 1).is_err(),
            "list under an unknown key" => TensorData::from_json_list("x", &json!([1])).is_err(),
            "ragged list" => TensorData::from_json_list("weights", &json!([[1], [1, 2]])).is_err(),
            // No conversion from such slices exists.
            "numpy bool" | "numpy uint8" => true,
            other => panic!("no check for {other}"),
        };
        assert_eq!(json!(refused), case["rejected"], "{case}");
    }
}

#[test]
fn training_requests_are_written_in_the_json_dialect() {
    let golden = golden!("json_dialect_requests.json");
    let cases = training_cases();
    for recorded in list(&golden) {
        let name = text(recorded, "name");
        let (_, _, request, source) = cases.iter().find(|case| case.0 == name).unwrap();
        let mut borrowed = request.as_request();
        if source["loss_fn_config"].is_null() {
            borrowed.loss_fn_config = None;
        }
        let body = encode_forward_backward_json(&borrowed).unwrap();
        let written: Value = serde_json::from_slice(&body).unwrap();
        assert_same(&written, &recorded["json"], name);
        let path = format!("POST {}", json_route(&borrowed).fixed_path());
        assert_eq!(path, text(recorded, "endpoint"), "{name}");
        assert_eq!(&decode_request(None, body).unwrap(), request, "{name}");
    }
    // Two of the protobuf cases cannot be expressed in this dialect.
    assert_eq!(list(&golden).len() + 2, cases.len());
}

#[test]
fn numbers_json_cannot_hold_are_refused_in_the_json_dialect() {
    let (_, _, request, _) = training_cases()
        .into_iter()
        .find(|case| case.0 == "token_extremes")
        .unwrap();
    let error = encode_forward_backward_json(&request.as_request()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("data[0].loss_fn_inputs.weights.data[0]"),
        "{error}"
    );
}

#[test]
fn protobuf_results_are_decoded_as_recorded() {
    let golden = golden!("proto_responses.json");
    let mut out = Vec::new();
    for case in list(&golden["forward_backward_output"]) {
        let name = text(case, "name");
        let bytes = unhex(text(case, "hex"));
        assert_eq!(file(text(case, "file")), bytes);
        let output = decode_forward_backward(PROTOBUF, bytes).unwrap();
        assert_same(&plain::output(&output), &case["decoded"], name);
        encode_forward_backward_output(&output, &mut out).unwrap();
        let again = decode_forward_backward(PROTOBUF, out.clone()).unwrap();
        if name != "no_records_keeps_full_type" {
            assert_eq!(again, output, "{name}");
        }
    }
    for case in list(&golden["sample_response"]) {
        let name = text(case, "name");
        let bytes = unhex(text(case, "hex"));
        assert_eq!(file(text(case, "file")), bytes);
        let response = decode_sample(PROTOBUF, bytes, None).unwrap();
        let mut expected = case["decoded"].clone();
        for sequence in expected["sequences"].as_array_mut().unwrap() {
            let id = sequence.as_object_mut().unwrap().remove("sequence_id");
            assert_eq!(id, Some(Value::Null));
        }
        assert_same(&plain::sample(&response), &expected, name);
        encode_sample(&response, &mut out);
        assert_eq!(
            decode_sample(PROTOBUF, out.clone(), None).unwrap(),
            response
        );
    }
    for case in list(&golden["rejected"]) {
        let bytes = unhex(text(case, "hex"));
        let error = match text(case, "case") {
            // On purpose: a reason that a newer service gives costs nobody a sample.
            "unknown stop_reason" => {
                let response = decode_sample(PROTOBUF, bytes, None).unwrap();
                assert_eq!(response.sequences[0].stop_reason, StopReason::Unknown);
                continue;
            }
            "dtype unspecified" => decode_forward_backward(PROTOBUF, bytes).unwrap_err(),
            _ => decode_sample(PROTOBUF, bytes, None).unwrap_err(),
        };
        assert!(matches!(error, Error::Reply(_)), "{case}: {error}");
    }
}

/// Reads an answer and shows what was understood.
fn answer(kind: &str, input: &Value) -> Result<Value> {
    fn read<T: DeserializeOwned + Serialize>(body: &[u8]) -> Result<Value> {
        Ok(serde_json::to_value(decode_json::<T>(body)?).unwrap())
    }
    let body = input.to_string();
    let body = body.as_bytes();
    match kind {
        "ClientConfigResponse" => read::<ClientConfig>(body),
        "ClientDynamicConfigResponse" => read::<DynamicConfig>(body),
        "UntypedAPIFuture" => read::<FutureReply>(body),
        "CreateSessionResponse" => read::<CreateSessionReply>(body),
        "CreateModelResponse" => read::<CreateModelReply>(body),
        "GetServerCapabilitiesResponse" => read::<ServerCapabilities>(body),
        "GetInfoResponse" => read::<ModelInfo>(body),
        "WeightsInfoResponse" => read::<WeightsInfo>(body),
        "OptimStepResponse" => read::<OptimStepResponse>(body),
        "SaveWeightsResponse" => read::<SaveWeightsResponse>(body),
        "LoadWeightsResponse" => read::<LoadWeightsResponse>(body),
        "SaveWeightsForSamplerResponseInternal" => read::<SaveWeightsForSamplerResponse>(body),
        "Checkpoint" => read::<Checkpoint>(body),
        "TrainingRun" => read::<TrainingRun>(body),
        "CheckpointsListResponse" => read::<CheckpointPage>(body),
        "FuturesRetrieveResponse" => read::<CompletionsReply>(body),
        "JoinSamplingSessionResponse" => read::<JoinSamplingSessionReply>(body),
        "GetSessionResponse" => read::<SessionDetails>(body),
        "BillingUsageResponse" => read::<BillingUsage>(body),
        "SessionSummary" => read::<SessionSummary>(body),
        other => panic!("no type for {other}"),
    }
}

#[test]
fn json_answers_are_understood_as_recorded() {
    let golden = golden!("json_responses.json");
    for case in list(&golden["accepted"]) {
        let kind = text(case, "type");
        let read = answer(kind, &case["input"]).unwrap();
        let mut expected = case["decoded"].clone();
        // Results need no tag once they are read.
        if read.get("type").is_none() {
            expected.as_object_mut().unwrap().remove("type");
        }
        assert!(
            same_answer(&read, &expected),
            "{kind}\n  actual: {read}\nexpected: {expected}"
        );
    }
    for case in list(&golden["rejected"]) {
        // On purpose: a state that a newer service has says at least that the request has ended.
        if case["input"]["completions"][0]["state"] == "odd" {
            answer(text(case, "type"), &case["input"]).unwrap();
            continue;
        }
        let error = answer(text(case, "type"), &case["input"]).unwrap_err();
        assert!(matches!(error, Error::Reply(_)), "{case}: {error}");
    }
}

#[test]
fn sampler_handles_say_what_was_recorded() {
    let recorded = &golden!("http_capture.json")["sampler_handle"];
    let handle: SamplerHandle = serde_json::from_value(recorded["decoded"].clone()).unwrap();
    let text = handle.encode().unwrap();
    assert_eq!(SamplerHandle::decode(&text).unwrap(), handle);
    assert_same(
        &serde_json::to_value(&handle).unwrap(),
        &recorded["decoded"],
        "handle",
    );
    assert_eq!(text.len() % 4, 0);
}
