//! `deepseekv3` (V3.1, with and without thinking), and the V3 and R1 before it.
//!
//! Where the cookbook's renderer and the models' own template differ, this follows the template:
//! system messages are collected at the start, and turns that only call tools, or say nothing,
//! end like any other.

use super::super::json::{Json, Style};
use super::super::letters::is_word;
use super::super::message::{Content, Part as Said, ToolCall, Turn, UnparsedToolCall};
use super::super::space::Strip;
use super::conversation::by_parts;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, Split};
use super::reply::{Reply, strict_json, think_blocks, unterminated, until_stop};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const END: &str = "<｜end▁of▁sentence｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const CALLS: (&str, &str) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
const CALL: (&str, &str) = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>");
const SEPARATOR: &str = "<｜tool▁sep｜>";

#[derive(Clone, Copy, PartialEq)]
enum Model {
    /// V3.1 told not to think.
    V31,
    V31Thinking,
    V30,
    R1,
}

struct DeepSeekV3 {
    model: Model,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let model = match name {
        "deepseekv3" | "deepseekv3_disable_thinking" => Model::V31,
        "deepseekv3_thinking" => Model::V31Thinking,
        "deepseek_v3_0" => Model::V30,
        "deepseek_r1" => Model::R1,
        _ => return None,
    };
    Some(Box::new(DeepSeekV3 { model }))
}

/// See [`Family::survey`]: the conversation is one that only the template, not the cookbook, can
/// lay out, or one whose messages say what is trained on.
const BY_TEMPLATE: usize = 1;

impl DeepSeekV3 {
    fn is_v31(&self) -> bool {
        matches!(self.model, Model::V31 | Model::V31Thinking)
    }

    fn assistant(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let after_tool = place.previous().is_some_and(|turn| turn.is("tool"));
        let history = !place.is_last;
        let strip = history && (turn.calls.is_empty() || !self.is_v31());
        let mut text = match (&turn.content, self.model) {
            (Content::Text(text), Model::V31) if !after_tool => without_blocks(text),
            (_, Model::V31) if !after_tool => turn.content.text(),
            (Content::Text(text), _) => text.clone(),
            (Content::Parts(parts), _) => joined(parts, strip)?,
        };
        // Before V3.1 the prompt has the role, and history does not.
        let goes_on = match self.model {
            Model::V31 | Model::V31Thinking => true,
            Model::V30 => !place.as_produced,
            Model::R1 => history || !place.as_produced,
        };
        let mut header = match after_tool && goes_on {
            true => String::new(),
            false => ASSISTANT.to_owned(),
        };
        let thinks = turn.content.has_thinking();
        match self.model {
            Model::V31 if !after_tool => header += "</think>",
            Model::V31Thinking if !after_tool && history => header += "</think>",
            Model::V31Thinking if !after_tool && !thinks => {
                match place.as_produced && place.mark == BY_TEMPLATE {
                    true => header += "<think>",
                    false if !turn.content.is_empty() => text.insert_str(0, "<think></think>"),
                    false => {}
                }
            }
            Model::R1 if place.is_last && !thinks => header += "<think>\n",
            Model::R1 if place.is_last => {
                header += "<think>\n";
                text = text.replacen("<think>", "", 1);
            }
            _ => {}
        }
        let says = !text.is_empty() || turn.content.is_empty();
        text += &self.calls(turn)?;
        let mut output = vec![Piece::Markup(text)];
        if says || !self.is_v31() {
            output.push(Piece::fixed(END));
        }
        Ok(Rendered {
            header: vec![Piece::fixed(header)],
            output: vec![Part::Text(output)],
            ..Rendered::default()
        })
    }

    /// A turn that only calls is one the cookbook cannot lay out, so its arguments are written
    /// as the service's own renderer does.
    fn calls(&self, turn: &Turn) -> Result<String> {
        if turn.calls.is_empty() {
            return Ok(String::new());
        }
        let each = turn.calls.iter().map(|call| {
            let name = &call.name;
            let arguments = match !self.is_v31() || turn.content.is_empty() {
                true => written_anew(call)?,
                false => call.arguments.clone(),
            };
            Ok(match self.is_v31() {
                true => format!("{}{name}{SEPARATOR}{arguments}{}", CALL.0, CALL.1),
                false => format!(
                    "{}function{SEPARATOR}{name}\n```json\n{arguments}\n```{}",
                    CALL.0, CALL.1
                ),
            })
        });
        let between = if self.is_v31() { "" } else { "\n" };
        let each = each.collect::<Result<Vec<_>>>()?.join(between);
        Ok(format!("{}{each}{}", CALLS.0, CALLS.1))
    }

    fn result(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let text = turn.plain_text()?;
        let is_tool = |turn: Option<&Turn>| turn.is_some_and(|turn| turn.is("tool"));
        let (first, last) = (!is_tool(place.previous()), !is_tool(place.next()));
        let mut header = "<｜tool▁output▁begin｜>".to_owned();
        let mut output = format!("{text}<｜tool▁output▁end｜>");
        if !self.is_v31() {
            match (first, self.model) {
                (true, _) => header.insert_str(0, "<｜tool▁outputs▁begin｜>"),
                (false, Model::V30) => header.insert(0, '\n'),
                (false, _) => {}
            }
            if last {
                output += "<｜tool▁outputs▁end｜>";
            }
        }
        Ok(Rendered {
            header: vec![Piece::fixed(header)],
            output: vec![Part::markup(output)],
            ..Rendered::default()
        })
    }
}

impl Family for DeepSeekV3 {
    fn facts(&self) -> Facts {
        Facts {
            extends: matches!(self.model, Model::V31 | Model::V30),
            ..Facts::ending(&[END])
        }
    }

    fn begins(&self, _: &Codec) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed("<｜begin▁of▁sentence｜>")])
    }

    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        match self.is_v31() {
            true => turns,
            false => by_parts(turns),
        }
    }

    fn survey(&self, turns: &[Turn]) -> usize {
        let late = |turn: &Turn| turn.is("system");
        let odd = |turn: &Turn| {
            (turn.is("assistant") && turn.content.is_empty()) || turn.trainable.is_some()
        };
        match turns.iter().skip(1).any(late) || turns.iter().any(odd) {
            true => BY_TEMPLATE,
            false => 0,
        }
    }

    /// All system messages stand at the start, without a role; before V3.1, where they were said.
    fn prepare(&self, turns: Vec<Turn>, survey: usize) -> Result<(Vec<Turn>, usize)> {
        if !self.is_v31() {
            return Ok((turns, survey));
        }
        let (systems, mut turns): (Vec<Turn>, Vec<Turn>) =
            turns.into_iter().partition(|turn| turn.is("system"));
        let mut systems = systems.into_iter();
        let Some(mut first) = systems.next() else {
            return Ok((turns, survey));
        };
        let mut text = first.plain_text()?.to_owned();
        for more in systems {
            text = format!("{text}\n\n{}", more.plain_text()?);
        }
        first.content = Content::Text(text);
        turns.insert(0, first);
        Ok((turns, survey))
    }

    /// A system message that comes late is moved before what was said before it.
    fn split(&self, turns: &[Turn]) -> Split {
        let late = turns.iter().skip(1).any(|turn| turn.is("system"));
        match (late && self.is_v31()) || !self.facts().extends {
            true => Split::Messages,
            false => Split::Whole,
        }
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let said = |header: &'static str| {
            Ok(Rendered {
                header: vec![Piece::fixed(header)],
                output: vec![Part::markup(turn.plain_text()?)],
                ..Rendered::default()
            })
        };
        match turn.role.as_str() {
            "system" => said(""),
            "user" => said("<｜User｜>"),
            "tool" => self.result(turn, place),
            "assistant" => self.assistant(turn, place),
            other => Err(Error::invalid(
                "role",
                format!("this model knows no {other:?}"),
            )),
        }
    }

    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        let after_tool = place.previous().is_some_and(|turn| turn.is("tool"));
        Ok(vec![Piece::fixed(match self.model {
            Model::V31 | Model::V31Thinking if after_tool => "",
            Model::V31 => "<｜Assistant｜></think>",
            Model::V31Thinking | Model::V30 => ASSISTANT,
            Model::R1 => "<｜Assistant｜><think>\n",
        })])
    }

    fn prefill(&self, before: &[Turn], prefill: &str) -> Result<String> {
        let after_tool = before.last().is_some_and(|turn| turn.is("tool"));
        Ok(match self.model == Model::V31Thinking && !after_tool {
            true => format!("<think>{prefill}"),
            false => prefill.to_owned(),
        })
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        if !self.is_v31() {
            return Err(Error::invalid(
                "tools",
                "this renderer has no way to declare them",
            ));
        }
        let each = tools.iter().map(|tool| {
            let text = |key| tool.get(key).and_then(Json::as_str).unwrap_or_default();
            let parameters = tool.get("parameters").unwrap_or(&Json::Null);
            format!(
                "### {}\nDescription: {}\n\nParameters: {}",
                text("name"),
                text("description"),
                parameters.dump(Style::ASCII)
            )
        });
        let tools = each.collect::<Vec<_>>().join("\n");
        let text = format!(
            "{system}\n\n## Tools\nYou have access to the following tools:\n\n{tools}\n\n\
             IMPORTANT: ALWAYS adhere to this exact format for tool use:\n\
             <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>\
             tool_call_arguments<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\nWhere:\n\
             - `tool_call_name` must be an exact match to one of the available tools\n\
             - `tool_call_arguments` must be valid JSON that strictly follows the tool's \
             Parameters Schema\n- For multiple tool calls, chain them directly without \
             separators or spaces"
        );
        Ok(vec![Turn::new("system", text)])
    }

    fn opening(&self) -> Option<&'static str> {
        matches!(self.model, Model::V31Thinking | Model::R1).then_some("<think>")
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let (text, stop) = until_stop(codec, tokens, &[END])?;
        if stop.is_none() {
            return Ok(Reply::text(text).ended(Termination::Malformed));
        }
        if !self.is_v31() {
            let last = tokens.last() == Some(&codec.token(END)?);
            return Ok(match self.read_vendor(&text).filter(|_| last) {
                Some(reply) => reply.with_ids().ended(Termination::StopSequence),
                None => Reply::text(text).ended(Termination::Malformed),
            });
        }
        let mut reply = Reply::text("");
        let section = text
            .split_once(CALLS.0)
            .and_then(|(_, rest)| rest.split_once(CALLS.1));
        reply.take(read_calls(
            section.map_or("", |(section, _)| section),
            false,
        ));
        let open = [CALLS, CALL]
            .iter()
            .find_map(|(open, close)| unterminated(&text, open, close));
        reply.unparsed.extend(open);
        let text = match reply.calls.is_empty() && reply.unparsed.is_empty() {
            true => text,
            false => without_calls(&text).strip().to_owned(),
        };
        reply.content = match think_blocks(&text) {
            Some(parts) => Content::Parts(parts),
            None => Content::Text(text),
        };
        Ok(reply.ended(Termination::StopSequence))
    }
}

impl DeepSeekV3 {
    /// What the service's own renderers make of an answer before V3.1: calls in sections, of which
    /// the last may be cut off, and texts as they stand between them. V3 thinks in a block that
    /// begins the answer; R1's prompt has opened one.
    fn read_vendor(&self, text: &str) -> Option<Reply> {
        let mut reply = Reply::text("");
        let mut parts = Vec::new();
        let mut rest = text;
        if self.model == Model::V30
            && let Some(block) = text.strip_prefix("<think>")
        {
            let (thinking, said) = block.split_once("</think>")?;
            parts.push(Said::Thinking(thinking.to_owned()));
            rest = said;
        }
        let mut thinks = self.model == Model::R1 && text.contains("</think>");
        for (index, piece) in rest.split(CALLS.0).enumerate() {
            let mut said = piece;
            if index > 0 {
                let (section, after) = piece.split_once(CALLS.1).unwrap_or((piece, ""));
                reply.take(read_calls(section, true));
                reply.unparsed.extend(unterminated(section, CALL.0, CALL.1));
                said = after;
            }
            match self.model {
                Model::R1 => thinks = toggled(said, thinks, &mut parts),
                _ => parts.push(Said::Text(said.to_owned())),
            }
        }
        reply.content = Reply::parts(parts).content;
        Some(reply)
    }
}

/// Adds a text whose tags say what is thinking from there on; gives back whether its end is.
fn toggled(text: &str, mut thinks: bool, parts: &mut Vec<Said>) -> bool {
    const TAGS: [&str; 2] = ["<think>", "</think>"];
    let closes = text.contains(TAGS[1]);
    let mut add = |text: &str, thinks| match thinks {
        _ if text.is_empty() => {}
        true => parts.push(Said::Thinking(text.to_owned())),
        false => parts.push(Said::Text(text.to_owned())),
    };
    let mut from = 0;
    for (at, _) in text.match_indices('<') {
        let Some(tag) = TAGS.iter().find(|tag| text[at..].starts_with(**tag)) else {
            continue;
        };
        add(&text[from..at], thinks);
        thinks = *tag == TAGS[0] && (thinks || closes);
        from = at + tag.len();
    }
    add(&text[from..], thinks);
    thinks
}

/// Arguments as the service's own renderer writes them: their names as they are, other scripts
/// escaped in their values.
fn written_anew(call: &ToolCall) -> Result<String> {
    let arguments = call.parse_arguments()?;
    let pairs = arguments.as_object().unwrap_or_default().iter();
    let pairs = pairs.map(|(name, value)| {
        let name = Json::from(name.as_str()).dump(Style::PLAIN);
        format!("{name}: {}", value.dump(Style::ASCII))
    });
    Ok(format!("{{{}}}", pairs.collect::<Vec<_>>().join(", ")))
}

fn joined(parts: &[Said], strip: bool) -> Result<String> {
    let mut out = String::new();
    for part in parts {
        match part {
            Said::Thinking(_) if strip => {}
            Said::Thinking(text) => out += &format!("<think>{text}</think>"),
            Said::Text(text) => out += text,
            Said::Image(_) => {
                return Err(Error::invalid("content", "this model does not see images"));
            }
        }
    }
    Ok(out)
}

/// The text without its whole thinking blocks.
fn without_blocks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, inner)) = rest.split_once("<think>")
        && let Some((_, after)) = inner.split_once("</think>")
    {
        out += before;
        rest = after;
    }
    out + rest
}

/// The calls of a section; those before V3.1 have a kind, and a fence around their
/// arguments.
fn read_calls(section: &str, fenced: bool) -> Vec<std::result::Result<ToolCall, UnparsedToolCall>> {
    let mut rest = section;
    let mut calls = Vec::new();
    while let Some(start) = rest.find(CALL.0) {
        let after = &rest[start + CALL.0.len()..];
        let named = after.split_once(SEPARATOR);
        let is_name = |name: &str| !name.is_empty() && name.chars().all(is_word);
        let Some((name, inner)) = named.filter(|(name, _)| is_name(name)) else {
            rest = after;
            continue;
        };
        let Some((arguments, next)) = inner.split_once(CALL.1) else {
            break;
        };
        let raw = &rest[start..rest.len() - next.len()];
        let call = match fenced {
            true => fenced_call(name, arguments),
            false => plain_call(name, arguments.strip()),
        };
        calls.push(call.map_err(|error| UnparsedToolCall {
            raw_text: raw.to_owned(),
            error,
        }));
        rest = next;
    }
    calls
}

fn plain_call(name: &str, arguments: &str) -> std::result::Result<ToolCall, String> {
    match Json::parse(arguments) {
        Ok(_) => Ok(ToolCall::new(name, arguments)),
        Err(error) => Err(format!("Invalid JSON: {error}")),
    }
}

fn fenced_call(kind: &str, call: &str) -> std::result::Result<ToolCall, String> {
    if kind != "function" {
        return Err(format!("Unsupported kind of tool call: {kind}"));
    }
    let fenced = call.split_once("\n```json\n");
    let fenced = fenced.and_then(|(name, rest)| Some((name, rest.strip_suffix("\n```")?)));
    let (name, arguments) = fenced.ok_or("The arguments are not inside a ```json fence")?;
    let arguments = strict_json(arguments).map_err(|error| format!("Invalid JSON: {error}"))?;
    match arguments.as_object() {
        Some(_) => Ok(ToolCall::new(name, arguments.dump(Style::ASCII))),
        None => Err("The arguments are not a JSON object".to_owned()),
    }
}

/// The text without its whole sections of calls and the white space before them.
fn without_calls(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, inner)) = rest.split_once(CALLS.0)
        && let Some((_, after)) = inner.split_once(CALLS.1)
    {
        out += before.rstrip();
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_what_is_thinking_however_many_there_are() {
        #[track_caller]
        fn check(text: &str, thinks: bool, expected: &str) {
            let mut parts = Vec::new();
            let after = toggled(text, thinks, &mut parts);
            assert_eq!(format!("{parts:?} {after}"), expected);
        }
        check("a</think>b", true, r#"[Thinking("a"), Text("b")] false"#);
        check("a<think>b", false, r#"[Text("a"), Text("b")] false"#);
        check("a<b", true, r#"[Thinking("a<b")] true"#);
        // A model may repeat itself to no end.
        check(&"<think>".repeat(300_000), true, "[] true");
    }
}
