//! Values as plain JSON, in the form the recorded data has them: non-finite floats are
//! `{"$float": "nan"}`, and so are they here.

use serde_json::{Map, Value, json};

use crate::types::{
    Datum, ForwardBackwardOutput, LossConfigValue, ModelInput, SampleResponse, TensorData,
    TensorValues, Timestamp, TopkLogprobs,
};
use crate::wire::forward_backward::OwnedForwardBackwardRequest;

pub(super) fn float(value: f64) -> Value {
    if value.is_nan() {
        json!({"$float": "nan"})
    } else if value.is_infinite() {
        json!({"$float": if value > 0.0 { "inf" } else { "-inf" }})
    } else {
        json!(value)
    }
}

fn read_float(value: &Value) -> f64 {
    match value.get("$float").and_then(Value::as_str) {
        Some("nan") => f64::NAN,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        _ => value.as_f64().unwrap(),
    }
}

pub(super) fn tensor(tensor: &TensorData) -> Value {
    let data: Vec<Value> = match tensor.values() {
        TensorValues::F32(values) => values.iter().map(|&value| float(value.into())).collect(),
        TensorValues::I64(values) => values.iter().map(|&value| json!(value)).collect(),
    };
    let mut out = json!({"data": data, "dtype": tensor.dtype(), "shape": tensor.shape()});
    if let Some(csr) = tensor.csr() {
        out["sparse_crow_indices"] = json!(csr.crow_indices());
        out["sparse_col_indices"] = json!(csr.col_indices());
    }
    out
}

pub(super) fn read_tensor(value: &Value) -> TensorData {
    let data = value["data"].as_array().unwrap();
    let values: TensorValues = match value["dtype"].as_str().unwrap() {
        "float32" => data
            .iter()
            .map(|v| read_float(v) as f32)
            .collect::<Vec<_>>()
            .into(),
        "int64" => data
            .iter()
            .map(|v| v.as_i64().unwrap())
            .collect::<Vec<_>>()
            .into(),
        other => panic!("{other}"),
    };
    let list = |key: &str| serde_json::from_value::<Option<Vec<i64>>>(value[key].clone()).unwrap();
    let csr = list("sparse_crow_indices").zip(list("sparse_col_indices"));
    let shape = serde_json::from_value(value["shape"].clone()).unwrap();
    TensorData::from_parts(values, shape, csr).unwrap()
}

/// A request from the recorded form.
pub(super) fn read_request(value: &Value) -> OwnedForwardBackwardRequest {
    OwnedForwardBackwardRequest {
        model_id: value["model_id"].as_str().unwrap().to_owned(),
        seq_id: value["seq_id"].as_u64(),
        data: value["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(read_datum)
            .collect(),
        loss_fn: value["loss_fn"].as_str().unwrap().to_owned(),
        loss_fn_config: serde_json::from_value::<Option<_>>(value["loss_fn_config"].clone())
            .unwrap()
            .unwrap_or_default(),
        forward_only: value["forward_only"].as_bool().unwrap(),
    }
}

fn read_datum(value: &Value) -> Datum {
    let input: ModelInput = serde_json::from_value(value["model_input"].clone()).unwrap();
    let mut datum = Datum::new(input);
    for (name, value) in value["loss_fn_inputs"].as_object().unwrap() {
        datum = datum.with(name, read_tensor(value));
    }
    match value.get("model_input_spans") {
        Some(spans) => datum
            .with_provenance(
                serde_json::from_value::<Vec<_>>(spans.clone()).unwrap(),
                serde_json::from_value::<Vec<_>>(value["loss_fn_input_spans"].clone()).unwrap(),
            )
            .unwrap(),
        None => datum,
    }
}

/// A request in the form the Python script answers: no null, every list present.
pub(super) fn request(request: &OwnedForwardBackwardRequest) -> Value {
    let config: Map<String, Value> = request
        .loss_fn_config
        .iter()
        .map(|(key, value)| {
            let value = match value {
                LossConfigValue::Number(number) => float(*number),
                LossConfigValue::Text(text) => json!(text),
            };
            (key.clone(), value)
        })
        .collect();
    json!({
        "model_id": request.model_id,
        "seq_id": request.seq_id.unwrap_or(0),
        "forward_only": request.forward_only,
        "loss_fn": request.loss_fn,
        "loss_fn_config": config,
        "data": request.data.iter().map(datum).collect::<Vec<_>>(),
    })
}

fn datum(datum: &Datum) -> Value {
    let inputs: Map<String, Value> = datum
        .loss_fn_inputs()
        .iter()
        .map(|(name, value)| {
            let mut value = tensor(value);
            if value["shape"].is_null() {
                value["shape"] = json!([]);
            }
            (name.clone(), value)
        })
        .collect();
    json!({
        "chunks": datum.model_input().chunks(),
        "loss_fn_inputs": inputs,
        "model_input_spans": datum.provenance().map_or(&[][..], |spans| spans.model_input()),
        "loss_fn_input_spans": datum.provenance().map_or(&[][..], |spans| spans.loss_fn_inputs()),
    })
}

pub(super) fn output(output: &ForwardBackwardOutput) -> Value {
    let outputs: Vec<Map<String, Value>> = output
        .loss_fn_outputs
        .iter()
        .map(|datum| {
            datum
                .iter()
                .map(|(name, value)| (name.clone(), tensor(value)))
                .collect()
        })
        .collect();
    let metrics: Map<String, Value> = output
        .metrics
        .iter()
        .map(|(name, &value)| (name.clone(), float(value)))
        .collect();
    json!({
        "loss_fn_output_type": output.loss_fn_output_type,
        "loss_fn_outputs": outputs,
        "metrics": metrics,
    })
}

pub(super) fn sample(response: &SampleResponse) -> Value {
    let sequences: Vec<Value> = response
        .sequences
        .iter()
        .map(|sequence| {
            let logprobs = sequence.logprobs.as_ref().map(|values| {
                values
                    .iter()
                    .map(|&value| float(value.into()))
                    .collect::<Vec<_>>()
            });
            json!({
                "stop_reason": sequence.stop_reason,
                "tokens": sequence.tokens.as_slice(),
                "logprobs": logprobs,
                "topk_logprobs": sequence.topk_logprobs.as_ref().map(topk),
            })
        })
        .collect();
    let prompt_logprobs = response.prompt_logprobs.as_ref().map(|logprobs| {
        logprobs
            .iter()
            .map(|value| value.map(|value| float(value.into())))
            .collect::<Vec<_>>()
    });
    let alternatives = response.prompt_alt_tokens.as_ref().map(|alternatives| {
        json!({"tokens": tensor(&alternatives.tokens), "logprobs": tensor(&alternatives.logprobs)})
    });
    json!({
        "sequences": sequences,
        "prompt_logprobs": prompt_logprobs,
        "topk_prompt_logprobs": response.topk_prompt_logprobs.as_ref().map(topk),
        "target_prompt_logprobs": response.target_prompt_logprobs.as_ref().map(tensor),
        "prompt_alt_tokens": alternatives,
        "prompt_cache_hit_tokens": response.prompt_cache_hit_tokens,
    })
}

fn topk(topk: &TopkLogprobs) -> Value {
    let lists = topk.to_lists().into_iter().map(|list| {
        list.map(|list| {
            list.into_iter()
                .map(|(token, logprob)| (token, f64::from(logprob)))
                .collect::<Vec<_>>()
        })
    });
    json!(lists.collect::<Vec<_>>())
}

/// Whether two JSON values are the same: numbers by value (`2` is `2.0`), bits included for floats
/// (`-0.0` is not `0.0` where both are floats).
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.is_f64(), b.is_f64()) {
            (true, true) => a.as_f64().map(f64::to_bits) == b.as_f64().map(f64::to_bits),
            (false, false) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[track_caller]
pub(super) fn assert_same(actual: &Value, expected: &Value, what: &str) {
    assert!(
        same(actual, expected),
        "{what}\n  actual: {actual}\nexpected: {expected}"
    );
}

/// The same for answers: a null may be left out, and times may be written in another zone.
pub(super) fn same_answer(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys());
            let null = &Value::Null;
            keys.into_iter()
                .all(|key| same_answer(a.get(key).unwrap_or(null), b.get(key).unwrap_or(null)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_answer(a, b))
        }
        (Value::String(x), Value::String(y)) => {
            let times = x.parse::<Timestamp>().ok().zip(y.parse::<Timestamp>().ok());
            x == y || times.is_some_and(|(x, y)| x == y)
        }
        _ => same(a, b),
    }
}
