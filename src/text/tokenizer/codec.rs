//! The parts a tokenizer is made of, and text to ids and back through them.

use std::collections::HashMap;
#[cfg(feature = "chat")]
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer};
use tokenizers::tokenizer::{Decoder, Model, Result as ModelResult, Token};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerImpl,
};

use super::Specials;
use crate::error::{Context, Error, Result};

/// The crate's tokenizer over a model that can be shared.
pub(in crate::text) type Parts = TokenizerImpl<
    SharedModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Tokenizers over one model, because which added tokens are recognised in text is a setting of
/// a tokenizer and not of a call.
pub(super) struct Codec {
    recognising: Parts,
    ordinary: Parts,
    /// Without any added token, made when first needed: few texts are encoded like this.
    bare: OnceLock<Parts>,
}

impl Codec {
    pub(super) fn new(mut recognising: Parts) -> Self {
        // Some files carry the settings of their training run; they would change lengths.
        recognising
            .with_truncation(None)
            .expect("no truncation asks for nothing")
            .with_padding(None);
        let mut ordinary = recognising.clone();
        ordinary.set_encode_special_tokens(true);
        Self {
            recognising,
            ordinary,
            bare: OnceLock::new(),
        }
    }

    pub(super) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<i32>> {
        let encoding = survive("text", || match specials {
            Specials::Added => self.recognising.encode_fast(text, true),
            Specials::Recognised => self.recognising.encode_fast(text, false),
            Specials::AsText => self.ordinary.encode_fast(text, false),
        })?;
        encoding.get_ids().iter().map(|&id| signed(id)).collect()
    }

    /// Recognises no added token at all, special or not.
    pub(super) fn encode_bare(&self, text: &str) -> Result<Vec<i32>> {
        let bare = self.bare.get_or_init(|| {
            let mut bare = Parts::new(self.recognising.get_model().clone());
            bare.with_normalizer(self.recognising.get_normalizer().cloned());
            bare.with_pre_tokenizer(self.recognising.get_pre_tokenizer().cloned());
            bare
        });
        let encoding = survive("text", || bare.encode_fast(text, false))?;
        encoding.get_ids().iter().map(|&id| signed(id)).collect()
    }

    /// Recognises special tokens and adds none; the offsets count characters.
    #[cfg(feature = "chat")]
    pub(super) fn encode_with_offsets(&self, text: &str) -> Result<(Vec<i32>, Vec<Range<usize>>)> {
        let encode = || self.recognising.encode_char_offsets(text, false);
        let encoding = survive("text", encode)?;
        let tokens = encoding
            .get_ids()
            .iter()
            .map(|&id| signed(id))
            .collect::<Result<_>>()?;
        let offsets = encoding.get_offsets().iter();
        Ok((tokens, offsets.map(|&(start, end)| start..end).collect()))
    }

    pub(super) fn decode(&self, tokens: &[i32], skip_special_tokens: bool) -> Result<String> {
        let added = self.recognising.get_added_vocabulary();
        let mut pieces = Vec::with_capacity(tokens.len());
        for (index, &token) in tokens.iter().enumerate() {
            let piece = self
                .id_to_token(token)
                .ok_or_else(|| self.no_such_token(&format!("tokens[{index}]"), token))?;
            if !(skip_special_tokens && added.is_special_token(&piece)) {
                pieces.push(piece);
            }
        }
        survive("tokens", || match self.recognising.get_decoder() {
            Some(decoder) => decoder.decode(pieces),
            None => Ok(pieces.join(" ")),
        })
    }

    pub(super) fn no_such_token(&self, field: &str, token: i32) -> Error {
        let problem = match token {
            ..0 => format!("{token} is negative"),
            _ => format!(
                "{token} is no token of this vocabulary of {}; is it of another model?",
                self.vocab_size()
            ),
        };
        Error::invalid(field, problem)
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<i32> {
        i32::try_from(self.recognising.token_to_id(token)?).ok()
    }

    pub(super) fn id_to_token(&self, id: i32) -> Option<String> {
        self.recognising.id_to_token(u32::try_from(id).ok()?)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.recognising.get_vocab_size(true)
    }

    /// Every token that is recognised as a whole in text, by id.
    pub(super) fn added_tokens(&self) -> Vec<(i32, AddedToken)> {
        let added = self.recognising.get_added_tokens_decoder();
        let mut added: Vec<_> = added
            .into_iter()
            .filter_map(|(id, token)| Some((i32::try_from(id).ok()?, token)))
            .collect();
        added.sort_by_key(|(id, _)| *id);
        added
    }
}

/// `tokenizers` reads some damaged descriptions and panics when it is to use them: a template with a
/// token that is nowhere described, pieces of no length, a map of characters that leads nowhere.
fn survive<T>(field: &str, call: impl FnOnce() -> ModelResult<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| Error::invalid(field, error.to_string())),
        Err(_) => Err(Error::Config(Context::new(
            "the tokenizer cannot be used: its description is damaged",
        ))),
    }
}

fn signed(id: u32) -> Result<i32> {
    i32::try_from(id).map_err(|_| Error::invalid("text", format!("its token {id} is too large")))
}

/// A model that clones share.
#[derive(Debug, Clone)]
pub(in crate::text) struct SharedModel(Arc<ModelWrapper>);

impl<M: Into<ModelWrapper>> From<M> for SharedModel {
    fn from(model: M) -> Self {
        Self(Arc::new(model.into()))
    }
}

impl<'de> Deserialize<'de> for SharedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self::from)
    }
}

impl Model for SharedModel {
    type Trainer = <ModelWrapper as Model>::Trainer;

    fn tokenize(&self, sequence: &str) -> ModelResult<Vec<Token>> {
        self.0.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> ModelResult<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.0.get_trainer()
    }
}
