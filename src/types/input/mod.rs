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
