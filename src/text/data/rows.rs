//! The rows of data files, and the examples they become.

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer, Serialize};

use super::super::json::Json;
use super::super::message::Message;
use super::super::renderers::{Renderer, TrainOnWhat};
use super::example::{DatumOptions, Example, Reduction};
use crate::error::{Error, Result};
use crate::types::{Datum, ModelInput};

/// A kind of row that a [`Reader`](super::Reader) can read from JSON.
pub trait Row: Sized + Send + Sync + 'static {
    /// Reads one line, and refuses what could not be trained on.
    ///
    /// # Errors
    ///
    /// If the line is no JSON or has another shape; the error names the field.
    fn read(line: &str) -> Result<Self>;

    /// The sequences to train on.
    ///
    /// # Errors
    ///
    /// If the renderer cannot lay the row out.
    fn examples(&self, renderer: &Renderer, what: TrainOnWhat) -> Result<Vec<Example>>;

    /// What is done to the weights unless the caller says otherwise.
    fn reduction() -> Reduction {
        Reduction::Mean
    }
}

/// `{"messages": [..]}`, and `"tools": [..]` where there are any.
///
/// ```
/// use tinker::text::data::{Conversation, Row};
///
/// let line = r#"{"messages": [{"role": "user", "content": "2+2?"},
///     {"role": "assistant", "content": "4"}]}"#;
/// let conversation = Conversation::read(line)?;
/// assert_eq!(conversation.messages.len(), 2);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Message>,
    /// The tools declared, as JSON objects. Default: none.
    #[serde(
        default,
        deserialize_with = "or_none",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tools: Vec<Json>,
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            tools: Vec::new(),
        }
    }

    fn renderer(&self, renderer: &Renderer) -> Result<Renderer> {
        match self.tools.is_empty() {
            true => Ok(renderer.clone()),
            false => renderer.with_tools(&self.tools),
        }
    }
}

impl Row for Conversation {
    fn read(line: &str) -> Result<Self> {
        let conversation: Self = parse(line)?;
        check("messages", &conversation.messages)?;
        Ok(conversation)
    }

    /// One sequence, as the cookbook trains on conversations of a file; for a sequence per turn
    /// see [`Renderer::supervised`].
    fn examples(&self, renderer: &Renderer, what: TrainOnWhat) -> Result<Vec<Example>> {
        let example = self.renderer(renderer)?.example(&self.messages, what)?;
        Ok(vec![example])
    }
}

/// `{"prompt": .., "completion": ..}`: two texts, or two lists of messages.
///
/// Texts are continued as they are: the tokenizer's beginning of sequence, the prompt, the
/// completion and the end of sequence, of which the last two are trained on. Messages are laid
/// out by the renderer, and those of the completion that are the assistant's are trained on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// What the model is given.
    pub prompt: Said,
    /// What it is to continue with.
    pub completion: Said,
}

/// Text or messages.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Said {
    /// Text.
    Text(String),
    /// Messages.
    Messages(Vec<Message>),
}

/// By hand: serde tries variants on a copy, which holds no whole numbers of more than 64 bits.
impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Json::deserialize(deserializer)? {
            Json::String(text) => Ok(Self::Text(text)),
            list => list
                .convert()
                .map(Self::Messages)
                .map_err(de::Error::custom),
        }
    }
}

impl Row for Pair {
    fn read(line: &str) -> Result<Self> {
        let pair: Self = parse(line)?;
        match (&pair.prompt, &pair.completion) {
            (Said::Text(_), Said::Text(text)) if text.is_empty() => {
                Err(Error::invalid("completion", "is empty"))
            }
            (Said::Text(_), Said::Text(_)) => Ok(pair),
            (Said::Messages(prompt), Said::Messages(completion)) => {
                check("prompt", prompt)?;
                check("completion", completion)?;
                Ok(pair)
            }
            _ => {
                let problem = "must be text where the prompt is, and messages where it is messages";
                Err(Error::invalid("completion", problem))
            }
        }
    }

    fn examples(&self, renderer: &Renderer, _: TrainOnWhat) -> Result<Vec<Example>> {
        match (&self.prompt, &self.completion) {
            (Said::Messages(prompt), Said::Messages(completion)) => {
                let flag = |messages: &[Message], trainable: fn(&Message) -> bool| {
                    let each = messages.iter().cloned();
                    each.map(|m| {
                        let trained = trainable(&m);
                        m.with_trainable(trained)
                    })
                    .collect::<Vec<_>>()
                };
                let mut messages = flag(prompt, |_| false);
                messages.extend(flag(completion, |message| message.role() == "assistant"));
                renderer.supervised(&messages, TrainOnWhat::Customized)
            }
            (Said::Text(prompt), Said::Text(completion)) => {
                Ok(vec![continued(renderer, prompt, completion)?])
            }
            _ => Err(Error::invalid(
                "completion",
                "must be of the same kind as the prompt",
            )),
        }
    }
}

/// `{"text": ..}`: every token is trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The text.
    pub text: String,
}

impl Row for Text {
    fn read(line: &str) -> Result<Self> {
        let row: Self = parse(line)?;
        match row.text.is_empty() {
            true => Err(Error::invalid("text", "is empty")),
            false => Ok(row),
        }
    }

    fn examples(&self, renderer: &Renderer, _: TrainOnWhat) -> Result<Vec<Example>> {
        Ok(vec![continued(renderer, "", &self.text)?])
    }
}

/// Beginning of sequence, prompt, completion, end of sequence; special tokens are only text.
fn continued(renderer: &Renderer, prompt: &str, completion: &str) -> Result<Example> {
    let tokenizer = renderer.tokenizer();
    let mut tokens: Vec<i32> = tokenizer.bos_id().into_iter().collect();
    tokens.extend(tokenizer.encode_ordinary(prompt)?);
    let given = tokens.len();
    tokens.extend(tokenizer.encode_ordinary(completion)?);
    tokens.extend(tokenizer.eos_id());
    let mut weights = vec![0.0; given];
    weights.resize(tokens.len(), 1.0);
    Example::new(ModelInput::from_ints(tokens), weights)
}

/// Which of two answers is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preferred {
    /// The first.
    A,
    /// The second.
    B,
    /// Neither.
    Tie,
}

impl Preferred {
    fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::Tie => "Tie",
        }
    }
}

/// Two answers to one prompt, as the cookbook writes them to files:
/// `{"comparison": {"prompt_conversation", "completion_A", "completion_B"}, "label": "A"}`.
///
/// As a row to train on it is a pair for direct preference optimisation: the preferred answer's
/// sequence, then the other's, every token counting the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The prompt and both answers.
    pub comparison: Answers,
    /// Which one is preferred.
    pub label: Preferred,
}

/// See [`Comparison`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answers {
    /// What both answer.
    pub prompt_conversation: Vec<Message>,
    /// The first answer.
    #[serde(rename = "completion_A")]
    pub completion_a: Vec<Message>,
    /// The second answer.
    #[serde(rename = "completion_B")]
    pub completion_b: Vec<Message>,
}

impl Comparison {
    /// The same with both answers in the other order.
    #[must_use]
    pub fn swapped(&self) -> Self {
        let answers = &self.comparison;
        Self {
            comparison: Answers {
                prompt_conversation: answers.prompt_conversation.clone(),
                completion_a: answers.completion_b.clone(),
                completion_b: answers.completion_a.clone(),
            },
            label: match self.label {
                Preferred::A => Preferred::B,
                Preferred::B => Preferred::A,
                Preferred::Tie => Preferred::Tie,
            },
        }
    }

    /// The prompt that asks a preference model which answer is better.
    ///
    /// # Errors
    ///
    /// If the renderer cannot lay it out.
    pub fn preference_prompt(&self, renderer: &Renderer) -> Result<ModelInput> {
        renderer.generation_prompt(&self.conversation())
    }

    /// The example that trains a preference model: the prompt that asks, and the first token of
    /// the answer, which is all that counts.
    ///
    /// # Errors
    ///
    /// If the renderer cannot lay it out.
    pub fn preference_example(&self, renderer: &Renderer) -> Result<Example> {
        let mut messages = self.conversation();
        messages.push(Message::assistant(self.label.as_str()));
        let example = renderer.example(&messages, TrainOnWhat::LastAssistantMessage)?;
        let Some(first) = example.weights().iter().position(|weight| *weight == 1.0) else {
            return Ok(example);
        };
        let mut tokens = example.input().to_ints()?;
        tokens.truncate(first + 1);
        let weights = example.weights()[..=first].to_vec();
        Example::new(ModelInput::from_ints(tokens), weights)
    }

    fn conversation(&self) -> Vec<Message> {
        let answers = &self.comparison;
        let mut messages = answers.prompt_conversation.clone();
        messages.push(Message::system("==== Completion A ===="));
        messages.extend(answers.completion_a.iter().cloned());
        messages.push(Message::system("==== Completion B ===="));
        messages.extend(answers.completion_b.iter().cloned());
        messages.push(Message::system("==== Preference ===="));
        messages
    }
}

impl Row for Comparison {
    fn read(line: &str) -> Result<Self> {
        let row: Self = parse(line)?;
        check(
            "comparison.prompt_conversation",
            &row.comparison.prompt_conversation,
        )?;
        check("comparison.completion_A", &row.comparison.completion_a)?;
        check("comparison.completion_B", &row.comparison.completion_b)?;
        Ok(row)
    }

    fn examples(&self, renderer: &Renderer, _: TrainOnWhat) -> Result<Vec<Example>> {
        let answers = &self.comparison;
        let (chosen, rejected) = match self.label {
            Preferred::A => (&answers.completion_a, &answers.completion_b),
            _ => (&answers.completion_b, &answers.completion_a),
        };
        let example = |completion: &Vec<Message>| {
            let messages = [&answers.prompt_conversation[..], completion].concat();
            renderer.example(&messages, TrainOnWhat::LastAssistantMessage)
        };
        Ok(vec![example(chosen)?, example(rejected)?])
    }

    /// Sums of log-probabilities are compared, so no token may count less than another.
    fn reduction() -> Reduction {
        Reduction::None
    }
}

/// A [`Comparison`] as a question to a judge, with its answer: the row that trains a preference
/// model.
///
/// It becomes two examples, one for either order of the answers, so that where an answer stands
/// says nothing about how good it is, however the file was made. Of each only the first token of
/// `A`, `B` or `Tie` is trained on.
///
/// ```no_run
/// # fn example(renderer: tinker::text::Renderer) -> tinker::Result<()> {
/// use tinker::text::data::{Judgement, Reader, RenderOptions};
///
/// let rows = Reader::<Judgement>::open("comparisons.jsonl")?;
/// let data = rows.datums(&renderer, RenderOptions::default()).collect::<Result<Vec<_>, _>>()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Judgement(pub Comparison);

impl Row for Judgement {
    fn read(line: &str) -> Result<Self> {
        Comparison::read(line).map(Self)
    }

    fn examples(&self, renderer: &Renderer, _: TrainOnWhat) -> Result<Vec<Example>> {
        let both = [self.0.clone(), self.0.swapped()];
        let examples = both.iter().map(|row| row.preference_example(renderer));
        examples.collect()
    }

    fn reduction() -> Reduction {
        Reduction::None
    }
}

/// Reads a line as Python's `json.loads` does, which takes `NaN` and keeps great numbers.
fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    let row = Json::parse(line).and_then(Json::convert);
    row.map_err(|problem| Error::invalid("row", problem))
}

/// `null` for no list, as Python's libraries write it.
fn or_none<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Json>, D::Error> {
    Option::deserialize(list).map(Option::unwrap_or_default)
}

const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "developer"];

/// Refuses messages that cannot be trained on.
fn check(field: &str, messages: &[Message]) -> Result<()> {
    if messages.is_empty() {
        return Err(Error::invalid(field, "is empty"));
    }
    for (index, message) in messages.iter().enumerate() {
        check_message(message).map_err(|error| error.within(&format!("{field}[{index}]")))?;
    }
    Ok(())
}

fn check_message(message: &Message) -> Result<()> {
    let turn = message.to_turn()?;
    if !ROLES.contains(&turn.role.as_str()) {
        let problem = format!("{:?} is none of {}", turn.role, ROLES.join(", "));
        return Err(Error::invalid("role", problem));
    }
    for call in &turn.calls {
        call.parse_arguments()?;
    }
    let speaks = turn.is("user") || turn.is("assistant");
    let silent = turn.content.text().is_empty()
        && turn.content.thinking().is_empty()
        && !turn.content.has_image()
        && turn.calls.is_empty();
    match speaks && silent {
        true => Err(Error::invalid("content", "is empty")),
        false => Ok(()),
    }
}

impl Datum {
    /// The datum of a conversation, with everything the assistant says trained on.
    ///
    /// ```
    /// use tinker::Datum;
    /// use tinker::text::{Message, Renderer, Tokenizer};
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let renderer = Renderer::named("role_colon", &tokenizer)?;
    /// let messages = [Message::user("the cat"), Message::assistant("sat")];
    /// let datum = Datum::chat(&renderer, &messages)?;
    /// assert!(datum.input("weights").is_some());
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the renderer cannot lay it out.
    pub fn chat(renderer: &Renderer, messages: &[Message]) -> Result<Self> {
        let example = renderer.example(messages, TrainOnWhat::AllAssistantMessages)?;
        example.to_datum(&DatumOptions::default())
    }
}
