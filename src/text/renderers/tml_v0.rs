//! `tml_v0`: Inkling, whose turns are messages of one kind of content each.

use super::super::json::{Json, Style};
use super::super::message::{Content, Part as Said, ToolCall, Turn};
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::reply::Reply;
use super::{Parsed, Termination, TrainOnWhat};
use crate::error::{Error, Result};

const STOP: &str = "<|content_model_end_sampling|>";
const MODEL: &str = "<|message_model|>";
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
        let silent = turn.content.is_empty() && !turn.calls.is_empty();
        for part in turn.content.clone().into_parts() {
            match part {
                Said::Text(text) if silent && text.is_empty() => {}
                Said::Text(text) => pieces.extend(message(MODEL, "", TEXT, text)),
                Said::Thinking(text) => pieces.extend(message(MODEL, "", THINKING, text)),
                Said::Image(_) => {
                    return Err(Error::invalid("content", "the model says no images"));
                }
            }
        }
        for call in &turn.calls {
            let name = Json::from(call.name.as_str()).dump(Style::COMPACT);
            let mut arguments = call.parse_arguments()?;
            if let Json::Object(pairs) = &mut arguments {
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
            }
            let arguments = arguments.dump(Style::COMPACT);
            let content = format!("{{\"name\":{name},\"args\":{arguments}}}");
            pieces.extend(message(MODEL, &call.name, CALL, content));
        }
        pieces.push(Piece::fixed(STOP));
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
            "system" | EFFORT => Self::other("<|message_system|>", "", turn)?,
            "user" => Self::other("<|message_user|>", "", turn)?,
            "tool" => {
                let name = turn.name.as_deref().unwrap_or_default();
                Self::other("<|message_tool|>", name, turn)?
            }
            DECLARED => {
                let text = turn.plain_text()?.to_owned();
                let kind = "<|content_xml|>";
                vec![Part::Text(message(
                    "<|message_system|>",
                    DECLARED,
                    kind,
                    text,
                ))]
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
            fields.push(("type".to_owned(), Json::from("function")));
            Json::Object(fields)
        });
        let text = Json::Array(tools.collect()).dump(Style::COMPACT_SORTED);
        let mut turns = Vec::new();
        if !system.is_empty() {
            turns.push(Turn::new("system", system));
        }
        turns.push(Turn::new(DECLARED, text));
        Ok(turns)
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let stop = codec.token(STOP)?;
        let end = tokens.iter().position(|&token| token == stop);
        let said = &tokens[..end.unwrap_or(tokens.len())];
        let raw = || Ok(Reply::text(codec.decode(tokens)?).ended(Termination::Malformed));
        let Some(reply) = messages(codec, said)? else {
            return raw();
        };
        Ok(reply.ended(match end {
            Some(_) => Termination::StopSequence,
            None => Termination::Malformed,
        }))
    }
}

/// The whole messages of an answer; `None` if there are none or one is broken.
fn messages(codec: &Codec, tokens: &[i32]) -> Result<Option<Reply>> {
    let (model, end) = (codec.token(MODEL)?, codec.token(END)?);
    let kinds = [
        codec.token(TEXT)?,
        codec.token(THINKING)?,
        codec.token(CALL)?,
    ];
    let mut parts = Vec::new();
    let mut reply = Reply::text("");
    let mut found = false;
    for message in tokens.split_inclusive(|&token| token == end) {
        let [first, inner @ .., last] = message else {
            return Ok(None);
        };
        let kind = inner.iter().position(|token| kinds.contains(token));
        let (Some(kind), true, true) = (kind, *first == model, *last == end) else {
            return Ok(None);
        };
        found = true;
        let text = codec.decode(&inner[kind + 1..])?;
        match kinds.iter().position(|known| *known == inner[kind]) {
            Some(0) => parts.push(Said::Text(text)),
            Some(1) => parts.push(Said::Thinking(text)),
            _ => match call(&text) {
                Some(call) => reply.calls.push(call),
                None => return Ok(None),
            },
        }
    }
    reply.content = match parts.as_slice() {
        [Said::Text(text)] => Content::Text(text.clone()),
        _ => Content::Parts(parts),
    };
    Ok(found.then_some(reply.with_ids()))
}

fn call(text: &str) -> Option<ToolCall> {
    let call = Json::parse(text).ok()?;
    let name = call.get("name")?.as_str()?;
    let arguments = call.get("args")?.dump(Style::ASCII);
    Some(ToolCall::new(name, arguments))
}
