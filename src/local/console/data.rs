//! A JSONL file as a model would be trained on it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Console, pieces};
use crate::error::{Error, Result};
use crate::local::http::{Refusal, Reply, Request};
use crate::text::data::{Conversation, Pair, Row, Text};
use crate::text::{Example, Renderer, TrainOnWhat};
use crate::wire::request::from_json;

/// What is asked.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// The file's text.
    text: String,
    /// The model's own unless one is named.
    #[serde(default)]
    renderer: Option<String>,
    #[serde(default)]
    train_on: Option<TrainOnWhat>,
    /// The first example to show, and how many.
    #[serde(default)]
    from: usize,
    #[serde(default = "ten")]
    count: usize,
}

fn ten() -> usize {
    10
}

/// What a file comes to.
#[derive(Debug, Default, Serialize)]
struct Report {
    renderer: String,
    note: Option<String>,
    lines: usize,
    examples: usize,
    tokens: usize,
    loss_tokens: usize,
    longest: usize,
    /// Lengths that are powers of two, and how many examples are at most so long and longer than
    /// the length before.
    histogram: Vec<(usize, usize)>,
    shown: Vec<Shown>,
    refused: usize,
    /// The first lines that cannot be trained on, and why.
    problems: Vec<Problem>,
}

/// An example whose text is shown.
#[derive(Debug, Serialize)]
struct Shown {
    line: usize,
    tokens: usize,
    loss_tokens: usize,
    /// Text, weight, and how many tokens stand behind it.
    pieces: Vec<(String, f32, usize)>,
    /// Whether there is more of it.
    cut: bool,
}

#[derive(Debug, Serialize)]
struct Problem {
    line: usize,
    problem: String,
}

/// How much of an example is shown, in tokens.
const MOST_TOKENS: usize = 4096;
const MOST_PROBLEMS: usize = 20;

pub(super) fn render(console: &Console, request: &Request) -> std::result::Result<Reply, Refusal> {
    let bad = |error: Error| Refusal::bad(error.to_string());
    let wanted: Wanted = from_json(&request.body)?;
    let renderer = match wanted.renderer.as_deref() {
        None | Some("") => console.renderer().map_err(bad)?,
        Some(name) => Renderer::named(name, console.tokenizer()).map_err(bad)?,
    };
    Ok(Reply::json(&report(&renderer, &wanted)))
}

fn report(renderer: &Renderer, wanted: &Wanted) -> Report {
    let mut report = Report {
        renderer: renderer.name().to_owned(),
        note: renderer.note().map(str::to_owned),
        ..Report::default()
    };
    let lines = wanted.text.lines().enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        report.lines += 1;
        let what = wanted.train_on.unwrap_or_default();
        let added = examples(renderer, line, what).and_then(|examples| {
            examples
                .iter()
                .try_for_each(|example| report.add(renderer, example, index + 1, wanted))
        });
        if let Err(error) = added {
            report.refused += 1;
            if report.problems.len() < MOST_PROBLEMS {
                let problem = error.to_string();
                report.problems.push(Problem {
                    line: index + 1,
                    problem,
                });
            }
        }
    }
    report
}

/// The examples of a line, by the fields it has.
fn examples(renderer: &Renderer, line: &str, what: TrainOnWhat) -> Result<Vec<Example>> {
    let fields: Value =
        serde_json::from_str(line).map_err(|error| Error::invalid("line", error.to_string()))?;
    let has = |name: &str| fields.get(name).is_some();
    match () {
        () if has("messages") => Conversation::read(line)?.examples(renderer, what),
        () if has("completion") => Pair::read(line)?.examples(renderer, what),
        () if has("text") => Text::read(line)?.examples(renderer, what),
        () => {
            let problem = "must have messages, prompt and completion, or text";
            Err(Error::invalid("line", problem))
        }
    }
}

impl Report {
    fn add(
        &mut self,
        renderer: &Renderer,
        example: &Example,
        line: usize,
        wanted: &Wanted,
    ) -> Result<()> {
        let length = example.weights().len();
        let number = self.examples;
        if number >= wanted.from && number - wanted.from < wanted.count {
            self.shown.push(shown(renderer, example, line)?);
        }
        self.examples += 1;
        self.tokens += length;
        self.loss_tokens += example.loss_tokens();
        self.longest = self.longest.max(length);
        let end = length.max(1).next_power_of_two();
        match self.histogram.binary_search_by_key(&end, |entry| entry.0) {
            Ok(place) => self.histogram[place].1 += 1,
            Err(place) => self.histogram.insert(place, (end, 1)),
        }
        Ok(())
    }
}

fn shown(renderer: &Renderer, example: &Example, line: usize) -> Result<Shown> {
    let ids = example.input().to_ints()?;
    let kept = &ids[..ids.len().min(MOST_TOKENS)];
    let weights = example.weights();
    let pieces = pieces(renderer.tokenizer(), kept)?;
    // A run of tokens with one weight is one piece of the page where each is a byte.
    let pieces = pieces
        .into_iter()
        .map(|piece| (piece.text, weights[piece.tokens.start], piece.tokens.len()));
    Ok(Shown {
        line,
        tokens: ids.len(),
        loss_tokens: example.loss_tokens(),
        pieces: pieces.collect(),
        cut: kept.len() < ids.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Wanted {
        Wanted {
            text: text.to_owned(),
            renderer: None,
            train_on: None,
            from: 0,
            count: 10,
        }
    }

    #[test]
    fn weights_and_problems_are_told_by_line() {
        let renderer = Console::plain(Vec::new()).unwrap().renderer().unwrap();
        let text = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, \
            {\"role\": \"assistant\", \"content\": \"Yé\"}]}\n\nnonsense\n{\"a\": 1}\n\
            {\"text\": \"plain\"}\n";
        let report = report(&renderer, &wanted(text));
        assert_eq!((report.lines, report.examples, report.refused), (4, 2, 2));
        let lines: Vec<usize> = report.problems.iter().map(|p| p.line).collect();
        assert_eq!(lines, [3, 4]);
        assert!(report.problems[1].problem.contains("must have messages"));
        let first = &report.shown[0];
        let trained: String = first
            .pieces
            .iter()
            .filter(|(_, weight, _)| *weight > 0.0)
            .map(|(text, _, _)| text.as_str())
            .collect();
        assert!(trained.starts_with("Yé"), "{trained}");
        assert_eq!(report.histogram.iter().map(|h| h.1).sum::<usize>(), 2);
        assert_eq!(
            first.pieces.iter().map(|p| p.2).sum::<usize>(),
            first.tokens
        );
    }
}
