//! Query strings, encoded as the reference does.

use serde_json::Value;

use crate::types::percent::{is_unreserved, percent_encode};

/// Encodes parameters in their order: form encoding, null and empty values dropped, lists joined
/// by commas, nested maps as `a[b]`.
pub(crate) fn encode(params: &[(&str, Value)]) -> String {
    let mut out = String::new();
    for (name, value) in params {
        push(&mut out, name, value);
    }
    out
}

fn push(out: &mut String, name: &str, value: &Value) {
    if let Value::Object(entries) = value {
        for (key, value) in entries {
            push(out, &format!("{name}[{key}]"), value);
        }
        return;
    }
    let text = text(value);
    if text.is_empty() {
        return;
    }
    if !out.is_empty() {
        out.push('&');
    }
    escape(out, name);
    out.push('=');
    escape(out, &text);
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items
                .iter()
                .filter(|item| !item.is_null())
                .map(text)
                .collect();
            items.join(",")
        }
        other => other.to_string(),
    }
}

/// Form encoding: a space becomes `+`, everything but unreserved characters `%XX`.
fn escape(out: &mut String, text: &str) {
    for (index, word) in text.split(' ').enumerate() {
        if index > 0 {
            out.push('+');
        }
        percent_encode(out, word, is_unreserved);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use serde::Deserialize;
    use serde::de::{Deserializer, MapAccess, Visitor};

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        params: Pairs,
        encoded: String,
    }

    /// A JSON object in the order of its text.
    struct Pairs(Vec<(String, Value)>);

    impl<'de> Deserialize<'de> for Pairs {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct InOrder;
            impl<'de> Visitor<'de> for InOrder {
                type Value = Pairs;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                    let mut pairs = Vec::new();
                    while let Some(pair) = map.next_entry()? {
                        pairs.push(pair);
                    }
                    Ok(Pairs(pairs))
                }
            }
            deserializer.deserialize_map(InOrder)
        }
    }

    #[test]
    fn encodes_as_the_reference_does() {
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../tests/fixtures/wire/query_strings.json"))
                .unwrap();
        for case in cases {
            let params: Vec<_> = case
                .params
                .0
                .iter()
                .map(|(k, v)| (k.as_str(), v.clone()))
                .collect();
            assert_eq!(encode(&params), case.encoded);
        }
    }
}
