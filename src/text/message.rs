//! [`Message`]: one turn of a conversation, as chat templates and renderers read it.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::json::{Json, Style, set, to_json};
use crate::error::{Error, Result};
use crate::types::{Chunk, ImageFormat, Tokens};

/// One turn of a conversation.
///
/// Also read from JSON, as in `{"role": "user", "content": "Hello"}`; every field is kept, in
/// its order, for the templates that read it. The content is text or a list of parts:
/// `{"type": "text", "text": ..}`, `{"type": "thinking", "thinking": ..}` and, for models that
/// see, `{"type": "image", "image": ..}` with a `data:` URI or a location and `expected_tokens`.
///
/// ```
/// use tinker::text::{Message, ToolCall};
///
/// let message = Message::assistant("Let me look.")
///     .with_thinking("I need the weather.")
///     .with_tool_calls([ToolCall::new("get_weather", r#"{"city": "Paris"}"#)]);
/// assert_eq!(message.text(), "Let me look.");
/// assert_eq!(message.thinking(), "I need the weather.");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    fields: Vec<(String, Json)>,
    tokens: Option<Tokens>,
}

impl Message {
    /// A turn of any role. The content is text, or whatever else the template understands.
    pub fn new(role: &str, content: impl Serialize) -> Self {
        let fields = vec![("role".to_owned(), Json::from(role))];
        Self {
            fields,
            tokens: None,
        }
        .with("content", content)
    }

    /// Instructions that come before the conversation.
    pub fn system(text: &str) -> Self {
        Self::new("system", text)
    }

    /// What the user says.
    pub fn user(text: &str) -> Self {
        Self::new("user", text)
    }

    /// What the model says.
    pub fn assistant(text: &str) -> Self {
        Self::new("assistant", text)
    }

    /// What a tool returns.
    pub fn tool(text: &str) -> Self {
        Self::new("tool", text)
    }

    /// Sets another field the template reads, such as `tool_calls`. A value that is no JSON is
    /// left out.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Serialize) -> Self {
        if let Ok(value) = to_json(value) {
            set(&mut self.fields, field.to_owned(), value);
        }
        self
    }

    /// The calls the model makes with this message.
    #[must_use]
    pub fn with_tool_calls(self, calls: impl IntoIterator<Item = ToolCall>) -> Self {
        let calls: Vec<ToolCall> = calls.into_iter().collect();
        self.with("tool_calls", calls)
    }

    /// What the model thought before it said this: a `thinking` part before the content.
    #[must_use]
    pub fn with_thinking(self, thinking: &str) -> Self {
        let mut parts = vec![part("thinking", thinking)];
        match self.get("content") {
            Some(Json::String(text)) if !text.is_empty() => parts.push(part("text", text)),
            Some(Json::Array(rest)) => parts.extend(rest.iter().cloned()),
            _ => {}
        }
        self.with("content", Json::Array(parts))
    }

    /// Which call a tool's message answers: its id and the tool's name, where known.
    #[must_use]
    pub fn answering(self, id: &str, name: &str) -> Self {
        self.with("tool_call_id", id).with("name", name)
    }

    /// Whether this message is trained on, where messages say so themselves.
    #[must_use]
    pub fn with_trainable(self, trainable: bool) -> Self {
        self.with("trainable", trainable)
    }

    /// The tokens a model sampled for this message, after a renderer's generation prompt. A
    /// renderer then puts exactly these into later prompts instead of tokenising the text anew.
    #[must_use]
    pub fn with_tokens(mut self, tokens: impl Into<Tokens>) -> Self {
        self.tokens = Some(tokens.into());
        self
    }

    /// Forgets the sampled tokens, so that renderers lay the message out like any other.
    #[must_use]
    pub fn without_tokens(mut self) -> Self {
        self.tokens = None;
        self
    }

    /// The tokens a model sampled for this message, if it was sampled.
    pub fn tokens(&self) -> Option<&[i32]> {
        self.tokens.as_deref()
    }

    /// Who speaks; empty if the message does not say.
    pub fn role(&self) -> &str {
        self.get("role").and_then(Json::as_str).unwrap_or_default()
    }

    /// A field by name.
    pub fn get(&self, field: &str) -> Option<&Json> {
        let found = self.fields.iter().find(|(name, _)| name == field);
        found.map(|(_, value)| value)
    }

    /// All text of the content, without thinking.
    pub fn text(&self) -> String {
        self.joined("text")
    }

    /// All thinking of the content; empty if there is none.
    pub fn thinking(&self) -> String {
        self.joined("thinking")
    }

    fn joined(&self, kind: &str) -> String {
        match self.get("content") {
            Some(Json::String(text)) if kind == "text" => text.clone(),
            Some(Json::Array(parts)) => parts
                .iter()
                .filter(|part| part.get("type").and_then(Json::as_str) == Some(kind))
                .filter_map(|part| part.get(kind)?.as_str())
                .collect(),
            _ => String::new(),
        }
    }

    /// The calls the model makes with this message.
    ///
    /// # Errors
    ///
    /// If `tool_calls` has another shape than `[{"function": {"name", "arguments"}, "id"?}]`.
    pub fn tool_calls(&self) -> Result<Vec<ToolCall>> {
        let Some(calls) = self.get("tool_calls").filter(|calls| calls.is_truthy()) else {
            return Ok(Vec::new());
        };
        let calls = calls
            .as_array()
            .ok_or_else(|| bad("tool_calls", "must be a list"))?;
        let read = |(index, call)| {
            ToolCall::read(call)
                .map_err(|error: Error| error.within(&format!("tool_calls[{index}]")))
        };
        calls.iter().enumerate().map(read).collect()
    }

    /// What looked like a call but could not be read, as a renderer
    /// found it.
    pub fn unparsed_tool_calls(&self) -> Vec<UnparsedToolCall> {
        let calls = self.get("unparsed_tool_calls").and_then(Json::as_array);
        let text = |call: &Json, field| call.get(field)?.as_str().map(str::to_owned);
        let read = |call: &Json| {
            Some(UnparsedToolCall {
                raw_text: text(call, "raw_text")?,
                error: text(call, "error")?,
            })
        };
        calls.unwrap_or_default().iter().filter_map(read).collect()
    }

    pub(crate) fn to_json(&self) -> Json {
        Json::Object(self.fields.clone())
    }

    /// The message as chat templates know it: text with the thinking beside it where there are
    /// parts of no other kind, and the arguments of calls as values where `values` are wanted.
    #[cfg(feature = "chat")]
    pub(super) fn for_template(&self, values: bool) -> Self {
        let mut message = self.clone();
        let known = |part: &Json| {
            let kind = part.get("type").and_then(Json::as_str);
            matches!(kind, Some("text" | "thinking"))
        };
        let parts = self.get("content").and_then(Json::as_array);
        if parts.is_some_and(|parts| parts.iter().all(known)) {
            set(
                &mut message.fields,
                "content".to_owned(),
                Json::String(self.text()),
            );
            let thinking = self.thinking();
            for name in REASONING {
                let given = self.get(name).is_some_and(|value| *value != Json::Null);
                if !thinking.is_empty() && !given {
                    let thinking = Json::from(thinking.as_str());
                    set(&mut message.fields, name.to_owned(), thinking);
                }
            }
        }
        let calls = message.fields.iter_mut();
        for (_, calls) in calls.filter(|(name, _)| values && name == "tool_calls") {
            if let Json::Array(calls) = calls {
                calls.iter_mut().for_each(read_arguments);
            }
        }
        message
    }

    /// The message as renderers read it, checked.
    pub(super) fn to_turn(&self) -> Result<Turn> {
        let role = self.role();
        if role.is_empty() {
            return Err(bad("role", "must be given"));
        }
        let text = |field| match self.get(field) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(bad(field, "must be text")),
        };
        let trainable = self.trainable()?;
        let mut content = self.content()?;
        if let Some(thinking) = text("reasoning_content")?.filter(|text| !text.is_empty()) {
            let mut parts = vec![Part::Thinking(thinking)];
            parts.append(&mut content.into_parts());
            content = Content::Parts(parts);
        }
        Ok(Turn {
            role: role.to_owned(),
            content,
            calls: self.tool_calls()?,
            call_id: text("tool_call_id")?,
            name: text("name")?,
            trainable,
            tokens: self.tokens.clone(),
        })
    }

    /// Whether this message is trained on, if it says so.
    pub(super) fn trainable(&self) -> Result<Option<bool>> {
        match self.get("trainable") {
            None | Some(Json::Null) => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(bad("trainable", "must be true or false")),
        }
    }

    fn content(&self) -> Result<Content> {
        match self.get("content") {
            None => Err(bad("content", "must be given")),
            Some(Json::Null) => Ok(Content::Text(String::new())),
            Some(Json::String(text)) => Ok(Content::Text(text.clone())),
            Some(Json::Array(parts)) => {
                let read = |(index, part)| {
                    Part::read(part).map_err(|e: Error| e.within(&format!("content[{index}]")))
                };
                Ok(Content::Parts(
                    parts.iter().enumerate().map(read).collect::<Result<_>>()?,
                ))
            }
            Some(_) => Err(bad("content", "must be text or a list of parts")),
        }
    }
}

/// Where templates look for what the model thought; the second is gpt-oss's.
#[cfg(feature = "chat")]
const REASONING: [&str; 2] = ["reasoning_content", "thinking"];

/// Arguments that are the text of an object become the object.
#[cfg(feature = "chat")]
fn read_arguments(call: &mut Json) {
    let Json::Object(fields) = call else {
        return;
    };
    for (name, value) in fields {
        match (name.as_str(), &*value) {
            ("function", _) => read_arguments(value),
            ("arguments", Json::String(text)) => {
                if let Ok(read @ Json::Object(_)) = Json::parse(text) {
                    *value = read;
                }
            }
            _ => {}
        }
    }
}

fn bad(field: &str, problem: &str) -> Error {
    Error::invalid(field, problem)
}

fn part(kind: &str, text: &str) -> Json {
    let pairs = [("type", kind), (kind, text)];
    Json::Object(
        pairs
            .map(|(key, value)| (key.to_owned(), Json::from(value)))
            .into(),
    )
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Json::deserialize(deserializer)? {
            Json::Object(fields) => Ok(Self {
                fields,
                tokens: None,
            }),
            _ => Err(serde::de::Error::custom("a message must be an object")),
        }
    }
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What tells this call from others, where the model or the caller gave it a name.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// Its arguments, as JSON text.
    pub arguments: String,
}

impl ToolCall {
    /// A call without an id.
    pub fn new(name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self {
            id: None,
            name: name.into(),
            arguments: arguments.into(),
        }
    }

    /// Gives the call an id, which a tool's answer names.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    fn read(call: &Json) -> Result<Self> {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Json::as_str);
        let name = name.ok_or_else(|| bad("function.name", "must be text"))?;
        let arguments = match function.get("arguments") {
            None | Some(Json::Null) => "{}".to_owned(),
            Some(Json::String(text)) => text.clone(),
            Some(value) => value.dump(Style::PLAIN),
        };
        let id = call.get("id").and_then(Json::as_str);
        Ok(Self {
            id: id.filter(|id| !id.is_empty()).map(str::to_owned),
            name: name.to_owned(),
            arguments,
        })
    }

    /// The arguments as a value.
    ///
    /// # Errors
    ///
    /// If they are no JSON.
    pub fn parse_arguments(&self) -> Result<Json> {
        if self.arguments.is_empty() {
            return Ok(Json::Object(Vec::new()));
        }
        Json::parse(&self.arguments).map_err(|problem| {
            Error::invalid(
                "tool_calls",
                format!("arguments of {} are no JSON: {problem}", self.name),
            )
        })
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |key: &str, value: &str| (key.to_owned(), Json::from(value));
        let function = vec![text("name", &self.name), text("arguments", &self.arguments)];
        let id = self.id.as_deref().map_or(Json::Null, Json::from);
        let call = vec![
            text("type", "function"),
            ("id".to_owned(), id),
            ("function".to_owned(), Json::Object(function)),
        ];
        Json::Object(call).serialize(serializer)
    }
}

/// What looked like a tool call but could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnparsedToolCall {
    /// What the model wrote.
    pub raw_text: String,
    /// Why it is no call.
    pub error: String,
}

/// A message as renderers read it.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) role: String,
    pub(super) content: Content,
    pub(super) calls: Vec<ToolCall>,
    pub(super) call_id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) trainable: Option<bool>,
    pub(super) tokens: Option<Tokens>,
}

impl Turn {
    pub(super) fn new(role: &str, text: impl Into<String>) -> Self {
        Self {
            role: role.to_owned(),
            content: Content::Text(text.into()),
            calls: Vec::new(),
            call_id: None,
            name: None,
            trainable: None,
            tokens: None,
        }
    }

    pub(super) fn is(&self, role: &str) -> bool {
        self.role == role
    }

    /// The content, which must be one text.
    pub(super) fn plain_text(&self) -> Result<&str> {
        match &self.content {
            Content::Text(text) => Ok(text),
            Content::Parts(parts) => match parts.as_slice() {
                [Part::Text(text)] => Ok(text),
                _ => {
                    let problem = format!("must be text here, not {} parts", parts.len());
                    Err(Error::invalid("content", problem))
                }
            },
        }
    }
}

/// Text, or parts in order.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl Part {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) | Self::Thinking(text) => text.is_empty(),
            Self::Image(_) => false,
        }
    }
}

impl Content {
    pub(super) fn into_parts(self) -> Vec<Part> {
        match self {
            Self::Text(text) => vec![Part::Text(text)],
            Self::Parts(parts) => parts,
        }
    }

    pub(super) fn has_thinking_part(&self) -> bool {
        matches!(self, Self::Parts(parts) if parts.iter().any(|p| matches!(p, Part::Thinking(_))))
    }

    /// Reasoning in either shape it arrives in: a part, or an opening tag in the text.
    pub(super) fn has_thinking(&self) -> bool {
        match self {
            Self::Text(text) => text.contains("<think>"),
            Self::Parts(_) => self.has_thinking_part(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.is_empty(),
        }
    }

    /// All thinking parts joined.
    pub(super) fn thinking(&self) -> String {
        match self {
            Self::Text(_) => String::new(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Thinking(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
        }
    }

    /// All text joined, thinking left out.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    Part::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
        }
    }

    pub(super) fn has_image(&self) -> bool {
        matches!(self, Self::Parts(parts) if parts.iter().any(|p| matches!(p, Part::Image(_))))
    }
}

/// A part of a content.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Text(String),
    Thinking(String),
    Image(Chunk),
}

impl Part {
    fn read(part: &Json) -> Result<Self> {
        let text = |field: &str| {
            let text = part.get(field).and_then(Json::as_str).map(str::to_owned);
            text.ok_or_else(|| bad(field, "must be text"))
        };
        match text("type")?.as_str() {
            "text" => Ok(Self::Text(text("text")?)),
            "thinking" => Ok(Self::Thinking(text("thinking")?)),
            "image" => {
                let chunk = image(&text("image")?)?;
                let tokens = match part.get("expected_tokens") {
                    Some(Json::Int(digits)) => digits.parse().ok(),
                    _ => None,
                };
                Ok(Self::Image(match tokens {
                    Some(tokens) => chunk.with_expected_tokens(tokens),
                    None => chunk,
                }))
            }
            other => Err(Error::invalid(
                "type",
                format!("{other:?} is no part renderers know"),
            )),
        }
    }
}

/// An image from a `data:` URI, or where the service will find it.
fn image(source: &str) -> Result<Chunk> {
    let format = |name: &str| match name.to_ascii_lowercase().as_str() {
        "png" => Ok(ImageFormat::Png),
        "jpg" | "jpeg" => Ok(ImageFormat::Jpeg),
        _ => Err(bad("image", "must be a PNG or JPEG")),
    };
    let Some(uri) = source.strip_prefix("data:image/") else {
        let path = source.split(['?', '#']).next().unwrap_or_default();
        let extension = Path::new(path).extension().and_then(|e| e.to_str());
        return Ok(Chunk::image_asset(
            source,
            format(extension.unwrap_or_default())?,
        ));
    };
    let (kind, data) = uri
        .split_once(";base64,")
        .ok_or_else(|| bad("image", "must be a base64 data URI"))?;
    let bytes = BASE64
        .decode(data)
        .map_err(|error| Error::invalid("image", format!("is no base64: {error}")))?;
    Ok(Chunk::image(bytes, format(kind)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_fields_in_order() {
        let text = r#"{"role": "user", "b": 1, "a": {"z": 1, "y": 2}, "content": "hi"}"#;
        let message: Message = serde_json::from_str(text).unwrap();
        assert_eq!(message.to_json().to_string(), text);
        assert!(serde_json::from_str::<Message>("3").is_err());
    }

    #[test]
    fn what_renderers_cannot_read_is_named() {
        #[track_caller]
        fn check(json: &str, expected: &str) {
            let message: Message = serde_json::from_str(json).unwrap();
            assert_eq!(message.to_turn().unwrap_err().to_string(), expected);
        }
        check(r#"{"content": ""}"#, "invalid role: must be given");
        check(r#"{"role": "user"}"#, "invalid content: must be given");
        check(
            r#"{"role": "user", "content": [{"type": "text"}]}"#,
            "invalid content[0].text: must be text",
        );
        check(
            r#"{"role": "user", "content": "", "tool_calls": [{"function": {}}]}"#,
            "invalid tool_calls[0].function.name: must be text",
        );
        check(
            r#"{"role": "user", "content": [{"type": "image", "image": "a.gif"}]}"#,
            "invalid content[0].image: must be a PNG or JPEG",
        );
    }

    #[test]
    fn images_come_along_or_are_fetched() {
        let json = r#"{"role": "user", "content": [{"type": "image", "expected_tokens": 7,
            "image": "data:image/png;base64,iVBO"}]}"#;
        let message: Message = serde_json::from_str(json).unwrap();
        let turn = message.to_turn().unwrap();
        assert!(turn.content.has_image());
        let Content::Parts(parts) = turn.content else {
            panic!("parts were given")
        };
        assert!(matches!(&parts[0], Part::Image(chunk) if chunk.length().unwrap() == 7));
    }
}
