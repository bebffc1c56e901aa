//! Models: order, repetition, refusals, results in both dialects.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Caller;
use crate::support::http;

const TEXTS: [&str; 4] = [
    "the quick brown fox",
    "jumps over",
    "the lazy dog",
    "again!",
];

#[test]
fn training_lowers_the_loss_and_forward_leaves_the_model_alone() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let before = caller.call("forward", model.forward(1, &TEXTS));
    let mut seq_id = 2;
    let first = model.train(&mut seq_id, &TEXTS);
    assert_eq!(before["metrics"]["loss:sum"], first);
    let outputs = before["loss_fn_outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 4);
    assert_eq!(outputs[0]["logprobs"]["shape"], json!([18]));
    let mut last = first;
    for _ in 0..4 {
        let loss = model.train(&mut seq_id, &TEXTS);
        assert!(loss < last, "{loss} after {last}");
        last = loss;
    }
}

#[test]
fn chunks_may_arrive_in_any_order_and_count_as_one_call() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let (whole, parts) = (caller.model(0), caller.model(1));
    let one = caller.call("forward_backward", whole.pass(1, &TEXTS));
    caller.call("optim_step", whole.step(2));
    // The first chunk comes last; until then the others wait.
    let third = caller.ok("optim_step", parts.step(3));
    let second = caller.ok("forward_backward", parts.pass(2, &TEXTS[2..]));
    let first = caller.ok("forward_backward", parts.pass(1, &TEXTS[..2]));
    let (first, second) = (caller.wait(&first), caller.wait(&second));
    caller.wait(&third);
    let outputs = |result: &Value| result["loss_fn_outputs"].as_array().unwrap().clone();
    let chunked = [outputs(&first), outputs(&second)].concat();
    assert_eq!(outputs(&one), chunked);
    let loss = |model: &super::Model<'_>, seq_id| {
        let result = caller.call("forward", model.forward(seq_id, &TEXTS));
        result["metrics"]["loss:sum"].as_f64().unwrap()
    };
    let (whole, parts) = (loss(&whole, 3), loss(&parts, 4));
    assert!((whole - parts).abs() < 1e-4 * whole, "{whole} and {parts}");
}

#[test]
fn a_request_that_waits_for_another_says_so() {
    let server = LocalServer::builder()
        .long_poll(Duration::from_millis(1))
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let held = caller.ok("optim_step", model.step(2));
    let body = json!({"request_id": held["request_id"], "allow_metadata_only": true});
    let pending = caller.ok("retrieve_future", body);
    assert_eq!(pending["type"], "try_again");
    assert_eq!(pending["queue_state"], "paused_capacity");
    let reason = pending["queue_state_reason"].as_str().unwrap();
    assert!(reason.contains("request 1"), "{reason}");
    caller.ok("forward_backward", model.pass(1, &TEXTS));
    caller.wait(&held);
}

#[test]
fn a_repeated_request_is_the_same_request() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let (once, twice) = (caller.model(0), caller.model(1));
    for model in [&once, &twice] {
        caller.call("forward_backward", model.pass(1, &TEXTS));
        caller.call("optim_step", model.step(2));
    }
    let again = caller.ok("forward_backward", twice.pass(1, &TEXTS));
    assert_eq!(again, caller.ok("forward_backward", twice.pass(1, &TEXTS)));
    caller.call("optim_step", twice.step(2));
    let loss = |model: &super::Model<'_>| caller.call("forward", model.forward(3, &TEXTS));
    assert_eq!(loss(&once)["metrics"], loss(&twice)["metrics"]);
    let other = caller.post("optim_step", twice.step(1));
    assert_eq!(other.status, 409, "another request under the same number");
    // Creating a model again is repetition too.
    let body = json!({"session_id": caller.session, "model_seq_id": 1,
        "base_model": caller.base_model(), "lora_config": {"rank": 4, "seed": 7}});
    assert_eq!(
        caller.call("create_model", body)["model_id"],
        json!(twice.id)
    );
}

#[test]
fn wrong_data_is_refused_and_the_model_is_unharmed() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut seq_id = 1;
    let refused = |seq_id: &mut u64, change: &dyn Fn(&mut Value)| {
        let mut body = model.pass(*seq_id, &TEXTS[..1]);
        *seq_id += 1;
        change(&mut body["forward_backward_input"]);
        let result = caller.wait(&caller.ok("forward_backward", body));
        assert_eq!(result["category"], "user", "{result}");
        result["error"].as_str().unwrap().to_owned()
    };
    let error = refused(&mut seq_id, &|input| input["loss_fn"] = json!("hinge"));
    assert!(error.contains("hinge"), "{error}");
    let error = refused(&mut seq_id, &|input| {
        input["data"][0]["model_input"]["chunks"][0]["tokens"][2] = json!(100_000);
    });
    assert!(
        error.contains("100000") && error.contains("data[0]"),
        "{error}"
    );
    let error = refused(&mut seq_id, &|input| {
        input["data"][0]["loss_fn_inputs"]["weights"]["data"] = json!([1.0]);
    });
    assert!(error.contains("weights"), "{error}");
    let error = refused(&mut seq_id, &|input| {
        input["data"][0]["loss_fn_inputs"] = json!({});
    });
    assert!(error.contains("target_tokens"), "{error}");
    let error = refused(&mut seq_id, &|input| {
        let image = json!({"type": "image", "data": "AAAA", "format": "png"});
        input["data"][0]["model_input"]["chunks"] = json!([image]);
    });
    assert!(error.contains("not text"), "{error}");
    refused(&mut seq_id, &|input| input["data"] = json!([]));
    let mut step = model.step(seq_id);
    step["adam_params"]["learning_rate"] = json!(-1.0);
    let result = caller.wait(&caller.ok("optim_step", step));
    assert_eq!(result["category"], "user", "{result}");
    seq_id += 1;
    // Nothing of this left a trace.
    let fresh = caller.model(1);
    let (mut one, mut two) = (seq_id, 1);
    for _ in 0..2 {
        let loss = model.train(&mut one, &TEXTS);
        assert_eq!(loss, fresh.train(&mut two, &TEXTS));
    }
}

#[test]
fn models_that_cannot_be_made_are_refused_at_once() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let check = |change: Value, status: u16| {
        let mut body = json!({"session_id": caller.session, "model_seq_id": 0,
            "base_model": caller.base_model(), "lora_config": {"rank": 4}});
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = caller.post("create_model", body);
        assert_eq!(reply.status, status, "{change}");
        assert!(!reply.detail().is_empty());
    };
    check(json!({"base_model": "other/model"}), 400);
    check(json!({"lora_config": {"rank": 100_000}}), 400);
    check(json!({"lora_config": {"rank": 0}}), 400);
    check(json!({"lora_config": null}), 400);
    check(
        json!({"optimizer_config": {"type": "dimuon", "version": 1}}),
        400,
    );
    check(json!({"session_id": "none"}), 404);
    check(json!({"model_seq_id": "one"}), 422);
    let unknown = caller.post("get_info", json!({"model_id": "none"}));
    assert_eq!(unknown.status, 404);
}

#[test]
fn large_results_are_announced_first_and_come_in_the_dialect_asked_for() {
    let server = LocalServer::builder()
        .metadata_only_above(100)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let accepted = caller.ok("forward_backward", model.pass(1, &TEXTS));
    let whole = caller.wait(&accepted);
    let id = &accepted["request_id"];
    let announced = caller.ok(
        "retrieve_future",
        json!({"request_id": id, "allow_metadata_only": true}),
    );
    assert_eq!(announced["status"], "complete_metadata");
    let body = json!({"request_id": id, "allow_metadata_only": false}).to_string();
    let reply = http::request(
        &caller.url,
        "POST",
        "/api/v1/retrieve_future",
        &[("accept", "application/x-protobuf, application/json")],
        body.as_bytes(),
    )
    .unwrap();
    assert_eq!(reply.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(announced["response_payload_size"], reply.body.len());
    assert_eq!(whole["loss_fn_output_type"], "TorchLossReturn");
}

#[test]
fn info_names_a_tokenizer_that_can_be_loaded() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let info = caller.ok("get_info", json!({"model_id": model.id}));
    assert_eq!(info["lora_rank"], 4);
    let folder = info["model_data"]["tokenizer_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        std::path::Path::new(&folder)
            .join("tokenizer.json")
            .exists()
    );
    caller.call("unload_model", json!({"model_id": model.id}));
    let gone = caller.post("get_info", json!({"model_id": model.id}));
    assert_eq!(gone.status, 410);
    drop(server);
    assert!(
        !std::path::Path::new(&folder).exists(),
        "a temporary folder goes"
    );
}

#[test]
fn a_model_folder_is_served_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    let caller = Caller::new(&server);
    let expected = caller.call("forward", caller.model(0).forward(1, &TEXTS));
    // What the server writes for other programs is such a folder.
    let same = LocalServer::builder()
        .model(folder.path().join("model"))
        .start()
        .unwrap();
    let caller = Caller::new(&same);
    let name = caller.base_model();
    assert!(name.as_str().unwrap().ends_with("model"), "{name}");
    let result = caller.call("forward", caller.model(0).forward(1, &TEXTS));
    assert_eq!(result, expected);
    let missing = LocalServer::builder().model("/no/such/folder").start();
    assert!(missing.unwrap_err().to_string().contains("/no/such/folder"));
}

#[test]
fn several_targets_per_position_are_scored() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut body = model.forward(1, &["abc"]);
    let inputs = &mut body["forward_input"]["data"][0]["loss_fn_inputs"];
    inputs["target_tokens"] = json!({"data": [98, 99, 99, 98], "dtype": "int64", "shape": [2, 2]});
    inputs["weights"] = json!({"data": [1.0, 0.0, 1.0, 0.0], "dtype": "float32", "shape": [2, 2]});
    let two = caller.call("forward", body);
    let logprobs = &two["loss_fn_outputs"][0]["logprobs"];
    assert_eq!(logprobs["shape"], json!([2, 2]));
    let one = caller.call("forward", model.forward(2, &["abc"]));
    assert_eq!(one["metrics"], two["metrics"]);
    assert_eq!(
        one["loss_fn_outputs"][0]["logprobs"]["data"][0],
        logprobs["data"][0]
    );
}

/// Requests that wait for a lower number take memory like everything else; the one that all wait
/// for is let in.
#[test]
fn requests_that_wait_count_as_memory() {
    let server = LocalServer::builder().max_memory(64 << 20).start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let long = "x".repeat(4000);
    let texts = vec![long.as_str(); 100];
    let held = (2..).find(|number| {
        let reply = caller.post("forward_backward", model.pass(*number, &texts));
        assert!(*number < 200, "there is no limit");
        reply.status == 429
    });
    assert!(held > Some(2), "{held:?}");
    caller.call("forward_backward", model.pass(1, &["hello"]));
}

/// What was taken takes no room when it comes again, however full it is by then.
#[test]
fn requests_that_come_again_find_what_was_taken() {
    let server = LocalServer::builder()
        .max_memory(128 << 20)
        .threads(1)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let [holding, busy, model] = [0, 1, 2].map(|number| caller.model(number));
    let long = "x".repeat(4000);
    let texts = vec![long.as_str(); 100];
    let pass = |model: &super::Model<'_>, number| {
        let reply = caller.post("forward_backward", model.pass(number, &texts));
        reply.status
    };
    assert!((2..20).any(|number| pass(&holding, number) == 429));
    // The only thread that trains has something to do for a while.
    let many = vec!["x".repeat(64); 1000];
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    caller.ok("forward_backward", busy.pass(1, &many));
    assert_eq!(pass(&model, 1), 200, "nothing goes on without it");
    assert_eq!(pass(&model, 1), 200, "it was taken before");
}

/// A step that would leave no numbers behind is not taken.
#[test]
fn steps_that_would_ruin_the_adapter_are_refused() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    for (number, (field, value)) in (0..).zip([("eps", 0.0), ("learning_rate", 1e38)]) {
        let model = caller.model(number);
        let before = caller.call("forward", model.forward(1, &["hello"]));
        // Half of a new adapter is 0, and so is the gradient of the other half.
        caller.call("forward_backward", model.pass(2, &["hello"]));
        let mut step = model.step(3);
        step["adam_params"][field] = json!(value);
        let refused = caller.wait(&caller.ok("optim_step", step));
        assert_eq!(refused["category"], "user", "{field}: {refused}");
        let after = caller.call("forward", model.forward(4, &["hello"]));
        assert_eq!(after, before, "{field}");
        // The gradients wait for a step that can be taken.
        let taken = caller.call("optim_step", model.step(5));
        let norm = taken["metrics"]["grad_norm:mean"].as_f64();
        assert!(norm > Some(0.0), "{field}: {taken}");
        model.train(&mut 6, &["hello"]);
        let after = caller.call("forward", model.forward(8, &["hello"]));
        assert!(after["metrics"]["loss:sum"].is_f64(), "{field}: {after}");
    }
}

/// JSON has no infinity: whoever asks for such a result in JSON is told so, once and for all.
#[test]
fn a_result_that_json_cannot_say_is_the_users_error() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut body = model.pass(1, &["abcd"]);
    body["forward_backward_input"]["loss_fn"] = json!("importance_sampling");
    let inputs = &mut body["forward_backward_input"]["data"][0]["loss_fn_inputs"];
    let column = |value: f32| json!({"data": vec![value; 3], "dtype": "float32", "shape": [3]});
    inputs["logprobs"] = column(-1000.0);
    inputs["advantages"] = column(1.0);
    inputs.as_object_mut().unwrap().remove("weights");
    let result = caller.wait(&caller.ok("forward_backward", body));
    assert_eq!(result["category"], "user", "{result}");
    assert!(
        result["error"].as_str().unwrap().contains("JSON"),
        "{result}"
    );
}

/// A model whose creation failed is not there.
#[test]
fn what_the_disk_failed_was_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    let caller = Caller::new(&server);
    // Where the records of runs would be.
    std::fs::write(folder.path().join("runs"), "").unwrap();
    let body = json!({"session_id": caller.session, "model_seq_id": 0,
        "base_model": caller.base_model(), "lora_config": {"rank": 4}});
    let created = caller.ok("create_model", body);
    let refused = caller.wait(&created);
    let error = refused["error"].as_str().unwrap();
    assert!(error.contains("nothing was changed"), "{error}");
    let model = super::Model {
        caller: &caller,
        id: created["model_id"].as_str().unwrap().to_owned(),
    };
    let passed = caller.wait(&caller.ok("forward", model.forward(1, &["hello"])));
    let error = passed["error"].as_str().unwrap_or("it went through");
    assert!(error.contains("could not be created"), "{error}");
}
