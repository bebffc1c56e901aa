//! The same program, run by this SDK and by the official Python SDK against the same server,
//! makes the same submissions in the same order.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

use std::process::Command;

use serde_json::{Value, json};

use crate::local::LocalServer;
use crate::local_clients::{datum, service, train};
use crate::types::{AdamParams, LossFn};
use crate::wire::forward_backward::decode_forward_backward_request;

const SCRIPT: &str = r#"
import sys, tinker
from tinker import types

def datum(length):
    return types.Datum(
        model_input=types.ModelInput.from_ints([97 + i % 20 for i in range(length)]),
        loss_fn_inputs={
            "target_tokens": [98 + i % 20 for i in range(length)],
            "weights": [1.0] * length,
        },
    )

service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-test")
model = service.get_server_capabilities().supported_models[0].model_name
training = service.create_lora_training_client(base_model=model, rank=2, seed=1)
adam = types.AdamParams(learning_rate=1e-3)
futures = [
    training.forward_backward([datum(3)], "cross_entropy"),
    training.optim_step(adam),
    training.forward_backward([datum(n) for n in range(1, 6)], "cross_entropy"),
    training.optim_step(adam),
    training.forward([datum(4)], "cross_entropy"),
    training.save_state("one"),
    training.forward_backward([datum(n) for n in range(2, 9)], "cross_entropy"),
    training.optim_step(types.AdamParams(learning_rate=1e-4, weight_decay=0.1)),
    training.optim_step(adam),
    # Last, because Python numbers this one when it is sent, not when it is called.
    training.save_weights_for_sampler("two"),
]
for future in futures:
    future.result()
"#;

fn server() -> LocalServer {
    LocalServer::builder()
        .flag("fwdbwd_max_chunk_len", 2)
        .record(true)
        .start()
        .unwrap()
}

fn run_ours(server: &LocalServer) {
    let training = train(&service(server));
    let adam = AdamParams::learning_rate(1e-3);
    let range = |range: std::ops::Range<usize>| range.map(datum).collect::<Vec<_>>();
    let loss = LossFn::CrossEntropy;
    let steps = [
        training
            .forward_backward(&[datum(3)], loss.clone())
            .unwrap()
            .map(drop),
        training.optim_step(adam).unwrap().map(drop),
        training
            .forward_backward(&range(1..6), loss.clone())
            .unwrap()
            .map(drop),
        training.optim_step(adam).unwrap().map(drop),
        training
            .forward(&[datum(4)], loss.clone())
            .unwrap()
            .map(drop),
        training.save_state("one").unwrap().map(drop),
        training
            .forward_backward(&range(2..9), loss)
            .unwrap()
            .map(drop),
        training
            .optim_step(AdamParams::learning_rate(1e-4).with_weight_decay(0.1))
            .unwrap()
            .map(drop),
        training.optim_step(adam).unwrap().map(drop),
        training.save_weights_for_sampler("two").unwrap().map(drop),
    ];
    for step in steps {
        step.join().unwrap();
    }
}

/// The submissions of the training routes, with decoded bodies and without what must differ.
fn submissions(server: &LocalServer) -> Vec<(String, Value)> {
    const ROUTES: [&str; 5] = [
        "create_model",
        "forward_backward",
        "optim_step",
        "save_weights",
        "save_weights_for_sampler",
    ];
    let mut seen: Vec<(String, Value)> = server
        .requests()
        .iter()
        .filter(|request| ROUTES.contains(&request.endpoint()))
        .map(|request| {
            let mut body = request.json().unwrap_or_else(|| decoded(&request.body));
            for name in ["model_id", "session_id"] {
                if let Some(id) = body.get_mut(name) {
                    *id = json!("<id>");
                }
            }
            (request.endpoint().to_owned(), body)
        })
        .collect();
    // Chunks 2..n of the two large calls travel side by side, before their first.
    for later in [3..5, 9..12] {
        seen[later].sort_by_key(|(_, body)| body["seq_id"].as_u64());
    }
    seen
}

fn decoded(body: &[u8]) -> Value {
    let request = decode_forward_backward_request(body.to_vec()).unwrap();
    let request = request.as_request();
    json!({
        "model_id": request.model_id,
        "seq_id": request.seq_id,
        "data": request.data,
        "loss_fn": request.loss_fn,
        "loss_fn_config": request.loss_fn_config,
        "forward_only": request.forward_only,
    })
}

#[test]
fn both_sdks_submit_the_same_program_alike() {
    let Some(interpreter) = crate::python::interpreter("0.36.0") else {
        return;
    };
    let (ours, theirs) = (server(), server());
    run_ours(&ours);
    let output = Command::new(interpreter)
        .args(["-c", SCRIPT, &theirs.base_url()])
        .env("TINKER_TELEMETRY", "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let (ours, theirs) = (submissions(&ours), submissions(&theirs));
    let numbers = |seen: &[(String, Value)]| {
        let number = |(route, body): &(String, Value)| format!("{route} {}", body["seq_id"]);
        seen.iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&ours), numbers(&theirs));
    assert_eq!(ours.len(), 16);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
}
