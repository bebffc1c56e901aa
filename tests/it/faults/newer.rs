//! A service that knows more than this client: what it says in addition costs nobody a result.

use serde_json::json;
use tinker::types::StopReason;
use tinker::{Datum, LossFn, ModelInput, SamplingParams};

use super::{poller, prompt, sample, status};
use crate::support::fake::Fake;
use crate::support::scripted::Reply;

#[test]
fn newer_states_of_completions_wake_the_sample() {
    let fake = poller::announcing(json!({}));
    let odd = json!({"completions": [{"state": "archived", "request_id": "s-0"}], "cursor": 1});
    fake.reply("retrieve_futures", Reply::json(&odd));
    sample(&fake.sampler()).unwrap();
    fake.check_pauses(&[]);
}

#[test]
fn newer_stop_reasons_are_kept() {
    let fake = Fake::start();
    let result = json!({"sequences": [{"stop_reason": "content_filter", "tokens": [1]}]});
    fake.reply("retrieve_future", Reply::json(&result));
    let response = sample(&fake.sampler()).unwrap();
    assert_eq!(response.sequences[0].stop_reason, StopReason::Unknown);
    fake.check_pauses(&[]);
}

#[test]
fn newer_metrics_without_a_reduction_keep_their_name() {
    let fake = Fake::start();
    let training = fake.training();
    let result = json!({
        "loss_fn_output_type": "scalar", "metrics": {"loss": 2.0, "a:b:c": 3.0},
        "loss_fn_outputs": [{"logprobs": {"data": [-1.0], "dtype": "float32", "shape": [1]}}],
    });
    fake.reply("retrieve_future", Reply::json(&result));
    let datum = Datum::new(ModelInput::from_ints(vec![1]))
        .with_target_tokens(vec![2])
        .with_weights(vec![1.0]);
    let pass = training.forward_backward(&[datum], LossFn::CrossEntropy);
    let output = pass.unwrap().join().unwrap();
    assert_eq!(output.metrics["loss"], 2.0);
    assert_eq!(output.metrics["a:b:c"], 3.0);
}

/// Servers that leave out the first token's place do so in either dialect.
#[test]
fn newer_prompt_logprobs_line_up_with_the_prompt() {
    let fake = Fake::start();
    let result = json!({
        "sequences": [{"stop_reason": "length", "tokens": [1]}], "prompt_logprobs": [-1.0, -2.0],
    });
    fake.reply("retrieve_future", Reply::json(&result));
    let logprobs = fake.sampler().compute_logprobs(prompt(3)).unwrap();
    assert_eq!(
        logprobs.iter().collect::<Vec<_>>(),
        [None, Some(-1.0), Some(-2.0)]
    );
}

/// A sample that is submitted again has not failed, and the session has not ended.
#[test]
fn newer_telemetry_says_nothing_of_samples_that_are_submitted_again() {
    let fake = Fake::start();
    let config = fake.config().with_telemetry(true);
    let service = fake.client(config.with_patience(std::time::Duration::ZERO));
    let sampler = service.create_sampling_client("some/model").unwrap();
    fake.reply("retrieve_future", status(503));
    sampler
        .sample(&prompt(1), SamplingParams::max_tokens(4))
        .unwrap();
    service.close().unwrap();
    let sent = fake.bodies("telemetry");
    let text: String = sent.iter().map(ToString::to_string).collect();
    assert!(text.contains("SESSION_START"), "{text}");
    assert!(!text.contains("SESSION_END"), "{text}");
}
