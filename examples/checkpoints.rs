//! Saving, listing, exporting and downloading weights:
//! `cargo run --release --example checkpoints [FOLDER]`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tinker::client::Save;
use tinker::config::Config;
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ModelInput, SamplingParams, ServiceClient};

fn main() -> anyhow::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or("runs/weights".into()));
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(4).with_seed(1))?;
    let data = [Datum::supervised(&[65, 66], &[67, 68])];
    training
        .train_step(&data, LossFn::CrossEntropy, AdamParams::learning_rate(1e-3))?
        .join()?;

    // One to go on from, kept a day; one to sample from, kept for ever. Both are submitted at once.
    let state = training.save_state(Save::named("step-1").with_ttl(Duration::from_secs(86_400)))?;
    let weights = training.save_weights_for_sampler("step-1")?;
    let (state, weights) = (state.join()?.path, weights.join()?.path.context("no path")?);
    let rest = service.rest();
    for checkpoint in rest.list_checkpoints(training.model_id().as_str())? {
        println!(
            "{} {}",
            checkpoint.checkpoint_type.as_str(),
            checkpoint.tinker_path
        );
    }

    // The two ways on: training with the optimiser as it was, and sampling.
    let resumed = service.create_training_client_from_state_with_optimizer(state)?;
    ensure!(
        resumed.model_id() != training.model_id(),
        "a new run goes on from the old one"
    );
    let sampler = service.create_sampling_client(weights.as_str())?;
    let params = SamplingParams::max_tokens(4).with_temperature(0.0);
    let said = sampler.sample(&ModelInput::from_ints(vec![65, 66]), params)?;
    println!("sampled {:?}", said.sequences[0].tokens.as_slice());

    // Sampler weights are an adapter in PEFT's format, in an archive.
    std::fs::create_dir_all(&folder)?;
    let archive = folder.join("adapter.tar");
    rest.download_checkpoint_archive(weights.as_str(), &archive)?;
    println!(
        "downloaded {} bytes to {}",
        std::fs::metadata(&archive)?.len(),
        archive.display()
    );
    rest.delete_checkpoint(weights.as_str())?;
    let left = rest.list_checkpoints(training.model_id().as_str())?.len();
    println!("{left} checkpoint left");
    Ok(())
}
