//! `retrieve_future`: every answer in its table.

use serde_json::{Value, json};
use tinker::error::{ErrorCategory, Remedy};
use tinker::{AdamParams, Error, OptimStepResponse};

use super::{End, rows, sample, sample_numbers, status, times, try_again};
use crate::support::fake::{Fake, result_of, route, train};
use crate::support::logs;
use crate::support::scripted::{Gate, Recorded, Reply};

/// Runs one `optim_step` whose polls get these answers first.
pub(super) fn run(fake: &Fake, answers: Vec<Reply>) -> tinker::Result<OptimStepResponse> {
    let training = fake.training();
    for answer in answers {
        fake.reply("retrieve_future", answer);
    }
    training.optim_step(AdamParams::default())?.join()
}

/// The polls of `optim_step`s, without those of the model's creation.
fn polls(fake: &Fake) -> Vec<Recorded> {
    let mut polls = fake.server.requests_to("retrieve_future");
    polls.retain(|poll| poll.header("x-tinker-request-type") == Some("OptimStep"));
    polls
}

#[track_caller]
pub(super) fn check(answers: Vec<Reply>, end: End, pauses: &[u64]) {
    let (fake, count) = (Fake::start(), answers.len());
    let result = run(&fake, answers);
    assert_eq!(End::of(&result), end);
    // After the scripted answers come good ones.
    let expected = count + usize::from(end == End::Done);
    assert_eq!(polls(&fake).len(), expected);
    fake.check_pauses(pauses);
}

fn metadata() -> Reply {
    Reply::json(&json!({"status": "complete_metadata", "response_payload_size": 100}))
}

fn failure(category: &str) -> [Reply; 1] {
    [Reply::json(&json!({"error": "boom", "category": category}))]
}

rows! { check;
    future_200_result_is_decoded: [] => End::Done, [];
    future_200_try_again_is_polled_again_at_once: times(3, try_again) => End::Done, [];
    future_200_complete_metadata_is_followed_by_the_payload: [metadata()] => End::Done, [];
    future_200_complete_metadata_twice_is_final: [metadata(), metadata()] => End::Reply, [];
    future_200_error_of_the_user_is_final: failure("user")
        => End::Failed(ErrorCategory::User), [];
    future_200_error_of_the_server_is_final: failure("server")
        => End::Failed(ErrorCategory::Server), [];
    future_200_error_of_an_unknown_category_is_final: failure("weather")
        => End::Failed(ErrorCategory::Unknown), [];
    future_408_is_polled_again_at_once: [status(408), Reply::status(408)] => End::Done, [];
    future_408_with_json_restores_the_forgiven_400s:
        [times(3, || status(400)), vec![status(408)], times(3, || status(400))].concat()
        => End::Done, [];
    future_408_without_json_restores_nothing:
        [times(2, || status(400)), vec![Reply::status(408)], times(2, || status(400))].concat()
        => End::Status(400), [];
    future_429_waits_doubling_up_to_30_s: times(7, || status(429))
        => End::Done, [1, 2, 4, 8, 16, 30, 30];
    future_429_any_other_answer_starts_over: [status(429), status(429), try_again(), status(429)]
        => End::Done, [1, 2, 1];
    future_connection_error_waits_doubling: [
        Reply::hang_up(),
        Reply::raw("not HTTP"),
        Reply::hang_up(),
    ] => End::Done, [1, 2, 4];
    future_connection_error_and_429_count_together: [Reply::hang_up(), status(429)]
        => End::Done, [1, 2];
    future_400_three_are_forgiven_at_once: times(3, || status(400)) => End::Done, [];
    future_400_the_fourth_is_final: times(4, || status(400)) => End::Status(400), [];
    future_400_try_again_restores_nothing:
        [times(2, || status(400)), vec![try_again()], times(2, || status(400))].concat()
        => End::Status(400), [];
    future_400_without_a_body_is_a_connection_error: [Reply::status(400)] => End::Done, [1];
    future_402_inside_the_window_waits_5_s: times(3, || status(402)) => End::Done, [5, 5, 5];
    future_410_of_training_says_restore: [status(410)] => End::Broken, [];
    future_401_is_final: [status(401)] => End::Status(401), [];
    future_403_is_final: [status(403)] => End::Status(403), [];
    future_409_is_final: [status(409)] => End::Status(409), [];
    future_422_is_final: [status(422)] => End::Status(422), [];
    future_425_is_final: [status(425)] => End::Status(425), [];
}

#[test]
fn future_200_protobuf_is_the_result() {
    let fake = Fake::start();
    let body = include_bytes!("../../fixtures/wire/sample_response/basic.bin");
    let reply = Reply::bytes("application/x-protobuf", body.as_slice());
    fake.reply("retrieve_future", reply);
    let response = sample(&fake.sampler()).unwrap();
    assert_eq!(response.sequences[0].tokens.as_slice(), [1, 2, 3]);
    // The message has no ids: they came with the submission.
    assert!(response.sequences[0].sequence_id.is_some());
    let poll = &fake.server.requests_to("retrieve_future")[0];
    assert!(
        poll.header("accept")
            .unwrap()
            .starts_with("application/x-protobuf")
    );
}

#[test]
fn future_200_complete_metadata_waits_for_room_in_the_budget() {
    let fake = Fake::with_flags(json!({"inflight_response_bytes_semaphore_size": 10}));
    let training = fake.training();
    let gate = Gate::new();
    let held = gate.clone();
    fake.server
        .on("POST", &route("retrieve_future"), move |poll| {
            match poll.json()["allow_metadata_only"] == true {
                true => metadata(),
                false => Reply::json(&result_of("OptimStep")).after(&held),
            }
        });
    let steps = [(); 2].map(|()| training.optim_step(AdamParams::default()).unwrap());
    gate.wait_for(1);
    fake.server.wait_until(|requests| {
        let asked = |poll: &&Recorded| poll.path.ends_with("retrieve_future");
        requests.iter().filter(asked).count() >= 4
    });
    // Both are announced, and the second is not asked for while the first is under way.
    assert_eq!(gate.waiting(), 1);
    gate.open();
    for step in steps {
        step.join().unwrap();
    }
}

#[test]
fn future_402_beyond_the_window_is_final() {
    let fake = Fake::with_flags(json!({"billing_exception_max_pause_duration_sec": 12}));
    let error = run(&fake, times(9, || status(402))).unwrap_err();
    assert_eq!(error.status(), Some(402));
    assert_eq!(error.remedy(), Remedy::FixSetup);
    fake.check_pauses(&[5, 5, 5]);
}

#[test]
fn future_410_of_a_sample_is_submitted_again_under_a_new_number() {
    let fake = Fake::start();
    fake.reply("retrieve_future", status(410));
    sample(&fake.sampler()).unwrap();
    assert_eq!(sample_numbers(&fake), [0, 1]);
}

#[test]
fn future_polls_carry_iteration_type_and_roundtrip() {
    let fake = Fake::start();
    run(&fake, vec![try_again(), metadata()]).unwrap();
    let seen: Vec<_> = polls(&fake)
        .iter()
        .map(|poll| {
            (
                poll.header("x-tinker-request-iteration")
                    .unwrap()
                    .to_owned(),
                poll.header("x-tinker-create-promise-roundtrip-time")
                    .is_some(),
                poll.json()["allow_metadata_only"] == true,
                poll.header("x-stainless-read-timeout").unwrap().to_owned(),
            )
        })
        .collect();
    let row =
        |iteration: &str, first, metadata| (iteration.to_owned(), first, metadata, "45".to_owned());
    let expected = [
        row("0", true, true),
        row("1", false, true),
        row("2", false, false),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn future_try_again_tells_the_observer_what_it_says_and_lives_through_its_panic() {
    let fake = Fake::start();
    let (sender, heard) = crossbeam_channel::unbounded();
    let config = fake.config().with_queue_observer(move |update| {
        let queue = update.queue.clone();
        sender
            .send((update.operation, queue.state, queue.reason))
            .unwrap();
        panic!("on purpose");
    });
    let service = fake.client(config);
    let training = train(&service);
    for (code, note) in [
        (200, json!({"type": "try_again", "queue_state": "active"})),
        (200, json!({"type": "try_again"})),
        (
            200,
            json!({"type": "try_again", "queue_state_reason": "busy"}),
        ),
        (408, json!({"queue_state": "paused_rate_limit"})),
    ] {
        fake.reply("retrieve_future", Reply::json(&note).with_status(code));
    }
    let result = training.optim_step(AdamParams::default()).unwrap().join();
    assert!(result.is_ok());
    let heard: Vec<_> = heard.try_iter().collect();
    let expected = [
        ("active", None),
        ("unknown", Some("busy")),
        ("paused_rate_limit", None),
    ];
    let expected =
        expected.map(|(state, reason)| ("optim_step", state.to_owned(), reason.map(str::to_owned)));
    assert_eq!(heard, expected);
}

#[test]
fn future_queue_states_are_logged_once_a_minute_and_active_never() {
    logs::capture();
    let fake = Fake::start();
    let note = |state: &str, reason: &str| {
        Reply::json(&json!({
            "type": "try_again", "queue_state": state, "queue_state_reason": reason,
        }))
    };
    let answers = vec![
        note("active", "matrix: moving"),
        note("paused_capacity", "matrix: full"),
        note("paused_capacity", "matrix: full"),
        note("paused_rate_limit", "matrix: slow"),
    ];
    run(&fake, answers).unwrap();
    let lines = logs::with("(matrix: ");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for words in ["WARN: optim_step", "paused_capacity", "(matrix: full)"] {
        assert!(lines[0].contains(words), "{lines:?}");
    }
}

#[test]
fn future_scenarios_of_the_reference_end_the_same_way() {
    let text = include_str!("../../fixtures/wire/future_scenarios.json");
    let scenarios: Vec<Value> = serde_json::from_str(text).unwrap();
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        let Some(answers) = scenario["answers"].as_array() else {
            // JSON payloads for forward_backward: accepted here, see the dialects of sessions.
            continue;
        };
        let fake = Fake::start();
        let replies = answers.iter().map(|answer| {
            let status = answer["status"].as_u64().unwrap() as u16;
            Reply::json(&answer["body"]).with_status(status)
        });
        let result = run(&fake, replies.collect());
        let polls: Vec<Value> = polls(&fake)
            .iter()
            .map(|poll| {
                json!({
                    "iteration": poll.header("x-tinker-request-iteration"),
                    "allow_metadata_only": poll.json()["allow_metadata_only"],
                })
            })
            .collect();
        assert_eq!(json!(polls), scenario["polls"], "{name}");
        match scenario["raises"].as_str() {
            None => assert!(result.is_ok(), "{name}"),
            Some(raised) => check_error(name, raised, &scenario, &result.unwrap_err()),
        }
    }
}

fn check_error(name: &str, raised: &str, scenario: &Value, error: &Error) {
    match (name, raised) {
        ("metadata twice", _) => assert!(matches!(error, Error::Reply(_)), "{name}: {error}"),
        // A future the service does not know is lost, whichever way it says so.
        ("404", _) | (_, "RetryableException") => {
            assert_eq!(
                error.remedy(),
                Remedy::RestoreFromCheckpoint,
                "{name}: {error}"
            );
        }
        (_, "RequestFailedError") => {
            // In any case of letters: the reference knows only lower case.
            let expected = match name.contains("upper-case") {
                true => ErrorCategory::User,
                false => ErrorCategory::parse(scenario["category"].as_str().unwrap()),
            };
            assert_eq!(error.category(), Some(expected), "{name}: {error}");
            assert_eq!(error.request_id(), Some("req-2"), "{name}");
        }
        _ => assert!(matches!(error, Error::Status(_)), "{name}: {error}"),
    }
}
