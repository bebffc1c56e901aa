//! Tokens as text and back, and the folder clients load the tokenizer from.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::local::engine::builtin;
use crate::local::state::disk;
#[cfg(feature = "text")]
use crate::text::Tokenizer;

/// The built-in model's markers as they are spelt in texts.
const MARKERS: [(&str, u32); 5] = [
    ("<|bos|>", builtin::BOS),
    ("<|eos|>", builtin::EOS),
    ("<|pad|>", builtin::PAD),
    ("<|im_start|>", builtin::IM_START),
    ("<|im_end|>", builtin::IM_END),
];

/// What a model's tokens stand for.
#[derive(Debug)]
pub(in crate::local) enum Vocabulary {
    /// One token per byte, then the markers.
    Bytes,
    /// A tokenizer read from a model's folder.
    #[cfg(feature = "text")]
    Tokenizer(Tokenizer),
    /// No tokenizer: tokens stay numbers.
    #[cfg(not(feature = "text"))]
    Numbers,
}

impl Vocabulary {
    /// The tokenizer of a model's folder.
    #[cfg(feature = "text")]
    pub(in crate::local) fn load(folder: &Path) -> Result<Self> {
        Tokenizer::open(folder).map(Self::Tokenizer)
    }

    #[cfg(not(feature = "text"))]
    pub(in crate::local) fn load(_: &Path) -> Result<Self> {
        Ok(Self::Numbers)
    }

    /// The text of tokens as bytes: a byte-level token may be half a character.
    pub(in crate::local) fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        match self {
            Self::Bytes => builtin::decode(tokens),
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let tokens: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
                tokenizer
                    .decode_plain(&tokens)
                    .unwrap_or_default()
                    .into_bytes()
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => Vec::new(),
        }
    }

    /// The tokens of a text that begins there: with the mark that the tokenizer puts first.
    pub(in crate::local) fn encode_start(&self, text: &str) -> Option<Vec<u32>> {
        match self {
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let mut tokens = self.encode(text)?;
                let with_marks = tokenizer.encode(text).ok()?;
                let bos = tokenizer
                    .bos_id()
                    .filter(|bos| with_marks.first() == Some(bos));
                let bos = bos.map(i32::cast_unsigned);
                if let Some(bos) = bos.filter(|bos| tokens.first() != Some(bos)) {
                    tokens.insert(0, bos);
                }
                Some(tokens)
            }
            _ => self.encode(text),
        }
    }

    /// The special token that is spelt so. Its text never appears in a sample's.
    pub(in crate::local) fn special(&self, text: &str) -> Option<u32> {
        match self {
            Self::Bytes => {
                let marker = MARKERS.iter().find(|(marker, _)| *marker == text);
                marker.map(|(_, token)| *token)
            }
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let mut tokens = tokenizer.special_tokens().into_iter();
                let found = tokens.find(|(_, content)| content == text);
                found.map(|(id, _)| id.cast_unsigned())
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => None,
        }
    }

    /// What turns a growing sample into text, token by token.
    pub(in crate::local) fn decoder(&self) -> Decoder {
        match self {
            Self::Bytes => Decoder::Bytes,
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let stream = tokenizer.decode_stream().skip_special_tokens();
                Decoder::Stream(Box::new(stream))
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => Decoder::Numbers,
        }
    }

    /// The tokens of a text; `None` if this server cannot tell.
    pub(in crate::local) fn encode(&self, text: &str) -> Option<Vec<u32>> {
        match self {
            Self::Bytes => Some(encode_bytes(text)),
            #[cfg(feature = "text")]
            Self::Tokenizer(tokenizer) => {
                let tokens = tokenizer.encode_plain(text).ok()?;
                Some(tokens.into_iter().map(i32::cast_unsigned).collect())
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => None,
        }
    }
}

/// The text of a sample as it grows: the work for a token does not depend on how many came before.
pub(in crate::local) enum Decoder {
    Bytes,
    #[cfg(feature = "text")]
    Stream(Box<crate::text::DecodeStream>),
    #[cfg(not(feature = "text"))]
    Numbers,
}

impl Decoder {
    /// The bytes that a token adds to the text, as far as they are certain.
    pub(in crate::local) fn push(&mut self, token: u32) -> Vec<u8> {
        match self {
            Self::Bytes => builtin::decode(&[token]),
            #[cfg(feature = "text")]
            Self::Stream(stream) => {
                let text = stream.push(token as i32).ok().flatten();
                text.unwrap_or_default().into_bytes()
            }
            #[cfg(not(feature = "text"))]
            Self::Numbers => Vec::new(),
        }
    }

    /// What was held back for more tokens.
    pub(in crate::local) fn finish(self) -> Vec<u8> {
        match self {
            #[cfg(feature = "text")]
            Self::Stream(stream) => stream.finish().unwrap_or_default().into_bytes(),
            _ => Vec::new(),
        }
    }
}

/// Bytes as they are, except where a marker is spelt out.
fn encode_bytes(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let marker = MARKERS.iter().find(|(marker, _)| rest.starts_with(marker));
        let length = match marker {
            Some((marker, token)) => {
                tokens.push(*token);
                marker.len()
            }
            None => {
                let character = &rest[..first.len_utf8()];
                tokens.extend(builtin::encode(character));
                character.len()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

/// Puts the built-in model where other programs can load it: its tokenizer, and the base that
/// exported adapters belong to. Files that are there and say something else are not touched: the
/// model goes into another folder then.
pub(in crate::local) fn write_builtin(root: &Path) -> Result<PathBuf> {
    let files = [
        ("config.json", builtin::CONFIG.as_bytes()),
        ("model.safetensors", builtin::WEIGHTS),
        ("tokenizer.json", builtin::TOKENIZER.as_bytes()),
        (
            "tokenizer_config.json",
            builtin::TOKENIZER_CONFIG.as_bytes(),
        ),
    ];
    let suits = |folder: &PathBuf| {
        files.iter().all(|(name, content)| {
            let file = folder.join(name);
            !file.exists() || std::fs::read(file).is_ok_and(|there| there == *content)
        })
    };
    let numbered = (2..).map(|number| root.join(format!("model-{number}")));
    let mut folders = std::iter::once(root.join("model")).chain(numbered);
    let folder = folders.find(suits).expect("some number is not taken");
    for (name, content) in files {
        let file = folder.join(name);
        if !file.exists() {
            disk::write(&file, content)?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_markers_round_trip() {
        let text = "<|im_start|>user\né<|im_end|>";
        let tokens = encode_bytes(text);
        assert_eq!(tokens[0], builtin::IM_START);
        assert_eq!(tokens.last(), Some(&builtin::IM_END));
        assert_eq!(Vocabulary::Bytes.decode(&tokens), "user\né".as_bytes());
    }

    #[cfg(feature = "text")]
    #[test]
    fn the_written_tokenizer_agrees() {
        let folder = tempfile::tempdir().unwrap();
        let written = write_builtin(folder.path()).unwrap();
        let Vocabulary::Tokenizer(tokenizer) = Vocabulary::load(&written).unwrap() else {
            panic!("a folder has a tokenizer");
        };
        for text in [
            "plain text, 1 2 3",
            "<|bos|>é\u{1F600}\n\t<|eos|>",
            "  spaces  ",
        ] {
            let tokens = tokenizer.encode_plain(text).unwrap();
            let expected = encode_bytes(text).into_iter().map(u32::cast_signed);
            assert_eq!(tokens, expected.collect::<Vec<_>>(), "{text:?}");
            assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        }
    }
}
