//! `kimi_k2`, `kimi_k25` and `kimi_k26`: every turn of the model has a thinking block, and calls
//! carry ids.

use super::super::json::{Json, Style};
use super::super::letters::is_digit;
use super::super::message::{Content, Part as Said, ToolCall, Turn, UnparsedToolCall};
use super::super::space::Strip;
use super::conversation::by_role;
use super::kimi_tools::typescript;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, Split};
use super::reply::{Reply, inside, own_id, strict_json, think_blocks, unterminated, until_stop};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const END: &str = "<|im_end|>";
const SYSTEM: &str = "You are Kimi, an AI assistant created by Moonshot AI.";
const DECLARED: &str = "tool_declare";
const SECTION: (&str, &str) = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>");
/// A spelling some checkpoints use.
const SECTION_TOO: (&str, &str) = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>");
const CALL: (&str, &str) = ("<|tool_call_begin|>", "<|tool_call_end|>");
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

struct Kimi {
    /// What the prompt starts the model's turn with; empty for K2.
    opening: &'static str,
    strips_history: bool,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let (opening, strips_history) = match name {
        "kimi_k2" => ("", true),
        "kimi_k2_preserve_thinking" => ("", false),
        "kimi_k25" | "kimi_k26" => ("<think>", true),
        "kimi_k25_disable_thinking" | "kimi_k26_disable_thinking" => ("<think></think>", true),
        "kimi_k26_preserve_thinking" => ("<think>", false),
        _ => return None,
    };
    Some(Box::new(Kimi {
        opening,
        strips_history,
    }))
}

impl Kimi {
    fn is_k2(&self) -> bool {
        self.opening.is_empty()
    }

    /// Only the service has a K2 that keeps its thinking.
    fn is_vendor(&self) -> bool {
        self.is_k2() && !self.strips_history
    }

    fn assistant(&self, turn: &Turn, place: &Place<'_>) -> String {
        let keep = place.in_last_turn || !self.strips_history;
        let thinking = if keep {
            turn.content.thinking()
        } else {
            String::new()
        };
        let mut text = format!("<think>{thinking}</think>{}", turn.content.text());
        if !turn.calls.is_empty() {
            text += SECTION.0;
            for (index, call) in turn.calls.iter().enumerate() {
                let own = || format!("functions.{}:{index}", call.name);
                let id = call.id.clone().unwrap_or_else(own);
                text += &format!("{}{id}{ARGUMENTS}{}{}", CALL.0, call.arguments, CALL.1);
            }
            text += SECTION.1;
        }
        text + END
    }

    fn said(&self, content: &Content) -> Result<Vec<Part>> {
        let parts = match content {
            Content::Text(text) => return Ok(vec![Part::markup(format!("{text}{END}"))]),
            Content::Parts(parts) => parts,
        };
        if let [Said::Text(text)] = parts.as_slice() {
            return Ok(vec![Part::markup(format!("{text}{END}"))]);
        }
        if self.is_k2() {
            return match content.has_image() || content.has_thinking_part() {
                true => Err(Error::invalid("content", "must be text for this model")),
                false => Ok(vec![Part::markup(format!("{}{END}", content.text()))]),
            };
        }
        let mut out = Vec::new();
        for part in parts {
            match part {
                Said::Text(text) => out.push(Part::markup(text.as_str())),
                Said::Image(chunk) => {
                    out.push(Part::markup("<|media_begin|>image<|media_content|>"));
                    out.push(Part::Image(chunk.clone()));
                    out.push(Part::markup("<|media_end|>\n"));
                }
                Said::Thinking(_) => {
                    return Err(Error::invalid("content", "only the assistant thinks"));
                }
            }
        }
        out.push(Part::markup(END));
        Ok(out)
    }
}

impl Family for Kimi {
    fn facts(&self) -> Facts {
        Facts {
            disables_thinking: self.opening == "<think></think>",
            ..Facts::ending(&[END])
        }
    }

    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        match self.is_vendor() {
            true => by_role(turns),
            false => turns,
        }
    }

    /// A conversation without a system message gets the model's own.
    fn prepare(&self, mut turns: Vec<Turn>, survey: usize) -> Result<(Vec<Turn>, usize)> {
        let at = usize::from(turns.first().is_some_and(|turn| turn.is(DECLARED)));
        if !turns.get(at).is_some_and(|turn| turn.is("system")) {
            turns.insert(at, Turn::new("system", SYSTEM));
        }
        Ok((turns, survey))
    }

    /// After the last message that called no tool: reasoning is kept from there on.
    fn turn_start(&self, turns: &[Turn]) -> usize {
        let last = turns
            .iter()
            .rposition(|turn| turn.is("assistant") && turn.calls.is_empty());
        last.map_or(0, |last| last + 1)
    }

    fn split(&self, _: &[Turn]) -> Split {
        Split::UserTurns
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let (header, output) = match turn.role.as_str() {
            "user" => (
                "<|im_user|>user<|im_middle|>".to_owned(),
                self.said(&turn.content)?,
            ),
            "assistant" => (
                "<|im_assistant|>assistant<|im_middle|>".to_owned(),
                vec![Part::markup(self.assistant(turn, place))],
            ),
            "tool" => {
                let name = turn.name.as_deref().filter(|name| !name.is_empty());
                let name = name.unwrap_or("tool");
                let id = turn.call_id.as_deref().unwrap_or_default();
                let header = format!("<|im_system|>{name}<|im_middle|>## Return of {id}\n");
                (header, self.said(&turn.content)?)
            }
            role => (
                format!("<|im_system|>{role}<|im_middle|>"),
                self.said(&turn.content)?,
            ),
        };
        Ok(Rendered {
            // Headers of results name ids, so there are too many different ones to keep.
            header: vec![Piece::Markup(header)],
            output,
            ..Rendered::default()
        })
    }

    fn prefill(&self, _: &[Turn], prefill: &str) -> Result<String> {
        Ok(format!("{}{prefill}", self.opening))
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let text = match self.is_k2() {
            true => {
                let tools = tools.iter().map(|tool| {
                    Json::Object(vec![
                        ("type".to_owned(), Json::from("function")),
                        ("function".to_owned(), tool.clone()),
                    ])
                });
                Json::Array(tools.collect()).dump(Style::COMPACT_SORTED)
            }
            false => typescript(tools)?,
        };
        let system = if system.is_empty() { SYSTEM } else { system };
        Ok(vec![Turn::new(DECLARED, text), Turn::new("system", system)])
    }

    fn opening(&self) -> Option<&'static str> {
        (!self.is_k2()).then_some("<think>")
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let (text, stop) = until_stop(codec, tokens, &[END])?;
        if stop.is_none() {
            return Ok(Reply::text(text).ended(Termination::Malformed));
        }
        if self.is_vendor() {
            return Ok(read_vendor(&text).ended(Termination::StopSequence));
        }
        let mut reply = Reply::text("");
        let mut said = text.as_str();
        if let Some((before, section)) = section(&text) {
            said = before;
            reply.take(read_calls(section));
        }
        let open = [SECTION, SECTION_TOO, CALL];
        let open = open
            .iter()
            .find_map(|(open, close)| unterminated(&text, open, close));
        reply.unparsed.extend(open);
        reply.content = match think_blocks(said) {
            Some(parts) => Content::Parts(parts),
            None => Content::Text(said.to_owned()),
        };
        Ok(reply.ended(Termination::StopSequence))
    }
}

/// What the service's own variant makes of an answer: all before the end of the block is
/// thinking, also where there is none, and calls are whole or none.
fn read_vendor(text: &str) -> Reply {
    let (thinking, said) = text.split_once("</think>").unwrap_or((text, ""));
    let thinking = inside(thinking, "<think>", "");
    let (said, section) = match said.split_once(SECTION.0) {
        Some((said, section)) => (said, Some(section)),
        None => (said, None),
    };
    let mut reply = Reply::parts([
        Said::Thinking(thinking.to_owned()),
        Said::Text(said.to_owned()),
    ]);
    match section.map_or(Ok(Vec::new()), strict_calls) {
        Ok(calls) => reply.calls = calls,
        Err(error) => reply.unparsed.push(UnparsedToolCall {
            raw_text: format!("{}{}", SECTION.0, section.unwrap_or_default()),
            error,
        }),
    }
    reply
}

/// The calls of a section, to whose end there is nothing else.
fn strict_calls(section: &str) -> std::result::Result<Vec<ToolCall>, String> {
    let mut calls = Vec::new();
    let mut rest = section;
    while let Some(call) = rest.strip_prefix(CALL.0) {
        let whole = call.split_once(ARGUMENTS).and_then(|(id, inner)| {
            let (arguments, next) = inner.split_once(CALL.1)?;
            Some((id, arguments, next))
        });
        let (id, arguments, next) = whole.ok_or("a call without arguments or end")?;
        let arguments = strict_json(arguments).map_err(|error| format!("Invalid JSON: {error}"))?;
        if arguments.as_object().is_none() {
            return Err("The arguments are not a JSON object".to_owned());
        }
        let named = id
            .strip_prefix("functions.")
            .and_then(|id| id.split_once(':'));
        let name = named.map_or(id, |(name, _)| name);
        let id = match id {
            "" => own_id("", calls.len()),
            id => id.to_owned(),
        };
        calls.push(ToolCall::new(name, arguments.dump(Style::ASCII)).with_id(id));
        rest = next;
    }
    match rest == SECTION.1 {
        true => Ok(calls),
        false => Err("something else than calls in the section".to_owned()),
    }
}

/// The first whole section of calls, and what is before it.
fn section(text: &str) -> Option<(&str, &str)> {
    let whole = |(open, close): (&str, &str)| {
        let (before, rest) = text.split_once(open)?;
        Some((before, rest.split_once(close)?.0))
    };
    let found = [SECTION, SECTION_TOO].into_iter().filter_map(whole);
    found.min_by_key(|(before, _)| before.len())
}

fn read_calls(section: &str) -> Vec<std::result::Result<ToolCall, UnparsedToolCall>> {
    let mut calls = Vec::new();
    let mut rest = section;
    while let Some(start) = rest.find(CALL.0) {
        let after = &rest[start + CALL.0.len()..];
        let named = after
            .split_once(ARGUMENTS)
            .filter(|(id, _)| is_id(id.rstrip()));
        let Some((id, inner)) = named else {
            rest = after;
            continue;
        };
        let Some((arguments, next)) = inner.split_once(CALL.1) else {
            break;
        };
        let raw = &rest[start..rest.len() - next.len()];
        let (id, arguments) = (id.strip(), arguments.strip());
        calls.push(match Json::parse(arguments) {
            Ok(_) => Ok(ToolCall::new(name(id), arguments).with_id(id)),
            Err(error) => Err(UnparsedToolCall {
                raw_text: raw.to_owned(),
                error: format!("Invalid JSON: {error}"),
            }),
        });
        rest = next;
    }
    calls
}

/// `functions.name:0`: anything, be it a space, a colon, digits.
fn is_id(id: &str) -> bool {
    let Some((name, number)) = id.rsplit_once(':') else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.chars().all(is_digit);
    !name.is_empty() && !id.contains('<') && digits(number)
}

fn name(id: &str) -> &str {
    let name = id.split(':').next().unwrap_or_default();
    name.split_once('.').map_or(name, |(_, name)| name)
}
