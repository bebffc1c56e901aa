//! `glm5_3` and `glm5_2`: roles are tokens, and the next role's token ends the model's turn.

use super::super::json::{Json, Style, set};
use super::super::letters::is_word;
use super::super::message::{Content, Part as Said, ToolCall, Turn, UnparsedToolCall};
use super::super::space::Strip;
use super::conversation::by_role;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, Split};
use super::reply::{
    Reply, content_blocks, first_stop, inside, json_call, strict_json, until_stop, value_or_text,
};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const USER: &str = "<|user|>";
const OBSERVATION: &str = "<|observation|>";
const END: &str = "<|endoftext|>";
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// See [`Family::survey`]: messages say what is trained on.
const FLAGGED: usize = 1;

struct Glm {
    effort: &'static str,
    strips_history: bool,
    /// The service's own variants: results of tools stay in the order given, and the last turn
    /// ends with the end of the text.
    vendor: bool,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let (effort, strips_history, vendor) = match name {
        "glm5_3_max_reasoning" => ("Max", false, false),
        "glm5_3_high_reasoning" => ("High", false, false),
        "glm5_3_low_reasoning" => ("Low", false, false),
        "glm5_3_preserve_thinking" => ("Max", false, true),
        "glm5_3_flash" | "glm5_2" => ("Max", true, true),
        _ => return None,
    };
    Some(Box::new(Glm {
        effort,
        strips_history,
        vendor,
    }))
}

impl Glm {
    fn assistant(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let (thinking, text) = reasoning_and_text(&turn.content)?;
        let keep = !self.strips_history || place.after_last_user();
        let thinking = if keep { thinking } else { String::new() };
        let mut output = format!("{thinking}</think>{}", text.strip());
        for call in &turn.calls {
            output += &format_call(call)?;
        }
        let mut pieces = vec![Piece::Markup(output)];
        let terminator = terminator(turn, place.next());
        let mut overlap = Vec::new();
        match terminator {
            Some(_) if place.is_last && (self.vendor || by_message(place)) => {
                overlap.push(Piece::fixed(END));
            }
            Some(token) if place.is_last => overlap.push(Piece::fixed(token)),
            // It is what the model has to learn to end its turn with, so it is its own output,
            // and the next message leaves it out.
            Some(token) => pieces.push(Piece::fixed(token)),
            None => {}
        }
        Ok(Rendered {
            header: vec![Piece::fixed("<|assistant|><think>")],
            output: vec![Part::Text(pieces)],
            overlap,
            joined: false,
        })
    }
}

/// Messages say themselves what is trained on, which only the service's own variants know.
fn by_message(place: &Place<'_>) -> bool {
    place.as_produced && place.mark == FLAGGED
}

/// The token the model ends this turn with, if the next message starts with it.
fn terminator(turn: &Turn, next: Option<&Turn>) -> Option<&'static str> {
    let expected = if turn.calls.is_empty() {
        USER
    } else {
        OBSERVATION
    };
    let follows = match next.map(|turn| turn.role.as_str()) {
        None => true,
        Some("user") => expected == USER,
        Some("tool") => expected == OBSERVATION,
        Some(_) => false,
    };
    follows.then_some(expected)
}

/// The turn before has already written this message's role.
fn is_introduced(turn: &Turn, place: &Place<'_>) -> bool {
    let before = place.previous().filter(|turn| turn.is("assistant"));
    before.is_some_and(|before| before.tokens.is_none() && terminator(before, Some(turn)).is_some())
}

fn visible(turn: &Turn) -> Result<String> {
    match turn.content.has_image() || turn.content.has_thinking_part() {
        true => Err(Error::invalid("content", "must be text for this model")),
        false => Ok(turn.content.text()),
    }
}

fn reasoning_and_text(content: &Content) -> Result<(String, String)> {
    match content {
        Content::Parts(_) if content.has_image() => {
            Err(Error::invalid("content", "must be text for this model"))
        }
        Content::Parts(_) => Ok((content.thinking(), content.text())),
        Content::Text(text) => Ok(match text.split_once("</think>") {
            Some((before, _)) => {
                let thinking = before.rsplit("<think>").next().unwrap_or_default();
                let said = text.rsplit("</think>").next().unwrap_or_default();
                (thinking.to_owned(), said.to_owned())
            }
            None => (String::new(), text.clone()),
        }),
    }
}

impl Family for Glm {
    fn facts(&self) -> Facts {
        let stop: &'static [&'static str] = match self.vendor {
            true => &[END, USER, OBSERVATION],
            false => &[USER, OBSERVATION, END],
        };
        Facts {
            extends: !self.strips_history,
            close: "",
            ..Facts::ending(stop)
        }
    }

    fn begins(&self, _: &Codec) -> Result<Vec<Piece>> {
        let text = format!("[gMASK]<sop><|system|>Reasoning Effort: {}", self.effort);
        Ok(vec![Piece::fixed(text)])
    }

    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        match self.vendor {
            true => by_role(turns),
            false => turns,
        }
    }

    fn survey(&self, turns: &[Turn]) -> usize {
        match turns.iter().any(|turn| turn.trainable.is_some()) {
            true => FLAGGED,
            false => 0,
        }
    }

    fn prepare(&self, turns: Vec<Turn>, survey: usize) -> Result<(Vec<Turn>, usize)> {
        match self.vendor {
            true => Ok((turns, survey)),
            false => Ok((in_call_order(turns), survey)),
        }
    }

    fn split(&self, _: &[Turn]) -> Split {
        match self.strips_history {
            true => Split::UserTurns,
            false => Split::Whole,
        }
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let said = |header: &'static str, output: String| Rendered {
            header: vec![Piece::fixed(header)],
            output: vec![Part::markup(output)],
            ..Rendered::default()
        };
        let introduced = is_introduced(turn, place);
        match turn.role.as_str() {
            "system" => Ok(said("<|system|>", visible(turn)?)),
            "user" if introduced => Ok(said("", visible(turn)?)),
            "user" => Ok(said(USER, visible(turn)?)),
            "tool" => {
                let text = format!("<tool_response>{}</tool_response>", visible(turn)?);
                let goes_on = place.previous().is_some_and(|turn| turn.is("tool"));
                Ok(said(
                    if goes_on || introduced {
                        ""
                    } else {
                        OBSERVATION
                    },
                    text,
                ))
            }
            "assistant" => self.assistant(turn, place),
            other => Err(Error::invalid(
                "role",
                format!("this model knows no {other:?}"),
            )),
        }
    }

    fn suffix(&self, _: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed("<|assistant|><think>")])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let deferred = |tool: &&Json| tool.get("defer_loading").is_some_and(Json::is_truthy);
        let lines = tools.iter().filter(|tool| !deferred(tool)).map(|tool| {
            let declared = match self.vendor {
                true => specification(tool),
                false => {
                    let mut kept = tool.as_object().unwrap_or_default().to_vec();
                    kept.retain(|(key, _)| key != "strict" && key != "defer_loading");
                    Json::Object(kept)
                }
            };
            declared.dump(Style::PLAIN) + "\n"
        });
        let lines: String = lines.collect();
        let text = format!(
            "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
             You are provided with function signatures within <tools></tools> XML tags:\n\
             <tools>\n{lines}</tools>\n\nFor each function call, output the function name and \
             arguments within the following XML format:\n<tool_call>{{function-name}}\
             <arg_key>{{arg-key-1}}</arg_key><arg_value>{{arg-value-1}}</arg_value>\
             <arg_key>{{arg-key-2}}</arg_key><arg_value>{{arg-value-2}}</arg_value>...</tool_call>"
        );
        let mut turns = vec![Turn::new("system", text)];
        if !system.is_empty() {
            turns.push(Turn::new("system", system));
        }
        Ok(turns)
    }

    fn opening(&self) -> Option<&'static str> {
        Some("<think>")
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        if self.vendor {
            return read_vendor(codec, tokens);
        }
        let (text, stop) = until_stop(codec, tokens, &[USER, OBSERVATION, END])?;
        let termination = match stop {
            None => return Ok(Reply::text(text).ended(Termination::Malformed)),
            Some(2) => Termination::Eos,
            Some(_) => Termination::StopSequence,
        };
        let mut reply = Reply::text(text.as_str());
        if let Some((parts, calls)) = content_blocks(&text) {
            reply.content = Content::Parts(parts);
            let (json, other): (Vec<_>, Vec<_>) = calls
                .iter()
                .map(|call| json_call(call, Json::parse))
                .partition(Result::is_ok);
            reply.take(json);
            let other = other.into_iter().filter_map(std::result::Result::err);
            reply.take(other.map(|call| parse_call(&call.raw_text)).collect());
        }
        Ok(reply.ended(termination))
    }
}

/// What the service's own variants make of an answer: all before the end of the block is
/// thinking, also where the answer was cut off in it, and all after it that is no whole call is
/// one text.
fn read_vendor(codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
    let (text, stop, _) = first_stop(codec, tokens, &[END, USER, OBSERVATION])?;
    let (thinking, said) = text.split_once("</think>").unwrap_or((&text, ""));
    let thinking = inside(thinking, "<think>", "").trim();
    let mut parts = Vec::new();
    if !thinking.is_empty() {
        parts.push(Said::Thinking(thinking.to_owned()));
    }
    let mut reply = Reply::text("");
    let mut text = String::new();
    let mut rest = said;
    while let Some(start) = rest.find(OPEN) {
        text += &rest[..start];
        rest = &rest[start..];
        if let Some((call, after)) = whole_call(rest) {
            reply.calls.push(call);
            rest = after;
            continue;
        }
        text += OPEN;
        // A model may begin again and again: a call ends before the next begins.
        let (block, after) = (rest, &rest[OPEN.len()..]);
        let block = &block[..after
            .find(OPEN)
            .map_or(block.len(), |next| OPEN.len() + next)];
        if let Some(length) = block.find(CLOSE) {
            let broken = parse_call(&block[..length + CLOSE.len()]);
            reply.unparsed.extend(broken.err());
        }
        rest = after;
    }
    text += rest;
    if !text.trim().is_empty() {
        parts.push(Said::Text(text.trim().to_owned()));
    }
    reply.content = match parts.as_slice() {
        [Said::Text(text)] => Content::Text(text.clone()),
        _ => Content::Parts(parts),
    };
    Ok(reply.with_ids().ended(match stop {
        None => Termination::Malformed,
        Some(0) => Termination::Eos,
        Some(_) => Termination::StopSequence,
    }))
}

/// A tool as the service's own variants declare it: the three fields of a specification.
fn specification(tool: &Json) -> Json {
    let field = |key: &str, missing: Json| {
        let value = tool.get(key).cloned().unwrap_or(missing);
        (key.to_owned(), value)
    };
    let (name, parameters) = field("parameters", Json::Object(Vec::new()));
    Json::Object(vec![
        field("name", Json::Null),
        field("description", Json::from("")),
        (name, in_schema_order(parameters)),
    ])
}

/// The keywords of a schema in the order in which they are usually written, then all other keys
/// by name.
fn in_schema_order(value: Json) -> Json {
    const KEYWORDS: [&str; 11] = [
        "type",
        "description",
        "properties",
        "required",
        "items",
        "enum",
        "additionalProperties",
        "default",
        "anyOf",
        "oneOf",
        "allOf",
    ];
    let place = |key: &str| {
        let known = KEYWORDS.iter().position(|keyword| *keyword == key);
        known.unwrap_or(KEYWORDS.len())
    };
    match value {
        Json::Object(mut pairs) => {
            pairs.sort_by(|(a, _), (b, _)| (place(a), a).cmp(&(place(b), b)));
            let pairs = pairs.into_iter();
            Json::Object(pairs.map(|(k, v)| (k, in_schema_order(v))).collect())
        }
        Json::Array(items) => Json::Array(items.into_iter().map(in_schema_order).collect()),
        other => other,
    }
}

/// Results next to each other in the order of their calls, when ids leave no doubt about it.
fn in_call_order(turns: Vec<Turn>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::with_capacity(turns.len());
    let mut rest = turns.into_iter().peekable();
    while let Some(turn) = rest.next() {
        let is_tool = turn.is("tool");
        let calls = out
            .last()
            .filter(|_| is_tool)
            .map(|turn| turn.calls.clone());
        let mut group = vec![turn];
        while is_tool && let Some(more) = rest.next_if(|turn| turn.is("tool")) {
            group.push(more);
        }
        out.extend(sorted(group, &calls.unwrap_or_default()));
    }
    out
}

fn sorted(mut group: Vec<Turn>, calls: &[ToolCall]) -> Vec<Turn> {
    let ids: Option<Vec<&str>> = calls.iter().map(|call| call.id.as_deref()).collect();
    let answered: Option<Vec<&str>> = group
        .iter()
        .map(|turn| turn.call_id.as_deref().filter(|id| !id.is_empty()))
        .collect();
    let (Some(ids), Some(answered)) = (ids, answered) else {
        return group;
    };
    let unique = |ids: &[&str]| (1..ids.len()).all(|n| !ids[..n].contains(&ids[n]));
    if !unique(&ids) || !unique(&answered) || !answered.iter().all(|id| ids.contains(id)) {
        return group;
    }
    let place = |turn: &Turn| {
        ids.iter()
            .position(|id| turn.call_id.as_deref() == Some(*id))
    };
    group.sort_by_key(place);
    group
}

fn format_call(call: &ToolCall) -> Result<String> {
    let mut out = format!("<tool_call>{}", call.name);
    for (key, value) in call.parse_arguments()?.as_object().unwrap_or_default() {
        let value = match value {
            Json::String(text) => text.clone(),
            other => other.dump(Style::PLAIN),
        };
        out += &format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>");
    }
    Ok(out + "</tool_call>")
}

fn parse_call(block: &str) -> std::result::Result<ToolCall, UnparsedToolCall> {
    let fail = |error: &str| UnparsedToolCall {
        raw_text: block.to_owned(),
        error: error.to_owned(),
    };
    let inner = inside(block.strip(), OPEN, CLOSE).strip();
    let is_name = |c: char| is_word(c) || matches!(c, '-' | '.');
    let end = inner.find(|c| !is_name(c)).unwrap_or(inner.len());
    let (name, mut rest) = inner.split_at(end);
    if name.is_empty() {
        return Err(fail("Malformed GLM tool call"));
    }
    let mut arguments = Vec::new();
    while let Some((before, key, value, after)) = pair(rest) {
        if !before.strip().is_empty() {
            return Err(fail("Unexpected content between tool call arguments"));
        }
        if key.strip().is_empty() {
            return Err(fail("Empty tool call argument key"));
        }
        set(&mut arguments, key.strip().to_owned(), value_or_text(value));
        rest = after;
    }
    if !rest.strip().is_empty() {
        return Err(fail("Unexpected trailing content inside tool call"));
    }
    let arguments = Json::Object(arguments).dump(Style::ASCII);
    Ok(ToolCall::new(name, arguments))
}

/// A call that a text begins with, as the service's own variants take it: any name without space
/// is one. With what follows it.
fn whole_call(text: &str) -> Option<(ToolCall, &str)> {
    let rest = text.strip_prefix(OPEN)?.trim_start();
    let (name, rest) = rest.split_at(rest.find(|c: char| c.is_whitespace() || c == '<')?);
    let mut rest = rest.trim_start();
    let mut arguments = Vec::new();
    while let Some(keyed) = rest.strip_prefix("<arg_key>") {
        let (key, after) = keyed.split_at(keyed.find('<').filter(|length| *length > 0)?);
        let after = after.strip_prefix("</arg_key>")?.trim_start();
        let (value, after) = after
            .strip_prefix("<arg_value>")?
            .split_once("</arg_value>")?;
        set(
            &mut arguments,
            key.trim().to_owned(),
            value_of_64_bits(value),
        );
        rest = after.trim_start();
    }
    let after = rest.strip_prefix(CLOSE).filter(|_| !name.is_empty())?;
    let arguments = Json::Object(arguments).dump(Style::ASCII);
    Some((ToolCall::new(name, arguments), after))
}

/// A value as the service's own variants read it: a whole number of more bits is text, unless it
/// is inside of others.
fn value_of_64_bits(text: &str) -> Json {
    match strict_json(text) {
        Ok(Json::Float(_)) if !text.contains(['.', 'e', 'E']) => Json::from(text),
        Ok(value) => value,
        Err(_) => Json::from(text),
    }
}

/// What is before the first whole pair, its key and value, and what is after it.
fn pair(text: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, keyed) = text.split_once("<arg_key>")?;
    let (key, rest) = keyed.match_indices("</arg_key>").find_map(|(end, close)| {
        let after = keyed[end + close.len()..].lstrip();
        Some((&keyed[..end], after.strip_prefix("<arg_value>")?))
    })?;
    let (value, after) = rest.split_once("</arg_value>")?;
    Some((before, key, value, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_on_to_the_end_that_a_value_follows() {
        let block = "<tool_call>f<arg_key>a</arg_key>x<arg_key>b</arg_key> <arg_value>1</arg_value>\
                     </tool_call>";
        let call = parse_call(block).unwrap();
        assert_eq!(call.arguments, r#"{"a</arg_key>x<arg_key>b": 1}"#);
        let open = "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>";
        let error = parse_call(open).unwrap_err().error;
        assert_eq!(error, "Unexpected trailing content inside tool call");
        let marked = parse_call("<tool_call>मौसम</tool_call>").unwrap_err().error;
        assert_eq!(marked, "Unexpected trailing content inside tool call");
    }
}
