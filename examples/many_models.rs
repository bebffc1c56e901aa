//! Several models trained at once, each from a thread of its own, over one service client:
//! `cargo run --release --example many_models [MODELS] [STEPS]`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::thread;

use anyhow::Context;
use tinker::config::Config;
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ServiceClient};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let models: i64 = args.next().map_or(Ok(4), |n| n.parse())?;
    let steps: usize = args.next().map_or(Ok(20), |n| n.parse())?;
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    // A sweep: the same data and seed, another learning rate for each.
    let handles: Vec<_> = (0..models)
        .map(|number| {
            let service = service.clone(); // clients are cheap to clone into threads
            thread::spawn(move || train(&service, 5e-4 * 2f64.powi(number as i32), steps))
        })
        .collect();
    let mut best: Option<(f64, f64)> = None;
    for handle in handles {
        let (rate, first, last) = handle.join().expect("the thread does not panic")?;
        println!("learning rate {rate:.0e}: loss {first:.3} -> {last:.3}");
        if best.is_none_or(|(_, loss)| last < loss) {
            best = Some((rate, last));
        }
    }
    let (rate, loss) = best.context("no model")?;
    println!("best: {rate:.0e} with loss {loss:.3}");
    Ok(())
}

/// Trains one model; its learning rate, and its first and last loss.
fn train(service: &ServiceClient, rate: f64, steps: usize) -> anyhow::Result<(f64, f64, f64)> {
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(4).with_seed(1))?;
    let tokenizer = training.tokenizer()?;
    let data = [Datum::supervised(
        &tokenizer.encode("The sky is")?,
        &tokenizer.encode_plain(" green today\n")?,
    )];
    let mut losses = Vec::new();
    for _ in 0..steps {
        let adam = AdamParams::learning_rate(rate);
        let (step, _) = training
            .train_step(&data, LossFn::CrossEntropy, adam)?
            .join()?;
        losses.push(step.loss().context("no loss")?);
    }
    Ok((rate, losses[0], losses[losses.len() - 1]))
}
