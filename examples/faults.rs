//! Testing your own program against a server that misbehaves:
//! `cargo run --release --example faults`.
//!
//! The embedded server can be told to answer badly. What the client mends by itself your program
//! never sees; what is left is an error that says what to do.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use anyhow::{Context, ensure};
use tinker::config::Config;
use tinker::error::Remedy;
use tinker::local::{Fault, LocalServer};
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ServiceClient};

fn main() -> anyhow::Result<()> {
    let server = LocalServer::start()?;
    let config = Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-test");
    let service = ServiceClient::new(config)?;
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(4).with_seed(1))?;
    let data = [Datum::supervised(&[65, 66], &[67, 68])];
    let step = || {
        let adam = AdamParams::learning_rate(1e-3);
        training
            .train_step(&data, LossFn::CrossEntropy, adam)?
            .join()
    };

    // Passing trouble: a reply that is cut off, a server that is busy, a slow one.
    server.add_fault(Fault::truncated("retrieve_future").with_times(1))?;
    server.add_fault(Fault::status("optim_step", 503).with_times(1))?;
    server.add_fault(Fault::slow("forward_backward", Duration::from_millis(20)))?;
    step()?;
    println!("mended: a truncated reply, a 503, a slow request");
    server.clear_faults();

    // What cannot be mended says what to do, and the model goes on.
    let refused = Fault::status("forward_backward", 400).with_body(r#"{"detail": "too long"}"#);
    server.add_fault(refused.with_times(1))?;
    let error = step().expect_err("a refusal is an error");
    println!("refused: {error}");
    println!("to do: {}", error.remedy());
    ensure!(error.remedy() == Remedy::FixInput && !error.is_retryable());
    step()?;
    println!("the next step went through");
    Ok(())
}
