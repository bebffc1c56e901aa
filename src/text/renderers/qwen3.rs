//! `qwen3` and its kin: Qwen3, its instruct models, and those that see.
//!
//! Where the cookbook's renderer and the models' own template differ, this follows the template:
//! other scripts stay themselves in JSON, a run of tool results shares one user block, and calls
//! stand on a line of their own only after text.

use std::borrow::Cow;

use super::super::json::{Json, Style};
use super::super::message::{Content, Part as Said, ToolCall, Turn};
use super::super::space::Strip;
use super::conversation::by_role;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, Split};
use super::reply::{
    ReadJson, Reply, content_blocks, json_call, strict_json, unterminated, until_stop,
};
use super::{Parsed, Termination};
use crate::error::{Error, Result};

const END: &str = "<|im_end|>";

#[derive(Clone, Copy, PartialEq)]
enum Thinking {
    /// The block around the produced turn, thinking cut from history.
    Framed,
    /// The same, and the prompt closes the block.
    Disabled,
    /// The block around every turn.
    Preserved,
    /// No blocks but those in the messages.
    None,
}

struct Qwen3 {
    thinking: Thinking,
}

/// The models that see have a layout of their own.
struct Qwen3Vl {
    unframes: bool,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let thinking = match name {
        "qwen3" => Thinking::Framed,
        "qwen3_disable_thinking" => Thinking::Disabled,
        "qwen3_preserve_thinking" => Thinking::Preserved,
        "qwen3_instruct" => Thinking::None,
        "qwen3_vl" => return Some(Box::new(Qwen3Vl { unframes: true })),
        "qwen3_vl_instruct" => return Some(Box::new(Qwen3Vl { unframes: false })),
        _ => return None,
    };
    Some(Box::new(Qwen3 { thinking }))
}

impl Qwen3 {
    fn strips_history(&self) -> bool {
        self.thinking != Thinking::Preserved
    }

    /// Only the turn to produce gets the block, or all when history keeps its thinking.
    fn frames(&self, turn: &Turn, place: &Place<'_>) -> bool {
        self.thinking != Thinking::None
            && turn.is("assistant")
            && place.last_user().is_some()
            && place.is_last
    }

    /// How arguments are written: as the template does, or as the cookbook where the template
    /// would keep the thinking that this renderer drops.
    fn argument_style(&self, turn: &Turn) -> Style {
        let thinks = turn.content.has_thinking_part() && !turn.content.text().is_empty();
        match self.thinking == Thinking::None && thinks {
            true => Style::ASCII,
            false => Style::PLAIN,
        }
    }

    /// Parts of an answer stay apart, where history keeps all of it.
    fn keeps_parts(&self, turn: &Turn, parts: &[Said]) -> bool {
        let texts = parts.iter().all(|part| matches!(part, Said::Text(_)));
        self.thinking == Thinking::Preserved
            && turn.is("assistant")
            && turn.calls.is_empty()
            && texts
    }

    fn said(&self, turn: &Turn, place: &Place<'_>, framed: bool) -> Result<String> {
        let strip = self.strips_history() && turn.is("assistant") && !place.is_last;
        Ok(match &turn.content {
            Content::Parts(parts) => {
                joined(parts, strip, framed, self.thinking == Thinking::Preserved)?
            }
            Content::Text(text) if framed && text.contains("</think>") => {
                let (thinking, rest) = text.split_once("</think>").expect("it was found");
                let thinking = thinking.rsplit("<think>").next().unwrap_or_default();
                frame(thinking) + rest.trim_start_matches('\n')
            }
            Content::Text(text) => text.clone(),
        })
    }
}

impl Family for Qwen3 {
    fn facts(&self) -> Facts {
        Facts {
            extends: matches!(self.thinking, Thinking::None | Thinking::Preserved),
            disables_thinking: self.thinking == Thinking::Disabled,
            ..Facts::ending(&[END])
        }
    }

    fn gather(&self, turns: Vec<Turn>) -> Vec<Turn> {
        match self.thinking == Thinking::Preserved {
            true => by_role(turns),
            false => turns,
        }
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let no_user = place.last_user().is_none();
        if self.thinking == Thinking::Disabled
            && turn.is("assistant")
            && place.is_last
            && no_user
            && !turn.content.is_empty()
        {
            let problem = "without a message of the user the model's template writes no empty \
                           thinking block here, but its prompt always does: add a user message, \
                           or use the thinking variant";
            return Err(Error::invalid("content", problem));
        }
        let framed = self.frames(turn, place);
        let mut text = self.said(turn, place, framed)?;
        let has_text = match framed {
            true => !turn.content.text().is_empty(),
            false => !text.is_empty(),
        };
        if framed && !turn.content.has_thinking() {
            text = frame("") + text.trim_start_matches('\n');
        }
        let mut calls = String::new();
        if !turn.calls.is_empty() {
            calls += if has_text { "\n" } else { "" };
            calls += &json_calls(&turn.calls, self.argument_style(turn))?;
        }
        let (header, open, close) = block(turn, place);
        let said = match &turn.content {
            _ if self.thinking == Thinking::None && only_thinks(turn) && produced(turn, place) => {
                vec![
                    Piece::Spelled(text),
                    Piece::Plain(format!("\n{}", calls.lstrip())),
                ]
            }
            // The model's own template keeps what it says apart from what it calls.
            Content::Text(_) if produced(turn, place) => {
                vec![Piece::Plain(format!("{open}{text}")), Piece::Plain(calls)]
            }
            Content::Parts(parts) if self.keeps_parts(turn, parts) => {
                let block = if framed { frame("") } else { String::new() };
                let texts = parts.iter().filter_map(|part| match part {
                    Said::Text(text) => Some(text.clone()),
                    _ => None,
                });
                [block].into_iter().chain(texts).map(Piece::Plain).collect()
            }
            _ => vec![Piece::Plain(format!("{open}{text}{calls}{close}"))],
        };
        let mut output = vec![Part::Text(said)];
        if !goes_on(turn, place.next()) {
            output.push(Part::Text(vec![Piece::fixed(END)]));
        }
        Ok(Rendered {
            header,
            output,
            ..Rendered::default()
        })
    }

    /// The instruct models' sequences are whole but for what the cookbook cannot lay out: a run
    /// of results, and messages that say what is trained on.
    fn split(&self, turns: &[Turn]) -> Split {
        let flagged = turns.iter().any(|turn| turn.trainable.is_some());
        let by_template = self.thinking == Thinking::None && (flagged || has_run(turns));
        match self.facts().extends && !by_template {
            true => Split::Whole,
            false => Split::Messages,
        }
    }

    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        let block = match self.thinking {
            Thinking::Disabled => "<think>\n\n</think>\n\n",
            _ => "",
        };
        let newline = place.newline();
        Ok(vec![Piece::fixed(format!(
            "{newline}<|im_start|>assistant\n{block}"
        ))])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        Ok(vec![Turn::new("system", declaration(tools, system))])
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        if self.thinking != Thinking::Preserved {
            return read(codec, tokens, self.thinking != Thinking::None);
        }
        let end = codec.token(END)?;
        let (text, stop) = until_stop(codec, tokens, &[END])?;
        let whole = stop.is_some() && tokens.last() == Some(&end);
        let Some(closed) = closed(&text).filter(|_| whole) else {
            return Ok(Reply::text(text).ended(Termination::Malformed));
        };
        let mut reply = blocks(&closed, true, strict_json).with_ids();
        if let Content::Parts(parts) = &mut reply.content {
            parts.retain(|part| !part.is_empty());
        }
        Ok(reply.ended(Termination::StopSequence))
    }
}

impl Family for Qwen3Vl {
    fn facts(&self) -> Facts {
        Facts::ending(&[END])
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let strip = turn.is("assistant") && !place.is_last;
        let mut parts = Vec::new();
        for part in turn.content.clone().into_parts() {
            match part {
                Said::Thinking(_) if strip => {}
                Said::Thinking(text) => {
                    parts.push(Said::Text(format!("<think>{text}</think>")));
                }
                Said::Image(chunk) => {
                    parts.push(Said::Text("<|vision_start|>".to_owned()));
                    parts.push(Said::Image(chunk));
                    parts.push(Said::Text("<|vision_end|>".to_owned()));
                }
                text => parts.push(text),
            }
        }
        if !turn.calls.is_empty() {
            let said = parts
                .iter()
                .any(|part| !matches!(part, Said::Text(text) if text.is_empty()));
            let newline = if said { "\n" } else { "" };
            let calls = json_calls(&turn.calls, Style::PLAIN)?;
            parts.push(Said::Text(format!("{newline}{calls}")));
        }
        let (header, open, close) = block(turn, place);
        let spelled = match parts.first() {
            Some(Said::Text(_)) if !self.unframes && only_thinks(turn) && produced(turn, place) => {
                Some(parts.remove(0))
            }
            _ => None,
        };
        parts.insert(0, Said::Text(open.to_owned()));
        parts.push(Said::Text(close.to_owned()));
        if !goes_on(turn, place.next()) {
            parts.push(Said::Text(END.to_owned()));
        }
        let mut output = merged(parts);
        if let Some(Said::Text(text)) = spelled {
            output.insert(0, Part::Text(vec![Piece::Spelled(text)]));
        }
        Ok(Rendered {
            header,
            output,
            ..Rendered::default()
        })
    }

    /// As the cookbook's ends, which leaves it to the model to think.
    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        let newline = place.newline();
        Ok(vec![Piece::fixed(format!(
            "{newline}<|im_start|>assistant\n"
        ))])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        Ok(vec![Turn::new("system", declaration(tools, system))])
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        read(codec, tokens, self.unframes)
    }
}

/// Texts next to each other are one text to the tokenizer.
pub(super) fn merged(parts: Vec<Said>) -> Vec<Part> {
    let mut out = Vec::new();
    let mut open = String::new();
    for part in parts {
        match part {
            Said::Text(text) | Said::Thinking(text) => open += &text,
            Said::Image(chunk) => {
                if !open.is_empty() {
                    out.push(Part::markup(std::mem::take(&mut open)));
                }
                out.push(Part::Image(chunk));
            }
        }
    }
    if !open.is_empty() {
        out.push(Part::markup(open));
    }
    out
}

pub(super) fn header(turn: &Turn, place: &Place<'_>) -> Piece {
    let role = if turn.is("tool") { "user" } else { &turn.role };
    Piece::fixed(format!("{}<|im_start|>{role}\n", place.newline()))
}

/// The header of a message and what stands around its text: results next to each other share
/// one block of the user.
fn block(turn: &Turn, place: &Place<'_>) -> (Vec<Piece>, &'static str, &'static str) {
    const CLOSE: &str = "\n</tool_response>";
    if !turn.is("tool") {
        return (vec![header(turn, place)], "", "");
    }
    match goes_on(turn, place.previous()) {
        true => (Vec::new(), "\n<tool_response>\n", CLOSE),
        false => (vec![header(turn, place)], "<tool_response>\n", CLOSE),
    }
}

/// The message the model produces, as an example shows it.
fn produced(turn: &Turn, place: &Place<'_>) -> bool {
    place.as_produced && place.is_last && turn.is("assistant")
}

/// An answer that thinks and calls but says nothing. The instruct models have no thinking of
/// their own: such a block is text to them.
fn only_thinks(turn: &Turn) -> bool {
    let text = turn.content.text();
    turn.content.has_thinking_part() && text.is_empty() && !turn.calls.is_empty()
}

/// There are results of tools next to each other.
fn has_run(turns: &[Turn]) -> bool {
    turns
        .windows(2)
        .any(|pair| goes_on(&pair[0], Some(&pair[1])))
}

/// Both are results of tools, which share a block.
pub(super) fn goes_on(turn: &Turn, neighbour: Option<&Turn>) -> bool {
    turn.is("tool") && neighbour.is_some_and(|turn| turn.is("tool"))
}

fn frame(thinking: &str) -> String {
    format!("<think>\n{}\n</think>\n\n", thinking.trim_matches('\n'))
}

fn joined(parts: &[Said], strip: bool, framed: bool, trim: bool) -> Result<String> {
    let mut out = String::new();
    let mut after_block = false;
    for part in parts {
        match part {
            Said::Thinking(_) if strip => continue,
            Said::Thinking(text) if framed => out += &frame(text),
            Said::Thinking(text) if trim => {
                out += &format!("<think>{}</think>", text.trim_matches('\n'));
            }
            Said::Thinking(text) => out += &format!("<think>{text}</think>"),
            Said::Text(text) if after_block => out += text.trim_start_matches('\n'),
            Said::Text(text) => out += text,
            Said::Image(_) => {
                return Err(Error::invalid("content", "this model does not see images"));
            }
        }
        after_block = framed && matches!(part, Said::Thinking(_));
    }
    Ok(out)
}

fn json_calls(calls: &[ToolCall], style: Style) -> Result<String> {
    let each = calls.iter().map(|call| {
        let name = Json::from(call.name.as_str()).dump(style);
        let arguments = call.parse_arguments()?.dump(style);
        Ok(format!(
            "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
        ))
    });
    Ok(each.collect::<Result<Vec<_>>>()?.join("\n"))
}

fn declaration(tools: &[Json], system: &str) -> String {
    let lines = tools.iter().map(|tool| {
        let tool = tool.dump(Style::PLAIN);
        format!("{{\"type\": \"function\", \"function\": {tool}}}")
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    let gap = if system.is_empty() { "" } else { "\n\n" };
    format!(
        "{system}{gap}# Tools\n\nYou may call one or more functions to assist with the user \
         query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n\
         <tools>\n{lines}\n</tools>\n\nFor each function call, return a json object with \
         function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n\
         {{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>"
    )
}

fn read(codec: &Codec, tokens: &[i32], unframes: bool) -> Result<Parsed> {
    let (text, stop) = until_stop(codec, tokens, &[END])?;
    if stop.is_none() {
        return Ok(Reply::text(text).ended(Termination::Malformed));
    }
    Ok(blocks(&text, unframes, Json::parse).ended(Termination::StopSequence))
}

/// The answer as the service's own renderer takes it: its blocks stand one after the other, and
/// thinking may go on to the end. `None` if a tag does not fit.
fn closed(text: &str) -> Option<Cow<'_, str>> {
    const TAGS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let mut open = None;
    for (at, _) in text.match_indices('<') {
        let Some(tag) = TAGS.iter().position(|tag| text[at..].starts_with(tag)) else {
            continue;
        };
        open = match (open, tag) {
            (None, 0 | 2) => Some(tag),
            (Some(opening), _) if tag == opening + 1 => None,
            _ => return None,
        };
    }
    Some(match open {
        Some(0) => Cow::Owned(format!("{text}{}", TAGS[1])),
        _ => Cow::Borrowed(text),
    })
}

/// Thinking and JSON calls of a whole answer.
pub(super) fn blocks(text: &str, unframes: bool, json: ReadJson) -> Reply {
    let mut reply = Reply::text(text);
    if let Some((parts, calls)) = content_blocks(text) {
        reply.content = Content::Parts(match unframes {
            true => unframed(parts),
            false => parts,
        });
        reply.take(calls.iter().map(|call| json_call(call, json)).collect());
    }
    reply
        .unparsed
        .extend(unterminated(text, "<tool_call>", "</tool_call>"));
    reply
}

/// Takes off what the template puts around thinking.
fn unframed(parts: Vec<Said>) -> Vec<Said> {
    let mut out = Vec::new();
    let mut after_block = false;
    for part in parts {
        match part {
            Said::Thinking(text) => {
                let text = text.trim_matches('\n');
                if !text.is_empty() {
                    out.push(Said::Thinking(text.to_owned()));
                }
                after_block = true;
                continue;
            }
            Said::Text(text) if after_block => {
                out.push(Said::Text(text.trim_start_matches('\n').to_owned()));
            }
            other => out.push(other),
        }
        after_block = false;
    }
    out
}
