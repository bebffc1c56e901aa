//! Ordinary calls: the HTTP layer's retries, the outer retry, the billing pause, empty 400s,
//! redirects.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tinker::client::RawCall;
use tinker::unversioned::Intervals as _;
use tinker::{Error, ServiceClient};

use super::{End, rows, status, times};
use crate::support::fake::{Fake, route, train};
use crate::support::logs;
use crate::support::scripted::{Recorded, Reply, Server};

const PATH: &str = "some/endpoint";

/// Makes a call that gets these answers before a good one.
fn call(fake: &Fake, replies: Vec<Reply>) -> tinker::Result<Value> {
    let service = fake.service();
    for reply in replies {
        fake.reply(PATH, reply);
    }
    let good = Reply::json(&json!({"ok": true}));
    fake.server.always("POST", &route(PATH), good);
    service.call(&RawCall::post(PATH).with_json(&json!({"a": 1}))?)
}

fn headers(fake: &Fake, path: &str, name: &str) -> Vec<String> {
    let value = |request: &Recorded| request.header(name).unwrap().to_owned();
    fake.server.requests_to(path).iter().map(value).collect()
}

fn keys(fake: &Fake) -> Vec<String> {
    headers(fake, PATH, "x-idempotency-key")
}

/// Every attempt counts up under one key. Waits are given in halves of a second.
#[track_caller]
fn check(replies: Vec<Reply>, end: End, halves: &[u64]) {
    // What takes no effect is not recorded.
    let fake = Fake::start();
    assert_eq!(End::of(&call(&fake, replies)), end);
    let keys = keys(&fake);
    assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    let counts = headers(&fake, PATH, "x-stainless-retry-count");
    assert_eq!(counts.last(), Some(&halves.len().to_string()));
    let waits: Vec<f64> = fake
        .clock
        .pauses()
        .iter()
        .map(Duration::as_secs_f64)
        .collect();
    let fits = |(wait, halves): (&f64, &u64)| (0.374..=0.501).contains(&(wait / *halves as f64));
    let all = waits.len() == halves.len() && waits.iter().zip(halves).all(fits);
    assert!(all, "{waits:?} are not {halves:?} halves");
}

/// The same for delays that the service named itself, in milliseconds.
#[track_caller]
fn check_hint(headers: &[(&str, &str)], milliseconds: u64) {
    let fake = Fake::start();
    let reply = headers.iter().fold(status(429), |reply, (name, value)| {
        reply.with_header(name, value)
    });
    call(&fake, vec![reply]).unwrap();
    assert_eq!(fake.clock.pauses(), [Duration::from_millis(milliseconds)]);
}

/// Delays that are ignored: the wait is the usual first one.
#[track_caller]
fn check_ignored(headers: &[(&str, &str)]) {
    let fake = Fake::start();
    let reply = headers.iter().fold(status(503), |reply, (name, value)| {
        reply.with_header(name, value)
    });
    call(&fake, vec![reply]).unwrap();
    let pauses = fake.clock.pauses();
    let usual = Duration::from_millis(374)..=Duration::from_millis(500);
    assert!(
        pauses.len() == 1 && usual.contains(&pauses[0]),
        "{pauses:?}"
    );
}

fn should(status_code: u16, word: &str) -> [Reply; 1] {
    [status(status_code).with_header("x-should-retry", word)]
}

rows! { check;
    retry_408_is_tried_again_under_the_same_key: times(2, || status(408)) => End::Done, [1, 2];
    retry_409_is_tried_again_under_the_same_key: times(2, || status(409)) => End::Done, [1, 2];
    retry_429_is_tried_again_under_the_same_key: times(2, || status(429)) => End::Done, [1, 2];
    retry_500_is_tried_again_under_the_same_key: times(2, || status(500)) => End::Done, [1, 2];
    retry_502_is_tried_again_under_the_same_key: times(2, || status(502)) => End::Done, [1, 2];
    retry_503_is_tried_again_under_the_same_key: times(2, || status(503)) => End::Done, [1, 2];
    retry_504_is_tried_again_under_the_same_key: times(2, || status(504)) => End::Done, [1, 2];
    retry_waits_half_a_second_doubling_up_to_ten: times(10, || status(500))
        => End::Done, [1, 2, 4, 8, 16, 20, 20, 20, 20, 20];
    retry_hang_up_after_effect_is_tried_again: [Reply::hang_up()] => End::Done, [1];
    retry_hang_up_before_effect_is_tried_again: [Reply::hang_up().before_effect()]
        => End::Done, [1];
    retry_cut_answer_is_tried_again: [Reply::json(&json!({"ok": true})).cut_before_end(2)]
        => End::Done, [1];
    retry_garbage_is_tried_again: [Reply::raw("garbage")] => End::Done, [1];
    retry_empty_400_is_tried_again_as_a_connection_error: [Reply::status(400)] => End::Done, [1];
    retry_400_is_final: [status(400)] => End::Status(400), [];
    retry_401_is_final: [status(401)] => End::Status(401), [];
    retry_403_is_final: [status(403)] => End::Status(403), [];
    retry_404_is_final: [status(404)] => End::Status(404), [];
    retry_410_is_final: [status(410)] => End::Status(410), [];
    retry_422_is_final: [status(422)] => End::Status(422), [];
    retry_425_is_final: [status(425)] => End::Status(425), [];
    retry_x_should_retry_true_wins_over_the_status: should(400, "true") => End::Done, [1];
    retry_x_should_retry_false_wins_over_the_status: should(404, "false") => End::Status(404), [];
    retry_x_should_retry_of_other_words_is_ignored: should(503, "maybe") => End::Done, [1];
}

#[test]
fn retry_after_ms_is_honoured() {
    check_hint(&[("retry-after-ms", "250")], 250);
}

#[test]
fn retry_after_in_seconds_is_honoured() {
    check_hint(&[("retry-after", "7")], 7_000);
}

#[test]
fn retry_after_in_fractions_is_honoured() {
    check_hint(&[("retry-after", "1.5")], 1_500);
}

#[test]
fn retry_after_of_sixty_seconds_is_honoured() {
    check_hint(&[("retry-after", "60")], 60_000);
}

#[test]
fn retry_after_ms_that_is_no_number_lets_the_seconds_through() {
    check_hint(&[("retry-after-ms", "soon"), ("retry-after", "3")], 3_000);
}

#[test]
fn retry_after_as_a_date_is_honoured() {
    let fake = Fake::start();
    let at = jiff::Timestamp::try_from(SystemTime::now() + Duration::from_secs(50)).unwrap();
    let date = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    call(&fake, vec![status(503).with_header("retry-after", &date)]).unwrap();
    let pauses = fake.clock.pauses();
    assert!(pauses[0] > Duration::from_secs(10), "{pauses:?}");
}

#[test]
fn retry_after_above_sixty_seconds_is_ignored() {
    check_ignored(&[("retry-after", "61")]);
}

#[test]
fn retry_after_of_nothing_is_ignored() {
    check_ignored(&[("retry-after", "0")]);
}

#[test]
fn retry_after_ms_out_of_range_hides_good_seconds() {
    check_ignored(&[("retry-after-ms", "0"), ("retry-after", "3")]);
}

#[test]
fn retry_outer_begins_after_eleven_tries_with_a_new_key_and_ignores_retry_after() {
    let fake = Fake::start();
    let hint = || status(500).with_header("retry-after", "7");
    call(&fake, times(11, hint)).unwrap();
    let keys = keys(&fake);
    assert_eq!(keys.len(), 12);
    assert!(keys[..11].iter().all(|key| *key == keys[0]));
    assert_ne!(keys[11], keys[0]);
    fake.check_pauses(&[[7; 10].as_slice(), &[1]].concat());
}

/// `save_weights`, which the HTTP layer does not repeat, shows the outer layer alone.
#[track_caller]
fn check_outer(replies: Vec<Reply>, status_code: Option<u16>, pauses: &[u64]) {
    let fake = Fake::start();
    let training = fake.training();
    for reply in replies {
        fake.reply("save_weights", reply);
    }
    let saved = training.save_state("x").unwrap();
    let result = saved.join();
    assert_eq!(result.err().and_then(|error| error.status()), status_code);
    fake.check_pauses(pauses);
    let keys = headers(&fake, "save_weights", "x-idempotency-key");
    let mut distinct = keys.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(
        distinct.len(),
        keys.len(),
        "each attempt has a key of its own"
    );
    let counts = headers(&fake, "save_weights", "x-stainless-retry-count");
    assert!(counts.iter().all(|count| count == "0"), "{counts:?}");
}

#[test]
fn retry_outer_waits_doubling_up_to_30_s_and_gives_up_after_five_minutes() {
    let fake = Fake::start();
    let training = fake.training();
    fake.server
        .always("POST", &route("save_weights"), status(503));
    let error = training.save_state("x").unwrap().join().unwrap_err();
    assert_eq!(error.status(), Some(503));
    let pauses = fake.clock.pauses();
    assert_eq!(pauses.iter().sum::<Duration>(), Duration::from_secs(300));
    // Each is shorter by up to a quarter; the last one is what is left.
    for (pause, whole) in pauses.iter().zip([1, 2, 4, 8, 16, 30, 30, 30]) {
        let ratio = pause.as_secs_f64() / f64::from(whole);
        assert!((0.749..=1.001).contains(&ratio), "{pauses:?}");
    }
    let whole = |wait: &Duration| wait.subsec_nanos() == 0;
    assert!(!pauses[..8].iter().all(whole), "no jitter in {pauses:?}");
}

#[test]
fn retry_outer_goes_on_after_408_429_5xx_and_connection_errors() {
    let replies = vec![status(408), status(429), status(500), Reply::hang_up()];
    check_outer(replies, None, &[1, 2, 4, 8]);
}

#[test]
fn retry_outer_402_inside_the_window_waits_5_s_uncounted() {
    let replies = [times(3, || status(402)), vec![status(503)]].concat();
    check_outer(replies, None, &[5, 5, 5, 1]);
}

#[test]
fn retry_outer_402_beyond_the_window_is_final() {
    let fake = Fake::with_flags(json!({"billing_exception_max_pause_duration_sec": 12}));
    let error = call(&fake, times(9, || status(402))).unwrap_err();
    assert_eq!(error.status(), Some(402));
    fake.check_pauses(&[5, 5, 5]);
}

#[test]
fn retry_both_layers_together_end_after_five_minutes() {
    let fake = Fake::start();
    let error = call(&fake, times(200, || status(503))).unwrap_err();
    assert_eq!(error.status(), Some(503));
    let total: Duration = fake.clock.pauses().iter().sum();
    assert_eq!(total, Duration::from_secs(300));
}

/// The HTTP layer's eleven tries, and no outer retry around them.
#[track_caller]
fn check_unwrapped(path: &str, run: impl Fn(&ServiceClient) -> Option<Error>) {
    let fake = Fake::start();
    fake.server.always("POST", &route(path), status(503));
    let error = run(&fake.service()).unwrap();
    assert_eq!(error.status(), Some(503));
    assert_eq!(fake.server.requests_to(path).len(), 11);
    assert_eq!(fake.clock.pauses().len(), 10);
}

#[test]
fn retry_create_session_is_not_wrapped() {
    check_unwrapped("create_session", |service| service.session_id().err());
}

#[test]
fn retry_create_model_is_not_wrapped() {
    let create = |service: &ServiceClient| {
        service
            .create_lora_training_client("some/model", tinker::LoraConfig::rank(4))
            .err()
    };
    check_unwrapped("create_model", create);
}

#[test]
fn retry_create_sampling_session_is_not_wrapped() {
    check_unwrapped("create_sampling_session", |service| {
        service.create_sampling_client("some/model").err()
    });
}

#[test]
fn retry_heartbeats_are_not_repeated() {
    let fake = Fake::start();
    let config = fake
        .config()
        .with_heartbeat_interval(Duration::from_millis(1));
    fake.server
        .always("POST", &route("session_heartbeat"), status(503));
    let service = ServiceClient::new(config).unwrap();
    let _training = train(&service);
    fake.server.wait_until(|requests| {
        let beats = requests
            .iter()
            .filter(|request| request.path.ends_with("session_heartbeat"));
        beats.clone().count() >= 3
            && beats
                .clone()
                .all(|beat| beat.header("x-stainless-retry-count") == Some("0"))
    });
}

#[test]
fn retry_a_failed_exchange_of_credentials_is_not_repeated() {
    let fake = Fake::with_flags(json!({"pjwt_auth_enabled": true}));
    fake.server
        .always("POST", &route("auth/token"), status(401));
    let error = call(&fake, vec![]).unwrap_err();
    assert_eq!(error.status(), Some(401));
    assert!(error.to_string().contains("auth/token"), "{error}");
    assert_eq!(fake.server.requests_to("auth/token").len(), 1);
    assert_eq!(fake.server.requests_to(PATH).len(), 0);
}

#[test]
fn retry_one_attempt_means_one() {
    let fake = Fake::start();
    let service = fake.service();
    fake.server.always("GET", &route("x"), status(500));
    let error = service
        .call_raw(&RawCall::get("x").without_retries())
        .unwrap_err();
    assert!(matches!(error, Error::Status(_)));
    assert_eq!(fake.server.requests_to("x").len(), 1);
}

#[test]
fn retry_errors_name_the_request_and_hide_an_echoed_key() {
    let fake = Fake::start();
    let service = fake.service();
    fake.server.on("GET", &route("echo"), |request| {
        let key = request.header("x-api-key").unwrap();
        Reply::json(&json!({"detail": format!("bad key {key}")})).with_status(403)
    });
    let error = service.call_raw(&RawCall::get("echo")).unwrap_err();
    assert!(error.to_string().contains("GET echo"), "{error}");
    for text in [
        format!("{error}"),
        format!("{error:?}"),
        format!("{service:?}"),
    ] {
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn retry_deprecation_notes_of_final_answers_are_logged_at_their_level() {
    logs::capture();
    let fake = Fake::start();
    let noted = |reply: Reply, note: &str| reply.with_header("x-deprecation-note", note);
    let replies = vec![
        noted(status(503), "not final: matrix"),
        noted(Reply::json(&json!({"ok": true})), "please upgrade: matrix"),
    ];
    call(&fake, replies).unwrap();
    let last = noted(status(404), "too old: matrix").with_header("x-deprecation-level", "error");
    call(&fake, vec![last]).unwrap_err();
    let lines = logs::with(": matrix");
    let expected = [
        "WARN: POST some/endpoint: please upgrade: matrix",
        "ERROR: POST some/endpoint: too old: matrix",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn retry_empty_400s_surface_when_sixteen_are_spent_and_successes_refill_them() {
    let fake = Fake::start();
    let error = call(&fake, times(17, || Reply::status(400))).unwrap_err();
    assert_eq!(error.status(), Some(400));
    assert_eq!(fake.server.requests_to(PATH).len(), 17);
    // Each of them was on a connection of its own: the declined ones are not used again.
    let service = fake.service();
    let get = |service: &ServiceClient| service.call_raw(&RawCall::get("x").without_retries());
    fake.server
        .always("GET", &route("x"), Reply::json(&json!({})));
    get(&service).unwrap();
    fake.server.reply("GET", &route("x"), Reply::status(400));
    assert!(matches!(get(&service), Err(Error::Connection(_))));
}

#[test]
fn retry_redirects_to_another_host_carry_accept_range_and_user_agent_only() {
    let (fake, elsewhere) = (Fake::start(), Server::start());
    elsewhere.always("GET", "/signed", Reply::json(&json!({"entries": []})));
    let there = format!("{}/signed?sig=1", elsewhere.url());
    let found = Reply::status(302).with_header("location", &there);
    fake.server.always("GET", &route("audit"), found);
    let call = RawCall::get("audit").with_header("x-mine", "yes");
    fake.service().call_raw(&call).unwrap();
    let request = &elsewhere.requests()[0];
    let mut names: Vec<&str> = request
        .headers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    names.sort_unstable();
    // `host` belongs to the connection, `accept-encoding` asks for nothing.
    names.retain(|name| !matches!(*name, "host" | "accept-encoding"));
    assert_eq!(names, ["accept", "user-agent"]);
}

#[test]
fn retry_redirects_end_after_five() {
    let fake = Fake::start();
    let around = Reply::status(302).with_header("location", "/api/v1/around");
    fake.server.always("GET", &route("around"), around);
    // A service that has answered before is given time to stop that.
    let service = fake.client(fake.config().with_patience(Duration::ZERO));
    let error = service.call_raw(&RawCall::get("around")).unwrap_err();
    assert!(
        error.to_string().contains("more than 5 redirects"),
        "{error}"
    );
    assert_eq!(fake.server.requests_to("around").len(), 6);
}
