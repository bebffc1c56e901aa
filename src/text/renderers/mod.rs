//! Renderers: conversations to tokens with weights, and sampled tokens back to messages.
//!
//! A [`Renderer`] knows how one model family lays out a conversation, token by token, the way
//! the service's own renderers do. It builds the prompt to sample from, the examples to train
//! on, and reads what the model says: text, thinking and calls of tools.
//!
//! ```no_run
//! use tinker::text::{Message, Renderer, Tokenizer, TrainOnWhat};
//!
//! let tokenizer = Tokenizer::for_model("Qwen/Qwen3-8B")?;
//! let renderer = Renderer::for_model("Qwen/Qwen3-8B", &tokenizer)?;
//! let question = [Message::user("What is 2+2?")];
//! let prompt = renderer.generation_prompt(&question)?;
//!
//! let conversation = [Message::user("What is 2+2?"), Message::assistant("4")];
//! let examples = renderer.supervised(&conversation, TrainOnWhat::AllAssistantMessages)?;
//! # let _ = (prompt, examples);
//! # Ok::<(), tinker::Error>(())
//! ```
//!
//! What a family does is in its own file; what they share is in `layout` (putting messages
//! together) and `reply` (reading answers).

mod conversation;
mod deepseek_v3;
mod deepseek_v4;
mod glm;
mod gpt_oss;
mod gpt_oss_tools;
mod kimi;
mod kimi_tools;
mod layout;
mod llama3;
mod models;
mod nemotron;
mod qwen3;
mod qwen3_5;
mod reply;
mod role_colon;
mod stream;
#[cfg(feature = "chat")]
mod template;
mod tml_v0;
mod xml_tools;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::conversation::Conversation;
use self::layout::{Codec, Family};
use self::reply::restored;
use super::data::Example;
use super::json::{Json, to_json};
use super::message::Message;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::types::{ModelInput, Stop};

pub use models::ModelAttributes;
pub use stream::{Delta, ParseStream};

/// How a model family lays out conversations.
///
/// Cloning is cheap, and clones can be used from many threads.
///
/// ```
/// use tinker::text::{Message, Renderer, Tokenizer, TrainOnWhat};
///
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let renderer = Renderer::named("role_colon", &tokenizer)?;
/// let messages = [Message::user("the cat"), Message::assistant("sat")];
/// let prompt = renderer.generation_prompt(&messages[..1])?;
/// assert!(tokenizer.decode(&prompt.to_ints()?)?.ends_with("User: the cat\n\nAssistant:"));
/// let examples = renderer.supervised(&messages, TrainOnWhat::LastAssistantMessage)?;
/// assert_eq!(examples.len(), 1);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Clone)]
pub struct Renderer {
    inner: Arc<Inner>,
    tools: Arc<[Json]>,
}

struct Inner {
    name: String,
    note: Option<String>,
    kind: Kind,
    codec: Codec,
}

enum Kind {
    Family(Box<dyn Family>),
    #[cfg(feature = "chat")]
    Template(template::Template),
}

impl Renderer {
    /// The renderer with this name, one of [`Renderer::names`].
    ///
    /// # Errors
    ///
    /// If there is none, or the tokenizer lacks one of its tokens.
    pub fn named(name: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let family = family(name).ok_or_else(|| {
            let known = NAMES.join(", ");
            Error::invalid("renderer", format!("there is no {name}; there are {known}"))
        })?;
        let codec = Codec::new(tokenizer.clone());
        for stop in family.facts().stop {
            if !family.facts().stop_is_text {
                codec.token(stop)?;
            }
        }
        Ok(Self::build(name, None, Kind::Family(family), codec))
    }

    /// The renderer recommended for a model; for a model not in the table, one made from its
    /// chat template (see [`Renderer::from_template`]) with a [note](Self::note) saying so.
    ///
    /// # Errors
    ///
    /// If the tokenizer is another model's, or an unknown model has no chat template.
    pub fn for_model(model_name: &str, tokenizer: &Tokenizer) -> Result<Self> {
        if let Some(name) = recommended(model_name).first() {
            return Self::named(name, tokenizer);
        }
        Self::of_unknown(model_name, tokenizer)
    }

    #[cfg(feature = "chat")]
    fn of_unknown(model_name: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let codec = Codec::new(tokenizer.clone());
        let kind = Kind::Template(template::Template::new(&codec)?);
        let note = format!(
            "no renderer is known for {model_name}: its chat template lays out conversations, \
             and answers are read as plain text with <think> and <tool_call> blocks"
        );
        Ok(Self::build("template", Some(note), kind, codec))
    }

    #[cfg(not(feature = "chat"))]
    fn of_unknown(model_name: &str, _: &Tokenizer) -> Result<Self> {
        let problem = format!(
            "no renderer is known for {model_name}; name one, or enable the feature \"chat\" to \
             use its chat template"
        );
        Err(Error::invalid("model_name", problem))
    }

    /// A renderer from the tokenizer's own chat template.
    ///
    /// What belongs to a message is found by comparing prefixes: the prompt for a message is to
    /// be a prefix of the conversation that ends with it, and [`supervised`](Self::supervised)
    /// makes one example per assistant message. Where one is no prefix but the template marks
    /// what the model says by `{% generation %}` blocks, one sequence of the whole conversation
    /// is weighted by these. A template that does neither is refused, with the reason.
    ///
    /// # Errors
    ///
    /// If there is no template or it cannot be used.
    #[cfg(feature = "chat")]
    pub fn from_template(tokenizer: &Tokenizer) -> Result<Self> {
        let codec = Codec::new(tokenizer.clone());
        let kind = Kind::Template(template::Template::new(&codec)?);
        Ok(Self::build("template", None, kind, codec))
    }

    fn build(name: &str, note: Option<String>, kind: Kind, codec: Codec) -> Self {
        let inner = Inner {
            name: name.to_owned(),
            note,
            kind,
            codec,
        };
        Self {
            inner: Arc::new(inner),
            tools: Arc::default(),
        }
    }

    /// The names of all renderers, as the Tinker cookbook has them, and of those that only the
    /// service's own renderers have.
    pub fn names() -> &'static [&'static str] {
        NAMES
    }

    /// The renderer that also declares these tools at the start of every conversation: JSON
    /// objects with `name`, `description` and `parameters` (a JSON schema), bare or as the
    /// `function` of `{"type": "function", ..}`.
    ///
    /// # Errors
    ///
    /// If one has another shape, or the family cannot declare tools.
    pub fn with_tools(&self, tools: impl IntoIterator<Item = impl Serialize>) -> Result<Self> {
        let mut declared = Vec::new();
        for (index, tool) in tools.into_iter().enumerate() {
            let place = format!("tools[{index}]");
            let tool = to_json(tool).map_err(|problem| Error::invalid(&*place, problem))?;
            let tool = tool.get("function").cloned().unwrap_or(tool);
            if tool.get("name").and_then(Json::as_str).is_none() {
                return Err(Error::invalid(place, "must be an object with a name"));
            }
            declared.push(tool);
        }
        if let (Kind::Family(family), false) = (&self.inner.kind, declared.is_empty()) {
            family.declare(&declared, "")?;
        }
        Ok(Self {
            inner: Arc::clone(&self.inner),
            tools: declared.into(),
        })
    }

    /// The renderer that takes this date, as `2026-01-02`, for today. Only gpt-oss writes one.
    /// Default: today, where this machine is.
    #[must_use]
    pub fn with_date(&self, date: &str) -> Self {
        let Some(family) = self.family().and_then(|family| family.dated(date)) else {
            return self.clone();
        };
        let codec = Codec::new(self.tokenizer().clone());
        let note = self.inner.note.clone();
        Self {
            tools: Arc::clone(&self.tools),
            ..Self::build(self.name(), note, Kind::Family(family), codec)
        }
    }

    /// The renderer's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What a caller should know about how the renderer was chosen.
    pub fn note(&self) -> Option<&str> {
        self.inner.note.as_deref()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.codec.tokenizer
    }

    /// Whether every prompt is a prefix of the prompts of later turns, so that a whole
    /// conversation trains as one sequence.
    #[doc(alias = "has_extension_property")]
    pub fn extends(&self) -> bool {
        self.family().is_some_and(|family| family.facts().extends)
    }

    /// Whether the prompt tells the model not to think.
    pub fn disables_thinking(&self) -> bool {
        self.family()
            .is_some_and(|family| family.facts().disables_thinking)
    }

    /// What ends the model's turn, to give to
    /// [`SamplingParams::with_stop`](crate::SamplingParams::with_stop).
    #[doc(alias = "get_stop_sequences")]
    pub fn stop(&self) -> Stop {
        let token = |stop: &str| {
            let token = self.inner.codec.token(stop);
            token.expect("building the renderer found this token")
        };
        match &self.inner.kind {
            Kind::Family(family) => {
                let facts = family.facts();
                let stops = facts.stop.iter();
                match facts.stop_is_text {
                    true => Stop::Texts(stops.map(|&stop| stop.to_owned()).collect()),
                    false => Stop::Tokens(stops.map(|stop| token(stop)).collect()),
                }
            }
            #[cfg(feature = "chat")]
            Kind::Template(template) => Stop::Tokens(vec![token(&template.stop)]),
        }
    }

    /// The prompt for the model's next turn.
    ///
    /// A message that was [parsed](Self::parse) from sampled tokens puts exactly these tokens
    /// into the prompt.
    ///
    /// # Errors
    ///
    /// If a message cannot be laid out; the error names it.
    #[doc(alias = "build_generation_prompt")]
    pub fn generation_prompt(&self, messages: &[Message]) -> Result<ModelInput> {
        self.generation_prompt_with(messages, "")
    }

    /// The prompt for the model's next turn, which is to start with this text.
    ///
    /// # Errors
    ///
    /// As [`generation_prompt`](Self::generation_prompt), and if the family cannot start the
    /// model's turn.
    pub fn generation_prompt_with(
        &self,
        messages: &[Message],
        prefill: &str,
    ) -> Result<ModelInput> {
        match &self.inner.kind {
            Kind::Family(family) => self.work(&**family).prompt(messages, prefill),
            #[cfg(feature = "chat")]
            Kind::Template(template) => {
                template.prompt(&self.inner.codec, &self.tools, messages, prefill)
            }
        }
    }

    /// The sequences to train on: one if the family [extends](Self::extends), else one for each
    /// message the model is to produce, which then starts with the very prompt it would be
    /// given. With [`TrainOnWhat::Customized`] only messages of the assistant are trained on,
    /// whatever other messages say; [`example`](Self::example) heeds them too.
    ///
    /// # Errors
    ///
    /// If a message cannot be laid out, `trainable` is missing or set where it does not count,
    /// or the mode cannot be split for this family.
    #[doc(alias = "build_supervised_examples")]
    pub fn supervised(&self, messages: &[Message], what: TrainOnWhat) -> Result<Vec<Example>> {
        match &self.inner.kind {
            Kind::Family(family) => self.work(&**family).examples(messages, what),
            #[cfg(feature = "chat")]
            Kind::Template(template) => {
                template.examples(&self.inner.codec, &self.tools, messages, what)
            }
        }
    }

    /// One sequence for a whole conversation, whatever it trains on.
    ///
    /// For a family that does not [extend](Self::extends), earlier messages then stand as
    /// history, not as the model would have produced them.
    ///
    /// # Errors
    ///
    /// As [`supervised`](Self::supervised).
    #[doc(alias = "build_supervised_example")]
    pub fn example(&self, messages: &[Message], what: TrainOnWhat) -> Result<Example> {
        match &self.inner.kind {
            Kind::Family(family) => self.work(&**family).example(messages, what),
            #[cfg(feature = "chat")]
            Kind::Template(template) => {
                template.example(&self.inner.codec, &self.tools, messages, what)
            }
        }
    }

    /// What the model said, from the tokens sampled after a
    /// [generation prompt](Self::generation_prompt), the stop token included. The message keeps
    /// the tokens.
    ///
    /// # Errors
    ///
    /// If there is more than one stop token: the sampler was then given another stop. What else
    /// is wrong is told by the [termination](Parsed::termination) and by
    /// [`Message::unparsed_tool_calls`].
    #[doc(alias = "parse_response")]
    pub fn parse(&self, tokens: &[i32]) -> Result<Parsed> {
        let codec = &self.inner.codec;
        let mut parsed = match &self.inner.kind {
            Kind::Family(family) => {
                let opening = family.opening();
                let whole = opening.map(|open| restored(codec, tokens, open));
                family.parse(codec, whole.transpose()?.as_deref().unwrap_or(tokens))?
            }
            #[cfg(feature = "chat")]
            Kind::Template(template) => template.parse(codec, tokens)?,
        };
        parsed.message = parsed.message.with_tokens(tokens.to_vec());
        Ok(parsed)
    }

    fn family(&self) -> Option<&dyn Family> {
        match &self.inner.kind {
            Kind::Family(family) => Some(&**family),
            #[cfg(feature = "chat")]
            Kind::Template(_) => None,
        }
    }

    fn work<'a>(&'a self, family: &'a dyn Family) -> Conversation<'a> {
        Conversation {
            family,
            codec: &self.inner.codec,
            tools: &self.tools,
        }
    }
}

impl fmt::Debug for Renderer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renderer")
            .field("name", &self.inner.name)
            .field("tokenizer", &self.tokenizer().name())
            .finish_non_exhaustive()
    }
}

/// The renderers designed for a model, best first; none for a model that is not known.
///
/// ```
/// use tinker::text::renderers::recommended;
///
/// assert_eq!(recommended("Qwen/Qwen3-8B"), ["qwen3", "qwen3_disable_thinking"]);
/// ```
pub fn recommended(model_name: &str) -> &'static [&'static str] {
    ModelAttributes::of(model_name).map_or(&[], |model| model.recommended_renderers)
}

/// What a sampled message is and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The message: text, thinking, calls, and what looked like calls but could not be read.
    pub message: Message,
    /// How it ended.
    pub termination: Termination,
}

/// How a sampled message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Termination {
    /// With the family's own stop.
    StopSequence,
    /// With the model's end of sequence, which some families take for an end too.
    Eos,
    /// Neither: cut off, or garbled. The message holds the raw text.
    Malformed,
}

impl Termination {
    /// Ended by a stop, or not at all.
    fn by_stop(stop: Option<usize>) -> Self {
        match stop {
            Some(_) => Self::StopSequence,
            None => Self::Malformed,
        }
    }

    /// Whether the message ended as it should.
    pub fn is_clean(self) -> bool {
        self != Self::Malformed
    }

    /// The cookbook's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StopSequence => "stop_sequence",
            Self::Eos => "eos",
            Self::Malformed => "malformed",
        }
    }
}

/// Which parts of a conversation are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainOnWhat {
    /// The last message, if it is the assistant's.
    LastAssistantMessage,
    /// What the assistant said after the last message of the user.
    LastAssistantTurn,
    /// Everything the assistant said.
    #[default]
    AllAssistantMessages,
    /// Every message, without its header.
    AllMessages,
    /// Every token.
    AllTokens,
    /// What the user and the system said.
    AllUserAndSystemMessages,
    /// The messages whose `trainable` is true.
    Customized,
}

impl TrainOnWhat {
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::LastAssistantMessage, "last_assistant_message"),
        (Self::LastAssistantTurn, "last_assistant_turn"),
        (Self::AllAssistantMessages, "all_assistant_messages"),
        (Self::AllMessages, "all_messages"),
        (Self::AllTokens, "all_tokens"),
        (
            Self::AllUserAndSystemMessages,
            "all_user_and_system_messages",
        ),
        (Self::Customized, "customized"),
    ];

    /// The cookbook's spelling.
    pub fn as_str(self) -> &'static str {
        let known = Self::ALL.iter().find(|(what, _)| *what == self);
        known.expect("every mode is in the table").1
    }
}

impl fmt::Display for TrainOnWhat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TrainOnWhat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(what, _)| *what).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            Error::invalid("train_on_what", format!("{text:?} is none of {names}"))
        })
    }
}

const NAMES: &[&str] = &[
    "role_colon",
    "llama3",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_instruct",
    "qwen3_preserve_thinking",
    "qwen3_vl",
    "qwen3_vl_instruct",
    "qwen3_5",
    "qwen3_5_disable_thinking",
    "qwen3_5_preserve_thinking",
    "qwen3_8_xhigh_reasoning",
    "qwen3_8_medium_reasoning",
    "qwen3_8_low_reasoning",
    "qwen3_8_disable_thinking",
    "deepseekv3",
    "deepseekv3_disable_thinking",
    "deepseekv3_thinking",
    "deepseek_v3_0",
    "deepseek_r1",
    "deepseekv4",
    "deepseekv4_disable_thinking",
    "deepseekv4_1",
    "deepseekv4_1_low_reasoning",
    "deepseekv4_1_max_reasoning",
    "deepseekv4_1_disable_thinking",
    "deepseekv4_1_preserve_thinking",
    "gpt_oss_no_sysprompt",
    "gpt_oss_low_reasoning",
    "gpt_oss_medium_reasoning",
    "gpt_oss_high_reasoning",
    "kimi_k2",
    "kimi_k2_preserve_thinking",
    "kimi_k25",
    "kimi_k25_disable_thinking",
    "kimi_k26",
    "kimi_k26_disable_thinking",
    "kimi_k26_preserve_thinking",
    "glm5_2",
    "glm5_3_max_reasoning",
    "glm5_3_high_reasoning",
    "glm5_3_low_reasoning",
    "glm5_3_preserve_thinking",
    "glm5_3_flash",
    "nemotron3",
    "nemotron3_low_thinking",
    "nemotron3_disable_thinking",
    "nemotron3_preserve_thinking",
    "nemotron3_ultra",
    "nemotron3_ultra_medium_thinking",
    "nemotron3_ultra_disable_thinking",
    "nemotron3_ultra_preserve_thinking",
    "tml_v0",
];

/// Makes the family of a name, if it has it.
type Named = fn(&str) -> Option<Box<dyn Family>>;

fn family(name: &str) -> Option<Box<dyn Family>> {
    let families: [Named; 11] = [
        role_colon::named,
        llama3::named,
        qwen3::named,
        qwen3_5::named,
        deepseek_v3::named,
        deepseek_v4::named,
        gpt_oss::named,
        kimi::named,
        glm::named,
        nemotron::named,
        tml_v0::named,
    ];
    families.iter().find_map(|named| named(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_every_recommendation_has_a_renderer() {
        for name in NAMES
            .iter()
            .chain(models::TABLE.iter().flat_map(|m| m.recommended_renderers))
        {
            assert!(family(name).is_some(), "{name}");
        }
        assert!(family("qwen2").is_none());
    }

    #[test]
    fn modes_have_the_cookbooks_names() {
        for (what, name) in TrainOnWhat::ALL {
            assert_eq!(name.parse::<TrainOnWhat>().unwrap(), what);
            assert_eq!(serde_json::to_value(what).unwrap(), name);
        }
        assert!("all".parse::<TrainOnWhat>().is_err());
    }
}
