//! A template cut into pieces, and code cut into tokens.

/// A stretch of a template.
pub(super) enum Piece<'a> {
    /// Text, comments and raw blocks.
    Plain(&'a str),
    /// `{{ body }}` or `{% body %}`; the delimiters keep their signs.
    Code {
        open: &'a str,
        body: &'a str,
        close: &'a str,
    },
}

impl Piece<'_> {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Code { body, .. } => body,
        }
    }
}

pub(super) fn split(source: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, code) = rest.split_at(start);
        let length = match code.as_bytes().get(1) {
            Some(b'#') => code.find("#}").map(|end| end + 2),
            Some(b'{') => code_length(code, "}}"),
            Some(b'%') => code_length(code, "%}"),
            _ => {
                pieces.push(Piece::Plain(&rest[..start + 1]));
                rest = &rest[start + 1..];
                continue;
            }
        };
        pieces.push(Piece::Plain(before));
        let Some(length) = length else {
            rest = code;
            break;
        };
        let (code, after) = code.split_at(length);
        rest = after;
        if code.starts_with("{#") {
            pieces.push(Piece::Plain(code));
            continue;
        }
        let is_sign = |byte: Option<&u8>| matches!(byte, Some(b'-' | b'+'));
        let bytes = code.as_bytes();
        let from = if is_sign(bytes.get(2)) { 3 } else { 2 };
        let ends_signed = length > from + 2 && is_sign(bytes.get(length - 3));
        let to = if ends_signed { length - 3 } else { length - 2 };
        let (open, body, close) = (
            &code[..from],
            &code[from..to.max(from)],
            &code[to.max(from)..],
        );
        pieces.push(Piece::Code { open, body, close });
        if open.starts_with("{%") && body.trim() == "raw" {
            let end = end_of_raw(rest);
            pieces.push(Piece::Plain(&rest[..end]));
            rest = &rest[end..];
        }
    }
    pieces.push(Piece::Plain(rest));
    pieces
}

/// Up to the tag that ends a raw block.
fn end_of_raw(rest: &str) -> usize {
    let is_end = |at: &usize| {
        let tag = rest[*at + 2..].trim_start_matches(['-', '+']).trim_start();
        tag.starts_with("endraw")
    };
    let mut tags = rest.match_indices("{%").map(|(at, _)| at);
    tags.find(is_end).unwrap_or(rest.len())
}

/// The length of code that begins here: a delimiter within a text or within braces ends nothing.
fn code_length(code: &str, close: &str) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut at = 2;
    let mut depth = 0usize;
    while at < bytes.len() {
        if depth == 0 && code.is_char_boundary(at) && code[at..].starts_with(close) {
            return Some(at + close.len());
        }
        match bytes[at] {
            b'\'' | b'"' => at = end_of_text(code, at)?,
            b'{' | b'[' | b'(' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' | b')' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ => at += 1,
        }
    }
    None
}

/// Behind the closing quote of the text that begins here.
fn end_of_text(code: &str, start: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut at = start + 1;
    loop {
        match *bytes.get(at)? {
            b'\\' => at += 2,
            byte if byte == bytes[start] => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Code as texts, words, spaces and operators, losing nothing.
pub(super) fn tokens(body: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = body;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let run = |kind: fn(char) -> bool| rest.find(|c: char| !kind(c)).unwrap_or(rest.len());
        let length = match first {
            '\'' | '"' => end_of_text(rest, 0).unwrap_or(rest.len()),
            c if c.is_whitespace() => run(char::is_whitespace),
            c if c.is_ascii_digit() => number_length(rest),
            c if is_word(c) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            _ if ["**", "//", "==", "!=", "<=", ">="]
                .iter()
                .any(|op| rest.starts_with(op)) =>
            {
                2
            }
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// `1`, `1.5`, `1e-3`; the point of `1.x` belongs to what follows.
fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let word = |from: usize| {
        let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        from + bytes[from..].iter().take_while(is_word).count()
    };
    let mut end = word(0);
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    if bytes.get(end) == Some(&b'.') && is_digit(end + 1) {
        end = word(end + 1);
    }
    let is_exponent = matches!(bytes[end - 1], b'e' | b'E') && !rest.starts_with("0x");
    if is_exponent && matches!(bytes.get(end), Some(b'+' | b'-')) && is_digit(end + 1) {
        end = word(end + 1);
    }
    end
}

pub(super) fn is_space(token: &str) -> bool {
    token.starts_with(char::is_whitespace)
}

pub(super) fn is_text(token: &str) -> bool {
    token.starts_with(['\'', '"'])
}

const WORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "recursive"];

pub(super) fn is_operand(token: &str) -> bool {
    let opens = ["(", "[", "{"].contains(&token);
    opens || is_text(token) || (is_name(token) && !WORDS.contains(&token))
}

/// A name, a number or a word.
pub(super) fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Tokens that are no space.
pub(super) fn code<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let code = tokens.iter().filter(|token| !is_space(token));
    code.copied().collect()
}
