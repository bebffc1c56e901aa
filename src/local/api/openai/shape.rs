//! How OpenAI's answers look, whole and in pieces.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
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
    /// What a piece is wrapped in.
    fn envelope(&self, choices: Vec<Value>) -> Value {
        json!({"id": self.id, "object": self.object(true), "created": self.created,
            "model": self.model, "choices": choices})
    }

    fn object(&self, chunk: bool) -> &'static str {
        match (self.style, chunk) {
            (Style::Completion, _) => "text_completion",
            (_, false) => "chat.completion",
            (_, true) => "chat.completion.chunk",
        }
    }

    /// The whole answer, encoded: as a tree its scores would take many times as much.
    pub(super) fn whole(
        &self,
        vocabulary: &Vocabulary,
        choices: &[Choice],
        usage: Usage,
    ) -> serde_json::Result<Vec<u8>> {
        let one = |choice| self.choice(vocabulary, choice);
        serde_json::to_vec(&Whole {
            id: &self.id,
            object: self.object(false),
            created: self.created,
            model: &self.model,
            choices: Each(|| choices.iter().map(one)),
            usage: usage.openai(),
        })
    }

    fn choice<'a>(&self, vocabulary: &'a Vocabulary, choice: &'a Choice) -> WholeChoice<'a> {
        let is_text = self.style == Style::Completion;
        WholeChoice {
            index: choice.index,
            finish_reason: finish(choice),
            logprobs: self.scored(vocabulary, &choice.scores, 0),
            text: is_text.then_some(&choice.text),
            message: (!is_text).then(|| message(&choice.said)),
        }
    }

    /// Log-probabilities, if they were asked for; `offset` letters came before.
    pub(super) fn scores(&self, vocabulary: &Vocabulary, scores: &[Score], offset: usize) -> Value {
        let scored = self.scored(vocabulary, scores, offset);
        // Plain values, which can be encoded.
        serde_json::to_value(scored).unwrap_or_default()
    }

    fn scored<'a>(
        &self,
        vocabulary: &'a Vocabulary,
        scores: &'a [Score],
        offset: usize,
    ) -> Option<Scores<'a>> {
        Some(Scores {
            vocabulary,
            scores,
            offset,
            top: self.logprobs?,
            style: self.style,
        })
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
        let mut last = self.envelope(vec![]);
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
        self.envelope(vec![choice])
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

fn finite(logprob: f32) -> f64 {
    f64::from(if logprob.is_finite() {
        logprob
    } else {
        IMPOSSIBLE
    })
}

/// A whole answer, as it is written.
#[derive(Serialize)]
struct Whole<'a, C> {
    id: &'a str,
    object: &'static str,
    created: i64,
    model: &'a str,
    choices: C,
    usage: Value,
}

#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    finish_reason: &'a str,
    logprobs: Option<Scores<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
}

/// A list whose items are made as they are written.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq((self.0)())
    }
}

/// Tokens and what is known of them, as they are written.
struct Scores<'a> {
    vocabulary: &'a Vocabulary,
    scores: &'a [Score],
    /// How many alternatives.
    top: usize,
    /// How many letters came before.
    offset: usize,
    style: Style,
}

impl Serialize for Scores<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let scores = || self.scores.iter();
        let mut map = to.serialize_map(None)?;
        match self.style {
            // Lists side by side.
            Style::Completion => {
                let spelt = || scores().map(|score| spell(self.vocabulary, score.token).0);
                let offsets = || {
                    spelt().scan(self.offset, |at, text| {
                        Some(std::mem::replace(at, *at + text.chars().count()))
                    })
                };
                let own = |score: &Score| score.logprob.map(finite);
                let others =
                    (self.top > 0).then_some(Each(|| scores().map(|one| self.others(one))));
                map.serialize_entry("tokens", &Each(spelt))?;
                map.serialize_entry("token_logprobs", &Each(|| scores().map(own)))?;
                map.serialize_entry("top_logprobs", &others)?;
                map.serialize_entry("text_offset", &Each(offsets))?;
            }
            // An object for each token.
            _ => {
                let detailed = || scores().map(|score| self.detailed(score));
                map.serialize_entry("content", &Each(detailed))?;
                map.serialize_entry("refusal", &())?;
            }
        }
        map.end()
    }
}

impl Scores<'_> {
    fn others(&self, score: &Score) -> Option<Value> {
        let own = (score.token, score.logprob?);
        let mut found = Map::new();
        // Tokens may share a text: the likeliest stands for them.
        for (token, logprob) in score.top.iter().take(self.top).chain([&own]) {
            let text = spell(self.vocabulary, *token).0;
            found.entry(text).or_insert_with(|| json!(finite(*logprob)));
        }
        Some(Value::Object(found))
    }

    fn detailed(&self, score: &Score) -> Value {
        let one = |token: u32, logprob: f32| {
            let (text, bytes) = spell(self.vocabulary, token);
            json!({"token": text, "logprob": finite(logprob), "bytes": bytes})
        };
        let mut value = one(score.token, score.logprob.unwrap_or_default());
        let alternatives = score.top.iter().take(self.top);
        value["top_logprobs"] = alternatives
            .map(|(token, logprob)| one(*token, *logprob))
            .collect();
        value
    }
}

/// A token's text, and its bytes, which may be half a letter.
fn spell(vocabulary: &Vocabulary, token: u32) -> (String, Vec<u8>) {
    let bytes = vocabulary.decode(&[token]);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}
