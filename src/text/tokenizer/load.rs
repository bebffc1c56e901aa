//! Where tokenizers come from.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::Value;

use super::batch::Workers;
use super::codec::Codec;
use super::{Inner, Parts, Tokenizer};
use crate::config;
use crate::error::{Context, Error, Result};
use crate::text::hub;
use crate::text::selection::TokenizerId;
use crate::text::special::TokenizerConfig;

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
        Ok(Self::new(name, serde_json::from_slice(json)?, config))
    }

    fn new(name: String, parts: Parts, config: TokenizerConfig) -> Self {
        let inner = Inner {
            name,
            codec: Codec::new(parts),
            config,
            workers: Workers::default(),
            #[cfg(feature = "chat")]
            template: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn named(mut self, name: &str) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.name = name.to_owned();
        }
        self
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
    fn ids_that_are_none_are_refused() {
        let error = Tokenizer::open(TINY).unwrap().decode(&[1, -1]).unwrap_err();
        assert_eq!(error.to_string(), "invalid tokens[1]: -1 is negative");
    }
}
