//! Reinforcement learning with a reward of one's own:
//! `cargo run --release --example rl_arithmetic [FOLDER] [BATCHES]`.
//!
//! The model is asked to continue with the next number; an answer that begins with the right
//! digits is worth 1, one that is a number at all a tenth.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::ServiceClient;
use tinker::config::Config;
use tinker::train::rl::{EnvBatches, Grade, Problem, Rl};
use tinker::train::{Bar, Existing, Interrupt, Run};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or("runs/arithmetic".into());
    let batches: usize = args.next().map_or(Ok(30), |batches| batches.parse())?;
    let (service, rate) = match Config::from_env()?.has_credential() {
        true => (ServiceClient::from_env()?, 4e-5),
        false => (ServiceClient::local_in(format!("{folder}-engine"))?, 3e-3),
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let tokenizer = service.create_sampling_client(model)?.tokenizer()?;

    let problem = |index: usize| {
        let (a, b) = (index % 5, index / 5 % 5);
        let prompt = tokenizer.encode(&format!("{a} + {b} ="))?;
        let problem = Problem::new(&tokenizer, prompt, move |answer| {
            let text = answer.text.trim();
            let number = text.starts_with(|c: char| c.is_ascii_digit());
            let right = text == (a + b).to_string();
            Ok(
                Grade::reward(if right { 1.0 } else { 0.1 * f64::from(number) })
                    .with_metric("correct", f64::from(right)),
            )
        });
        Ok(problem.with_group_size(8).with_stop("\n").into_group())
    };
    let problems: tinker::Result<Vec<_>> = (0..batches * 8).map(problem).collect();
    let mut run = Run::open(&folder, Existing::Resume)?
        .with_logger(Bar::new(std::io::stderr()))
        .with_interrupt(Interrupt::on_ctrl_c()?);
    let report = Rl::new(model, 4).with_learning_rate(rate).train(
        &service,
        &mut run,
        &EnvBatches::new(problems?, 8),
    )?;
    println!("{report}");
    for plot in report.summary.plots() {
        println!("\n{}", plot.to_text(72, 12));
    }
    Ok(report.close(&service)?)
}
