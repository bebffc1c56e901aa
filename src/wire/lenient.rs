//! Answers whose numbers are spelt otherwise, read as the official SDK reads them.
//!
//! `"300"` and `300.0` are whole numbers there, `"0.5"` is a number, `1` and `"yes"` are true. Text
//! is always text.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde_json::{Error, Number, Value};

/// A value that is read for what is wanted of it.
pub(super) struct Lenient(pub(super) Value);

impl Lenient {
    fn whole(self) -> Value {
        let number = match &self.0 {
            Value::Bool(truth) => Some(Number::from(u8::from(*truth))),
            Value::Number(number) => number.as_f64().filter(|_| number.is_f64()).and_then(whole),
            Value::String(text) => {
                let text = spelt(text);
                let (digits, fraction) = text.split_once('.').unwrap_or((&text, "0"));
                let is_whole = !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0');
                let unsigned = digits.parse::<u64>().map(Number::from).ok();
                let number = unsigned.or_else(|| digits.parse::<i64>().map(Number::from).ok());
                number.filter(|_| is_whole)
            }
            _ => None,
        };
        number.map_or(self.0, Value::Number)
    }

    fn fraction(self) -> Value {
        let number = match &self.0 {
            Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
            Value::String(text) => spelt(text).parse().ok(),
            _ => None,
        };
        // JSON has no word for what is not finite.
        let number = number.and_then(Number::from_f64);
        number.map_or(self.0, Value::Number)
    }

    fn truth(self) -> Value {
        let truth = match &self.0 {
            Value::Number(number) => match number.as_f64() {
                Some(0.0) => Some(false),
                Some(1.0) => Some(true),
                _ => None,
            },
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
                "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
                _ => None,
            },
            _ => None,
        };
        truth.map_or(self.0, Value::Bool)
    }
}

/// A number's text without what Python lets stand in it.
fn spelt(text: &str) -> String {
    text.trim().replace('_', "")
}

/// A number without a fraction.
fn whole(number: f64) -> Option<Number> {
    let is_whole = number.fract() == 0.0 && (-9.2e18..1.8e19).contains(&number);
    is_whole.then(|| match number < 0.0 {
        true => Number::from(number as i64),
        false => Number::from(number as u64),
    })
}

impl IntoDeserializer<'_, Error> for Lenient {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Methods that read a value for what their names say.
macro_rules! read {
    ($($method:ident by $reading:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.$reading().deserialize_any(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Lenient {
    type Error = Error;

    read! {
        deserialize_i8 by whole; deserialize_i16 by whole; deserialize_i32 by whole;
        deserialize_i64 by whole; deserialize_i128 by whole; deserialize_u8 by whole;
        deserialize_u16 by whole; deserialize_u32 by whole; deserialize_u64 by whole;
        deserialize_u128 by whole; deserialize_f32 by fraction; deserialize_f64 by fraction;
        deserialize_bool by truth;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(list) => {
                visitor.visit_seq(SeqDeserializer::new(list.into_iter().map(Lenient)))
            }
            Value::Object(map) => {
                let entries = map.into_iter().map(|(name, value)| (name, Lenient(value)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::super::reply::decode_json;
    use super::*;

    #[track_caller]
    fn check<T: DeserializeOwned + Debug + PartialEq>(
        readable: &[(Value, T)],
        unreadable: &[Value],
    ) {
        let read = |value: &Value| decode_json::<T>(&serde_json::to_vec(value).unwrap());
        for (value, expected) in readable {
            assert_eq!(read(value).unwrap(), *expected, "{value}");
        }
        for value in unreadable {
            assert!(read(value).is_err(), "{value}");
        }
    }

    /// What pydantic 2 makes of each.
    #[test]
    fn numbers_are_read_however_they_are_spelt() {
        let whole = ["300", " 300 ", "300.0", "3_00", "+300"].map(|text| (json!(text), 300u64));
        let not = ["3e2", "", "x", "300.", "300.5", "inf", "-300"].map(Value::from);
        check(&whole, &not);
        check(&[(json!(300.0), 300u32), (json!(true), 1)], &[json!(300.5)]);
        check(&[(json!("-5"), -5i64), (json!(-5.0), -5)], &[json!(1e300)]);
        check::<u64>(&[], &[json!(1e300), json!([1]), json!(null), json!({})]);
        let floats = [("300", 300.0), ("3e2", 300.0), ("-0.5", -0.5)];
        let floats = floats.map(|(text, number)| (json!(text), number));
        check::<f64>(&floats, &["", "x"].map(Value::from));
        let truths = [json!(1), json!(1.0), json!("TRUE"), json!("yes")].map(|value| (value, true));
        check(&truths, &[json!(2), json!("300"), json!("")]);
        check(&[(json!(0), false), (json!("off"), false)], &[]);
        check::<String>(&[(json!("300"), "300".into())], &[json!(300), json!(true)]);
    }

    /// Within lists, maps, options and types that wrap one.
    #[test]
    fn numbers_are_read_wherever_they_are() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Wrapped(u8);
        #[derive(Debug, PartialEq, Deserialize)]
        struct Answer {
            limit: Option<u64>,
            #[serde(default)]
            wrapped: Vec<Wrapped>,
            name: String,
        }
        let answer = json!({"limit": "7", "wrapped": [1, "2", 3.0], "name": "4", "other": {}});
        let wrapped = [1, 2, 3].map(Wrapped).into();
        let name = "4".to_owned();
        let limit = Some(7);
        check(
            &[(
                answer,
                Answer {
                    limit,
                    wrapped,
                    name,
                },
            )],
            &[],
        );
        check::<Wrapped>(&[], &[json!("256"), json!(-1.0)]);
    }
}
