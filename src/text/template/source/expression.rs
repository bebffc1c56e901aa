//! Code with calls for what `minijinja` would not do: sums, products, joins, slices, loops.

use super::scan::{is_operand, is_space, is_text};
use super::{CONCAT, ITERABLE, KEPT, MODULO, PLUS, SLICE, TIMES};

/// A tag: its name is no value, whatever brackets follow it.
pub(super) fn statement(tokens: &[&str]) -> String {
    let (name, rest) = tokens.split_at(name_end(tokens));
    name.concat() + &expression(rest)
}

/// A `set` of one value, or of several by commas, which is looked at before it is kept.
pub(super) fn assignment(tokens: &[&str]) -> String {
    let value = equals_sign(tokens).map_or(tokens.len(), |sign| sign + 1);
    let (target, value) = tokens.split_at(value);
    match value.iter().all(|token| is_space(token)) {
        true => statement(tokens),
        false => format!("{}{KEPT}(({})) ", statement(target), expression(value)),
    }
}

/// Where the value of a `set` begins.
pub(super) fn equals_sign(tokens: &[&str]) -> Option<usize> {
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

/// Behind the first token that is no space.
pub(super) fn name_end(tokens: &[&str]) -> usize {
    let name = tokens.iter().position(|token| !is_space(token));
    name.map_or(0, |name| name + 1)
}

pub(super) fn expression(tokens: &[&str]) -> String {
    read(tokens, false)
}

pub(super) fn read(tokens: &[&str], sums: bool) -> String {
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
pub(super) fn for_loop(tokens: &[&str]) -> String {
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
