//! What Jinja2 and transformers understand and `minijinja` does not, rewritten into what it does.
//!
//! - `{% generation %}` blocks become filter blocks that mark what they produced;
//! - `a % b`, `a * b` and `a ~ b` become calls, because in Python the first also formats texts,
//!   the second repeats nothing where a number is negative, and the third prints as Python does;
//! - `x[a:b:c]` becomes a call, because minijinja 3.0.5 panics or errs where `c` is negative;
//! - the iterable of `{% for %}` passes through a check, because `none` must be refused there;
//! - macros that use `varargs` or `kwargs` become ordinary ones behind an adapter;
//! - parameters whose default names another one are given it within the macro;
//! - macros read the namespaces they assign to, which else stay outside of them;
//! - what is set within a filter block or the block of a `set` stays there;
//! - the line break after `{% raw %}` is doubled, because `minijinja` takes one away;
//! - escapes in texts that only Python knows are spelled as what they stand for;
//! - where texts may be marked as safe, `a + b` becomes a call, which escapes what is not;
//! - what is `set` passes through a check, because what grows with each turn of a loop has no end.

mod blocks;
mod escapes;
mod expression;
mod macros;
mod scan;

use minijinja::Error;

use blocks::{Blocks, asks_for_more, reads};
use escapes::respelled;
use expression::{assignment, equals_sign, expression, for_loop, name_end, read, statement};
use macros::Signature;
use scan::{Piece, is_space, split, tokens};

/// Names no template uses.
pub(super) const MODULO: &str = "__modulo";
pub(super) const TIMES: &str = "__times";
pub(super) const CONCAT: &str = "__concat";
pub(super) const PLUS: &str = "__plus";
/// A name that nothing sets.
const UNSET: &str = "__unset";
pub(super) const SLICE: &str = "__slice";
pub(super) const ITERABLE: &str = "__iterable";
pub(super) const GENERATION: &str = "__generation";
pub(super) const VARIADIC: &str = "__variadic";
pub(super) const KEPT: &str = "__kept";

/// A template in the dialect of `minijinja`. What cannot be read is left for it to refuse.
///
/// # Errors
///
/// If it nests so deeply that reading it might take more stack than there is.
pub(super) fn rewrite(source: &str) -> Result<String, Error> {
    let pieces = split(source);
    let blocks = Blocks::read(&pieces)?;
    let mut out = String::with_capacity(source.len() + 256);
    let mut open_macros = Vec::new();
    let mut has_marked = false;
    for (index, piece) in pieces.iter().enumerate() {
        let Piece::Code { open, body, close } = piece else {
            out.push_str(piece.text());
            continue;
        };
        let body: &str = &respelled(body);
        let tokens = tokens(body);
        has_marked |= tokens.iter().any(|token| marks(token));
        let first = tokens.iter().find(|token| !is_space(token)).copied();
        let is_tag = open.starts_with("{%");
        match first {
            Some("generation") if is_tag => {
                let body = body.replacen("generation", &format!("filter {GENERATION}"), 1);
                push_all(&mut out, &[open, &body, SCOPE, close]);
            }
            Some("endgeneration") if is_tag => {
                push_all(&mut out, &[open, END_SCOPE, " endfilter ", close]);
            }
            Some("filter") if is_tag => {
                push_all(&mut out, &[open, &statement(&tokens), SCOPE, close]);
            }
            Some("set") if is_tag && !assigns(&tokens) => {
                push_all(&mut out, &[open, &statement(&tokens), SCOPE, close]);
            }
            Some("set") if is_tag => push_all(&mut out, &[open, &assignment(&tokens), close]),
            Some("endfilter" | "endset") if is_tag => {
                push_all(&mut out, &[open, END_SCOPE, body, close]);
            }
            Some("macro") if is_tag => {
                let inner = blocks.inner(index);
                let signature = Signature::read(&tokens);
                let variadic = match &signature {
                    Some(signature) if asks_for_more(inner) => Some(signature.adapter()),
                    _ => None,
                };
                let head = match &signature {
                    Some(signature) => signature.definition(variadic.is_some()),
                    None => statement(&tokens),
                };
                let defaults = signature.map(|s| s.late_defaults()).unwrap_or_default();
                let begin: String = defaults.iter().chain(&reads(inner)).cloned().collect();
                push_all(&mut out, &[open, &head, &begin, close]);
                open_macros.push(variadic);
            }
            Some("call") if is_tag => {
                let begin = reads(blocks.inner(index)).concat();
                push_all(&mut out, &[open, &statement(&tokens), &begin, close]);
            }
            Some("raw") if is_tag => {
                let text = pieces.get(index + 1).map_or("", Piece::text);
                let newline = if *close == "%}" && text.starts_with('\n') {
                    "\n"
                } else {
                    ""
                };
                push_all(&mut out, &[open, body, close, newline]);
            }
            Some("endmacro") if is_tag => match open_macros.pop().flatten() {
                // The adapter's tag comes last and so decides about the white space after it.
                Some(adapter) => push_all(&mut out, &[open, body, &adapter, close]),
                None => push_all(&mut out, &[open, body, close]),
            },
            Some("for") if is_tag => push_all(&mut out, &[open, &for_loop(&tokens), close]),
            _ if is_tag => push_all(&mut out, &[open, &statement(&tokens), close]),
            _ => push_all(&mut out, &[open, &expression(&tokens), close]),
        }
    }
    Ok(match has_marked {
        true => with_sums(&out),
        false => out,
    })
}

/// Whether this is the name of a filter that marks a text as safe, in quotes or not.
fn marks(token: &str) -> bool {
    let name = token.trim_matches(['\'', '"']);
    ["safe", "e", "escape", "forceescape"].contains(&name)
}

/// A template whose sums are calls.
fn with_sums(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 256);
    for piece in split(source) {
        let Piece::Code { open, body, close } = piece else {
            out.push_str(piece.text());
            continue;
        };
        let tokens = tokens(body);
        let name = match open.starts_with("{%") {
            true => name_end(&tokens),
            false => 0,
        };
        let (name, rest) = tokens.split_at(name);
        push_all(&mut out, &[open, &name.concat(), &read(rest, true), close]);
    }
    out
}

/// Tags, to put behind one that begins a block and before the one that ends it, that keep what is
/// set within to the block.
const SCOPE: &str = "%}{% with ";
const END_SCOPE: &str = " endwith %}{%";

/// Whether a `set` is no block.
fn assigns(tokens: &[&str]) -> bool {
    equals_sign(tokens).is_some()
}

fn push_all(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

#[cfg(test)]
mod tests;
