//! Talks with a model in the terminal: `cargo run --release --example chat [WEIGHTS]`.
//!
//! WEIGHTS is a `tinker://` path or a model's name; without it the first model answers. A line
//! is a turn; an empty line ends.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::Context;
use tinker::config::Config;
use tinker::text::{ChatOptions, Message};
use tinker::{ModelInput, SamplingParams, ServiceClient};

fn main() -> anyhow::Result<()> {
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    let source = match std::env::args().nth(1) {
        Some(source) => source,
        None => {
            let models = service.capabilities()?;
            models.model_names().next().context("no model")?.to_owned()
        }
    };
    let sampler = service.create_sampling_client(source.as_str())?;
    let tokenizer = sampler.tokenizer()?;
    let params = SamplingParams::max_tokens(128)
        .with_temperature(0.7)
        .with_top_p(0.9);
    println!("talking with {source}; an empty line ends");
    let mut messages = Vec::new();
    loop {
        print!("> ");
        stdout().flush()?;
        let mut line = String::new();
        stdin().lock().read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        messages.push(Message::user(line.trim()));
        let prompt = tokenizer.encode_chat(&messages, &ChatOptions::prompt())?;
        let answer = sampler.sample(&ModelInput::from_ints(prompt), &params)?;
        let answer = answer.first().context("no answer")?;
        let text = tokenizer.decode_plain(&answer.tokens)?;
        println!("{}", text.trim());
        messages.push(Message::assistant(text.trim()));
    }
    println!("{} turns", messages.len() / 2);
    Ok(())
}
