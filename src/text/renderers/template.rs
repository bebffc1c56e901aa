//! A renderer from a model's own chat template.
//!
//! A template lays out whole conversations, so what belongs to a message is found by comparing
//! prefixes: the prompt for a message must be how the conversation that ends with it starts.
//! Where that does not hold the template may still say itself, by `{% generation %}` blocks,
//! where the model speaks. Where it does neither, nothing could be trained that matches what is
//! sampled, and the message is refused.

use super::super::chat::ChatOptions;
use super::super::data::Example;
use super::super::json::{Json, Style};
use super::super::message::{Content, Message, ToolCall};
use super::super::space::Strip;
use super::super::tokenizer::Tokenizer;
use super::layout::{Codec, check_flags};
use super::qwen3::blocks;
use super::reply::{Reply, until_stop};
use super::{Parsed, Termination, TrainOnWhat};
use crate::error::{Error, Result};
use crate::types::{Chunk, ModelInput};

pub(super) struct Template {
    /// The token that ends the model's turn.
    pub(super) stop: String,
    /// What ends the turns of others. Some templates end the model's with it too, once another
    /// turn follows: gpt-oss.
    other_end: String,
    /// Whether arguments of calls are values, which the template writes, and not their text.
    takes_values: bool,
}

impl Template {
    /// # Errors
    ///
    /// If the tokenizer has no template, or no token that ends a turn.
    pub(super) fn new(codec: &Codec) -> Result<Self> {
        let tokenizer = &codec.tokenizer;
        let (asked, said) = (mark(), mark());
        let probe = [Message::user(&asked), Message::assistant(&said)];
        let text = tokenizer.render_chat(&probe, &ChatOptions::transcript())?;
        let specials = tokenizer.special_tokens();
        let token_after = |mark: &str| {
            let after = text
                .rsplit_once(mark)
                .map_or("", |(_, after)| after)
                .strip();
            let tokens = specials.iter().map(|(_, token)| token.as_str());
            tokens
                .filter(|token| after.starts_with(token))
                .max_by_key(|token| token.len())
        };
        // The token after an answer ends it; the model's own end is the usual one.
        let eos = tokenizer.special_token("eos_token").unwrap_or_default();
        let stop = token_after(&said).unwrap_or(eos).to_owned();
        if stop.is_empty() {
            let problem = "names no token that ends the model's turn";
            return Err(Error::invalid("tokenizer", problem));
        }
        codec.token(&stop)?;
        let other_end = token_after(&asked).unwrap_or(&stop).to_owned();
        Ok(Self {
            stop,
            other_end,
            takes_values: takes_values(tokenizer),
        })
    }

    /// The messages in the shape templates know.
    fn shaped(&self, messages: &[Message]) -> Vec<Message> {
        let each = messages.iter();
        each.map(|message| message.for_template(self.takes_values))
            .collect()
    }

    /// What the model sampled for a message, if it did, with the stop where it was cut off.
    fn sampled(&self, codec: &Codec, message: &Message) -> Result<Option<Vec<i32>>> {
        let Some(tokens) = sampled(message) else {
            return Ok(None);
        };
        let stop = codec.token(&self.stop)?;
        let missing = tokens.last() != Some(&stop);
        let close = missing.then_some(stop).into_iter();
        Ok(Some(tokens.iter().copied().chain(close).collect()))
    }

    fn text(&self, codec: &Codec, messages: &[Message], call: Call<'_>) -> Result<String> {
        let options = match call.prompt {
            true => ChatOptions::prompt(),
            false => ChatOptions::transcript(),
        };
        let options = with_tools(options, call.tools)?;
        codec.tokenizer.render_chat(messages, &options)
    }

    pub(super) fn prompt(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        prefill: &str,
    ) -> Result<ModelInput> {
        let messages = &self.shaped(messages)[..];
        let turns: Vec<usize> = (0..messages.len())
            .filter(|&index| sampled(&messages[index]).is_some())
            .collect();
        let ends = turns.iter().skip(1).copied().chain([messages.len()]);
        let first = turns.first().copied().unwrap_or(messages.len());
        let text = self.text(codec, &messages[..first], Call::prompt(tools))?;
        let mut chunks = vec![codec.tokenizer.encode_plain(&text)?];
        // Turns the model sampled stand as it sampled them.
        for (&index, end) in turns.iter().zip(ends) {
            chunks.extend(self.sampled(codec, &messages[index])?);
            let text = self.after_turn(codec, tools, &messages[..end], index)?;
            chunks.push(codec.tokenizer.encode_plain(&text)?);
        }
        chunks.push(codec.tokenizer.encode_plain(prefill)?);
        let chunks = chunks.into_iter().filter(|tokens| !tokens.is_empty());
        Ok(ModelInput::from_chunks(
            chunks.map(Chunk::tokens).collect::<Vec<_>>(),
        ))
    }

    /// What of the prompt comes after a turn of the model's.
    ///
    /// Templates may lay out the same turn in another way once others follow, so the turn is
    /// found by a mark in place of what it says; one that leaves the mark out must at least
    /// lay out the turn as it did when it was the last.
    fn after_turn(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        index: usize,
    ) -> Result<String> {
        let mark = mark();
        let mut marked = messages.to_vec();
        for (place, message) in marked.iter_mut().enumerate() {
            if place == index {
                *message = message.clone().with("content", &mark);
            } else if sampled(message).is_some() {
                // Its tokens stand for it; the template may even refuse it.
                *message = message.clone().with("content", self::mark());
            }
        }
        let last = self.text(codec, &marked[..=index], Call::transcript(tools))?;
        let later = self.text(codec, &marked, Call::prompt(tools))?;
        let found = after(&last, &mark).zip(after(&later, &mark));
        if let Some(rest) = found.and_then(|(last, later)| self.after_stop(last, later)) {
            return Ok(rest.to_owned());
        }
        let before = self.text(codec, &messages[..index], Call::prompt(tools))?;
        let last = self.text(codec, &messages[..=index], Call::transcript(tools))?;
        let later = self.text(codec, messages, Call::prompt(tools))?;
        let found = last.strip_prefix(&before).zip(later.strip_prefix(&before));
        let rest = found.and_then(|(last, later)| self.after_stop(last, later));
        rest.map(str::to_owned)
            .ok_or_else(|| not_a_prefix(index + 1))
    }

    /// What follows a turn of the model's, from how the turn ends when it is the last.
    fn after_stop<'a>(&self, last: &str, later: &'a str) -> Option<&'a str> {
        let Some(end) = last.rfind(&self.stop) else {
            let rest = later.strip_prefix(last)?;
            return Some(rest.strip_prefix(&self.stop).unwrap_or(rest));
        };
        let rest = later.strip_prefix(&last[..end])?;
        rest.strip_prefix(&self.stop)
            .or_else(|| rest.strip_prefix(&self.other_end))
    }

    /// One example for each message to train on.
    pub(super) fn examples(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        what: TrainOnWhat,
    ) -> Result<Vec<Example>> {
        check(messages, what)?;
        let messages = &self.shaped(messages)[..];
        let user = messages
            .iter()
            .rposition(|message| message.role() == "user");
        let first = match what {
            TrainOnWhat::LastAssistantMessage => messages.len().saturating_sub(1),
            TrainOnWhat::LastAssistantTurn => user.map_or(0, |user| user + 1),
            TrainOnWhat::AllAssistantMessages | TrainOnWhat::Customized => 0,
            _ => return Ok(vec![self.example(codec, tools, messages, what)?]),
        };
        let flag = |m: &Message| matches!(m.get("trainable"), Some(Json::Bool(true)));
        let mut examples = Vec::new();
        for index in first..messages.len() {
            let wanted = what != TrainOnWhat::Customized || flag(&messages[index]);
            if messages[index].role() == "assistant" && wanted {
                match self.target(codec, tools, messages, index) {
                    Ok(example) => examples.push(example),
                    Err(problem) => {
                        let whole = self.by_spans(codec, tools, messages, what, problem)?;
                        return Ok(vec![whole]);
                    }
                }
            }
        }
        Ok(examples)
    }

    /// The prompt for a message, and then the message with weight.
    fn target(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        index: usize,
    ) -> Result<Example> {
        let prompt = self.prompt(codec, tools, &messages[..index], "")?;
        let given = prompt.length()?;
        let tokens = match self.sampled(codec, &messages[index])? {
            Some(tokens) => tokens,
            None => {
                let before = self.text(codec, &messages[..index], Call::prompt(tools))?;
                let whole = self.text(codec, &messages[..=index], Call::transcript(tools))?;
                let said = whole
                    .strip_prefix(&before)
                    .ok_or_else(|| not_a_prefix(index))?;
                codec.tokenizer.encode_plain(self.turn(said).0)?
            }
        };
        let mut weights = vec![0.0; given];
        weights.resize(given + tokens.len(), 1.0);
        Example::new(prompt.append_ints(tokens), weights)
    }

    /// The whole conversation as one sequence.
    pub(super) fn example(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        what: TrainOnWhat,
    ) -> Result<Example> {
        check(messages, what)?;
        let messages = &self.shaped(messages)[..];
        self.by_prefix(codec, tools, messages, what)
            .or_else(|problem| self.by_spans(codec, tools, messages, what, problem))
    }

    /// The whole conversation as one sequence, weighted by where the template says itself that
    /// the model speaks.
    ///
    /// # Errors
    ///
    /// `problem`, which is why this was asked for, if the template does not say.
    fn by_spans(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        what: TrainOnWhat,
        problem: Error,
    ) -> Result<Example> {
        let of_assistant = matches!(
            what,
            TrainOnWhat::LastAssistantMessage
                | TrainOnWhat::LastAssistantTurn
                | TrainOnWhat::AllAssistantMessages
                | TrainOnWhat::Customized
        );
        let sampled = messages.iter().any(|message| sampled(message).is_some());
        let options = with_tools(ChatOptions::transcript(), tools)?;
        let (text, spans) = codec.tokenizer.render_chat_with_spans(messages, &options)?;
        let assistants: Vec<usize> = (0..messages.len())
            .filter(|&index| messages[index].role() == "assistant")
            .collect();
        if !of_assistant || sampled || spans.is_empty() || spans.len() != assistants.len() {
            return Err(problem);
        }
        let (tokens, span_of) = codec.tokenizer.encode_spans(&text, spans)?;
        let weight = |span: Option<usize>| {
            let index = span.map(|number| assistants[number]);
            f32::from(index.is_some_and(|index| is_trained(messages, index, what)))
        };
        let weights = span_of.into_iter().map(weight).collect();
        Example::new(ModelInput::from_ints(tokens), weights)
    }

    /// A turn of the model's up to its stop, and what the template puts after that.
    fn turn<'a>(&self, said: &'a str) -> (&'a str, &'a str) {
        let end = said.rfind(&self.stop).map(|at| at + self.stop.len());
        said.split_at(end.unwrap_or(said.len()))
    }

    fn by_prefix(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        what: TrainOnWhat,
    ) -> Result<Example> {
        let mut chunks = Vec::new();
        let mut weights = Vec::new();
        let mut done = String::new();
        let given = f32::from(what == TrainOnWhat::AllTokens);
        for (index, message) in messages.iter().enumerate() {
            let assistant = message.role() == "assistant";
            let trained = f32::from(is_trained(messages, index, what));
            // Others are laid out with what follows them and weighs the same: templates need not
            // understand a conversation that ends there, and results of tools may share a block.
            let next = messages.get(index + 1).map(|next| match next.role() {
                "assistant" => given,
                _ => f32::from(is_trained(messages, index + 1, what)),
            });
            if !assistant && next == Some(trained) {
                continue;
            }
            let before = match assistant && index > 0 {
                true => self.text(codec, &messages[..index], Call::prompt(tools))?,
                false => done.clone(),
            };
            let header = before
                .strip_prefix(&done)
                .ok_or_else(|| not_a_prefix(index))?;
            let whole = self.text(codec, &messages[..=index], Call::transcript(tools))?;
            let said = whole
                .strip_prefix(&done)
                .and_then(|rest| rest.strip_prefix(header))
                .ok_or_else(|| not_a_prefix(index))?;
            let encode = |text: &str| codec.tokenizer.encode_plain(text);
            // The model's turn ends with its stop: what follows is never sampled.
            let (said, rest) = match assistant {
                true => self.turn(said),
                false => (said, ""),
            };
            let said = match self.sampled(codec, message)? {
                Some(tokens) => tokens,
                None => encode(said)?,
            };
            let header = encode(header)?;
            for (tokens, weight) in [(header, given), (said, trained), (encode(rest)?, given)] {
                if !tokens.is_empty() {
                    weights.resize(weights.len() + tokens.len(), weight);
                    chunks.push(Chunk::tokens(tokens));
                }
            }
            done = whole;
        }
        Example::new(ModelInput::from_chunks(chunks), weights)
    }

    pub(super) fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let (text, stop) = until_stop(codec, tokens, &[&self.stop])?;
        if stop.is_none() {
            return Ok(Reply::text(text).ended(Termination::Malformed));
        }
        let mut reply = blocks(&text, true, Json::parse);
        if let Content::Parts(parts) = &reply.content
            && parts.is_empty()
        {
            reply.content = Content::Text(String::new());
        }
        Ok(reply.ended(Termination::StopSequence))
    }
}

/// Whether the template writes the arguments of calls itself: not if it refuses to, and not if
/// it would print them as Python prints a dictionary.
fn takes_values(tokenizer: &Tokenizer) -> bool {
    let arguments = ToolCall::new("f", r#"{"a": 1}"#).with_id("call00000");
    let called = Message::assistant("").with_tool_calls([arguments]);
    let probe = [Message::user("a"), called.for_template(true)];
    let text = tokenizer.render_chat(&probe, &ChatOptions::transcript());
    text.is_ok_and(|text| !text.contains("{'a': 1}"))
}

/// Whether messages say what is trained on, where that counts and only there.
fn check(messages: &[Message], what: TrainOnWhat) -> Result<()> {
    let flag = |(index, message): (usize, &Message)| {
        let flag = message.trainable();
        flag.map_err(|error| error.within(&format!("messages[{index}]")))
    };
    let flags = messages.iter().enumerate().map(flag);
    check_flags(flags.collect::<Result<Vec<_>>>()?, what)
}

fn with_tools(options: ChatOptions, tools: &[Json]) -> Result<ChatOptions> {
    if tools.is_empty() {
        return Ok(options);
    }
    let wrap = |tool: &Json| {
        Json::Object(vec![
            ("type".to_owned(), Json::from("function")),
            ("function".to_owned(), tool.clone()),
        ])
    };
    let tools = Json::Array(tools.iter().map(wrap).collect());
    options.with_tools(&tools.dump(Style::PLAIN))
}

/// Whether a mode trains on what this message says.
fn is_trained(messages: &[Message], index: usize, what: TrainOnWhat) -> bool {
    let message = &messages[index];
    let assistant = message.role() == "assistant";
    let last_user = || {
        messages
            .iter()
            .rposition(|message| message.role() == "user")
    };
    match what {
        TrainOnWhat::LastAssistantMessage => assistant && index + 1 == messages.len(),
        TrainOnWhat::LastAssistantTurn => assistant && last_user().is_none_or(|user| index > user),
        TrainOnWhat::AllAssistantMessages => assistant,
        TrainOnWhat::AllMessages | TrainOnWhat::AllTokens => true,
        TrainOnWhat::AllUserAndSystemMessages => matches!(message.role(), "user" | "system"),
        TrainOnWhat::Customized => matches!(message.get("trainable"), Some(Json::Bool(true))),
    }
}

#[derive(Clone, Copy)]
struct Call<'a> {
    tools: &'a [Json],
    prompt: bool,
}

impl<'a> Call<'a> {
    fn prompt(tools: &'a [Json]) -> Self {
        let prompt = true;
        Self { tools, prompt }
    }

    fn transcript(tools: &'a [Json]) -> Self {
        let prompt = false;
        Self { tools, prompt }
    }
}

/// What the model sampled for a message, if it did.
fn sampled(message: &Message) -> Option<&[i32]> {
    let assistant = message.role() == "assistant";
    message.tokens().filter(|_| assistant)
}

/// A text that no message contains: it was not known when they were written.
fn mark() -> String {
    format!("\u{fdd0}{:016x}", fastrand::u64(..))
}

/// What comes after a mark that is there once.
fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    let (_, after) = text.split_once(mark)?;
    (!after.contains(mark)).then_some(after)
}

fn not_a_prefix(index: usize) -> Error {
    let problem = "the chat template lays out what comes before this message in another way once \
                   the message is there, so that training would not match sampling, and has no \
                   {% generation %} block for every answer; cut the conversation here, or name a \
                   renderer made for the model";
    Error::invalid(format!("messages[{index}]"), problem)
}
