//! What a model says, shown while it comes.

use super::super::stream::DecodeStream;
use super::{Parsed, Renderer, Termination};
use crate::error::{Error, Result};
use crate::types::Stop;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Reads a message token by token: text and thinking apart, and the whole message at the end.
///
/// Nothing is given out that may turn out to be half a character or half a tag. Calls of tools
/// are text until the message is whole.
///
/// ```
/// use tinker::text::{Delta, Renderer, Tokenizer};
///
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let renderer = Renderer::from_template(&tokenizer)?;
/// let mut stream = renderer.parse_stream()?;
/// let mut said = String::new();
/// for token in tokenizer.encode_plain("the cat sat<|end|>")? {
///     for delta in stream.push(token)? {
///         match delta {
///             Delta::Text(text) => said += &text,
///             Delta::Thinking(text) => eprint!("{text}"),
///         }
///     }
/// }
/// let (rest, parsed) = stream.finish()?;
/// assert_eq!((said.as_str(), rest.len()), ("the cat sat", 0));
/// assert!(parsed.termination.is_clean());
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ParseStream {
    renderer: Renderer,
    stops: Vec<i32>,
    /// The tokens of a block that the prompt has opened, until it is known whether the model
    /// opens it once more.
    opening: Option<Vec<i32>>,
    decoder: DecodeStream,
    tokens: Vec<i32>,
    /// How many of them are in the text.
    decoded: usize,
    /// Text that is not given out yet.
    held: String,
    thinks: bool,
    has_ended: bool,
}

/// What has been added to a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Delta {
    /// More of what it says.
    Text(String),
    /// More of what the model thinks before.
    Thinking(String),
}

impl Renderer {
    /// Reads what the model says while it says it, from the first token after a
    /// [generation prompt](Self::generation_prompt) on. Where the prompt has opened a block of
    /// thinking, all is thinking until the model ends it.
    ///
    /// # Errors
    ///
    /// If the family marks its messages otherwise than by `<think>` blocks and a stop token:
    /// gpt-oss, Inkling and `role_colon`. [`parse`](Self::parse) reads their messages whole.
    #[doc(alias = "parse_response_streaming")]
    pub fn parse_stream(&self) -> Result<ParseStream> {
        let family = self.family();
        let stops = match self.stop() {
            Stop::Tokens(stops) if family.is_none_or(|family| family.facts().streams) => stops,
            _ => {
                let problem = format!("{} reads whole messages only: use parse", self.name());
                return Err(Error::invalid("renderer", problem));
            }
        };
        let opening = family.filter(|family| !family.facts().disables_thinking);
        let opening = opening.and_then(|family| family.opening());
        let opening = opening.map(|open| self.inner.codec.fixed(open));
        Ok(ParseStream {
            renderer: self.clone(),
            stops,
            opening: opening.transpose()?.map(|tokens| tokens.to_vec()),
            decoder: self.tokenizer().decode_stream(),
            tokens: Vec::new(),
            decoded: 0,
            held: String::new(),
            thinks: false,
            has_ended: false,
        })
    }
}

impl ParseStream {
    /// Takes the next token, and gives what it adds. What follows the stop token counts for
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token.
    pub fn push(&mut self, token: i32) -> Result<Vec<Delta>> {
        if self.has_ended {
            return Ok(Vec::new());
        }
        self.renderer.tokenizer().check_id("token", token)?;
        self.tokens.push(token);
        self.has_ended = self.stops.contains(&token);
        self.decode(self.has_ended)?;
        Ok(self.read(false))
    }

    /// Ends the message, and gives what was held back and the whole of it. One that has no stop
    /// token is [malformed](Termination::Malformed), though its thinking and calls are read.
    ///
    /// # Errors
    ///
    /// As [`Renderer::parse`].
    pub fn finish(mut self) -> Result<(Vec<Delta>, Parsed)> {
        self.decode(true)?;
        self.held += &self.decoder.clone().finish()?;
        let rest = self.read(true);
        let said = self.tokens.len();
        if !self.has_ended {
            self.tokens.extend(self.stops.first());
        }
        let mut parsed = self.renderer.parse(&self.tokens)?;
        if !self.has_ended {
            self.tokens.truncate(said);
            parsed.message = parsed.message.with_tokens(self.tokens);
            parsed.termination = Termination::Malformed;
        }
        Ok((rest, parsed))
    }

    /// Makes text of the tokens that are new, once it is known how they begin.
    fn decode(&mut self, is_last: bool) -> Result<()> {
        if let Some(opening) = &self.opening {
            let may_open = opening.starts_with(&self.tokens) && self.tokens.len() < opening.len();
            if may_open && !is_last {
                return Ok(());
            }
            if !self.tokens.starts_with(opening) {
                for &token in opening {
                    self.held += &self.decoder.push(token)?.unwrap_or_default();
                }
            }
            self.opening = None;
        }
        let end = self.tokens.len() - usize::from(self.has_ended);
        for &token in &self.tokens[self.decoded..end] {
            self.held += &self.decoder.push(token)?.unwrap_or_default();
        }
        self.decoded = end;
        Ok(())
    }

    /// Gives out what is held, but for what may be the beginning of a tag.
    fn read(&mut self, is_last: bool) -> Vec<Delta> {
        let mut deltas = Vec::new();
        loop {
            let tag = if self.thinks { CLOSE } else { OPEN };
            let found = self.held.find(tag);
            let end = match found {
                Some(start) => start,
                None if is_last => self.held.len(),
                None => self.held.len() - begun(&self.held, tag),
            };
            if end > 0 {
                let text = self.held.drain(..end).collect();
                deltas.push(match self.thinks {
                    true => Delta::Thinking(text),
                    false => Delta::Text(text),
                });
            }
            if found.is_none() {
                return deltas;
            }
            self.held.drain(..tag.len());
            self.thinks = !self.thinks;
        }
    }
}

/// How many bytes at the end of a text are the beginning of a tag.
fn begun(text: &str, tag: &str) -> usize {
    let lengths = (1..tag.len()).rev();
    let mut begun = lengths.filter(|&length| text.ends_with(&tag[..length]));
    begun.next().unwrap_or(0)
}
