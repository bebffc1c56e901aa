//! [`Tokenizer`]: text to tokens and back.

mod batch;
mod codec;
mod load;

use std::fmt;
#[cfg(feature = "chat")]
use std::ops::Range;
use std::sync::Arc;

use self::batch::Workers;
use self::codec::Codec;
#[cfg(feature = "chat")]
use super::chat::ChatTemplates;
use super::special::TokenizerConfig;
use super::stream::DecodeStream;
use crate::error::{Error, Result};

pub(super) use self::codec::Parts;
#[cfg(feature = "local")]
pub(super) use self::load::read_config;

/// A model's tokenizer.
///
/// Cloning is cheap, and clones can be used from many threads.
///
/// ```
/// use tinker::text::Tokenizer;
///
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let tokens = tokenizer.encode("the cat sat")?;
/// assert_eq!(tokenizer.decode(&tokens)?, "<|begin|>the cat sat");
/// assert_eq!(tokenizer.decode_plain(&tokens)?, "the cat sat");
/// assert_eq!(tokenizer.eos_id(), tokenizer.token_id("<|end|>"));
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    codec: Codec,
    config: TokenizerConfig,
    workers: Workers,
    #[cfg(feature = "chat")]
    templates: ChatTemplates,
}

/// What becomes of special tokens, such as `<|im_end|>`, when a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Specials {
    /// Recognised where the text spells them, and put around the text as the tokenizer does it
    /// (some put a beginning-of-sequence token first): [`Tokenizer::encode`].
    Added,
    /// Recognised where the text spells them, none added: [`Tokenizer::encode_plain`].
    #[default]
    Recognised,
    /// Text like any other: [`Tokenizer::encode_ordinary`].
    AsText,
}

impl Tokenizer {
    /// The model's repository, or the file it was read from.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The tokens of a text, with the special tokens the tokenizer puts around it (some put a
    /// beginning-of-sequence token first).
    ///
    /// Text that spells a special token, such as `<|im_end|>`, becomes that token.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>> {
        self.inner.codec.encode(text, Specials::Added)
    }

    /// The tokens of a text with nothing put around it: for text that is part of something
    /// longer.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot represent the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<i32>> {
        self.inner.codec.encode(text, Specials::Recognised)
    }

    /// The tokens of a text, special tokens taken for text like any other: for what users
    /// write, which must not be able to end a turn by spelling `<|im_end|>`.
    ///
    /// Tokens that were added to the vocabulary without being special, such as `<think>` of some
    /// models, are still recognised.
    ///
    /// ```
    /// use tinker::text::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let end = tokenizer.token_id("<|end|>").unwrap();
    /// assert!(tokenizer.encode_plain("the<|end|>")?.contains(&end));
    /// assert!(!tokenizer.encode_ordinary("the<|end|>")?.contains(&end));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot represent the text.
    #[doc(alias = "split_special_tokens")]
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<i32>> {
        self.inner.codec.encode(text, Specials::AsText)
    }

    /// The tokens of a text in which not even tokens that were added without being special are
    /// recognised.
    pub(super) fn encode_spelled(&self, text: &str) -> Result<Vec<i32>> {
        self.inner.codec.encode_bare(text)
    }

    /// The tokens of many texts, in their order, encoded on all cores.
    ///
    /// ```
    /// use tinker::text::{Specials, Tokenizer};
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let batch = tokenizer.encode_batch(["the cat", "sat"], Specials::Recognised)?;
    /// assert_eq!(batch[1], tokenizer.encode_plain("sat")?);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot represent a text; the error says which.
    pub fn encode_batch<T: Into<String>>(
        &self,
        texts: impl IntoIterator<Item = T>,
        specials: Specials,
    ) -> Result<Vec<Vec<i32>>> {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        let inner = Arc::clone(&self.inner);
        self.inner.workers.map(texts, move |index, text| {
            let tokens = inner.codec.encode(text, specials);
            tokens.map_err(|error| Error::invalid(format!("texts[{index}]"), error.to_string()))
        })
    }

    /// The threads that work on many texts at once.
    pub(in crate::text) fn workers(&self) -> &Workers {
        &self.inner.workers
    }

    /// The text of some tokens, special tokens spelled out.
    ///
    /// A character cut in half at either end becomes `\u{fffd}`; to decode tokens as they arrive
    /// use [`decode_stream`](Self::decode_stream).
    ///
    /// Every space is kept: Python's `clean_up_tokenization_spaces`, which takes those before
    /// punctuation out of what some models said, is not applied, whatever their files ask for.
    ///
    /// # Errors
    ///
    /// If the vocabulary has no such token, or the tokenizer cannot join the pieces.
    pub fn decode(&self, tokens: &[i32]) -> Result<String> {
        self.inner.codec.decode(tokens, false)
    }

    /// The text of some tokens without the special ones.
    ///
    /// # Errors
    ///
    /// As [`decode`](Self::decode).
    #[doc(alias = "skip_special_tokens")]
    pub fn decode_plain(&self, tokens: &[i32]) -> Result<String> {
        self.inner.codec.decode(tokens, true)
    }

    /// Decodes tokens as they arrive.
    pub fn decode_stream(&self) -> DecodeStream {
        DecodeStream::new(self.clone())
    }

    /// Refuses what is no token.
    pub(super) fn check_id(&self, field: &str, token: i32) -> Result<()> {
        match self.inner.codec.id_to_token(token) {
            Some(_) => Ok(()),
            None => Err(self.inner.codec.no_such_token(field, token)),
        }
    }

    /// The id of a token, given as the vocabulary spells it.
    #[doc(alias = "token_to_id")]
    #[doc(alias = "convert_tokens_to_ids")]
    pub fn token_id(&self, token: &str) -> Option<i32> {
        self.inner.codec.token_to_id(token)
    }

    /// A token as the vocabulary spells it. For special tokens that is their text; others may be
    /// spelled with stand-ins for spaces and bytes.
    #[doc(alias = "id_to_token")]
    #[doc(alias = "convert_ids_to_tokens")]
    pub fn token(&self, id: i32) -> Option<String> {
        self.inner.codec.id_to_token(id)
    }

    /// The tokens that are recognised in text and left out by [`decode_plain`](Self::decode_plain):
    /// their ids, in order, and their text.
    pub fn special_tokens(&self) -> Vec<(i32, String)> {
        let added = self.inner.codec.added_tokens().into_iter();
        let special = added.filter(|(_, token)| token.special);
        special.map(|(id, token)| (id, token.content)).collect()
    }

    /// The token with which sequences end, if the model's files name one.
    pub fn eos_id(&self) -> Option<i32> {
        self.token_id(self.special_token("eos_token")?)
    }

    /// The token with which sequences begin, if the model's files name one.
    pub fn bos_id(&self) -> Option<i32> {
        self.token_id(self.special_token("bos_token")?)
    }

    /// The token a role has, such as `pad_token`, as the vocabulary spells it.
    pub fn special_token(&self, role: &str) -> Option<&str> {
        self.inner
            .config
            .special_tokens
            .get(role)
            .map(String::as_str)
    }

    /// The ids the Python tokenizers call special, sorted: the tokens with a role, and those the
    /// model's configuration lists beside them.
    #[doc(alias = "all_special_ids")]
    pub fn special_ids(&self) -> Vec<i32> {
        let config = &self.inner.config;
        let tokens = config.special_tokens.values();
        let tokens = tokens.chain(&config.extra_special_tokens);
        let mut ids: Vec<i32> = tokens.filter_map(|token| self.token_id(token)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// How many tokens there are, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.codec.vocab_size()
    }
}

#[cfg(feature = "chat")]
impl Tokenizer {
    /// A conversation as the text the model was trained on, by its own chat template.
    ///
    /// ```
    /// use tinker::text::{ChatOptions, Message, Tokenizer};
    ///
    /// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// let messages = [Message::user("the cat sat")];
    /// let text = tokenizer.render_chat(&messages, &ChatOptions::prompt())?;
    /// assert_eq!(text, "<|start|>user\nthe cat sat<|end|>\n<|start|>assistant\n");
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the model has no template, or the template fails or refuses the conversation.
    pub fn render_chat(
        &self,
        messages: &[super::Message],
        options: &super::ChatOptions,
    ) -> Result<String> {
        self.render_chat_with_spans(messages, options)
            .map(|(text, _)| text)
    }

    /// Whether the model has a chat template of its own.
    pub fn has_chat_template(&self) -> bool {
        self.inner.templates.has_default()
    }

    /// A conversation as tokens: [`render_chat`](Self::render_chat), encoded.
    ///
    /// # Errors
    ///
    /// As [`render_chat`](Self::render_chat), or if the text cannot be encoded.
    #[doc(alias = "apply_chat_template")]
    pub fn encode_chat(
        &self,
        messages: &[super::Message],
        options: &super::ChatOptions,
    ) -> Result<Vec<i32>> {
        // The template writes the special tokens itself.
        self.encode_plain(&self.render_chat(messages, options)?)
    }

    /// A conversation as tokens, and for each whether the template says that the assistant
    /// speaks there, by its `{% generation %}` blocks. Few templates have them; without them no
    /// token is marked.
    ///
    /// # Errors
    ///
    /// As [`encode_chat`](Self::encode_chat).
    #[doc(alias = "return_assistant_tokens_mask")]
    pub fn encode_chat_with_mask(
        &self,
        messages: &[super::Message],
        options: &super::ChatOptions,
    ) -> Result<(Vec<i32>, Vec<bool>)> {
        let (text, spans) = self.render_chat_with_spans(messages, options)?;
        let (tokens, span_of) = self.encode_spans(&text, spans)?;
        Ok((tokens, span_of.iter().map(Option::is_some).collect()))
    }

    /// The tokens of a text, and for each the span it is part of, by its number.
    #[cfg(feature = "chat")]
    pub(super) fn encode_spans(
        &self,
        text: &str,
        spans: Vec<Range<usize>>,
    ) -> Result<(Vec<i32>, Vec<Option<usize>>)> {
        let (tokens, offsets) = self.inner.codec.encode_with_offsets(text)?;
        let mut span_of = vec![None; tokens.len()];
        let token_at = |place: usize| offsets.iter().position(|token| token.contains(&place));
        let spans = spans.into_iter().enumerate();
        for (number, span) in spans.filter(|(_, span)| !span.is_empty()) {
            let start = text[..span.start].chars().count();
            let last = start + text[span].chars().count() - 1;
            // As transformers does it: the tokens from the first character's first to the last
            // character's first.
            if let (Some(first), Some(last)) = (token_at(start), token_at(last)) {
                span_of[first..=last].fill(Some(number));
            }
        }
        Ok((tokens, span_of))
    }

    /// The text of [`render_chat`](Self::render_chat), and where in it, counted in bytes, the
    /// template says that the assistant speaks, by its `{% generation %}` blocks.
    ///
    /// # Errors
    ///
    /// As [`render_chat`](Self::render_chat).
    pub fn render_chat_with_spans(
        &self,
        messages: &[super::Message],
        options: &super::ChatOptions,
    ) -> Result<(String, Vec<Range<usize>>)> {
        let special_tokens = &self.inner.config.special_tokens;
        let templates = &self.inner.templates;
        templates.render(messages, options, special_tokens)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("name", &self.name())
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}
