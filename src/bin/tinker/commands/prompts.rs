//! Prompts from an argument, a file or standard input: lines of text, or of JSON.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use tinker::text::Message;

use super::sampler::Voice;
use crate::interrupt;

/// Where prompts come from.
#[derive(Debug, Clone, Args)]
pub(crate) struct Source {
    /// Read prompts from this file, a line each, or a JSON object each in a .jsonl file: `prompt`
    /// (text), `messages` (a conversation) or `tokens`, and `id`. `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Lines are JSON whatever the file is called.
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// Put text prompts to the model as a user's message, by its chat template.
    #[arg(long)]
    pub(crate) chat: bool,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prompt {
    /// What the file calls it; otherwise its place, from 0.
    pub(crate) id: Value,
    pub(crate) content: Content,
}

/// What is put to the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Text(String),
    Messages(Vec<Message>),
    Tokens(Vec<i32>),
}

impl Content {
    /// The prompt as it was given, for output and for telling prompts apart.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Messages(messages) => serde_json::to_value(messages).unwrap_or_default(),
            Self::Tokens(tokens) => tokens.clone().into(),
        }
    }

    pub(crate) fn tokens(&self, voice: &Voice, chat: bool) -> anyhow::Result<Vec<i32>> {
        match self {
            Self::Tokens(tokens) => Ok(tokens.clone()),
            Self::Text(text) if chat => voice.encode_chat(&[Message::user(text)]),
            Self::Text(text) => Ok(voice.tokenizer.encode(text)?),
            Self::Messages(messages) => voice.encode_chat(messages),
        }
    }
}

#[derive(Deserialize)]
struct Line {
    id: Option<Value>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    tokens: Option<Vec<i32>>,
}

fn parse(line: &str, index: usize, jsonl: bool) -> anyhow::Result<Prompt> {
    if !jsonl {
        return Ok(Prompt {
            id: index.into(),
            content: Content::Text(line.to_owned()),
        });
    }
    let line: Line = serde_json::from_str(line)?;
    let content = match (line.prompt, line.messages, line.tokens) {
        (Some(text), None, None) => Content::Text(text),
        (None, Some(messages), None) => Content::Messages(messages),
        (None, None, Some(tokens)) => Content::Tokens(tokens),
        _ => bail!("needs one of `prompt`, `messages` and `tokens`"),
    };
    Ok(Prompt {
        id: line.id.unwrap_or_else(|| index.into()),
        content,
    })
}

impl Source {
    /// The prompts, read as they are needed. `None` in the file's place means standard input.
    pub(crate) fn read(
        &self,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Prompt>> + use<>> {
        let from_file = self
            .prompts
            .as_deref()
            .filter(|file| file.as_os_str() != "-");
        let name = from_file.map_or_else(
            || "standard input".into(),
            |file| file.display().to_string(),
        );
        let named_jsonl =
            from_file.is_some_and(|file| file.extension().is_some_and(|end| end == "jsonl"));
        let jsonl = self.jsonl || named_jsonl;
        let reader: Box<dyn BufRead + Send> = match from_file {
            Some(file) => {
                let opened = File::open(file);
                Box::new(BufReader::new(
                    opened.with_context(|| format!("cannot read {name}"))?,
                ))
            }
            None => Box::new(BufReader::new(interrupt::Typed)),
        };
        let lines = reader.lines().enumerate();
        let lines =
            lines.filter(|(_, line)| !line.as_ref().is_ok_and(|line| line.trim().is_empty()));
        Ok(lines.enumerate().map(move |(index, (number, line))| {
            let place = || format!("{name}, line {}", number + 1);
            parse(&line.with_context(place)?, index, jsonl).with_context(place)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts() {
        let text = |line, jsonl| parse(line, 3, jsonl).map(|prompt| (prompt.id, prompt.content));
        let plain = Content::Text("{\"a\"}".into());
        assert_eq!(text("{\"a\"}", false).unwrap(), (3.into(), plain));
        let (id, content) = text(r#"{"id": "x", "prompt": "hi"}"#, true).unwrap();
        assert_eq!((id, content), ("x".into(), Content::Text("hi".into())));
        let (_, content) = text(r#"{"tokens": [1, 2]}"#, true).unwrap();
        assert_eq!(content, Content::Tokens(vec![1, 2]));
        for line in ["{}", r#"{"prompt": "a", "tokens": []}"#, "nonsense"] {
            assert!(text(line, true).is_err(), "{line}");
        }
    }
}
