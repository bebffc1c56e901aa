//! Whether a failed request took effect, and what follows from it: advice, numbers, the queue.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tinker::config::Dialect;
use tinker::error::{Effect, Remedy};
use tinker::{
    AdamParams, Datum, Error, ForwardBackwardOutput, LossFn, ModelInput, OptimStepResponse,
    Pending, SamplingParams, TrainingClient,
};

use super::{End, prompt, status, times};
use crate::support::fake::{Fake, result_of, route, train};
use crate::support::scripted::{Gate, Reply};

fn step(training: &TrainingClient) -> Pending<OptimStepResponse> {
    training.optim_step(AdamParams::default()).unwrap()
}

fn data() -> [Datum; 1] {
    [Datum::new(ModelInput::from_ints(vec![1]))
        .with_target_tokens(vec![2])
        .with_weights(vec![1.0])]
}

/// The numbers under which steps and saves were submitted, in order.
fn numbers(fake: &Fake) -> Vec<u64> {
    let requests = fake.server.requests();
    let counted = requests.iter().filter(|request| {
        request.path.ends_with("optim_step") || request.path.ends_with("save_weights")
    });
    counted
        .map(|request| request.json()["seq_id"].as_u64().unwrap())
        .collect()
}

#[track_caller]
fn check_accepted(error: &Error) {
    assert_eq!(error.effect(), Effect::Accepted, "{error}");
    assert_eq!(error.remedy(), Remedy::Wait, "{error}");
    assert!(!error.is_retryable(), "{error}");
    assert!(error.request_id().is_some(), "{error}");
}

#[test]
fn effect_the_result_of_an_accepted_step_outlives_any_outage() {
    let fake = Fake::start();
    let training = fake.training();
    for reply in times(500, || status(503)) {
        fake.reply("retrieve_future", reply);
    }
    step(&training).join().unwrap();
    let outage: Duration = fake.clock.pauses().iter().sum();
    assert!(outage > Duration::from_secs(3 * 3600), "{outage:?}");
}

#[test]
fn effect_a_handle_shows_since_when_and_why_its_polls_fail() {
    let fake = Fake::start();
    let training = fake.training();
    let gate = Gate::new();
    fake.reply("retrieve_future", status(503));
    let result = Reply::json(&result_of("OptimStep"));
    fake.reply("retrieve_future", result.after(&gate));
    let pending = step(&training);
    gate.wait_for(1);
    let reason = pending.trouble().unwrap().reason;
    assert!(reason.contains("status 503"), "{reason}");
    let error = pending.join_within(Duration::ZERO).unwrap_err();
    check_accepted(&error);
    assert!(error.to_string().contains("its polls fail"), "{error}");
    gate.open();
    pending.join().unwrap();
}

#[test]
fn effect_a_wait_that_runs_out_leaves_operation_and_handle_alive() {
    let fake = Fake::start();
    let (pending, gate) = fake.held_step(&fake.training());
    for _ in 0..3 {
        check_accepted(&pending.join_within(Duration::ZERO).unwrap_err());
        assert!(pending.join_timeout(Duration::ZERO).is_none());
    }
    gate.open();
    pending.join().unwrap();
    assert_eq!(numbers(&fake), [1]);
}

/// How far an operation has come when its wait runs out; whatever it is, it goes on.
#[test]
fn effect_a_wait_that_runs_out_knows_whether_the_operation_was_sent() {
    let fake = Fake::start();
    let training = fake.training();
    let gate = Gate::new();
    let accepted = Reply::json(&json!({"request_id": "a"}));
    fake.reply("optim_step", accepted.after(&gate));
    let (first, second) = (step(&training), step(&training));
    gate.wait_for(1);
    for (pending, effect, words) in [
        (&first, Effect::Unknown, "not done"),
        (&second, Effect::None, "not yet sent"),
    ] {
        let error = pending.join_within(Duration::ZERO).unwrap_err();
        assert_eq!((error.effect(), error.remedy()), (effect, Remedy::Wait));
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("accepted"), "{error}");
    }
    gate.open();
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(numbers(&fake), [1, 2]);
}

#[test]
fn effect_a_sample_may_be_submitted_again_whatever_became_of_it() {
    let fake = Fake::start();
    let gate = Gate::new();
    fake.reply("retrieve_future", super::try_again().after(&gate));
    let sampler = fake.sampler();
    let params = SamplingParams::max_tokens(4);
    let pending = sampler.submit_sample(&prompt(1), params).unwrap();
    let error = pending.join_within(Duration::ZERO).unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[test]
fn effect_a_refusal_does_not_hide_that_a_sample_may_have_been_taken_before() {
    #[track_caller]
    fn check(route: &str, first: Reply, expected: Effect) {
        let fake = Fake::start();
        let sampler = fake.sampler();
        if route == "retrieve_future" {
            fake.reply("asample", Reply::json(&json!({"request_id": "1"})));
        }
        fake.reply(route, first);
        fake.reply("asample", status(422));
        let error = super::sample(&sampler).unwrap_err();
        assert_eq!(error.status(), Some(422), "{error}");
        assert_eq!(error.effect(), expected, "{error}");
        assert_eq!(fake.bodies("asample").len(), 2);
    }
    check("asample", Reply::hang_up(), Effect::Unknown);
    check("asample", status(503), Effect::Unknown);
    check("asample", status(429), Effect::None);
    let damaged = Reply::bytes("application/json", "{\"requ");
    check("asample", damaged, Effect::Unknown);
    check("retrieve_future", status(410), Effect::Accepted);
}

#[test]
fn effect_an_operation_is_taken_up_again_by_its_request_id() {
    let fake = Fake::start();
    let training = fake.training();
    let (pending, gate) = fake.held_step(&training);
    let id = pending.request_id().unwrap();
    drop(pending);
    gate.open();
    let again: Pending<OptimStepResponse> = training.attach(&id).unwrap();
    assert_eq!(again.request_id().as_ref(), Some(&id));
    again.join().unwrap();
    // Another process has only the id.
    let other = fake.service();
    let again: Pending<OptimStepResponse> = other.attach(&id).unwrap();
    again.join().unwrap();
    let again: Pending<ForwardBackwardOutput> = other.attach("chunk-7").unwrap();
    assert_eq!(again.join().unwrap().loss(), Some(1.0));
    assert_eq!(numbers(&fake), [1], "nothing was submitted again");
    let refused: tinker::Result<Pending<OptimStepResponse>> = other.attach("");
    assert!(refused.unwrap_err().is_user_error());
}

#[test]
fn effect_a_409_on_a_submission_is_no_reason_to_submit_it_again() {
    let fake = Fake::start();
    let training = fake.training();
    fake.server
        .always("POST", &route("optim_step"), status(409));
    let error = step(&training).join().unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint);
    assert!(!error.is_retryable());
}

#[test]
fn effect_the_second_half_of_a_step_says_why_it_was_not_sent() {
    let fake = Fake::start();
    let training = fake.training();
    fake.reply("forward_backward", status(400));
    let adam = AdamParams::default();
    let halves = training
        .train_step(&data(), LossFn::CrossEntropy, adam)
        .unwrap();
    let first = halves.forward_backward.join().unwrap_err();
    assert_eq!((first.status(), first.effect()), (Some(400), Effect::None));
    let second = halves.optim_step.join().unwrap_err();
    assert!(matches!(second, Error::NotSent(_)), "{second}");
    assert_eq!(second.remedy(), Remedy::FixInput);
    assert_eq!(numbers(&fake).len(), 0);
}

/// The first attempt may have arrived; a later one is refused for good.
#[test]
fn effect_a_number_that_may_have_been_used_is_never_given_to_another_operation() {
    for code in [400, 401, 402, 403, 404, 413, 422] {
        let fake = Fake::with_flags(json!({"billing_exception_max_pause_duration_sec": 0}));
        fake.server
            .always("POST", &route("get_info"), Reply::json(&json!({})));
        let training = fake.training();
        fake.reply("optim_step", Reply::hang_up());
        for reply in times(3, || status(code)) {
            fake.reply("optim_step", reply);
        }
        let first = step(&training);
        let error = first.join().unwrap_err();
        assert!(matches!(error, Error::Broken(_)), "{code}: {error}");
        assert_eq!(error.status(), Some(code));
        let sent = numbers(&fake).len();
        let later = training.optim_step(AdamParams::default()).unwrap_err();
        assert!(matches!(later, Error::Broken(_)), "{code}: {later}");
        assert_eq!(numbers(&fake).len(), sent, "{code}");
    }
}

#[test]
fn effect_a_damaged_200_to_a_save_is_asked_for_again_under_its_number() {
    let fake = Fake::start();
    let training = fake.training();
    fake.reply("save_weights", Reply::bytes("application/json", "{\"requ"));
    fake.reply("save_weights", Reply::bytes("text/html", "<html>"));
    training.save_state("x").unwrap().join().unwrap();
    step(&training).join().unwrap();
    assert_eq!(numbers(&fake), [1, 1, 1, 2]);
}

#[test]
fn effect_a_save_under_a_name_that_is_taken_fails_at_once_and_the_queue_goes_on() {
    let fake = Fake::start();
    let training = fake.training();
    fake.reply("save_weights", status(409));
    let error = training.save_state("x").unwrap().join().unwrap_err();
    assert_eq!((error.status(), error.effect()), (Some(409), Effect::None));
    assert_eq!(error.remedy(), Remedy::FixInput);
    step(&training).join().unwrap();
    assert_eq!(numbers(&fake), [1, 1], "the number was free");
    fake.check_pauses(&[]);
}

#[test]
fn effect_a_lost_result_of_a_known_model_ends_that_operation_alone() {
    let fake = Fake::start();
    fake.server
        .always("POST", &route("get_info"), Reply::json(&json!({})));
    let training = fake.training();
    fake.reply("retrieve_future", status(410));
    let error = step(&training).join().unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint);
    assert!(!error.is_retryable());
    step(&training).join().unwrap();
}

/// A server that was restarted empty: it knows neither requests nor the model.
#[test]
fn effect_a_forgotten_model_ends_everything_pending_and_later_at_once() {
    let fake = Fake::start();
    fake.server.always("POST", &route("get_info"), status(404));
    let training = fake.training();
    let (held, gate) = fake.held_step(&training);
    fake.reply("retrieve_future", status(404));
    let errors = [
        step(&training).join().unwrap_err(),
        held.join().unwrap_err(),
        training.optim_step(AdamParams::default()).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Broken(_)), "{error}");
        assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint);
        assert!(
            error.to_string().contains("no longer knows S1:train:0"),
            "{error}"
        );
    }
    assert_eq!(gate.waiting(), 1, "its poll was still held");
    assert_eq!(numbers(&fake), [1, 2]);
    gate.open();
}

#[test]
fn effect_a_submission_to_a_forgotten_model_breaks_the_queue_and_it_stays_broken() {
    let fake = Fake::start();
    fake.server.always("POST", &route("get_info"), status(404));
    let training = fake.training();
    fake.server
        .always("POST", &route("optim_step"), status(404));
    let error = step(&training).join().unwrap_err();
    assert!(matches!(error, Error::Broken(_)), "{error}");
    for _ in 0..2 {
        let later = training.optim_step(AdamParams::default()).unwrap_err();
        assert_eq!(later.remedy(), Remedy::RestoreFromCheckpoint);
    }
    assert_eq!(numbers(&fake), [1]);
}

fn content_types(fake: &Fake) -> Vec<String> {
    let requests = fake.server.requests_to("forward_backward");
    let kind = |request: &crate::support::scripted::Recorded| {
        let kind = request.header("content-type").unwrap();
        kind.trim_start_matches("application/").to_owned()
    };
    requests.iter().map(kind).collect()
}

fn stumble() -> Reply {
    Reply::bytes("text/plain", "Internal Server Error").with_status(500)
}

/// A genuine refusal of the first `forward_backward` is reported as it is.
#[test]
fn effect_a_refusal_of_the_first_pass_is_not_taken_for_a_dialect() {
    for (code, detail) in [
        (400, "cannot decode the image in data[0]"),
        (422, "target_tokens are missing"),
        (413, "too large"),
    ] {
        let fake = Fake::start();
        let training = fake.training();
        fake.server.on(
            "POST",
            &route("forward_backward"),
            move |request| match request.header("content-type") {
                Some("application/json") => status(415),
                _ => Reply::json(&json!({"detail": detail})).with_status(code),
            },
        );
        let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
        let error = pass.unwrap().join().unwrap_err();
        assert_eq!((error.status(), error.effect()), (Some(code), Effect::None));
        assert!(error.to_string().contains(detail), "{error}");
        assert!(content_types(&fake).len() <= 2, "{code}");
    }
}

#[test]
fn effect_a_500_that_lasts_is_reported_as_a_500() {
    let fake = Fake::start();
    let training = fake.training();
    fake.server
        .always("POST", &route("forward_backward"), stumble());
    let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
    let error = pass.unwrap().join().unwrap_err();
    assert_eq!(error.status(), Some(500), "{error}");
    assert_eq!(End::of(&Err::<(), _>(error)), End::Broken);
}

#[test]
fn effect_a_passing_500_never_switches_the_session_to_json() {
    for stumbles in 1..=2 {
        let fake = Fake::start();
        let training = fake.training();
        for reply in times(stumbles, stumble) {
            fake.reply("forward_backward", reply);
        }
        for _ in 0..3 {
            let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
            pass.unwrap().join().unwrap();
        }
        let seen = content_types(&fake);
        assert_eq!(
            seen[seen.len() - 2..],
            ["x-protobuf", "x-protobuf"],
            "{seen:?}"
        );
    }
}

/// Servers of the JSON era stumble over every protobuf body.
#[test]
fn effect_a_server_that_always_stumbles_over_protobuf_is_spoken_to_in_json() {
    let fake = Fake::start();
    let training = fake.training();
    fake.server.on(
        "POST",
        &route("forward_backward"),
        move |request| match request.header("content-type") {
            Some("application/json") => Reply::json(&json!({"request_id": "f"})),
            _ => stumble(),
        },
    );
    for _ in 0..4 {
        let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
        pass.unwrap().join().unwrap();
    }
    let seen = content_types(&fake);
    assert_eq!(seen[seen.len() - 3..], ["json", "json", "json"], "{seen:?}");
}

/// SkyRL's framework promises to keep the connection it stumbled on, logs at length, and resets it.
#[test]
fn effect_a_server_that_resets_after_a_stumble_gets_each_pass_in_json_once() {
    let fake = Fake::start();
    let training = fake.training();
    let closing = Mutex::new(HashSet::new());
    fake.server
        .on("POST", &route("forward_backward"), move |request| {
            let mut closing = closing.lock().unwrap();
            if closing.contains(&request.connection) {
                return Reply::hang_up();
            }
            if request.header("content-type") == Some("application/json") {
                return Reply::json(&json!({"request_id": "f"}));
            }
            closing.insert(request.connection);
            stumble()
        });
    for _ in 0..3 {
        let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
        pass.unwrap().join().unwrap();
    }
    let seen = content_types(&fake);
    let json = seen.iter().filter(|kind| *kind == "json").count();
    assert_eq!(json, 3, "{seen:?}");
    fake.check_pauses(&[]);
}

/// Three data, a chunk each, of which JSON cannot hold the last.
fn three_with_a_nan() -> Vec<Datum> {
    let mut data = vec![data()[0].clone(); 3];
    data[2] = data[2].clone().with_weights(vec![f32::NAN]);
    data
}

fn chunks_in_order() -> Fake {
    Fake::with_flags(json!({"fwdbwd_max_chunk_len": 1, "parallel_fwdbwd_chunks": false}))
}

#[test]
fn effect_what_json_cannot_hold_is_found_before_any_chunk_is_sent() {
    for parallel in [false, true] {
        let flags = json!({"fwdbwd_max_chunk_len": 1, "parallel_fwdbwd_chunks": parallel});
        let fake = Fake::with_flags(flags);
        let training = train(&fake.client(fake.config().with_dialect(Dialect::Json)));
        let pass = training.forward_backward(&three_with_a_nan(), LossFn::CrossEntropy);
        let error = pass.unwrap().join().unwrap_err();
        let expected = "invalid data[2].loss_fn_inputs.weights.data[0]: \
                        NaN cannot be written as JSON; must be finite";
        assert_eq!(error.to_string(), expected);
        assert_eq!(fake.server.requests_to("forward_backward").len(), 0);
    }
}

/// One that reads every body as JSON.
fn misread(request: &crate::support::scripted::Recorded) -> Reply {
    match request.header("content-type") {
        Some("application/json") => Reply::json(&json!({"request_id": "f"})),
        _ => status(422),
    }
}

#[test]
fn effect_a_session_goes_over_to_json_with_whole_calls_only() {
    let fake = chunks_in_order();
    let training = fake.training();
    fake.server.on("POST", &route("forward_backward"), misread);
    let pass = training.forward_backward(&three_with_a_nan(), LossFn::CrossEntropy);
    let error = pass.unwrap().join().unwrap_err();
    assert_eq!((error.status(), error.effect()), (Some(422), Effect::None));
    assert_eq!(content_types(&fake), ["x-protobuf"]);
}

/// Another model of the session finds out in the middle of a call.
#[test]
fn effect_a_value_refused_after_other_chunks_were_taken_says_so() {
    let fake = chunks_in_order();
    let service = fake.service();
    let (training, other) = (train(&service), train(&service));
    let gate = Gate::new();
    let accepted = Reply::json(&json!({"request_id": "f"}));
    fake.reply("forward_backward", accepted.after(&gate));
    fake.server.on("POST", &route("forward_backward"), misread);
    let pass = training
        .forward_backward(&three_with_a_nan(), LossFn::CrossEntropy)
        .unwrap();
    gate.wait_for(1);
    let meanwhile = other.forward_backward(&data(), LossFn::CrossEntropy);
    meanwhile.unwrap().join().unwrap();
    gate.open();
    let error = pass.join().unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint, "{error}");
    assert!(error.is_user_error(), "{error}");
    assert!(error.to_string().contains("invalid data[2]."), "{error}");
    assert!(error.to_string().contains("chunk 3 of 3"), "{error}");
}

#[test]
fn effect_a_pass_that_was_on_its_way_when_the_client_closed_may_have_arrived() {
    for dialect in [Dialect::Auto, Dialect::Proto, Dialect::Json] {
        let fake = Fake::start();
        let config = fake.config().with_dialect(dialect);
        let service = fake.client(config.with_close_timeout(Duration::ZERO));
        let training = train(&service);
        let gate = Gate::new();
        fake.reply("forward_backward", status(503).after(&gate));
        let pass = training.forward_backward(&data(), LossFn::CrossEntropy);
        gate.wait_for(1);
        let _ = service.close();
        let error = pass.unwrap().join().unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{dialect:?}: {error}");
        gate.open();
    }
}
