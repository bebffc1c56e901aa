//! `tinker score` and `tinker logprobs`: how likely a model finds a text.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tinker::types::ModelInput;

use super::sampler::{Voice, connect};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;

/// Show how likely each token of a text is after those before it.
#[derive(Debug, Args)]
pub(crate) struct Logprobs {
    /// A base model's name, or tinker://run-id/sampler_weights/name
    model: String,
    /// The text.
    text: String,
    /// The tokenizer's folder or its model's name, if not the model's own.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

#[derive(Serialize)]
struct Scored {
    id: i32,
    token: String,
    logprob: Option<f32>,
}

impl Logprobs {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let service = connect(context)?;
        let voice = Voice::open(&service, &self.model, self.tokenizer.as_deref())?;
        let ids = voice.tokenizer.encode(&self.text)?;
        let logprobs = voice
            .sampler
            .compute_logprobs(ModelInput::from_ints(ids.clone()))?;
        let scored = ids
            .iter()
            .zip(logprobs.iter())
            .map(|(id, logprob)| {
                Ok(Scored {
                    id: *id,
                    token: voice.tokenizer.decode(&[*id])?,
                    logprob,
                })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        if context.is_json() {
            return context.out.json(&scored);
        }
        let mut table = Table::new(["Id", "Token", "Log probability", "Probability"]);
        for one in scored {
            let percent = |logprob: f32| format!("{:.2} %", f64::from(logprob).exp() * 100.0);
            table.row([
                one.id.to_string(),
                format!("{:?}", one.token),
                one.logprob
                    .map_or_else(String::new, |logprob| format!("{logprob:.4}")),
                one.logprob.map_or_else(String::new, percent),
            ]);
        }
        context.out.table(&table)
    }
}

/// Measure the perplexity of a text file.
#[derive(Debug, Args)]
pub(crate) struct Score {
    /// A base model's name, or tinker://run-id/sampler_weights/name
    model: String,
    /// The text.
    file: PathBuf,
    /// How many tokens the model sees at once, at least 2; the service's limit by default.
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// The tokenizer's folder or its model's name, if not the model's own.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

#[derive(Serialize)]
struct Perplexity {
    tokens: usize,
    scored_tokens: usize,
    bytes: usize,
    mean_logprob: f64,
    perplexity: f64,
    bits_per_byte: f64,
}

impl Score {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        if let Some(tokens @ 0..2) = self.context {
            let problem = format!("--context must be at least 2, got {tokens}");
            return Err(Failure::usage(problem).into());
        }
        let file = self.file.display();
        let text = fs::read_to_string(&self.file).with_context(|| format!("cannot read {file}"))?;
        let service = connect(context)?;
        let voice = Voice::open(&service, &self.model, self.tokenizer.as_deref())?;
        let ids = voice.tokenizer.encode(&text)?;
        if ids.len() < 2 {
            return Err(Failure::new(format!("{file} has too little text to score")).into());
        }
        let window = match self.context {
            Some(tokens) => tokens,
            None => limit(&service, &voice)?,
        };
        let windows: Vec<&[i32]> = windows(&ids, window.max(2)).collect();
        let bar = terminal::bar(windows.len() as u64, terminal::COUNTS).with_prefix("Scoring");
        let inputs: Vec<ModelInput> = windows
            .iter()
            .map(|part| ModelInput::from_ints(part.to_vec()))
            .collect();
        let (mut sum, mut scored) = (0.0, 0);
        for (_, result) in voice.sampler.compute_logprobs_batch(inputs) {
            let known: Vec<f64> = result?.iter().flatten().map(f64::from).collect();
            scored += known.len();
            sum += known.iter().sum::<f64>();
            bar.inc(1);
        }
        bar.finish_and_clear();
        let mean = sum / scored.max(1) as f64;
        let found = Perplexity {
            tokens: ids.len(),
            scored_tokens: scored,
            bytes: text.len(),
            mean_logprob: mean,
            perplexity: (-mean).exp(),
            bits_per_byte: -sum / std::f64::consts::LN_2 / text.len() as f64,
        };
        if context.is_json() {
            return context.out.json(&found);
        }
        let mut table = Table::properties().titled(format!("{file} by {}", self.model));
        table.row(["Tokens", &found.tokens.to_string()]);
        table.row(["Scored", &found.scored_tokens.to_string()]);
        table.row([
            "Mean log probability",
            &format!("{:.4}", found.mean_logprob),
        ]);
        table.row(["Perplexity", &format!("{:.3}", found.perplexity)]);
        table.row(["Bits per byte", &format!("{:.4}", found.bits_per_byte)]);
        context.out.table(&table)
    }
}

/// The longest prompt the service takes for this model, leaving room for the token it samples.
fn limit(service: &tinker::ServiceClient, voice: &Voice) -> anyhow::Result<usize> {
    let base = voice.sampler.base_model()?;
    let models = service.capabilities()?.supported_models;
    let found = models
        .iter()
        .find(|model| model.model_name.as_deref() == Some(&base));
    let length = found.and_then(|model| model.max_context_length);
    Ok(length.map_or(2_048, |length| (length as usize).saturating_sub(1)))
}

/// Stretches of at most `size` tokens. Each begins with the last token of the one before, which
/// is only context there, so that every token but the first is scored once.
fn windows(ids: &[i32], size: usize) -> impl Iterator<Item = &[i32]> {
    let step = size - 1;
    (0..ids.len().saturating_sub(1))
        .step_by(step)
        .map(move |start| &ids[start..ids.len().min(start + size)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_is_scored_once() {
        for (length, size) in [(2, 2), (10, 4), (10, 100), (11, 11), (12, 11)] {
            let ids: Vec<i32> = (0..length).collect();
            let scored: Vec<i32> = windows(&ids, size)
                .flat_map(|part| part[1..].to_vec())
                .collect();
            assert_eq!(scored, ids[1..], "{length} by {size}");
            assert!(windows(&ids, size).all(|part| part.len() <= size));
        }
    }
}
