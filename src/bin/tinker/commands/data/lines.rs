//! Lines of JSON: conversations, pairs, tokens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Lines as ReadLines};
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::Value;
use tinker::text::{Json, Message};

/// The lines of a file, one by one, that are not empty.
pub(crate) struct Lines(ReadLines<Box<dyn BufRead>>, usize);

impl Lines {
    /// Opens a file; `-` is standard input.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = match file.as_os_str() == "-" {
            true => Box::new(BufReader::new(io::stdin())),
            false => {
                let opened = File::open(file);
                let opened = opened.with_context(|| format!("cannot read {}", file.display()))?;
                Box::new(BufReader::new(opened))
            }
        };
        Ok(Self(reader.lines(), 0))
    }
}

impl Iterator for Lines {
    /// The line's number, from 1, and its text.
    type Item = io::Result<(usize, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.1 += 1;
            match self.0.next()? {
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => return Some(Ok((self.1, line))),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// A conversation: `{"messages": [...], "tools": [...], "prefill": "..."}`, or the messages alone.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Either")]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// With their keys in order, which renderers print.
    pub(crate) tools: Vec<Json>,
    pub(crate) prefill: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Whole {
        messages: Vec<Message>,
        #[serde(default)]
        tools: Option<Vec<Json>>,
        #[serde(default)]
        prefill: Option<String>,
    },
    Messages(Vec<Message>),
}

impl From<Either> for Conversation {
    fn from(either: Either) -> Self {
        match either {
            Either::Whole {
                messages,
                tools,
                prefill,
            } => Self {
                messages,
                tools: tools.unwrap_or_default(),
                prefill,
            },
            Either::Messages(messages) => Self {
                messages,
                tools: Vec::new(),
                prefill: None,
            },
        }
    }
}

impl Conversation {
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        serde_json::from_str(line)
            .context("not a conversation: {\"messages\": [{\"role\": …, \"content\": …}, …]}")
    }
}

/// Reads pairs of answers: `chosen` and `rejected` as conversations, or as texts after `prompt`.
pub(crate) fn read_pairs(file: &Path) -> anyhow::Result<Vec<(Vec<Message>, Vec<Message>)>> {
    #[derive(Deserialize)]
    struct Pair {
        #[serde(default)]
        prompt: Option<Value>,
        chosen: Value,
        rejected: Value,
    }

    fn messages(prompt: Option<&Value>, answer: Value) -> anyhow::Result<Vec<Message>> {
        let mut all: Vec<Message> = match prompt {
            None => Vec::new(),
            Some(Value::String(text)) => vec![Message::user(text)],
            Some(list) => serde_json::from_value(list.clone())?,
        };
        match answer {
            Value::String(text) => all.push(Message::assistant(&text)),
            list => all.extend(serde_json::from_value::<Vec<Message>>(list)?),
        }
        if all.len() < 2 {
            bail!("a pair needs a prompt and an answer");
        }
        Ok(all)
    }

    let mut pairs = Vec::new();
    for line in Lines::open(file)? {
        let (number, line) = line?;
        let place = || format!("{}, line {number}", file.display());
        let pair: Pair = serde_json::from_str(&line).with_context(place)?;
        let prompt = pair.prompt.as_ref();
        let chosen = messages(prompt, pair.chosen).with_context(place)?;
        pairs.push((chosen, messages(prompt, pair.rejected).with_context(place)?));
    }
    Ok(pairs)
}
