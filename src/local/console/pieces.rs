//! Tokens as pieces of text that can be shown: whole characters, each with the tokens behind it.

use std::ops::Range;

use crate::error::Result;
use crate::text::Tokenizer;

/// A piece of text and which tokens it stands for.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::local) struct Piece {
    pub(in crate::local) text: String,
    pub(in crate::local) tokens: Range<usize>,
}

/// Cuts tokens into pieces: mostly one each, several where they make one character together.
pub(in crate::local) fn pieces(tokenizer: &Tokenizer, tokens: &[i32]) -> Result<Vec<Piece>> {
    let mut stream = tokenizer.decode_stream();
    let mut pieces = Vec::new();
    let mut start = 0;
    for (index, token) in tokens.iter().enumerate() {
        if let Some(text) = stream.push(*token)?.filter(|text| !text.is_empty()) {
            let tokens = start..index + 1;
            start = tokens.end;
            pieces.push(Piece { text, tokens });
        }
    }
    let rest = stream.finish()?;
    if start < tokens.len() {
        pieces.push(Piece {
            text: rest,
            tokens: start..tokens.len(),
        });
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::engine::builtin;

    #[test]
    fn characters_stay_whole() {
        let config = Some(builtin::TOKENIZER_CONFIG);
        let tokenizer = Tokenizer::from_json(builtin::TOKENIZER.as_bytes(), config).unwrap();
        let tokens = tokenizer.encode_plain("<|im_start|>aé!").unwrap();
        let texts: Vec<(String, Range<usize>)> = pieces(&tokenizer, &tokens)
            .unwrap()
            .into_iter()
            .map(|piece| (piece.text, piece.tokens))
            .collect();
        let expected = [
            ("<|im_start|>", 0..1),
            ("a", 1..2),
            ("é", 2..4),
            ("!", 4..5),
        ];
        assert_eq!(
            texts,
            expected.map(|(text, tokens)| (text.to_owned(), tokens))
        );
        let cut = pieces(&tokenizer, &tokens[..3]).unwrap();
        assert_eq!(cut.last().unwrap().tokens, 2..3, "half a character");
    }
}
