//! The methods of Python's texts, lists and dictionaries that templates call.
//!
//! transformers renders in a sandbox, so methods that change a value are refused there too.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::filters::within_safe;
use super::python::{Arguments, formatted, pairs, refusal};
use crate::text::letters::{is_digit, is_letter};
use crate::text::space::is_space;

/// Called for methods the engine does not know.
pub(super) fn call(
    _: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String if value.is_safe() => safe_text_method(value, method, arguments),
        ValueKind::String => text_method(value.as_str().unwrap_or_default(), method, arguments),
        ValueKind::Map => map_method(value, method, arguments),
        ValueKind::Seq => list_method(value, method, arguments),
        ValueKind::Number if method == "is_integer" => {
            let whole = |number: f64| number.fract() == 0.0;
            Ok(Value::from(f64::try_from(value.clone()).is_ok_and(whole)))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn map_method(map: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(arguments)?;
    let (result, most) = match method {
        "keys" => (pairs(map).into_iter().map(|(key, _)| key).collect(), 0),
        "values" => (pairs(map).into_iter().map(|(_, item)| item).collect(), 0),
        "items" => {
            let entry = |(key, item)| Value::from(Tuple::from([key, item]));
            (pairs(map).into_iter().map(entry).collect(), 0)
        }
        "copy" => (map.clone(), 0),
        "get" => {
            let key = arguments.get(0, "key");
            let key = key.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            let found = map.get_item(&key).ok().filter(|item| !item.is_undefined());
            let other = || {
                arguments
                    .get(1, "default")
                    .unwrap_or_else(|| Value::from(()))
            };
            (found.unwrap_or_else(other), 2)
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    arguments.finish(most)?;
    Ok(result)
}

fn list_method(list: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let wanted = || {
        let first = arguments.first().cloned();
        first.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    };
    match method {
        "copy" => Ok(list.clone()),
        "count" => {
            let wanted = wanted()?;
            Ok(Value::from(
                list.try_iter()?.filter(|item| *item == wanted).count(),
            ))
        }
        "index" => {
            let wanted = wanted()?;
            let place = list.try_iter()?.position(|item| item == wanted);
            place
                .map(Value::from)
                .ok_or_else(|| refusal("the value is not in the list"))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// The same of a text that needs no escaping: neither does what is made of it, for which what it
/// takes in is escaped.
fn safe_text_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let mut arguments = arguments.to_vec();
    let taken_in = match method {
        "format" | "format_map" => 0..arguments.len(),
        "replace" | "ljust" | "rjust" | "center" => 1..arguments.len().min(2),
        _ => 0..0,
    };
    for argument in arguments.get_mut(taken_in).into_iter().flatten() {
        *argument = match method {
            "format_map" => pairs(argument)
                .into_iter()
                .map(|(key, item)| (key, within_safe(&item)))
                .collect(),
            _ => within_safe(argument),
        };
    }
    if let ("join", Some(items)) = (method, arguments.first_mut()) {
        let parts = items.try_iter()?.map(|item| within_safe(&item));
        *items = parts
            .map(|part| Value::from(super::python::text_of(&part)))
            .collect();
    }
    let made = text_method(value.as_str().unwrap_or_default(), method, &arguments)?;
    let safe = |item: Value| Value::from_safe_string(super::python::text_of(&item));
    Ok(match made.kind() {
        ValueKind::String => safe(made),
        ValueKind::Seq if made.is_tuple() => {
            Value::from(Tuple::from(made.try_iter()?.map(safe).collect::<Vec<_>>()))
        }
        ValueKind::Seq => made.try_iter()?.map(safe).collect(),
        _ => made,
    })
}

fn text_method(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    // These take anything, by name as well.
    match method {
        "format" => return formatted(FormatStyle::StrFormat, text, arguments).map(Value::from),
        "format_map" => {
            let map = arguments
                .first()
                .ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            let named: Kwargs = pairs(map)
                .into_iter()
                .map(|(key, item)| (super::python::text_of(&key), item))
                .collect();
            return formatted(FormatStyle::StrFormat, text, &[Value::from(named)]).map(Value::from);
        }
        _ => {}
    }
    let arguments = Arguments::new(arguments)?;
    let (result, most) = match known_text_method(text, method, &arguments)? {
        Some(found) => found,
        None => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    arguments.finish(most)?;
    Ok(result)
}

/// The result, and how many arguments the method takes by place.
fn known_text_method(
    text: &str,
    method: &str,
    arguments: &Arguments,
) -> Result<Option<(Value, usize)>, Error> {
    let changed = changed_case(text, method).map(Value::from);
    if let Some(result) = changed.or_else(|| classified(text, method)) {
        return Ok(Some((result, 0)));
    }
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let set = arguments.text(0, "chars")?;
            (Value::from(stripped(text, method, set.as_deref())), 1)
        }
        "split" | "rsplit" => (split(text, method == "rsplit", arguments)?, 2),
        "splitlines" => {
            let lines = lines(text, arguments.flag(0, "keepends")).into_iter();
            (lines.map(Value::from).collect(), 1)
        }
        "partition" | "rpartition" => (partition(text, method, arguments)?, 1),
        "replace" => {
            let (old, new) = (
                arguments.required_text(0, "old")?,
                arguments.required_text(1, "new")?,
            );
            let replaced = match usize::try_from(arguments.number(2, "count")?.unwrap_or(-1)) {
                Ok(count) => text.replacen(&old, &new, count),
                Err(_) => text.replace(&old, &new),
            };
            (Value::from(replaced), 3)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => (sought(text, method, arguments)?, 3),
        "startswith" | "endswith" => (affixed(text, method, arguments)?, 3),
        "removeprefix" => {
            let prefix = arguments.required_text(0, "prefix")?;
            (Value::from(text.strip_prefix(&prefix).unwrap_or(text)), 1)
        }
        "removesuffix" => {
            let suffix = arguments.required_text(0, "suffix")?;
            (Value::from(text.strip_suffix(&suffix).unwrap_or(text)), 1)
        }
        "center" | "ljust" | "rjust" | "zfill" => (padded(text, method, arguments)?, 2),
        "expandtabs" => {
            let width = arguments.number(0, "tabsize")?.unwrap_or(8);
            (
                Value::from(expanded(text, usize::try_from(width).unwrap_or_default())),
                1,
            )
        }
        "join" => (joined(text, arguments)?, 1),
        "encode" => (Value::from_bytes(text.as_bytes().to_vec()), 2),
        "translate" => (translated(text, arguments), 1),
        _ => return Ok(None),
    };
    Ok(Some(result))
}

pub(super) fn changed_case(text: &str, method: &str) -> Option<String> {
    let is_cased = |c: char| c.is_lowercase() || c.is_uppercase();
    let changed = match method {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => text.to_lowercase().replace('ß', "ss"),
        "swapcase" => text
            .chars()
            .map(|c| match c.is_uppercase() {
                true => c.to_lowercase().to_string(),
                false => c.to_uppercase().to_string(),
            })
            .collect(),
        "capitalize" => {
            let mut rest = text.chars();
            let first = rest.next().into_iter().flat_map(char::to_uppercase);
            first.chain(rest.as_str().to_lowercase().chars()).collect()
        }
        "title" => {
            let mut out = String::with_capacity(text.len());
            let mut within = false;
            for c in text.chars() {
                match within {
                    true => out.extend(c.to_lowercase()),
                    false => out.extend(c.to_uppercase()),
                }
                within = is_cased(c);
            }
            out
        }
        _ => return None,
    };
    Some(changed)
}

fn classified(text: &str, method: &str) -> Option<Value> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let has_case = || text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
    Some(Value::from(match method {
        "isalpha" => all(is_letter),
        "isalnum" => all(|c| is_letter(c) || c.is_numeric()),
        "isdecimal" => all(is_digit),
        "isdigit" | "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isascii" => text.is_ascii(),
        "isprintable" => text
            .chars()
            .all(|c| c == ' ' || !(c.is_control() || c.is_whitespace())),
        "islower" => has_case() && !text.chars().any(char::is_uppercase),
        "isupper" => has_case() && !text.chars().any(char::is_lowercase),
        "istitle" => has_case() && changed_case(text, "title")? == text,
        "isidentifier" => {
            let is_start = |c: char| c.is_alphabetic() || c == '_';
            let is_rest = |c: char| c.is_alphanumeric() || c == '_';
            text.starts_with(is_start) && text.chars().all(is_rest)
        }
        _ => return None,
    }))
}

pub(super) fn stripped<'a>(text: &'a str, method: &str, set: Option<&str>) -> &'a str {
    let is_stripped = |c: char| set.map_or_else(|| is_space(c), |set| set.contains(c));
    match method {
        "lstrip" => text.trim_start_matches(is_stripped),
        "rstrip" => text.trim_end_matches(is_stripped),
        _ => text.trim_matches(is_stripped),
    }
}

fn split(text: &str, from_right: bool, arguments: &Arguments) -> Result<Value, Error> {
    let separator = arguments.text(0, "sep")?;
    let most = arguments.number(1, "maxsplit")?.unwrap_or(-1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts: Vec<&str> = match separator.as_deref() {
        Some("") => return Err(refusal("an empty separator splits nothing")),
        Some(separator) if from_right => {
            let mut parts: Vec<_> = text.rsplitn(most.saturating_add(1), separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => text.splitn(most.saturating_add(1), separator).collect(),
        None => split_at_space(text, from_right, most),
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_at_space(text: &str, from_right: bool, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = match from_right {
        true => text.trim_end_matches(is_space),
        false => text.trim_start_matches(is_space),
    };
    while !rest.is_empty() && parts.len() < most {
        let (part, after) = match from_right {
            true => match rest.rfind(is_space) {
                Some(at) => {
                    let next = at + rest[at..].chars().next().map_or(0, char::len_utf8);
                    (&rest[next..], rest[..at].trim_end_matches(is_space))
                }
                None => (rest, ""),
            },
            false => match rest.find(is_space) {
                Some(at) => (&rest[..at], rest[at..].trim_start_matches(is_space)),
                None => (rest, ""),
            },
        };
        parts.push(part);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// The lines of a text, which Python ends at more than line breaks.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let first = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at
            + if rest[at..].starts_with("\r\n") {
                2
            } else {
                first
            };
        parts.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

fn partition(text: &str, method: &str, arguments: &Arguments) -> Result<Value, Error> {
    let separator = arguments.required_text(0, "sep")?;
    let found = match method {
        _ if separator.is_empty() => return Err(refusal("an empty separator splits nothing")),
        "partition" => text.split_once(&separator),
        _ => text.rsplit_once(&separator),
    };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if method == "partition" => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// The part of a text between two places counted in characters, and where it begins.
fn range(text: &str, arguments: &Arguments) -> Result<Option<(usize, String)>, Error> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |number: i64| {
        if number < 0 {
            (number + length).max(0)
        } else {
            number
        }
    };
    let start = place(arguments.number(1, "start")?.unwrap_or(0));
    let end = place(arguments.number(2, "end")?.unwrap_or(length)).min(length);
    if start > end {
        return Ok(None);
    }
    let (start, end) = (
        usize::try_from(start).unwrap_or(0),
        usize::try_from(end).unwrap_or(0),
    );
    Ok(Some((
        start,
        text.chars().skip(start).take(end - start).collect(),
    )))
}

fn sought(text: &str, method: &str, arguments: &Arguments) -> Result<Value, Error> {
    let wanted = arguments.required_text(0, "sub")?;
    let range = range(text, arguments)?;
    if method == "count" {
        let count = range.map_or(0, |(_, part)| match wanted.is_empty() {
            true => part.chars().count() + 1,
            false => part.matches(&wanted).count(),
        });
        return Ok(Value::from(count));
    }
    let place = range.and_then(|(start, part)| {
        let at = match method {
            "rfind" | "rindex" => part.rfind(&wanted)?,
            _ => part.find(&wanted)?,
        };
        Some(start + part[..at].chars().count())
    });
    match place {
        Some(place) => Ok(Value::from(place)),
        None if method.ends_with("index") => Err(refusal("the text does not contain it")),
        None => Ok(Value::from(-1)),
    }
}

fn affixed(text: &str, method: &str, arguments: &Arguments) -> Result<Value, Error> {
    let affixes = match arguments.get(0, "prefix") {
        None => return Err(Error::from(ErrorKind::MissingArgument)),
        Some(value) if value.as_str().is_some() => vec![value],
        Some(value) if value.is_tuple() => value.try_iter()?.collect(),
        Some(_) => {
            return Err(refusal(format!(
                "{method} takes a text or a tuple of texts"
            )));
        }
    };
    let Some((_, part)) = range(text, arguments)? else {
        return Ok(Value::from(false));
    };
    let matches = |affix: &Value| {
        let affix = affix.as_str();
        affix.is_some_and(|affix| match method {
            "startswith" => part.starts_with(affix),
            _ => part.ends_with(affix),
        })
    };
    Ok(Value::from(affixes.iter().any(matches)))
}

fn padded(text: &str, method: &str, arguments: &Arguments) -> Result<Value, Error> {
    let width = arguments.number(0, "width")?;
    let width = width.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let fill = arguments
        .text(1, "fillchar")?
        .unwrap_or_else(|| " ".to_owned());
    if fill.chars().count() != 1 {
        return Err(refusal("what fills a field is one character"));
    }
    Ok(Value::from(pad(text, method, width, &fill)))
}

/// A wider field than this is a mistake, or worse.
const WIDEST: i64 = 1 << 20;

pub(super) fn pad(text: &str, method: &str, width: i64, fill: &str) -> String {
    let width = usize::try_from(width.min(WIDEST)).unwrap_or_default();
    let missing = width.saturating_sub(text.chars().count());
    let filled = |count: usize| fill.repeat(count);
    match method {
        "ljust" => format!("{text}{}", filled(missing)),
        "rjust" => format!("{}{text}", filled(missing)),
        "zfill" => {
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        // Python puts the odd one on the left if the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", filled(left), filled(missing - left))
        }
    }
}

fn expanded(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if width > 0 => {
                let count = width.min(1 << 10) - column % width.min(1 << 10);
                out.push_str(&" ".repeat(count));
                column += count;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    out
}

fn joined(separator: &str, arguments: &Arguments) -> Result<Value, Error> {
    let items = arguments.get(0, "iterable");
    let items = items.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let mut parts = Vec::new();
    for item in items.try_iter()? {
        match item.as_str() {
            Some(text) => parts.push(text.to_owned()),
            None => return Err(refusal("join takes texts only")),
        }
    }
    Ok(Value::from(parts.join(separator)))
}

fn translated(text: &str, arguments: &Arguments) -> Value {
    let table = arguments.get(0, "table").unwrap_or_default();
    let replaced = |c: char| match table.get_item(&Value::from(u32::from(c))) {
        Ok(item) if item.is_none() => String::new(),
        Ok(item) if !item.is_undefined() => item.to_string(),
        _ => c.to_string(),
    };
    Value::from(text.chars().map(replaced).collect::<String>())
}
