//! A row of a run's files: JSON whose keys keep their order and whose numbers may be NaN.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value as Json;

use crate::{Error, Result};

/// One value of a [`Row`]. Reading gives objects and lists as [`Value::Json`]; rows inside rows
/// are for writing, where the order of names matters.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Int(i64),
    /// Any other number; NaN and the infinities are written as Python writes them.
    Float(f64),
    /// A text.
    Text(String),
    /// An object.
    Row(Row),
    /// A list of objects.
    Rows(Vec<Row>),
    /// Anything else.
    Json(Json),
}

impl Value {
    /// The value as a number, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            _ => None,
        }
    }
}

/// As the files show it; texts without their quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => f.write_str(&float(*number)),
            Self::Text(text) => f.write_str(text),
            Self::Row(row) => f.write_str(&row.to_line()),
            Self::Rows(rows) => {
                let rows: Vec<String> = rows.iter().map(Row::to_line).collect();
                write!(f, "[{}]", rows.join(", "))
            }
            Self::Json(value) => {
                let mut text = String::new();
                spaced(value, &mut text);
                f.write_str(&text)
            }
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or(Self::Float(number as f64), Self::Int)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Json(Json::Bool(truth))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Row> for Value {
    fn from(row: Row) -> Self {
        Self::Row(row)
    }
}

impl From<Vec<Row>> for Value {
    fn from(rows: Vec<Row>) -> Self {
        Self::Rows(rows)
    }
}

impl From<Json> for Value {
    fn from(value: Json) -> Self {
        match value {
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Self::Int(whole),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => match not_a_number(&text) {
                Some(number) => Self::Float(number),
                None => Self::Text(text),
            },
            other => Self::Json(other),
        }
    }
}

/// Names and values in the order in which they were set, as one line of `metrics.jsonl`,
/// `checkpoints.jsonl` or a rollout summary holds them.
///
/// ```
/// use tinker::train::Row;
///
/// let row = Row::new().with("step", 3usize).with("train_mean_nll", f64::NAN);
/// assert_eq!(row.to_line(), r#"{"step": 3, "train_mean_nll": NaN}"#);
/// let read = Row::parse(&row.to_line())?;
/// assert!(read.number("train_mean_nll").unwrap().is_nan());
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row(Vec<(String, Value)>);

impl Row {
    /// A row with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value, or replaces the one of that name where it stands.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Adds a value, or replaces the one of that name where it stands.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Sets every value of another row.
    pub fn merge(&mut self, other: Row) {
        for (name, value) in other.0 {
            self.set(name, value);
        }
    }

    /// Takes a value out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(index).1)
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value)
    }

    /// The number of a name, if it is one.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    /// The whole, not negative number of a name, if it is one.
    pub fn count(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The text of a name, if it is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a name holds what Python takes for true.
    pub fn is_true(&self, name: &str) -> bool {
        match self.get(name) {
            None | Some(Value::Json(Json::Null | Json::Bool(false))) => false,
            Some(Value::Int(number)) => *number != 0,
            Some(Value::Float(number)) => *number != 0.0,
            Some(Value::Text(text)) => !text.is_empty(),
            Some(_) => true,
        }
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The row as one line of JSON, in Python's spacing, without the line's end.
    pub fn to_line(&self) -> String {
        let mut line = String::from("{");
        for (index, (name, value)) in self.0.iter().enumerate() {
            if index > 0 {
                line += ", ";
            }
            line += &quoted(name);
            line += ": ";
            match value {
                Value::Text(text) => line += &quoted(text),
                other => line += &other.to_string(),
            }
        }
        line + "}"
    }

    /// The row as a line that any reader of JSON takes: what JSON has no word for is null.
    ///
    /// ```
    /// let row = tinker::train::Row::new().with("loss", f64::NAN);
    /// assert_eq!(row.to_json_line(), r#"{"loss": null}"#);
    /// ```
    pub fn to_json_line(&self) -> String {
        self.finite().to_line()
    }

    fn finite(&self) -> Self {
        let finite = |value: &Value| match value {
            Value::Float(number) if !number.is_finite() => Value::Json(Json::Null),
            Value::Row(row) => Value::Row(row.finite()),
            Value::Rows(rows) => Value::Rows(rows.iter().map(Self::finite).collect()),
            other => other.clone(),
        };
        let values = self.0.iter();
        Self(
            values
                .map(|(name, value)| (name.clone(), finite(value)))
                .collect(),
        )
    }

    /// Reads a line. `NaN`, `Infinity` and `-Infinity`, which Python writes and JSON does not
    /// know, are numbers here.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is not one JSON object.
    pub fn parse(line: &str) -> Result<Self> {
        let strict = without_literals(line, 1);
        serde_json::from_str(&strict).map_err(|error| Error::invalid("row", error.to_string()))
    }
}

impl FromIterator<(String, Value)> for Row {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(values: I) -> Self {
        let mut row = Self::new();
        for (name, value) in values {
            row.set(name, value);
        }
        row
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Row;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                let mut row = Row::new();
                while let Some((name, value)) = map.next_entry::<String, Json>()? {
                    row.set(name, value);
                }
                Ok(row)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Marks a text that stands for a number JSON cannot write; no file holds this character.
const MARK: char = '\u{E000}';

fn not_a_number(text: &str) -> Option<f64> {
    match text.strip_prefix(MARK)? {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// JSON as Python writes it; what JSON has no word for is null.
pub(super) fn lenient(text: &str) -> Option<Json> {
    serde_json::from_str(&without_literals(text, -1)).ok()
}

/// The text with Python's literals as marked texts at one level, as null at others.
fn without_literals(line: &str, marked: i32) -> String {
    if !(line.contains("NaN") || line.contains("Infinity")) {
        return line.to_owned();
    }
    let mut strict = String::with_capacity(line.len() + 16);
    let (mut rest, mut depth) = (line, 0);
    while let Some(next) = rest.chars().next() {
        let literal = ["NaN", "Infinity", "-Infinity"]
            .into_iter()
            .find(|literal| rest.starts_with(literal));
        let taken = match (next, literal) {
            ('"', _) => {
                let text = &rest[..text_length(rest)];
                strict += text;
                text.len()
            }
            (_, Some(literal)) => {
                match depth == marked {
                    true => {
                        strict.extend(['"', MARK].into_iter().chain(literal.chars()).chain(['"']))
                    }
                    false => strict += "null",
                }
                literal.len()
            }
            _ => {
                depth += match next {
                    '{' | '[' => 1,
                    '}' | ']' => -1,
                    _ => 0,
                };
                strict.push(next);
                next.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    strict
}

/// The bytes of the quoted text a line begins with.
fn text_length(line: &str) -> usize {
    let mut escaped = false;
    for (index, next) in line.char_indices().skip(1) {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    line.len()
}

fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

fn float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => Json::from(number).to_string(),
    }
}

/// JSON in Python's spacing.
fn spaced(value: &Json, line: &mut String) {
    match value {
        Json::Array(values) => {
            line.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    *line += ", ";
                }
                spaced(value, line);
            }
            line.push(']');
        }
        Json::Object(values) => {
            line.push('{');
            for (index, (name, value)) in values.iter().enumerate() {
                if index > 0 {
                    *line += ", ";
                }
                *line += &quoted(name);
                *line += ": ";
                spaced(value, line);
            }
            line.push('}');
        }
        plain => *line += &plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, again: &str) {
        assert_eq!(Row::parse(line).unwrap().to_line(), again, "{line}");
    }

    #[test]
    fn lines_come_back_with_their_order_and_their_odd_numbers() {
        check(
            r#"{"b": 1, "a": 0.5, "c": "x"}"#,
            r#"{"b": 1, "a": 0.5, "c": "x"}"#,
        );
        check(
            r#"{"x":NaN,"y":-Infinity,"z":Infinity}"#,
            r#"{"x": NaN, "y": -Infinity, "z": Infinity}"#,
        );
        check(
            r#"{"t": "a NaN \" Infinity"}"#,
            r#"{"t": "a NaN \" Infinity"}"#,
        );
        check(
            r#"{"n": [1, NaN], "o": {"p": true}}"#,
            r#"{"n": [1, null], "o": {"p": true}}"#,
        );
        check(r#"{"same": 1, "same": 2}"#, r#"{"same": 2}"#);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for line in ["", "[1]", "{", r#"{"a": nan}"#, r#"{"a": "open}"#] {
            assert!(Row::parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn values_are_replaced_where_they_stand() {
        let mut row = Row::new().with("a", 1usize).with("b", 2usize);
        row.set("a", "one");
        row.merge(Row::new().with("c", true).with("b", 3.0));
        assert_eq!(row.to_line(), r#"{"a": "one", "b": 3.0, "c": true}"#);
        assert!(row.is_true("c") && row.is_true("a") && !row.is_true("d"));
        assert_eq!(row.remove("a"), Some(Value::Text("one".into())));
        assert_eq!(row.count("b"), None);
    }
}
