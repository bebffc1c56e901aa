//! The golden files that concern plain values: paths, chunking, estimates, folding, JSON forms.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tinker::types::*;
use tinker::unversioned::{ClientConfig, DynamicConfig, telemetry};
use tinker::{
    AdamParams, Datum, ForwardBackwardOutput, LoraConfig, ModelInput, Result, TensorData,
};

fn golden(file: &str) -> Value {
    let path = format!("{}/tests/fixtures/wire/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn cases(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().unwrap()
}

/// A number of the golden files, where `{"$float": "nan"}` stands for what JSON cannot write.
fn number(value: &Value) -> f64 {
    match value.get("$float") {
        Some(special) => special.as_str().unwrap().parse().unwrap(),
        None => value.as_f64().unwrap(),
    }
}

fn parse<T: DeserializeOwned>(value: &Value) -> serde_json::Result<T> {
    serde_json::from_value(value.clone())
}

fn write<T: Serialize>(value: T) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn tinker_paths() {
    let golden = golden("tinker_paths.json");
    for case in cases(&golden["parse"]) {
        let path = text(case, "path");
        match path.parse::<TinkerPath>() {
            Ok(parsed) => {
                assert_eq!(parsed.run_id(), text(case, "training_run_id"), "{path}");
                assert_eq!(
                    parsed.kind().as_str(),
                    text(case, "checkpoint_type"),
                    "{path}"
                );
                assert_eq!(
                    parsed.checkpoint_id(),
                    text(case, "checkpoint_id"),
                    "{path}"
                );
                assert_eq!(parsed.to_string(), path);
            }
            Err(error) => assert_eq!(case["error"], "ValueError", "{path}: {error}"),
        }
    }
    let urls = &golden["console_urls"];
    let training = TinkerPath::new("S1:train:0", CheckpointKind::Training, "a b").unwrap();
    let sampler = TinkerPath::new("S1:train:0", CheckpointKind::Sampler, "a").unwrap();
    assert_eq!(urls["session"], console::session_url("S1"));
    assert_eq!(urls["sessions"], console::sessions_url());
    assert_eq!(
        urls["training_run"],
        console::training_run_url("S1:train:0")
    );
    assert_eq!(urls["checkpoint"], console::checkpoint_url(&training));
    assert_eq!(urls["playground"], console::playground_url(&sampler));
    assert_eq!(urls["api_key"], console::api_key_url("4/2"));
    assert_eq!(
        urls["new_api_key"],
        console::new_api_key_url("tinker-cli-my host")
    );
}

#[test]
fn chunking() {
    for case in cases(&golden("chunking.json")) {
        let config: ClientConfig = parse(&case["config"]).unwrap();
        let tokens: Vec<usize> = parse(&case["tokens_per_datum"]).unwrap();
        let data: Vec<Datum> = tokens
            .iter()
            .map(|&count| Datum::new(ModelInput::from_ints(vec![1; count])))
            .collect();
        let bytes: Vec<usize> = data.iter().map(Datum::byte_estimate).collect();
        assert_eq!(write(bytes), case["bytes_per_datum"], "{}", case["case"]);
        let ranges = chunk_ranges(
            &data,
            config.fwdbwd_max_chunk_len,
            config.fwdbwd_max_chunk_bytes_count,
        );
        let seen: Vec<Value> = ranges
            .iter()
            .map(|chunk| json!({"datums": chunk.range.len(), "bytes": chunk.bytes}))
            .collect();
        assert_eq!(write(seen), case["chunks"], "{}", case["case"]);
        let joined: Vec<usize> = ranges.into_iter().flat_map(|chunk| chunk.range).collect();
        assert_eq!(
            joined,
            (0..data.len()).collect::<Vec<_>>(),
            "{}",
            case["case"]
        );
    }
}

#[test]
fn byte_estimates() {
    let golden = golden("byte_estimates.json");
    for case in cases(&golden["per_chunk"]) {
        let chunk = match text(case, "case") {
            "text 3 tokens" => Chunk::tokens([1, 2, 3]),
            "image 5 bytes" => Chunk::image(vec![0; 5], ImageFormat::Png),
            "asset pointer" => Chunk::image_asset("s3://é", ImageFormat::Png),
            "dmel 4 bytes" => Chunk::dmel(vec![3, 1, 5, 0]).unwrap(),
            other => panic!("new case: {other}"),
        };
        let input = ModelInput::empty().append(chunk);
        assert_eq!(case["training"], input.byte_estimate(), "{case}");
        assert_eq!(case["sampling"], input.sampling_byte_estimate(), "{case}");
    }
    for case in cases(&golden["per_datum"]) {
        let three = Datum::new(ModelInput::from_ints([1, 2, 3]));
        let datum = match text(case, "case") {
            "3 tokens, int64[3] + float32[3]" => three
                .with_target_tokens([1, 2, 3])
                .with_weights([1.0, 1.0, 1.0]),
            "sparse nnz 2, 3 rows" => three.with_weights(
                TensorData::sparse_csr(vec![0.5f32, 0.25], vec![0, 1, 1, 2], vec![0, 3], [3, 4])
                    .unwrap(),
            ),
            "empty" => Datum::new(ModelInput::empty()),
            other => panic!("new case: {other}"),
        };
        assert_eq!(case["bytes"], datum.byte_estimate(), "{case}");
    }
    for case in cases(&golden["tensor_container_shape"]) {
        let bytes = text(case, "hex").as_bytes().chunks(2);
        let bytes =
            bytes.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
        let chunk = DmelChunk {
            dmel: std::sync::Arc::new(bytes.collect()),
        };
        match chunk.shape() {
            Ok(shape) => assert_eq!(write(shape), case["shape"], "{case}"),
            Err(error) => assert_eq!(case["error"], "ValueError", "{error}"),
        }
    }
}

#[test]
fn metric_reduction() {
    for case in cases(&golden("metric_reduction.json")) {
        let name = text(case, "name");
        let parts = cases(&case["results"]).iter().map(|part| {
            let metrics = part["metrics"].as_object().unwrap();
            let metrics = metrics
                .iter()
                .map(|(name, value)| (name.clone(), number(value)));
            let outputs = part["num_outputs"].as_u64().unwrap() as usize;
            ForwardBackwardOutput::new("", vec![BTreeMap::new(); outputs], metrics.collect())
        });
        let combined = match ForwardBackwardOutput::combine(parts.collect()) {
            Ok(combined) => combined,
            Err(error) => {
                assert!(case["raises"].is_string(), "{name}: {error}");
                continue;
            }
        };
        // Self-hosted servers name metrics without saying how to fold them, or with more words than
        // one. The reference throws the result away; here it is kept, the metric under its name.
        if matches!(name, "key without suffix" | "key with two colons") {
            assert_eq!(combined.metrics.len(), 1, "{name}: {combined:?}");
            continue;
        }
        let expected = case["metrics"]
            .as_object()
            .unwrap_or_else(|| panic!("{name} must fail"));
        assert!(
            combined.metrics.keys().eq(expected.keys()),
            "{name}: {combined:?}"
        );
        for (key, value) in expected {
            let (seen, wanted) = (combined.metrics[key], number(value));
            assert!(
                seen == wanted || (seen.is_nan() && wanted.is_nan()),
                "{name} {key}: {seen}"
            );
            if key.ends_with(":hash2") {
                assert_eq!(Some(combined.hashes[key]), value.as_u64(), "{name} {key}");
            }
        }
    }
}

#[test]
fn topk_rows() {
    for case in cases(&golden("topk.json")) {
        let token_ids: Vec<Vec<i32>> = parse(&case["token_ids"]).unwrap();
        let logprobs: Vec<Vec<f32>> = parse(&case["logprobs"]).unwrap();
        let k = token_ids[0].len();
        let topk = TopkLogprobs::new(token_ids.concat(), logprobs.concat(), k).unwrap();
        let lists: Vec<Option<Vec<(i32, f64)>>> = topk
            .to_lists()
            .into_iter()
            .map(|list| list.map(|row| row.into_iter().map(|(id, lp)| (id, lp.into())).collect()))
            .collect();
        assert_eq!(write(lists), case["lists"]);
    }
}

#[test]
fn list_conversions() {
    for case in cases(&golden("fwdbwd_request.json")["list_conversion"]) {
        let tensor = match case.get("numpy_dtype").map(|dtype| dtype.as_str().unwrap()) {
            None => TensorData::from_json_list(text(case, "key"), &case["list"]).unwrap(),
            // The Rust types that widen or narrow on the way in.
            Some("int8" | "int32") => TensorData::from(vec![1i32, 2]),
            Some("int64") => TensorData::from(vec![1i64, 2]),
            Some("float16" | "float64") => TensorData::from(vec![1.0f64, 2.0]),
            Some(other) => panic!("new dtype: {other}"),
        };
        assert_eq!(write(tensor), case["tensor"], "{case}");
    }
}

#[test]
fn training_data_round_trips_as_json() {
    for case in cases(&golden("fwdbwd_request.json")["cases"]) {
        for datum in cases(&case["request"]["data"]) {
            let finite = !datum.to_string().contains("$float");
            if !finite {
                assert!(parse::<Datum>(datum).is_err(), "{}", case["name"]);
                continue;
            }
            let parsed: Datum = parse(datum).unwrap();
            assert_eq!(write(parsed), without_nulls(datum), "{}", case["name"]);
        }
    }
}

/// Each rejection of the golden file that a value type is responsible for.
#[test]
fn training_data_rejections() {
    let input = || ModelInput::from_ints([1, 2]);
    let span = |length| ProvenanceSpan::prompt("a", 0, length);
    for case in cases(&golden("fwdbwd_request.json")["rejections"]) {
        assert_eq!(case["rejected"], true);
        let refused: Result<()> = match text(case, "case") {
            // Refused when the request is encoded.
            "image asset pointer chunk" | "seq_id over int32" => continue,
            // No conversion exists, so such a program does not compile.
            "numpy bool" | "numpy uint8" => continue,
            "token over int32" => ModelInput::try_from_ints(vec![1i64 << 31]).map(drop),
            "crow without col" => parse::<TensorData>(&json!(
                {"data": [1], "dtype": "int64", "shape": [1, 1], "sparse_crow_indices": [0, 1]}
            ))
            .map(drop)
            .map_err(as_invalid),
            "one span list only" => {
                parse::<Datum>(&json!({"model_input": {"chunks": []}, "model_input_spans": []}))
                    .map(drop)
                    .map_err(as_invalid)
            }
            "spans do not tile" => Datum::new(input())
                .with_target_tokens([1, 2])
                .with_provenance([span(1).unwrap()], [span(2).unwrap()])
                .map(drop),
            "span empty sequence id" => ProvenanceSpan::prompt("", 0, 1).map(drop),
            "span negative offset" => ProvenanceSpan::sampled("a", -1, 1).map(drop),
            "list under an unknown key" => {
                TensorData::from_json_list("mystery", &json!([1.0])).map(drop)
            }
            "ragged list" => {
                TensorData::from_json_list("weights", &json!([[1.0], [1.0, 2.0]])).map(drop)
            }
            other => panic!("new case: {other}"),
        };
        assert!(refused.unwrap_err().is_user_error(), "{case}");
    }
}

fn as_invalid(error: serde_json::Error) -> tinker::Error {
    tinker::Error::invalid("json", error.to_string())
}

#[test]
fn request_value_rejections() {
    for case in cases(&golden("requests.json")["client_side_rejections"]) {
        assert_eq!(case["rejected"], true);
        let refused = match text(case, "case") {
            // Request envelopes have no constructor that takes other fields or another tag.
            "unknown field" | "frozen type tag" => continue,
            "adam extra field" => parse::<AdamParams>(&json!({"lr": 1}))
                .map(drop)
                .map_err(as_invalid),
            "dimuon negative lr" => DimuonParams::learning_rate(-1.0).validate(),
            "dimuon nan lr" => DimuonParams::learning_rate(f64::NAN).validate(),
            "dimuon beta1 1" => DimuonParams::learning_rate(1.0).with_beta1(1.0).validate(),
            "search limit 0" => SessionSearch::default().with_limit(0).validate(),
            "search limit 201" => SessionSearch::default().with_limit(201).validate(),
            "search 11 owners" => SessionSearch::default()
                .with_owner(SearchOwner::User {
                    owner_urns: vec!["x".into(); 11],
                })
                .validate(),
            "search empty display name" => {
                SessionSearch::default().with_display_name("").validate()
            }
            "image format gif" => parse::<ImageFormat>(&json!("gif"))
                .map(drop)
                .map_err(as_invalid),
            "loss input rank 3" => CustomLossInput::new("x", 3).map(drop),
            other => panic!("new case: {other}"),
        };
        assert!(refused.is_err(), "{case}");
    }
}

/// Values inside the golden requests read into their types and write back the same.
#[test]
fn request_values_round_trip() {
    #[track_caller]
    fn check<T: DeserializeOwned + Serialize>(value: &Value) {
        if !value.is_null() {
            assert_eq!(&write(parse::<T>(value).unwrap()), value);
        }
    }
    let golden = golden("requests.json");
    for case in cases(&golden["requests"]) {
        let body = &case["json"];
        check::<ModelInput>(&body["prompt"]);
        check::<SamplingParams>(&body["sampling_params"]);
        check::<TensorData>(&body["target_prompt_logprobs"]);
        check::<LoraConfig>(&body["lora_config"]);
        check::<OptimizerConfig>(&body["optimizer_config"]);
        check::<AdamParams>(&body["adam_params"]);
        check::<OptimizerParams>(&body["adam_params"]);
        check::<OptimizerParams>(&body["optimizer_params"]);
        check::<Vec<CustomLossInput>>(&body["inputs"]);
        check::<CustomLossGraph>(&body["graph"]);
        if text(case, "name").starts_with("SessionSearchRequest") {
            check::<SessionSearch>(body);
        }
    }
    for case in cases(&golden["stop_variants"]) {
        let stop: Option<Stop> = parse(&case["stop"]).unwrap();
        let params = match stop {
            Some(stop) => SamplingParams::default().with_stop(stop),
            None => SamplingParams::default(),
        };
        assert_eq!(write(params), case["sampling_params"]);
    }
}

/// What the protobuf answers decode to is also what the JSON era sends.
#[test]
fn results_round_trip_as_json() {
    let golden = golden("proto_responses.json");
    for case in cases(&golden["sample_response"]) {
        let parsed: SampleResponse = parse(&case["decoded"]).unwrap();
        assert_eq!(
            without_nulls(&write(parsed)),
            without_nulls(&case["decoded"]),
            "{case}"
        );
    }
    for case in cases(&golden["forward_backward_output"]) {
        let parsed: ForwardBackwardOutput = parse(&case["decoded"]).unwrap();
        assert_eq!(
            without_nulls(&write(parsed)),
            without_nulls(&case["decoded"]),
            "{case}"
        );
    }
}

/// Reads an answer into the type of that name and writes it back; `None` for answers that are
/// not public types.
fn reread(name: &str, input: &Value) -> Option<serde_json::Result<Value>> {
    fn through<T: DeserializeOwned + Serialize>(input: &Value) -> serde_json::Result<Value> {
        parse::<T>(input).map(write)
    }
    let read = match name {
        "ClientConfigResponse" => through::<ClientConfig>,
        "ClientDynamicConfigResponse" => through::<DynamicConfig>,
        "GetServerCapabilitiesResponse" => through::<ServerCapabilities>,
        "GetInfoResponse" => through::<ModelInfo>,
        "WeightsInfoResponse" => through::<WeightsInfo>,
        "OptimStepResponse" => through::<OptimStepResponse>,
        "SaveWeightsResponse" => through::<SaveWeightsResponse>,
        "LoadWeightsResponse" => through::<LoadWeightsResponse>,
        "SaveWeightsForSamplerResponseInternal" => through::<SaveWeightsForSamplerResponse>,
        "Checkpoint" => through::<Checkpoint>,
        "TrainingRun" => through::<TrainingRun>,
        "CheckpointsListResponse" => through::<CheckpointPage>,
        "GetSessionResponse" => through::<SessionDetails>,
        "BillingUsageResponse" => through::<BillingUsage>,
        "SessionSummary" => through::<SessionSummary>,
        // Envelopes of the protocol itself.
        "UntypedAPIFuture"
        | "CreateSessionResponse"
        | "CreateModelResponse"
        | "FuturesRetrieveResponse"
        | "JoinSamplingSessionResponse" => return None,
        other => panic!("new answer: {other}"),
    };
    Some(read(input))
}

#[test]
fn answers_are_read_leniently() {
    let golden = golden("json_responses.json");
    for case in cases(&golden["accepted"]) {
        let name = text(case, "type");
        if let Some(seen) = reread(name, &case["input"]) {
            let mut expected = without_nulls(&case["decoded"]);
            // The constant tag at the top is dropped on reading.
            expected.as_object_mut().unwrap().remove("type");
            same(&without_nulls(&seen.unwrap()), &expected, name);
        }
    }
    for case in cases(&golden["rejected"]) {
        let name = text(case, "type");
        if let Some(seen) = reread(name, &case["input"]) {
            assert!(seen.is_err(), "{name} {case}");
        }
    }
}

/// Equal, where times may be written with another offset.
#[track_caller]
fn same(seen: &Value, expected: &Value, path: &str) {
    match (seen, expected) {
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{path}: {seen} is not {expected}");
            for (key, value) in a {
                same(value, &b[key], &format!("{path}.{key}"));
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{path}");
            for (a, b) in a.iter().zip(b) {
                same(a, b, path);
            }
        }
        (Value::String(a), Value::String(b)) if a != b => {
            let time = |text: &str| text.parse::<Timestamp>().ok();
            assert!(
                time(a).is_some() && time(a) == time(b),
                "{path}: {a} is not {b}"
            );
        }
        _ => assert_eq!(seen, expected, "{path}"),
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[test]
fn telemetry_events() {
    let mut golden = golden("telemetry.json");
    for batch in golden["batches"].as_array_mut().unwrap() {
        for event in batch["events"].as_array_mut().unwrap() {
            // Masked in the file, because it differs from run to run.
            event["timestamp"] = json!("2026-01-02T03:04:05.000006Z");
        }
        let parsed: telemetry::Batch = parse(batch).unwrap();
        assert_eq!(&write(parsed), batch);
    }
}
