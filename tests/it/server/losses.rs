//! Custom losses that the server runs: the same numbers as on the client, or a clear refusal.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tinker::config::Config;
use tinker::local::LocalServer;
use tinker::loss::{CustomLoss, LossGraph, Objective, input, logprobs};
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ServiceClient, TensorData, TrainingClient};

use super::Caller;

const LOSSES: &str = include_str!("../../fixtures/loss/losses.json");

fn service(server: &LocalServer) -> ServiceClient {
    let config = Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-test")
        .with_telemetry(false);
    ServiceClient::new(config).unwrap()
}

fn model(service: &ServiceClient) -> TrainingClient {
    let models = service.capabilities().unwrap().supported_models;
    let name = models[0].model_name.clone().unwrap();
    service
        .create_lora_training_client(&name, LoraConfig::rank(4).with_seed(3))
        .unwrap()
}

/// What a datum of an RL batch carries.
fn datum(tokens: &[u8], advantage: f32) -> Datum {
    let ints = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| i32::from(*byte))
            .collect::<Vec<_>>()
    };
    let targets: Vec<i64> = tokens[1..].iter().map(|byte| i64::from(*byte)).collect();
    let count = targets.len();
    Datum::new(ints(&tokens[..count]))
        .with_target_tokens(targets)
        .with("old", vec![-3.0f32; count])
        .with("advantages", vec![advantage; count])
}

/// PPO with a penalty and two metrics.
fn objective() -> Objective {
    let ratio = (logprobs() - input("old")).exp();
    let gain = (&ratio * input("advantages")).min(ratio.clamp(0.8, 1.2) * input("advantages"));
    let drift = (logprobs() - input("old")).pow(2.0).mean();
    (0.1 * &drift - gain.sum())
        .with_metric("ratio:mean", ratio.mean())
        .with_metric("drift:sum", drift)
}

#[test]
fn the_server_computes_what_the_client_would() {
    let data = [
        datum(b"garden", 1.0),
        datum(b"lamp", -0.5),
        datum(b"ox", 2.0),
    ];
    let probe = [datum(b"gardens", 0.0).with_weights(vec![1.0f32; 6])];
    let run = |server_side: bool| {
        let server = LocalServer::builder()
            .flag("custom_loss_server_side", server_side)
            .flag("fwdbwd_max_chunk_len", 2)
            .record(true)
            .start()
            .unwrap();
        let service = service(&server);
        let training = model(&service);
        let mut results = Vec::new();
        for _ in 0..3 {
            let step = training
                .forward_backward_custom(&data, objective())
                .unwrap();
            let mut metrics = step.join().unwrap().metrics;
            assert_eq!(metrics.remove("surrogate_loss:sum").is_some(), !server_side);
            results.push(metrics);
            let adam = AdamParams::default().with_learning_rate(0.01);
            training.optim_step(adam).unwrap().join().unwrap();
        }
        let after = training.forward(&probe, LossFn::CrossEntropy).unwrap();
        let after = after.join().unwrap();
        results.push(after.metrics.clone());
        let uploads = server.requests();
        let uploads = uploads
            .iter()
            .filter(|one| one.endpoint() == "create_custom_loss");
        assert_eq!(
            uploads.count(),
            usize::from(server_side),
            "one for one graph"
        );
        results
    };
    for (mine, theirs) in run(true).iter().zip(&run(false)) {
        assert_eq!(
            mine.keys().collect::<Vec<_>>(),
            theirs.keys().collect::<Vec<_>>()
        );
        for (name, value) in mine {
            assert_close(name, *value, theirs[name]);
        }
    }
}

#[test]
fn graphs_traced_by_the_python_sdk_run() {
    let server = LocalServer::builder()
        .flag("custom_loss_server_side", true)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let cases: Vec<Value> = serde_json::from_str(LOSSES).unwrap();
    let cases = cases.iter().filter(|case| case["graph"].is_object());
    let mut seq_id = 0;
    for (number, case) in cases.enumerate() {
        let data: Vec<Datum> = case["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(from_case)
            .collect();
        let mut pass = |data: &[Datum], loss: &str, config: Value| {
            seq_id += 1;
            let body = json!({"model_id": model.id, "seq_id": seq_id, "forward_input":
                {"data": data, "loss_fn": loss, "loss_fn_config": config}});
            caller.call("forward", body)
        };
        let weighted: Vec<Datum> = data
            .iter()
            .map(|datum| {
                let targets = datum.input("target_tokens").unwrap();
                let ones = TensorData::from(vec![1.0f32; targets.as_i64().unwrap().len()]);
                let ones = ones.with_shape(targets.shape().unwrap().to_vec()).unwrap();
                datum.clone().with_weights(ones)
            })
            .collect();
        let scored = pass(&weighted, "cross_entropy", Value::Null);
        let logprobs: Vec<TensorData> = scored["loss_fn_outputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|output| serde_json::from_value(output["logprobs"].clone()).unwrap())
            .collect();
        let mut upload = json!({"session_id": caller.session, "custom_loss_seq_id": number,
            "type": "create_custom_loss"});
        for field in ["name", "inputs", "graph"] {
            upload[field] = case[field].clone();
        }
        let graph: LossGraph = serde_json::from_value(upload.clone()).unwrap();
        let expected = graph
            .to_objective()
            .unwrap()
            .evaluate(&data, &logprobs)
            .unwrap();
        let created = caller.call("create_custom_loss", upload);
        let result = pass(&data, "custom", json!({"loss_id": created["loss_id"]}));
        let mut metrics: BTreeMap<String, f64> =
            serde_json::from_value(result["metrics"].clone()).unwrap();
        assert_close("loss", metrics.remove("loss:sum").unwrap(), expected.loss);
        assert_eq!(metrics, expected.metrics, "{}", case["name"]);
    }
    assert!(seq_id >= 10, "the fixtures hold graphs");
}

/// Data of a fixture, with tokens in place of the logprobs it was computed for.
fn from_case(inputs: &Value) -> Datum {
    let tensor = |numbers: &Value| {
        let values: Vec<f32> = serde_json::from_value(numbers["data"].clone()).unwrap();
        let shape: Vec<usize> = serde_json::from_value(numbers["shape"].clone()).unwrap();
        (values, shape)
    };
    let (values, shape) = tensor(&inputs["logprobs"]);
    let targets: Vec<i64> = (0..values.len() as i64).map(|index| 97 + index).collect();
    let targets = TensorData::from(targets).with_shape(shape.clone()).unwrap();
    let datum = Datum::new(vec![98; shape[0]]).with_target_tokens(targets);
    let inputs = inputs.as_object().unwrap().iter();
    inputs
        .filter(|(name, _)| *name != "logprobs")
        .fold(datum, |datum, (name, numbers)| {
            let (values, shape) = tensor(numbers);
            datum.with(name, TensorData::from(values).with_shape(shape).unwrap())
        })
}

#[test]
fn what_the_server_does_not_know_is_refused_by_name() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let upload = |number: u64, target: &str| {
        let node = |op: &str, name: &str, target: &str, args: Value| json!({"op": op, "name": name, "target": target, "args": args, "kwargs": {}});
        let nodes = [
            node("placeholder", "logprobs", "logprobs", json!([])),
            node("call_function", "y", target, json!([{"ref": "logprobs"}])),
            node("call_method", "sum_1", "sum", json!([{"ref": "y"}])),
            node(
                "output",
                "output",
                "output",
                json!([{"tuple": [{"ref": "sum_1"}, {"dict": {}}]}]),
            ),
        ];
        json!({"session_id": caller.session, "custom_loss_seq_id": number, "name": "loss",
            "inputs": [{"name": "logprobs", "rank": 1}],
            "graph": {"format": 1, "nodes": nodes}, "type": "create_custom_loss"})
    };
    for target in ["torch.linalg.svd", "os.system", "torch.load"] {
        let reply = caller.post("create_custom_loss", upload(9, target));
        assert_eq!(reply.status, 400);
        assert!(
            reply
                .detail()
                .contains(&format!("{target:?} is not understood"))
        );
    }
    // A graph has one id per session, whatever number it comes with.
    let id = |body: Value| caller.call("create_custom_loss", body)["loss_id"].clone();
    let first = id(upload(0, "torch.exp"));
    assert_eq!(first, id(upload(0, "torch.exp")));
    assert_eq!(first, id(upload(1, "torch.exp")));
    assert_ne!(first, id(upload(2, "torch.tanh")));
    assert_eq!(
        caller
            .post("create_custom_loss", upload(0, "torch.tanh"))
            .status,
        400
    );

    let stranger = Caller::new(&server);
    let model = stranger.model(0);
    let refused = |seq_id: u64, config: Value, expected: &str| {
        let mut body = model.pass(seq_id, &["abc"]);
        body["forward_backward_input"]["loss_fn"] = json!("custom");
        body["forward_backward_input"]["loss_fn_config"] = config;
        let result = stranger.wait(&stranger.ok("forward_backward", body));
        assert_eq!(result["category"], "user");
        let error = result["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    refused(
        1,
        json!({"loss_id": first}),
        "this session has uploaded no loss",
    );
    refused(2, json!({}), "loss_id: is missing");
    refused(3, json!({"beta": 1.0}), "loss_fn_config.beta");
    // The next step finds a model without gradients.
    assert_eq!(
        stranger.call("optim_step", model.step(4))["metrics"]["grad_norm:mean"],
        0.0
    );
}

#[test]
fn what_is_not_public_is_refused_with_what_to_use_instead() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut body = model.pass(1, &["abc"]);
    body["forward_backward_input"]["loss_fn"] = json!("stable_reinforce");
    let result = caller.wait(&caller.ok("forward_backward", body));
    assert_eq!(result["category"], "user");
    let error = result["error"].as_str().unwrap();
    assert!(
        error.contains("`stable_reinforce` is not offered"),
        "{error}"
    );
    assert!(
        error.contains("ppo, cispo, gspo or a custom loss"),
        "{error}"
    );

    let dimuon = json!({"model_id": model.id, "seq_id": 2,
        "optimizer_params": {"type": "dimuon", "learning_rate": 0.1}});
    let result = caller.wait(&caller.ok("optim_step", dimuon));
    assert_eq!(result["category"], "user");
    assert!(result["error"].as_str().unwrap().contains("use adamw"));
    let body = json!({"session_id": caller.session, "model_seq_id": 5,
        "base_model": caller.base_model(), "lora_config": {"rank": 4},
        "optimizer_config": {"type": "dimuon", "version": 1}});
    let reply = caller.post("create_model", body);
    assert!(reply.detail().contains("use adamw"), "{}", reply.detail());
}

#[track_caller]
fn assert_close(what: &str, got: f64, want: f64) {
    let close = (got - want).abs() <= 1e-6 * want.abs().max(1.0);
    assert!(close, "{what}: {got} is not {want}");
}
