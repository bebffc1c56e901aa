//! The short calls: what a script does with one answer.

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use crate::types::{SampleResponse, SampledSequence};

impl SampledSequence {
    /// The text of the sequence, without special tokens.
    ///
    /// # Errors
    ///
    /// If a token is none of this tokenizer.
    pub fn text(&self, tokenizer: &Tokenizer) -> Result<String> {
        tokenizer.decode_plain(&self.tokens)
    }
}

impl SampleResponse {
    /// The text of the first sequence, without special tokens.
    ///
    /// ```
    /// use tinker::text::Tokenizer;
    /// use tinker::types::{SampleResponse, SampledSequence, StopReason};
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let tokens = tokenizer.encode_plain("the cat sat<|end|>")?;
    /// let sequence = SampledSequence::new(StopReason::Stop, tokens);
    /// let response = SampleResponse::new(vec![sequence]);
    /// assert_eq!(response.text(&tokenizer)?, "the cat sat");
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no sequence, or a token is none of this tokenizer.
    pub fn text(&self, tokenizer: &Tokenizer) -> Result<String> {
        let first = self.first();
        let first = first.ok_or_else(|| Error::invalid("sequences", "there is none"))?;
        first.text(tokenizer)
    }
}
