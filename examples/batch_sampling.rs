//! Many prompts at once, with bounded memory and a bar:
//! `cargo run --release --example batch_sampling [PROMPTS]`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use indicatif::ProgressBar;
use tinker::config::Config;
use tinker::{SampleRequest, SamplingParams, ServiceClient};

fn main() -> anyhow::Result<()> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(500), |n| n.parse())?;
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let sampler = service.create_sampling_client(model)?;
    let tokenizer = sampler.tokenizer()?;

    // Prompts are made one by one as the window has room: a million would need no more memory.
    let words: Vec<&str> = include_str!("words.txt").split_whitespace().collect();
    let prompt = |index: u64| {
        let word = words[index as usize % words.len()];
        tokenizer.encode(&format!("English: {word}\nPig Latin:"))
    };
    let prompts = (0..count).map(prompt).collect::<tinker::Result<Vec<_>>>()?;
    let params = SamplingParams::max_tokens(12).with_stop("\n").with_seed(7);
    let requests = prompts
        .into_iter()
        .map(|prompt| SampleRequest::new(prompt, &params));

    let bar = ProgressBar::new(count);
    let shown = bar.clone();
    let results = sampler
        .sample_batch(requests)
        .with_window(64)
        .on_progress(move |progress| {
            shown.set_position(progress.succeeded + progress.failed);
            shown.set_message(format!("{:.0} tokens/s", progress.tokens_per_second));
        });
    let (mut answers, mut tokens, mut failed) = (0, 0, 0);
    for (index, result) in results {
        match result {
            Ok(response) => {
                let said = &response.sequences[0].tokens;
                (answers, tokens) = (answers + 1, tokens + said.len());
                if index < 3 {
                    println!("{}: {}", words[index], tokenizer.decode_plain(said)?.trim());
                }
            }
            // One failure is an item like any other; the batch goes on.
            Err(error) => {
                failed += 1;
                println!("{index}: {error}; to do: {}", error.remedy());
            }
        }
    }
    bar.finish_and_clear();
    println!("{answers} answers, {tokens} tokens, {failed} failed");
    Ok(())
}
