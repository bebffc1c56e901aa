//! Vocabularies of other formats, written as the `tokenizer.json` that says the same.

pub(super) mod gguf;
pub(super) mod tiktoken;
#[cfg(feature = "local")]
pub(crate) mod to_gguf;

use serde_json::{Value, json};

/// Splits by a pattern, then spells bytes as letters.
fn byte_level(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| {
        json!({
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": false,
        })
    };
    let mut steps: Vec<Value> = patterns.iter().map(split).collect();
    steps.push(bytes(false));
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// `use_regex` asks for the pattern of GPT-2.
fn bytes(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": use_regex,
    })
}

fn added_token(id: usize, content: &str, special: bool) -> Value {
    json!({
        "id": id,
        "content": content,
        "special": special,
        "normalized": false,
        "lstrip": false,
        "rstrip": false,
        "single_word": false,
    })
}

/// Puts a token before every text.
fn beginning_with(token: &str, id: u64) -> Value {
    let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let first = json!({"SpecialToken": {"id": token, "type_id": 0}});
    json!({
        "type": "TemplateProcessing",
        "single": [first, sequence("A")],
        "pair": [first, sequence("A"), sequence("B")],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    })
}

/// The letters byte-level vocabularies spell bytes with: printable ones stand for themselves.
fn letters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| {
        let byte = u8::try_from(byte).expect("an index below 256");
        match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("a letter of the Latin blocks")
            }
        }
    })
}
