//! Prompts from an argument, a file or standard input: lines of text, or of JSON.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use tinker::text::Message;

use super::data::Lines;
use super::sampler::Voice;

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
    /// The prompts, read as they are needed, of standard input where no file is named.
    pub(crate) fn read(
        &self,
    ) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Prompt>> + use<>> {
        let file = self.prompts.clone().unwrap_or_else(|| "-".into());
        let name = file.to_string_lossy();
        let jsonl = self.jsonl || name.ends_with(".jsonl") || name.ends_with(".jsonl.gz");
        let lines = Lines::open(&file)?;
        let name = lines.name().to_owned();
        Ok(lines.enumerate().map(move |(index, line)| {
            let line = line?;
            let place = format!("{name}, line {}", line.number);
            let prompt = line.text().and_then(|line| parse(&line, index, jsonl));
            prompt.context(place)
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
