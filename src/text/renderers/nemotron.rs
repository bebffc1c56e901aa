//! `nemotron3` and `nemotron3_ultra`: Qwen3.5's messages with a system message always there and
//! a thinking block in every turn of the model.

use super::super::json::{Json, Style};
use super::super::message::{Content, Part as Said, Turn};
use super::super::space::Strip;
use super::Parsed;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered, Split};
use super::qwen3::{goes_on, header, merged};
use super::qwen3_5::{OPENING, read};
use super::xml_tools::{Scalars, declaration, format_call};
use crate::error::{Error, Result};

const END: &str = "<|im_end|>";
const OPEN: &str = "<think>\n";

#[derive(Default)]
struct Nemotron {
    ultra: bool,
    disabled: bool,
    strips_history: bool,
    /// What the last message of the user ends with.
    effort: &'static str,
    /// Examples of a message without thinking open with the prompt's block and close it.
    follows_prompt: bool,
}

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    let usual = Nemotron {
        strips_history: true,
        ..Nemotron::default()
    };
    let ultra = Nemotron {
        ultra: true,
        strips_history: true,
        ..Nemotron::default()
    };
    let family = match name {
        "nemotron3" => Nemotron {
            follows_prompt: true,
            ..usual
        },
        "nemotron3_low_thinking" => Nemotron {
            effort: "\n\n{reasoning effort: low}",
            ..usual
        },
        "nemotron3_disable_thinking" => Nemotron {
            disabled: true,
            ..usual
        },
        "nemotron3_preserve_thinking" => Nemotron {
            follows_prompt: true,
            strips_history: false,
            ..usual
        },
        "nemotron3_ultra" => Nemotron {
            follows_prompt: true,
            ..ultra
        },
        "nemotron3_ultra_medium_thinking" => Nemotron {
            effort: "\n\n{reasoning effort: efficient}",
            ..ultra
        },
        "nemotron3_ultra_disable_thinking" => Nemotron {
            disabled: true,
            ..ultra
        },
        "nemotron3_ultra_preserve_thinking" => Nemotron {
            strips_history: false,
            ..ultra
        },
        _ => return None,
    };
    Some(Box::new(family))
}

impl Nemotron {
    /// Thinking of this message is history that goes.
    fn is_history(&self, place: &Place<'_>) -> bool {
        self.strips_history && place.last_user().is_some_and(|user| place.index < user)
    }

    /// The block of a message that shows no thinking.
    fn block(&self, turn: &Turn, content: &Content, place: &Place<'_>) -> &'static str {
        let thinks = content.has_thinking();
        let history = self.is_history(place);
        if thinks && !history {
            return "";
        }
        let said = matches!(content, Content::Parts(_)) && !content.text().is_empty();
        match history && thinks && said && turn.calls.is_empty() && !self.ultra {
            true => "<think></think>\n",
            false => "<think></think>",
        }
    }

    fn thought(&self, text: &str) -> String {
        match self.ultra {
            true => format!("<think>\n{text}</think>"),
            false => format!("<think>\n{text}\n</think>\n"),
        }
    }

    /// The example shows this message as the model produces it, after the prompt's open block.
    fn is_produced(&self, turn: &Turn, place: &Place<'_>) -> bool {
        self.follows_prompt
            && place.as_produced
            && place.is_last
            && turn.is("assistant")
            && !turn.content.has_thinking()
    }

    /// The example ends with this message, which answers a prompt that opens the block.
    fn is_answer(&self, turn: &Turn, place: &Place<'_>) -> bool {
        place.as_produced && place.is_last && turn.is("assistant") && !self.disabled
    }

    fn calls(&self, turn: &Turn, content: &Content, produced: bool) -> Result<String> {
        let only_thought = content.has_thinking_part() && content.text().is_empty();
        let newline = match produced || (only_thought && !self.ultra) {
            true => "",
            false => "\n",
        };
        let nested = if produced {
            Style::COMPACT
        } else {
            Style::ASCII
        };
        let mut out = newline.to_owned();
        for call in &turn.calls {
            out += &format_call(call, Scalars::Python, nested)?;
            out += "\n";
        }
        Ok(out)
    }

    fn with_effort(&self, content: &Content) -> Result<Content> {
        match content {
            Content::Text(text) => Ok(Content::Text(format!("{text}{}", self.effort))),
            Content::Parts(_) if !self.ultra => {
                let problem = "must be one text for the effort to be written after it";
                Err(Error::invalid("content", problem))
            }
            Content::Parts(parts) => {
                let mut parts = parts.clone();
                parts.push(Said::Text(self.effort.to_owned()));
                Ok(Content::Parts(parts))
            }
        }
    }
}

impl Family for Nemotron {
    fn facts(&self) -> Facts {
        Facts {
            extends: !self.strips_history,
            disables_thinking: self.disabled,
            ..Facts::ending(&[END])
        }
    }

    /// A message that did not think is produced after an open block, but stands in history with
    /// an empty one.
    fn split(&self, turns: &[Turn]) -> Split {
        let thinks = |turn: &Turn| !turn.is("assistant") || turn.content.has_thinking();
        match self.strips_history || (self.follows_prompt && !turns.iter().all(thinks)) {
            true => Split::Messages,
            false => Split::Whole,
        }
    }

    fn prepare(&self, mut turns: Vec<Turn>, _: usize) -> Result<(Vec<Turn>, usize)> {
        if !turns.first().is_some_and(|turn| turn.is("system")) {
            turns.insert(0, Turn::new("system", ""));
        }
        Ok((turns, 0))
    }

    fn render(&self, turn: &Turn, place: &Place<'_>) -> Result<Rendered> {
        let last_user = turn.is("user") && place.last_user() == Some(place.index);
        let content = match last_user && !self.effort.is_empty() {
            true => self.with_effort(&turn.content)?,
            false => turn.content.clone(),
        };
        let content = match content {
            Content::Text(text) => Content::Text(text.strip().to_owned()),
            parts => parts,
        };
        let produced = self.is_produced(turn, place);
        let mut parts = Vec::new();
        if turn.is("tool") {
            parts.push(Said::Text("<tool_response>\n".to_owned()));
        }
        if produced {
            parts.push(Said::Text(match self.ultra {
                true => "</think>".to_owned(),
                false => "</think>\n".to_owned(),
            }));
        }
        parts.extend(self.parts(turn, &content, place));
        if turn.is("tool") {
            parts.push(Said::Text("\n</tool_response>\n".to_owned()));
        }
        if !turn.calls.is_empty() {
            parts.push(Said::Text(self.calls(turn, &content, produced)?));
        }
        if !goes_on(turn, place.next()) {
            parts.push(Said::Text(END.to_owned()));
        }
        let header = match turn.role.as_str() {
            _ if goes_on(turn, place.previous()) => Vec::new(),
            "assistant" if produced => self.suffix(place)?,
            "assistant" => {
                let block = self.block(turn, &content, place);
                let newline = place.newline();
                vec![Piece::fixed(format!(
                    "{newline}<|im_start|>assistant\n{block}"
                ))]
            }
            _ => vec![header(turn, place)],
        };
        let mut output = merged(parts);
        if self.is_answer(turn, place) {
            apart_from_prompt(&mut output);
        }
        Ok(Rendered {
            header,
            output,
            ..Rendered::default()
        })
    }

    fn suffix(&self, place: &Place<'_>) -> Result<Vec<Piece>> {
        let block = if self.disabled {
            "<think></think>"
        } else {
            "<think>\n"
        };
        let newline = place.newline();
        Ok(vec![Piece::fixed(format!(
            "{newline}<|im_start|>assistant\n{block}"
        ))])
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let functions = tools.iter().map(function).collect::<Vec<_>>().join("\n");
        let tools = declaration(&functions);
        let gap = if system.is_empty() { "" } else { "\n\n" };
        Ok(vec![Turn::new("system", format!("{system}{gap}{tools}"))])
    }

    fn opening(&self) -> Option<&'static str> {
        Some(OPENING)
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        read(codec, tokens, |parts| {
            if !self.ultra {
                drop_newline(parts);
            }
        })
    }
}

impl Nemotron {
    fn parts(&self, turn: &Turn, content: &Content, place: &Place<'_>) -> Vec<Said> {
        let strip = turn.is("assistant") && !place.is_last && self.is_history(place);
        let images = match content {
            Content::Parts(parts) => parts.iter().filter(|p| matches!(p, Said::Image(_))).count(),
            Content::Text(_) => 0,
        };
        let mut out = Vec::new();
        let mut image = 0;
        let mut before = String::new();
        for part in content.clone().into_parts() {
            match part {
                Said::Thinking(_) if strip => {}
                Said::Thinking(text) => {
                    before = match self.ultra && self.is_answer(turn, place) {
                        true => self.thought(text.strip()),
                        false => self.thought(&text),
                    };
                    out.push(Said::Text(before.clone()));
                }
                Said::Text(text) => {
                    if !text.is_empty() {
                        before.clone_from(&text);
                    }
                    out.push(Said::Text(text));
                }
                Said::Image(chunk) => {
                    image += 1;
                    let gap = match before.is_empty() || before.ends_with('\n') {
                        true => "",
                        false => "\n",
                    };
                    let label = match images > 1 {
                        true => format!("<image {image}>"),
                        false => String::new(),
                    };
                    out.push(Said::Text(format!("{gap}{label}<img>")));
                    out.push(Said::Image(chunk));
                    out.push(Said::Text("</img>".to_owned()));
                    before.clear();
                }
            }
        }
        out
    }
}

/// What the prompt opens the block with is tokenised before what the model says.
fn apart_from_prompt(output: &mut [Part]) {
    let Some(Part::Text(pieces)) = output.first_mut() else {
        return;
    };
    if let [Piece::Markup(text)] = pieces.as_mut_slice()
        && let Some(rest) = text.strip_prefix(OPEN)
    {
        *text = rest.to_owned();
        pieces.insert(0, Piece::fixed(OPEN));
    }
}

/// The line break between thinking and text is no text.
fn drop_newline(parts: &mut [Said]) {
    let Some(thought) = parts.iter().position(|p| matches!(p, Said::Thinking(_))) else {
        return;
    };
    let text = parts[thought..].iter_mut().find_map(|part| match part {
        Said::Text(text) => Some(text),
        _ => None,
    });
    if let Some(text) = text
        && let Some(rest) = text.strip_prefix('\n')
    {
        *text = rest.to_owned();
    }
}

/// A tool as XML: every property a parameter, what else there is by its name.
fn function(tool: &Json) -> String {
    let mut lines = vec!["<function>".to_owned()];
    lines.push(format!(
        "<name>{}</name>",
        text(tool, "name").unwrap_or_default()
    ));
    if let Some(about) = text(tool, "description").filter(|about| !about.is_empty()) {
        lines.push(format!("<description>{about}</description>"));
    }
    lines.push("<parameters>".to_owned());
    let parameters = tool.get("parameters").unwrap_or(&Json::Null);
    let properties = parameters.get("properties").and_then(Json::as_object);
    for (name, fields) in properties.unwrap_or_default() {
        lines.push(format!("<parameter>\n<name>{name}</name>"));
        if let Some(kind) = fields.get("type") {
            lines.push(format!("<type>{}</type>", kind_text(kind)));
        }
        if let Some(about) = text(fields, "description") {
            lines.push(format!("<description>{about}</description>"));
        }
        if let Some(choices) = fields.get("enum") {
            lines.push(format!("<enum>{}</enum>", choices.dump(Style::PLAIN)));
        }
        lines.extend(others(fields, &["name", "type", "description", "enum"]));
        lines.push("</parameter>".to_owned());
    }
    lines.extend(others(parameters, &["type", "properties", "required"]));
    if let Some(required) = parameters.get("required") {
        lines.push(format!(
            "<required>{}</required>",
            required.dump(Style::PLAIN)
        ));
    }
    lines.push("</parameters>".to_owned());
    lines.extend(others(tool, &["type", "name", "description", "parameters"]));
    lines.push("</function>".to_owned());
    lines.join("\n")
}

fn text<'a>(value: &'a Json, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Json::as_str).map(Strip::strip)
}

/// A type as Python prints it: a list of types in its own quotes.
fn kind_text(kind: &Json) -> String {
    match kind.as_array() {
        Some(kinds) => {
            let kinds = kinds
                .iter()
                .map(|kind| format!("'{}'", kind.to_python_text()));
            format!("[{}]", kinds.collect::<Vec<_>>().join(", "))
        }
        None => kind.to_python_text(),
    }
}

fn others(fields: &Json, known: &[&str]) -> Vec<String> {
    let fields = fields.as_object().unwrap_or_default().iter();
    fields
        .filter(|(key, _)| !known.contains(&key.as_str()))
        .map(|(key, value)| format!("<{key}>{}</{key}>", plain(value)))
        .collect()
}

fn plain(value: &Json) -> String {
    match value {
        Json::Array(_) | Json::Object(_) => value.dump(Style::PLAIN),
        scalar => scalar.to_python_text(),
    }
}
