//! Learning from preferences: of two answers one is chosen, and the model learns to prefer it.
//! `cargo run --release --example dpo [FOLDER] [STEPS]`

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::config::Config;
use tinker::train::{Bar, Batches, Dpo, Existing, Interrupt, Run};
use tinker::{Datum, ServiceClient};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or("runs/dpo".into());
    let steps: usize = args.next().map_or(Ok(30), |steps| steps.parse())?;
    let (service, rate) = match Config::from_env()?.has_credential() {
        true => (ServiceClient::from_env()?, 1e-5),
        false => (ServiceClient::local_in(format!("{folder}-engine"))?, 2e-3),
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let tokenizer = service.create_sampling_client(model)?.tokenizer()?;

    // The polite answer is chosen over the curt one.
    let words = include_str!("words.txt").split_whitespace().take(160);
    let mut pairs: Vec<Datum> = Vec::new();
    for word in words {
        let prompt = tokenizer.encode(&format!("Say {word}:"))?;
        for answer in [format!(" {word}, please\n"), format!(" no {word}\n")] {
            pairs.push(Datum::supervised(
                &prompt,
                &tokenizer.encode_plain(&answer)?,
            ));
        }
    }
    let mut run = Run::open(&folder, Existing::Resume)?
        .with_logger(Bar::new(std::io::stderr()))
        .with_interrupt(Interrupt::on_ctrl_c()?);
    let report = Dpo::new(model)
        .with_learning_rate(rate)
        .with_epochs(steps.div_ceil(20))
        .with_max_steps(steps)
        .train(&service, &mut run, &Batches::of_pairs(pairs, 8)?)?;
    println!("{report}");
    for plot in report.summary.plots() {
        println!("\n{}", plot.to_text(72, 12));
    }
    Ok(report.close(&service)?)
}
