//! [`Json`]: JSON as Python reads and writes it, with its keys in order.
//!
//! Models were trained on what Python's `json` module prints, so a renderer has to print the
//! same characters; and a call that cannot be read is reported in that module's words.

use std::fmt::Write as _;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer, forward_to_deserialize_any};

/// A JSON value whose objects keep their keys in the order they were written in.
///
/// ```
/// use tinker::text::Json;
///
/// let value = Json::parse(r#"{"b":1,"a":[true,2.5]}"#).unwrap();
/// assert_eq!(value.to_string(), r#"{"b": 1, "a": [true, 2.5]}"#);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A whole number, as it is spelled.
    Int(String),
    /// Another number.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    Array(Vec<Json>),
    /// Pairs of a key and its value, every key once.
    Object(Vec<(String, Json)>),
}

/// How [`Json::dump`] writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) comma: &'static str,
    pub(crate) colon: &'static str,
    pub(crate) ascii: bool,
    pub(crate) sorted: bool,
    pub(crate) float: fn(f64, &mut String),
}

impl Style {
    /// Python's `json.dumps(value, ensure_ascii=False)`.
    pub(crate) const PLAIN: Self = Self {
        comma: ", ",
        colon: ": ",
        ascii: false,
        sorted: false,
        float: write_float,
    };
    /// Python's `json.dumps(value)`.
    pub(crate) const ASCII: Self = Self {
        ascii: true,
        ..Self::PLAIN
    };
    /// No spaces.
    pub(crate) const COMPACT: Self = Self {
        comma: ",",
        colon: ":",
        ..Self::PLAIN
    };
    /// No spaces, keys sorted.
    pub(crate) const COMPACT_SORTED: Self = Self {
        sorted: true,
        ..Self::COMPACT
    };
}

impl Json {
    /// Reads one value, with nothing after it but white space.
    ///
    /// # Errors
    ///
    /// What Python's `json.loads` says about such a text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut reader = Reader {
            text,
            at: 0,
            depth: 0,
        };
        if text.starts_with('\u{feff}') {
            let mark = "Unexpected UTF-8 BOM (decode using utf-8-sig)";
            return Err(reader.problem(mark, 0));
        }
        reader.skip_space();
        let value = reader.value()?;
        reader.skip_space();
        match reader.rest().is_empty() {
            true => Ok(value),
            false => Err(reader.problem("Extra data", reader.at)),
        }
    }

    /// The value as another type, as if that were read from the text. What serde's readers of
    /// JSON would not take, or take for something else, stays what it is to Python: `NaN`, and
    /// whole numbers of up to 128 bits.
    ///
    /// ```
    /// use tinker::text::{Json, Message};
    ///
    /// let text = r#"{"role": "user", "content": "Hi", "id": 36893488147419103232}"#;
    /// let message: Message = Json::parse(text).and_then(Json::convert).unwrap();
    /// assert_eq!(message.get("id").unwrap().to_string(), "36893488147419103232");
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the value, if it has another shape.
    pub fn convert<T: DeserializeOwned>(self) -> Result<T, String> {
        T::deserialize(Source(self)).map_err(|error| error.to_string())
    }

    /// The text, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if the value is a list.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs, if the value is an object.
    pub fn as_object(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Object(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The value of a key, if the value is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let found = self.as_object()?.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value)
    }

    /// What Python takes for true: everything but `null`, `false`, zero and what is empty.
    pub(crate) fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(digits) => digits.trim_start_matches('-') != "0",
            Self::Float(value) => *value != 0.0,
            Self::String(text) => !text.is_empty(),
            Self::Array(items) => !items.is_empty(),
            Self::Object(pairs) => !pairs.is_empty(),
        }
    }

    /// Python's `json.dumps`.
    pub(crate) fn dump(&self, style: Style) -> String {
        let mut out = String::new();
        self.write(style, &mut out);
        out
    }

    /// Python's `str`: texts as they are, `True`, `None`; lists and objects as JSON.
    pub(crate) fn to_python_text(&self) -> String {
        match self {
            Self::Null => "None".to_owned(),
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::String(text) => text.clone(),
            other => other.dump(Style::ASCII),
        }
    }

    fn write(&self, style: Style, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(digits) => out.push_str(digits),
            Self::Float(value) => (style.float)(*value, out),
            Self::String(text) => write_text(text, style.ascii, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { style.comma });
                    item.write(style, out);
                }
                out.push(']');
            }
            Self::Object(pairs) => {
                let mut order: Vec<&(String, Self)> = pairs.iter().collect();
                if style.sorted {
                    order.sort_by(|a, b| a.0.cmp(&b.0));
                }
                out.push('{');
                for (index, (key, value)) in order.into_iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { style.comma });
                    write_text(key, style.ascii, out);
                    out.push_str(style.colon);
                    value.write(style, out);
                }
                out.push('}');
            }
        }
    }
}

/// As `Json::dump` with spaces after separators and other scripts as they are.
impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.dump(Style::PLAIN))
    }
}

pub(super) fn write_text(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a string does not fail");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: the shortest digits, an exponent from 1e16 up and below 1e-4.
pub(super) fn write_float(value: f64, out: &mut String) {
    if !value.is_finite() {
        let name = match value {
            v if v.is_nan() => "NaN",
            v if v > 0.0 => "Infinity",
            _ => "-Infinity",
        };
        return out.push_str(name);
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent is written");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.abs())
    } else {
        write!(out, "{value:?}")
    }
    .expect("writing to a string does not fail");
}

/// A recursive reader that stops where Python's does.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// Deeper values are refused: a model may write anything, and the stack is finite.
const MAX_DEPTH: usize = 500;

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// `message: line 1 column 9 (char 8)`, counted in characters.
    fn problem(&self, message: &str, at: usize) -> String {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[start..].chars().count() + 1;
        let index = before.chars().count();
        format!("{message}: line {line} column {column} (char {index})")
    }

    fn value(&mut self) -> Result<Json, String> {
        if self.depth == MAX_DEPTH {
            return Err(self.problem("Nested too deeply", self.at));
        }
        self.depth += 1;
        let value = match self.peek() {
            Some(b'"') => self.string().map(Json::String),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.literal(),
        };
        self.depth -= 1;
        value
    }

    fn literal(&mut self) -> Result<Json, String> {
        let known = [
            ("null", Json::Null),
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("NaN", Json::Float(f64::NAN)),
            ("Infinity", Json::Float(f64::INFINITY)),
            ("-Infinity", Json::Float(f64::NEG_INFINITY)),
        ];
        for (spelling, value) in known {
            if self.rest().starts_with(spelling) {
                self.at += spelling.len();
                return Ok(value);
            }
        }
        Err(self.problem("Expecting value", self.at))
    }

    fn number(&mut self) -> Result<Json, String> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| {
            bytes[from..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count()
        };
        let start = usize::from(bytes[0] == b'-');
        let whole = match bytes.get(start) {
            Some(b'0') => 1,
            _ => digits(start),
        };
        if whole == 0 {
            return self.literal();
        }
        let mut end = start + whole;
        let mut float = false;
        if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
            float = true;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits((end + 1 + sign).min(bytes.len()));
            if exponent > 0 {
                end += 1 + sign + exponent;
                float = true;
            }
        }
        let spelling = &self.rest()[..end];
        self.at += end;
        Ok(match float {
            true => Json::Float(
                spelling
                    .parse()
                    .expect("the grammar of JSON numbers is Rust's"),
            ),
            false if spelling == "-0" => Json::Int("0".to_owned()),
            false => Json::Int(spelling.to_owned()),
        })
    }

    fn array(&mut self) -> Result<Json, String> {
        self.at += 1;
        self.skip_space();
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            self.skip_space();
            match self.peek() {
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(items));
                }
                Some(b',') => self.at += 1,
                _ => return Err(self.problem("Expecting ',' delimiter", self.at)),
            }
            self.skip_space();
        }
    }

    fn object(&mut self) -> Result<Json, String> {
        const NO_NAME: &str = "Expecting property name enclosed in double quotes";
        self.at += 1;
        self.skip_space();
        let mut pairs = Vec::new();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(pairs));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.problem(NO_NAME, self.at));
            }
            let key = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.problem("Expecting ':' delimiter", self.at));
            }
            self.at += 1;
            self.skip_space();
            let value = self.value()?;
            set(&mut pairs, key, value);
            self.skip_space();
            match self.peek() {
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Json::Object(pairs));
                }
                Some(b',') => self.at += 1,
                _ => return Err(self.problem("Expecting ',' delimiter", self.at)),
            }
            self.skip_space();
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else {
                return Err(self.problem("Unterminated string starting at", start));
            };
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(out);
                }
                '\\' => out.push(self.escape(start)?),
                c if c < ' ' => {
                    return Err(self.problem("Invalid control character at", self.at));
                }
                c => {
                    out.push(c);
                    self.at += c.len_utf8();
                }
            }
        }
    }

    fn escape(&mut self, string: usize) -> Result<char, String> {
        let slash = self.at;
        self.at += 1;
        let Some(c) = self.rest().chars().next() else {
            return Err(self.problem("Unterminated string starting at", string));
        };
        self.at += c.len_utf8();
        Ok(match c {
            '"' | '\\' | '/' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let high = self.hex()?;
                let pair = (0xd800..0xdc00).contains(&high) && self.rest().starts_with("\\u");
                if !pair {
                    return Ok(char::from_u32(high).unwrap_or('\u{fffd}'));
                }
                let resume = self.at;
                self.at += 2;
                let low = self.hex()?;
                if !(0xdc00..0xe000).contains(&low) {
                    self.at = resume;
                    return Ok('\u{fffd}');
                }
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                char::from_u32(code).unwrap_or('\u{fffd}')
            }
            _ => return Err(self.problem("Invalid \\escape", slash)),
        })
    }

    fn hex(&mut self) -> Result<u32, String> {
        // Python wants more of the text behind it, if only the closing quote.
        let digits = self.rest().get(..4).filter(|_| self.rest().len() > 4);
        let digits = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.problem("Invalid \\uXXXX escape", self.at - 1))?;
        self.at += 4;
        Ok(code)
    }
}

/// A key given twice keeps its first place and its last value, as in a Python dictionary.
pub(crate) fn set(pairs: &mut Vec<(String, Json)>, key: String, value: Json) {
    match pairs.iter_mut().find(|(name, _)| *name == key) {
        Some(pair) => pair.1 = value,
        None => pairs.push((key, value)),
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(digits) => match Whole::read(digits) {
                Some(Whole::I64(value)) => serializer.serialize_i64(value),
                Some(Whole::U64(value)) => serializer.serialize_u64(value),
                Some(Whole::I128(value)) => serializer.serialize_i128(value),
                Some(Whole::U128(value)) => serializer.serialize_u128(value),
                None => serializer.serialize_f64(digits.parse().unwrap_or(f64::NAN)),
            },
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::String(text) => serializer.serialize_str(text),
            Self::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Object(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_none<E: de::Error>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Json, D::Error> {
                Json::deserialize(inner)
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Int(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Json, E> {
                Ok(Json::Int(value.to_string()))
            }

            fn visit_i128<E: de::Error>(self, value: i128) -> Result<Json, E> {
                Ok(Json::Int(value.to_string()))
            }

            fn visit_u128<E: de::Error>(self, value: u128) -> Result<Json, E> {
                Ok(Json::Int(value.to_string()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Json, E> {
                Ok(Json::Float(value))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Json, E> {
                Ok(Json::from(text))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Json, E> {
                Ok(Json::String(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Json::Array(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut pairs = Vec::new();
                while let Some((key, value)) = map.next_entry()? {
                    set(&mut pairs, key, value);
                }
                Ok(Json::Object(pairs))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

/// The smallest of serde's numbers that holds a whole one; greater ones are floats to it.
enum Whole {
    I64(i64),
    U64(u64),
    I128(i128),
    U128(u128),
}

impl Whole {
    fn read(digits: &str) -> Option<Self> {
        let small = digits.parse().map(Self::I64).ok();
        small
            .or_else(|| digits.parse().map(Self::U64).ok())
            .or_else(|| digits.parse().map(Self::I128).ok())
            .or_else(|| digits.parse().map(Self::U128).ok())
    }
}

/// A value that is read into a type.
struct Source(Json);

impl<'de> Deserializer<'de> for Source {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(value),
            Json::Int(digits) => match Whole::read(&digits) {
                Some(Whole::I64(value)) => visitor.visit_i64(value),
                Some(Whole::U64(value)) => visitor.visit_u64(value),
                Some(Whole::I128(value)) => visitor.visit_i128(value),
                Some(Whole::U128(value)) => visitor.visit_u128(value),
                None => visitor.visit_f64(digits.parse().unwrap_or(f64::NAN)),
            },
            Json::Float(value) => visitor.visit_f64(value),
            Json::String(text) => visitor.visit_string(text),
            Json::Array(items) => {
                SeqDeserializer::new(items.into_iter().map(Source)).deserialize_any(visitor)
            }
            Json::Object(pairs) => {
                let pairs = pairs.into_iter().map(|(key, value)| (key, Source(value)));
                MapDeserializer::new(pairs).deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Json::Null => visitor.visit_none(),
            value => visitor.visit_some(Source(value)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    /// The name of a variant, or an object of the name and what belongs to it.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        match self.0 {
            Json::String(text) => text
                .into_deserializer()
                .deserialize_enum(name, variants, visitor),
            Json::Object(pairs) if pairs.len() == 1 => {
                let pairs = pairs.into_iter().map(|(key, value)| (key, Source(value)));
                MapAccessDeserializer::new(MapDeserializer::new(pairs))
                    .deserialize_enum(name, variants, visitor)
            }
            _ => {
                let problem = format!("expected one of {}", variants.join(", "));
                Err(de::Error::custom(problem))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl IntoDeserializer<'_> for Source {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Any serializable value as JSON, its fields in their order.
pub(crate) fn to_json(value: impl Serialize) -> Result<Json, String> {
    let text = serde_json::to_string(&value).map_err(|error| error.to_string())?;
    Json::parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        #[track_caller]
        fn check(text: &str, style: Style, expected: &str) {
            assert_eq!(Json::parse(text).unwrap().dump(style), expected);
        }
        let text = r#"{"b":[1,2.5,-0.0,1e16,1e-5,123456789012345678901],"a":"é\n\"/"}"#;
        let numbers = "[1, 2.5, -0.0, 1e+16, 1e-05, 123456789012345678901]";
        check(
            text,
            Style::PLAIN,
            &format!(r#"{{"b": {numbers}, "a": "é\n\"/"}}"#),
        );
        check(
            text,
            Style::ASCII,
            &format!(r#"{{"b": {numbers}, "a": "\u00e9\n\"/"}}"#),
        );
        let compact = r#"{"a":"é","b":{"c":null,"d":true}}"#;
        check(
            r#"{"b": {"d": true, "c": null}, "a": "é"}"#,
            Style::COMPACT_SORTED,
            compact,
        );
        check(r#""\ud83d\ude00""#, Style::ASCII, r#""\ud83d\ude00""#);
        check(
            r#"{"a": 1, "b": 2, "a": 3}"#,
            Style::PLAIN,
            r#"{"a": 3, "b": 2}"#,
        );
    }

    #[test]
    fn values_keep_their_numbers_on_the_way_through_serde() {
        #[track_caller]
        fn check(number: &str) {
            let value = Json::parse(&format!(r#"{{"a": [{number}]}}"#)).unwrap();
            let text = serde_json::to_string(&value).unwrap();
            assert_eq!(text, format!(r#"{{"a":[{number}]}}"#));
            assert_eq!(to_json(&value).unwrap(), value);
            assert_eq!(value.clone().convert::<Json>().unwrap(), value);
        }
        check("-9223372036854775808");
        check("18446744073709551615");
        check("-170141183460469231731687303715884105728");
        check("340282366920938463463374607431768211455");
        check("1.5");
    }

    #[test]
    fn problems_are_told_in_pythons_words() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(Json::parse(text).unwrap_err(), expected);
        }
        check("", "Expecting value: line 1 column 1 (char 0)");
        check(
            r#"{"a" 1}"#,
            "Expecting ':' delimiter: line 1 column 6 (char 5)",
        );
        check(
            "{\"é\":\n1 2}",
            "Expecting ',' delimiter: line 2 column 3 (char 8)",
        );
        let name = "Expecting property name enclosed in double quotes";
        check("{a: 1}", &format!("{name}: line 1 column 2 (char 1)"));
        check(r#"{"a": 1,}"#, &format!("{name}: line 1 column 9 (char 8)"));
        check(
            r#"["a"#,
            "Unterminated string starting at: line 1 column 2 (char 1)",
        );
        check("[1] 2", "Extra data: line 1 column 5 (char 4)");
        check(
            "\"\u{1}\"",
            "Invalid control character at: line 1 column 2 (char 1)",
        );
        check(r#""\x""#, "Invalid \\escape: line 1 column 2 (char 1)");
        check("-", "Expecting value: line 1 column 1 (char 0)");
        check(
            "\u{feff}{}",
            "Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)",
        );
        let escape = "Invalid \\uXXXX escape";
        check(
            r#""\u+123""#,
            &format!("{escape}: line 1 column 3 (char 2)"),
        );
        check(
            r#"["\u043b"#,
            &format!("{escape}: line 1 column 4 (char 3)"),
        );
    }

    #[test]
    fn what_is_no_printable_ascii_is_escaped() {
        let text = Json::from("~\u{7f}é\u{1f}");
        assert_eq!(text.dump(Style::ASCII), r#""~\u007f\u00e9\u001f""#);
        assert_eq!(text.dump(Style::PLAIN), "\"~\u{7f}é\\u001f\"");
    }

    #[test]
    fn values_become_types() {
        #[derive(Debug, PartialEq, Deserialize)]
        enum Kind {
            Plain,
            Pair(u8, f64),
            Named { a: Option<i128> },
        }
        #[track_caller]
        fn check(text: &str, expected: &[Kind]) {
            let kinds = Json::parse(text).and_then(Json::convert::<Vec<Kind>>);
            assert_eq!(kinds.unwrap(), expected);
        }
        check(
            r#"["Plain", {"Pair": [1, 2]}]"#,
            &[Kind::Plain, Kind::Pair(1, 2.0)],
        );
        let great = 1 << 100;
        check(
            &format!(r#"[{{"Named": {{"a": {great}}}}}, {{"Named": {{"a": null}}}}]"#),
            &[Kind::Named { a: Some(great) }, Kind::Named { a: None }],
        );
        assert!(Json::Null.convert::<Kind>().is_err());
    }
}
