//! A teacher's judgement instead of a reward: on-policy distillation.
//! `cargo run --release --example distill [FOLDER] [BATCHES]`
//!
//! A teacher is trained on a habit first. The student then answers prompts by itself, and learns
//! from how likely the teacher finds each of its tokens.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::config::Config;
use tinker::text::data::KlPenalty;
use tinker::train::rl::{EnvBatches, Grade, Problem, Rl};
use tinker::train::{Bar, Existing, Interrupt, Run, RunReader};
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ServiceClient};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or("runs/distill".into());
    let batches: usize = args.next().map_or(Ok(20), |batches| batches.parse())?;
    let (service, rate) = match Config::from_env()?.has_credential() {
        true => (ServiceClient::from_env()?, 1e-4),
        false => (ServiceClient::local_in(format!("{folder}-engine"))?, 3e-3),
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(8).with_seed(1))?;
    let tokenizer = training.tokenizer()?;

    let words: Vec<&str> = include_str!("words.txt")
        .split_whitespace()
        .take(64)
        .collect();
    let mut lessons = Vec::new();
    for word in &words {
        let prompt = tokenizer.encode(&format!("Shout {word}:"))?;
        let answer = tokenizer.encode_plain(&format!(" {}\n", word.to_uppercase()))?;
        lessons.push(Datum::supervised(&prompt, &answer));
    }
    for _ in 0..30 {
        let adam = AdamParams::learning_rate(5e-3);
        training
            .train_step(&lessons, LossFn::CrossEntropy, adam)?
            .join()?;
    }
    let teacher = training.save_weights_for_sampler("teacher")?.join()?.path;
    let teacher = teacher.context("the teacher has no path")?;

    // Questions without a reward: the teacher's judgement is all there is.
    let mut questions = Vec::new();
    for index in 0..batches * 8 {
        let prompt = tokenizer.encode(&format!("Shout {}:", words[index % words.len()]))?;
        let question = Problem::new(&tokenizer, prompt, |_| Ok(Grade::reward(0.0)));
        questions.push(question.with_group_size(4).with_stop("\n").into_group());
    }
    let mut run = Run::open(&folder, Existing::Delete)?
        .with_logger(Bar::new(std::io::stderr()))
        .with_interrupt(Interrupt::on_ctrl_c()?);
    let penalty = KlPenalty {
        coefficient: 1.0,
        discount: 0.0,
    };
    let report = Rl::new(model, 8)
        .with_learning_rate(rate)
        .with_teacher(penalty, teacher.as_str())
        .train(&service, &mut run, &EnvBatches::new(questions, 8))?;
    println!("{report}");
    let distance = RunReader::open(&folder)?.curve("teacher_kl");
    let (first, last) = (distance[0].1, distance[distance.len() - 1].1);
    println!("distance from the teacher: {first:.3} nats per token before, {last:.3} after");
    Ok(report.close(&service)?)
}
