//! tiktoken's format: a line per token, its bytes in Base64 and its rank.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{added_token, byte_level, bytes, letters};

/// How Moonshot's models split text into words. Han characters stand apart from other letters.
pub(in crate::text) const KIMI_PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// How many ids Moonshot's models keep for special tokens after the others.
const KIMI_SPECIAL: usize = 256;

/// The special tokens of one of Moonshot's models: those its configuration names
/// (`added_tokens_decoder`), and reserved ones in between.
pub(in crate::text) fn kimi_special_tokens(
    ranks: usize,
    config: &Map<String, Value>,
) -> Vec<(usize, String, bool)> {
    let named = |id: usize| config.get("added_tokens_decoder")?.get(id.to_string());
    (ranks..ranks + KIMI_SPECIAL)
        .map(|id| {
            let entry = named(id);
            let content = entry.and_then(|entry| entry["content"].as_str());
            let special = entry.and_then(|entry| entry["special"].as_bool());
            match content {
                Some(content) => (id, content.to_owned(), special.unwrap_or(true)),
                None => (id, format!("<|reserved_token_{id}|>"), true),
            }
        })
        .collect()
}

/// The tokens of a file by rank.
pub(in crate::text) fn read(text: &[u8]) -> Result<Vec<(Vec<u8>, usize)>, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = line.split_once(' ').and_then(|(token, rank)| {
            Some((STANDARD.decode(token).ok()?, rank.trim().parse().ok()?))
        });
        tokens.push(parsed.ok_or_else(|| {
            let line = index + 1;
            format!("line {line} is not a token in Base64 and its rank")
        })?);
    }
    match tokens.is_empty() {
        true => Err("it has no tokens".to_owned()),
        false => Ok(tokens),
    }
}

/// The `tokenizer.json` of such a vocabulary.
pub(in crate::text) fn to_json(
    tokens: &[(Vec<u8>, usize)],
    pattern: &str,
    special: &[(usize, String, bool)],
) -> Value {
    let letters = letters();
    let spell = |bytes: &[u8]| -> String {
        bytes
            .iter()
            .map(|byte| letters[usize::from(*byte)])
            .collect()
    };
    let mut vocabulary: Map<String, Value> = tokens
        .iter()
        .map(|(bytes, rank)| (spell(bytes), json!(rank)))
        .collect();
    // An added token takes the id the model knows it by.
    for (id, content, _) in special {
        vocabulary.insert(content.clone(), json!(id));
    }
    let merges: Vec<Value> = merges(tokens)
        .into_iter()
        .map(|(left, right)| json!([spell(left), spell(right)]))
        .collect();
    let added: Vec<Value> = special
        .iter()
        .map(|(id, content, special)| added_token(*id, content, *special))
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level(&[pattern]),
        "decoder": bytes(false),
        // A word that is a token is taken as it is, whether merges lead there or not.
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": true},
    })
}

/// tiktoken joins the neighbours that make the token of the lowest rank. As merges that is every
/// way to split a token into two others, in the order of the ranks.
fn merges(tokens: &[(Vec<u8>, usize)]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> = tokens
        .iter()
        .map(|(bytes, rank)| (bytes.as_slice(), *rank))
        .collect();
    let mut merges = Vec::new();
    for (bytes, rank) in tokens {
        for at in 1..bytes.len() {
            let (left, right) = bytes.split_at(at);
            if let (Some(a), Some(b)) = (ranks.get(left), ranks.get(right)) {
                merges.push(((*rank, *a, *b), (left, right)));
            }
        }
    }
    merges.sort_unstable_by_key(|(order, _)| *order);
    merges.into_iter().map(|(_, pair)| pair).collect()
}
