//! Tokens as bytes and back, and the tokenizer folder clients load.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::disk;
use crate::error::Result;

/// The markers after the 256 bytes, in the order of their ids.
const MARKERS: [&str; 8] = [
    "<|bos|>",
    "<|eos|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|pad|>",
    "<|marker_5|>",
    "<|marker_6|>",
    "<|marker_7|>",
];

const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// What a model's tokens stand for.
#[derive(Debug)]
pub(super) enum Vocabulary {
    /// One token per byte, then the markers.
    Bytes,
    /// A tokenizer read from a model's folder.
    #[cfg(feature = "text")]
    Tokenizer(Box<tokenizers::Tokenizer>),
    /// No tokenizer: tokens stay numbers.
    #[cfg(not(feature = "text"))]
    Numbers,
}

impl Vocabulary {
    /// The tokenizer of a model's folder.
    #[cfg(feature = "text")]
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        let tokenizer = tokenizers::Tokenizer::from_file(&file).map_err(|error| {
            let message = format!("cannot read {}: {error}", file.display());
            crate::Error::Config(crate::error::Context::new(message))
        })?;
        Ok(Self::Tokenizer(Box::new(tokenizer)))
    }

    #[cfg(not(feature = "text"))]
    pub(super) fn load(_: &Path) -> Result<Self> {
        Ok(Self::Numbers)
    }

    /// The text of tokens as bytes: a byte-level token may be half a character.
    pub(super) fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Self::Bytes => tokens
                .iter()
                .filter_map(|token| u8::try_from(*token).ok())
                .collect(),
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => tokenizer
                .decode(tokens, true)
                .unwrap_or_default()
                .into_bytes(),
            #[cfg(not(feature = "text"))]
            Self::Numbers => Vec::new(),
        }
    }

    /// The tokens of a text; `None` if this server cannot tell.
    pub(super) fn encode(&self, text: &str) -> Option<Vec<u32>> {
        match self {
            Self::Bytes => Some(encode_bytes(text)),
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let encoding = tokenizer.encode(text, false).ok()?;
                Some(encoding.get_ids().to_vec())
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => None,
        }
    }
}

/// Bytes as they are, except where a marker is spelt out.
fn encode_bytes(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    'text: while !rest.is_empty() {
        for (index, marker) in MARKERS.iter().enumerate() {
            if let Some(after) = rest.strip_prefix(marker) {
                tokens.push(256 + index as u32);
                rest = after;
                continue 'text;
            }
        }
        let length = rest.chars().next().map_or(1, char::len_utf8);
        tokens.extend(rest.bytes().take(length).map(u32::from));
        rest = &rest[length..];
    }
    tokens
}

/// Writes the byte-level tokenizer in the form `transformers` and `tokenizers` read.
pub(super) fn write_tokenizer(root: &Path) -> Result<PathBuf> {
    let folder = root.join("tokenizer");
    disk::write_json(&folder.join("tokenizer.json"), &tokenizer_json())?;
    disk::write_json(
        &folder.join("tokenizer_config.json"),
        &json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": MARKERS[0],
            "eos_token": MARKERS[1],
            "pad_token": MARKERS[4],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": false,
            "model_max_length": 4096,
        }),
    )?;
    Ok(folder)
}

fn tokenizer_json() -> Value {
    let vocab: Map<String, Value> = byte_characters()
        .enumerate()
        .map(|(byte, character)| (character.to_string(), json!(byte)))
        .collect();
    let added: Vec<Value> = MARKERS
        .iter()
        .enumerate()
        .map(|(index, marker)| {
            json!({
                "id": 256 + index,
                "content": marker,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": true,
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": false,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": false,
        },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [],
        },
    })
}

/// The printable character byte-level tokenizers write for each byte.
fn byte_characters() -> impl Iterator<Item = char> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256).map(move |byte| {
        let code = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_markers_round_trip() {
        let text = "<|im_start|>user\né<|im_end|>";
        let tokens = encode_bytes(text);
        assert_eq!(tokens[0], 258);
        assert_eq!(tokens.last(), Some(&259));
        assert_eq!(Vocabulary::Bytes.decode(&tokens), "user\né".as_bytes());
    }

    #[cfg(feature = "text")]
    #[test]
    fn the_written_tokenizer_agrees() {
        let folder = tempfile::tempdir().unwrap();
        let written = write_tokenizer(folder.path()).unwrap();
        let tokenizer = tokenizers::Tokenizer::from_file(written.join("tokenizer.json")).unwrap();
        for text in [
            "plain text, 1 2 3",
            "<|bos|>é\u{1F600}\n\t<|eos|>",
            "  spaces  ",
        ] {
            let encoding = tokenizer.encode(text, false).unwrap();
            assert_eq!(encoding.get_ids(), encode_bytes(text), "{text:?}");
            assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
        }
    }
}
