//! Clients of an embedded server, and data for them.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

use tinker::config::Config;
use tinker::local::LocalServer;
use tinker::unversioned::Clock;
use tinker::{Datum, LoraConfig, ModelInput, ServiceClient, TrainingClient};

pub(crate) fn config(server: &LocalServer) -> Config {
    Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-test")
        .with_telemetry(false)
}

/// A client whose pauses are recorded instead of slept through.
pub(crate) fn service(server: &LocalServer) -> ServiceClient {
    tinker::unversioned::client_with_clock(config(server), Clock::recorded()).unwrap()
}

pub(crate) fn base_model(service: &ServiceClient) -> String {
    let models = service.capabilities().unwrap().supported_models;
    models[0].model_name.clone().unwrap()
}

pub(crate) fn train(service: &ServiceClient) -> TrainingClient {
    service
        .create_lora_training_client(&base_model(service), LoraConfig::rank(2).with_seed(1))
        .unwrap()
}

/// A datum of `length` tokens, so that results can be told apart.
pub(crate) fn datum(length: usize) -> Datum {
    let tokens: Vec<i32> = (0..length).map(|i| 97 + (i % 20) as i32).collect();
    let targets: Vec<i64> = (0..length).map(|i| 98 + (i % 20) as i64).collect();
    Datum::new(ModelInput::from_ints(tokens))
        .with_target_tokens(targets)
        .with_weights(vec![1.0f32; length])
}
