//! Work on the results of a batch: on the client's pool, in order, bounded, while more arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::unbounded;
use tinker::local::LocalServer;
use tinker::types::Stop;
use tinker::{ModelInput, SampleRequest, SampleResponse, SamplingClient, SamplingParams};

use crate::support::local::{base_model, service};

/// Long enough for any machine; only a defect takes it.
const PATIENCE: Duration = Duration::from_secs(300);

fn sampler(server: &LocalServer) -> SamplingClient {
    let service = service(server);
    service
        .create_sampling_client(base_model(&service))
        .unwrap()
}

/// A request that is answered with so many tokens.
fn request(tokens: u32) -> SampleRequest {
    let params = SamplingParams::max_tokens(tokens).with_stop(Stop::never());
    SampleRequest::new(ModelInput::from_ints(vec![104, 105]), params)
}

fn length(response: &SampleResponse) -> usize {
    response.sequences[0].tokens.len()
}

#[test]
fn work_runs_on_the_pool_in_the_order_of_the_batch() {
    let server = LocalServer::builder().start().unwrap();
    let lengths = [5, 1, 4, 2, 3, 1, 6, 2];
    let requests = lengths.map(request);
    let work = |response| {
        (
            length(&response),
            std::thread::current().name().map(str::to_owned),
        )
    };
    let mapped = sampler(&server)
        .sample_batch(requests)
        .in_order()
        .map_parallel(work);
    let items: Vec<_> = mapped.collect();
    assert_eq!(items.len(), lengths.len());
    for (n, (index, result)) in items.into_iter().enumerate() {
        let (length, thread) = result.unwrap();
        assert_eq!((index, length), (n, lengths[n] as usize));
        assert!(thread.unwrap().starts_with("tinker-cpu-"));
    }
}

#[test]
fn what_fails_or_panics_is_an_item_in_its_place() {
    let server = LocalServer::builder().start().unwrap();
    let bad = SampleRequest::new(
        ModelInput::from_ints(vec![-1]),
        SamplingParams::max_tokens(1),
    );
    let requests = [request(1), bad, request(2), request(3)];
    let work = |response: SampleResponse| match length(&response) {
        2 => panic!("on purpose"),
        other => other,
    };
    let mapped = sampler(&server)
        .sample_batch(requests)
        .in_order()
        .map_parallel(work);
    let results: Vec<_> = mapped.map(|(_, result)| result).collect();
    assert_eq!(results.len(), 4);
    assert_eq!(results[0].as_ref().unwrap(), &1);
    assert!(results[1].is_err(), "{:?}", results[1]);
    let panicked = results[2].as_ref().unwrap_err().to_string();
    assert!(panicked.contains("panicked"), "{panicked}");
    assert_eq!(results[3].as_ref().unwrap(), &3);
}

/// The work on the first result waits for the work on another one. How many results arrive
/// together is another matter every time.
#[test]
fn results_are_taken_while_others_are_worked_on() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: one core, so the pool has one thread");
        return;
    }
    let server = LocalServer::builder().start().unwrap();
    let sampler = sampler(&server);
    for _ in 0..100 {
        let (begun, other) = unbounded();
        let count = AtomicUsize::new(0);
        let work = move |response: SampleResponse| {
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => other.recv_timeout(PATIENCE).expect("others are worked on"),
                _ => begun.send(()).unwrap(),
            }
            length(&response)
        };
        let batch = sampler.sample_batch((0..6).map(|_| request(2)));
        let done = batch.map_parallel(work).filter(|(_, r)| r.is_ok()).count();
        assert_eq!(done, 6);
    }
}

/// Once with the result; then only time passes.
#[test]
fn progress_is_told_while_work_goes_on() {
    let server = LocalServer::builder().start().unwrap();
    let (told, reports) = unbounded();
    let batch = sampler(&server)
        .sample_batch([request(1)])
        .on_progress(move |progress| told.send(progress.succeeded).unwrap());
    let work = move |_| {
        let mut seen = 0;
        while seen < 3 {
            seen += reports.recv_timeout(PATIENCE).expect("another report");
        }
    };
    assert_eq!(batch.map_parallel(work).count(), 1);
}

#[test]
fn no_more_is_pulled_than_the_window_holds() {
    let server = LocalServer::builder().start().unwrap();
    let pulled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pulled);
    let requests = (0..40).map(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        request(1)
    });
    let batch = sampler(&server).sample_batch(requests).with_window(5);
    let mut taken = 0;
    for (_, result) in batch.map_parallel(|response| length(&response)) {
        result.unwrap();
        let ahead = pulled.load(Ordering::SeqCst) - taken;
        assert!(ahead <= 5, "{ahead} pulled and not taken");
        taken += 1;
    }
    assert_eq!(taken, 40);
}
