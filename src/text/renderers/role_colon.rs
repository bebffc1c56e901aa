//! `role_colon`: `User: ..`, `Assistant: ..`, for models that only continue text.

use super::super::message::Turn;
use super::Parsed;
use super::Termination;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::reply::Reply;
use crate::error::Result;

const STOP: &str = "\n\nUser:";

struct RoleColon;

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    (name == "role_colon").then(|| Box::new(RoleColon) as Box<dyn Family>)
}

impl Family for RoleColon {
    fn facts(&self) -> Facts {
        Facts {
            extends: true,
            stop_is_text: true,
            close: "\n\n",
            streams: false,
            ..Facts::ending(&[STOP])
        }
    }

    fn begins(&self, codec: &Codec) -> Result<Vec<Piece>> {
        let bos = codec.tokenizer.special_token("bos_token");
        Ok(bos
            .map(|bos| Piece::fixed(bos.to_owned()))
            .into_iter()
            .collect())
    }

    fn render(&self, turn: &Turn, _: &Place<'_>) -> Result<Rendered> {
        let output = format!(" {}\n\n", turn.plain_text()?);
        Ok(Rendered {
            header: vec![Piece::fixed(format!("{}:", capitalized(&turn.role)))],
            output: vec![Part::markup(output)],
            overlap: match turn.is("assistant") {
                true => vec![Piece::fixed("User:")],
                false => vec![Piece::fixed("<UNUSED>")],
            },
            joined: false,
        })
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let eos = codec.tokenizer.eos_id();
        let ended = eos.is_some() && tokens.last().copied() == eos;
        let tokens = if ended {
            &tokens[..tokens.len() - 1]
        } else {
            tokens
        };
        let text = codec.decode(tokens)?;
        let mut pieces = text.split(STOP);
        let content = pieces.next().unwrap_or_default();
        let termination = match (pieces.count(), ended) {
            (0, true) => Termination::Eos,
            (1, false) => Termination::StopSequence,
            _ => Termination::Malformed,
        };
        let content = content.strip_prefix(' ').unwrap_or(content);
        let content = content.strip_suffix("\n\n").unwrap_or(content);
        Ok(Reply::text(content).ended(termination))
    }
}

/// Python's `capitalize`: the first letter large, all others small.
fn capitalized(role: &str) -> String {
    let mut letters = role.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.flat_map(char::to_lowercase)).collect()
}
