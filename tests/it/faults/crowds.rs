//! Many at once: threads, bytes, permits and turns, where one held the others up for ever.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tinker::{AdamParams, Pending, SampleRequest, SampleResponse, SamplingClient, SamplingParams};

use super::poller::{announcing, nothing_yet};
use super::{prompt, sample, status, times};
use crate::support::fake::{Fake, result_of, route, train};
use crate::support::logs;
use crate::support::scripted::{Gate, Reply};

/// Long enough for anything but a hang.
const GUARD: Duration = Duration::from_secs(60);

fn submit(sampler: &SamplingClient, count: usize, tokens: usize) -> Vec<Pending<SampleResponse>> {
    let one = |_| sampler.submit_sample(&prompt(tokens), SamplingParams::max_tokens(4));
    (0..count).map(one).collect::<tinker::Result<_>>().unwrap()
}

#[track_caller]
fn arrive<T: Send + 'static>(pendings: Vec<Pending<T>>) {
    for pending in pendings {
        pending.join_timeout(GUARD).expect("it hangs").unwrap();
    }
}

fn request(tokens: usize) -> SampleRequest {
    SampleRequest::new(prompt(tokens), SamplingParams::max_tokens(4))
}

#[test]
fn a_wait_that_holds_bytes_needs_no_thread_that_another_holds() {
    let fake = Fake::with_flags(json!({"inflight_response_bytes_semaphore_size": 1}));
    fake.server
        .on("POST", &route("retrieve_future"), |request| {
            let metadata = json!({"status": "complete_metadata", "response_payload_size": 100});
            let kind = request.header("x-tinker-request-type").unwrap();
            let announce = request.json()["allow_metadata_only"] == true && kind == "OptimStep";
            Reply::json(&if announce { metadata } else { result_of(kind) })
        });
    let config = fake.config().with_max_waiting_threads(1);
    let training = train(&fake.client(config));
    let steps = (0..20).map(|_| training.optim_step(AdamParams::default()).unwrap());
    arrive(steps.collect());
}

#[test]
fn announced_results_wait_for_bytes_without_a_thread() {
    let fake = announcing(json!({"inflight_response_bytes_semaphore_size": 1}));
    let announce = std::sync::Mutex::new(0);
    fake.server
        .on("POST", &route("retrieve_futures"), move |request| {
            let cursor = request.json()["prev_cursor"].as_u64().unwrap();
            let mut next = announce.lock().unwrap();
            let ids = (*next..60).map(|n| {
                json!({"state": "finished", "request_id": format!("s-{n}"),
                       "response_payload_size": 6_000_000})
            });
            let completions: Vec<Value> = ids.collect();
            *next = 60;
            Reply::json(&json!({"completions": completions, "cursor": cursor + 1}))
        });
    for answer in times(12, || status(503)) {
        fake.reply("retrieve_future", answer);
    }
    let config = fake.config().with_max_waiting_threads(4);
    let sampler = fake
        .client(config)
        .create_sampling_client("some/model")
        .unwrap();
    arrive(submit(&sampler, 60, 1));
}

#[test]
fn a_lost_sample_that_keeps_the_only_permit_goes_on_before_the_next() {
    let fake = Fake::with_flags(json!({"sample_max_concurrent_requests": 1}));
    fake.reply("retrieve_future", status(410));
    arrive(submit(&fake.sampler(), 2, 1));
}

#[test]
fn samples_refused_for_the_rate_keep_their_permits_and_go_on() {
    let fake = Fake::with_flags(json!({"sample_max_concurrent_requests": 4}));
    for answer in times(8, || status(429)) {
        fake.reply("asample", answer);
    }
    arrive(submit(&fake.sampler(), 12, 1));
}

/// A service that never finishes samples of two tokens before the gate opens.
fn stalling(flags: Value) -> (Fake, Gate) {
    let (fake, gate) = (Fake::with_flags(flags), Gate::new());
    let next = AtomicUsize::new(0);
    fake.server.on("POST", &route("asample"), move |request| {
        let tokens = request.json()["prompt"]["chunks"][0]["tokens"].clone();
        let kind = match tokens.as_array().unwrap().len() {
            2 => "stalled",
            _ => "quick",
        };
        let id = format!("{kind}-{}", next.fetch_add(1, Ordering::SeqCst));
        Reply::json(&json!({"request_id": id, "sample_sequence_ids": [format!("{id}-0")]}))
    });
    let held = gate.clone();
    fake.server
        .on("POST", &route("retrieve_future"), move |request| {
            let reply = Reply::json(&result_of("Sample"));
            match request.json()["request_id"].as_str().unwrap() {
                id if id.starts_with("stalled") => reply.after(&held),
                _ => reply,
            }
        });
    (fake, gate)
}

#[test]
fn a_stalled_sampler_leaves_others_their_permits() {
    let (fake, gate) = stalling(json!({"sample_max_concurrent_requests": 4}));
    let service = fake.service();
    let sampler = || service.create_sampling_client("some/model").unwrap();
    let (stalled, other) = (sampler(), sampler());
    let held = submit(&stalled, 8, 2);
    gate.wait_for(4);
    arrive(submit(&other, 20, 1));
    assert_eq!(stalled.progress().waiting, 4);
    gate.open();
    arrive(held);
}

#[test]
fn a_run_that_gets_nowhere_in_the_poller_counts_as_stuck() {
    let fake = announcing(json!({}));
    fake.server
        .on("POST", &route("retrieve_futures"), |_| nothing_yet());
    let config = fake.config().with_stuck_after(Duration::from_secs(600));
    let sampler = fake
        .client(config)
        .create_sampling_client("some/model")
        .unwrap();
    let samples = submit(&sampler, 3, 1);
    assert!(samples[0].try_join().is_none());
    fake.clock.advance(Duration::from_secs(601));
    for sample in &samples {
        let error = sample.join_timeout(GUARD).expect("it hangs").unwrap_err();
        assert!(
            error.to_string().contains("no sample has succeeded"),
            "{error}"
        );
        assert_eq!(error.effect(), tinker::error::Effect::Accepted, "{error}");
    }
}

#[test]
fn progress_is_said_while_samples_wait_in_the_poller() {
    logs::capture();
    let fake = announcing(json!({}));
    fake.server
        .on("POST", &route("retrieve_futures"), |_| nothing_yet());
    let sampler = fake.sampler();
    // A number that no other test has under way.
    let samples = submit(&sampler, 137, 1);
    while samples.iter().any(|sample| sample.request_id().is_none()) {
        std::thread::yield_now();
    }
    fake.clock.advance(Duration::from_secs(61));
    let end = Instant::now() + GUARD;
    while logs::with("0 done, 0 failed, 137 under way (0 not yet sent)").is_empty() {
        assert!(Instant::now() < end, "nothing is said");
        std::thread::yield_now();
    }
}

#[test]
fn cancelled_samples_leave_the_poller_at_once() {
    let fake = announcing(json!({}));
    let gate = Gate::new();
    fake.server.always(
        "POST",
        &route("retrieve_futures"),
        nothing_yet().after(&gate),
    );
    let sampler = fake.sampler();
    let samples = submit(&sampler, 5, 1);
    gate.wait_for(1);
    fake.server.wait_until(|requests| {
        let accepted = requests.iter().filter(|r| r.path.ends_with("asample"));
        accepted.count() == 5
    });
    while samples.iter().any(|sample| sample.request_id().is_none()) {
        std::thread::yield_now();
    }
    assert_eq!(sampler.progress().open, 5);
    drop(samples);
    // The last one may just have been on its way into the poller.
    while sampler.progress().open > 0 {
        std::thread::yield_now();
    }
    gate.open();
}

#[test]
fn cancelled_samples_leave_the_queue_at_once() {
    let (fake, gate) = stalling(json!({"sample_max_concurrent_requests": 1}));
    let sampler = fake.sampler();
    let first = submit(&sampler, 1, 2);
    gate.wait_for(1);
    let queued = submit(&sampler, 50, 1);
    assert_eq!(
        (sampler.progress().open, sampler.progress().waiting),
        (51, 50)
    );
    drop(queued);
    assert_eq!(
        (sampler.progress().open, sampler.progress().waiting),
        (1, 0)
    );
    gate.open();
    arrive(first);
}

#[test]
fn a_polled_sampler_submits_400_at_a_time() {
    let fake = announcing(json!({}));
    let gate = Gate::new();
    for number in 0..410 {
        let id = format!("held-{number}");
        let reply = Reply::json(&json!({"request_id": id, "sample_sequence_ids": [id]}));
        fake.reply("asample", reply.after(&gate));
    }
    let samples = submit(&fake.sampler(), 410, 1);
    gate.wait_for(400);
    assert_eq!(fake.bodies("asample").len(), 400);
    drop(samples);
    gate.open();
}

#[test]
fn a_polled_sampler_fetches_400_at_a_time() {
    let fake = announcing(json!({}));
    let gate = Gate::new();
    let held = Reply::json(&result_of("Sample")).after(&gate);
    fake.server.always("POST", &route("retrieve_future"), held);
    let samples = submit(&fake.sampler(), 400, 1);
    gate.wait_for(400);
    gate.open();
    arrive(samples);
}

#[test]
fn a_batch_gives_what_is_there_before_it_pulls_the_next_request() {
    let fake = Fake::start();
    let pulled = AtomicUsize::new(0);
    // An empty prompt is refused without asking the service, so its result is there at once.
    let requests = (0..6).map(|index| {
        pulled.fetch_add(1, Ordering::SeqCst);
        let params = SamplingParams::max_tokens(4).with_temperature(-1.0);
        match index % 2 {
            0 => SampleRequest::new(prompt(1), params),
            _ => request(1),
        }
    });
    let mut batch = fake.sampler().sample_batch(requests);
    let (index, result) = batch.next().unwrap();
    assert!(index == 0 && result.is_err());
    assert_eq!(pulled.load(Ordering::SeqCst), 1);
    assert_eq!(batch.count(), 5);
}

#[test]
fn pushed_requests_may_depend_on_results() {
    let fake = Fake::start();
    let sampler = fake.sampler();
    let mut samples = sampler.samples();
    for game in ["a", "b"] {
        samples.push((game, 1), request(1));
    }
    let mut seen = Vec::new();
    while let Some(((game, turn), result)) = samples.next() {
        let said = result.unwrap().sequences[0].tokens.len();
        seen.push((game, turn));
        if turn < 3 {
            samples.push((game, turn + 1), request(said));
        }
    }
    seen.sort_unstable();
    let expected = ["a", "b"].map(|game| [1, 2, 3].map(|turn| (game, turn)));
    assert_eq!(seen, expected.concat());
    assert!(samples.is_empty() && samples.try_next().is_none());
}

#[test]
fn an_order_asked_for_late_loses_nothing() {
    let (fake, gate) = stalling(json!({}));
    let sampler = fake.sampler();
    let mut samples = sampler.samples();
    // What the client refuses itself is there at once.
    let refused = || SampleRequest::new(prompt(1), SamplingParams::max_tokens(4).with_top_p(2.0));
    samples.push(0, request(2));
    samples.push(1, refused());
    assert_eq!(samples.next().unwrap().0, 1);
    let mut samples = samples.in_order();
    samples.push(2, refused());
    assert!(samples.try_next().is_none(), "the first is under way");
    gate.wait_for(1);
    gate.open();
    assert_eq!(samples.map(|(tag, _)| tag).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn a_batch_can_be_waited_for_in_pieces() {
    let (fake, gate) = stalling(json!({}));
    let mut batch = fake.sampler().sample_tagged([("slow", request(2))]);
    assert!(batch.next_timeout(Duration::ZERO).is_none());
    assert!(!batch.is_done());
    gate.wait_for(1);
    gate.open();
    assert_eq!(batch.next_timeout(GUARD).unwrap().0, "slow");
    assert!(batch.next_timeout(GUARD).is_none());
    assert!(batch.is_done());
}

#[test]
fn a_batch_may_end_at_the_first_error_that_cannot_heal() {
    let (fake, gate) = stalling(json!({}));
    // By its prompt: which of the ten arrives first is left to the threads that send them.
    let next = AtomicUsize::new(0);
    fake.server.on("POST", &route("asample"), move |request| {
        let tokens = request.json()["prompt"]["chunks"][0]["tokens"].clone();
        if tokens.as_array().unwrap().len() == 1 {
            return status(403);
        }
        let id = format!("stalled-{}", next.fetch_add(1, Ordering::SeqCst));
        Reply::json(&json!({"request_id": id, "sample_sequence_ids": [id]}))
    });
    let requests = std::iter::once(request(1)).chain((0..9).map(|_| request(2)));
    let sampler = fake.sampler();
    let mut batch = sampler.sample_batch(requests).end_at_error();
    let (_, result) = batch.next().unwrap();
    assert_eq!(result.unwrap_err().status(), Some(403));
    assert!(batch.next().is_none() && batch.is_done());
    gate.open();
}

#[test]
fn a_batch_that_is_kept_full_pulls_as_it_gives() {
    let fake = Fake::start();
    let pulled = AtomicUsize::new(0);
    let requests = (0..20).map(|_| {
        pulled.fetch_add(1, Ordering::SeqCst);
        let params = SamplingParams::max_tokens(4).with_temperature(-1.0);
        SampleRequest::new(prompt(1), params)
    });
    let mut batch = fake.sampler().sample_batch(requests).keep_full();
    for taken in 1..=5 {
        assert!(batch.next().is_some());
        assert_eq!(pulled.load(Ordering::SeqCst), taken);
    }
}

#[test]
fn scoring_is_repeated_even_where_samples_are_not() {
    let fake = Fake::with_flags(json!({"sample_no_retries": true}));
    fake.server.on("POST", &route("retrieve_future"), |_| {
        let mut result = result_of("Sample");
        result["prompt_logprobs"] = json!([null, -0.5]);
        Reply::json(&result)
    });
    let sampler = fake.sampler();
    fake.reply("retrieve_future", status(410));
    assert!(sample(&sampler).is_err());
    fake.reply("retrieve_future", status(410));
    let scored: Vec<_> = sampler
        .compute_logprobs_batch([prompt(2)])
        .with_window(1)
        .in_order()
        .collect();
    assert_eq!(scored.len(), 1);
    assert!(scored[0].1.is_ok(), "{:?}", scored[0].1);
}
