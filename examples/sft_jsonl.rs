//! A file of conversations becomes a trained, evaluated, plotted run that can be resumed:
//! `cargo run --release --example sft_jsonl [FOLDER] [STEPS]`.
//!
//! Interrupt it with Ctrl-C and start it again: it goes on where it was.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::ServiceClient;
use tinker::config::Config;
use tinker::train::{
    Bar, Batches, Conversations, Existing, Interrupt, NllEvaluator, Run, SavePolicy, Supervised,
};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or("runs/chats".into());
    let steps: usize = args.next().map_or(Ok(60), |steps| steps.parse())?;
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local_in(format!("{folder}-engine"))?,
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let renderer = service.create_sampling_client(model)?.renderer()?;

    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl");
    let (train, test) = Conversations::read(file)?.split(32);
    let tokenizer = renderer.tokenizer().clone();
    let test = NllEvaluator::new(test.datums(&renderer, None)?).with_tokenizer(tokenizer);
    let data = Batches::new(train.datums(&renderer, None)?, 32)?;
    let mut run = Run::open(&folder, Existing::Resume)?
        .with_logger(Bar::new(std::io::stderr()))
        .with_interrupt(Interrupt::on_ctrl_c()?);
    let report = Supervised::new(model)
        .with_learning_rate(4e-3)
        .with_epochs(10)
        .with_max_steps(steps)
        .with_save(SavePolicy::every(20))
        .with_eval_every(steps.div_ceil(6))
        .with_evaluator(test)
        .train(&service, &mut run, &data)?;
    println!("{report}");
    for plot in report.summary.plots() {
        println!("\n{}", plot.to_text(72, 12));
    }
    println!("\nplots and metrics are in {folder}");
    Ok(report.close(&service)?)
}
