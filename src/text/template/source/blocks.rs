//! Where blocks end, what is within them, and how deep they may nest.

use std::collections::HashSet;

use minijinja::Error;

use super::scan::{Piece, code, tokens};
use crate::text::template::python::refusal;

/// How many tokens an expression may have between two commas, the brackets around it included; the
/// longest of the served families has 58. Who reads it descends with every operator, and a stack
/// has an end.
const LONGEST: usize = 400;

/// The same for `elif`, and for macros and calls within one another.
const DEEPEST: usize = 100;

/// The tags of a template, and where blocks end.
pub(super) struct Blocks<'a> {
    /// The tokens of each piece, without space; none for what is no code.
    codes: Vec<Vec<&'a str>>,
    /// For each piece that begins a macro or a call, the one that ends it.
    ends: Vec<usize>,
}

impl<'a> Blocks<'a> {
    pub(super) fn read(pieces: &[Piece<'a>]) -> Result<Self, Error> {
        let mut codes = Vec::with_capacity(pieces.len());
        let mut ends = vec![pieces.len(); pieces.len()];
        let (mut macros, mut calls) = (Vec::new(), Vec::new());
        // The branches of each `if` that is open, and of all of them.
        let (mut branches, mut sum) = (vec![0], 0);
        for (index, piece) in pieces.iter().enumerate() {
            let tokens = match piece {
                Piece::Code { body, .. } => code(&tokens(body)),
                Piece::Plain(_) => Vec::new(),
            };
            match tokens.first().copied().unwrap_or_default() {
                "macro" => macros.push(index),
                "call" => calls.push(index),
                "endmacro" => macros.pop().into_iter().for_each(|from| ends[from] = index),
                "endcall" => calls.pop().into_iter().for_each(|from| ends[from] = index),
                "if" => branches.push(0),
                "elif" => {
                    branches
                        .last_mut()
                        .into_iter()
                        .for_each(|count| *count += 1);
                    sum += 1;
                }
                "endif" if branches.len() > 1 => sum -= branches.pop().unwrap_or_default(),
                _ => {}
            }
            // All other blocks minijinja counts itself.
            if macros.len().max(calls.len()).max(sum) > DEEPEST {
                return Err(refusal("the template's blocks nest too deeply"));
            }
            if length(&tokens) > LONGEST {
                return Err(refusal("an expression of the template is too long"));
            }
            codes.push(tokens);
        }
        Ok(Self { codes, ends })
    }

    /// The tags between the one that begins a macro or a call and the one that ends it.
    pub(super) fn inner(&self, index: usize) -> &[Vec<&'a str>] {
        self.codes
            .get(index + 1..self.ends[index])
            .unwrap_or_default()
    }
}

/// The tokens of the longest expression, brackets that stand around it included.
fn length(tokens: &[&str]) -> usize {
    // At each open bracket, the tokens since the last comma.
    let mut levels = vec![0];
    let (mut sum, mut longest) = (0, 0);
    for token in tokens {
        match (*token, &mut levels[..]) {
            (",", [.., last]) => sum -= std::mem::take(last),
            (")" | "]" | "}", [_, .., last]) => {
                sum -= *last;
                levels.pop();
            }
            (_, [.., last]) => {
                *last += 1;
                sum += 1;
                longest = longest.max(sum);
                if matches!(*token, "(" | "[" | "{") {
                    levels.push(0);
                }
            }
            (_, []) => {}
        }
    }
    longest
}

pub(super) fn asks_for_more(inner: &[Vec<&str>]) -> bool {
    let mut tokens = inner.iter().flatten();
    tokens.any(|token| ["varargs", "kwargs"].contains(token))
}

/// Tags, to put behind one that begins a block, that read the namespaces the block assigns to.
pub(super) fn reads(inner: &[Vec<&str>]) -> Vec<String> {
    let mut seen = HashSet::new();
    let names = inner.iter().filter_map(|tokens| match tokens[..] {
        ["set", name, ".", ..] => seen.insert(name).then_some(name),
        _ => None,
    });
    let read = |name: &str| format!("%}}{{% if {name} %}}{{% endif ");
    names.map(read).collect()
}
