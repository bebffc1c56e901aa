//! Anthropic's `messages`: the same conversation in other words.

use serde_json::{Map, Value, json};

use super::errors::Fault;
use super::request::Fields;
use super::shape::{Choice, Shape, Usage};
use super::speech::Said;

/// The request as OpenAI's chats have it.
pub(super) fn translate(mut fields: Fields) -> Result<Fields, Fault> {
    let mut chat = Map::new();
    for (theirs, ours) in [
        ("model", "model"),
        ("stream", "stream"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("stop_sequences", "stop"),
        ("metadata", "metadata"),
    ] {
        if let Some(value) = fields.take::<Value>(theirs)? {
            chat.insert(ours.into(), value);
        }
    }
    chat.insert("max_tokens".into(), fields.need::<Value>("max_tokens")?);
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        messages.push(json!({"role": "system", "content": text("system", &system)?}));
    }
    for (index, message) in fields.need::<Vec<Value>>("messages")?.iter().enumerate() {
        turn(&format!("messages[{index}]"), message, &mut messages)?;
    }
    chat.insert("messages".into(), messages.into());
    if let Some(tools) = fields.take::<Vec<Value>>("tools")? {
        let tools = tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
        chat.insert("tools".into(), tools.into());
    }
    let choice = fields.take::<Value>("tool_choice")?.unwrap_or_default();
    if choice["disable_parallel_tool_use"] == true {
        let why = "disable_parallel_tool_use is not supported: a model may make several calls";
        return Err(Fault::unsupported("tool_choice", why));
    }
    match choice["type"].as_str() {
        None | Some("auto") => {}
        Some("none") => drop(chat.insert("tool_choice".into(), "none".into())),
        Some(_) => {
            let why = "the model cannot be made to call a tool: only auto and none are supported";
            return Err(Fault::unsupported("tool_choice", why));
        }
    }
    match fields.take::<Value>("thinking")? {
        Some(thinking) if thinking["type"] == "enabled" => {
            let why = "a budget cannot be promised; models that think do so by themselves";
            return Err(Fault::unsupported("thinking", why));
        }
        _ => {}
    }
    fields.end()?;
    Ok(Fields::of(chat))
}

fn tool(tool: &Value) -> Result<Value, Fault> {
    if tool["name"].as_str().is_none() || tool.get("input_schema").is_none() {
        return Err(Fault::unsupported(
            "tools",
            "must have a name and an input_schema",
        ));
    }
    Ok(
        json!({"type": "function", "function": {"name": tool["name"],
        "description": tool["description"], "parameters": tool["input_schema"]}}),
    )
}

/// One message, which may answer calls of tools besides.
fn turn(place: &str, message: &Value, messages: &mut Vec<Value>) -> Result<(), Fault> {
    let role = message["role"].as_str().unwrap_or_default();
    if !["user", "assistant", "system"].contains(&role) {
        return Err(Fault::bad(
            &format!("{place}.role"),
            "must be user or assistant",
        ));
    }
    let content = &message["content"];
    if content.is_string() {
        messages.push(json!({"role": role, "content": content}));
        return Ok(());
    }
    let Some(blocks) = content.as_array() else {
        return Err(Fault::bad(
            &format!("{place}.content"),
            "must be text or a list of blocks",
        ));
    };
    let (mut said, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        let piece = |field: &str| block[field].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str().unwrap_or_default() {
            "text" => said += &piece("text"),
            "thinking" => thought += &piece("thinking"),
            "tool_use" => calls.push(json!({"id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()}})),
            "tool_result" => {
                let result = text(place, &block["content"])?;
                messages.push(json!({"role": "tool", "content": result,
                    "tool_call_id": block["tool_use_id"]}));
            }
            kind => {
                let problem = format!("blocks of type {kind:?} are not supported");
                return Err(Fault::unsupported(&format!("{place}.content"), problem));
            }
        }
    }
    let mut turn = json!({"role": role, "content": said});
    if !thought.is_empty() {
        turn["reasoning_content"] = json!(thought);
    }
    let answers_only = said.is_empty() && calls.is_empty() && role == "user" && !blocks.is_empty();
    if !calls.is_empty() {
        turn["tool_calls"] = calls.into();
    }
    if !answers_only {
        messages.push(turn);
    }
    Ok(())
}

/// Text, or blocks of nothing else.
fn text(place: &str, value: &Value) -> Result<String, Fault> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| match (&block["type"], &block["text"]) {
                (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.as_str()),
                (kind, _) => {
                    let problem = format!("a block of type {kind} is not text");
                    Err(Fault::unsupported(place, problem))
                }
            })
            .collect(),
        _ => Err(Fault::bad(place, "must be text or a list of blocks")),
    }
}

fn message(shape: &Shape, content: Vec<Value>, prompt: usize) -> Value {
    json!({"id": shape.id, "type": "message", "role": "assistant", "model": shape.model,
        "content": content, "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": prompt, "output_tokens": 0}})
}

/// The whole answer.
pub(super) fn whole(shape: &Shape, choice: &Choice, usage: Usage) -> Value {
    let said = &choice.said;
    let mut content = Vec::new();
    if !said.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": said.reasoning, "signature": ""}));
    }
    if !said.content.is_empty() {
        content.push(json!({"type": "text", "text": said.content}));
    }
    for call in &said.calls {
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}));
    }
    let mut answer = message(shape, content, usage.prompt);
    answer["stop_reason"] = json!(reason(choice));
    answer["stop_sequence"] = json!(choice.stop);
    answer["usage"]["output_tokens"] = json!(usage.completion);
    answer
}

fn reason(choice: &Choice) -> &'static str {
    match (choice.said.calls.is_empty(), &choice.stop, choice.reason) {
        (false, ..) => "tool_use",
        (_, Some(_), _) => "stop_sequence",
        (_, _, "length") => "max_tokens",
        _ => "end_turn",
    }
}

/// The blocks of a streamed answer: each is opened, grows, and is closed before the next.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<&'static str>,
    count: usize,
}

type Events = Vec<(&'static str, Value)>;

impl Blocks {
    pub(super) fn start(shape: &Shape, prompt: usize) -> Events {
        let message = message(shape, Vec::new(), prompt);
        vec![(
            "message_start",
            json!({"type": "message_start", "message": message}),
        )]
    }

    pub(super) fn say(&mut self, said: &Said) -> Events {
        let mut events = Events::new();
        if !said.reasoning.is_empty() {
            let empty = json!({"type": "thinking", "thinking": "", "signature": ""});
            self.open("thinking", empty, &mut events);
            let delta = json!({"type": "thinking_delta", "thinking": said.reasoning});
            self.delta(delta, &mut events);
        }
        if !said.content.is_empty() {
            self.open("text", json!({"type": "text", "text": ""}), &mut events);
            let delta = json!({"type": "text_delta", "text": said.content});
            self.delta(delta, &mut events);
        }
        for call in &said.calls {
            self.close(&mut events);
            let empty = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
            self.open("tool_use", empty, &mut events);
            let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
            self.delta(delta, &mut events);
        }
        events
    }

    pub(super) fn end(&mut self, choice: &Choice) -> Events {
        let mut events = Events::new();
        self.close(&mut events);
        let delta = json!({"stop_reason": reason(choice), "stop_sequence": choice.stop});
        let usage = json!({"output_tokens": choice.tokens});
        let last = json!({"type": "message_delta", "delta": delta, "usage": usage});
        events.push(("message_delta", last));
        events.push(("message_stop", json!({"type": "message_stop"})));
        events
    }

    fn open(&mut self, kind: &'static str, empty: Value, events: &mut Events) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        self.open = Some(kind);
        let start = json!({"type": "content_block_start", "index": self.count,
            "content_block": empty});
        events.push(("content_block_start", start));
    }

    fn delta(&self, delta: Value, events: &mut Events) {
        let delta = json!({"type": "content_block_delta", "index": self.count, "delta": delta});
        events.push(("content_block_delta", delta));
    }

    fn close(&mut self, events: &mut Events) {
        if self.open.take().is_some() {
            let stop = json!({"type": "content_block_stop", "index": self.count});
            events.push(("content_block_stop", stop));
            self.count += 1;
        }
    }
}
