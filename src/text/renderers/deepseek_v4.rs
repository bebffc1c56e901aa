//! `deepseekv4_1` and the V4 before it: users and tools share turns, calls are written in DSML.

use std::collections::HashMap;

use super::super::json::{Json, Style, set};
use super::super::message::{Content, Part as Said, ToolCall, Turn, UnparsedToolCall};
use super::super::space::Strip;
use super::conversation::by_role;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, after_last_user};
use super::reply::{
    Reply, inside, left_open, strict_value_or_text, think_blocks, unterminated, until_stop,
};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const END: &str = "<｜end▁of▁sentence｜>";
const DECLARED: &str = "tool_declare";

struct DeepSeekV4 {
    /// V4.1 opens the system's turn with a marker, and spells its tags with a space.
    v41: bool,
    thinking: bool,
    /// V4.1's budget, from 1 to 100.
    effort: u32,
    strips_history: bool,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let (v41, thinking, effort, strips_history) = match name {
        "deepseekv4" => (false, true, 0, true),
        "deepseekv4_disable_thinking" => (false, false, 0, true),
        "deepseekv4_1" => (true, true, 75, true),
        "deepseekv4_1_low_reasoning" => (true, true, 50, true),
        "deepseekv4_1_max_reasoning" => (true, true, 100, true),
        "deepseekv4_1_disable_thinking" => (true, false, 0, true),
        "deepseekv4_1_preserve_thinking" => (true, true, 75, false),
        _ => return None,
    };
    Some(Box::new(DeepSeekV4 {
        v41,
        thinking,
        effort,
        strips_history,
    }))
}

fn is_user(turn: &Turn) -> bool {
    turn.is("user") || turn.is("tool")
}

impl DeepSeekV4 {
    /// Whether the model answers this message: one of the user, and to V4.1 a later system message.
    fn is_asked(&self, (index, turn): (usize, &Turn)) -> bool {
        is_user(turn) || (self.v41 && turn.is("system") && index > 0)
    }

    /// How many messages there are up to the last one that is answered.
    fn after_asked(&self, turns: &[Turn]) -> usize {
        let asked = |place: (usize, &Turn)| self.is_asked(place);
        let last = turns.iter().enumerate().rposition(asked);
        last.map_or(0, |last| last + 1)
    }

    fn gap(&self) -> &'static str {
        if self.v41 { " " } else { "" }
    }

    fn calls_tag(&self) -> &'static str {
        if self.v41 {
            "｜DSML｜ calls"
        } else {
            "｜DSML｜tool_calls"
        }
    }

    /// What stands before the first message.
    fn opening(&self, role: &str) -> String {
        match (self.v41, self.thinking) {
            (true, true) => format!(
                "<｜System｜>Reasoning Effort: {} (range 1-100, the higher the value, the more \
                 thorough the reasoning)\n\n",
                self.effort
            ),
            (true, false) if role == "system" => "<｜System｜>".to_owned(),
            _ => String::new(),
        }
    }

    /// [`Place::mark`] counts the messages up to the last turn of the user: these lose their
    /// reasoning.
    fn keeps_reasoning(&self, place: &Place<'_>) -> bool {
        self.thinking && place.index >= place.mark
    }

    fn assistant_header(&self, place: &Place<'_>) -> String {
        let opening = match place.index {
            0 => self.opening("assistant"),
            _ => String::new(),
        };
        let before = place.index.wrapping_sub(1);
        let answers = place
            .previous()
            .is_some_and(|turn| self.is_asked((before, turn)));
        let block = match self.keeps_reasoning(place) {
            true => "<think>",
            false => "</think>",
        };
        match answers {
            true => format!("{opening}<｜Assistant｜>{block}"),
            false => opening,
        }
    }

    fn assistant(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        if turn.content.has_image() {
            return Err(Error::invalid("content", "this model does not see images"));
        }
        let reasoning = match self.keeps_reasoning(place) {
            true => format!("{}</think>", turn.content.thinking()),
            false => String::new(),
        };
        let mut text = reasoning + &turn.content.text();
        if !turn.calls.is_empty() {
            text += &self.calls(&turn.calls);
        }
        Ok(Rendered {
            header: vec![Piece::fixed(self.assistant_header(place))],
            output: vec![Part::Text(vec![Piece::Markup(text), Piece::fixed(END)])],
            ..Rendered::default()
        })
    }

    fn calls(&self, calls: &[ToolCall]) -> String {
        let (gap, tag) = (self.gap(), self.calls_tag());
        let each = calls.iter().map(|call| {
            let parameters = arguments(call).into_iter().map(|(name, value)| {
                let (string, value) = match &value {
                    Json::String(text) => (true, text.clone()),
                    other => (false, other.dump(Style::PLAIN)),
                };
                format!(
                    "<｜DSML｜{gap}parameter name=\"{name}\" string=\"{string}\">{value}\
                     </｜DSML｜{gap}parameter>"
                )
            });
            let parameters = parameters.collect::<Vec<_>>().join("\n");
            let name = &call.name;
            format!("<｜DSML｜{gap}invoke name=\"{name}\">\n{parameters}\n</｜DSML｜{gap}invoke>")
        });
        let each = each.collect::<Vec<_>>().join("\n");
        format!("\n\n<{tag}>\n{each}\n</{tag}>")
    }
}

impl Family for DeepSeekV4 {
    fn facts(&self) -> Facts {
        Facts {
            extends: !(self.thinking && self.strips_history),
            ..Facts::ending(&[END])
        }
    }

    fn begins(&self, _: &Codec) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed("<｜begin▁of▁sentence｜>")])
    }

    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        match self.v41 {
            true => turns,
            false => by_role(turns),
        }
    }

    fn prepare(&self, mut turns: Vec<Turn>, _: usize) -> Result<(Vec<Turn>, usize)> {
        let declared = turns.iter().any(|turn| turn.is(DECLARED));
        fold_declarations(&mut turns)?;
        join_user_turns(&mut turns, self.v41)?;
        let mark = match self.strips_history && !declared {
            true => self.after_asked(&turns),
            false => 0,
        };
        Ok((turns, mark))
    }

    fn mark_before(&self, before: &[Turn], mark: usize) -> usize {
        match mark {
            0 => 0,
            _ => self.after_asked(before),
        }
    }

    fn turn_start(&self, turns: &[Turn]) -> usize {
        let later = turns
            .iter()
            .enumerate()
            .rposition(|(i, t)| self.v41 && t.is("system") && i > 0);
        after_last_user(turns).max(later.map_or(0, |index| index + 1))
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let opening = match place.index {
            0 => self.opening(&turn.role),
            _ => String::new(),
        };
        match turn.role.as_str() {
            "system" => {
                let header = match (place.index, self.v41) {
                    (0, _) => opening,
                    (_, true) => "<｜System｜>".to_owned(),
                    (_, false) => String::new(),
                };
                Ok(Rendered {
                    header: vec![Piece::Markup(header)],
                    output: vec![Part::markup(turn.plain_text()?)],
                    joined: true,
                    ..Rendered::default()
                })
            }
            DECLARED => Ok(Rendered::default()),
            "user" | "tool" if place.previous().is_some_and(is_user) => Ok(Rendered::default()),
            "user" | "tool" => Ok(Rendered {
                header: vec![Piece::fixed(format!("{opening}<｜User｜>"))],
                output: vec![Part::markup(turn.plain_text()?)],
                ..Rendered::default()
            }),
            "assistant" => self.assistant(turn, place),
            other => Err(Error::invalid(
                "role",
                format!("this model knows no {other:?}"),
            )),
        }
    }

    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed(self.assistant_header(place))])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        if !self.v41 {
            return Err(Error::invalid(
                "tools",
                "this renderer has no way to declare them",
            ));
        }
        let schemas = tools.iter().map(|tool| tool.dump(Style::PLAIN));
        let schemas = schemas.collect::<Vec<_>>().join("\n");
        let mut turns = Vec::new();
        if !system.is_empty() {
            turns.push(Turn::new("system", system));
        }
        turns.push(Turn::new(DECLARED, declaration(&schemas)));
        Ok(turns)
    }

    fn opening(&self) -> Option<&'static str> {
        self.thinking.then_some("<think>")
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let (text, stop) = until_stop(codec, tokens, &[END])?;
        let reply = match self.v41 {
            true => stop.map(|_| self.read(&text)),
            false if tokens.last() == Some(&codec.token(END)?) => {
                self.read_vendor(&text).map(Reply::with_ids)
            }
            false => None,
        };
        Ok(match reply {
            Some(reply) => reply.ended(Termination::StopSequence),
            None => Reply::text(text).ended(Termination::Malformed),
        })
    }
}

impl DeepSeekV4 {
    fn read(&self, text: &str) -> Reply {
        let tag = self.calls_tag();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let mut reply = Reply::text("");
        let mut said = text;
        if let Some((before, rest)) = text.split_once(open.as_str())
            && let Some((inner, after)) = rest.split_once(close.as_str())
        {
            said = before.strip_suffix("\n\n").unwrap_or(before);
            let block = &text[said.len()..text.len() - after.len()];
            reply.take(self.read_calls(inner, block));
            if !after.strip().is_empty() {
                reply.unparsed.push(UnparsedToolCall {
                    raw_text: after.to_owned(),
                    error: "Invalid DSML: output after calls block".to_owned(),
                });
            }
        }
        let dangling = unterminated(said, &open, &close);
        let dangling = dangling.or_else(|| {
            said.contains("｜DSML｜").then(|| UnparsedToolCall {
                raw_text: said.to_owned(),
                error: "Invalid DSML: marker outside a calls block".to_owned(),
            })
        });
        reply.unparsed.extend(dangling);
        reply.content = match think_blocks(said) {
            Some(parts) => Content::Parts(parts),
            None => Content::Text(said.to_owned()),
        };
        reply
    }

    /// What the service's own renderer makes of an answer to V4's prompt: who is to think does so
    /// to the end of the block, without which there is no answer, and what stands before calls
    /// is trimmed where they are not as the model was trained to write them. Of calls that are cut
    /// off, those are read that are whole.
    fn read_vendor(&self, text: &str) -> Option<Reply> {
        let (thinking, said) = match self.thinking {
            true => text.split_once("</think>")?,
            false => ("", text),
        };
        let mut thinking = inside(thinking, "<think>", "");
        let mut reply = Reply::text("");
        let mut said = said;
        let tag = self.calls_tag();
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        if let Some((before, rest)) = said.split_once(open.as_str()) {
            let block = &said[before.len()..];
            (thinking, said) = match before.strip_suffix("\n\n") {
                Some(said) if block.ends_with(&close) => (thinking, said),
                _ => (thinking.trim(), before.trim()),
            };
            match rest.split_once(close.as_str()) {
                Some((inner, _)) => reply.take(self.read_calls(inner, block)),
                None => {
                    let end = format!("</｜DSML｜{}invoke>", self.gap());
                    let (whole, cut) =
                        rest.split_at(rest.rfind(&end).map_or(0, |start| start + end.len()));
                    if !whole.is_empty() {
                        reply.take(self.read_calls(whole, block));
                    }
                    reply.unparsed.push(left_open(cut, &open, &close));
                }
            }
        }
        let content = Reply::parts([
            Said::Thinking(thinking.to_owned()),
            Said::Text(said.to_owned()),
        ]);
        reply.content = content.content;
        Some(reply)
    }

    fn read_calls(
        &self,
        inner: &str,
        block: &str,
    ) -> Vec<std::result::Result<ToolCall, UnparsedToolCall>> {
        let gap = self.gap();
        let open = format!("<｜DSML｜{gap}invoke name=\"");
        let close = format!("</｜DSML｜{gap}invoke>");
        let mut calls = Vec::new();
        let mut between = String::new();
        let mut rest = inner;
        while let Some(start) = rest.find(&open) {
            let end = if self.v41 { "\">\n" } else { "\">" };
            let found = rest[start + open.len()..]
                .split_once(end)
                .and_then(|(name, body)| Some((name, body.split_once(close.as_str())?)));
            let Some((name, (body, next))) = found else {
                break;
            };
            between += &rest[..start];
            let raw = &rest[start..rest.len() - next.len()];
            calls.push(
                self.read_call(name, body)
                    .map_err(|error| UnparsedToolCall {
                        raw_text: raw.to_owned(),
                        error: format!("Invalid DSML: {error}"),
                    }),
            );
            rest = next;
        }
        between += rest;
        match calls.is_empty() || !between.strip().is_empty() {
            true => vec![Err(UnparsedToolCall {
                raw_text: block.to_owned(),
                error: "Invalid DSML: malformed invoke".to_owned(),
            })],
            false => calls,
        }
    }

    fn read_call(&self, name: &str, body: &str) -> std::result::Result<ToolCall, String> {
        let gap = self.gap();
        let open = format!("<｜DSML｜{gap}parameter name=\"");
        let close = format!("</｜DSML｜{gap}parameter>");
        if name.strip().is_empty() {
            return Err("empty function name".to_owned());
        }
        let mut found = Vec::new();
        let mut between = String::new();
        let mut rest = body;
        while let Some(start) = rest.find(&open) {
            let parameter = parameter(&rest[start + open.len()..], &close);
            let Some((key, string, value, next)) = parameter else {
                break;
            };
            between += &rest[..start];
            found.push((key, string, value));
            rest = next;
        }
        between += rest;
        if !between.strip().is_empty() {
            return Err("text outside parameters".to_owned());
        }
        let mut arguments: Vec<(String, Json)> = Vec::new();
        for (key, string, value) in found {
            if key.strip().is_empty() {
                return Err("empty parameter name".to_owned());
            }
            if self.v41 && arguments.iter().any(|(name, _)| name == key) {
                return Err(format!("duplicate parameter '{key}'"));
            }
            let value = match (string, self.v41) {
                (true, _) => Json::from(value),
                (false, true) => Json::parse(value)?,
                (false, false) => strict_value_or_text(value),
            };
            set(&mut arguments, key.to_owned(), value);
        }
        let arguments = Json::Object(arguments).dump(Style::ASCII);
        Ok(ToolCall::new(name, arguments))
    }
}

/// Name, whether a string, value, and what follows, of `k" string="true">v</..>`.
fn parameter<'a>(text: &'a str, close: &str) -> Option<(&'a str, bool, &'a str, &'a str)> {
    let mut marks = text.match_indices("\" string=\"");
    let (key, string, rest) = marks.find_map(|(end, mark)| {
        let after = &text[end + mark.len()..];
        let says = |word: &str| after.strip_prefix(word);
        says("true\">")
            .map(|rest| (&text[..end], true, rest))
            .or_else(|| says("false\">").map(|rest| (&text[..end], false, rest)))
    })?;
    let (value, next) = rest.split_once(close)?;
    Some((key, string, value, next))
}

/// The arguments by name; what is no object becomes one argument.
fn arguments(call: &ToolCall) -> Vec<(String, Json)> {
    let mut value = Json::String(call.arguments.clone());
    // Some models write the arguments as JSON in a JSON string.
    for _ in 0..2 {
        if let Json::String(text) = &value
            && let Ok(inner) = Json::parse(text)
        {
            value = inner;
        }
    }
    match value {
        Json::Object(pairs) => pairs,
        _ => vec![("arguments".to_owned(), Json::String(call.arguments.clone()))],
    }
}

/// Tools are declared in the system's turn, which they may start.
fn fold_declarations(turns: &mut [Turn]) -> Result<()> {
    for index in 0..turns.len() {
        if !turns[index].is(DECLARED) {
            continue;
        }
        let tools = turns[index].plain_text()?.to_owned();
        if index == 0 {
            turns[0].role = "system".to_owned();
            turns[0].content = Content::Text(format!("\n\n{tools}"));
        } else if index == 1 && turns[0].is("system") {
            let system = turns[0].plain_text()?;
            turns[0].content = Content::Text(format!("{system}\n\n{tools}"));
            turns[1].content = Content::Text(String::new());
        } else {
            let problem = "tools are declared first, or right after the first system message";
            return Err(Error::invalid(format!("messages[{index}]"), problem));
        }
    }
    Ok(())
}

/// Messages of users and tools next to each other are one turn, which the first carries.
fn join_user_turns(turns: &mut [Turn], sorted: bool) -> Result<()> {
    for (index, turn) in turns.iter().enumerate().filter(|(_, turn)| is_user(turn)) {
        let text = turn.plain_text();
        text.map_err(|error| error.within(&format!("messages[{index}]")))?;
    }
    let mut order: HashMap<String, usize> = HashMap::new();
    let mut index = 0;
    while index < turns.len() {
        if !turns[index].calls.is_empty() {
            let calls = turns[index].calls.iter().enumerate();
            order = calls
                .filter_map(|(n, call)| Some((call.id.clone()?, n)))
                .collect();
        }
        if !is_user(&turns[index]) {
            index += 1;
            continue;
        }
        let end = index
            + turns[index..]
                .iter()
                .take_while(|turn| is_user(turn))
                .count();
        let group = turns[index..end].to_vec();
        let place = |turn: &&Turn| {
            let id = turn.call_id.as_deref().unwrap_or_default();
            order.get(id).copied().unwrap_or(0)
        };
        let mut results: Vec<&Turn> = group.iter().filter(|turn| turn.is("tool")).collect();
        if sorted {
            results.sort_by_key(place);
        }
        let mut results = results.into_iter();
        let mut texts = Vec::new();
        for turn in &group {
            texts.push(match turn.is("tool") {
                true => {
                    let result = results.next().expect("there are as many as slots");
                    format!("<tool_result>{}</tool_result>", result.plain_text()?)
                }
                false => turn.plain_text()?.to_owned(),
            });
        }
        for turn in &mut turns[index..end] {
            turn.content = Content::Text(String::new());
        }
        turns[index].content = Content::Text(texts.join("\n\n"));
        index = end;
    }
    Ok(())
}

fn declaration(schemas: &str) -> String {
    format!(
        "## Tools\n\nYou have access to a set of tools to help answer the user's question. You \
         can invoke tools by writing a \"<｜DSML｜ calls>\" block like the following:\n\n\
         <｜DSML｜ calls>\n<｜DSML｜ invoke name=\"$TOOL_NAME\">\n<｜DSML｜ parameter \
         name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜ parameter>\n\
         ...\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n...\n\
         </｜DSML｜ invoke>\n</｜DSML｜ calls>\n\nString parameters should be specified as is and \
         set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass \
         the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled \
         (triggered by <think>), you MUST output your complete reasoning inside \
         <think>...</think> BEFORE any tool calls or final response.\n\nOtherwise, output \
         directly after </think> with tool calls or final response.\n\n### Available Tool \
         Schemas\n\n{schemas}\n\nYou MUST strictly follow the above defined tool name and \
         parameter schemas to invoke tool calls.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_on_to_what_says_whether_it_is_a_string() {
        let read = |text| parameter(text, "</p>");
        assert_eq!(
            read("a\" string=\"no\">x</p><p name=\"b\" string=\"true\">y</p>z"),
            Some(("a\" string=\"no\">x</p><p name=\"b", true, "y", "z"))
        );
        assert_eq!(
            read("a\" string=\"false\">1</p>"),
            Some(("a", false, "1", ""))
        );
        assert_eq!(read("a\" string=\"true\">y"), None);
    }
}
