use std::time::{Instant, UNIX_EPOCH};

use serde_json::{Value, json};
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use super::super::fault::FaultKind;
use super::super::request::Head;
use super::*;

/// The reference's limit of the outer layer, and our default.
const LIMIT: Duration = Duration::from_secs(300);

fn golden() -> Value {
    serde_json::from_str(include_str!(
        "../../../tests/fixtures/wire/retry_and_errors.json"
    ))
    .unwrap()
}

fn response(status: u16, headers: &Value, body: &str) -> Response {
    let mut map = HeaderMap::new();
    for (name, value) in headers.as_object().into_iter().flatten() {
        let name: HeaderName = name.parse().unwrap();
        map.insert(
            name,
            HeaderValue::from_str(value.as_str().unwrap()).unwrap(),
        );
    }
    Response {
        head: Head {
            status,
            headers: map,
            taken: false,
        },
        body: body.into(),
    }
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap())
}

#[test]
fn http_delays_match_the_reference() {
    for case in golden()["http_layer"]["delays"].as_array().unwrap() {
        let tries = case["retries_taken"].as_u64().unwrap() as u32;
        let delay = |chance| Backoff::HTTP.delay(tries, chance);
        assert_eq!(delay(0.0), seconds(&case["max"]), "{case}");
        assert_eq!(delay(1.0), seconds(&case["min"]), "{case}");
    }
    assert_eq!(Backoff::HTTP.delay(1_000, 0.0), Duration::from_secs(10));
}

#[test]
fn sampling_delays_match_the_reference() {
    let settings = crate::types::RetryConfig::default();
    let (base, max) = (settings.retry_delay_base, settings.retry_delay_max);
    let sampling = Backoff::between(base, max, settings.jitter_factor);
    for case in golden()["sampling_retry_handler"]["delays"]
        .as_array()
        .unwrap()
    {
        let tries = case["attempt"].as_u64().unwrap() as u32;
        let delay = |chance| sampling.delay(tries, chance);
        assert_eq!(delay(1.0), seconds(&case["min"]), "{case}");
        assert_eq!(delay(0.0), seconds(&case["max"]), "{case}");
    }
}

#[test]
fn retry_after_matches_the_reference() {
    // The golden date lies in the past.
    let now = UNIX_EPOCH + Duration::from_secs(1_750_000_000);
    for case in golden()["http_layer"]["retry_after"].as_array().unwrap() {
        let outcome = Ok(response(429, &case["headers"], ""));
        let expected = seconds(&case["delay_first_retry_without_jitter"]);
        let verdict = http_verdict(&outcome, 0, 10, now, 0.0);
        assert_eq!(verdict, Verdict::Retry(expected), "{case}");
    }
}

#[test]
fn retry_after_dates_are_read_against_the_given_time() {
    let at = |offset: u64| UNIX_EPOCH + Duration::from_secs(1_445_412_480 - offset);
    let head = response(
        429,
        &json!({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        "",
    )
    .head;
    assert_eq!(server_delay(&head, at(7)), Some(Duration::from_secs(7)));
    assert_eq!(server_delay(&head, at(60)), Some(Duration::from_secs(60)));
    assert_eq!(server_delay(&head, at(61)), Some(Duration::from_secs(61)));
    assert_eq!(server_delay(&head, at(0)), None);
}

/// A caller hears of a long wait; a loop does not sit it out.
#[test]
fn long_waits_are_told_and_not_obeyed() {
    let answer = response(429, &json!({"retry-after": "3600"}), "");
    let error = error_from_response(&answer, "POST x", UNIX_EPOCH);
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(wish(&error), None);
    let verdict = http_verdict(&Ok(answer), 0, 10, UNIX_EPOCH, 0.0);
    assert_eq!(verdict, Verdict::Retry(Duration::from_millis(500)));
}

#[test]
fn odd_delays_are_ignored() {
    for value in ["nan", "inf", "-inf", "1e400", "", " "] {
        let head = response(429, &json!({"retry-after": value}), "").head;
        assert_eq!(server_delay(&head, UNIX_EPOCH), None, "{value:?}");
        let head = response(429, &json!({"retry-after-ms": value}), "").head;
        assert_eq!(server_delay(&head, UNIX_EPOCH), None, "{value:?}");
    }
}

#[test]
fn statuses_and_the_servers_word_decide_as_in_the_reference() {
    for case in golden()["http_layer"]["should_retry"].as_array().unwrap() {
        let status = case["status"].as_u64().unwrap() as u16;
        let outcome = Ok(response(status, &case["headers"], ""));
        let again = http_verdict(&outcome, 0, 10, UNIX_EPOCH, 0.0) != Verdict::Fail;
        assert_eq!(again, case["retry"].as_bool().unwrap(), "{case}");
        assert_eq!(
            http_verdict(&outcome, 10, 10, UNIX_EPOCH, 0.0),
            Verdict::Fail
        );
        assert_eq!(http_verdict(&outcome, 0, 0, UNIX_EPOCH, 0.0), Verdict::Fail);
    }
    let fine = Ok(response(200, &json!({}), ""));
    assert_eq!(http_verdict(&fine, 0, 0, UNIX_EPOCH, 0.0), Verdict::Done);
    // A redirect that was not followed is no success.
    let elsewhere = Ok(response(307, &json!({}), ""));
    assert_eq!(
        http_verdict(&elsewhere, 0, 10, UNIX_EPOCH, 0.0),
        Verdict::Fail
    );
}

#[test]
fn faults_that_pass_are_retried() {
    let verdict = |kind| http_verdict(&Err(Fault::new(kind, "x")), 0, 10, UNIX_EPOCH, 0.0);
    let again = Verdict::Retry(Duration::from_millis(500));
    assert_eq!(verdict(FaultKind::Connect), again);
    assert_eq!(verdict(FaultKind::Dropped), again);
    assert_eq!(verdict(FaultKind::Tls), Verdict::Fail);
    assert_eq!(verdict(FaultKind::Stopped), Verdict::Fail);
}

#[test]
fn the_outer_layer_goes_on_for_five_minutes() {
    let mut elapsed = Duration::ZERO;
    let mut waits = Vec::new();
    let next = |tries, elapsed| outer_verdict(Meaning::BrokenOff, tries, elapsed, LIMIT, 0.0);
    while let Verdict::Retry(wait) = next(waits.len() as u32, elapsed) {
        elapsed += wait;
        waits.push(wait.as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30, 29]);
    assert_eq!(elapsed, LIMIT);
}

#[test]
fn the_outer_layer_varies_its_waits_and_knows_what_passes() {
    let verdict = |meaning, chance| outer_verdict(meaning, 0, Duration::ZERO, LIMIT, chance);
    let shortest = Verdict::Retry(Duration::from_millis(750));
    assert_eq!(verdict(Meaning::Failing, 1.0), shortest);
    assert_eq!(verdict(Meaning::Refused, 0.0), Verdict::Fail);
    assert_eq!(verdict(Meaning::Stopped, 0.0), Verdict::Fail);
}

#[test]
fn billing_pauses_then_gives_up_and_forgets() {
    let start = Instant::now();
    let mut window = BillingWindow::new(Duration::from_secs(3600));
    let mut at = |seconds| window.refused(start + Duration::from_secs(seconds));
    assert_eq!(at(0), Billing::Pause { log: true });
    assert_eq!(at(5), Billing::Pause { log: false });
    assert_eq!(at(60), Billing::Pause { log: false });
    assert_eq!(at(61), Billing::Pause { log: true });
    for second in (66..=3600).step_by(5) {
        assert!(matches!(at(second), Billing::Pause { .. }), "{second}");
    }
    assert_eq!(at(3601), Billing::GiveUp);
    assert_eq!(at(3605), Billing::GiveUp);
    // Five quiet minutes later it is a new incident.
    assert_eq!(at(4000), Billing::Pause { log: true });
    assert_eq!(at(7600), Billing::Pause { log: true });
}

#[test]
fn error_answers_carry_status_body_and_a_readable_message() {
    for case in golden()["status_errors"].as_array().unwrap() {
        let status = case["status"].as_u64().unwrap() as u16;
        let answer = response(status, &json!({}), case["body_text"].as_str().unwrap());
        let error = error_from_response(&answer, "POST x", UNIX_EPOCH);
        assert_eq!(error.status(), Some(status));
        assert_eq!(error.body(), Some(&case["body"]), "{case}");
    }
    #[track_caller]
    fn check(body: &str, message: &str) {
        let answer = response(422, &json!({"retry-after": "2"}), body);
        let error = error_from_response(&answer, "POST x", UNIX_EPOCH);
        let context = error.context().unwrap();
        assert_eq!(context.message, message);
        assert_eq!(context.request.as_deref(), Some("POST x"));
        assert_eq!(context.retry_after, Some(Duration::from_secs(2)));
    }
    check(r#"{"detail":"bad"}"#, "bad");
    check(" not here ", "not here");
    check("", "");
    check("{}", "");
    check("null", "");
    check("[1]", "1");
    check(r#"{"error":"x"}"#, r#"{"error":"x"}"#);
    check(
        r#"{"detail":[{"loc":["body","data",3],"msg":"too long","type":"t"},{"loc":["q"],"msg":"missing"}]}"#,
        "body.data.3: too long; q: missing",
    );
    check(
        " <!doctype html><TITLE>\n502 Bad\nGateway</TITLE><p>…",
        r#"a web page, "502 Bad Gateway""#,
    );
    // What a service says of such a text is no page.
    let said = "cannot read <title>x</title> in the prompt";
    check(said, said);
    check(&json!({ "detail": said }).to_string(), said);
    check(&"é".repeat(2000), &format!("{}…", "é".repeat(1000)));
}

#[test]
fn deprecation_notes_have_a_level() {
    let note = |headers| {
        let answer = response(200, &headers, "");
        deprecation(&answer.head).map(|(level, text)| (level, text.to_owned()))
    };
    assert_eq!(note(json!({})), None);
    assert_eq!(
        note(json!({"x-deprecation-note": "upgrade"})),
        Some((log::Level::Warn, "upgrade".to_owned()))
    );
    assert_eq!(
        note(json!({"x-deprecation-note": "upgrade", "x-deprecation-level": "error"})),
        Some((log::Level::Error, "upgrade".to_owned()))
    );
}
