//! `tinker data view`: examples in colour, and the figures of a file.

use std::path::PathBuf;

use clap::Args;
use console::style;
use serde::Serialize;
use tinker::text::data::Example;
use tinker::text::{Renderer, TrainOnWhat};
use tinker::types::Chunk;

use super::Layout;
use super::lines::{Conversation, Lines};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;

/// Show examples with the tokens that carry loss in colour, and figures of the whole file.
#[derive(Debug, Args)]
pub(crate) struct View {
    #[command(flatten)]
    layout: Layout,
    /// What to train on.
    #[arg(long, value_name = "MODE")]
    train_on: Option<TrainOnWhat>,
    /// How many examples to show.
    #[arg(short, long, default_value_t = 1, value_name = "COUNT")]
    number: usize,
    /// The length at which training would cut.
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// Conversations, a JSON object a line.
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
}

/// What a file comes to.
#[derive(Debug, Default, Serialize)]
struct Figures {
    conversations: usize,
    refused: usize,
    examples: usize,
    tokens_per_epoch: u64,
    loss_tokens_per_epoch: u64,
    longest: usize,
    mean_length: f64,
    truncated: usize,
    /// Lengths that are powers of two, and how many examples are at most so long and longer than
    /// the length before.
    histogram: Vec<(usize, usize)>,
}

impl Figures {
    fn add(&mut self, example: &Example, max_length: Option<usize>) {
        let length = example.weights().len();
        let kept = length.min(max_length.unwrap_or(usize::MAX));
        self.examples += 1;
        self.truncated += usize::from(kept < length);
        self.tokens_per_epoch += kept as u64;
        let carried = |weight: &&f32| **weight != 0.0;
        let loss = example.weights()[..kept].iter().filter(carried).count();
        self.loss_tokens_per_epoch += loss as u64;
        self.longest = self.longest.max(length);
        self.mean_length += (length as f64 - self.mean_length) / self.examples as f64;
        let bucket = length.max(1).next_power_of_two();
        match self
            .histogram
            .binary_search_by_key(&bucket, |entry| entry.0)
        {
            Ok(place) => self.histogram[place].1 += 1,
            Err(place) => self.histogram.insert(place, (bucket, 1)),
        }
    }
}

impl View {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let renderer = self.layout.renderer(context)?;
        let what = self.train_on.unwrap_or_default();
        let mut figures = Figures::default();
        let mut first_problem = None;
        for line in Lines::open(&self.file)? {
            let line = line?;
            let number = line.number;
            figures.conversations += 1;
            let found = line
                .text()
                .and_then(|line| examples(&renderer, &line, what));
            match found.and_then(|examples| some(examples, what)) {
                Ok(examples) => {
                    for example in &examples {
                        if figures.examples < self.number && !context.is_json() {
                            show(context, &renderer, example)?;
                        }
                        figures.add(example, self.max_length);
                    }
                }
                Err(error) => {
                    figures.refused += 1;
                    first_problem.get_or_insert(format!("line {number}: {error:#}"));
                }
            }
        }
        present(context, &figures)?;
        match first_problem {
            None => Ok(()),
            Some(problem) => Err(Failure::new(format!(
                "{} conversation(s) cannot be trained on; the first: {problem}",
                figures.refused
            ))
            .advise("'tinker data check' lists them all.")
            .into()),
        }
    }
}

/// The examples of a line.
pub(crate) fn examples(
    renderer: &Renderer,
    line: &str,
    what: TrainOnWhat,
) -> anyhow::Result<Vec<Example>> {
    let conversation = Conversation::parse(line)?;
    let renderer = match conversation.tools.is_empty() {
        true => renderer.clone(),
        false => renderer.with_tools(&conversation.tools)?,
    };
    Ok(renderer.supervised(&conversation.messages, what)?)
}

fn some(examples: Vec<Example>, what: TrainOnWhat) -> anyhow::Result<Vec<Example>> {
    match examples.is_empty() {
        true => Err(Failure::new(nothing_to_learn(what)).into()),
        false => Ok(examples),
    }
}

pub(crate) fn nothing_to_learn(what: TrainOnWhat) -> String {
    format!("nothing to learn: no token carries loss with {what}")
}

/// An example's text; what carries loss is green, or in brackets where there are no colours.
fn show(context: &mut Context, renderer: &Renderer, example: &Example) -> anyhow::Result<()> {
    // Whether each place carries loss, and its token; an image has none.
    let mut places = Vec::new();
    for chunk in example.input().chunks() {
        match chunk {
            Chunk::EncodedText(said) => places.extend(said.tokens.iter().copied().map(Some)),
            image => places.resize(places.len() + image.length()?, None),
        }
    }
    let carries = example.weights().iter().map(|weight| *weight != 0.0);
    let places: Vec<(bool, Option<i32>)> = carries.zip(places).collect();
    let mut text = String::new();
    for run in places.chunk_by(|one, next| one.0 == next.0 && one.1.is_some() == next.1.is_some()) {
        let tokens: Vec<i32> = run.iter().filter_map(|(_, token)| *token).collect();
        let piece = match tokens.is_empty() {
            true => format!("[image of {} tokens]", run.len()),
            false => renderer.tokenizer().decode(&tokens)?,
        };
        match (run[0].0, terminal::colours()) {
            (false, true) => text.push_str(&style(piece).dim().to_string()),
            (true, true) => text.push_str(&style(piece).green().to_string()),
            (true, false) => text.push_str(&format!("⟦{piece}⟧")),
            (false, false) => text.push_str(&piece),
        }
    }
    context.out.line(&text)?;
    let (all, loss) = (places.len(), example.loss_tokens());
    context
        .out
        .line(&format!("({all} tokens, {loss} with loss)\n"))
}

fn present(context: &mut Context, figures: &Figures) -> anyhow::Result<()> {
    if context.is_json() {
        context.out.json(figures)?;
        return context.out.flush();
    }
    let mut table = Table::properties();
    let share = |part: u64, whole: u64| match whole {
        0 => String::new(),
        _ => format!(" ({:.0} %)", 100.0 * part as f64 / whole as f64),
    };
    let (loss, all) = (figures.loss_tokens_per_epoch, figures.tokens_per_epoch);
    table.row(["Conversations", &figures.conversations.to_string()]);
    table.row(["Examples", &figures.examples.to_string()]);
    table.row(["Tokens per epoch", &all.to_string()]);
    table.row(["With loss", &format!("{loss}{}", share(loss, all))]);
    table.row(["Mean length", &format!("{:.0}", figures.mean_length)]);
    table.row(["Longest", &figures.longest.to_string()]);
    table.row(["Cut off", &figures.truncated.to_string()]);
    context.out.table(&table)?;
    let most = figures.histogram.iter().map(|(_, count)| *count).max();
    for (length, count) in &figures.histogram {
        let bar = "▇".repeat((count * 40).div_ceil(most.unwrap_or(1).max(1)));
        context
            .out
            .line(&format!("  ≤ {length:>6}  {bar} {count}"))?;
    }
    context.out.flush()
}
