//! Where this SDK differs from the reference on purpose.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::error::{Effect, Remedy};
use tinker::unversioned::Intervals as _;
use tinker::{
    AdamParams, Datum, Error, LossFn, ModelInput, SamplingParams, ServiceClient, TrainingClient,
};

use super::futures::{check, run};
use super::{End, poller, prompt, rows, sample, sample_numbers, status, times};
use crate::support::fake::{Fake, result_of, route, train};
use crate::support::proto;
use crate::support::scripted::{Gate, Recorded, Reply};

fn damaged() -> Vec<Reply> {
    vec![
        Reply::json(&json!({"metrics": {}})).cut_before_end(3),
        Reply::bytes("application/json", "{\"metrics\": {\"grad"),
        Reply::bytes("application/json", "[1, 2]"),
        Reply::bytes("text/html", "<html>oops</html>"),
        Reply::json(&json!({"metrics": "not a map"})),
    ]
}

rows! { check;
    difference_500_on_a_poll_backs_off: times(3, || status(500)) => End::Done, [1, 2, 4];
    difference_502_on_a_poll_backs_off: times(3, || status(502)) => End::Done, [1, 2, 4];
    difference_503_on_a_poll_backs_off: times(3, || status(503)) => End::Done, [1, 2, 4];
    difference_5xx_on_a_poll_recovers_with_any_answer: [status(500), super::try_again(), status(500)]
        => End::Done, [1, 1];
    difference_damaged_200_is_fetched_again: damaged() => End::Done, [1, 2, 4, 8, 16];
    difference_404_of_training_is_lost_and_says_restore: [status(404)] => End::Broken, [];
}

#[test]
fn difference_5xx_on_a_poll_surfaces_after_the_results_own_patience() {
    let fake = Fake::start();
    let config = fake.config().with_result_patience(Duration::from_secs(300));
    let training = train(&fake.client(config));
    fake.server
        .always("POST", &route("retrieve_future"), status(503));
    let step = training.optim_step(AdamParams::default()).unwrap();
    let error = step.join().unwrap_err();
    assert_eq!(error.status(), Some(503));
    assert_eq!(error.effect(), Effect::Accepted);
    assert_eq!(error.remedy(), Remedy::Wait);
    assert!(
        !error.is_retryable(),
        "submitted again it would count twice"
    );
    let total: Duration = fake.clock.pauses().iter().sum();
    let minutes = Duration::from_secs(300)..Duration::from_secs(340);
    assert!(minutes.contains(&total), "{total:?}");
}

#[test]
fn difference_damaged_200_surfaces_after_eight_more() {
    let fake = Fake::start();
    let error = run(&fake, times(20, || damaged().remove(2))).unwrap_err();
    assert!(matches!(error, Error::Reply(_)), "{error}");
    assert_eq!(fake.clock.pauses().len(), 8);
}

/// A client whose polls are short, and a poll that is never answered.
fn silent_poll(fake: &Fake, path: &str) -> (ServiceClient, Gate) {
    let gate = Gate::new();
    fake.reply(path, super::try_again().after(&gate));
    let config = fake.config().with_poll_timeout(Duration::from_millis(100));
    let service = fake.client(config);
    (service, gate)
}

#[test]
fn difference_a_poll_that_timed_out_is_pending_and_polled_again_at_once() {
    let fake = Fake::start();
    let (service, gate) = silent_poll(&fake, "retrieve_future");
    sample(&service.create_sampling_client("some/model").unwrap()).unwrap();
    assert_eq!(gate.waiting(), 1);
    fake.check_pauses(&[]);
}

#[test]
fn difference_a_poller_that_timed_out_polls_again_at_once() {
    let fake = poller::announcing(json!({}));
    let (service, gate) = silent_poll(&fake, "retrieve_futures");
    sample(&service.create_sampling_client("some/model").unwrap()).unwrap();
    assert_eq!(gate.waiting(), 1);
    fake.check_pauses(&[]);
}

#[test]
fn difference_a_damaged_answer_never_ends_the_poller() {
    let fake = poller::announcing(json!({}));
    for reply in [
        poller::nothing_yet().cut_before_end(3),
        Reply::bytes("application/json", "{\"completions\": ["),
        Reply::json(&json!({"completions": "none"})),
        Reply::bytes("text/html", "<html>oops</html>"),
    ] {
        fake.reply("retrieve_futures", reply);
    }
    let sampler = fake.sampler();
    let params = SamplingParams::max_tokens(4);
    let samples: Vec<_> = (0..40)
        .map(|_| sampler.submit_sample(&prompt(1), params.clone()).unwrap())
        .collect();
    for sample in samples {
        sample.join().unwrap();
    }
    fake.check_pauses(&[1, 1, 1, 1]);
}

#[test]
fn difference_404_of_a_sample_is_submitted_again_under_a_new_number() {
    let fake = Fake::start();
    fake.reply("retrieve_future", status(404));
    sample(&fake.sampler()).unwrap();
    assert_eq!(sample_numbers(&fake), [0, 1]);
}

#[test]
fn difference_a_silent_submission_is_noticed_by_its_timeout_and_sent_again() {
    let fake = Fake::start();
    let gate = Gate::new();
    fake.reply("asample", Reply::json(&json!({})).after(&gate));
    let config = fake.config().with_read_timeout(Duration::from_millis(200));
    let service = fake.client(config);
    sample(&service.create_sampling_client("some/model").unwrap()).unwrap();
    assert_eq!(gate.waiting(), 1);
    let numbers = sample_numbers(&fake);
    assert!(numbers.len() >= 2 && numbers.iter().all(|number| *number == 0));
}

#[test]
fn difference_backoff_has_jitter() {
    let fake = Fake::start();
    run(&fake, times(6, Reply::hang_up)).unwrap();
    fake.check_pauses(&[1, 2, 4, 8, 16, 30]);
    let whole = |wait: &Duration| wait.subsec_nanos() == 0;
    assert!(!fake.clock.pauses().iter().all(whole));
}

#[test]
fn difference_a_429_on_a_sample_backs_off_as_long_as_the_service_says() {
    for (name, value, expected) in [
        ("retry-after-ms", "250", Duration::from_millis(250)),
        ("retry-after", "7", Duration::from_secs(7)),
    ] {
        let fake = Fake::start();
        fake.reply("asample", status(429).with_header(name, value));
        sample(&fake.sampler()).unwrap();
        assert_eq!(fake.clock.pauses(), [expected]);
    }
}

#[test]
fn difference_a_429_on_a_poll_waits_as_long_as_the_service_says() {
    let fake = Fake::start();
    let hint = status(429).with_header("retry-after-ms", "5");
    run(&fake, vec![hint]).unwrap();
    assert_eq!(fake.clock.pauses(), [Duration::from_millis(5)]);
}

/// A service that makes a chunk of each datum.
fn chunking() -> Fake {
    Fake::with_flags(json!({"fwdbwd_max_chunk_len": 1}))
}

fn data(count: usize) -> Vec<Datum> {
    let datum = Datum::new(ModelInput::from_ints(vec![1]))
        .with_target_tokens(vec![2])
        .with_weights(vec![1.0]);
    vec![datum; count]
}

/// A client that knows the server's dialect, so that a fault hits what it should.
fn settled(fake: &Fake) -> TrainingClient {
    let training = fake.training();
    let step = training.forward_backward(&data(1), LossFn::CrossEntropy);
    step.unwrap().join().unwrap();
    training
}

/// The numbers of submissions in order of arrival, with `f` for a forward-only one.
fn submissions(fake: &Fake) -> Vec<String> {
    let row = |request: &Recorded| match request.path.trim_start_matches("/api/v1/") {
        "forward_backward" => {
            let kind = match proto::is_forward_only(&request.body) {
                true => "f",
                false => "",
            };
            Some(format!("{kind}{}", proto::seq_id(&request.body)))
        }
        "optim_step" => Some(request.json()["seq_id"].to_string()),
        _ => None,
    };
    fake.server.requests().iter().filter_map(row).collect()
}

/// Refuses the chunk of this number once.
fn refuse_chunk(fake: &Fake, number: u64) {
    let refused = std::sync::atomic::AtomicBool::new(false);
    fake.server
        .on("POST", &route("forward_backward"), move |request| {
            let seq_id = proto::seq_id(&request.body);
            let first = || !refused.swap(true, std::sync::atomic::Ordering::SeqCst);
            match seq_id == number && first() {
                true => status(400),
                false => Reply::json(&json!({"request_id": format!("chunk-{seq_id}")})),
            }
        });
}

#[test]
fn difference_chunks_of_one_call_retry_side_by_side() {
    let fake = chunking();
    let training = settled(&fake);
    let gate = Gate::new();
    let (held, failed) = (gate.clone(), std::sync::atomic::AtomicBool::new(false));
    fake.server
        .on("POST", &route("forward_backward"), move |request| {
            let number = proto::seq_id(&request.body);
            let accepted = Reply::json(&json!({"request_id": format!("chunk-{number}")}));
            match number {
                3 => accepted.after(&held),
                4 if !failed.swap(true, std::sync::atomic::Ordering::SeqCst) => status(503),
                _ => accepted,
            }
        });
    let step = training
        .forward_backward(&data(3), LossFn::CrossEntropy)
        .unwrap();
    gate.wait_for(1);
    // The third chunk is tried again although the second is still on its way.
    fake.server.wait_until(|requests| {
        let fourth = |request: &&Recorded| {
            request.path.ends_with("forward_backward") && proto::seq_id(&request.body) == 4
        };
        requests.iter().filter(fourth).count() == 2
    });
    assert_eq!(gate.waiting(), 1);
    gate.open();
    step.join().unwrap();
}

#[test]
fn difference_an_operation_that_was_never_sent_takes_no_number() {
    let fake = chunking();
    let training = settled(&fake);
    let pointer = tinker::types::Chunk::image_asset("x", tinker::types::ImageFormat::Png);
    let bad = Datum::new(ModelInput::from_chunks(vec![pointer])).with_target_tokens(vec![1]);
    let both = [data(2), vec![bad]].concat();
    let step = training.forward_backward(&both, LossFn::CrossEntropy);
    assert!(step.unwrap().join().unwrap_err().is_user_error());
    let optim = training.optim_step(AdamParams::default()).unwrap();
    optim.join().unwrap();
    assert_eq!(submissions(&fake), ["1", "2"]);
}

#[test]
fn difference_a_refused_number_is_given_to_the_next_operation() {
    let fake = Fake::start();
    let training = fake.training();
    fake.reply("optim_step", status(400));
    let steps = [(); 3].map(|()| training.optim_step(AdamParams::default()).unwrap());
    let ends = steps.map(|step| End::of(&step.join()));
    assert_eq!(ends, [End::Status(400), End::Done, End::Done]);
    assert_eq!(submissions(&fake), ["1", "1", "2"]);
}

#[test]
fn difference_a_refused_number_before_an_accepted_one_is_filled_with_a_forward() {
    let fake = chunking();
    let training = settled(&fake);
    refuse_chunk(&fake, 3);
    let step = training
        .forward_backward(&data(3), LossFn::CrossEntropy)
        .unwrap();
    let optim = training.optim_step(AdamParams::default()).unwrap();
    let error = step.join().unwrap_err();
    assert!(
        error.to_string().contains("data[1..2], chunk 2 of 3"),
        "{error}"
    );
    optim.join().unwrap();
    let seen = submissions(&fake);
    // Chunks 2 and 3 in either order, then the first, the filler and the next operation.
    assert_eq!(seen[3..], ["2", "f3", "5"]);
}

#[test]
fn difference_a_failed_later_chunk_still_submits_the_first() {
    let fake = chunking();
    let training = settled(&fake);
    refuse_chunk(&fake, 4);
    let step = training
        .forward_backward(&data(3), LossFn::CrossEntropy)
        .unwrap();
    let optim = training.optim_step(AdamParams::default()).unwrap();
    assert_eq!(step.join().unwrap_err().status(), Some(400));
    optim.join().unwrap();
    // The last number was free again for the next operation.
    assert_eq!(submissions(&fake)[3..], ["2", "4"]);
}

#[test]
fn difference_409_means_that_the_number_is_taken_and_the_queue_goes_on() {
    let fake = Fake::start();
    let training = fake.training();
    for reply in times(200, || status(409)) {
        fake.reply("optim_step", reply);
    }
    let first = training.optim_step(AdamParams::default()).unwrap();
    assert_eq!(first.join().unwrap_err().status(), Some(409));
    let tries = submissions(&fake).len();
    training.save_state("x").unwrap().join().unwrap();
    assert!(tries < 200, "{tries}");
    assert_eq!(fake.bodies("save_weights")[0]["seq_id"], 2);
}

#[test]
fn difference_an_unknown_fate_fails_everything_at_once_and_names_the_number() {
    let fake = chunking();
    let training = settled(&fake);
    let gate = Gate::new();
    let held = gate.clone();
    fake.server
        .on("POST", &route("retrieve_future"), move |request| {
            let kind = request.header("x-tinker-request-type").unwrap();
            Reply::json(&result_of(kind)).after(&held)
        });
    fake.server
        .always("POST", &route("optim_step"), Reply::hang_up());
    let whole = training.forward(&data(1), LossFn::CrossEntropy).unwrap();
    let mut chunks = training
        .forward_backward_chunks(&data(2), LossFn::CrossEntropy)
        .unwrap();
    let lost = training.optim_step(AdamParams::default()).unwrap();
    let later = training.optim_step(AdamParams::default()).unwrap();
    let errors = [
        whole.join().unwrap_err(),
        chunks.next().unwrap().unwrap_err(),
        lost.join().unwrap_err(),
        later.join().unwrap_err(),
        training.optim_step(AdamParams::default()).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Broken(_)), "{error}");
        assert!(error.to_string().contains("number 5"), "{error}");
        assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint);
    }
    assert!(chunks.next().is_none());
    // The results were still being waited for.
    assert!(gate.waiting() >= 1);
    gate.open();
}

#[test]
fn difference_telemetry_never_carries_headers() {
    let fake = Fake::start();
    let config = fake.config().with_telemetry(true);
    let service = fake.client(config);
    let training = train(&service);
    fake.reply("retrieve_future", status(403));
    let step = training.optim_step(AdamParams::default()).unwrap();
    assert_eq!(step.join().unwrap_err().status(), Some(403));
    service.close().unwrap();
    let sent: Vec<String> = fake
        .bodies("telemetry")
        .iter()
        .map(Value::to_string)
        .collect();
    assert!(sent.concat().contains("api_status_error"));
    for word in ["secret", "api-key", "request_headers"] {
        assert!(!sent.concat().to_lowercase().contains(word), "{word}");
    }
}

#[test]
fn difference_a_pending_operation_shows_its_id_age_and_queue() {
    let fake = Fake::start();
    let training = fake.training();
    let gate = Gate::new();
    fake.reply(
        "retrieve_future",
        Reply::json(&json!({
            "type": "try_again", "queue_state": "paused_capacity", "queue_state_reason": "busy",
        })),
    );
    let result = Reply::json(&result_of("OptimStep"));
    fake.reply("retrieve_future", result.after(&gate));
    let pending = training.optim_step(AdamParams::default()).unwrap();
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
    pending.join().unwrap();
}

#[test]
fn difference_a_deadline_names_what_it_gave_up_on() {
    let fake = Fake::start();
    let training = fake.training();
    let (pending, gate) = fake.held_step(&training);
    let error = pending.join_within(Duration::ZERO).unwrap_err();
    assert!(error.is_timeout());
    assert_eq!(error.request_id(), Some("req-2"));
    assert!(error.to_string().contains("optim_step"), "{error}");
    gate.open();
}
