//! The parts a tokenizer is made of, and text to ids and back through them.

use std::collections::HashMap;
#[cfg(feature = "chat")]
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Deserializer};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::{Decoder, Model, Result as ModelResult, SplitDelimiterBehavior, Token};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerImpl,
};

use super::Specials;
use crate::error::{Context, Error, Result};
use crate::sync::lock;

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
    recognising: Copies,
    ordinary: Copies,
    /// Without any added token, made when first needed: few texts are encoded like this.
    bare: OnceLock<Copies>,
}

impl Codec {
    pub(super) fn new(mut recognising: Parts) -> Self {
        // Some files carry the settings of their training run; they would change lengths.
        recognising
            .with_truncation(None)
            .expect("no truncation asks for nothing")
            .with_padding(None);
        let own = recognising.get_pre_tokenizer().cloned().map(own_expression);
        recognising.with_pre_tokenizer(own);
        let mut ordinary = recognising.clone();
        ordinary.set_encode_special_tokens(true);
        Self {
            recognising: Copies::new(recognising),
            ordinary: Copies::new(ordinary),
            bare: OnceLock::new(),
        }
    }

    pub(super) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<i32>> {
        let (copies, adds) = match specials {
            Specials::Added => (&self.recognising, true),
            Specials::Recognised => (&self.recognising, false),
            Specials::AsText => (&self.ordinary, false),
        };
        let encoding = copies.lend(|parts| survive("text", || parts.encode_fast(text, adds)))?;
        encoding.get_ids().iter().map(|&id| signed(id)).collect()
    }

    /// Recognises no added token at all, special or not.
    pub(super) fn encode_bare(&self, text: &str) -> Result<Vec<i32>> {
        let bare = self.bare.get_or_init(|| {
            let parts = &self.recognising.first;
            let mut bare = Parts::new(parts.get_model().clone());
            bare.with_normalizer(parts.get_normalizer().cloned());
            bare.with_pre_tokenizer(parts.get_pre_tokenizer().cloned());
            Copies::new(bare)
        });
        let encoding = bare.lend(|parts| survive("text", || parts.encode_fast(text, false)))?;
        encoding.get_ids().iter().map(|&id| signed(id)).collect()
    }

    /// Recognises special tokens and adds none; the offsets count characters.
    #[cfg(feature = "chat")]
    pub(super) fn encode_with_offsets(&self, text: &str) -> Result<(Vec<i32>, Vec<Range<usize>>)> {
        let encoding = self
            .recognising
            .lend(|parts| survive("text", || parts.encode_char_offsets(text, false)))?;
        let tokens = encoding
            .get_ids()
            .iter()
            .map(|&id| signed(id))
            .collect::<Result<_>>()?;
        let offsets = encoding.get_offsets().iter();
        Ok((tokens, offsets.map(|&(start, end)| start..end).collect()))
    }

    pub(super) fn decode(&self, tokens: &[i32], skip_special_tokens: bool) -> Result<String> {
        let added = self.recognising.first.get_added_vocabulary();
        let mut pieces = Vec::with_capacity(tokens.len());
        for (index, &token) in tokens.iter().enumerate() {
            let piece = self
                .id_to_token(token)
                .ok_or_else(|| self.no_such_token(&format!("tokens[{index}]"), token))?;
            if !(skip_special_tokens && added.is_special_token(&piece)) {
                pieces.push(piece);
            }
        }
        survive("tokens", || match self.recognising.first.get_decoder() {
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
        i32::try_from(self.recognising.first.token_to_id(token)?).ok()
    }

    pub(super) fn id_to_token(&self, id: i32) -> Option<String> {
        self.recognising.first.id_to_token(u32::try_from(id).ok()?)
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.recognising.first.get_vocab_size(true)
    }

    /// Every token that is recognised as a whole in text, by id.
    pub(super) fn added_tokens(&self) -> Vec<(i32, AddedToken)> {
        let added = self.recognising.first.get_added_tokens_decoder();
        let mut added: Vec<_> = added
            .into_iter()
            .filter_map(|(id, token)| Some((i32::try_from(id).ok()?, token)))
            .collect();
        added.sort_by_key(|(id, _)| *id);
        added
    }
}

/// A tokenizer, and copies of it for threads that encode at the same time: those that share a regular
/// expression would wait for one another at every word.
struct Copies {
    first: Arc<Parts>,
    idle: Mutex<Vec<Arc<Parts>>>,
}

impl Copies {
    fn new(first: Parts) -> Self {
        let first = Arc::new(first);
        let idle = Mutex::new(vec![first.clone()]);
        Self { first, idle }
    }

    /// Lends one that no other thread has; the model itself is shared.
    fn lend<T>(&self, work: impl FnOnce(&Parts) -> T) -> T {
        let idle = lock(&self.idle).pop();
        let copy = idle.unwrap_or_else(|| Arc::new(Parts::clone(&self.first)));
        let done = work(&copy);
        lock(&self.idle).push(copy);
        done
    }
}

/// The same with an expression that is copied with it, where the crate has one for all of the process.
fn own_expression(pre_tokenizer: PreTokenizerWrapper) -> PreTokenizerWrapper {
    /// How GPT-2 splits texts.
    const WORDS: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(level) if level.use_regex && !level.add_prefix_space => {
            let pattern = SplitPattern::Regex(WORDS.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.expect("the expression is right");
            PreTokenizerWrapper::Sequence(Sequence::new(vec![
                split.into(),
                level.use_regex(false).into(),
            ]))
        }
        PreTokenizerWrapper::Sequence(steps) => {
            let steps = steps.into_iter().map(own_expression).collect();
            PreTokenizerWrapper::Sequence(Sequence::new(steps))
        }
        other => other,
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::digits::Digits;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    fn split(pre_tokenizer: &PreTokenizerWrapper, text: &str) -> Vec<(String, (usize, usize))> {
        let mut pieces = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut pieces).unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let pieces = pieces.into_iter();
        pieces.map(|(text, at, _)| (text.to_owned(), at)).collect()
    }

    #[test]
    fn an_expression_of_its_own_splits_texts_as_the_crate_s_does() {
        let level = |spaced| PreTokenizerWrapper::from(ByteLevel::new(spaced, true, true));
        let digits = PreTokenizerWrapper::from(Digits::new(true));
        let sequence = Sequence::new(vec![digits, level(false)]);
        let given = [level(false), level(true), sequence.into()];
        let own = given.clone().map(own_expression);
        assert!(own[0] != given[0] && own[1] == given[1] && own[2] != given[2]);
        let text = proptest::string::string_regex(r"([a-zé' 0-9\n\t!?\u{1f600}]|\PC){0,40}");
        proptest!(|(text in text.unwrap())| {
            for (given, own) in given.iter().zip(&own) {
                prop_assert_eq!(split(given, &text), split(own, &text));
            }
        });
    }

    #[test]
    fn threads_share_the_model_and_nothing_they_would_wait_for() {
        let model = tokenizers::models::bpe::BPE::default();
        let copies = Copies::new(Parts::new(SharedModel::from(model)));
        for count in [1, 4, 2] {
            let all = Barrier::new(count);
            std::thread::scope(|scope| {
                for _ in 0..count {
                    scope.spawn(|| copies.lend(|_| all.wait()));
                }
            });
        }
        let idle = lock(&copies.idle);
        assert_eq!(idle.len(), 4);
        let model = |parts: &Parts| Arc::as_ptr(&parts.get_model().0);
        assert!(idle.iter().all(|copy| model(copy) == model(&copies.first)));
    }
}
