//! Escapes in texts, which `minijinja` reads as Python does once they are respelled.

use std::borrow::Cow;

use super::scan::{is_text, tokens};
use crate::text::template::python::push_escaped;

/// Code whose texts `minijinja` reads as Python does.
pub(super) fn respelled(body: &str) -> Cow<'_, str> {
    if !body.contains('\\') {
        return Cow::Borrowed(body);
    }
    let mut out = String::with_capacity(body.len());
    for token in tokens(body) {
        let mut rest = token;
        while let Some((before, after)) = rest.split_once('\\').filter(|_| is_text(token)) {
            out.push_str(before);
            rest = &after[push_escape(after, &mut out)..];
        }
        out.push_str(rest);
    }
    Cow::Owned(out)
}

/// No escape, so that the text is refused.
const BAD_ESCAPE: &str = "\\x__";

/// Spells what a backslash and the beginning of `after` stand for; gives how long that is.
fn push_escape(after: &str, out: &mut String) -> usize {
    let Some(first) = after.chars().next() else {
        out.push('\\');
        return 0;
    };
    let digits = |radix: u32, most: usize| {
        let digits = after.trim_start_matches('U').chars().take(most);
        digits.take_while(|c| c.is_digit(radix)).collect::<String>()
    };
    let char_of = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
    match first {
        'a' => out.push('\u{7}'),
        'v' => out.push('\u{b}'),
        '\n' => {}
        '/' => out.push_str("\\\\/"),
        'U' => {
            let digits = digits(16, 8);
            match char_of(&digits, 16).filter(|_| digits.len() == 8) {
                Some(c @ ('\'' | '"' | '\\')) => out.extend(['\\', c]),
                Some(c) => out.push(c),
                None => out.push_str(BAD_ESCAPE),
            }
            return 1 + digits.len();
        }
        // The names of characters are not known here.
        'N' => out.push_str(BAD_ESCAPE),
        '4'..='7' if digits(8, 3).len() == 3 => {
            out.extend(char_of(&digits(8, 3), 8));
            return 3;
        }
        // Jinja2 escapes it first, and so its backslash is escaped by the one before.
        c if !c.is_ascii() => {
            out.push('\\');
            push_escaped(c, out);
        }
        c => out.extend(['\\', c]),
    }
    first.len_utf8()
}
