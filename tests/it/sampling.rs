//! The sampling client on the embedded server: batches, faults, handles, cancellation.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rayon::prelude::*;
use serde_json::json;
use tinker::client::SamplerSource;
use tinker::local::{Builder, Fault, LocalServer};
use tinker::types::Stop;
use tinker::{
    Error, ModelInput, SampleOptions, SampleRequest, SamplingClient, SamplingParams, ServiceClient,
};

use crate::support::fake::Fake;
use crate::support::local::{base_model, config, service};
use crate::support::scripted::{Gate, Reply};

fn sampler(service: &ServiceClient) -> SamplingClient {
    service.create_sampling_client(base_model(service)).unwrap()
}

/// A request whose answer has a length of its own.
fn request(index: usize) -> SampleRequest {
    let params = SamplingParams::max_tokens(length(index)).with_stop(Stop::never());
    SampleRequest::new(ModelInput::from_ints(vec![104, 105]), params)
}

fn length(index: usize) -> u32 {
    1 + (index % 7) as u32
}

/// How many samples a fault test takes: the issue's number in the long form.
fn count(short: usize, long: usize) -> usize {
    match std::env::var_os("TINKER_TEST_LONG") {
        Some(_) => long,
        None => short,
    }
}

/// Samples a batch and checks that every result came once, for its own request.
fn check_batch(server: &LocalServer, n: usize) {
    let sampler = sampler(&service(server));
    let mut ids = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (index, result) in sampler.sample_batch((0..n).map(request)) {
        let response = result.unwrap_or_else(|error| panic!("{index}: {error}"));
        let sequence = &response.sequences[0];
        assert_eq!(sequence.tokens.len(), length(index) as usize);
        assert!(
            ids.insert(sequence.sequence_id.clone().unwrap()),
            "an id came twice"
        );
        assert!(seen.insert(index), "a result came twice");
    }
    assert_eq!(seen.len(), n);
    let progress = sampler.progress();
    assert_eq!(
        (progress.succeeded, progress.failed, progress.open),
        (n as u64, 0, 0)
    );
}

/// How often each request number was submitted.
fn submissions(server: &LocalServer) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for request in server.requests() {
        if request.endpoint() == "asample" {
            *counts
                .entry(request.json().unwrap()["seq_id"].as_u64().unwrap())
                .or_default() += 1;
        }
    }
    counts
}

fn pollers() -> [Builder; 2] {
    [false, true].map(|poller| {
        LocalServer::builder()
            .flag("sample_use_retrieve_futures", poller)
            .record(true)
    })
}

#[test]
fn threads_without_end_are_as_many_as_are_needed() {
    let server = LocalServer::start().unwrap();
    let config = config(&server).with_max_waiting_threads(usize::MAX);
    let service = ServiceClient::new(config).unwrap();
    let params = SamplingParams::max_tokens(1);
    let prompt = ModelInput::from_ints(vec![104]);
    sampler(&service).sample(&prompt, params).unwrap();
}

#[test]
fn a_batch_gives_every_result_once_with_and_without_the_poller() {
    for builder in pollers() {
        let server = builder.start().unwrap();
        check_batch(&server, 300);
        let counts = submissions(&server);
        assert_eq!(counts.len(), 300);
        assert!(counts.values().all(|count| *count == 1));
        assert_eq!(*counts.keys().next().unwrap(), 0);
    }
}

#[test]
fn a_hook_hears_of_every_result_and_may_panic() {
    let server = LocalServer::builder().start().unwrap();
    let sampler = sampler(&service(&server));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = heard.clone();
    let results = sampler
        .sample_batch((0..20).map(request))
        .on_progress(move |progress| ear.lock().unwrap().push(progress));
    assert_eq!(results.filter(|(_, result)| result.is_ok()).count(), 20);
    let heard = heard.lock().unwrap();
    assert!(heard.len() >= 20, "{} calls", heard.len());
    assert!(heard.is_sorted_by_key(|progress| (progress.succeeded, progress.tokens)));
    let last = heard.last().unwrap();
    assert_eq!((last.succeeded, last.open, last.oldest), (20, 0, None));

    let results = sampler
        .sample_batch((0..20).map(request))
        .on_progress(|_| panic!("on purpose"));
    assert_eq!(results.filter(|(_, result)| result.is_ok()).count(), 20);
}

#[test]
fn faults_of_each_kind_lose_and_repeat_nothing() {
    let n = count(60, 2_000);
    let kinds = |at: &str| {
        vec![
            Fault::status(at, 429).with_header("retry-after-ms", "5"),
            Fault::status(at, 500),
            Fault::dropped_before(at),
            Fault::dropped_after(at),
            Fault::truncated(at),
            Fault::malformed(at),
        ]
    };
    for builder in pollers() {
        for endpoint in ["asample", "retrieve_future", "retrieve_futures"] {
            for fault in kinds(endpoint) {
                let server = builder
                    .clone()
                    .fault(fault.clone().with_rate(0.1, 11))
                    .start()
                    .unwrap();
                check_batch(&server, n);
                // Each sample has one number, whatever happened to its submission.
                assert_eq!(submissions(&server).len(), n, "{fault:?}");
            }
        }
    }
}

#[test]
fn a_lost_promise_is_submitted_again_under_a_new_number() {
    let n = count(60, 2_000);
    for builder in pollers() {
        let fault = Fault::status("retrieve_future", 410).with_rate(0.1, 3);
        let server = builder.fault(fault).start().unwrap();
        check_batch(&server, n);
        let lost = submissions(&server).len() - n;
        assert!(lost > 0 && lost < n, "{lost}");
    }
}

#[test]
fn a_rate_limit_without_a_hint_backs_off_a_second() {
    let n = count(40, 200);
    let fault = Fault::status("asample", 429).with_rate(0.1, 5);
    let server = LocalServer::builder()
        .fault(fault)
        .record(true)
        .start()
        .unwrap();
    check_batch(&server, n);
    assert_eq!(submissions(&server).len(), n);
}

#[test]
fn all_kinds_of_faults_together_lose_nothing() {
    let n = count(200, 10_000);
    let mut builder = LocalServer::builder();
    for (seed, endpoint) in (1..).zip(["asample", "retrieve_future"]) {
        builder = builder
            .fault(
                Fault::status(endpoint, 429)
                    .with_header("retry-after-ms", "5")
                    .with_rate(0.01, seed),
            )
            .fault(Fault::status(endpoint, 500).with_rate(0.01, seed + 10))
            .fault(Fault::dropped_before(endpoint).with_rate(0.01, seed + 20))
            .fault(Fault::dropped_after(endpoint).with_rate(0.01, seed + 30))
            .fault(Fault::truncated(endpoint).with_rate(0.01, seed + 40))
            .fault(Fault::malformed(endpoint).with_rate(0.01, seed + 50));
    }
    let server = builder.start().unwrap();
    check_batch(&server, n);
}

#[test]
fn user_errors_are_items_and_final() {
    let server = LocalServer::builder().record(true).start().unwrap();
    let sampler = sampler(&service(&server));
    let requests = (0..6).map(|index| {
        let mut request = request(index);
        match index {
            2 => request.prompt = ModelInput::from_ints(vec![9_999_999]),
            4 => request.options.params.temperature = -1.0,
            _ => {}
        }
        request
    });
    let results: Vec<_> = sampler.sample_batch(requests).in_order().collect();
    let order: Vec<usize> = results.iter().map(|(index, _)| *index).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    for (index, result) in results {
        match index {
            2 | 4 => assert!(result.unwrap_err().is_user_error()),
            _ => assert!(result.is_ok()),
        }
    }
    // The bad temperature was never sent.
    assert_eq!(
        server
            .requests()
            .iter()
            .filter(|r| r.endpoint() == "asample")
            .count(),
        5
    );
}

#[test]
fn a_batch_pulls_no_further_than_its_window() {
    let server = LocalServer::start().unwrap();
    let sampler = sampler(&service(&server));
    let pulled = AtomicUsize::new(0);
    let requests = (0..50).map(|index| {
        pulled.fetch_add(1, Ordering::Relaxed);
        request(index)
    });
    let mut batch = sampler.sample_batch(requests).with_window(4).in_order();
    for taken in 1..=50 {
        batch.next().unwrap().1.unwrap();
        assert!(pulled.load(Ordering::Relaxed) < taken + 4);
    }
    assert!(batch.next().is_none());
}

#[test]
fn options_reach_the_service_and_come_back() {
    let server = LocalServer::start().unwrap();
    let sampler = sampler(&service(&server));
    let prompt = ModelInput::from_ints(vec![104, 101, 108]);
    let params = SamplingParams::max_tokens(3)
        .with_seed(5)
        .with_stop(Stop::never());
    let options = SampleOptions::from(params)
        .with_num_samples(2)
        .with_prompt_logprobs(true);
    let response = sampler.sample(&prompt, &options).unwrap();
    assert_eq!(response.sequences.len(), 2);
    assert_eq!(response.prompt_logprobs.as_ref().unwrap().len(), 3);
    assert_eq!(response.prompt_logprobs.as_ref().unwrap().get(0), None);
    for sequence in &response.sequences {
        assert_eq!(sequence.logprobs.as_ref().unwrap().len(), 3);
    }
    let again = sampler.sample(&prompt, &options).unwrap();
    assert_eq!(again.sequences[0].tokens, response.sequences[0].tokens);

    let scored: Vec<_> = sampler
        .compute_logprobs_batch((1..=3).map(|n| ModelInput::from_ints(vec![97; n])))
        .map(|(index, result)| (index, result.unwrap().len()))
        .collect();
    assert_eq!(
        scored.into_iter().collect::<BTreeMap<_, _>>(),
        (0..3).map(|i| (i, i + 1)).collect()
    );
}

#[test]
fn refuses_what_cannot_be_sampled_before_sending() {
    let fake = Fake::start();
    let sampler = fake.sampler();
    let prompt = ModelInput::from_ints(vec![1]);
    let options = |params| SampleOptions::from(params);
    let params = SamplingParams::max_tokens(1);
    for (bad, field) in [
        (
            options(params.clone().with_temperature(f64::NAN)),
            "temperature",
        ),
        (options(params.clone().with_top_p(1.5)), "top_p"),
        (options(params.clone()).with_num_samples(0), "num_samples"),
    ] {
        let error = sampler.sample(&prompt, bad).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
    let service = fake.service();
    assert!(
        service
            .create_sampling_client(SamplerSource::weights("x"))
            .is_err()
    );
    assert!(service.create_sampling_client("").is_err());
    assert_eq!(fake.bodies("asample").len(), 0);
}

#[test]
fn a_handle_makes_a_client_of_the_same_sampler_elsewhere() {
    for (join, expected) in [(true, Some(1_000_000_000)), (false, None)] {
        let server = LocalServer::builder()
            .flag("sample_join_sampling_session", join)
            .record(true)
            .start()
            .unwrap();
        let (here, there) = (service(&server), service(&server));
        let original = sampler(&here);
        let handle = original.sampler_handle().unwrap();
        assert!(!handle.contains("tml-test"));
        let clone = there.from_sampler_handle(&handle).unwrap();
        assert_eq!(clone.sampling_session_id(), original.sampling_session_id());
        let request = request(3);
        clone.sample(&request.prompt, request.options).unwrap();
        let number = *submissions(&server).keys().next().unwrap();
        assert!(number >= 1_000_000_000);
        assert!(expected.is_none_or(|expected| number % 1_000_000_000 == expected % 1_000_000_000));
    }
}

#[test]
fn dropping_a_handle_cancels_the_sample_where_the_service_listens() {
    let fake = Fake::start();
    let on = json!({"sample_cancel_enabled": true});
    fake.server
        .always("POST", "/api/v1/client/dynamic_config", Reply::json(&on));
    fake.server
        .always("POST", "/api/v1/cancel_future", Reply::json(&json!({})));
    let sampler = fake.sampler();
    let gate = Gate::new();
    fake.reply(
        "retrieve_future",
        Reply::json(&json!({"type": "try_again"})).after(&gate),
    );
    let prompt = ModelInput::from_ints(vec![1]);
    let pending = sampler
        .submit_sample(&prompt, SamplingParams::max_tokens(4))
        .unwrap();
    gate.wait_for(1);
    let id = pending.request_id().unwrap();
    drop(pending);
    fake.server.wait_until(|requests| {
        requests
            .iter()
            .any(|request| request.path.ends_with("cancel_future"))
    });
    assert_eq!(fake.bodies("cancel_future"), [json!({ "request_id": id })]);
    gate.open();
    // One that is done is not cancelled.
    sampler
        .sample(&prompt, SamplingParams::max_tokens(4))
        .unwrap();
    assert_eq!(fake.bodies("cancel_future").len(), 1);
}

/// A service that says so cannot mean it: the samples would wait for ever.
#[test]
fn none_at_a_time_is_one_at_a_time() {
    let server = LocalServer::builder().flag("sample_max_concurrent_requests", 0);
    let server = server.start().unwrap();
    let sampler = sampler(&service(&server));
    let request = request(1);
    let sample = sampler.submit_sample(&request.prompt, request.options);
    let sampled = sample.unwrap().join_timeout(Duration::from_secs(60));
    sampled.expect("it hangs").unwrap();
}

#[test]
fn a_run_without_any_success_counts_as_stuck() {
    let fake = Fake::start();
    let config = fake.config().with_stuck_after(Duration::from_secs(600));
    let service = fake.client(config);
    let sampler = service.create_sampling_client("some/model").unwrap();
    fake.server
        .always("POST", "/api/v1/asample", Reply::hang_up());
    let prompt = ModelInput::from_ints(vec![1]);
    let error = sampler
        .sample(&prompt, SamplingParams::max_tokens(4))
        .unwrap_err();
    assert!(matches!(error, Error::Connection(_)), "{error}");
    assert!(
        error.to_string().contains("no sample has succeeded"),
        "{error}"
    );
}

#[test]
fn a_killed_server_fails_every_sample() {
    for builder in pollers() {
        let server = builder
            .latency("retrieve_future", Duration::from_secs(5))
            .start()
            .unwrap();
        let sampler = sampler(&service(&server));
        let pending: Vec<_> = (0..50)
            .map(|index| {
                let request = request(index);
                sampler
                    .submit_sample(&request.prompt, request.options)
                    .unwrap()
            })
            .collect();
        drop(server);
        for pending in pending {
            // Those that had been answered succeed; the others end with a typed error.
            if let Err(error) = pending.join() {
                assert!(
                    matches!(error, Error::Connection(_) | Error::Status(_)),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn rayon_callers_are_not_re_entered() {
    let server = LocalServer::start().unwrap();
    let sampler = sampler(&service(&server));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    let lock = Mutex::new(0);
    pool.install(|| {
        (0..20).into_par_iter().for_each(|index| {
            let request = request(index);
            sampler.sample(&request.prompt, request.options).unwrap();
        });
        (0..20).into_par_iter().for_each(|index| {
            let request = request(index);
            let mut count = lock.lock().unwrap();
            sampler.sample(&request.prompt, request.options).unwrap();
            *count += 1;
        });
    });
    assert_eq!(*lock.lock().unwrap(), 20);
}

/// Samples from a given handle, then prints a handle of its own sampler and waits for the end of
/// its input, so that the session lives on meanwhile.
const PYTHON: &str = r#"
import sys, tinker
from tinker import types

url, handle = sys.argv[1:]
prompt = types.ModelInput.from_ints([104, 105])
params = types.SamplingParams(max_tokens=5, seed=3, stop=[])
theirs = tinker.SamplingClient.from_sampler_handle(handle, api_key="tml-test")
answer = theirs.sample(prompt, num_samples=1, sampling_params=params).result()
print(list(answer.sequences[0].tokens), flush=True)

service = tinker.ServiceClient(base_url=url, api_key="tml-test")
model = service.get_server_capabilities().supported_models[0].model_name
ours = service.create_sampling_client(base_model=model)
print(ours.get_sampler_handle(), flush=True)
sys.stdin.read()
"#;

#[test]
fn handles_travel_between_this_sdk_and_python_s() {
    let Some(interpreter) = crate::support::python::interpreter("0.36.0") else {
        return;
    };
    let server = LocalServer::start().unwrap();
    let service = service(&server);
    let sampler = sampler(&service);
    let prompt = ModelInput::from_ints(vec![104, 105]);
    let params = SamplingParams::max_tokens(5)
        .with_seed(3)
        .with_stop(Stop::never());
    let expected = sampler.sample(&prompt, &params).unwrap();
    let mut python = std::process::Command::new(interpreter)
        .args(["-c", PYTHON, &server.base_url()])
        .arg(sampler.sampler_handle().unwrap())
        .env("TINKER_TELEMETRY", "0")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    let tokens: Vec<i32> = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(tokens, expected.sequences[0].tokens.as_slice());
    let handle = lines.next().unwrap().unwrap();
    let clone = service.from_sampler_handle(&handle).unwrap();
    let answer = clone.sample(&prompt, &params).unwrap();
    assert_eq!(answer.sequences[0].tokens, expected.sequences[0].tokens);
    drop(python.stdin.take());
    assert!(python.wait().unwrap().success());
}
