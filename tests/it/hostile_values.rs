//! Whatever bytes arrive, reading them gives a value or an error and never a panic.

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tinker::types::*;
use tinker::unversioned::{ClientConfig, DynamicConfig, telemetry};
use tinker::{Datum, ForwardBackwardOutput, SampleResponse};

/// Reads the bytes as every type that comes from the service; shows and writes what it reads.
fn read_as_everything(bytes: &[u8]) {
    fn read<T: DeserializeOwned + serde::Serialize + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(value) = serde_json::from_slice::<T>(bytes) {
            let _ = format!("{value:?}");
            let _ = serde_json::to_string(&value);
        }
    }
    read::<AuditLog>(bytes);
    read::<BillingUsage>(bytes);
    read::<Checkpoint>(bytes);
    read::<CheckpointPage>(bytes);
    read::<ClientConfig>(bytes);
    read::<CustomLossGraph>(bytes);
    read::<CustomLossInput>(bytes);
    read::<Datum>(bytes);
    read::<DynamicConfig>(bytes);
    read::<ExternalWeightsUrls>(bytes);
    read::<ForwardBackwardOutput>(bytes);
    read::<LoadWeightsResponse>(bytes);
    read::<ModelInfo>(bytes);
    read::<OptimStepResponse>(bytes);
    read::<OptimizerConfig>(bytes);
    read::<OptimizerParams>(bytes);
    read::<SampleResponse>(bytes);
    read::<SamplerInfo>(bytes);
    read::<SamplingParams>(bytes);
    read::<SaveWeightsExternalResponse>(bytes);
    read::<SaveWeightsForSamplerResponse>(bytes);
    read::<SaveWeightsResponse>(bytes);
    read::<ServerCapabilities>(bytes);
    read::<SessionDetails>(bytes);
    read::<SessionSearch>(bytes);
    read::<SessionSearchPage>(bytes);
    read::<StorageUsage>(bytes);
    read::<TensorData>(bytes);
    read::<TraceExport>(bytes);
    read::<TrainingRun>(bytes);
    read::<TrainingRunPage>(bytes);
    read::<WeightsInfo>(bytes);
    read::<WhoAmI>(bytes);
    read::<telemetry::Batch>(bytes);
}

/// JSON with the names and the kinds of values that the types look for, in the wrong places.
fn awkward_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "int64",
        "float32",
        "training",
        "adamw",
        "dimuon",
        "type",
        "stop",
        "encoded_text",
        "image",
        "png",
        "2026-01-02T03:04:05Z",
        "9999-12-31T23:59:59.999999999Z",
        "tinker://a/weights/b",
        "client_finished",
        "failed",
        "request",
        "",
        "\u{0}é",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3i64..5).prop_map(Value::from),
        words.clone().prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "type",
        "data",
        "dtype",
        "shape",
        "sparse_crow_indices",
        "sparse_col_indices",
        "chunks",
        "tokens",
        "model_input",
        "loss_fn_inputs",
        "model_input_spans",
        "loss_fn_input_spans",
        "sequences",
        "stop_reason",
        "logprobs",
        "topk_logprobs",
        "prompt_logprobs",
        "metrics",
        "loss_fn_outputs",
        "time",
        "checkpoint_type",
        "event_info",
        "status",
        "reason",
        "events",
        "learning_rate",
        "limit",
        "cursor",
        "dmel",
        "format",
        "expected_tokens",
    ]);
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn any_json(value in awkward_json()) {
        read_as_everything(value.to_string().as_bytes());
    }

    #[test]
    fn any_tensor(
        data in prop::collection::vec(-2i64..9, 0..6),
        shape in prop::collection::vec(prop_oneof![0usize..4, Just(usize::MAX)], 0..3),
        crow in prop::collection::vec(-1i64..5, 0..5),
        col in prop::collection::vec(-1i64..5, 0..5),
    ) {
        let sparse = TensorData::from_parts(data.into(), Some(shape), Some((crow, col)));
        if let Ok(Ok(dense)) = sparse.map(|tensor| tensor.to_dense(-1)) {
            let _ = dense.sparsify(-1);
        }
    }

    #[test]
    fn any_container(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = Chunk::dmel(bytes);
    }

    #[test]
    fn any_container_of_known_type(dims in any::<u8>(), bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _ = Chunk::dmel([&[3, dims], bytes.as_slice()].concat());
    }

    #[test]
    fn any_path(text in "(tinker://)?[a-z/:_%é]{0,40}") {
        if let Ok(path) = text.parse::<TinkerPath>() {
            prop_assert_eq!(path.to_string(), text);
        }
    }

    #[test]
    fn tensors_round_trip(
        rows in 0usize..6,
        columns in 0usize..6,
        seed in prop::collection::vec(prop_oneof![Just(0i64), any::<i64>()], 36),
    ) {
        let values = seed[..rows * columns].to_vec();
        let dense = TensorData::from(values).with_shape([rows, columns]).unwrap();
        let sparse = dense.clone().sparsify(0);
        prop_assert_eq!(&sparse.to_dense(0).unwrap(), &dense);
        let text = serde_json::to_string(&sparse).unwrap();
        prop_assert_eq!(serde_json::from_str::<TensorData>(&text).unwrap(), sparse);
    }

    #[test]
    fn floats_round_trip(values in prop::collection::vec(any::<f32>(), 0..20)) {
        let tensor = TensorData::from(values.clone());
        match serde_json::to_string(&tensor) {
            Ok(text) => prop_assert_eq!(serde_json::from_str::<TensorData>(&text).unwrap(), tensor),
            Err(_) => prop_assert!(values.iter().any(|value| !value.is_finite())),
        }
    }
}

/// A few bytes must not claim much memory.
#[test]
fn a_small_answer_cannot_ask_for_a_huge_tensor() {
    let sparse = r#"{"data": [], "dtype": "int64", "shape": [1, 9223372036854775807],
                     "sparse_crow_indices": [0, 0], "sparse_col_indices": []}"#;
    let tensor: TensorData = serde_json::from_str(sparse).unwrap();
    assert!(tensor.to_dense(0).unwrap_err().is_user_error());
    assert!(Chunk::dmel(vec![3, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]).is_err());
}
