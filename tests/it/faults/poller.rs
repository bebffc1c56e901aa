//! `retrieve_futures`: every answer in its table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tinker::{SamplingClient, SamplingParams};

use super::{End, prompt, rows, sample, status, times};
use crate::support::fake::{Fake, route};
use crate::support::scripted::{Recorded, Reply};

/// A service that announces each accepted sample, `s-<number>`, to its next poll.
pub(super) fn announcing(flags: Value) -> Fake {
    let mut all = json!({"sample_use_retrieve_futures": true});
    all.as_object_mut()
        .unwrap()
        .extend(flags.as_object().unwrap().clone());
    let fake = Fake::with_flags(all);
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let pending = accepted.clone();
    fake.server.on("POST", &route("asample"), move |request| {
        let id = format!("s-{}", request.json()["seq_id"]);
        pending.lock().unwrap().push(id.clone());
        Reply::json(&json!({"request_id": id, "sample_sequence_ids": [format!("{id}-0")]}))
    });
    let cursor = AtomicU64::new(0);
    fake.server
        .on("POST", &route("retrieve_futures"), move |_| {
            let ids = std::mem::take(&mut *accepted.lock().unwrap());
            let finished = |id: &String| json!({"state": "finished", "request_id": id});
            let cursor = cursor.fetch_add(1, Ordering::SeqCst) + 1;
            completions(ids.iter().map(finished).collect(), cursor)
        });
    fake
}

fn completions(completions: Vec<Value>, cursor: u64) -> Reply {
    Reply::json(&json!({"completions": completions, "cursor": cursor}))
}

pub(super) fn nothing_yet() -> Reply {
    completions(vec![], 0)
}

/// Samples once; the poller's first polls get these answers.
#[track_caller]
fn check(answers: Vec<Reply>, end: End, pauses: &[u64]) {
    check_with(json!({}), answers, end, pauses);
}

#[track_caller]
fn check_with(flags: Value, answers: Vec<Reply>, end: End, pauses: &[u64]) {
    let fake = announcing(flags);
    for answer in answers {
        fake.reply("retrieve_futures", answer);
    }
    assert_eq!(End::of(&sample(&fake.sampler())), end);
    fake.check_pauses(pauses);
}

rows! { check;
    poller_finished_wakes_the_sample: [] => End::Done, [];
    poller_empty_answer_is_polled_again_at_once: times(3, nothing_yet) => End::Done, [];
    poller_402_inside_the_window_waits_5_s: times(2, || status(402)) => End::Done, [5, 5];
    poller_408_waits_1_s: times(3, || status(408)) => End::Done, [1, 1, 1];
    poller_409_waits_1_s: times(3, || status(409)) => End::Done, [1, 1, 1];
    poller_429_waits_1_s: times(3, || status(429)) => End::Done, [1, 1, 1];
    poller_500_waits_1_s: times(3, || status(500)) => End::Done, [1, 1, 1];
    poller_503_waits_1_s: times(3, || status(503)) => End::Done, [1, 1, 1];
    poller_connection_error_waits_1_s: [
        Reply::hang_up(),
        Reply::hang_up().before_effect(),
        Reply::raw("not HTTP"),
    ] => End::Done, [1, 1, 1];
    poller_400_three_in_a_row_wait_1_s: times(3, || status(400)) => End::Done, [1, 1, 1];
    poller_400_the_fourth_in_a_row_leaves_samples_to_themselves: times(4, || status(400))
        => End::Done, [1, 1, 1];
    poller_400_any_success_starts_over:
        [times(3, || status(400)), vec![nothing_yet(), status(400)]].concat()
        => End::Done, [1, 1, 1, 1];
    poller_401_leaves_samples_to_themselves: [status(401)] => End::Done, [];
    poller_403_leaves_samples_to_themselves: [status(403)] => End::Done, [];
    poller_404_leaves_samples_to_themselves: [status(404)] => End::Done, [];
    poller_410_leaves_samples_to_themselves: [status(410)] => End::Done, [];
    poller_422_leaves_samples_to_themselves: [status(422)] => End::Done, [];
}

#[test]
fn poller_402_beyond_the_window_leaves_samples_to_themselves() {
    let flags = json!({"billing_exception_max_pause_duration_sec": 3});
    check_with(flags, times(2, || status(402)), End::Done, &[5]);
}

/// How the poller's announcement of `s-0` is followed up: with metadata allowed or not.
#[track_caller]
fn check_fetch(announced: Value, allow_metadata_only: bool) {
    let fake = announcing(json!({}));
    fake.reply("retrieve_futures", completions(vec![announced], 7));
    sample(&fake.sampler()).unwrap();
    let asked = &fake.bodies("retrieve_future")[0];
    let expected = json!({"request_id": "s-0", "allow_metadata_only": allow_metadata_only});
    assert_eq!(asked, &expected);
}

#[test]
fn poller_finished_with_a_size_asks_for_the_payload_itself() {
    let size = json!({
        "state": "finished", "request_id": "s-0", "response_payload_uncompressed_size": 9,
    });
    check_fetch(size, false);
}

#[test]
fn poller_finished_without_a_size_asks_as_usual() {
    check_fetch(json!({"state": "finished", "request_id": "s-0"}), true);
}

#[test]
fn poller_failed_fetches_the_error() {
    let fake = announcing(json!({}));
    let failed = json!({"state": "failed", "request_id": "s-0"});
    fake.reply("retrieve_futures", completions(vec![failed], 1));
    let error = json!({"error": "bad prompt", "category": "user"});
    fake.reply("retrieve_future", Reply::json(&error));
    assert!(sample(&fake.sampler()).unwrap_err().is_user_error());
}

#[test]
fn poller_is_idle_while_nobody_waits_and_nothing_is_to_report() {
    let fake = announcing(json!({}));
    let sampler = fake.sampler();
    assert_eq!(fake.bodies("retrieve_futures").len(), 0);
    sample(&sampler).unwrap();
    // One poll for the sample, and one that reports it as fetched.
    fake.server
        .wait_until(|requests| reports(requests).len() >= 2);
    assert_eq!(fake.bodies("retrieve_futures").len(), 2);
}

/// What each poll reported as fetched.
fn reports(requests: &[Recorded]) -> Vec<Value> {
    let polls = requests
        .iter()
        .filter(|request| request.path.ends_with("retrieve_futures"));
    polls
        .map(|poll| poll.json()["retrieved_request_ids"].clone())
        .collect()
}

#[test]
fn poller_sends_its_target_and_the_last_cursor() {
    let fake = announcing(json!({}));
    let sampler = fake.sampler();
    for _ in 0..2 {
        sample(&sampler).unwrap();
    }
    let polls = fake
        .server
        .wait_until(|requests| reports(requests).last() == Some(&json!(["s-1"])));
    let polls: Vec<Value> = polls
        .iter()
        .filter(|request| request.path.ends_with("retrieve_futures"))
        .map(Recorded::json)
        .collect();
    let target = json!({
        "type": "sampling_session", "sampling_session_id": "S1:sample:0", "cloned_sampler_id": 0,
    });
    for (index, poll) in polls.iter().enumerate() {
        assert_eq!(poll["target"], target);
        assert_eq!(poll["prev_cursor"], index);
    }
}

#[test]
fn poller_repeats_what_was_fetched_until_a_poll_succeeds() {
    let fake = announcing(json!({}));
    let first = completions(vec![json!({"state": "finished", "request_id": "s-0"})], 1);
    fake.reply("retrieve_futures", first);
    fake.reply("retrieve_futures", status(503));
    fake.reply("retrieve_futures", Reply::hang_up());
    let sampler = fake.sampler();
    sample(&sampler).unwrap();
    fake.server
        .wait_until(|requests| reports(requests).len() >= 4);
    sample(&sampler).unwrap();
    let seen = fake
        .server
        .wait_until(|requests| reports(requests).last() == Some(&json!(["s-1"])));
    let seen = reports(&seen);
    let fetched = json!(["s-0"]);
    assert_eq!(
        seen[..4],
        [json!([]), fetched.clone(), fetched.clone(), fetched]
    );
    assert!(seen[4..seen.len() - 1].iter().all(|ids| *ids == json!([])));
}

#[test]
fn poller_completion_of_an_unknown_id_is_remembered_and_outlives_the_poller() {
    let fake = announcing(json!({}));
    // The first poll already announces the second sample; then the poller dies.
    let both = ["s-0", "s-1"].map(|id| json!({"state": "finished", "request_id": id}));
    fake.reply("retrieve_futures", completions(both.into(), 1));
    fake.reply("retrieve_futures", status(403));
    let sampler = fake.sampler();
    sample(&sampler).unwrap();
    fake.server
        .wait_until(|requests| reports(requests).len() >= 2);
    sample(&sampler).unwrap();
    // Later ones poll for themselves.
    sample(&sampler).unwrap();
    assert_eq!(fake.bodies("retrieve_futures").len(), 2);
}

#[test]
fn poller_that_cannot_go_on_leaves_all_who_wait_and_all_who_come_to_poll_for_themselves() {
    let fake = announcing(json!({}));
    let gate = crate::support::scripted::Gate::new();
    fake.reply("retrieve_futures", status(403).after(&gate));
    let sampler = fake.sampler();
    let submit = |sampler: &SamplingClient| {
        sampler
            .submit_sample(&prompt(1), SamplingParams::max_tokens(4))
            .unwrap()
    };
    let waiting: Vec<_> = (0..5).map(|_| submit(&sampler)).collect();
    gate.wait_for(1);
    gate.open();
    for sample in waiting {
        sample.join().unwrap();
    }
    submit(&sampler).join().unwrap();
    assert_eq!(fake.bodies("retrieve_futures").len(), 1);
    // Another sampler has a poller of its own.
    let service = fake.service();
    sample(&service.create_sampling_client("some/model").unwrap()).unwrap();
}
