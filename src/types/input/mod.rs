//! Model inputs: sequences of text, image and audio chunks.

mod chunk;
mod dmel;
mod json;
mod tokens;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub use chunk::{Chunk, EncodedTextChunk, ImageAssetPointerChunk, ImageChunk, ImageFormat};
pub use dmel::DmelChunk;
pub use tokens::Tokens;

/// What a model reads: chunks of tokens, images and audio, in order.
///
/// ```
/// use tinker::ModelInput;
///
/// let prompt = ModelInput::from_ints(vec![1, 2, 3]).append_ints([4]);
/// assert_eq!(prompt.length()?, 4);
/// assert_eq!(prompt.to_ints()?, [1, 2, 3, 4]);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInput {
    chunks: Vec<Chunk>,
}

impl ModelInput {
    /// An input without chunks, to append to.
    pub fn empty() -> Self {
        Self::default()
    }

    /// An input of these token ids; a `Vec<i32>` is not copied.
    #[doc(alias = "from_tokens")]
    pub fn from_ints(tokens: impl Into<Tokens>) -> Self {
        Self {
            chunks: vec![Chunk::tokens(tokens)],
        }
    }

    /// An input of token ids of another integer type, checked to fit.
    ///
    /// # Errors
    ///
    /// If an id does not fit 32 signed bits.
    ///
    /// ```
    /// let ids: Vec<u32> = vec![15496, 995];
    /// let prompt = tinker::ModelInput::try_from_ints(ids)?;
    /// assert_eq!(prompt.length()?, 2);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn try_from_ints(tokens: impl TryInto<Tokens, Error = Error>) -> Result<Self> {
        Ok(Self::from_ints(tokens.try_into()?))
    }

    /// An input of these chunks.
    pub fn from_chunks(chunks: impl Into<Vec<Chunk>>) -> Self {
        Self {
            chunks: chunks.into(),
        }
    }

    /// The input with a chunk added at its end.
    #[must_use]
    pub fn append(mut self, chunk: Chunk) -> Self {
        self.chunks.push(chunk);
        self
    }

    /// The input with a chunk of token ids added at its end.
    #[doc(alias = "append_int")]
    #[must_use]
    pub fn append_ints(self, tokens: impl Into<Tokens>) -> Self {
        self.append(Chunk::tokens(tokens))
    }

    /// The chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// How many tokens the input takes in the model's context.
    ///
    /// # Errors
    ///
    /// If it holds an image without expected tokens, or a malformed audio chunk.
    pub fn length(&self) -> Result<usize> {
        self.chunks
            .iter()
            .enumerate()
            .try_fold(0usize, |sum, (index, chunk)| {
                let length = chunk
                    .length()
                    .map_err(|error| error.within(&format!("chunks[{index}]")))?;
                Ok(sum.saturating_add(length))
            })
    }

    /// All token ids in one vector.
    ///
    /// # Errors
    ///
    /// If a chunk is not text.
    pub fn to_ints(&self) -> Result<Vec<i32>> {
        let mut tokens = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Chunk::EncodedText(text) = chunk else {
                return Err(Error::invalid(
                    format!("chunks[{index}]"),
                    "is not text; only an input of text chunks is a list of tokens",
                ));
            };
            tokens.extend_from_slice(&text.tokens);
        }
        Ok(tokens)
    }

    /// Estimated bytes of the input in a training request: four per token, images and audio as
    /// they are.
    pub fn byte_estimate(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.byte_estimate(4)).sum()
    }

    /// Estimated bytes of the input in a sampling request, where tokens are written as text:
    /// ten per token.
    pub fn sampling_byte_estimate(&self) -> usize {
        self.chunks
            .iter()
            .map(|chunk| chunk.byte_estimate(10))
            .sum()
    }
}

impl From<Vec<i32>> for ModelInput {
    fn from(tokens: Vec<i32>) -> Self {
        Self::from_ints(tokens)
    }
}

impl From<Tokens> for ModelInput {
    fn from(tokens: Tokens) -> Self {
        Self::from_ints(tokens)
    }
}

impl From<&ModelInput> for ModelInput {
    fn from(input: &ModelInput) -> Self {
        input.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_over_and_checked() {
        let ids: Vec<u32> = vec![1, 2, i32::MAX as u32];
        let address = ids.as_ptr().cast::<i32>();
        let tokens = Tokens::try_from(ids).unwrap();
        assert_eq!(tokens.as_ptr(), address);
        assert_eq!(
            Tokens::try_from(vec![1, u32::MAX]).unwrap_err().to_string(),
            "invalid tokens[1]: 4294967295 does not fit 32 signed bits"
        );
        assert!(Tokens::try_from(vec![i64::from(i32::MIN) - 1]).is_err());
    }

    #[test]
    fn the_length_counts_every_chunk_or_says_which_is_unknown() {
        let image = Chunk::image(vec![1, 2], ImageFormat::Jpeg);
        let input = ModelInput::from_ints([1, 2])
            .append(image.clone().with_expected_tokens(64))
            .append(Chunk::dmel(vec![3, 2, 5, 8]).unwrap());
        assert_eq!(input.length().unwrap(), 2 + 64 + 5);
        assert_eq!(
            input.to_ints().unwrap_err().to_string(),
            "invalid chunks[1]: is not text; only an input of text chunks is a list of tokens"
        );
        assert_eq!(
            input.append(image).length().unwrap_err().to_string(),
            "invalid chunks[3].expected_tokens: must be given for an image, to know the length \
             of the input"
        );
    }

    #[test]
    fn audio_needs_a_header() {
        #[track_caller]
        fn check(bytes: &[u8], expected: &str) {
            let problem = Chunk::dmel(bytes.to_vec()).unwrap_err().to_string();
            assert_eq!(problem, format!("invalid dmel: {expected}"));
        }
        check(&[], "not a tensor container: empty");
        check(&[254], "not a tensor container: empty");
        check(&[8, 1, 1], "not a tensor container: unknown dtype");
        check(&[3, 2, 5], "not a tensor container: truncated header");
        check(&[3, 0], "the tensor has no dimension");
        let long = [&[3, 1], &[0xff; 10][..], &[1]].concat();
        check(&long, "not a tensor container: a number is too long");
    }
}
