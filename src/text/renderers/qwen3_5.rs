//! `qwen3_5` (Qwen3.5 and Qwen3.6) and `qwen3_8`: thinking in every produced turn, XML calls.

use super::super::json::{Json, Style};
use super::super::message::{Content, Part as Said, Turn};
use super::super::space::Strip;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::qwen3::{blocks, goes_on, header, merged};
use super::reply::{Reply, UNTERMINATED, until_stop};
use super::xml_tools::{Scalars, declaration, format_call, parse_call};
use super::{Parsed, Termination};
use crate::error::Result;

const END: &str = "<|im_end|>";
pub(super) const OPENING: &str = "<think>\n";
const EMPTY_BLOCK: &str = "<think>\n\n</think>\n\n";

const XHIGH: &str = "Reasoning effort is set to xhigh. Please think carefully through the task, \
                     validate key assumptions, consider plausible alternatives, and prioritize \
                     correctness, consistency, and clarity in the final answer.";
const LOW: &str = "Reasoning effort is set to low. Keep your thinking brief and focused, moving \
                   directly to the conclusion without unnecessary elaboration.";

struct Qwen35 {
    disabled: bool,
    strips_history: bool,
    /// Qwen3.8: the sentence about effort, which may be empty.
    effort: Option<&'static str>,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let (disabled, strips_history, effort) = match name {
        "qwen3_5" => (false, true, None),
        "qwen3_5_disable_thinking" => (true, true, None),
        "qwen3_5_preserve_thinking" => (false, false, None),
        "qwen3_8_xhigh_reasoning" => (false, false, Some(XHIGH)),
        "qwen3_8_medium_reasoning" => (false, false, Some("")),
        "qwen3_8_low_reasoning" => (false, false, Some(LOW)),
        "qwen3_8_disable_thinking" => (true, false, Some("")),
        _ => return None,
    };
    Some(Box::new(Qwen35 {
        disabled,
        strips_history,
        effort,
    }))
}

impl Qwen35 {
    fn suffix_text(&self, place: &Place<'_>) -> String {
        let block = if self.disabled {
            EMPTY_BLOCK
        } else {
            "<think>\n"
        };
        format!("{}<|im_start|>assistant\n{block}", place.newline())
    }

    /// The empty block of a message that did not think.
    fn block(&self, content: &Content, place: &Place<'_>) -> &'static str {
        let thinks = match self.effort {
            Some(_) => content.has_thinking_part(),
            None => content.has_thinking(),
        };
        let wanted = self.effort.is_some() || place.after_last_user();
        if wanted && !thinks { EMPTY_BLOCK } else { "" }
    }
}

impl Family for Qwen35 {
    fn facts(&self) -> Facts {
        Facts {
            disables_thinking: self.disabled,
            ..Facts::ending(&[END])
        }
    }

    fn prepare(&self, turns: Vec<Turn>, _: usize) -> Result<(Vec<Turn>, usize)> {
        Ok(match self.effort {
            Some(effort) => (with_effort(turns, effort), 0),
            None => (turns, 0),
        })
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let assistant = turn.is("assistant");
        let content = trimmed(&turn.content);
        let strip = self.strips_history && assistant && !place.is_last;
        let mut parts = Vec::new();
        if turn.is("tool") {
            parts.push(Said::Text("<tool_response>\n".to_owned()));
        }
        for part in content.clone().into_parts() {
            match part {
                Said::Thinking(_) if strip => {}
                Said::Thinking(text) => {
                    let text = match self.strips_history || place.is_last {
                        true => text.strip(),
                        false => &text,
                    };
                    parts.push(Said::Text(format!("<think>\n{text}\n</think>\n\n")));
                }
                Said::Image(chunk) => {
                    parts.push(Said::Text("<|vision_start|>".to_owned()));
                    parts.push(Said::Image(chunk));
                    parts.push(Said::Text("<|vision_end|>".to_owned()));
                }
                text => parts.push(text),
            }
        }
        if turn.is("tool") {
            parts.push(Said::Text("\n</tool_response>".to_owned()));
        }
        if !turn.calls.is_empty() {
            parts.push(Said::Text(self.calls(turn, &content)?));
        }
        if !goes_on(turn, place.next()) {
            parts.push(Said::Text(END.to_owned()));
        }
        let (header, rest) = self.header(turn, &content, place);
        let mut output = merged(parts);
        if !rest.is_empty() {
            output.insert(0, Part::Text(vec![Piece::fixed(rest)]));
        }
        Ok(Rendered {
            header,
            output,
            ..Rendered::default()
        })
    }

    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed(self.suffix_text(place))])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let lines = tools.iter().map(|tool| {
            let tool = tool.dump(Style::PLAIN);
            format!("{{\"type\": \"function\", \"function\": {tool}}}")
        });
        let tools = declaration(&lines.collect::<Vec<_>>().join("\n"));
        let gap = if system.is_empty() { "" } else { "\n\n" };
        Ok(vec![Turn::new("system", format!("{tools}{gap}{system}"))])
    }

    fn opening(&self) -> Option<&'static str> {
        Some(OPENING)
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        read(codec, tokens, |_| {})
    }
}

impl Qwen35 {
    /// The header, and what of it the model produces: the prompt may end inside of it.
    fn header(&self, turn: &Turn, content: &Content, place: &Place<'_>) -> (Vec<Piece>, String) {
        if goes_on(turn, place.previous()) {
            return (vec![Piece::fixed("\n")], String::new());
        }
        if !turn.is("assistant") {
            return (vec![header(turn, place)], String::new());
        }
        let whole = format!(
            "{}<|im_start|>assistant\n{}",
            place.newline(),
            self.block(content, place)
        );
        let prompt = self.suffix_text(place);
        match whole.strip_prefix(&prompt) {
            Some(rest) if place.is_last => (vec![Piece::fixed(prompt)], rest.to_owned()),
            _ => (vec![Piece::fixed(whole)], String::new()),
        }
    }

    fn calls(&self, turn: &Turn, content: &Content) -> Result<String> {
        let scalars = match self.effort {
            Some(_) => Scalars::Json,
            None => Scalars::Python,
        };
        let calls = turn
            .calls
            .iter()
            .map(|call| format_call(call, scalars, Style::ASCII));
        let calls = calls.collect::<Result<Vec<_>>>()?.join("\n");
        let said = content.has_image() || !content.text().strip().is_empty();
        Ok(if said { format!("\n\n{calls}") } else { calls })
    }
}

/// The sentence comes before the system's text; an empty system message is left out.
fn with_effort(mut turns: Vec<Turn>, effort: &str) -> Vec<Turn> {
    if !turns.first().is_some_and(|turn| turn.is("system")) {
        if !effort.is_empty() {
            let mut system = Turn::new("system", effort);
            let flagged = turns.iter().any(|turn| turn.trainable.is_some());
            system.trainable = flagged.then_some(false);
            turns.insert(0, system);
        }
        return turns;
    }
    let system = &mut turns[0].content;
    if system.has_image() || system.has_thinking_part() {
        if !effort.is_empty() {
            let mut parts = std::mem::replace(system, Content::Parts(Vec::new())).into_parts();
            parts.insert(0, Said::Text(format!("{effort}\n\n")));
            *system = Content::Parts(parts);
        }
        return turns;
    }
    let text = system.text();
    let text = text.strip();
    match (text.is_empty(), effort.is_empty()) {
        (true, true) => {
            turns.remove(0);
        }
        (true, false) => *system = Content::Text(effort.to_owned()),
        (false, true) => *system = Content::Text(text.to_owned()),
        (false, false) => *system = Content::Text(format!("{effort}\n\n{text}")),
    }
    turns
}

/// White space around the visible text goes.
fn trimmed(content: &Content) -> Content {
    let parts = match content {
        Content::Text(text) => return Content::Text(text.strip().to_owned()),
        Content::Parts(parts) => parts,
    };
    let mut parts = parts.clone();
    trim_ends(parts.iter_mut(), |text| text.lstrip().to_owned());
    trim_ends(parts.iter_mut().rev(), |text| text.rstrip().to_owned());
    Content::Parts(parts)
}

fn trim_ends<'a>(parts: impl Iterator<Item = &'a mut Said>, trim: fn(&str) -> String) {
    for part in parts {
        match part {
            Said::Thinking(_) => {}
            Said::Image(_) => return,
            Said::Text(text) => {
                *text = trim(text);
                if !text.is_empty() {
                    return;
                }
            }
        }
    }
}

/// Reads an answer; `separate` takes off what else stands between thinking and text.
pub(super) fn read(
    codec: &Codec,
    tokens: &[i32],
    separate: impl Fn(&mut Vec<Said>),
) -> Result<Parsed> {
    let (text, stop) = until_stop(codec, tokens, &[END])?;
    if stop.is_none() {
        return Ok(Reply::text(text).ended(Termination::Malformed));
    }
    let mut reply = blocks(&text, true, Json::parse);
    if let Content::Parts(parts) = &mut reply.content {
        separate(parts);
        // The cookbook looks no further than the first text after thinking.
        let mut thinks = false;
        for part in parts {
            match part {
                Said::Thinking(text) => {
                    *text = text.strip().to_owned();
                    thinks = true;
                }
                Said::Text(_) if thinks => break,
                _ => {}
            }
        }
    }
    let unparsed = std::mem::take(&mut reply.unparsed);
    for call in unparsed {
        let xml = call.raw_text.contains("<function=") && !call.error.starts_with(UNTERMINATED);
        match xml {
            true => reply.take(vec![parse_call(&call.raw_text)]),
            false => reply.unparsed.push(call),
        }
    }
    Ok(reply.ended(Termination::StopSequence))
}
