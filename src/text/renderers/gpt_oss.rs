//! `gpt_oss`: the Harmony format, in which a turn of the model is messages in channels.
//!
//! The variants with an effort write the system message of the model's own template, and follow
//! that template where it differs from the cookbook: thinking before earlier answers is dropped,
//! an empty system message is left out, a single call names its type plainly, and its result
//! names the call and is written as JSON.

use super::super::json::{Json, Style};
use super::super::message::{Content, ToolCall, Turn, UnparsedToolCall};
use super::super::space::{Strip, is_space};
use super::gpt_oss_tools::{cookbook_functions, template_functions};
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::reply::{Reply, UNTERMINATED};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// A system message of the format itself; those of the conversation are the developer's.
const OWN_SYSTEM: &str = "_system";
/// Tells that tools are declared.
const DECLARED: &str = "_declared";
const ROUTING: &str = "Calls to these tools must go to the commentary channel: 'functions'.";

struct GptOss {
    effort: Option<&'static str>,
    /// `2026-01-02`; today where none is given.
    date: Option<String>,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let effort = match name {
        "gpt_oss_no_sysprompt" => None,
        "gpt_oss_low_reasoning" => Some("low"),
        "gpt_oss_medium_reasoning" => Some("medium"),
        "gpt_oss_high_reasoning" => Some("high"),
        _ => return None,
    };
    Some(Box::new(GptOss { effort, date: None }))
}

impl GptOss {
    fn by_template(&self) -> bool {
        self.effort.is_some()
    }

    fn system(&self, effort: &str, declared: bool) -> Turn {
        let today = || jiff::Zoned::now().date().to_string();
        let date = self.date.clone().unwrap_or_else(today);
        let mut text = format!(
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: \
             2024-06\nCurrent date: {date}\n\nReasoning: {effort}\n\n# Valid channels: analysis, \
             commentary, final. Channel must be included for every message."
        );
        if declared {
            text += &format!("\n{ROUTING}");
        }
        Turn::new(OWN_SYSTEM, text)
    }

    fn text(&self, turn: &Turn) -> Result<String> {
        match self.by_template() && !turn.content.has_image() {
            true => Ok(turn.content.text()),
            false => turn.plain_text().map(str::to_owned),
        }
    }

    /// The template drops what was thought before an answer that is no longer the last message.
    fn keeps_thinking(&self, turn: &Turn, place: &Place<'_>) -> bool {
        if !self.by_template() || place.is_last {
            return true;
        }
        let later = &place.turns[place.index + 1..];
        let answered = later
            .iter()
            .any(|t| t.is("assistant") && t.calls.is_empty());
        !turn.calls.is_empty() && !answered
    }

    fn assistant(&self, turn: &Turn, place: &Place<'_>) -> Result<String> {
        const AGAIN: &str = "<|end|><|start|>assistant";
        let mut out = String::new();
        let (thinking, text) = (turn.content.thinking(), turn.content.text());
        if !thinking.is_empty() && self.keeps_thinking(turn, place) {
            out += &format!("<|channel|>analysis<|message|>{thinking}{AGAIN}");
        }
        if turn.calls.is_empty() {
            let end = if place.is_last { RETURN } else { "<|end|>" };
            return Ok(out + &format!("<|channel|>final<|message|>{text}{end}"));
        }
        if !text.is_empty() {
            out += &format!("<|channel|>commentary<|message|>{text}{AGAIN}");
        }
        // The template has one call in a message; several are the cookbook's to lay out.
        let kind = match self.by_template() && turn.calls.len() == 1 {
            true => "json",
            false => "<|constrain|>json",
        };
        let calls = turn.calls.iter().map(|call| {
            let name = &call.name;
            let arguments = match kind {
                "json" => call.parse_arguments()?.dump(Style::PLAIN),
                _ => call.arguments.clone(),
            };
            Ok(format!(
                " to=functions.{name}<|channel|>commentary {kind}<|message|>{arguments}{CALL}"
            ))
        });
        let calls = calls.collect::<Result<Vec<_>>>()?;
        Ok(out + &calls.join("<|start|>assistant"))
    }
}

impl GptOss {
    /// The tool and what it returned.
    fn result(&self, turn: &Turn, place: &Place<'_>) -> Result<(String, String)> {
        let text = self.text(turn)?;
        let given = turn.name.clone().filter(|name| !name.is_empty());
        let plain = |name: &str| name.strip_prefix("functions.").unwrap_or(name).to_owned();
        if !self.by_template() {
            return Ok((plain(&given.unwrap_or_else(|| "unknown".to_owned())), text));
        }
        let before = place.turns[..place.index].iter().rev();
        let calls = before.flat_map(|turn| turn.calls.iter().rev().map(move |call| (call, turn)));
        let answered =
            |(call, _): &(&ToolCall, &Turn)| call.id.is_some() && call.id == turn.call_id;
        let call = calls
            .clone()
            .find(answered)
            .or_else(|| calls.clone().next());
        let called = call.map(|(call, _)| call.name.clone());
        let name = given.or(called).unwrap_or_else(|| "unknown".to_owned());
        // Several calls are the cookbook's to lay out, and so are their results.
        let text = match call.is_some_and(|(_, turn)| turn.calls.len() > 1) {
            true => text,
            false => Json::from(text.as_str()).dump(Style::PLAIN),
        };
        Ok((plain(&name), text))
    }
}

impl Family for GptOss {
    fn facts(&self) -> Facts {
        Facts {
            close: "<|end|>",
            streams: false,
            ..Facts::ending(&[RETURN, CALL])
        }
    }

    fn dated(&self, date: &str) -> Option<Box<dyn Family>> {
        Some(Box::new(Self {
            effort: self.effort,
            date: Some(date.to_owned()),
        }))
    }

    fn prepare(&self, mut turns: Vec<Turn>, survey: usize) -> Result<(Vec<Turn>, usize)> {
        let Some(effort) = self.effort else {
            return Ok((turns, survey));
        };
        let declared = turns.first().is_some_and(|turn| turn.is(DECLARED));
        if declared {
            turns.remove(0);
        }
        if turns
            .first()
            .is_some_and(|t| t.is("system") && t.content.text().is_empty())
        {
            turns.remove(0);
        }
        turns.insert(0, self.system(effort, declared));
        Ok((turns, survey))
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let (header, output) = match turn.role.as_str() {
            "tool" => {
                let (name, text) = self.result(turn, place)?;
                (
                    format!("<|start|>functions.{name} to=assistant"),
                    format!("<|channel|>commentary<|message|>{text}<|end|>"),
                )
            }
            "assistant" => (
                "<|start|>assistant".to_owned(),
                self.assistant(turn, place)?,
            ),
            "system" => (
                "<|start|>developer".to_owned(),
                format!(
                    "<|message|># Instructions\n\n{}\n\n<|end|>",
                    self.text(turn)?
                ),
            ),
            role => {
                let role = if role == OWN_SYSTEM { "system" } else { role };
                let text = self.text(turn)?;
                (
                    format!("<|start|>{role}"),
                    format!("<|message|>{text}<|end|>"),
                )
            }
        };
        Ok(Rendered {
            header: vec![Piece::Markup(header)],
            output: vec![Part::markup(output)],
            ..Rendered::default()
        })
    }

    fn suffix(&self, _: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed("<|start|>assistant")])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let functions = match self.by_template() {
            true => template_functions(tools),
            false => cookbook_functions(tools),
        };
        let instructions = match system.is_empty() {
            true => String::new(),
            false => format!("# Instructions\n\n{system}\n\n"),
        };
        let text = format!(
            "{instructions}# Tools\n\n## functions\n\nnamespace functions {{\n\n{functions}\n\n\
             }} // namespace functions"
        );
        let first = match self.by_template() {
            true => Turn::new(DECLARED, ""),
            false => Turn::new(OWN_SYSTEM, ROUTING),
        };
        Ok(vec![first, Turn::new("developer", text)])
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let mut end = None;
        for stop in [RETURN, CALL] {
            let token = codec.token(stop)?;
            let mut found = (0..tokens.len()).filter(|&at| tokens[at] == token);
            let first = found.next();
            if found.next().is_some() {
                let problem = format!("more than one {stop}: sample with the renderer's stop");
                return Err(Error::invalid("tokens", problem));
            }
            end = [end, first].into_iter().flatten().min();
        }
        let Some(end) = end else {
            return Ok(Reply::text(codec.decode(tokens)?).ended(Termination::Malformed));
        };
        Ok(read(&codec.decode(&tokens[..end])?).ended(Termination::StopSequence))
    }
}

/// One message of a turn.
struct Harmony<'a> {
    header: &'a str,
    body: &'a str,
    raw: &'a str,
}

fn read(text: &str) -> Reply {
    let mut reply = Reply::text(text);
    let mut parts = Vec::new();
    for message in messages(text) {
        if message.body.strip().is_empty() {
            continue;
        }
        let recipient = after(message.header, "to=");
        if let Some(name) = recipient.and_then(|name| name.strip_prefix("functions.")) {
            reply.take(vec![match Json::parse(message.body) {
                Ok(_) => Ok(ToolCall::new(name, message.body.strip())),
                Err(error) => Err(UnparsedToolCall {
                    raw_text: message.raw.to_owned(),
                    error: format!("Invalid JSON: {error}"),
                }),
            }]);
            continue;
        }
        use super::super::message::Part as Said;
        match after(message.header, "<|channel|>") {
            Some("analysis") => parts.push(Said::Thinking(message.body.to_owned())),
            Some("final" | "commentary") => parts.push(Said::Text(message.body.to_owned())),
            _ => {}
        }
    }
    if !parts.is_empty() {
        reply.content = Content::Parts(parts);
    }
    let intended = text.matches("to=functions.").count();
    if intended > reply.calls.len() + reply.unparsed.len() {
        let start = text.rfind("<|start|>").unwrap_or(0);
        reply.unparsed.push(UnparsedToolCall {
            raw_text: text[start..].to_owned(),
            error: format!(
                "{UNTERMINATED}: 'to=functions.' tool-call header without a parsable arguments \
                 payload"
            ),
        });
    }
    reply
}

fn messages(text: &str) -> Vec<Harmony<'_>> {
    const MESSAGE: &str = "<|message|>";
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(length) = text[at..].find(MESSAGE) {
        let message = at + length;
        let start = text[at..message]
            .rfind("<|start|>")
            .map_or(at, |start| at + start);
        let body = message + MESSAGE.len();
        let ends = ["<|end|>", CALL, RETURN].into_iter();
        let end = ends
            .filter_map(|end| Some((text[body..].find(end)?, end.len())))
            .min();
        let (end, after) = match end {
            Some((length, token)) => (body + length, body + length + token),
            None => (text.len(), text.len()),
        };
        found.push(Harmony {
            header: &text[start..message],
            body: &text[body..end],
            raw: &text[start..after],
        });
        at = after;
    }
    found
}

/// The word after a mark in a header.
fn after<'a>(header: &'a str, mark: &str) -> Option<&'a str> {
    let mut rest = header;
    loop {
        rest = rest.split_once(mark)?.1;
        let end = rest.find(|c: char| c == '<' || is_space(c));
        let word = &rest[..end.unwrap_or(rest.len())];
        if !word.is_empty() {
            return Some(word);
        }
    }
}
