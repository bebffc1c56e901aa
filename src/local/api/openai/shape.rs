//! How OpenAI's answers look, whole and in pieces.

use serde_json::{Map, Value, json};

use super::Style;
use super::speech::Said;
use crate::local::work::vocabulary::Vocabulary;

/// What log-probability OpenAI writes for what cannot be.
const IMPOSSIBLE: f32 = -9999.0;

/// How answers to one request look.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) style: Style,
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: i64,
    pub(super) include_usage: bool,
    /// How many alternatives, if log-probabilities were asked for.
    pub(super) logprobs: Option<usize>,
}

/// One token of an answer or of an echoed prompt.
#[derive(Debug, Clone)]
pub(super) struct Score {
    pub(super) token: u32,
    /// None for a prompt's first token.
    pub(super) logprob: Option<f32>,
    pub(super) top: Vec<(u32, f32)>,
}

/// A finished sample.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) index: usize,
    pub(super) said: Said,
    /// All of it, as text.
    pub(super) text: String,
    /// Of the echoed prompt, if there is one, then of the answer.
    pub(super) scores: Vec<Score>,
    pub(super) tokens: usize,
    pub(super) reason: &'static str,
    /// The stop string that ended it.
    pub(super) stop: Option<String>,
}

/// How many tokens were read and written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
}

impl Usage {
    fn openai(self) -> Value {
        let Self { prompt, completion } = self;
        json!({"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion})
    }
}

impl Shape {
    fn envelope(&self, chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.style, chunk) {
            (Style::Completion, _) => "text_completion",
            (_, false) => "chat.completion",
            (_, true) => "chat.completion.chunk",
        };
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices})
    }

    /// The whole answer.
    pub(super) fn whole(&self, vocabulary: &Vocabulary, choices: &[Choice], usage: Usage) -> Value {
        let choices = choices.iter().map(|choice| self.choice(vocabulary, choice));
        let mut answer = self.envelope(false, choices.collect());
        answer["usage"] = usage.openai();
        answer
    }

    fn choice(&self, vocabulary: &Vocabulary, choice: &Choice) -> Value {
        let scores = self.scores(vocabulary, &choice.scores, 0);
        let mut value = json!({"index": choice.index, "finish_reason": finish(choice),
            "logprobs": scores});
        match self.style {
            Style::Completion => value["text"] = json!(choice.text),
            _ => value["message"] = message(&choice.said),
        }
        value
    }

    /// Log-probabilities, if they were asked for; `offset` letters came before.
    pub(super) fn scores(&self, vocabulary: &Vocabulary, scores: &[Score], offset: usize) -> Value {
        match (self.logprobs, self.style) {
            (None, _) => Value::Null,
            (Some(top), Style::Completion) => listed(vocabulary, scores, top, offset),
            (Some(top), _) => detailed(vocabulary, scores, top),
        }
    }

    /// The first piece of a choice: who speaks, and nothing else.
    pub(super) fn first(&self, index: usize) -> Option<Value> {
        let role = json!({"role": "assistant", "content": ""});
        (self.style == Style::Chat).then(|| self.piece(index, role, Value::Null, None))
    }

    /// What was said since, with the scores of its tokens.
    pub(super) fn delta(&self, index: usize, text: &str, said: &Said, scores: Value) -> Value {
        match self.style {
            Style::Completion => self.piece(index, json!(text), scores, None),
            _ => {
                let mut delta = Map::new();
                if !said.reasoning.is_empty() {
                    delta.insert("reasoning_content".into(), json!(said.reasoning));
                }
                if !said.content.is_empty() {
                    delta.insert("content".into(), json!(said.content));
                }
                if !said.calls.is_empty() {
                    let calls = said.calls.iter().enumerate().map(|(index, call)| {
                        let mut call = call.openai();
                        call["index"] = json!(index);
                        call
                    });
                    delta.insert("tool_calls".into(), calls.collect());
                }
                self.piece(index, Value::Object(delta), scores, None)
            }
        }
    }

    /// The last piece of a choice: why it ended.
    pub(super) fn last(&self, choice: &Choice) -> Value {
        let nothing = match self.style {
            Style::Completion => json!(""),
            _ => json!({}),
        };
        self.piece(choice.index, nothing, Value::Null, Some(finish(choice)))
    }

    /// The piece that says how many tokens it was.
    pub(super) fn usage(&self, usage: Usage) -> Option<Value> {
        let mut last = self.envelope(true, vec![]);
        last["usage"] = usage.openai();
        self.include_usage.then_some(last)
    }

    fn piece(&self, index: usize, new: Value, scores: Value, reason: Option<&str>) -> Value {
        let field = match self.style {
            Style::Completion => "text",
            _ => "delta",
        };
        let mut choice = json!({"index": index, "finish_reason": reason, "logprobs": scores});
        choice[field] = new;
        self.envelope(true, vec![choice])
    }
}

fn finish(choice: &Choice) -> &str {
    match choice.said.calls.is_empty() {
        true => choice.reason,
        false => "tool_calls",
    }
}

fn message(said: &Said) -> Value {
    let mut message = json!({"role": "assistant", "content": said.content});
    if !said.reasoning.is_empty() {
        message["reasoning_content"] = json!(said.reasoning);
    }
    if !said.calls.is_empty() {
        let calls = said.calls.iter().map(super::speech::ToolUse::openai);
        message["tool_calls"] = calls.collect();
        if said.content.is_empty() {
            message["content"] = Value::Null;
        }
    }
    message
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob
    } else {
        IMPOSSIBLE
    }
}

/// As completions have them: lists side by side.
fn listed(vocabulary: &Vocabulary, scores: &[Score], top: usize, offset: usize) -> Value {
    let spelt: Vec<String> = scores
        .iter()
        .map(|score| spell(vocabulary, score.token).0)
        .collect();
    let mut at = offset;
    let offsets: Vec<usize> = spelt
        .iter()
        .map(|text| {
            let here = at;
            at += text.chars().count();
            here
        })
        .collect();
    let logprobs: Vec<Option<f32>> = scores.iter().map(|one| one.logprob.map(finite)).collect();
    let alternatives = scores.iter().map(|score| {
        let own = score.logprob?;
        let mut found = Map::new();
        // Tokens may share a text: the likeliest stands for them.
        for (token, logprob) in score.top.iter().take(top) {
            let text = spell(vocabulary, *token).0;
            found.entry(text).or_insert_with(|| json!(finite(*logprob)));
        }
        let text = spell(vocabulary, score.token).0;
        found.entry(text).or_insert_with(|| json!(finite(own)));
        Some(Value::Object(found))
    });
    let alternatives: Option<Vec<Option<Value>>> = (top > 0).then(|| alternatives.collect());
    json!({"tokens": spelt, "token_logprobs": logprobs, "top_logprobs": alternatives,
        "text_offset": offsets})
}

/// As chats have them: an object for each token.
fn detailed(vocabulary: &Vocabulary, scores: &[Score], top: usize) -> Value {
    let one = |token: u32, logprob: f32| {
        let (text, bytes) = spell(vocabulary, token);
        json!({"token": text, "logprob": finite(logprob), "bytes": bytes})
    };
    let content = scores.iter().map(|score| {
        let mut value = one(score.token, score.logprob.unwrap_or_default());
        let alternatives = score.top.iter().take(top);
        value["top_logprobs"] = alternatives
            .map(|(token, logprob)| one(*token, *logprob))
            .collect();
        value
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// A token's text, and its bytes, which may be half a letter.
fn spell(vocabulary: &Vocabulary, token: u32) -> (String, Vec<u8>) {
    let bytes = vocabulary.decode(&[token]);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}
