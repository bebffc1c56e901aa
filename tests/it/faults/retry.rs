//! Ordinary calls under trouble: the HTTP layer's retries, the outer retry, the billing pause.

use std::time::Duration;

use serde_json::json;
use tinker::Error;
use tinker::client::RawCall;

use crate::support::fake::Fake;
use crate::support::scripted::Reply;

fn call(fake: &Fake, replies: Vec<Reply>) -> tinker::Result<serde_json::Value> {
    let service = fake.service();
    for reply in replies {
        fake.reply("some/endpoint", reply);
    }
    fake.server.always(
        "POST",
        "/api/v1/some/endpoint",
        Reply::json(&json!({"ok": true})),
    );
    service.call(&RawCall::post("some/endpoint").with_json(&json!({"a": 1}))?)
}

fn status(status: u16) -> Reply {
    Reply::json(&json!({"detail": "scripted"})).with_status(status)
}

fn keys(fake: &Fake) -> Vec<String> {
    let requests = fake.server.requests_to("/api/v1/some/endpoint");
    let key = |request: &crate::support::scripted::Recorded| {
        request.header("x-idempotency-key").unwrap().to_owned()
    };
    requests.iter().map(key).collect()
}

#[test]
fn passing_statuses_are_tried_again_under_the_same_idempotency_key() {
    for code in [408, 409, 429, 500, 502, 503, 504] {
        let fake = Fake::start();
        assert!(
            call(&fake, vec![status(code), status(code)]).is_ok(),
            "{code}"
        );
        let keys = keys(&fake);
        assert!(
            keys.len() == 3 && keys.iter().all(|key| *key == keys[0]),
            "{keys:?}"
        );
        let counts: Vec<_> = fake
            .server
            .requests_to("/api/v1/some/endpoint")
            .iter()
            .map(|request| {
                request
                    .header("x-stainless-retry-count")
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(counts, ["0", "1", "2"]);
    }
}

#[test]
fn final_statuses_are_not_tried_again() {
    for code in [400, 401, 403, 404, 410, 422, 425] {
        let fake = Fake::start();
        let error = call(&fake, vec![status(code)]).unwrap_err();
        assert_eq!(error.status(), Some(code));
        assert!(error.to_string().contains("POST some/endpoint"), "{error}");
        assert_eq!(keys(&fake).len(), 1);
    }
}

#[test]
fn the_service_s_word_on_retrying_wins() {
    let fake = Fake::start();
    assert!(
        call(
            &fake,
            vec![status(400).with_header("x-should-retry", "true")]
        )
        .is_ok()
    );
    let fake = Fake::start();
    let refused = status(404).with_header("x-should-retry", "false");
    assert!(call(&fake, vec![refused]).is_err());
    fake.check_pauses(&[]);
}

#[test]
fn retry_after_is_honoured() {
    let fake = Fake::start();
    let replies = vec![
        status(429).with_header("retry-after-ms", "250"),
        status(503).with_header("retry-after", "7"),
        status(503).with_header("retry-after", "61"),
    ];
    assert!(call(&fake, replies).is_ok());
    let pauses = fake.clock.pauses();
    assert_eq!(
        pauses[..2],
        [Duration::from_millis(250), Duration::from_secs(7)]
    );
    assert!(pauses[2] <= Duration::from_secs(2), "{pauses:?}");
}

#[test]
fn eleven_tries_then_the_outer_retry_with_a_new_key() {
    let fake = Fake::start();
    assert!(call(&fake, (0..11).map(|_| status(500)).collect()).is_ok());
    let keys = keys(&fake);
    assert_eq!(keys.len(), 12);
    assert!(keys[..11].iter().all(|key| *key == keys[0]));
    assert_ne!(keys[11], keys[0]);
}

#[test]
fn an_endpoint_that_never_recovers_is_given_up_after_five_minutes() {
    let fake = Fake::start();
    let error = call(&fake, (0..2_000).map(|_| status(503)).collect()).unwrap_err();
    assert_eq!(error.status(), Some(503));
    let total: Duration = fake.clock.pauses().iter().sum();
    assert!(total >= Duration::from_secs(300), "{total:?}");
}

#[test]
fn lost_connections_and_damaged_answers_are_tried_again() {
    for reply in [
        Reply::hang_up(),
        Reply::hang_up().before_effect(),
        Reply::json(&json!({"ok": true})).cut_before_end(2),
        Reply::raw("garbage"),
        Reply::status(400),
    ] {
        let fake = Fake::start();
        assert!(call(&fake, vec![reply]).is_ok());
        assert_eq!(fake.clock.pauses().len(), 1);
    }
}

#[test]
fn an_unpaid_bill_waits_outside_the_count() {
    let fake = Fake::start();
    assert!(call(&fake, (0..5).map(|_| status(402)).collect()).is_ok());
    fake.check_pauses(&[5; 5]);
}

#[test]
fn one_attempt_means_one() {
    let fake = Fake::start();
    let service = fake.service();
    fake.server.always("GET", "/api/v1/x", status(500));
    let error = service
        .call_raw(&RawCall::get("x").without_retries())
        .unwrap_err();
    assert!(matches!(error, Error::Status(_)));
    assert_eq!(fake.server.requests_to("/api/v1/x").len(), 1);
}

#[test]
fn answers_and_errors_carry_no_secrets() {
    let fake = Fake::start();
    let service = fake.service();
    fake.server.on("GET", "/api/v1/echo", |request| {
        let key = request.header("x-api-key").unwrap();
        Reply::json(&json!({"detail": format!("bad key {key}")})).with_status(403)
    });
    let error = service.call_raw(&RawCall::get("echo")).unwrap_err();
    for text in [
        format!("{error}"),
        format!("{error:?}"),
        format!("{service:?}"),
    ] {
        assert!(!text.contains("secret"), "{text}");
    }
}
