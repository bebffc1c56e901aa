//! `retrieve_future`: every answer of the protocol's table, and every deliberate difference.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::error::{ErrorCategory, Remedy};
use tinker::{AdamParams, Error, OptimStepResponse};

use crate::support::fake::Fake;
use crate::support::scripted::{Gate, Reply};

/// Runs one `optim_step` whose polls get these answers first.
fn run(fake: &Fake, answers: Vec<Reply>) -> tinker::Result<OptimStepResponse> {
    let training = fake.training();
    for answer in answers {
        fake.reply("retrieve_future", answer);
    }
    training.optim_step(AdamParams::default())?.join()
}

fn status(status: u16) -> Reply {
    Reply::json(&json!({"detail": "scripted"})).with_status(status)
}

fn metrics(result: &tinker::Result<OptimStepResponse>) -> f64 {
    result.as_ref().unwrap().metrics.as_ref().unwrap()["grad_norm:mean"]
}

#[test]
fn the_reference_s_scenarios_end_the_same_way() {
    let text = include_str!("../fixtures/wire/future_scenarios.json");
    let scenarios: Vec<Value> = serde_json::from_str(text).unwrap();
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        let Some(answers) = scenario["answers"].as_array() else {
            // JSON payloads for forward_backward: accepted here, see `dialects`.
            continue;
        };
        let fake = Fake::start();
        let replies = answers.iter().map(|answer| {
            let status = answer["status"].as_u64().unwrap() as u16;
            Reply::json(&answer["body"]).with_status(status)
        });
        let result = run(&fake, replies.collect());
        let polls: Vec<Value> = fake
            .server
            .requests_to("/api/v1/retrieve_future")
            .iter()
            .filter(|poll| poll.header("x-tinker-request-type") == Some("OptimStep"))
            .map(|poll| {
                json!({
                    "iteration": poll.header("x-tinker-request-iteration"),
                    "allow_metadata_only": poll.json()["allow_metadata_only"],
                })
            })
            .collect();
        assert_eq!(json!(polls), scenario["polls"], "{name}");
        match scenario["raises"].as_str() {
            None => assert_eq!(metrics(&result), 1.0, "{name}"),
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

#[test]
fn server_errors_back_off_and_surface_after_five_minutes() {
    let fake = Fake::start();
    let error = run(&fake, (0..40).map(|_| status(503)).collect()).unwrap_err();
    assert_eq!(error.status(), Some(503));
    assert!(error.is_retryable());
    let waits = fake.clock.pauses().len();
    assert!((14..=18).contains(&waits), "{waits} waits");
    let total: Duration = fake.clock.pauses().iter().sum();
    assert!(
        total >= Duration::from_secs(300) && total < Duration::from_secs(340),
        "{total:?}"
    );
}

#[test]
fn connection_faults_back_off_and_recover() {
    let fake = Fake::start();
    let answers = vec![
        Reply::hang_up(),
        Reply::hang_up().before_effect(),
        Reply::json(&json!({"metrics": {}})).cut_before_end(3),
    ];
    assert_eq!(metrics(&run(&fake, answers)), 1.0);
    fake.check_pauses(&[1, 2, 4]);
}

#[test]
fn damaged_results_are_fetched_again() {
    let fake = Fake::start();
    let answers = vec![
        Reply::bytes("application/json", "{\"metrics\": {\"grad"),
        Reply::bytes("application/json", "[1, 2]"),
        Reply::bytes("text/html", "<html>oops</html>"),
        Reply::json(&json!({"metrics": "not a map"})),
    ];
    assert_eq!(metrics(&run(&fake, answers)), 1.0);
    fake.check_pauses(&[1, 2, 4, 8]);
}

#[test]
fn rate_limits_wait_as_long_as_the_service_says() {
    let fake = Fake::start();
    let answers = vec![status(429), status(429).with_header("retry-after-ms", "5")];
    assert_eq!(metrics(&run(&fake, answers)), 1.0);
    assert_eq!(fake.clock.pauses()[1], Duration::from_millis(5));
}

#[test]
fn an_unpaid_bill_pauses_and_goes_on() {
    let fake = Fake::start();
    assert_eq!(metrics(&run(&fake, vec![status(402), status(402)])), 1.0);
    fake.check_pauses(&[5, 5]);
}

#[test]
fn an_unpaid_bill_ends_after_the_configured_pause() {
    let fake = Fake::with_flags(json!({"billing_exception_max_pause_duration_sec": 12}));
    let error = run(&fake, (0..9).map(|_| status(402)).collect()).unwrap_err();
    assert_eq!(error.status(), Some(402));
    assert_eq!(error.remedy(), Remedy::FixSetup);
    fake.check_pauses(&[5, 5, 5]);
}

#[test]
fn an_empty_bad_request_is_a_proxy_s_and_not_the_service_s() {
    let fake = Fake::start();
    assert_eq!(metrics(&run(&fake, vec![Reply::status(400)])), 1.0);
    fake.check_pauses(&[1]);
}

#[test]
fn a_waiting_operation_shows_its_id_age_and_queue() {
    let fake = Fake::start();
    let training = fake.training();
    let gate = Gate::new();
    fake.reply(
        "retrieve_future",
        Reply::json(&json!({
            "type": "try_again", "queue_state": "paused_capacity", "queue_state_reason": "busy",
        })),
    );
    let result = json!({"metrics": {"grad_norm:mean": 1.0}});
    fake.reply("retrieve_future", Reply::json(&result).after(&gate));
    let mut pending = training.optim_step(AdamParams::default()).unwrap();
    gate.wait_for(1);
    assert_eq!(pending.request_id().as_deref(), Some("req-2"));
    assert_eq!(pending.operation(), "optim_step");
    let queue = pending.queue_state().unwrap();
    assert_eq!(
        (queue.state.as_str(), queue.reason.as_deref()),
        ("paused_capacity", Some("busy"))
    );
    assert!(pending.try_join().is_none());
    assert!(pending.join_timeout(Duration::ZERO).is_none());
    gate.open();
    assert_eq!(metrics(&pending.join()), 1.0);
}

#[test]
fn a_deadline_names_what_it_gave_up_on() {
    let fake = Fake::start();
    let training = fake.training();
    let gate = Gate::new();
    fake.reply("retrieve_future", Reply::json(&json!({})).after(&gate));
    let pending = training.optim_step(AdamParams::default()).unwrap();
    gate.wait_for(1);
    let error = pending.join_within(Duration::ZERO).unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(error.request_id(), Some("req-2"));
    assert!(error.to_string().contains("optim_step"), "{error}");
    gate.open();
}

#[test]
fn an_observer_hears_of_queues_and_may_panic() {
    let fake = Fake::start();
    let (sender, heard) = crossbeam_channel::unbounded();
    let config = fake.config().with_queue_observer(move |update| {
        sender
            .send((update.operation, update.queue.state.clone()))
            .unwrap();
        panic!("on purpose");
    });
    let service = tinker::ServiceClient::with_clock(config, fake.clock.clone()).unwrap();
    let training = crate::support::fake::train(&service);
    for state in ["active", "paused_rate_limit"] {
        let answer = json!({"type": "try_again", "queue_state": state});
        fake.reply("retrieve_future", Reply::json(&answer));
    }
    let result = training.optim_step(AdamParams::default()).unwrap().join();
    assert_eq!(metrics(&result), 1.0);
    let heard: Vec<_> = heard.try_iter().collect();
    let expected = [
        ("optim_step", "active"),
        ("optim_step", "paused_rate_limit"),
    ];
    assert_eq!(
        heard,
        expected.map(|(operation, state)| (operation, state.to_owned()))
    );
}
