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

use std::borrow::Cow;
use std::collections::HashSet;

use minijinja::Error;

use super::python::{push_escaped, refusal};

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

/// How many tokens an expression may have between two commas, the brackets around it included; the
/// longest of the served families has 58. Who reads it descends with every operator, and a stack
/// has an end.
const LONGEST: usize = 400;
/// The same for `elif`, and for macros and calls within one another.
const DEEPEST: usize = 100;

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

/// Code whose texts `minijinja` reads as Python does.
fn respelled(body: &str) -> Cow<'_, str> {
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

/// Tags, to put behind one that begins a block and before the one that ends it, that keep what is
/// set within to the block.
const SCOPE: &str = "%}{% with ";
const END_SCOPE: &str = " endwith %}{%";

/// Whether a `set` is no block.
fn assigns(tokens: &[&str]) -> bool {
    equals_sign(tokens).is_some()
}

/// Where the value of a `set` begins.
fn equals_sign(tokens: &[&str]) -> Option<usize> {
    let mut depth = 0usize;
    tokens.iter().position(|token| {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *token == "="
    })
}

fn push_all(out: &mut String, parts: &[&str]) {
    parts.iter().for_each(|part| out.push_str(part));
}

/// A stretch of a template.
enum Piece<'a> {
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
    fn text(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Code { body, .. } => body,
        }
    }
}

fn split(source: &str) -> Vec<Piece<'_>> {
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
fn tokens(body: &str) -> Vec<&str> {
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

fn is_space(token: &str) -> bool {
    token.starts_with(char::is_whitespace)
}

/// A tag: its name is no value, whatever brackets follow it.
fn statement(tokens: &[&str]) -> String {
    let (name, rest) = tokens.split_at(name_end(tokens));
    name.concat() + &expression(rest)
}

/// A `set` of one value, or of several by commas, which is looked at before it is kept.
fn assignment(tokens: &[&str]) -> String {
    let value = equals_sign(tokens).map_or(tokens.len(), |sign| sign + 1);
    let (target, value) = tokens.split_at(value);
    match value.iter().all(|token| is_space(token)) {
        true => statement(tokens),
        false => format!("{}{KEPT}(({})) ", statement(target), expression(value)),
    }
}

/// Behind the first token that is no space.
fn name_end(tokens: &[&str]) -> usize {
    let name = tokens.iter().position(|token| !is_space(token));
    name.map_or(0, |name| name + 1)
}

fn expression(tokens: &[&str]) -> String {
    read(tokens, false)
}

fn read(tokens: &[&str], sums: bool) -> String {
    let mut reader = Reader {
        tokens,
        at: 0,
        sums,
    };
    let mut out = String::new();
    while reader.at < tokens.len() {
        reader.sequence(&mut out, &[]);
        // A bracket that nothing opened; minijinja will say so.
        if let Some(token) = reader.next() {
            out.push_str(token);
        }
    }
    out
}

/// `for target in iterable if condition recursive`
fn for_loop(tokens: &[&str]) -> String {
    let mut depth = 0usize;
    let mut outer = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            token if depth == 0 => outer.push((index, token)),
            _ => {}
        }
    }
    let place = |from: usize, words: &[&str]| {
        let mut found = outer.iter().filter(|(index, _)| *index > from);
        found
            .find(|(_, token)| words.contains(token))
            .map(|(index, _)| *index)
    };
    let Some(start) = place(0, &["in"]) else {
        return expression(tokens);
    };
    let end = place(start, &["if", "recursive"]).unwrap_or(tokens.len());
    let iterable = expression(&tokens[start + 1..end]);
    let is_tuple = outer
        .iter()
        .any(|(index, token)| (start..end).contains(index) && *token == ",");
    let iterable = match is_tuple {
        true => format!("({iterable})"),
        false => iterable,
    };
    let (target, rest) = (tokens[..start].concat(), expression(&tokens[end..]));
    format!("{target}in {ITERABLE}({iterable}) {rest}")
}

/// Finds what is sliced, and the operands of `%`, which binds as `*` and `/` do.
struct Reader<'a> {
    tokens: &'a [&'a str],
    at: usize,
    /// Whether sums become calls.
    sums: bool,
}

const WORDS: [&str; 8] = ["and", "or", "not", "in", "is", "if", "else", "recursive"];

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    /// The next token that is no space, and its place.
    fn peek_code(&self) -> Option<(usize, &'a str)> {
        let mut rest = self.tokens.iter().enumerate().skip(self.at);
        rest.find(|(_, token)| !is_space(token))
            .map(|(index, token)| (index, *token))
    }

    /// Everything up to a closing bracket, one of these tokens, or the end.
    fn sequence(&mut self, out: &mut String, ends: &[&str]) {
        let mut follows_operand = false;
        while let Some(token) = self.peek() {
            let is_sign = ["+", "-"].contains(&token) && !follows_operand;
            match token {
                ")" | "]" | "}" => return,
                _ if ends.contains(&token) => return,
                _ if is_sign || is_operand(token) => {
                    let value = match self.sums {
                        true => self.sum(),
                        false => self.joined(),
                    };
                    out.push_str(&value);
                    follows_operand = true;
                }
                _ => {
                    out.push_str(token);
                    follows_operand &= is_space(token);
                    self.at += 1;
                }
            }
        }
    }

    /// What is joined by `+` and `-`, from the left.
    fn sum(&mut self) -> String {
        let mut left = self.joined();
        while let Some((index, operator @ ("+" | "-"))) = self.peek_code() {
            self.at = index + 1;
            left = match (operator, self.joined().trim_start()) {
                // Nothing to add; minijinja will say so.
                (_, "") => return format!("{left} {operator} "),
                ("+", right) => format!("{PLUS}({left}, {right})"),
                (_, right) => format!("{left} - {right}"),
            };
        }
        left
    }

    /// Products joined by `~`.
    fn joined(&mut self) -> String {
        let mut parts = vec![self.product()];
        while let Some((index, "~")) = self.peek_code() {
            self.at = index + 1;
            self.at = self.peek_code().map_or(self.at, |(next, _)| next);
            match self.product().trim() {
                // Nothing to join; minijinja will say so.
                "" => return parts.join(" ~ ") + " ~ ",
                part => parts.push(part.to_owned()),
            }
        }
        match &parts[..] {
            [part] => part.clone(),
            _ => format!("{CONCAT}({})", parts.join(", ")),
        }
    }

    /// Operands joined by `*`, `/`, `//` and `%`, from the left.
    fn product(&mut self) -> String {
        let mut left = self.operand();
        while let Some((index, operator @ ("*" | "/" | "//" | "%"))) = self.peek_code() {
            self.at = index + 1;
            let right = self.operand();
            let right = right.trim_start();
            left = match operator {
                "%" => format!("{MODULO}({left}, {right})"),
                "*" => format!("{TIMES}({left}, {right})"),
                _ => format!("{left} {operator} {right}"),
            };
        }
        left
    }

    /// A value with its signs, attributes, calls, filters and power.
    fn operand(&mut self) -> String {
        let mut out = String::new();
        while let Some(token) = self
            .peek()
            .filter(|token| is_space(token) || ["+", "-"].contains(token))
        {
            out.push_str(token);
            self.at += 1;
        }
        let start = out.len();
        match self.peek() {
            Some("(" | "[" | "{") => self.brackets(&mut out),
            Some(token) if is_operand(token) => {
                out.push_str(token);
                self.at += 1;
            }
            _ => return out,
        }
        while let Some((index, token)) = self.peek_code() {
            match token {
                "(" => {
                    self.copy_to(index, &mut out);
                    self.brackets(&mut out);
                }
                "[" => {
                    self.copy_to(index, &mut out);
                    let value = out.split_off(start);
                    let item = self.subscript(value);
                    out.push_str(&item);
                }
                "." | "|" => {
                    self.copy_to(index + 1, &mut out);
                    if let Some((name, _)) = self.peek_code() {
                        self.copy_to(name + 1, &mut out);
                    }
                }
                "**" => {
                    self.copy_to(index + 1, &mut out);
                    let power = self.operand();
                    out.push_str(&power);
                }
                "is" => self.test(&mut out),
                // Texts side by side are one.
                _ if is_text(token) && is_text(self.tokens[self.at - 1]) => {
                    self.copy_to(index + 1, &mut out);
                }
                _ => break,
            }
        }
        out
    }

    /// `is name`, `is not name(arguments)` or `is name argument`.
    fn test(&mut self, out: &mut String) {
        for word in ["is", "not"] {
            if let Some((index, _)) = self.peek_code().filter(|(_, token)| *token == word) {
                self.copy_to(index + 1, out);
            }
        }
        // `none` and `in` are names of tests, whatever else they are.
        if let Some((name, _)) = self.peek_code() {
            self.copy_to(name + 1, out);
        }
        // Jinja2 refuses one test behind another, and so does minijinja if it is none.
        if let Some((_, "is")) = self.peek_code() {
            out.push_str(" is ?");
        }
        let starts = |(_, token): &(usize, &str)| *token != "(" && is_operand(token);
        if let Some((index, _)) = self.peek_code().filter(starts) {
            self.copy_to(index, out);
            let argument = self.operand();
            out.push_str(&argument);
        }
    }

    fn brackets(&mut self, out: &mut String) {
        out.push_str(self.next().unwrap_or_default());
        self.sequence(out, &[]);
        out.push_str(self.next().unwrap_or_default());
    }

    /// `[item]` or `[start:stop:step]` of a value.
    fn subscript(&mut self, value: String) -> String {
        let open = self.next().unwrap_or_default();
        let mut parts = vec![String::new()];
        loop {
            if let Some(part) = parts.last_mut() {
                self.sequence(part, &[":"]);
            }
            match self.peek() {
                Some(":") => parts.push(String::new()),
                _ => break,
            }
            self.at += 1;
        }
        let close = self.next().unwrap_or_default();
        if let [item] = &parts[..] {
            return format!("{value}{open}{item}{close}");
        }
        let bound = |part: &String| match part.trim() {
            "" => "none".to_owned(),
            part => part.to_owned(),
        };
        let parts: Vec<String> = parts.iter().map(bound).collect();
        let close = if close == "]" { ")" } else { close };
        format!("{SLICE}({value}, {}{close}", parts.join(", "))
    }

    fn copy_to(&mut self, index: usize, out: &mut String) {
        self.tokens[self.at..index]
            .iter()
            .for_each(|token| out.push_str(token));
        self.at = index;
    }
}

fn is_text(token: &str) -> bool {
    token.starts_with(['\'', '"'])
}

fn is_operand(token: &str) -> bool {
    let opens = ["(", "[", "{"].contains(&token);
    opens || is_text(token) || (is_name(token) && !WORDS.contains(&token))
}

/// A name, a number or a word.
fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The tags of a template, and where blocks end.
struct Blocks<'a> {
    /// The tokens of each piece, without space; none for what is no code.
    codes: Vec<Vec<&'a str>>,
    /// For each piece that begins a macro or a call, the one that ends it.
    ends: Vec<usize>,
}

impl<'a> Blocks<'a> {
    fn read(pieces: &[Piece<'a>]) -> Result<Self, Error> {
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
    fn inner(&self, index: usize) -> &[Vec<&'a str>] {
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

/// Tokens that are no space.
fn code<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let code = tokens.iter().filter(|token| !is_space(token));
    code.copied().collect()
}

/// The same with spaces where two tokens would become one.
fn spaced<'a>(code: &[&'a str]) -> Vec<&'a str> {
    let is_word = |token: &&str| is_text(token) || is_name(token);
    let mut spaced: Vec<&str> = Vec::new();
    for token in code {
        if spaced.last().is_some_and(is_word) && is_word(token) {
            spaced.push(" ");
        }
        spaced.push(token);
    }
    spaced
}

fn asks_for_more(inner: &[Vec<&str>]) -> bool {
    let mut tokens = inner.iter().flatten();
    tokens.any(|token| ["varargs", "kwargs"].contains(token))
}

/// Tags, to put behind one that begins a block, that read the namespaces the block assigns to.
fn reads(inner: &[Vec<&str>]) -> Vec<String> {
    let mut seen = HashSet::new();
    let names = inner.iter().filter_map(|tokens| match tokens[..] {
        ["set", name, ".", ..] => seen.insert(name).then_some(name),
        _ => None,
    });
    let read = |name: &str| format!("%}}{{% if {name} %}}{{% endif ");
    names.map(read).collect()
}

/// `macro name(parameter, parameter=default)`
struct Signature<'a> {
    name: &'a str,
    parameters: Vec<Parameter<'a>>,
}

struct Parameter<'a> {
    name: &'a str,
    /// Empty if it has none.
    default: String,
    /// The default names a parameter before this one.
    is_late: bool,
}

impl<'a> Signature<'a> {
    /// `None` for what is no macro; minijinja will say so.
    fn read(tokens: &[&'a str]) -> Option<Self> {
        let code = code(tokens);
        let (name, rest) = match code[..] {
            ["macro", name, "(", ref rest @ .., ")"] => (name, rest),
            _ => return None,
        };
        let mut parameters: Vec<Parameter<'a>> = Vec::new();
        let mut known = HashSet::new();
        for part in split_at_commas(rest) {
            let (name, default) = match part[..] {
                [] => continue,
                [name] => (name, &[][..]),
                [name, "=", ref default @ ..] => (name, default),
                _ => return None,
            };
            parameters.push(Parameter {
                name,
                default: expression(&spaced(default)),
                is_late: default.iter().any(|token| known.contains(token)),
            });
            known.insert(name);
        }
        Some(Self { name, parameters })
    }

    /// The tag, with parameters of its own for what a macro may ask for beside those it names.
    fn definition(&self, is_variadic: bool) -> String {
        let parameter = |parameter: &Parameter<'_>| match parameter {
            Parameter {
                name,
                is_late: true,
                ..
            } => format!("{name}={UNSET}"),
            Parameter { name, default, .. } if default.is_empty() => (*name).to_owned(),
            Parameter { name, default, .. } => format!("{name}={default}"),
        };
        let mut parameters: Vec<String> = self.parameters.iter().map(parameter).collect();
        let hidden = if is_variadic { "__" } else { "" };
        if is_variadic {
            parameters.extend(["varargs=()", "kwargs={}"].map(str::to_owned));
        }
        format!(" macro {hidden}{}({}) ", self.name, parameters.join(", "))
    }

    /// Tags, to put behind the definition, that set what it could not.
    fn late_defaults(&self) -> Vec<String> {
        let late = self.parameters.iter().filter(|parameter| parameter.is_late);
        late.map(|Parameter { name, default, .. }| {
            format!("%}}{{% set {name} = ({default}) if {name} is undefined else {name} ")
        })
        .collect()
    }

    /// The tag, to put behind the end, that lets the macro be called with more than it names.
    fn adapter(&self) -> String {
        let names = self.parameters.iter().map(|p| format!("'{}'", p.name));
        let names = names.collect::<Vec<_>>().join(", ");
        let name = self.name;
        format!("%}}{{% set {name} = {VARIADIC}(__{name}, [{names}]) ")
    }
}

fn split_at_commas<'a>(tokens: &[&'a str]) -> Vec<Vec<&'a str>> {
    let mut depth = 0usize;
    let mut parts = vec![Vec::new()];
    for token in tokens {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "," if depth == 0 => {
                parts.push(Vec::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(*token);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(rewrite(source).unwrap(), expected);
    }

    #[test]
    fn most_of_a_template_stays_as_it_is() {
        for source in [
            "",
            "plain { text } %",
            "{# 1 % 2 #}{% raw %}{{ 1 % 2 }}{% endraw %}",
            "{%- if a.b['c'](d) | e(1)|f is g -%} x {%+ endif +%}",
            "{{ '%}' + \"}}\" }} {{ {'a': {'b': 1}} }}",
            "{{ -1 + (2 + 3) ** 2 // y }}{% set x = %}",
            "{{ unfinished",
            "{% macro m(a, b=2) %}{{ a }}{% endmacro %}",
        ] {
            check(source, source);
        }
    }

    #[test]
    fn remainders_become_calls() {
        check("{{ a % b }}", "{{ __modulo(a, b) }}");
        check(
            "{{ 'x' 'y%s' % (a % 2, b)|c ~ d }}",
            "{{ __concat(__modulo('x' 'y%s', (__modulo(a, 2), b)|c), d) }}",
        );
        check(
            "{{ a * b % -c.d[0] / 2 == 0 }}",
            "{{ __modulo(__times(a, b), -c.d[0]) / 2 == 0 }}",
        );
        check(
            "{% if loop.index0 % 2 %}",
            "{% if __modulo(loop.index0, 2) %}",
        );
    }

    #[test]
    fn slices_become_calls() {
        check("{{ a[1] }}{{ a[{'b':1}] }}", "{{ a[1] }}{{ a[{'b':1}] }}");
        check("{{ -a.b[1:] + c }}", "{{ -__slice(a.b, 1, none) + c }}");
        check(
            "{{ a(b)[::-1][c[0] % 2 if d else e[:1]:]|f }}",
            "{{ __slice(__slice(a(b), none, none, -1), __modulo(c[0], 2) if d else \
             __slice(e, none, 1), none)|f }}",
        );
        check("{% elif (a)[1:] %}", "{% elif __slice((a), 1, none) %}");
        check("{{ a[1: }}", "{{ a[1: }}");
    }

    #[test]
    fn loops_check_what_they_go_through() {
        check(
            "{% for a, b in c.d if a %}",
            "{% for a, b in __iterable( c.d ) if a %}",
        );
        check(
            "{%- for a in 1, 2 -%}",
            "{%- for a in __iterable(( 1, 2 )) -%}",
        );
        check(
            "{% for x in (y if z else w) recursive %}",
            "{% for x in __iterable( (y if z else w) ) recursive %}",
        );
    }

    #[test]
    fn blocks_are_renamed() {
        check(
            "{%- generation -%} a {%+ endgeneration %}",
            "{%- filter __generation %}{% with -%} a {%+ endwith %}{% endfilter %}",
        );
        check(
            "{% set a %}{% set b = c(d=1) %}{%- endset %}{% set e|f(g=1) -%}{% endset %}",
            "{% set a %}{% with %}{% set b =__kept(( c(d=1) )) %}{%- endwith %}{% endset %}\
             {% set e|f(g=1) %}{% with -%}{% endwith %}{% endset %}",
        );
        check(
            "{% macro m(a, b=(1, 2)) %}{{ varargs }}{%- endmacro -%}\n",
            "{% macro __m(a, b=(1,2), varargs=(), kwargs={}) %}{{ varargs }}{%- endmacro %}\
             {% set m = __variadic(__m, ['a', 'b']) -%}\n",
        );
    }

    #[test]
    fn texts_are_joined_by_a_call() {
        check(
            "{{ -a ~ b * 2|c ~ 'd' == e }}",
            "{{ __concat(-a, __times(b, 2|c), 'd') == e }}",
        );
        check("{{ a ~ }}", "{{ a ~ }}");
    }

    #[test]
    fn tests_bind_closer_than_what_is_rewritten() {
        check(
            "{{ a ~ b is not none ~ 'c' }}",
            "{{ __concat(a, b is not none, 'c') }}",
        );
        check(
            "{% if a is in [b % 2] and c * d is eq e[1:] %}",
            "{% if a is in [__modulo(b, 2)] and __times(c, d is eq __slice(e, 1, none)) %}",
        );
        check(
            "{{ x if a is divisibleby(3) * 2 else b is string }}",
            "{{ x if __times(a is divisibleby(3), 2) else b is string }}",
        );
        check("{{ a is }}", "{{ a is }}");
    }

    #[test]
    fn macros_begin_with_what_they_need() {
        check(
            "{%- macro m(a, b=a|c, d=[1]) -%}\n{% set n.x = 1 %}{% set n.y = b %}{% endmacro %}",
            "{%- macro m(a, b=__unset, d=[1]) %}{% set b = (a|c) if b is undefined else b \
             %}{% if n %}{% endif -%}\n{% set n.x =__kept(( 1 )) %}{% set n.y =__kept(( b )) %}{% endmacro %}",
        );
    }

    #[test]
    fn sums_become_calls_where_texts_may_be_safe() {
        check("{{ a + b }}", "{{ a + b }}");
        check(
            "{{ a|safe + -b ~ c - d + 'e' if f + 1 }}",
            "{{ __plus(__plus(a|safe, __concat(-b, c)) - d, 'e') if __plus(f, 1) }}",
        );
        check(
            "{% set x = a + [b + 'escape'] %}{% for y in z + w %}",
            "{% set x =__kept(( __plus(a, [__plus(b, 'escape')]) )) %}\
             {% for y in __iterable( __plus(z, w) ) %}",
        );
        check("{{ a|e + }}", "{{ a|e + }}");
    }

    #[test]
    fn escapes_are_spelled_out() {
        check(r"{{ '\n\x41\101\'\q' }}\a", r"{{ '\n\x41\101\'\q' }}\a");
        check(
            "{{ '\\a\\v\\/\\\n\\U0001F600\\U00000027\\400\\é' }}",
            "{{ '\u{7}\u{b}\\\\/😀\\'Ā\\\\xe9' }}",
        );
        check(r"{{ '\N{BULLET}\U00110000' }}", r"{{ '\x__{BULLET}\x__' }}");
    }

    #[test]
    fn words_of_defaults_stay_apart() {
        check(
            "{% macro m(a, b=not c or 'd' if e is in [f, g] else h.i[1]) %}",
            "{% macro m(a, b=not c or 'd' if e is in[f,g]else h.i[1]) %}",
        );
    }

    #[test]
    fn what_is_set_is_looked_at() {
        check("{% set x=1 %}", "{% set x=__kept((1 )) %}");
        check(
            "{%- set a, b = c, d -%}",
            "{%- set a, b =__kept(( c, d )) -%}",
        );
        check(
            "{% set n.x = a % b %}",
            "{% set n.x =__kept(( __modulo(a, b) )) %}",
        );
    }

    /// Whoever reads a template descends with what is in it, and would have no stack left.
    #[test]
    fn what_nests_too_deeply_is_refused() {
        #[track_caller]
        fn check(begin: &str, again: &str, end: &str, fits: usize) {
            let template = |times: usize| {
                let source = format!("{begin}{}{end}", again.repeat(times));
                super::super::Template::new(&source).map(drop)
            };
            assert!(template(fits).is_ok(), "{:?}", template(fits));
            // Up to the limit, what is taken must fit into this thread's stack.
            let _ = (100..=400).step_by(25).map(template).collect::<Vec<_>>();
            template(10_000).unwrap_err();
            template(100_000).unwrap_err();
        }
        for (begin, again, end) in [
            ("{{ a", ".b", " }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "[0:1]", " }}"),
            ("{{ a", "()", " }}"),
            ("{{ a", "|e", " }}"),
            ("{{ ", "not ", "a }}"),
            ("{{ ", "-", "1 }}"),
            ("{{ a", " and a", " }}"),
            ("{{ a", " ** a", " }}"),
            ("{{ a", " % a", " }}"),
            ("{{ a", " if a else a", " }}"),
            ("{% set x = a", " + a", " %}"),
            ("{% for x in a", ".b", " %}{% endfor %}"),
            ("{% if a %}", "{% elif b %}", "{% endif %}"),
        ] {
            check(begin, again, end, 50);
        }
        // Brackets that are closed, which are read to their end.
        for (begin, open, close) in [
            ("{{ ", "(", ")"),
            ("{{ ", "[", "]"),
            ("{{ ", "{'a': ", "}"),
            ("{{ a", "[b", "]"),
            ("{{ ", "a(b % ", ")"),
        ] {
            for times in [10_000, 100_000] {
                let end = format!("a{} }}}}", close.repeat(times));
                let source = format!("{begin}{}{end}", open.repeat(times));
                let error = rewrite(&source).unwrap_err().to_string();
                assert!(error.contains("too long"), "{error}");
            }
        }
        for (begin, again, end) in [
            ("", "{% macro a() %}", ""),
            ("", "{% call a() %}", ""),
            ("", "{% if a %}", ""),
            ("", "{% for a in b %}", ""),
        ] {
            check(begin, again, end, 0);
        }
        // What is long is not deep.
        let list = format!("{{{{ [{}] }}}}", "a.b, ".repeat(10_000));
        assert!(rewrite(&list).is_ok());
    }

    #[test]
    fn the_line_break_after_raw_stays() {
        check("{% raw %}\na{% endraw %}\n", "{% raw %}\n\na{% endraw %}\n");
        let taken = "{% raw -%}\na{% endraw %}";
        check(taken, taken);
    }
}
