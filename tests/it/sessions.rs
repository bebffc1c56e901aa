//! A session's life: start-up, heartbeats, telemetry, closing and dropping.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tinker::client::RawCall;
use tinker::config::{Config, Dialect};
use tinker::error::Effect;
use tinker::types::FinishReason;
use tinker::unversioned::Intervals as _;
use tinker::{AdamParams, Datum, Error, LossFn, ModelInput, SamplingParams, ServiceClient};

use crate::support::fake::{Fake, route, train};
use crate::support::logs;
use crate::support::scripted::{Gate, Recorded, Reply};

fn paths(fake: &Fake) -> Vec<String> {
    let path = |request: &Recorded| request.path.trim_start_matches("/api/v1/").to_owned();
    fake.server.requests().iter().map(path).collect()
}

#[test]
fn begins_with_the_first_client_in_the_reference_s_order() {
    let fake = Fake::start();
    let service = fake.service();
    assert_eq!(fake.server.requests().len(), 0);
    let _training = train(&service);
    let expected = [
        "client/config",
        "client/dynamic_config",
        "create_session",
        "create_model",
        "retrieve_future",
    ];
    assert_eq!(paths(&fake), expected);
    let _sampler = service.create_sampling_client("some/model").unwrap();
    assert_eq!(paths(&fake)[5..], ["create_sampling_session"]);
}

#[test]
fn one_session_is_opened_for_all_who_ask_at_once() {
    let fake = Fake::start();
    let gate = Gate::new();
    let session = Reply::json(&json!({"session_id": "S1", "type": "create_session"}));
    fake.reply("create_session", session.after(&gate));
    let service = fake.service();
    thread::scope(|scope| {
        let ask = || scope.spawn(|| service.session_id().unwrap());
        let asked: Vec<_> = (0..8).map(|_| ask()).collect();
        gate.wait_for(1);
        gate.open();
        for id in asked {
            assert_eq!(id.join().unwrap(), "S1");
        }
    });
    assert_eq!(fake.bodies("create_session").len(), 1);
}

#[test]
fn closing_ends_whoever_is_opening_the_session() {
    for stalled in ["client/config", "client/dynamic_config", "create_session"] {
        let fake = Fake::start();
        let gate = Gate::new();
        fake.reply(stalled, Reply::json(&json!({})).after(&gate));
        let service = fake.service();
        thread::scope(|scope| {
            let opener = scope.spawn(|| service.session_id());
            gate.wait_for(1);
            service.close_as(FinishReason::Interrupted, None).unwrap();
            let error = opener.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Closed(_)), "{stalled}: {error}");
        });
        // It was not the answer that ended it.
        assert_eq!(gate.waiting(), 1);
        assert!(matches!(service.session_id(), Err(Error::Closed(_))));
    }
}

#[test]
fn an_address_where_nobody_listens_is_named_at_once_and_given_up_in_time() {
    logs::capture();
    let fake = Fake::start();
    // Too low a port for anything that binds to a free one.
    let config = fake.config().with_base_url("http://127.0.0.1:1");
    let service = fake.client(config);
    let error = service.session_id().unwrap_err();
    assert!(matches!(error, Error::Connection(_)), "{error}");
    assert!(error.to_string().contains("check the base URL"), "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert_eq!(fake.clock.pauses().len(), 2, "three tries");
    let lines = logs::with("cannot reach http://127.0.0.1:1: ");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for words in ["WARN", "check the base URL", "up to 15 s"] {
        assert!(lines[0].contains(words), "{lines:?}");
    }
}

#[test]
fn a_server_without_configuration_gets_the_defaults() {
    let fake = Fake::start();
    let missing = || Reply::json(&json!({"detail": "Not Found"})).with_status(404);
    fake.server
        .always("POST", &route("client/config"), missing());
    fake.server
        .always("POST", &route("client/dynamic_config"), missing());
    fake.server
        .always("POST", &route("sessions/S1/finish"), missing());
    let service = fake.service();
    let training = train(&service);
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    service.close().unwrap();
}

#[test]
fn tokens_are_exchanged_once_and_sent_everywhere() {
    let fake = Fake::with_flags(json!({"pjwt_auth_enabled": true}));
    // Expires in 2100.
    let token = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.x";
    fake.server.always(
        "POST",
        &route("auth/token"),
        Reply::json(&json!({"jwt": token})),
    );
    let training = fake.training();
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(fake.server.requests_to(&route("auth/token")).len(), 1);
    for request in fake.server.requests() {
        let raw = ["client/config", "auth/token"]
            .iter()
            .any(|path| request.path.ends_with(path));
        let expected = if raw { "tml-secret-key" } else { token };
        assert_eq!(
            request.header("x-api-key"),
            Some(expected),
            "{}",
            request.path
        );
    }
}

#[test]
fn heartbeats_follow_their_rhythm_and_end_with_a_410() {
    let fake = Fake::start();
    let config = fake
        .config()
        .with_heartbeat_interval(Duration::from_millis(5));
    let service = ServiceClient::new(config).unwrap();
    fake.reply("session_heartbeat", Reply::status(500));
    fake.reply("session_heartbeat", Reply::hang_up());
    let _sampler = service.create_sampling_client("some/model").unwrap();
    let beats = |requests: &[Recorded]| {
        requests
            .iter()
            .filter(|request| request.path.ends_with("session_heartbeat"))
            .count()
    };
    fake.server.wait_until(|requests| beats(requests) >= 6);
    let beat = &fake.server.requests_to(&route("session_heartbeat"))[0];
    assert_eq!(
        beat.json(),
        json!({"session_id": "S1", "type": "session_heartbeat"})
    );
    assert_eq!(beat.header("x-stainless-read-timeout"), Some("10"));
    let gone = Reply::json(&json!({"detail": "finished"})).with_status(410);
    fake.server
        .always("POST", &route("session_heartbeat"), gone);
}

#[test]
fn closing_tells_the_service_once_and_ends_the_client() {
    let fake = Fake::start();
    let service = fake.service();
    let training = train(&service);
    service
        .close_as(FinishReason::Interrupted, Some("control-c"))
        .unwrap();
    service.close().unwrap();
    let finishes = fake.bodies("sessions/S1/finish");
    assert_eq!(
        finishes,
        [json!({"reason": {"type": "interrupted"}, "detail": "control-c"})]
    );
    assert!(matches!(
        training.optim_step(AdamParams::default()),
        Err(Error::Closed(_))
    ));
    assert!(matches!(service.capabilities(), Err(Error::Closed(_))));
}

#[test]
fn a_finish_that_fails_is_told_after_the_clean_up() {
    let fake = Fake::start();
    let refused = Reply::json(&json!({"detail": "no"})).with_status(403);
    fake.server
        .always("POST", &route("sessions/S1/finish"), refused);
    let service = fake.service();
    let _training = train(&service);
    let error = service.close().unwrap_err();
    assert_eq!(error.status(), Some(403));
}

#[test]
fn the_last_drop_finishes_the_session() {
    let fake = Fake::start();
    let service = fake.service();
    let training = train(&service);
    let pending = training.optim_step(AdamParams::default()).unwrap();
    drop((service, training));
    assert_eq!(fake.bodies("sessions/S1/finish").len(), 0);
    pending.join().unwrap();
    let finished = fake.bodies("sessions/S1/finish");
    assert_eq!(
        finished,
        [json!({"reason": {"type": "success"}, "detail": null})]
    );
}

#[test]
fn a_drop_during_a_panic_finishes_as_errored() {
    let fake = Fake::start();
    let service = fake.service();
    let worker = thread::spawn(move || {
        let _training = train(&service);
        panic!("on purpose");
    });
    assert!(worker.join().is_err());
    let finished = fake.bodies("sessions/S1/finish");
    assert_eq!(
        finished,
        [json!({"reason": {"type": "errored"}, "detail": null})]
    );
}

#[test]
fn a_drop_with_a_poll_in_flight_wakes_it() {
    let fake = Fake::start();
    let training = fake.training();
    let (pending, gate) = fake.held_step(&training);
    // The poll would be answered when the gate opens, which it never does before the drop ends.
    drop((pending, training));
    assert_eq!(gate.waiting(), 1);
    gate.open();
}

#[test]
fn what_is_under_way_survives_an_outage() {
    let fake = Fake::start();
    let service = fake.service();
    let training = train(&service);
    let sampler = service.create_sampling_client("some/model").unwrap();
    let gate = Gate::new();
    let waiting = Reply::json(&json!({"type": "try_again"}));
    for _ in 0..4 {
        fake.reply("retrieve_future", waiting.clone().after(&gate));
    }
    fake.server
        .reply("GET", &route("x"), waiting.clone().after(&gate));
    fake.server.always("GET", &route("x"), waiting);
    thread::scope(|scope| {
        let call = scope.spawn(|| service.call_raw(&RawCall::get("x")));
        let optim = training.optim_step(AdamParams::default()).unwrap();
        let whole = training.forward(&[datum()], LossFn::CrossEntropy).unwrap();
        let chunks = training
            .forward_backward_chunks(&[datum()], LossFn::CrossEntropy)
            .unwrap();
        let sample = sampler
            .submit_sample(
                &ModelInput::from_ints(vec![1]),
                SamplingParams::max_tokens(4),
            )
            .unwrap();
        gate.wait_for(5);
        // Every connection breaks, and the next ones are refused before they can ask anything.
        fake.server.drop_connections(12);
        fake.server.close_connections();
        optim.join().unwrap();
        whole.join().unwrap();
        assert!(chunks.collect::<tinker::Result<Vec<_>>>().is_ok());
        sample.join().unwrap();
        call.join().unwrap().unwrap();
    });
    gate.open();
}

#[test]
fn closing_ends_what_is_pending_with_an_error() {
    let fake = Fake::start();
    let service = fake.service();
    let training = train(&service);
    let (pending, gate) = fake.held_step(&training);
    service.close().unwrap();
    assert!(matches!(pending.join(), Err(Error::Closed(_))));
    gate.open();
}

#[test]
fn the_last_drop_may_happen_inside_an_observer_or_a_map() {
    let fake = Fake::start();
    let (sender, slot) = crossbeam_channel::bounded::<tinker::TrainingClient>(1);
    let (dropped, seen) = crossbeam_channel::bounded(1);
    let config = fake.config().with_queue_observer(move |_| {
        drop(slot.recv().unwrap());
        dropped.send(()).unwrap();
    });
    let service = fake.client(config);
    let training = train(&service);
    drop(service);
    let waiting = json!({"type": "try_again", "queue_state": "active"});
    fake.reply("retrieve_future", Reply::json(&waiting));
    let pending = training.optim_step(AdamParams::default()).unwrap();
    drop(pending);
    sender.send(training).unwrap();
    seen.recv_timeout(Duration::from_secs(60)).unwrap();
    fake.server.wait_until(|requests| {
        requests
            .iter()
            .any(|request| request.path.ends_with("finish"))
    });

    let fake = Fake::start();
    let training = fake.training();
    let pending = training.optim_step(AdamParams::default()).unwrap();
    pending.map(move |_| drop(training)).join().unwrap();
    assert_eq!(fake.bodies("sessions/S1/finish").len(), 1);
}

#[test]
fn telemetry_has_the_reference_s_shape_and_no_secrets() {
    let fake = Fake::start();
    let config = fake.config().with_telemetry(true);
    let service = fake.client(config);
    let training = train(&service);
    for (message, category) in [("boom", "user"), ("bang", "server")] {
        let failure = json!({"error": message, "category": category});
        fake.reply("retrieve_future", Reply::json(&failure));
        training
            .optim_step(AdamParams::default())
            .unwrap()
            .join()
            .unwrap_err();
    }
    service.close().unwrap();
    let events: Vec<Value> = fake
        .bodies("telemetry")
        .iter()
        .flat_map(|batch| batch["events"].as_array().unwrap().clone())
        .collect();
    let golden: Value =
        serde_json::from_str(include_str!("../fixtures/wire/telemetry.json")).unwrap();
    let expected: Vec<Value> = golden["batches"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|batch| batch["events"].as_array().unwrap().clone())
        .collect();
    assert_eq!(events.len(), expected.len());
    for (event, expected) in events.iter().zip(&expected) {
        check_shape("", event, expected);
    }
    let batch = &fake.bodies("telemetry")[0];
    assert_eq!(batch["session_id"], "S1");
    assert_eq!(batch["sdk_version"], "0.36.0");
    assert_eq!(batch["process_uuid"].as_str().unwrap().len(), 36);
    for request in fake.server.requests_to(&route("telemetry")) {
        assert!(!String::from_utf8_lossy(&request.body).contains("secret"));
    }
}

/// Equal, except that `<...>` stands for anything of the same kind. We send no traceback.
fn check_shape(place: &str, actual: &Value, expected: &Value) {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => {
            let names = |map: &serde_json::Map<String, Value>| {
                map.keys()
                    .filter(|key| *key != "traceback")
                    .cloned()
                    .collect::<Vec<_>>()
            };
            assert_eq!(names(actual), names(expected), "{place}");
            for name in names(expected) {
                check_shape(&format!("{place}.{name}"), &actual[&name], &expected[&name]);
            }
        }
        (actual, Value::String(mask)) if mask.starts_with('<') => {
            let fits = match mask.as_str() {
                "<seconds>" => actual.is_number(),
                _ => actual.is_string(),
            };
            assert!(fits, "{place}: {actual}");
        }
        _ => assert_eq!(actual, expected, "{place}"),
    }
}

#[test]
fn telemetry_that_is_off_sends_nothing() {
    let fake = Fake::start();
    let service = fake.service();
    let _training = train(&service);
    service.close().unwrap();
    assert_eq!(fake.bodies("telemetry").len(), 0);
}

#[test]
fn telemetry_that_stalls_holds_up_neither_an_error_nor_the_end() {
    let fake = Fake::start();
    let gate = Gate::new();
    let accepted = Reply::json(&json!({"status": "accepted"}));
    fake.server
        .always("POST", &route("telemetry"), accepted.after(&gate));
    let config = fake
        .config()
        .with_telemetry(true)
        .with_close_timeout(Duration::from_millis(50));
    let service = fake.client(config);
    let training = train(&service);
    fake.reply("retrieve_future", Reply::json(&json!({"error": "boom"})));
    let step = training.optim_step(AdamParams::default()).unwrap();
    assert!(matches!(step.join(), Err(Error::Failed(_))));
    gate.wait_for(1);
    service.close().unwrap();
    // Neither waited for the answer.
    assert_eq!(gate.waiting(), 1);
}

#[test]
fn telemetry_goes_out_in_batches_of_a_hundred() {
    let fake = Fake::start();
    let service = fake.client(fake.config().with_telemetry(true));
    let training = train(&service);
    let gate = Gate::new();
    let accepted = Reply::json(&json!({"status": "accepted"}));
    fake.reply("telemetry", accepted.after(&gate));
    // Three events each, while the first batch is held up.
    for _ in 0..70 {
        fake.reply("retrieve_future", Reply::json(&json!({"error": "boom"})));
        let step = training.optim_step(AdamParams::default()).unwrap();
        assert!(step.join().is_err());
    }
    gate.wait_for(1);
    gate.open();
    service.close().unwrap();
    let sizes: Vec<usize> = fake
        .bodies("telemetry")
        .iter()
        .map(|batch| batch["events"].as_array().unwrap().len())
        .collect();
    // The start of the session is an event too.
    assert_eq!(sizes.iter().sum::<usize>(), 1 + 3 * 70);
    assert!(
        sizes[1] == 100 && sizes.iter().all(|size| *size <= 100),
        "{sizes:?}"
    );
}

fn datum() -> Datum {
    Datum::new(ModelInput::from_ints(vec![1]))
        .with_target_tokens(vec![2])
        .with_weights(vec![1.0])
}

fn bodies_of(fake: &Fake) -> Vec<(String, String)> {
    let kind = |request: &Recorded| {
        let path = request.path.trim_start_matches("/api/v1/").to_owned();
        (
            path,
            request
                .header("content-type")
                .unwrap_or_default()
                .to_owned(),
        )
    };
    let requests = fake.server.requests();
    let forward = requests
        .iter()
        .filter(|request| request.path.contains("forward"));
    forward.map(kind).collect()
}

#[test]
fn dialects_fall_back_to_json_once_and_remember_it() {
    let detail = |status, detail: &str| Reply::json(&json!({"detail": detail})).with_status(status);
    for refusal in [
        detail(415, "unsupported media type"),
        detail(422, "body is not JSON"),
        detail(400, "cannot decode body"),
    ] {
        let fake = Fake::start();
        fake.server.on("POST", &route("forward"), |_| {
            Reply::json(&json!({"request_id": "f"}))
        });
        let training = fake.training();
        fake.reply("forward_backward", refusal);
        for _ in 0..2 {
            training
                .forward_backward(&[datum()], LossFn::CrossEntropy)
                .unwrap()
                .join()
                .unwrap();
        }
        training
            .forward(&[datum()], LossFn::CrossEntropy)
            .unwrap()
            .join()
            .unwrap();
        let seen = bodies_of(&fake);
        let seen: Vec<_> = seen
            .iter()
            .map(|(path, kind)| (path.as_str(), kind.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                ("forward_backward", "application/x-protobuf"),
                ("forward_backward", "application/json"),
                ("forward_backward", "application/json"),
                ("forward", "application/json"),
            ]
        );
    }
}

#[test]
fn dialects_can_be_chosen() {
    for (dialect, expected) in [
        (Dialect::Json, "application/json"),
        (Dialect::Proto, "application/x-protobuf"),
        (Dialect::Auto, "application/x-protobuf"),
    ] {
        let fake = Fake::start();
        let config = fake.config().with_dialect(dialect);
        let service = fake.client(config);
        let training = train(&service);
        training
            .forward_backward(&[datum()], LossFn::CrossEntropy)
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(
            bodies_of(&fake),
            [("forward_backward".to_owned(), expected.to_owned())]
        );
    }
}

#[test]
fn bad_input_says_what_to_do() {
    #[track_caller]
    fn check(config: Config, words: &[&str]) {
        let error = ServiceClient::new(config).and_then(|service| service.capabilities());
        let text = error.unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
    let fake = Fake::start();
    let url = fake.server.url();
    check(
        Config::default().with_base_url("no url"),
        &["no url", "http"],
    );
    check(
        Config::default().with_base_url(&url),
        &["credentials", "TINKER_API_KEY"],
    );
    let failing = Config::default()
        .with_base_url(&url)
        .with_credential_command("exit 3");
    check(failing, &["credentials", "TINKER_CREDENTIAL_CMD"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{\"version\": 1, \"keys\": [").unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap();
    let stored = |path: &std::path::Path| {
        Config::default()
            .with_base_url(&url)
            .with_credentials_file(path)
    };
    check(stored(file.path()), &[name]);
    // A folder cannot be read as a file.
    check(stored(file.path().parent().unwrap()), &["read"]);
    let refused = Reply::json(&json!({"detail": "no"})).with_status(401);
    fake.reply("client/config", refused);
    // Expired in 2001.
    let expired = "eyJhbGciOiJub25lIn0.eyJleHAiOjEwMDAwMDAwMDB9.x";
    check(
        Config::default().with_base_url(&url).with_api_key(expired),
        &["no; the token has expired", "get a new one"],
    );
    // Twice the HTTP layer's tries and the outer ones: it never becomes JSON.
    fake.server.always(
        "POST",
        &route("client/config"),
        Reply::bytes("text/html", "<html>"),
    );
    let error = fake.service().capabilities().unwrap_err();
    assert!(matches!(error, Error::Reply(_)), "{error}");
    assert!(error.to_string().contains("POST client/config"), "{error}");
}
