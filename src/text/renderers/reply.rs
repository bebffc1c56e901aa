//! What a model said, read back: blocks of thinking, calls of tools, and how it ended.

use super::super::json::{Json, Style};
use super::super::message::{Content, Message, Part, ToolCall, UnparsedToolCall};
use super::super::space::Strip;
use super::layout::Codec;
use super::{Parsed, Termination};
use crate::error::{Error, Result};

/// A message under construction.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) content: Content,
    pub(super) calls: Vec<ToolCall>,
    pub(super) unparsed: Vec<UnparsedToolCall>,
}

impl Reply {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self {
            content: Content::Text(text.into()),
            calls: Vec::new(),
            unparsed: Vec::new(),
        }
    }

    /// The parts of an answer that say something; one text is the whole content.
    pub(super) fn parts(parts: impl IntoIterator<Item = Part>) -> Self {
        let says = |part: &Part| !part.is_empty();
        let mut parts: Vec<Part> = parts.into_iter().filter(says).collect();
        let content = match parts.as_mut_slice() {
            [Part::Text(text)] => Content::Text(std::mem::take(text)),
            _ => Content::Parts(parts),
        };
        Self {
            content,
            ..Self::text("")
        }
    }

    pub(super) fn ended(self, termination: Termination) -> Parsed {
        let message = match self.content {
            Content::Text(text) => Message::assistant(&text),
            Content::Parts(parts) => {
                let parts = parts.into_iter().filter_map(|part| match part {
                    Part::Text(text) => Some(json_part("text", text)),
                    Part::Thinking(text) => Some(json_part("thinking", text)),
                    Part::Image(_) => None,
                });
                Message::new("assistant", Json::Array(parts.collect()))
            }
        };
        let message = match self.calls.is_empty() {
            true => message,
            false => message.with_tool_calls(self.calls),
        };
        let message = match self.unparsed.is_empty() {
            true => message,
            false => message.with("unparsed_tool_calls", self.unparsed),
        };
        Parsed {
            message,
            termination,
        }
    }

    /// Names calls as the service's own renderers do.
    pub(super) fn with_ids(mut self) -> Self {
        for (index, call) in self.calls.iter_mut().enumerate() {
            call.id = Some(own_id(&call.name, index));
        }
        self
    }

    /// Sorts calls that were read from those that were not.
    pub(super) fn take(&mut self, calls: Vec<std::result::Result<ToolCall, UnparsedToolCall>>) {
        for call in calls {
            match call {
                Ok(call) => self.calls.push(call),
                Err(unparsed) => self.unparsed.push(unparsed),
            }
        }
    }
}

/// The id of a call that has none.
pub(super) fn own_id(name: &str, index: usize) -> String {
    let name = if name.is_empty() { "unknown" } else { name };
    format!("functions.{name}:{index}")
}

fn json_part(kind: &str, text: String) -> Json {
    Json::Object(vec![
        ("type".to_owned(), Json::from(kind)),
        (kind.to_owned(), Json::String(text)),
    ])
}

/// The text before the stop token, and whether there was one.
///
/// # Errors
///
/// If there are several: the sampler was then given other stop tokens.
pub(super) fn until_stop(
    codec: &Codec,
    tokens: &[i32],
    stops: &[&str],
) -> Result<(String, Option<usize>)> {
    let (text, stop, after) = first_stop(codec, tokens, stops)?;
    let mut more = 0;
    for stop in stops {
        let stop = codec.token(stop)?;
        more += after.iter().filter(|token| **token == stop).count();
    }
    if more > 0 {
        let problem = format!(
            "{} stop tokens, not one: sample with the renderer's stop",
            more + 1
        );
        return Err(Error::invalid("tokens", problem));
    }
    Ok((text, stop))
}

/// The text before the first stop token, which one it is, and the tokens after it.
pub(super) fn first_stop<'a>(
    codec: &Codec,
    tokens: &'a [i32],
    stops: &[&str],
) -> Result<(String, Option<usize>, &'a [i32])> {
    let stops: Vec<i32> = stops
        .iter()
        .map(|stop| codec.token(stop))
        .collect::<Result<_>>()?;
    let which = |token: &i32| stops.iter().position(|stop| stop == token);
    match tokens.iter().position(|token| which(token).is_some()) {
        Some(end) => Ok((
            codec.decode(&tokens[..end])?,
            which(&tokens[end]),
            &tokens[end + 1..],
        )),
        None => Ok((codec.decode(tokens)?, None, &[])),
    }
}

/// The tokens with a prompt's last words before them, where the model goes on from these.
pub(super) fn restored(codec: &Codec, tokens: &[i32], open: &str) -> Result<Vec<i32>> {
    let (open, close) = (codec.fixed(open)?, codec.token("</think>")?);
    let mut restored = Vec::new();
    if !tokens.starts_with(&open) && tokens.contains(&close) {
        restored.extend_from_slice(&open);
    }
    restored.extend_from_slice(tokens);
    Ok(restored)
}

/// Splits text at its `<think>..</think>` blocks; `None` if no block is opened.
pub(super) fn think_blocks(text: &str) -> Option<Vec<Part>> {
    text.contains("<think>")
        .then(|| blocks(text, &[("<think>", "</think>")]).0)
}

/// Splits text at its `<think>` and `<tool_call>` blocks; `None` if none is opened.
pub(super) fn content_blocks(text: &str) -> Option<(Vec<Part>, Vec<String>)> {
    let kinds = [("<think>", "</think>"), ("<tool_call>", "</tool_call>")];
    let any = kinds.iter().any(|(open, _)| text.contains(open));
    any.then(|| blocks(text, &kinds))
}

/// Texts and thinking in order, and every whole block of a second kind, tags included.
fn blocks(text: &str, kinds: &[(&str, &str)]) -> (Vec<Part>, Vec<String>) {
    let mut parts = Vec::new();
    let mut others = Vec::new();
    let mut rest = text;
    let mut from = 0;
    let mut ends = vec![true; kinds.len()];
    while let Some((start, kind)) = first_of(&rest[from..], kinds, &ends) {
        let start = from + start;
        let (open, close) = kinds[kind];
        let Some(length) = rest[start + open.len()..].find(close) else {
            // This one stays open, as will others of its kind: a model may repeat itself to no end.
            // Another kind may still have whole blocks behind it.
            ends[kind] = false;
            from = start + open.len();
            continue;
        };
        let inner = &rest[start + open.len()..start + open.len() + length];
        let end = start + open.len() + length + close.len();
        push_text(&mut parts, &rest[..start]);
        match kind {
            0 if !inner.is_empty() => parts.push(Part::Thinking(inner.to_owned())),
            0 => {}
            _ => others.push(rest[start..end].to_owned()),
        }
        rest = &rest[end..];
        from = 0;
    }
    push_text(&mut parts, rest);
    (parts, others)
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

fn first_of(text: &str, kinds: &[(&str, &str)], ends: &[bool]) -> Option<(usize, usize)> {
    text.match_indices('<').find_map(|(at, _)| {
        let is_open = |(open, _): &(&str, &str)| text[at..].starts_with(open);
        let kind = kinds.iter().position(is_open)?;
        ends[kind].then_some((at, kind))
    })
}

/// Reads JSON, as Python does ([`Json::parse`]) or as the service's own renderers do.
pub(super) type ReadJson = fn(&str) -> std::result::Result<Json, String>;

/// A call as JSON between `<tool_call>` tags.
pub(super) fn json_call(
    block: &str,
    json: ReadJson,
) -> std::result::Result<ToolCall, UnparsedToolCall> {
    let fail = |error: String| UnparsedToolCall {
        raw_text: block.to_owned(),
        error,
    };
    let inner = inside(block, "<tool_call>", "</tool_call>").strip();
    let call = json(inner).map_err(|error| fail(format!("Invalid JSON: {error}")))?;
    if call.as_object().is_none() {
        return Err(fail("Tool call is not a JSON object".to_owned()));
    }
    let Some(name) = call.get("name").and_then(Json::as_str) else {
        return Err(fail("Missing or invalid 'name' field".to_owned()));
    };
    let Some(arguments) = call.get("arguments").filter(|a| a.as_object().is_some()) else {
        return Err(fail("Missing or invalid 'arguments' field".to_owned()));
    };
    let mut read = ToolCall::new(name, arguments.dump(Style::ASCII));
    read.id = call.get("id").and_then(Json::as_str).map(str::to_owned);
    Ok(read)
}

/// What stands between two tags at the ends of a block.
pub(super) fn inside<'a>(block: &'a str, open: &str, close: &str) -> &'a str {
    let block = block.strip_prefix(open).unwrap_or(block);
    block.strip_suffix(close).unwrap_or(block)
}

/// The most a report of a broken call quotes, in characters.
const MAX_QUOTED: usize = 16384;

pub(super) const UNTERMINATED: &str = "unterminated tool block";

/// A block opened more often than closed.
pub(super) fn unterminated(text: &str, open: &str, close: &str) -> Option<UnparsedToolCall> {
    if text.matches(open).count() <= text.matches(close).count() {
        return None;
    }
    Some(left_open(&text[text.rfind(open)?..], open, close))
}

/// The report of a block without an end.
pub(super) fn left_open(raw: &str, open: &str, close: &str) -> UnparsedToolCall {
    UnparsedToolCall {
        raw_text: raw.chars().take(MAX_QUOTED).collect(),
        error: format!("{UNTERMINATED}: '{open}' opened without a matching '{close}'"),
    }
}

/// Text that is a JSON value, or else the text.
pub(super) fn value_or_text(text: &str) -> Json {
    Json::parse(text).unwrap_or_else(|_| Json::from(text))
}

/// The same as the service's own renderers read it: `NaN`, numbers no float holds and halves of
/// characters, which Python takes for JSON, are text to them.
pub(super) fn strict_value_or_text(text: &str) -> Json {
    match strict_json(text) {
        Ok(_) => value_or_text(text),
        Err(_) => Json::from(text),
    }
}

/// A value as the service's own renderers read it, whose whole numbers have 64 bits.
pub(super) fn strict_json(text: &str) -> std::result::Result<Json, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_split_as_they_stand() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            let got = content_blocks(text).map(|(parts, calls)| format!("{parts:?} {calls:?}"));
            assert_eq!(got.as_deref(), expected);
        }
        check("plain </think>", None);
        check(
            "<think>a</think>b<tool_call>c</tool_call>d",
            Some(r#"[Thinking("a"), Text("b"), Text("d")] ["<tool_call>c</tool_call>"]"#),
        );
        check("<think></think>b", Some(r#"[Text("b")] []"#));
        check("a<tool_call>b", Some(r#"[Text("a<tool_call>b")] []"#));
        check(
            "<tool_call>a<think>b</think>",
            Some(r#"[Text("<tool_call>a"), Thinking("b")] []"#),
        );
        // Each is looked at once, however often a model repeats itself.
        for again in ["<tool_call>", "<think>", "<think>a</think>"] {
            content_blocks(&again.repeat(300_000)).unwrap();
        }
    }

    #[test]
    fn open_blocks_are_found() {
        let open = unterminated("<a>1</a><a>2", "<a>", "</a>").unwrap();
        assert_eq!(open.raw_text, "<a>2");
        assert!(unterminated("<a>1</a>", "<a>", "</a>").is_none());
    }
}
