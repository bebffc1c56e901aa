//! The training client on the embedded server: order, chunks, failures, custom losses.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use tinker::local::{Fault, LocalServer};
use tinker::loss::{from_fn, input, logprobs};
use tinker::{AdamParams, Datum, Error, LossFn, ModelInput, ServiceClient, TrainingClient};

use crate::support::local::{config, datum, service, train};
use crate::support::proto;

/// A server that makes chunks of two data.
fn chunking() -> tinker::local::Builder {
    LocalServer::builder()
        .flag("fwdbwd_max_chunk_len", 2)
        .record(true)
}

fn lengths(output: &tinker::ForwardBackwardOutput) -> Vec<usize> {
    let count = output.loss_fn_outputs.len();
    (0..count)
        .map(|i| output.logprobs(i).unwrap().len())
        .collect()
}

/// The sequence numbers the server saw for the training routes, in order of arrival.
fn numbers(server: &LocalServer) -> Vec<u64> {
    server
        .requests()
        .iter()
        .filter(|request| matches!(request.endpoint(), "forward_backward" | "optim_step"))
        .map(|request| match request.json() {
            Some(body) => body["seq_id"].as_u64().unwrap(),
            None => proto::seq_id(&request.body),
        })
        .collect()
}

#[test]
fn chunked_calls_equal_whole_ones_and_send_the_first_chunk_last() {
    let data: Vec<Datum> = (1..=7).map(datum).collect();
    let whole = LocalServer::start().unwrap();
    let expected = train(&service(&whole))
        .forward_backward(&data, LossFn::CrossEntropy)
        .unwrap()
        .join()
        .unwrap();
    for parallel in [true, false] {
        let server = chunking()
            .flag("parallel_fwdbwd_chunks", parallel)
            .start()
            .unwrap();
        let training = train(&service(&server));
        let step = training
            .forward_backward(&data, LossFn::CrossEntropy)
            .unwrap();
        let output = step.join().unwrap();
        assert_eq!(lengths(&output), [1, 2, 3, 4, 5, 6, 7]);
        for index in 0..7 {
            let (one, other) = (
                output.logprobs(index).unwrap(),
                expected.logprobs(index).unwrap(),
            );
            let near = one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near, "{one:?} {other:?}");
        }
        let sum = |output: &tinker::ForwardBackwardOutput| output.metrics["loss:sum"];
        assert!((sum(&output) - sum(&expected)).abs() < 1e-3);
        let order = numbers(&server);
        match parallel {
            true => {
                assert_eq!(order[3], 1);
                assert_eq!(
                    order.iter().copied().collect::<BTreeSet<_>>(),
                    (1..=4).collect()
                );
            }
            false => assert_eq!(order, [1, 2, 3, 4]),
        }
    }
}

#[test]
fn chunks_can_be_taken_as_they_arrive() {
    let server = chunking().start().unwrap();
    let training = train(&service(&server));
    let data: Vec<Datum> = (1..=5).map(datum).collect();
    let chunks = training
        .forward_backward_chunks(&data, LossFn::CrossEntropy)
        .unwrap();
    let mut ranges = Vec::new();
    for chunk in chunks {
        let chunk = chunk.unwrap();
        assert_eq!(chunk.chunks, 3);
        let expected: Vec<usize> = chunk.range.clone().map(|index| index + 1).collect();
        assert_eq!(lengths(&chunk.output), expected);
        ranges.push((chunk.range.start, chunk.range.end));
    }
    ranges.sort_unstable();
    assert_eq!(ranges, [(0, 2), (2, 4), (4, 5)]);
}

#[test]
fn calls_from_many_threads_keep_one_order_and_match_their_inputs() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let training = train(&service(&server));
    thread::scope(|scope| {
        for index in 0..64 {
            let training = training.clone();
            scope.spawn(move || {
                let length = 1 + index % 16;
                let step = training.forward_backward(&[datum(length)], LossFn::CrossEntropy);
                assert_eq!(lengths(&step.unwrap().join().unwrap()), [length]);
            });
        }
    });
    assert_eq!(numbers(&server), (1..=64).collect::<Vec<u64>>());
}

#[test]
fn what_cannot_be_encoded_takes_no_number_and_leaves_the_queue() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let training = train(&service(&server));
    assert!(
        training
            .forward_backward(&[], LossFn::CrossEntropy)
            .unwrap_err()
            .is_user_error()
    );
    let pointer = tinker::types::Chunk::image_asset("somewhere", tinker::types::ImageFormat::Png);
    let bad = Datum::new(ModelInput::from_chunks(vec![pointer])).with_target_tokens(vec![1]);
    let refused = training
        .forward_backward(&[datum(1), bad], LossFn::CrossEntropy)
        .unwrap();
    let error = refused.join().unwrap_err();
    assert!(error.to_string().contains("data[1]"), "{error}");
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(numbers(&server), [1]);
}

#[test]
fn a_step_whose_first_half_is_refused_does_not_send_its_second() {
    let server = LocalServer::builder()
        .fault(Fault::status("forward_backward", 400).with_times(1))
        .record(true)
        .start()
        .unwrap();
    let training = train(&service(&server));
    let adam = AdamParams::default();
    let step = training
        .train_step(&[datum(2)], LossFn::CrossEntropy, adam)
        .unwrap();
    assert_eq!(
        step.forward_backward.join().unwrap_err().status(),
        Some(400)
    );
    let error = step.optim_step.join().unwrap_err();
    assert!(error.to_string().contains("not sent"), "{error}");
    // The number that was refused is used again: no hole.
    training
        .train_step(&[datum(2)], LossFn::CrossEntropy, adam)
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(numbers(&server), [1, 1, 2]);
}

/// What can happen to one chunk's submission, and whether the call can still succeed.
fn chunk_faults() -> Vec<(&'static str, Fault, bool)> {
    let at = "forward_backward";
    vec![
        ("lost before taking effect", Fault::dropped_before(at), true),
        ("lost after taking effect", Fault::dropped_after(at), true),
        ("429", Fault::status(at, 429), true),
        ("500", Fault::status(at, 500), true),
        ("truncated answer", Fault::truncated(at), true),
        ("malformed answer", Fault::malformed(at), true),
        ("400", Fault::status(at, 400), false),
    ]
}

#[test]
fn a_fault_at_any_chunk_heals_or_leaves_no_hole() {
    for (name, fault, heals) in chunk_faults() {
        for position in 0..3 {
            let server = chunking().start().unwrap();
            let training = train(&service(&server));
            // The first submission settles the dialect, so that the fault hits what it should.
            training
                .forward_backward(&[datum(1)], LossFn::CrossEntropy)
                .unwrap()
                .join()
                .unwrap();
            server
                .add_fault(fault.clone().with_skip(position).with_times(1))
                .unwrap();
            let data: Vec<Datum> = (1..=6).map(datum).collect();
            let step = training
                .forward_backward(&data, LossFn::CrossEntropy)
                .unwrap();
            let later = training.optim_step(AdamParams::default()).unwrap();
            let outcome = step.join();
            match heals {
                true => assert_eq!(lengths(&outcome.unwrap()), [1, 2, 3, 4, 5, 6], "{name}"),
                false => {
                    let text = outcome.unwrap_err().to_string();
                    assert!(text.contains("data["), "{name} at {position}: {text}");
                    assert!(
                        text.contains("may already be accumulated"),
                        "{name}: {text}"
                    );
                }
            }
            later
                .join()
                .unwrap_or_else(|error| panic!("{name} at {position}: {error}"));
            let seen: BTreeSet<u64> = numbers(&server).into_iter().collect();
            let next = *seen.last().unwrap();
            assert_eq!(seen, (1..=next).collect(), "{name} at {position}");
        }
    }
}

#[test]
fn an_optim_step_that_heals_counts_once() {
    for fault in [
        Fault::dropped_before("optim_step"),
        Fault::dropped_after("optim_step"),
        Fault::status("optim_step", 500),
        Fault::truncated("optim_step"),
    ] {
        let losses = |fault: Option<Fault>| {
            let server = LocalServer::start().unwrap();
            let training = train(&service(&server));
            if let Some(fault) = fault {
                server.add_fault(fault.with_times(2)).unwrap();
            }
            let adam = AdamParams::learning_rate(1e-2);
            let step = || {
                let step = training.train_step(&[datum(4)], LossFn::CrossEntropy, adam);
                step.unwrap().join().unwrap().0.loss().unwrap()
            };
            [step(), step(), step()]
        };
        assert_eq!(losses(Some(fault)), losses(None));
    }
}

#[test]
fn a_request_whose_fate_stays_unknown_breaks_the_client_at_once() {
    let server = LocalServer::builder().start().unwrap();
    // Failed, or sent on to an answer that is not there.
    for fault in [
        Fault::status("optim_step", 500),
        Fault::status("optim_step", 303).with_header("location", "/api/v1/nowhere"),
    ] {
        let training = train(&service(&server));
        server.add_fault(fault).unwrap();
        let first = training.optim_step(AdamParams::default()).unwrap();
        let second = training
            .forward_backward(&[datum(1)], LossFn::CrossEntropy)
            .unwrap();
        for error in [first.join().unwrap_err(), second.join().unwrap_err()] {
            assert!(matches!(error, Error::Broken(_)), "{error}");
            assert!(error.to_string().contains("number 1"), "{error}");
            assert_eq!(error.remedy(), tinker::error::Remedy::RestoreFromCheckpoint);
        }
        assert!(matches!(
            training.optim_step(AdamParams::default()),
            Err(Error::Broken(_))
        ));
        server.clear_faults();
    }
}

#[test]
fn a_lost_connection_to_a_dead_server_is_not_a_broken_client() {
    let server = LocalServer::start().unwrap();
    let service = service(&server);
    let training = train(&service);
    drop(server);
    let error = training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap_err();
    // Nothing ever arrived, so the number is still free.
    assert!(matches!(error, Error::Connection(_)), "{error}");
    assert!(training.optim_step(AdamParams::default()).is_ok());
}

#[test]
fn closing_counts_what_it_gave_up() {
    let server = LocalServer::builder()
        .fault(Fault::stalled("optim_step"))
        .start()
        .unwrap();
    let config = config(&server).with_close_timeout(Duration::from_millis(50));
    let service = ServiceClient::new(config).unwrap();
    let training = train(&service);
    let pending: Vec<_> = (0..3)
        .map(|_| training.optim_step(AdamParams::default()).unwrap())
        .collect();
    let error = service.close().unwrap_err();
    assert!(error.to_string().contains("3 queued operations"), "{error}");
    for pending in pending {
        assert!(pending.join().is_err());
    }
}

#[test]
fn custom_losses_train_like_the_service_s_own() {
    let server = LocalServer::start().unwrap();
    let service = service(&server);
    let (custom, plain) = (train(&service), train(&service));
    let adam = AdamParams::learning_rate(1e-2);
    for _ in 0..3 {
        let loss = -(logprobs() * input("weights")).sum();
        let loss = loss.with_metric("mean:mean", logprobs().mean());
        let step = custom.forward_backward_custom(&[datum(5)], loss).unwrap();
        let optim = custom.optim_step(adam).unwrap();
        let step = step.join().unwrap();
        optim.join().unwrap();
        let expected = plain
            .train_step(&[datum(5)], LossFn::CrossEntropy, adam)
            .unwrap()
            .join()
            .unwrap()
            .0;
        let (a, b) = (step.metrics["loss:sum"], expected.metrics["loss:sum"]);
        assert!((a - b).abs() < 1e-4 * b.abs(), "{a} {b}");
        assert!(step.metrics.contains_key("surrogate_loss:sum"));
        assert!(
            step.metrics.contains_key("custom/mean:mean"),
            "{:?}",
            step.metrics
        );
    }
}

#[test]
fn a_panic_in_the_user_s_code_costs_only_its_own_call() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let training = train(&service(&server));
    let panics = |call: &dyn Fn()| {
        let call = std::panic::AssertUnwindSafe(call);
        assert!(std::panic::catch_unwind(call).is_err());
    };
    panics(&|| {
        let loss = from_fn(|_, _| panic!("on purpose"));
        let _ = training.forward_backward_custom(&[datum(2)], loss);
    });
    panics(&|| {
        let optim = training.optim_step(AdamParams::default()).unwrap();
        let _ = optim.map(|_| panic!("on purpose")).join();
    });
    let step = training.train_step(&[datum(2)], LossFn::CrossEntropy, AdamParams::default());
    step.unwrap().join().unwrap();
    // The forward pass, the step whose result was thrown away, and the two halves.
    assert_eq!(numbers(&server), [1, 2, 3, 4]);
}

#[test]
fn recovery_goes_on_from_the_last_checkpoint() {
    let server = LocalServer::start().unwrap();
    let service = service(&server);
    let training = train(&service);
    let adam = AdamParams::learning_rate(1e-2);
    let step = |training: &TrainingClient| {
        let step = training.train_step(&[datum(4)], LossFn::CrossEntropy, adam);
        step.unwrap().join().unwrap().0.loss().unwrap()
    };
    let error = service.recover(training.model_id()).unwrap_err();
    assert!(
        error.to_string().contains("no training checkpoint"),
        "{error}"
    );
    for name in ["one", "two"] {
        step(&training);
        training.save_state(name).unwrap().join().unwrap();
    }
    let expected = step(&training);
    let recovery = service.recover(training.model_id()).unwrap();
    assert!(
        recovery
            .checkpoint
            .tinker_path
            .to_string()
            .ends_with("/weights/two")
    );
    assert_eq!(step(&recovery.training), expected);
}
