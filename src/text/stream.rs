//! Text as its tokens arrive.

use std::ops::Range;

use super::Tokenizer;
use crate::error::Result;

/// Turns tokens into text one by one, holding back what is not yet a whole character.
///
/// Tokens may end in the middle of a character; the text given out never does. A long answer
/// takes time in proportion to its length: only the last few tokens are looked at again.
///
/// ```
/// use tinker::text::Tokenizer;
///
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let mut stream = tokenizer.decode_stream();
/// let mut text = String::new();
/// for token in tokenizer.encode_plain("the cat sat")? {
///     text += &stream.push(token)?.unwrap_or_default();
/// }
/// text += &stream.finish()?;
/// assert_eq!(text, "the cat sat");
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    /// The last token whose text was given out, if any: some tokenizers drop the space of a
    /// first word, so what follows must not be decoded as if it came first.
    before: Option<i32>,
    /// Tokens whose text ends within a character.
    waiting: Vec<i32>,
    decoded: u64,
}

/// No character has more bytes, and no token fewer than one.
const LONGEST_CHARACTER: usize = 4;

const REPLACEMENT: char = '\u{fffd}';

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            skip_special_tokens: false,
            before: None,
            waiting: Vec::new(),
            decoded: 0,
        }
    }

    /// Leaves special tokens out of the text. Default: they are spelled out.
    #[must_use]
    pub fn skip_special_tokens(mut self) -> Self {
        self.skip_special_tokens = true;
        self
    }

    /// Takes the next token and gives the text it completes; `None` while it waits for the rest
    /// of a character.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token; the stream is as it was before.
    pub fn push(&mut self, token: i32) -> Result<Option<String>> {
        self.tokenizer.check_id("token", token)?;
        self.waiting.push(token);
        let count = self.waiting.len();
        let text = self.text(self.before, 0..count)?;
        if !text.ends_with(REPLACEMENT) {
            return Ok(Some(self.give_out(count, text)));
        }
        if count <= 2 * LONGEST_CHARACTER {
            return Ok(None);
        }
        // So many tokens cannot be one character: they are bytes that make no text. All but the
        // last few go out, as they would at the end of the stream.
        for given in count - LONGEST_CHARACTER + 1..count {
            let head = self.text(self.before, 0..given)?;
            let tail = self.text(Some(self.waiting[given - 1]), given..count)?;
            if text.strip_prefix(&head) == Some(&tail) {
                return Ok(Some(self.give_out(given, head)));
            }
        }
        Ok(Some(self.give_out(count, text)))
    }

    /// Ends the stream and gives what is left; half a character becomes `\u{fffd}`.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot join the pieces.
    pub fn finish(mut self) -> Result<String> {
        self.text(self.before, 0..self.waiting.len())
    }

    /// How many tokens were decoded so far, repetitions included: the work done.
    #[doc(hidden)]
    pub fn decoded_tokens(&self) -> u64 {
        self.decoded
    }

    fn give_out(&mut self, count: usize, text: String) -> String {
        self.before = self.waiting[..count].last().copied();
        self.waiting.drain(..count);
        text
    }

    /// The text of some waiting tokens, given the token before them.
    fn text(&mut self, before: Option<i32>, range: Range<usize>) -> Result<String> {
        let start = before.iter().len();
        let mut tokens = Vec::from_iter(before);
        tokens.extend_from_slice(&self.waiting[range]);
        let all = self.decode(&tokens)?;
        let known = self.decode(&tokens[..start])?;
        match all.strip_prefix(&known) {
            Some(text) => Ok(text.to_owned()),
            // On its own the token before reads differently, so it says nothing about the rest.
            None => self.decode(&tokens[start..]),
        }
    }

    fn decode(&mut self, tokens: &[i32]) -> Result<String> {
        self.decoded += tokens.len() as u64;
        match self.skip_special_tokens {
            true => self.tokenizer.decode_plain(tokens),
            false => self.tokenizer.decode(tokens),
        }
    }
}
