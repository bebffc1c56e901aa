//! A run that is broken off goes on as if it had not been: `cargo run --release --example resume`.
//!
//! Trains once without interruption, and once in two parts in another folder; then compares the
//! two loss curves step by step. Argument: a folder to work in.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::{Context, ensure};
use tinker::config::Config;
use tinker::train::{
    Batches, Existing, Interrupt, Logger, Model, Outcome, Report, Row, Run, RunReader, Supervised,
};
use tinker::{Datum, LoraConfig, ServiceClient};

/// Stands for a person who presses Ctrl-C after a few steps.
struct Impatient(Interrupt);

impl Logger for Impatient {
    fn metrics(&mut self, step: usize, _row: &Row) {
        if step == 3 {
            self.0.set();
        }
    }
}

fn main() -> anyhow::Result<()> {
    let root = std::env::args().nth(1).unwrap_or("runs/resume".into());
    let connect = || match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env(),
        false => ServiceClient::local_in(format!("{root}/engine")),
    };
    let whole = train(
        &connect()?,
        Run::open(format!("{root}/whole"), Existing::Delete)?,
    )?;
    ensure!(whole.outcome == Outcome::Completed);

    let interrupt = Interrupt::new();
    let service = connect()?;
    let run = Run::open(format!("{root}/parts"), Existing::Delete)?;
    let run = run
        .with_logger(Impatient(interrupt.clone()))
        .with_interrupt(interrupt);
    let part = train(&service, run)?;
    ensure!(part.outcome == Outcome::Interrupted);
    part.close(&service)?; // the service hears that the session was interrupted
    drop(service);
    println!("interrupted; starting again");
    train(
        &connect()?,
        Run::open(format!("{root}/parts"), Existing::Resume)?,
    )?;

    let curve = |name: &str| -> tinker::Result<Vec<(f64, f64)>> {
        Ok(RunReader::open(format!("{root}/{name}"))?.curve("train_mean_nll"))
    };
    let (whole, parts) = (curve("whole")?, curve("parts")?);
    let mut worst: f64 = 0.0;
    for (a, b) in whole.iter().zip(&parts) {
        println!(
            "step {:2}: {:.6} in one go, {:.6} in two parts",
            a.0, a.1, b.1
        );
        worst = worst.max((a.1 - b.1).abs());
    }
    ensure!(whole.len() == parts.len(), "each step is there once");
    println!("largest difference: {worst:e}");
    Ok(())
}

fn train(service: &ServiceClient, mut run: Run) -> anyhow::Result<Report> {
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let tokenizer = service.create_sampling_client(model)?.tokenizer()?;
    let mut data = Vec::new();
    for word in include_str!("words.txt").split_whitespace().take(64) {
        let prompt = tokenizer.encode(&format!("Repeat {word}:"))?;
        data.push(Datum::supervised(
            &prompt,
            &tokenizer.encode_plain(&format!(" {word}\n"))?,
        ));
    }
    let model = Model::new(model).with_lora(LoraConfig::rank(8).with_seed(1));
    let settings = Supervised::new(model).with_learning_rate(2e-3);
    Ok(settings.train(service, &mut run, &Batches::new(data, 8)?)?)
}
