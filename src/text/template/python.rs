//! How Python prints values.

use std::fmt::Write as _;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::methods::pad;
use crate::text::json::{write_float, write_text};

/// Python's `str`; what is undefined prints as nothing, as in Jinja2.
pub(super) fn text_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => {
            let mut out = String::new();
            write_repr(value, &mut out);
            out
        }
    }
}

/// How deep values are printed. A namespace may be within itself, and a stack has an end.
const DEEPEST: usize = 200;

/// Python's `repr`.
pub(super) fn write_repr(value: &Value, out: &mut String) {
    write_within(value, 0, out);
}

fn write_within(value: &Value, depth: usize, out: &mut String) {
    match value.kind() {
        _ if depth > DEEPEST => out.push_str("..."),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match float(value) {
            Some(number) => write_python_float(number, out),
            None => out.push_str(&value.to_string()),
        },
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            write_quoted(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Bytes => write_bytes(value.as_bytes().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => write_items(value, depth, out),
        ValueKind::Map => match value.as_object().map(|object| object.type_name()) {
            // What only looks like a map prints itself.
            Some(name) if name.ends_with("::Loop") || name.ends_with("::Module") => {
                out.push_str(&value.to_string());
            }
            Some(name) if name.ends_with("::Namespace") => {
                out.push_str("<Namespace ");
                write_pairs(value, depth, out);
                out.push('>');
            }
            _ => write_pairs(value, depth, out),
        },
        _ => out.push_str(&value.to_string()),
    }
}

fn write_items(value: &Value, depth: usize, out: &mut String) {
    let Ok(items) = value.try_iter() else {
        return out.push_str(&value.to_string());
    };
    let is_tuple = value.is_tuple();
    out.push(if is_tuple { '(' } else { '[' });
    let mut count = 0;
    for item in items {
        out.push_str(if count == 0 { "" } else { ", " });
        write_within(&item, depth + 1, out);
        count += 1;
    }
    out.push_str(match (is_tuple, count) {
        (true, 1) => ",)",
        (true, _) => ")",
        (false, _) => "]",
    });
}

fn write_pairs(value: &Value, depth: usize, out: &mut String) {
    out.push('{');
    for (index, (key, item)) in pairs(value).into_iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write_within(&key, depth + 1, out);
        out.push_str(": ");
        write_within(&item, depth + 1, out);
    }
    out.push('}');
}

/// The entries of a map in their order.
pub(super) fn pairs(map: &Value) -> Vec<(Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| {
        let item = map.get_item(&key).unwrap_or_default();
        (key, item)
    })
    .collect()
}

/// A number that is no whole one.
pub(super) fn float(value: &Value) -> Option<f64> {
    match value.kind() == ValueKind::Number && !value.is_integer() {
        true => f64::try_from(value.clone()).ok(),
        false => None,
    }
}

fn write_python_float(number: f64, out: &mut String) {
    match number {
        n if n.is_nan() => out.push_str("nan"),
        f64::INFINITY => out.push_str("inf"),
        f64::NEG_INFINITY => out.push_str("-inf"),
        n => write_float(n, out),
    }
}

fn write_quoted(text: &str, out: &mut String) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => push_escaped(c, out),
        }
    }
    out.push(quote);
}

pub(super) fn push_escaped(c: char, out: &mut String) {
    let code = u32::from(c);
    match code {
        ..0x100 => write!(out, "\\x{code:02x}"),
        0x100..0x10000 => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    }
    .expect("writing to a string does not fail");
}

/// What Python shows as it is: no separators but the space, no control, format or private
/// characters. Rust escapes the same ones in `Debug`, some separators aside.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let escaped = || {
        "a".chars()
            .chain([c])
            .collect::<String>()
            .escape_debug()
            .count()
            > 2
    };
    c == ' ' || c == '"' || c == '\'' || !(c.is_whitespace() || is_format || escaped())
}

fn write_bytes(bytes: &[u8], out: &mut String) {
    out.push_str("b'");
    for byte in bytes {
        match byte {
            b'\\' | b'\'' => write!(out, "\\{}", char::from(*byte)),
            b'\n' => write!(out, "\\n"),
            b'\r' => write!(out, "\\r"),
            b'\t' => write!(out, "\\t"),
            b' '..=b'~' => write!(out, "{}", char::from(*byte)),
            _ => write!(out, "\\x{byte:02x}"),
        }
        .expect("writing to a string does not fail");
    }
    out.push('\'');
}

/// The arguments of a call, by place or by name.
pub(super) struct Arguments {
    positional: Vec<Value>,
    named: Option<Kwargs>,
}

impl Arguments {
    pub(super) fn new(arguments: &[Value]) -> Result<Self, Error> {
        let (positional, named) = match arguments.split_last() {
            Some((last, before)) if last.is_kwargs() => {
                (before, Some(Kwargs::try_from(last.clone())?))
            }
            _ => (arguments, None),
        };
        Ok(Self {
            positional: positional.to_vec(),
            named,
        })
    }

    /// The argument at a place or of a name; `None` also stands for one that was not given.
    pub(super) fn get(&self, place: usize, name: &str) -> Option<Value> {
        let named = || self.named.as_ref()?.get::<Option<Value>>(name).ok()?;
        self.positional.get(place).cloned().or_else(named)
    }

    pub(super) fn text(&self, place: usize, name: &str) -> Result<Option<String>, Error> {
        match self.get(place, name) {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) => match value.as_str() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(refusal(format!("{name} must be a text"))),
            },
        }
    }

    pub(super) fn required_text(&self, place: usize, name: &str) -> Result<String, Error> {
        self.text(place, name)?
            .ok_or_else(|| Error::new(ErrorKind::MissingArgument, name.to_owned()))
    }

    pub(super) fn number(&self, place: usize, name: &str) -> Result<Option<i64>, Error> {
        match self.get(place, name) {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) if value.kind() == ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
            Some(value) => match value.is_integer().then(|| value.as_i64()).flatten() {
                Some(number) => Ok(Some(number)),
                None => Err(refusal(format!("{name} must be a whole number"))),
            },
        }
    }

    pub(super) fn flag(&self, place: usize, name: &str) -> bool {
        self.get(place, name).is_some_and(|value| value.is_true())
    }

    /// Refuses more than so many arguments by place, and names that nothing asked for.
    pub(super) fn finish(&self, most: usize) -> Result<(), Error> {
        if self.positional.len() > most {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.named.as_ref().map_or(Ok(()), Kwargs::assert_all_used)
    }
}

/// A text with values in it, as Python puts them there, but for widths that nobody can mean.
pub(super) fn formatted(
    style: FormatStyle,
    pattern: &str,
    arguments: &[Value],
) -> Result<String, Error> {
    let (places, begin, asks) = match style {
        FormatStyle::Printf => (pattern.replace("%%", ""), '%', "*"),
        FormatStyle::StrFormat => (pattern.replace("{{", ""), ':', ":{"),
    };
    let is_wide = |number: &str| number.trim_start_matches('0').len() >= DIGITS;
    let has_wide = places.split(begin).skip(1).any(|place| {
        let place = specification(style, place);
        place.split(|c: char| !c.is_ascii_digit()).any(is_wide)
    });
    let is_huge = |value: &Value| value.is_integer() && is_wide(&value.to_string());
    let has_huge = |value: &Value| match value.is_kwargs() {
        true => pairs(value).iter().any(|(_, item)| is_huge(item)),
        false => is_huge(value),
    };
    match has_wide || places.contains(asks) && arguments.iter().any(has_huge) {
        true => Err(refusal("the width is beyond reason")),
        false => format(style, pattern, arguments),
    }
}

/// What stands between the sign that begins a place and its end: flags, width and precision.
fn specification(style: FormatStyle, place: &str) -> &str {
    let end = match style {
        FormatStyle::StrFormat => place.find(['{', '}']),
        FormatStyle::Printf => {
            let named = place.strip_prefix('(').and_then(|rest| rest.find(')'));
            let from = named.map_or(0, |end| end + 2);
            place[from..].find(char::is_alphabetic).map(|to| from + to)
        }
    };
    &place[..end.unwrap_or(place.len())]
}

/// A width of so many digits is a mistake, or worse.
const DIGITS: usize = 8;

pub(super) fn refusal(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`, without escaping HTML.
pub(super) fn to_json(value: &Value, arguments: &[Value]) -> Result<String, Error> {
    let arguments = Arguments::new(arguments)?;
    let indent = match arguments.get(1, "indent") {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = arguments.number(1, "indent")?.unwrap_or_default();
                pad("", "ljust", width, " ")
            }
        }),
    };
    let separators = arguments
        .get(2, "separators")
        .filter(|value| !value.is_none());
    let (comma, colon) = match separators {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => {
            let pair: Vec<String> = pair.try_iter()?.map(|part| text_of(&part)).collect();
            match <[String; 2]>::try_from(pair) {
                Ok([comma, colon]) => (comma, colon),
                Err(_) => return Err(refusal("separators must be two texts")),
            }
        }
    };
    let dump = Dump {
        ascii: arguments.flag(0, "ensure_ascii"),
        indent,
        comma,
        colon,
        sorted: arguments.flag(3, "sort_keys"),
    };
    arguments.finish(4)?;
    let mut out = String::new();
    dump.write(value, 0, &mut out)?;
    Ok(out)
}

struct Dump {
    ascii: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
    sorted: bool,
}

/// Deeper values are refused: the stack is finite.
const MAX_DEPTH: usize = 200;

impl Dump {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refusal("a value is nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match float(value) {
                Some(number) => write_float(number, out),
                None => out.push_str(&value.to_string()),
            },
            ValueKind::String => write_text(value.as_str().unwrap_or_default(), self.ascii, out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.block('[', ']', &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut entries = pairs(value);
                if self.sorted {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.block('{', '}', &entries, depth, out, |(key, item), out| {
                    write_text(&key_text(key)?, self.ascii, out);
                    out.push_str(&self.colon);
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => return Err(refusal(format!("a value of type {kind} has no JSON form"))),
        }
        Ok(())
    }

    fn block<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            out.push_str(if index == 0 { "" } else { &self.comma });
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }
}

/// A key of an object is always a text.
fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number => text_of(key),
        kind => return Err(refusal(format!("a key of type {kind} has no JSON form"))),
    })
}
