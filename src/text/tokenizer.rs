//! [`Tokenizer`]: text to tokens and back.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

use super::hub;
use super::selection::TokenizerId;
use super::special::TokenizerConfig;
use crate::config;
use crate::error::{Context, Error, Result};
use crate::types::Tokens;

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
    tokenizer: tokenizers::Tokenizer,
    config: TokenizerConfig,
    #[cfg(feature = "chat")]
    template: OnceLock<Result<super::chat::ChatTemplate>>,
}

/// Tokenizers loaded by model. Building one takes up to half a second.
static LOADED: OnceLock<Mutex<HashMap<PathBuf, Tokenizer>>> = OnceLock::new();

/// As many as the Python SDK keeps.
const MAX_LOADED: usize = 32;

impl Tokenizer {
    /// The tokenizer of a model, from the Hugging Face cache.
    ///
    /// The model's files must have been downloaded before, for example with `hf download`.
    /// They are looked for where Hugging Face tools put them (`HF_HUB_CACHE`, `HF_HOME`).
    /// [`TokenizerId::select`] tells which repository a name means. Tokenizers are kept for
    /// the life of the process, so asking again is cheap.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it has not been downloaded, with the command that does, or if its
    /// files cannot be read.
    pub fn for_model(model_name: &str) -> Result<Self> {
        Self::load(&TokenizerId::select(model_name, None)?)
    }

    /// The tokenizer of a model as a service describes it: an id may be a place on this machine.
    pub(crate) fn of_service(model_name: &str, tokenizer_id: Option<&str>) -> Result<Self> {
        match tokenizer_id {
            Some(place) if Path::new(place).exists() => Self::open(place),
            _ if model_name.is_empty() && tokenizer_id.is_none() => {
                let message = "the service names neither the model nor its tokenizer";
                Err(Error::Reply(Context::new(message)))
            }
            _ => Self::load(&TokenizerId::select(model_name, tokenizer_id)?),
        }
    }

    /// The tokenizer with this id, as [`for_model`](Self::for_model) does.
    ///
    /// # Errors
    ///
    /// As [`for_model`](Self::for_model).
    pub fn load(id: &TokenizerId) -> Result<Self> {
        let cache = config::hub_cache().ok_or_else(|| {
            Error::Config(Context::new(
                "no home folder is set to look for tokenizers in: set HF_HOME, or load a file \
                 with Tokenizer::open",
            ))
        })?;
        Self::load_from(&cache, id)
    }

    fn load_from(cache: &Path, id: &TokenizerId) -> Result<Self> {
        let folder = hub::snapshot(cache, id)?;
        let loaded = LOADED.get_or_init(Mutex::default);
        // Not held while reading, so two threads may both load; one result is then dropped.
        let lock = || loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tokenizer) = lock().get(&folder) {
            return Ok(tokenizer.clone());
        }
        let tokenizer = Self::open(&folder)?.named(id.repo());
        let mut loaded = lock();
        if loaded.len() >= MAX_LOADED {
            loaded.clear();
        }
        Ok(loaded.entry(folder).or_insert(tokenizer).clone())
    }

    /// A tokenizer from a folder with a `tokenizer.json`, or from such a file.
    ///
    /// The special tokens and the chat template come from `tokenizer_config.json` and
    /// `chat_template.jinja` in the same folder, if they are there.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a file cannot be read or understood; the error names it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = match path.is_dir() {
            true => path.join("tokenizer.json"),
            false => path.to_owned(),
        };
        let bytes = fs::read(&file).map_err(|error| problem("cannot read", &file, error))?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut config = match read_if_there(&folder.join("tokenizer_config.json"))? {
            Some(text) => parse_config(&text).map_err(|error| {
                problem("cannot parse", &folder.join("tokenizer_config.json"), error)
            })?,
            None => TokenizerConfig::default(),
        };
        if let Some(template) = read_if_there(&folder.join("chat_template.jinja"))? {
            config.chat_template = Some(template);
        }
        Self::build(file.display().to_string(), &bytes, config)
            .map_err(|error| problem("cannot use", &file, error))
    }

    /// A tokenizer from the contents of a `tokenizer.json`, and of a `tokenizer_config.json` if
    /// there is one.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if they cannot be understood.
    pub fn from_json(tokenizer: &[u8], config: Option<&str>) -> Result<Self> {
        let here = Path::new("the given text");
        let config = match config {
            Some(text) => {
                parse_config(text).map_err(|error| problem("cannot parse", here, error))?
            }
            None => TokenizerConfig::default(),
        };
        Self::build("tokenizer".to_owned(), tokenizer, config)
            .map_err(|error| problem("cannot use", here, error))
    }

    fn build(name: String, json: &[u8], config: TokenizerConfig) -> Result<Self, BoxError> {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
        // Some files carry the settings of their training run; they would change lengths.
        tokenizer.with_truncation(None)?.with_padding(None);
        let inner = Inner {
            name,
            tokenizer,
            config,
            #[cfg(feature = "chat")]
            template: OnceLock::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    fn named(mut self, name: &str) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.name = name.to_owned();
        }
        self
    }

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
        self.encode_as(text, true)
    }

    /// The tokens of a text with nothing put around it: for text that is part of something
    /// longer.
    ///
    /// # Errors
    ///
    /// If the tokenizer cannot represent the text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<i32>> {
        self.encode_as(text, false)
    }

    fn encode_as(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i32>> {
        let encoding = self.inner.tokenizer.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| Error::invalid("text", error.to_string()))?;
        Ok(Tokens::try_from(encoding.get_ids())?.into_vec())
    }

    /// The text of some tokens, special tokens spelled out.
    ///
    /// Ids outside the vocabulary have no text. A character cut in half at either end becomes
    /// `\u{fffd}`.
    ///
    /// # Errors
    ///
    /// If an id is negative or the tokenizer cannot join the pieces.
    pub fn decode(&self, tokens: &[i32]) -> Result<String> {
        self.decode_as(tokens, false)
    }

    /// The text of some tokens without the special ones.
    ///
    /// # Errors
    ///
    /// If an id is negative or the tokenizer cannot join the pieces.
    pub fn decode_plain(&self, tokens: &[i32]) -> Result<String> {
        self.decode_as(tokens, true)
    }

    fn decode_as(&self, tokens: &[i32], skip_special_tokens: bool) -> Result<String> {
        let ids = tokens
            .iter()
            .enumerate()
            .map(|(index, &token)| {
                u32::try_from(token).map_err(|_| {
                    Error::invalid(format!("tokens[{index}]"), format!("{token} is negative"))
                })
            })
            .collect::<Result<Vec<u32>>>()?;
        let text = self.inner.tokenizer.decode(&ids, skip_special_tokens);
        text.map_err(|error| Error::invalid("tokens", error.to_string()))
    }

    /// The id of a token, given as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<i32> {
        i32::try_from(self.inner.tokenizer.token_to_id(token)?).ok()
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

    /// How many tokens there are, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
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
        let template = self.inner.template.get_or_init(|| {
            let source = self.inner.config.chat_template.as_deref();
            let source = source.ok_or_else(|| {
                Error::Config(Context::new(format!(
                    "{} has no chat template",
                    self.name()
                )))
            })?;
            super::chat::ChatTemplate::new(source)
        });
        match template {
            Ok(template) => template.render(messages, options, &self.inner.config.special_tokens),
            Err(error) => Err(error.clone()),
        }
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
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("name", &self.name())
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(problem("cannot read", file, error)),
    }
}

fn parse_config(text: &str) -> Result<TokenizerConfig, serde_json::Error> {
    let config: serde_json::Map<String, Value> = serde_json::from_str(text)?;
    Ok(TokenizerConfig::new(&config))
}

fn problem(what: &str, file: &Path, source: impl Into<BoxError>) -> Error {
    Error::Config(Box::new(Context {
        message: format!("{what} {} as a tokenizer", file.display()),
        source: Some(Arc::from(source.into())),
        ..Context::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = "tests/fixtures/text/tiny";

    #[test]
    fn a_model_is_loaded_once() {
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--org--tiny");
        let folder = repo.join("snapshots/abc");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), "abc").unwrap();
        fs::copy(
            Path::new(TINY).join("tokenizer.json"),
            folder.join("tokenizer.json"),
        )
        .unwrap();
        let id = TokenizerId::select("org/tiny", None).unwrap();
        let first = Tokenizer::load_from(cache.path(), &id).unwrap();
        let second = Tokenizer::load_from(cache.path(), &id).unwrap();
        assert!(Arc::ptr_eq(&first.inner, &second.inner));
        assert_eq!(first.name(), "org/tiny");
        assert_eq!(
            (first.bos_id(), first.eos_id()),
            (None, None),
            "no tokenizer_config.json"
        );
    }

    #[test]
    fn problems_name_the_file() {
        #[track_caller]
        fn check(folder: &Path, expected: &str) {
            let error = Tokenizer::open(folder).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        check(&folder.join("nowhere"), "cannot read ");
        check(folder, "tokenizer.json as a tokenizer");
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        check(folder, "cannot use ");
        fs::write(folder.join("tokenizer_config.json"), "[").unwrap();
        check(folder, "tokenizer_config.json");
    }

    #[test]
    fn negative_ids_are_refused() {
        let error = Tokenizer::open(TINY).unwrap().decode(&[1, -1]).unwrap_err();
        assert_eq!(error.to_string(), "invalid tokens[1]: -1 is negative");
    }
}
