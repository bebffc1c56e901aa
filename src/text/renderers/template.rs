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
use super::super::message::{Content, Message};
use super::layout::Codec;
use super::qwen3::blocks;
use super::reply::{Reply, until_stop};
use super::{Parsed, Termination, TrainOnWhat};
use crate::error::{Error, Result};
use crate::types::{Chunk, ModelInput};

pub(super) struct Template {
    pub(super) stop: String,
}

impl Template {
    /// # Errors
    ///
    /// If the tokenizer has no template, or no token that ends a turn.
    pub(super) fn new(codec: &Codec) -> Result<Self> {
        let tokenizer = &codec.tokenizer;
        let probe = [Message::user("a"), Message::assistant("b")];
        let text = tokenizer.render_chat(&probe, &ChatOptions::transcript())?;
        let eos = tokenizer.special_token("eos_token").unwrap_or_default();
        // The token after an answer ends it; the model's own end is the usual one.
        let answer = text.rsplit_once('b').map_or("", |(_, after)| after).trim();
        let specials = tokenizer.special_tokens();
        let after = specials.iter().map(|(_, token)| token.as_str());
        let after = after
            .filter(|token| answer.starts_with(token))
            .max_by_key(|t| t.len());
        let stop = after.unwrap_or(eos).to_owned();
        if stop.is_empty() {
            let problem = "names no token that ends the model's turn";
            return Err(Error::invalid("tokenizer", problem));
        }
        codec.token(&stop)?;
        Ok(Self { stop })
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
        let call = Call {
            tools,
            prompt: true,
        };
        let mut chunks = Vec::new();
        let mut done = 0;
        // Turns the model sampled stand as it sampled them.
        for (index, message) in messages.iter().enumerate() {
            let Some(tokens) = message.tokens() else {
                continue;
            };
            let before = self.text(codec, &messages[..index], call)?;
            let after = Call {
                prompt: false,
                ..call
            };
            let whole = self.text(codec, &messages[..=index], after)?;
            let text = before.get(done..).ok_or_else(|| not_a_prefix(index))?;
            chunks.push(Chunk::tokens(codec.tokenizer.encode_plain(text)?));
            chunks.push(Chunk::tokens(tokens.to_vec()));
            done = end_of_turn(&whole, &before, &self.stop);
        }
        let text = self.text(codec, messages, call)?;
        let rest = text
            .get(done..)
            .ok_or_else(|| not_a_prefix(messages.len()))?;
        chunks.push(Chunk::tokens(codec.tokenizer.encode_plain(rest)?));
        if !prefill.is_empty() {
            chunks.push(Chunk::tokens(codec.tokenizer.encode_plain(prefill)?));
        }
        chunks.retain(|chunk| !matches!(chunk, Chunk::EncodedText(text) if text.tokens.is_empty()));
        Ok(ModelInput::from_chunks(chunks))
    }

    /// One example for each message to train on.
    pub(super) fn examples(
        &self,
        codec: &Codec,
        tools: &[Json],
        messages: &[Message],
        what: TrainOnWhat,
    ) -> Result<Vec<Example>> {
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
        let call = Call {
            tools,
            prompt: true,
        };
        let before = self.text(codec, &messages[..index], call)?;
        let after = Call {
            prompt: false,
            ..call
        };
        let whole = self.text(codec, &messages[..=index], after)?;
        let said = whole
            .strip_prefix(&before)
            .ok_or_else(|| not_a_prefix(index))?;
        let end = said.find(&self.stop).map(|at| at + self.stop.len());
        let tokens = match messages[index].tokens() {
            Some(tokens) => tokens.to_vec(),
            None => codec
                .tokenizer
                .encode_plain(&said[..end.unwrap_or(said.len())])?,
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
        let sampled = messages.iter().any(|message| message.tokens().is_some());
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
        for (index, message) in messages.iter().enumerate() {
            let assistant = message.role() == "assistant";
            let prompt = Call {
                tools,
                prompt: assistant,
            };
            let header = self.text(codec, &messages[..index], prompt)?;
            let transcript = Call {
                tools,
                prompt: false,
            };
            let whole = self.text(codec, &messages[..=index], transcript)?;
            let header = match assistant {
                true => header
                    .strip_prefix(&done)
                    .ok_or_else(|| not_a_prefix(index))?,
                false => "",
            };
            let said = whole
                .strip_prefix(&done)
                .and_then(|rest| rest.strip_prefix(header))
                .ok_or_else(|| not_a_prefix(index))?;
            let trained = is_trained(messages, index, what);
            let header_weight = f32::from(what == TrainOnWhat::AllTokens);
            for (text, weight) in [(header, header_weight), (said, f32::from(trained))] {
                let tokens = codec.tokenizer.encode_plain(text)?;
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
        let mut reply = blocks(&text, true);
        if let Content::Parts(parts) = &reply.content
            && parts.is_empty()
        {
            reply.content = Content::Text(String::new());
        }
        Ok(reply.ended(Termination::StopSequence))
    }
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

/// Where the text of a sampled turn ends: after its stop, which the model sampled too.
fn end_of_turn(whole: &str, before: &str, stop: &str) -> usize {
    let said = whole.get(before.len()..).unwrap_or_default();
    let end = said.find(stop).map_or(said.len(), |at| at + stop.len());
    before.len() + end
}

fn not_a_prefix(index: usize) -> Error {
    let problem = "the chat template lays out what comes before this message in another way once \
                   the message is there, so that training would not match sampling, and has no \
                   {% generation %} block for every answer; cut the conversation here, or name a \
                   renderer made for the model";
    Error::invalid(format!("messages[{index}]"), problem)
}
