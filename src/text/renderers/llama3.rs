//! `llama3`: Llama 3 Instruct, without the date its own template writes before system messages.

use super::super::message::Turn;
use super::layout::{Codec, Facts, Family, Part, Piece, Place, Rendered};
use super::reply::{Reply, until_stop};
use super::{Parsed, Termination};
use crate::error::Result;

const END: &str = "<|eot_id|>";

struct Llama3;

pub(super) fn named(name: &str) -> Option<Box<dyn Family>> {
    (name == "llama3").then(|| Box::new(Llama3) as Box<dyn Family>)
}

impl Family for Llama3 {
    fn facts(&self) -> Facts {
        Facts {
            extends: true,
            ..Facts::ending(&[END])
        }
    }

    fn begins(&self, _: &Codec) -> Result<Vec<Piece>> {
        Ok(vec![Piece::fixed("<|begin_of_text|>")])
    }

    fn render(&self, turn: &Turn, _: &Place<'_>) -> Result<Rendered> {
        let header = format!("<|start_header_id|>{}<|end_header_id|>\n\n", turn.role);
        Ok(Rendered {
            header: vec![Piece::fixed(header)],
            output: vec![Part::markup(format!("{}{END}", turn.plain_text()?))],
            ..Rendered::default()
        })
    }

    fn parse(&self, codec: &Codec, tokens: &[i32]) -> Result<Parsed> {
        let (text, stop) = until_stop(codec, tokens, &[END])?;
        Ok(Reply::text(text).ended(Termination::by_stop(stop)))
    }
}
