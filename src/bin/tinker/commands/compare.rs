//! `tinker compare`: what two models say to the same prompts.

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tinker::types::{ModelInput, SampleRequest};

use super::prompts::{Prompt, Source};
use super::sampler::{Params, Voice, connect};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;

/// Put the same prompts to two models.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// A base model's name, or tinker://run-id/sampler_weights/name
    a: String,
    /// The other.
    b: String,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    params: Params,
    /// The tokenizer's folder or its model's name, if not the models' own.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

#[derive(Serialize)]
struct Pair {
    id: Value,
    prompt: Value,
    a: String,
    b: String,
    same: bool,
}

impl Compare {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let prompts = self
            .source
            .read()?
            .collect::<anyhow::Result<Vec<Prompt>>>()?;
        if prompts.is_empty() {
            return Err(Failure::new("there are no prompts")
                .advise("Give a file with --prompts, or lines on standard input.")
                .into());
        }
        let service = connect(context)?;
        let bar = terminal::bar(2 * prompts.len() as u64, terminal::COUNTS).with_prefix("Sampling");
        let mut answers = Vec::new();
        for model in [&self.a, &self.b] {
            let voice = Voice::open(&service, model, self.tokenizer.as_deref())?;
            answers.push(self.answers(&voice, &prompts, &bar)?);
        }
        bar.finish_and_clear();
        let (b, a) = (
            answers.pop().unwrap_or_default(),
            answers.pop().unwrap_or_default(),
        );
        let pairs: Vec<Pair> = prompts
            .into_iter()
            .zip(a.into_iter().zip(b))
            .map(|(prompt, (a, b))| Pair {
                id: prompt.id,
                prompt: prompt.content.to_json(),
                same: a == b,
                a,
                b,
            })
            .collect();
        if context.is_json() {
            return pairs
                .iter()
                .try_for_each(|pair| context.out.json_line(pair));
        }
        let same = pairs.iter().filter(|pair| pair.same).count();
        let title = format!(
            "A: {}\nB: {}\n{same} of {} the same",
            self.a,
            self.b,
            pairs.len()
        );
        let mut table = Table::new(["Prompt", "A", "B"]).titled(title);
        for pair in pairs {
            let prompt = pair.prompt.as_str().map(str::to_owned);
            table.row([
                prompt.unwrap_or_else(|| pair.prompt.to_string()),
                pair.a,
                pair.b,
            ]);
        }
        context.out.table(&table)
    }

    fn answers(
        &self,
        voice: &Voice,
        prompts: &[Prompt],
        bar: &indicatif::ProgressBar,
    ) -> anyhow::Result<Vec<String>> {
        let options = self.params.to_options(1)?;
        let requests = prompts
            .iter()
            .map(|prompt| {
                let tokens = prompt.content.tokens(voice, self.source.chat)?;
                Ok(SampleRequest::new(
                    ModelInput::from_ints(tokens),
                    options.clone(),
                ))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut answers = Vec::new();
        for (_, result) in voice.sampler.sample_batch(requests).in_order() {
            bar.inc(1);
            let response = result?;
            let first = response
                .first()
                .map(|sequence| voice.decode(&sequence.tokens));
            answers.push(first.transpose()?.unwrap_or_default());
        }
        Ok(answers)
    }
}
