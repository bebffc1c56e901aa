//! What a running client shows and obeys: events, counts, limits, deadlines.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::json;
use tinker::types::{ClientEvent, RetryConfig};
use tinker::unversioned::Intervals as _;
use tinker::{AdamParams, Datum, Error, LossFn, ModelInput, SamplingParams};

use crate::support::fake::{Fake, route, train};
use crate::support::scripted::{Gate, Reply};

fn prompt() -> ModelInput {
    ModelInput::from_ints(vec![1])
}

/// A client's events, as they come.
fn watched(fake: &Fake) -> (tinker::ServiceClient, Arc<Mutex<Vec<ClientEvent>>>) {
    let events: Arc<Mutex<Vec<ClientEvent>>> = Arc::default();
    let seen = events.clone();
    let config = fake.config().with_event_observer(move |event| {
        seen.lock().unwrap().push(event.clone());
    });
    (fake.client(config), events)
}

#[test]
fn retries_and_backoff_are_told_and_counted() {
    let fake = Fake::start();
    let (service, events) = watched(&fake);
    let training = train(&service);
    fake.reply("optim_step", Reply::status(503));
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    let sampler = service.create_sampling_client("m").unwrap();
    fake.reply("asample", Reply::status(429));
    sampler
        .sample(&prompt(), SamplingParams::max_tokens(2))
        .unwrap();

    let events = events.lock().unwrap();
    assert!(
        matches!(&events[0], ClientEvent::Retry { request, error, .. }
        if request == "POST optim_step" && error.status() == Some(503)),
        "{events:?}"
    );
    assert!(
        matches!(&events[1], ClientEvent::Backoff { delay, .. } if *delay == Duration::from_secs(1)),
        "{events:?}"
    );
    assert_eq!(events.len(), 2);

    let metrics = service.metrics();
    let count = |label: &str, status| metrics.requests.get(&(label.to_owned(), status)).copied();
    assert_eq!(count("POST optim_step", 503), Some(1));
    assert_eq!(count("POST optim_step", 200), Some(1));
    assert_eq!(count("POST asample", 429), Some(1));
    assert_eq!(metrics.retries, 1);
    assert!(metrics.bytes_sent > 0 && metrics.bytes_received > 0);
    assert!(metrics.sockets > 0 && metrics.threads > 2, "{metrics:?}");
}

#[test]
fn an_observer_that_panics_harms_nobody() {
    let fake = Fake::start();
    let config = fake
        .config()
        .with_event_observer(|_| panic!("the observer's own"));
    let training = train(&fake.client(config));
    for _ in 0..2 {
        fake.reply("optim_step", Reply::status(503));
        training
            .optim_step(AdamParams::default())
            .unwrap()
            .join()
            .unwrap();
    }
}

#[test]
fn a_lost_session_is_told() {
    let fake = Fake::start();
    fake.server
        .always("POST", &route("session_heartbeat"), Reply::status(410));
    let (sender, lost) = mpsc::channel();
    let config = fake
        .config()
        .with_heartbeat_interval(Duration::from_millis(1))
        .with_event_observer(move |event| {
            if let ClientEvent::SessionLost { session_id, .. } = event {
                let _ = sender.send(session_id.clone());
            }
        });
    let service = tinker::ServiceClient::new(config).unwrap();
    let _open = service.session_id();
    assert_eq!(lost.recv_timeout(Duration::from_secs(60)).unwrap(), "S1");
}

#[test]
fn an_unpaid_bill_is_waited_for_unless_the_user_says_otherwise() {
    let fake = Fake::start();
    let (service, events) = watched(&fake);
    let unpaid = || Reply::json(&json!({"detail": "pay"})).with_status(402);
    let training = train(&service);
    fake.reply("optim_step", unpaid());
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    let paused = |event: &ClientEvent| matches!(event, ClientEvent::BillingPause { .. });
    assert!(events.lock().unwrap().iter().any(paused));

    let impatient = train(&fake.client(fake.config().with_billing_pause(Duration::ZERO)));
    let before = fake.clock.pauses().len();
    fake.reply("optim_step", unpaid());
    let error = impatient
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap_err();
    assert_eq!(error.status(), Some(402));
    assert_eq!(fake.clock.pauses().len(), before);
}

#[test]
fn a_blocking_call_ends_at_its_deadline_and_the_queue_goes_on() {
    let fake = Fake::start();
    // Long enough for what comes before on a crowded machine.
    let service = fake.client(fake.config().with_call_deadline(Duration::from_secs(3)));
    let training = train(&service);
    let sampler = service.create_sampling_client("m").unwrap();
    let gate = Gate::new();
    fake.reply(
        "retrieve_future",
        Reply::json(&json!({"type": "try_again"})).after(&gate),
    );
    let error = sampler
        .sample(&prompt(), SamplingParams::max_tokens(2))
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    drop(gate);
    // A handle has no deadline but the one it is joined with.
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
}

/// Every request of a call takes time, and the waits between them too: together no more than the
/// deadline.
#[test]
fn the_deadline_is_of_the_whole_call() {
    const LIMIT: Duration = Duration::from_secs(100);
    let fake = Fake::start();
    let service = fake.client(fake.config().with_call_deadline(LIMIT));
    // Each of these would do for itself within the limit.
    for name in ["client/config", "create_session", "create_model"] {
        for _ in 0..6 {
            let failing = Reply::status(503).with_header("retry-after", "10");
            fake.reply(name, failing);
        }
    }
    let begun = fake.clock.now();
    let error = service
        .create_lora_training_client("some/model", tinker::LoraConfig::rank(4))
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let took = fake.clock.now() - begun;
    assert!(
        LIMIT - Duration::from_secs(11) < took && took <= LIMIT,
        "{took:?}"
    );
    // The next call has a time of its own, and what the first one opened is there.
    train(&service);
    assert_eq!(fake.bodies("client/config").len(), 7);
}

#[test]
fn too_much_in_the_queue_is_refused_and_nothing_of_it_is_sent() {
    let fake = Fake::start();
    let data = [Datum::supervised(&[1], &[2, 3])];
    let config = fake
        .config()
        .with_max_queued_bytes(1)
        .with_max_queued_samples(0);
    let service = fake.client(config);
    let training = train(&service);
    let gate = Gate::new();
    fake.reply(
        "forward_backward",
        Reply::json(&json!({"request_id": "held"})).after(&gate),
    );
    let first = training
        .forward_backward(&data, LossFn::CrossEntropy)
        .unwrap();
    gate.wait_for(1);
    let error = training
        .forward_backward(&data, LossFn::CrossEntropy)
        .unwrap_err();
    assert!(matches!(error, Error::NotSent(_)), "{error}");
    assert!(
        error.to_string().contains("with_max_queued_bytes"),
        "{error}"
    );
    gate.open();
    first.join().unwrap();
    training
        .forward_backward(&data, LossFn::CrossEntropy)
        .unwrap()
        .join()
        .unwrap();

    let sampler = service.create_sampling_client("m").unwrap();
    let error = sampler
        .submit_sample(&prompt(), SamplingParams::max_tokens(2))
        .unwrap_err();
    assert!(
        error.to_string().contains("with_max_queued_samples"),
        "{error}"
    );
}

#[test]
fn draining_names_what_is_left() {
    let fake = Fake::start();
    let service = fake.service();
    assert!(service.drain(Duration::ZERO).is_empty());
    let training = train(&service);
    let (held, gate) = fake.held_step(&training);
    let left = service.drain(Duration::ZERO);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].operation, "optim_step");
    assert_eq!(left[0].request_id, held.request_id());
    assert_eq!(service.metrics().unfinished, 1);
    gate.open();
    assert!(service.drain(Duration::from_secs(60)).is_empty());
    assert!(held.is_finished());
}

#[test]
fn a_callback_hears_of_a_result_and_a_sample_can_be_given_up() {
    let fake = Fake::start();
    let training = fake.training();
    let (held, gate) = fake.held_step(&training);
    let (sender, ready) = mpsc::channel();
    let again = sender.clone();
    held.on_ready(move || sender.send("first").unwrap());
    assert!(!held.cancel(), "a step cannot be taken back");
    gate.open();
    assert_eq!(
        ready.recv_timeout(Duration::from_secs(60)).unwrap(),
        "first"
    );
    held.on_ready(move || again.send("at once").unwrap());
    assert_eq!(ready.recv().unwrap(), "at once");
    held.on_ready(|| panic!("the callback's own"));
    held.join().unwrap();

    let sampler = fake.sampler();
    let gate = Gate::new();
    fake.reply(
        "retrieve_future",
        Reply::json(&json!({"type": "try_again"})).after(&gate),
    );
    let sample = sampler
        .submit_sample(&prompt(), SamplingParams::max_tokens(2))
        .unwrap();
    gate.wait_for(1);
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| sample.join_timeout(Duration::MAX));
        assert!(sample.cancel());
        assert!(matches!(
            joined.join().unwrap(),
            Some(Err(Error::Cancelled(_)))
        ));
    });
    assert!(!sample.cancel(), "it was given up before");
}

#[test]
fn a_sampling_client_may_have_fewer_samples_under_way_than_the_service_allows() {
    let fake = Fake::start();
    let gate = Gate::new();
    let held = Reply::json(&json!({"type": "try_again"})).after(&gate);
    fake.server.always("POST", &route("retrieve_future"), held);
    let two = RetryConfig::default().with_max_connections(2);
    let sampler = fake.sampler().with_retry(two).unwrap();
    let samples: Vec<_> = (0..5)
        .map(|_| sampler.submit_sample(&prompt(), SamplingParams::max_tokens(2)))
        .collect();
    gate.wait_for(2);
    assert_eq!(sampler.progress().waiting, 3);
    assert_eq!(fake.bodies("asample").len(), 2);
    drop(samples);
    gate.open();
}

#[test]
fn each_sampling_client_repeats_as_it_was_told() {
    let fake = Fake::start();
    let plain = fake.sampler();
    let lost = || Reply::status(410);
    let sample =
        |sampler: &tinker::SamplingClient| sampler.sample(&prompt(), SamplingParams::max_tokens(2));

    let slow = RetryConfig::default()
        .with_delays(Duration::from_secs(3), Duration::from_secs(3))
        .with_jitter_factor(0.0);
    let slow = plain.clone().with_retry(slow).unwrap();
    fake.reply("retrieve_future", lost());
    sample(&slow).unwrap();
    assert_eq!(fake.clock.pauses().last(), Some(&Duration::from_secs(3)));

    let never = plain
        .clone()
        .with_retry(RetryConfig::default().without_retries())
        .unwrap();
    fake.reply("retrieve_future", lost());
    assert!(matches!(sample(&never), Err(Error::Lost(_))));

    let hasty = RetryConfig::default().with_progress_timeout(Duration::ZERO);
    fake.reply("retrieve_future", lost());
    let error = sample(&plain.clone().with_retry(hasty).unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("no sample has succeeded"),
        "{error}"
    );
    fake.reply("retrieve_future", lost());
    sample(
        &plain
            .clone()
            .with_retry(hasty.without_stuck_detection())
            .unwrap(),
    )
    .unwrap();

    for bad in [
        RetryConfig::default().with_jitter_factor(2.0),
        RetryConfig::default().with_max_connections(0),
    ] {
        assert!(plain.clone().with_retry(bad).is_err());
    }
}
