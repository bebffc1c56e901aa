//! Services that are not there, go away, come back empty, or belong to someone else.

use std::time::Duration;

use serde_json::json;
use tinker::client::RawCall;
use tinker::config::Config;
use tinker::error::{Effect, Remedy};
use tinker::unversioned::Intervals as _;
use tinker::{AdamParams, Error, SamplingClient, SamplingParams, ServiceClient};

use super::{prompt, sample, status};
use crate::support::fake::{Fake, route, train};
use crate::support::logs;
use crate::support::scripted::{Gate, Reply, Server};

fn finishes(fake: &Fake) -> usize {
    fake.server.requests_to("sessions/S1/finish").len()
}

/// Nothing of it was an answer: neither a name nor an address to wait for.
#[test]
fn reach_a_service_that_never_answers_is_given_up_after_the_startup_patience() {
    let fake = Fake::start();
    fake.server.drop_connections(usize::MAX / 2);
    let patience = Duration::from_secs(15);
    let error = fake.service().capabilities().unwrap_err();
    assert!(matches!(error, Error::Connection(_)), "{error}");
    assert!(error.is_retryable());
    assert_eq!(fake.clock.pauses().iter().sum::<Duration>(), patience);
}

#[test]
fn reach_an_unknown_name_is_given_up_after_three_tries() {
    let fake = Fake::start();
    let config = fake.config().with_base_url("http://no-such-host.invalid");
    let error = fake.client(config).capabilities().unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    assert_eq!(fake.clock.pauses().len(), 2);
}

#[test]
fn reach_dropping_the_clients_of_a_dead_server_waits_for_nothing() {
    let fake = Fake::start();
    let config = fake.config().with_close_timeout(Duration::from_secs(3600));
    let service = fake.client(config);
    let training = train(&service);
    let Fake { server, clock } = fake;
    drop(std::sync::Arc::into_inner(server).unwrap());
    // It is tried again and again, and must not be waited for.
    let step = training.optim_step(AdamParams::default()).unwrap();
    while clock.pauses().is_empty() {
        std::thread::yield_now();
    }
    drop(step);
    drop((service, training));
}

#[test]
fn reach_any_close_timeout_is_taken() {
    for close in [true, false] {
        let fake = Fake::start();
        let config = fake.config().with_close_timeout(Duration::MAX);
        let service = fake.client(config);
        let training = train(&service);
        training
            .optim_step(AdamParams::default())
            .unwrap()
            .join()
            .unwrap();
        if close {
            service.close().unwrap();
        }
        drop((service, training));
        assert_eq!(finishes(&fake), 1);
    }
}

#[test]
fn reach_any_refresh_interval_is_taken() {
    let fake = Fake::start();
    let dynamic = json!({"refresh_interval_sec": u64::MAX});
    fake.server.always(
        "POST",
        &route("client/dynamic_config"),
        Reply::json(&dynamic),
    );
    sample(&fake.sampler()).unwrap();
}

fn from_handle(service: &ServiceClient, handle: &str) -> tinker::Result<SamplingClient> {
    service.from_sampler_handle(handle)
}

#[test]
fn reach_a_clone_of_a_sampler_never_ends_its_owners_session() {
    let fake = Fake::start();
    let owner = fake.sampler();
    let clone = from_handle(&fake.service(), &owner.sampler_handle().unwrap()).unwrap();
    sample(&clone).unwrap();
    drop(clone);
    assert_eq!(finishes(&fake), 0);
    sample(&owner).unwrap();
    drop(owner);
    assert_eq!(finishes(&fake), 1);
}

#[test]
fn reach_too_large_a_number_of_a_clone_is_an_error() {
    let fake = Fake::with_flags(json!({"sample_join_sampling_session": true}));
    let counter = json!({"client_counter": u64::MAX, "type": "join_sampling_session"});
    fake.server.always(
        "POST",
        &route("join_sampling_session"),
        Reply::json(&counter),
    );
    let handle = fake.sampler().sampler_handle().unwrap();
    let error = sample(&from_handle(&fake.service(), &handle).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Reply(_)), "{error}");
}

/// Those who wait for a clone's number share the answer, also one that is none.
#[test]
fn reach_a_clone_that_gets_no_number_fails_its_samples_together() {
    const SAMPLES: usize = 20;
    let fake = Fake::with_flags(json!({"sample_join_sampling_session": true}));
    let gate = Gate::new();
    let join = route("join_sampling_session");
    let refusal = status(403).after(&gate);
    fake.server.always("POST", &join, refusal);
    let handle = fake.sampler().sampler_handle().unwrap();
    let service = fake.service();
    let clone = from_handle(&service, &handle).unwrap();
    let params = SamplingParams::max_tokens(1);
    let samples: Vec<_> = (0..SAMPLES)
        .map(|_| clone.submit_sample(&prompt(1), params.clone()).unwrap())
        .collect();
    gate.wait_for(1);
    gate.open();
    for sample in samples {
        assert_eq!(sample.join().unwrap_err().status(), Some(403));
    }
    let asked = fake.server.requests_to(&join).len();
    assert!(asked < SAMPLES, "asked {asked} times for {SAMPLES} samples");
}

#[test]
fn reach_a_handle_does_not_choose_who_receives_the_key() {
    let (mine, other) = (Fake::start(), Fake::start());
    let handle = other.sampler().sampler_handle().unwrap();
    let before = other.server.requests().len();
    let error = from_handle(&mine.service(), &handle).unwrap_err();
    assert!(error.is_user_error(), "{error}");
    assert!(error.to_string().contains("with_handle_origin"), "{error}");
    assert_eq!(other.server.requests().len(), before);
    let config = mine.config().with_handle_origin(other.server.url());
    sample(&from_handle(&mine.client(config), &handle).unwrap()).unwrap();
}

#[test]
fn reach_a_session_that_the_service_ended_is_said_and_takes_nothing_more() {
    logs::capture();
    let fake = Fake::start();
    let beat = Duration::from_secs(10);
    let service = fake.client(fake.config().with_heartbeat_interval(beat));
    let training = train(&service);
    fake.server
        .always("POST", &route("session_heartbeat"), status(410));
    fake.clock.wait_for_rhythms(2);
    fake.clock.advance(beat);
    let error = loop {
        if let Err(error) = training.optim_step(AdamParams::default()) {
            break error;
        }
        std::thread::yield_now();
    };
    assert!(matches!(error, Error::NotSent(_)), "{error}");
    assert_eq!(error.effect(), Effect::None);
    assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint);
    assert!(
        error.to_string().contains("session S1 has ended"),
        "{error}"
    );
    assert!(!logs::with("session S1 has ended").is_empty());
    drop((service, training));
    assert_eq!(finishes(&fake), 0, "there is nothing left to end");
}

#[test]
fn reach_a_scope_says_how_it_ended() {
    let reason = |fake: &Fake| fake.bodies("sessions/S1/finish")[0]["reason"].clone();
    let fake = Fake::start();
    let id = fake.service().scope(|service| service.session_id());
    assert_eq!(id.unwrap().as_str(), "S1");
    let well = reason(&fake);

    let fake = Fake::start();
    let failed: Result<(), String> = fake.service().scope(|service| {
        service.session_id().map_err(|error| error.to_string())?;
        Err("the reward model is gone".to_owned())
    });
    assert_eq!(failed.unwrap_err(), "the reward model is gone");
    let body = fake.bodies("sessions/S1/finish")[0].to_string();
    assert!(body.contains("the reward model is gone"), "{body}");
    assert_ne!(reason(&fake), well);
}

#[test]
fn reach_a_proxy_that_wants_credentials_is_asked_once() {
    let fake = Fake::start();
    let proxy = Server::start();
    proxy.otherwise(|_| Reply::status(407));
    let config = fake
        .config()
        .with_base_url("http://service.invalid")
        .with_proxy(proxy.url());
    let error = fake.client(config).capabilities().unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixSetup, "{error}");
    assert_eq!(proxy.requests().len(), 1);
    fake.check_pauses(&[]);
}

/// A redirect that leads nowhere, in the middle of a run, is an outage like any other.
#[test]
fn reach_a_redirect_in_mid_run_is_borne() {
    let fake = Fake::start();
    let training = fake.training();
    let away = Reply::status(307).with_header("location", "ftp://portal.invalid/login");
    fake.reply("optim_step", away.clone());
    fake.reply("retrieve_future", away);
    training
        .optim_step(AdamParams::default())
        .unwrap()
        .join()
        .unwrap();
    let numbers: Vec<_> = fake.bodies("optim_step");
    assert!(numbers.iter().all(|body| body["seq_id"] == 1));
}

#[test]
fn reach_what_a_service_echoes_shows_no_secret() {
    let fake = Fake::start();
    let config = fake.config().with_header("X-Extra", "header-hunter2");
    let training = train(&fake.client(config));
    let echo = json!({"error": "bad header-hunter2 for tml-secret-key", "category": "user"});
    fake.reply("retrieve_future", Reply::json(&echo));
    let step = training.optim_step(AdamParams::default()).unwrap();
    let error = step.join().unwrap_err();
    let call = RawCall::get("x").with_header("Authorization", "Bearer hunter2");
    let shown = format!("{error} {error:?} {call:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(!shown.contains("tml-secret-key"), "{shown}");
    assert!(shown.contains("bad ***"), "{shown}");
}

#[test]
fn reach_a_missing_key_names_what_there_is_to_do() {
    let config = Config::default().with_base_url("http://127.0.0.1:1");
    let error = ServiceClient::new(config)
        .unwrap()
        .capabilities()
        .unwrap_err();
    assert!(matches!(error, Error::Credentials(_)), "{error}");
    assert!(error.to_string().contains("TINKER_API_KEY"), "{error}");
}

/// Closing waits for nobody who exchanges credentials.
#[test]
fn reach_a_close_does_not_wait_for_an_exchange_of_tokens() {
    let fake = Fake::with_flags(json!({"pjwt_auth_enabled": true}));
    let gate = crate::support::scripted::Gate::new();
    let token = Reply::json(&json!({"jwt": "eyJ.e30.x"}));
    fake.server
        .always("POST", &route("auth/token"), token.clone().after(&gate));
    let config = fake.config().with_close_timeout(Duration::from_millis(200));
    let service = fake.client(config);
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| service.session_id());
        gate.wait_for(1);
        service.close().unwrap();
        assert!(opener.join().unwrap().is_err());
    });
    assert_eq!(gate.waiting(), 1, "it was not the answer that ended it");
    gate.open();
}
