//! Teaches a small model Pig Latin: `cargo run --release --example quickstart [STEPS]`.
//!
//! Without an API key everything happens in this process, on the embedded engine.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tinker::config::Config;
use tinker::text::Tokenizer;
use tinker::{AdamParams, Datum, LoraConfig, LossFn, Result, SampleRequest, SamplingParams};
use tinker::{ServiceClient, TrainingClient};

fn main() -> anyhow::Result<()> {
    let steps: u64 = std::env::args().nth(1).map_or(Ok(200), |n| n.parse())?;
    let (service, rate) = if Config::from_env()?.has_credential() {
        (ServiceClient::from_env()?, 4e-4)
    } else {
        println!("No API key found: running on the embedded engine.");
        (ServiceClient::local()?, 5e-3)
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(32).with_seed(1))?;
    let tokenizer = training.tokenizer()?;

    // A hundred words are held out: the exam is on words the model never trains on.
    let words: Vec<&str> = include_str!("words.txt").split_whitespace().collect();
    let pairs = words.iter().map(|word| pair(&tokenizer, word));
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    let data: Vec<Datum> = pairs.iter().map(|(q, a)| Datum::supervised(q, a)).collect();
    let (exam, lessons) = data.split_at(100);
    let before = answers(&training, &tokenizer, &pairs[..100])?;
    let loss_before = loss_per_token(&training, exam)?;

    println!("Teaching {model} Pig Latin with {} words.", lessons.len());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}, {eta} left")?;
    let bar = ProgressBar::new(steps).with_style(style);
    let mut dice = fastrand::Rng::with_seed(7);
    for step in 0..steps {
        let pick = |_| lessons[dice.usize(..lessons.len())].clone();
        let batch: Vec<Datum> = (0..64).map(pick).collect();
        let adam = AdamParams::learning_rate(rate * (1.0 - step as f64 / steps as f64));
        // Submit both halves before waiting for either: one round trip instead of two.
        let gradients = training.forward_backward(&batch, LossFn::CrossEntropy)?;
        let update = training.optim_step(adam)?;
        let loss = gradients.join()?.loss().context("no loss")? / batch.len() as f64;
        update.join()?;
        bar.set_message(format!("loss per word {loss:.2}"));
        bar.inc(1);
        if bar.is_hidden() && (step % 50 == 0 || step + 1 == steps) {
            println!("step {:3}: loss per word {loss:.2}", step + 1);
        }
    }
    bar.finish();

    let after = answers(&training, &tokenizer, &pairs[..100])?;
    for ((word, before), after) in words.iter().zip(&before).zip(&after).take(10) {
        println!("{word:10} before: {before:18} after: {after}");
    }
    let right = |(word, said): &(&&str, &String)| pig_latin(word) == **said;
    let score = |said: &[String]| words.iter().zip(said).filter(right).count();
    println!(
        "right: {} % before, {} % after",
        score(&before),
        score(&after)
    );
    let loss_after = loss_per_token(&training, exam)?;
    println!("loss per token: {loss_before:.4} before, {loss_after:.4} after");
    let saved = training.save_state("pig-latin")?;
    println!("saved as {}", saved.join()?.path);
    Ok(())
}

/// Leading consonants move to the end, before "ay".
fn pig_latin(word: &str) -> String {
    let (head, tail) = word.split_at(word.find(['a', 'e', 'i', 'o', 'u']).unwrap_or(0));
    format!("{tail}{}ay", if head.is_empty() { "w" } else { head })
}

/// Tokens of a question and of its answer.
type Pair = (Vec<i32>, Vec<i32>);

fn pair(tokenizer: &Tokenizer, word: &str) -> Result<Pair> {
    let question = tokenizer.encode(&format!("English: {word}\nPig Latin:"))?;
    let answer = tokenizer.encode_plain(&format!(" {}\n", pig_latin(word)))?;
    Ok((question, answer))
}

/// What the model answers now.
fn answers(model: &TrainingClient, tokenizer: &Tokenizer, pairs: &[Pair]) -> Result<Vec<String>> {
    let params = SamplingParams::max_tokens(16).with_temperature(0.0);
    let params = params.with_stop("\n");
    let questions = pairs.iter().map(|(question, _)| question.clone());
    let requests = questions.map(|question| SampleRequest::new(question, &params));
    let sampler = model.save_weights_and_get_sampling_client()?;
    let results = sampler.sample_batch(requests).in_order();
    let tokens = results.map(|(_, result)| Ok(result?.sequences[0].tokens.clone()));
    let texts = tokens.map(|tokens| tokenizer.decode_plain(&tokens?));
    texts.map(|text| Ok(text?.trim().to_owned())).collect()
}

fn loss_per_token(model: &TrainingClient, data: &[Datum]) -> anyhow::Result<f64> {
    let output = model.forward(data, LossFn::CrossEntropy)?.join()?;
    let weights = data
        .iter()
        .filter_map(|datum| datum.input("weights")?.as_f32());
    let tokens: f32 = weights.flatten().sum();
    Ok(output.loss().context("no loss")? / f64::from(tokens))
}
