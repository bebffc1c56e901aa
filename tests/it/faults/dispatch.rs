//! The way of a sample to the service: permits, bytes, backoff, and every answer to `asample`.

use serde_json::{Value, json};
use tinker::unversioned::Clock;
use tinker::{Pending, SampleResponse, SamplingClient, SamplingParams};

use super::{End, prompt, rows, sample, sample_numbers, status, times};
use crate::support::fake::{Fake, result_of, route};
use crate::support::scripted::{Gate, Recorded, Reply};

/// A prompt whose estimate, 10 bytes a token, is just above the small ones.
const LARGE: usize = 13_108;

/// Samples once with a prompt of this many tokens; the submissions get these answers first. They
/// all carry the same number.
#[track_caller]
fn check_sized(tokens: usize, flags: Value, answers: Vec<Reply>, end: End, pauses: &[u64]) {
    let (fake, count) = (Fake::with_flags(flags), answers.len());
    for answer in answers {
        fake.reply("asample", answer);
    }
    let result = fake
        .sampler()
        .sample(&prompt(tokens), SamplingParams::max_tokens(4));
    assert_eq!(End::of(&result), end);
    let sent = count + usize::from(end == End::Done);
    assert_eq!(sample_numbers(&fake), vec![0; sent]);
    fake.check_pauses(pauses);
}

#[track_caller]
fn check(answers: Vec<Reply>, end: End, pauses: &[u64]) {
    check_sized(1, json!({}), answers, end, pauses);
}

#[track_caller]
fn check_large(answers: Vec<Reply>, end: End, pauses: &[u64]) {
    check_sized(LARGE, json!({}), answers, end, pauses);
}

rows! { check;
    dispatch_429_small_estimate_waits_1_s: [status(429)] => End::Done, [1];
    dispatch_429_is_repeated_without_an_end: times(400, || status(429)) => End::Done, [1; 400];
    dispatch_402_inside_the_window_waits_1_s: times(2, || status(402)) => End::Done, [1, 1];
    dispatch_408_follows_the_outer_retry: times(3, || status(408)) => End::Done, [1, 2, 4];
    dispatch_409_follows_the_outer_retry: times(3, || status(409)) => End::Done, [1, 2, 4];
    dispatch_500_follows_the_outer_retry: times(3, || status(500)) => End::Done, [1, 2, 4];
    dispatch_503_follows_the_outer_retry: times(6, || status(503))
        => End::Done, [1, 2, 4, 8, 16, 30];
    dispatch_connection_error_follows_the_outer_retry: [
        Reply::hang_up(),
        Reply::raw("not HTTP"),
        Reply::json(&json!({"request_id": "x"})).cut_before_end(3),
    ] => End::Done, [1, 2, 4];
    dispatch_400_is_final: [status(400)] => End::Status(400), [];
    dispatch_400_without_a_body_is_a_connection_error: [Reply::status(400)] => End::Done, [1];
    dispatch_401_is_final: [status(401)] => End::Status(401), [];
    dispatch_403_is_final: [status(403)] => End::Status(403), [];
    dispatch_404_is_final: [status(404)] => End::Status(404), [];
    dispatch_410_is_final: [status(410)] => End::Status(410), [];
    dispatch_422_is_final: [status(422)] => End::Status(422), [];
}

rows! { check_large;
    dispatch_429_large_estimate_waits_5_s: [status(429)] => End::Done, [5];
    dispatch_402_large_estimate_waits_5_s: [status(402)] => End::Done, [5];
}

#[test]
fn dispatch_429_at_the_limit_of_small_estimates_waits_1_s() {
    check_sized(LARGE - 1, json!({}), vec![status(429)], End::Done, &[1]);
}

#[test]
fn dispatch_402_beyond_the_window_is_final() {
    let flags = json!({"billing_exception_max_pause_duration_sec": 2});
    check_sized(
        1,
        flags,
        times(4, || status(402)),
        End::Status(402),
        &[1, 1, 1],
    );
}

#[test]
fn dispatch_429_holds_back_every_sampler_of_the_service_and_key() {
    let fake = Fake::start();
    let other = Clock::recorded();
    let service = tinker::unversioned::client_with_clock(fake.config(), other.clone()).unwrap();
    let (one, two) = (
        fake.sampler(),
        service.create_sampling_client("some/model").unwrap(),
    );
    fake.reply("asample", status(429).with_header("retry-after", "40"));
    sample(&one).unwrap();
    fake.check_pauses(&[40]);
    // On its own clock the other one, of another session, has not waited yet.
    let left = fake.clock.now() - other.now();
    sample(&two).unwrap();
    assert_eq!(other.pauses(), [left]);
}

fn submit(sampler: &SamplingClient, count: usize, tokens: usize) -> Vec<Pending<SampleResponse>> {
    let one = |_| sampler.submit_sample(&prompt(tokens), SamplingParams::max_tokens(4));
    (0..count).map(one).collect::<tinker::Result<_>>().unwrap()
}

/// Submits samples of ten tokens to a service that accepts none, and counts how many are on the
/// wire when no more come; then lets them through.
#[track_caller]
fn check_width(fake: &Fake, sampler: &SamplingClient, count: usize, expected: usize) {
    let before = fake.bodies("asample").len();
    let gate = Gate::new();
    for number in 0..count {
        let id = format!("held-{number}");
        let reply = Reply::json(&json!({"request_id": id, "sample_sequence_ids": [id]}));
        fake.reply("asample", reply.after(&gate));
    }
    let samples = submit(sampler, count, 10);
    gate.wait_for(expected);
    assert_eq!(fake.bodies("asample").len() - before, expected);
    gate.open();
    for sample in samples {
        sample.join().unwrap();
    }
}

#[test]
fn dispatch_takes_400_permits() {
    let fake = Fake::start();
    check_width(&fake, &fake.sampler(), 410, 400);
}

#[test]
fn dispatch_recently_takes_ten_permits() {
    let fake = Fake::start();
    let sampler = fake.sampler();
    fake.reply("asample", status(429));
    sample(&sampler).unwrap();
    check_width(&fake, &sampler, 20, 10);
}

#[test]
fn dispatch_takes_bytes_until_they_are_overdrawn() {
    let fake = Fake::with_flags(json!({"sample_dispatch_bytes_semaphore_size": 450}));
    check_width(&fake, &fake.sampler(), 8, 5);
}

#[test]
fn dispatch_recently_weighs_twenty_times() {
    let fake = Fake::with_flags(json!({"sample_dispatch_bytes_semaphore_size": 4_500}));
    let sampler = fake.sampler();
    check_width(&fake, &sampler, 8, 8);
    fake.reply("asample", status(429));
    sample(&sampler).unwrap();
    check_width(&fake, &sampler, 8, 3);
}

#[test]
fn dispatch_gives_its_permits_back_when_the_submission_is_accepted() {
    let fake = Fake::with_flags(json!({"sample_dispatch_bytes_semaphore_size": 1}));
    let gate = Gate::new();
    let held = gate.clone();
    fake.server.on("POST", &route("retrieve_future"), move |_| {
        Reply::json(&result_of("Sample")).after(&held)
    });
    let samples = submit(&fake.sampler(), 5, 10);
    // One submission at a time, and yet all five wait for their results.
    gate.wait_for(5);
    gate.open();
    for sample in samples {
        sample.join().unwrap();
    }
}

#[test]
fn dispatch_says_that_it_understands_backpressure() {
    let fake = Fake::start();
    sample(&fake.sampler()).unwrap();
    let header = |request: &Recorded| {
        request
            .header("x-tinker-sampling-backpressure")
            .map(str::to_owned)
    };
    let sent = fake.server.requests_to("asample");
    assert_eq!(
        sent.iter().map(header).collect::<Vec<_>>(),
        [Some("1".to_owned())]
    );
}
