//! How likely a model finds a text, token by token, and what it would rather have said:
//! `cargo run --release --example logprobs [TEXT]`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::config::Config;
use tinker::{ModelInput, SampleOptions, SamplingParams, ServiceClient};

fn main() -> anyhow::Result<()> {
    let text = std::env::args()
        .nth(1)
        .unwrap_or("English: hello\nPig Latin: ellohay".into());
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let sampler = service.create_sampling_client(model)?;
    let tokenizer = sampler.tokenizer()?;
    let tokens = tokenizer.encode(&text)?;
    let prompt = ModelInput::from_ints(tokens.clone());

    // Scores and the likeliest tokens come with one request; it samples a token it has no use for.
    let options = SampleOptions::from(SamplingParams::max_tokens(1))
        .with_prompt_logprobs(true)
        .with_topk_prompt_logprobs(3);
    let scored = sampler.sample(&prompt, options)?;
    let logprobs = scored.prompt_logprobs.context("no log probabilities")?;
    let likeliest = scored.topk_prompt_logprobs.context("no alternatives")?;
    for (place, token) in tokens.iter().enumerate() {
        let Some(logprob) = logprobs.get(place) else {
            continue; // the first token follows nothing
        };
        let (others, _) = likeliest.row(place).unwrap_or_default();
        let others: tinker::Result<Vec<String>> = others
            .iter()
            .map(|other| tokenizer.decode(&[*other]))
            .collect();
        let shown = format!("{:?}", tokenizer.decode(&[*token])?);
        println!("{shown:>12} {logprob:8.3}  rather {:?}", others?);
    }
    let sum: f32 = logprobs.iter().flatten().sum();
    let nats = -sum / (logprobs.len() - 1) as f32;
    println!(
        "perplexity {:.2} over {} tokens",
        nats.exp(),
        logprobs.len() - 1
    );

    // The short form, where only the scores are needed.
    let again: f32 = sampler.compute_logprobs(&prompt)?.iter().flatten().sum();
    println!("log probability {sum:.4}, asked again {again:.4}");
    Ok(())
}
