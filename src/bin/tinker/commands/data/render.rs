//! `tinker data render`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tinker::text::data::Example;
use tinker::text::{Renderer, TrainOnWhat};
use tinker::types::{ModelInput, Stop};

use super::Layout;
use super::lines::{Conversation, Lines};
use crate::context::Context;

/// Turn conversations into tokens.
///
/// A line of output for each line of input: an object with `ids`, `weights`, `text` and `stop`; a
/// list of such objects where one conversation gives several examples; or an object with `error`.
#[derive(Debug, Args)]
pub(crate) struct Render {
    #[command(flatten)]
    layout: Layout,
    /// What to train on: last_assistant_message, last_assistant_turn, all_assistant_messages,
    /// all_messages, all_tokens, all_user_and_system_messages or customized
    #[arg(long, value_name = "MODE", conflicts_with = "prompt")]
    train_on: Option<TrainOnWhat>,
    /// Render what to sample from instead; an assistant's last message, which the model is to
    /// give, is left out.
    #[arg(long)]
    prompt: bool,
    /// Conversations, a JSON object a line: `messages`, and `tools` and `prefill` if need be.
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
}

/// A rendered example.
#[derive(Serialize)]
struct Rendered {
    ids: Vec<i32>,
    weights: Vec<f32>,
    text: String,
    stop: Stop,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    One(Rendered),
    Several(Vec<Rendered>),
    Refused { error: String },
}

impl Render {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let renderer = self.layout.renderer(context)?;
        for line in Lines::open(&self.file)? {
            let conversation = line?.text().and_then(|line| Conversation::parse(&line));
            let rendered =
                conversation.and_then(|conversation| self.render(&renderer, conversation));
            let line = rendered.unwrap_or_else(|error| Line::Refused {
                error: format!("{error:#}"),
            });
            context.out.line(&serde_json::to_string(&line)?)?;
        }
        Ok(())
    }

    fn render(&self, renderer: &Renderer, conversation: Conversation) -> anyhow::Result<Line> {
        let renderer = match conversation.tools.is_empty() {
            true => renderer.clone(),
            false => renderer.with_tools(&conversation.tools)?,
        };
        if self.prompt {
            let mut messages = conversation.messages;
            if messages
                .last()
                .is_some_and(|last| last.role() == "assistant")
            {
                messages.pop();
            }
            let prefill = conversation.prefill.unwrap_or_default();
            let input = renderer.generation_prompt_with(&messages, &prefill)?;
            return Ok(Line::One(rendered(&renderer, &input, None)?));
        }
        let what = self.train_on.unwrap_or_default();
        let examples = renderer.supervised(&conversation.messages, what)?;
        let mut all = examples
            .iter()
            .map(|example: &Example| rendered(&renderer, example.input(), Some(example.weights())))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(match all.len() {
            1 => Line::One(all.remove(0)),
            _ => Line::Several(all),
        })
    }
}

/// A prompt carries no loss.
fn rendered(
    renderer: &Renderer,
    input: &ModelInput,
    weights: Option<&[f32]>,
) -> anyhow::Result<Rendered> {
    let ids = input.to_ints()?;
    Ok(Rendered {
        text: renderer.tokenizer().decode(&ids)?,
        weights: weights.map_or_else(|| vec![0.0; ids.len()], <[f32]>::to_vec),
        ids,
        stop: renderer.stop(),
    })
}
