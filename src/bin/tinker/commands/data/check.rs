//! `tinker data check`: what cannot be trained on, line by line.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tinker::text::{Json, Message, Renderer, TrainOnWhat};

use super::Layout;
use super::lines::{Conversation, Lines};
use super::view::{examples, nothing_to_learn};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;

/// Look for lines that cannot be trained on.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    layout: Layout,
    /// What to train on.
    #[arg(long, value_name = "MODE")]
    train_on: Option<TrainOnWhat>,
    /// Longer examples are a problem.
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// Conversations, a JSON object a line.
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
}

#[derive(Debug, Serialize)]
struct Report {
    conversations: usize,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Problem {
    line: usize,
    problem: String,
}

impl Check {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let renderer = self.layout.renderer(context)?;
        let mut report = Report {
            conversations: 0,
            problems: Vec::new(),
        };
        let mut seen = HashMap::new();
        for line in Lines::open(&self.file)? {
            let line = line?;
            let number = line.number;
            report.conversations += 1;
            let problems = match line.text() {
                Err(error) => vec![format!("{error:#}")],
                Ok(line) => {
                    let mut problems = self.problems(&renderer, &line);
                    if let Some(first) = seen.insert(line, number) {
                        problems.push(format!("the same as line {first}"));
                    }
                    problems
                }
            };
            let found = problems.into_iter().map(|problem| Problem {
                line: number,
                problem,
            });
            report.problems.extend(found);
        }
        present(context, &report)
    }

    fn problems(&self, renderer: &Renderer, line: &str) -> Vec<String> {
        let conversation = match Conversation::parse(line) {
            Ok(conversation) => conversation,
            Err(error) => return vec![format!("{error:#}")],
        };
        let mut problems = Vec::new();
        let messages = &conversation.messages;
        for (index, message) in messages.iter().enumerate() {
            // Tools may well return nothing.
            if matches!(message.role(), "user" | "assistant") && is_empty(message) {
                problems.push(format!(
                    "message {} ({}) is empty",
                    index + 1,
                    message.role()
                ));
            }
        }
        let what = self.train_on.unwrap_or_default();
        match examples(renderer, line, what) {
            Err(error) => problems.push(format!("{error:#}")),
            Ok(examples) => {
                // Of a conversation without an answer there are none.
                if examples.is_empty() {
                    problems.push(nothing_to_learn(what));
                }
                for example in examples {
                    let length = example.weights().len();
                    if example.loss_tokens() == 0 {
                        problems.push(nothing_to_learn(what));
                    }
                    if let Some(most) = self.max_length.filter(|most| length > *most) {
                        problems.push(format!("{length} tokens, more than {most}"));
                    }
                }
            }
        }
        problems
    }
}

/// Whether a message says, shows and calls nothing.
fn is_empty(message: &Message) -> bool {
    let is_other = |part: &Json| {
        let kind = part.get("type").and_then(Json::as_str);
        !matches!(kind, Some("text" | "thinking"))
    };
    let parts = message.get("content").and_then(Json::as_array);
    let shows = parts.is_some_and(|parts| parts.iter().any(is_other));
    let calls = message.tool_calls().is_ok_and(|calls| !calls.is_empty());
    message.text().trim().is_empty() && message.thinking().is_empty() && !calls && !shows
}

fn present(context: &mut Context, report: &Report) -> anyhow::Result<()> {
    if context.is_json() {
        context.out.json(report)?;
    } else if !report.problems.is_empty() {
        let mut table = Table::new(["Line", "Problem"]);
        for problem in &report.problems {
            table.row([problem.line.to_string(), problem.problem.clone()]);
        }
        context.out.table(&table)?;
    } else {
        let count = report.conversations;
        context
            .out
            .line(&format!("{count} conversations, no problem"))?;
    }
    context.out.flush()?;
    match report.problems.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!(
            "{count} problem(s) in {} conversations",
            report.conversations
        ))
        .advise("Mend or remove those lines before training.")
        .into()),
    }
}
