//! `tml_v0`: Inkling, whose turns are messages of one kind of content each.

use std::collections::HashMap;

use serde::Deserialize;

use super::super::json::{Json, Style, write_float};
use super::super::message::{Content, Part as Said, ToolCall, Turn};
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::reply::Reply;
use super::{Parsed, Termination, TrainOnWhat};
use crate::error::{Error, Result};

const STOP: &str = "<|content_model_end_sampling|>";
const SYSTEM: &str = "<|message_system|>";
const USER: &str = "<|message_user|>";
const MODEL: &str = "<|message_model|>";
const TOOL: &str = "<|message_tool|>";
const TEXT: &str = "<|content_text|>";
const THINKING: &str = "<|content_thinking|>";
const CALL: &str = "<|content_invoke_tool_json|>";
const END: &str = "<|end_message|>";
const DECLARED: &str = "tool_declare";
const EFFORT: &str = "_effort";

struct TmlV0;

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    (name == "tml_v0").then(|| Box::new(TmlV0) as Box<dyn Family>)
}

/// One message: who, its name or nothing, what kind of content, the content.
fn message(who: &'static str, name: &str, kind: &'static str, content: String) -> Vec<Piece> {
    vec![
        Piece::fixed(who),
        Piece::Plain(name.to_owned()),
        Piece::fixed(kind),
        Piece::Plain(content),
        Piece::fixed(END),
    ]
}

impl TmlV0 {
    fn assistant(turn: &Turn) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let calls = !turn.calls.is_empty();
        for part in turn.content.clone().into_parts() {
            match part {
                Said::Text(text) if calls && text.is_empty() => {}
                Said::Text(text) => pieces.extend(message(MODEL, "", TEXT, text)),
                Said::Thinking(text) => pieces.extend(message(MODEL, "", THINKING, text)),
                Said::Image(_) => {
                    return Err(Error::invalid("content", "the model says no images"));
                }
            }
        }
        for call in &turn.calls {
            let name = Json::from(call.name.as_str()).dump(Style::COMPACT);
            let arguments = written_anew(call)?;
            let content = format!("{{\"name\":{name},\"args\":{arguments}}}");
            pieces.extend(message(MODEL, &call.name, CALL, content));
        }
        // A turn without a message has no end either.
        if !pieces.is_empty() {
            pieces.push(Piece::fixed(STOP));
        }
        Ok(pieces)
    }

    /// A message of somebody else: every part is one of its own.
    fn other(who: &'static str, name: &str, turn: &Turn) -> Result<Vec<Part>> {
        let mut out = Vec::new();
        let mut pieces = Vec::new();
        for part in turn.content.clone().into_parts() {
            match part {
                Said::Text(text) => pieces.extend(message(who, name, TEXT, text)),
                Said::Thinking(_) => {
                    return Err(Error::invalid("content", "only the assistant thinks"));
                }
                Said::Image(chunk) => {
                    pieces.extend([Piece::fixed(who), Piece::fixed("<|content_image|>")]);
                    out.push(Part::Text(std::mem::take(&mut pieces)));
                    out.push(Part::Image(chunk));
                    pieces.push(Piece::fixed(END));
                }
            }
        }
        out.push(Part::Text(pieces));
        Ok(out)
    }
}

impl Family for TmlV0 {
    fn facts(&self) -> Facts {
        Facts {
            extends: true,
            free_flags: true,
            streams: false,
            ..Facts::ending(&[STOP])
        }
    }

    /// The effort is told after the system messages at the start.
    fn prepare(&self, mut turns: Vec<Turn>, _: usize) -> Result<(Vec<Turn>, usize)> {
        let leading = turns
            .iter()
            .take_while(|t| t.is("system") || t.is(DECLARED));
        let at = leading.count();
        turns.insert(at, Turn::new(EFFORT, "Thinking effort level: 0.9"));
        let last = turns.iter().rposition(|turn| turn.is("assistant"));
        Ok((turns, last.unwrap_or(0)))
    }

    fn render(&self, turn: &Turn, _: &Place<'_>) -> Result<Rendered> {
        let output = match turn.role.as_str() {
            "system" | EFFORT => Self::other(SYSTEM, "", turn)?,
            "user" => Self::other(USER, "", turn)?,
            "tool" => {
                let name = turn.name.as_deref().unwrap_or_default();
                Self::other(TOOL, name, turn)?
            }
            DECLARED => {
                let text = turn.plain_text()?.to_owned();
                let kind = "<|content_xml|>";
                vec![Part::Text(message(SYSTEM, DECLARED, kind, text))]
            }
            "assistant" => vec![Part::Text(Self::assistant(turn)?)],
            other => {
                return Err(Error::invalid(
                    "role",
                    format!("this model knows no {other:?}"),
                ));
            }
        };
        Ok(Rendered {
            output,
            ..Rendered::default()
        })
    }

    /// The model says itself who speaks.
    fn suffix(&self, _: &Place<'_>) -> Result<Vec<Piece>> {
        Ok(Vec::new())
    }

    fn prefill(&self, _: &[Turn], prefill: &str) -> Result<String> {
        match prefill.is_empty() {
            true => Ok(String::new()),
            false => Err(Error::invalid(
                "prefill",
                "this model's turn cannot be started for it",
            )),
        }
    }

    fn trains(&self, turn: &Turn, place: &Place<'_>, what: TrainOnWhat) -> Result<bool> {
        let assistant = turn.is("assistant");
        match what {
            TrainOnWhat::AllAssistantMessages => Ok(assistant),
            TrainOnWhat::LastAssistantMessage => Ok(assistant && place.index == place.mark),
            TrainOnWhat::Customized => Ok(assistant && turn.trainable != Some(false)),
            other => {
                let problem = format!("{other} is not possible with this renderer");
                Err(Error::invalid("train_on_what", problem))
            }
        }
    }

    fn declare(&self, tools: &[Json], system: &str) -> Result<Vec<Turn>> {
        let tools = tools.iter().map(|tool| {
            let mut fields = tool.as_object().unwrap_or_default().to_vec();
            fields.retain(|(key, _)| ["name", "description", "parameters"].contains(&&**key));
            fields.push(("type".to_owned(), Json::from("function")));
            Json::Object(fields)
        });
        let tools = strict(&Json::Array(tools.collect()));
        let tools = tools.map_err(|problem| Error::invalid("tools", problem.to_string()))?;
        let text = tools.dump(Style {
            float: |number, out| write_number(number, "e+", out),
            ..Style::COMPACT_SORTED
        });
        let mut turns = Vec::new();
        if !system.is_empty() {
            turns.push(Turn::new("system", system));
        }
        turns.push(Turn::new(DECLARED, text));
        Ok(turns)
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let Some((reply, stopped)) = read(codec, tokens)? else {
            return Ok(Reply::text(codec.decode(tokens)?).ended(Termination::Malformed));
        };
        Ok(reply.ended(match stopped {
            true => Termination::StopSequence,
            false => Termination::Malformed,
        }))
    }
}

/// Arguments as the service writes them, sorted by name.
fn written_anew(call: &ToolCall) -> Result<String> {
    let refused = |problem: String| {
        let problem = format!("arguments of {} {problem}", call.name);
        Error::invalid("tool_calls", problem)
    };
    let strict = strict(&call.parse_arguments()?);
    let arguments = strict.map_err(|problem| refused(format!("are no JSON: {problem}")))?;
    let Json::Object(mut pairs) = arguments else {
        return Err(refused("must be a JSON object".to_owned()));
    };
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(Json::Object(pairs).dump(Style {
        float: |number, out| write_number(number, "e", out),
        ..Style::COMPACT
    }))
}

/// A value as the service reads it: strict JSON, without `NaN` or halves of characters, whose
/// whole numbers have 64 bits.
fn strict(value: &Json) -> serde_json::Result<Json> {
    serde_json::from_str(&value.dump(Style::PLAIN))
}

/// Like Python, but for exponents: they begin one digit later and have no zeros.
fn write_number(number: f64, exponent: &str, out: &mut String) {
    let mut python = String::new();
    write_float(number, &mut python);
    let parts = python.split_once('e');
    match parts.and_then(|(digits, power)| Some((digits, power.parse::<i32>().ok()?))) {
        None => out.push_str(&python),
        Some((_, -5)) => out.push_str(&number.to_string()),
        Some((digits, power @ ..0)) => out.push_str(&format!("{digits}e{power}")),
        Some((digits, power)) => out.push_str(&format!("{digits}{exponent}{power}")),
    }
}

/// The last turn of an answer, and whether the answer was ended. What stands between messages
/// does not count, nor does a last one that is cut off in its content. `None` if there is no
/// whole message, if one is broken or cut off before its content, or if the model does not speak
/// last.
fn read(codec: &Codec, tokens: &[i32]) -> Result<Option<(Reply, bool)>> {
    let mut specials: HashMap<i32, String> = codec.tokenizer.special_tokens().into_iter().collect();
    // Whatever the tokenizer's files say about them.
    for mark in [SYSTEM, USER, MODEL, TOOL, TEXT, THINKING, CALL, STOP, END] {
        specials.insert(codec.token(mark)?, mark.to_owned());
    }
    let (stop, end) = (codec.token(STOP)?, codec.token(END)?);
    let mut rest = tokens;
    let mut last: Option<Speaker<'_>> = None;
    let (mut calls, mut stopped) = (0, false);
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        let special = specials.get(token).map_or("", String::as_str);
        let (author, name, kind) = if special.starts_with("<|message_") {
            // Any special token ends a name, and is the kind of what follows.
            let Some(begin) = rest.iter().position(|token| specials.contains_key(token)) else {
                return Ok(None);
            };
            let (name, kind) = (
                codec.decode(&rest[..begin])?,
                specials[&rest[begin]].as_str(),
            );
            rest = &rest[begin + 1..];
            (special, name, kind)
        } else if *token == stop {
            stopped = true;
            match last {
                Some(_) => continue,
                None => return Ok(None),
            }
        } else if special.starts_with("<|content_") {
            (MODEL, String::new(), special)
        } else {
            continue;
        };
        let Some(length) = rest.iter().position(|token| *token == end) else {
            break;
        };
        let text = codec.decode(&rest[..length])?;
        rest = &rest[length + 1..];
        let (name, said) = match kind {
            TEXT | "<|content_tool_error|>" => (name, Ok(Said::Text(text))),
            THINKING => (name, Ok(Said::Thinking(text))),
            CALL => match call(&name, &text) {
                Some(call) => {
                    let id = format!("functions.{}:{calls}", call.name);
                    calls += 1;
                    (String::new(), Err(call.with_id(id)))
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        let mut speaker = match last.take() {
            Some(speaker) if speaker.goes_on(author, &name) => speaker,
            _ => Speaker::new(author),
        };
        if speaker.name.is_empty() {
            speaker.name = name;
        }
        match said {
            Ok(part) => speaker.parts.push(part),
            Err(call) => speaker.calls.push(call),
        }
        last = Some(speaker);
    }
    let reply = last.filter(|speaker| speaker.author == MODEL);
    Ok(reply.map(|speaker| (speaker.into_reply(), stopped)))
}

/// Messages in a row that are one turn.
struct Speaker<'a> {
    author: &'a str,
    name: String,
    parts: Vec<Said>,
    calls: Vec<ToolCall>,
}

impl<'a> Speaker<'a> {
    fn new(author: &'a str) -> Self {
        Self {
            author,
            name: String::new(),
            parts: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Whether a message belongs to this turn; one without a name may be anybody's.
    fn goes_on(&self, author: &str, name: &str) -> bool {
        let is_named = !name.is_empty() && !self.name.is_empty();
        self.author == author && (!is_named || self.name == name)
    }

    fn into_reply(self) -> Reply {
        let mut reply = Reply::text("");
        reply.calls = self.calls;
        reply.content = match self.parts.as_slice() {
            [Said::Text(text)] => Content::Text(text.clone()),
            _ => Content::Parts(self.parts),
        };
        reply
    }
}

/// A call, which says its name again if its message has one, in JSON that [`strict`] takes.
fn call(named: &str, text: &str) -> Option<ToolCall> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Call {
        name: String,
        args: Json,
    }
    // As a list it would be taken too.
    let text = text.trim_start().starts_with('{').then_some(text)?;
    let Call { name, args } = serde_json::from_str(text).ok()?;
    args.as_object()?;
    let is_named = !name.is_empty() && (named.is_empty() || named == name);
    is_named.then(|| ToolCall::new(name, args.dump(Style::ASCII)))
}
