//! Where tokenizers come from.

use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Map, Value};

use super::batch::Workers;
use super::codec::Codec;
use super::{Inner, Parts, Tokenizer};
#[cfg(feature = "local")]
use crate::builtin;
use crate::error::{Context, Error, Result};
use crate::gguf::Gguf;
use crate::sync::lock;
#[cfg(feature = "chat")]
use crate::text::chat::ChatTemplates;
use crate::text::convert;
use crate::text::hub::{Hub, Repo};
use crate::text::selection::TokenizerId;
use crate::text::special::TokenizerConfig;

/// Tokenizers loaded by model. Building one takes up to half a second.
static LOADED: OnceLock<Mutex<HashMap<PathBuf, Tokenizer>>> = OnceLock::new();

/// As many as the Python SDK keeps.
const MAX_LOADED: usize = 32;

impl Tokenizer {
    /// The tokenizer of a model, from the Hugging Face cache or else from the hub.
    ///
    /// Files are looked for, and put, where Hugging Face tools have them (`HF_HUB_CACHE`,
    /// `HF_HOME`); [`Hub::from_env`] says what else the environment decides.
    /// [`TokenizerId::select`] tells which repository a name means. Tokenizers are kept for the
    /// life of the process, so asking again is cheap. The embedded engine's own model is there
    /// without a hub (feature `local`):
    ///
    #[cfg_attr(feature = "local", doc = "```")]
    #[cfg_attr(not(feature = "local"), doc = "```ignore")]
    /// let tokenizer = tinker::text::Tokenizer::for_model("tinker-local/tiny")?;
    /// assert_eq!(tokenizer.encode_plain("Hi")?, [72, 105]);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it is not there and cannot be downloaded: the error says why (no such repository, a
    /// gated one, no network) and what to do. [`Error::Config`] if its files cannot be read.
    pub fn for_model(model_name: &str) -> Result<Self> {
        Self::load(&TokenizerId::select(model_name, None)?)
    }

    /// The tokenizer of a model as a service describes it: an id may be a place on this machine,
    /// or on that of the service, where it says nothing here.
    pub(crate) fn of_service(model_name: &str, tokenizer_id: Option<&str>) -> Result<Self> {
        let is_elsewhere = |id: &&str| is_place(id) && !Path::new(id).exists();
        let tokenizer_id = tokenizer_id.filter(|id| !is_elsewhere(id));
        match tokenizer_id {
            Some(place) if Path::new(place).exists() => Self::open(place),
            _ if model_name.is_empty() && tokenizer_id.is_none() => {
                let message = "the service names neither the model nor a tokenizer that is here";
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
        #[cfg(feature = "local")]
        if id.repo() == builtin::NAME {
            return Self::built_in();
        }
        Self::from_hub(&Hub::from_env()?, id)
    }

    /// The same, from a hub and a cache of your choice.
    ///
    /// # Errors
    ///
    /// As [`for_model`](Self::for_model).
    pub fn from_hub(hub: &Hub, id: &TokenizerId) -> Result<Self> {
        let repo = hub.model(id.repo())?;
        let repo = repo.with_revision(id.revision().unwrap_or("main"));
        let cached = VOCABULARIES
            .iter()
            .find_map(|name| repo.cached_folder(name));
        let folder = match cached {
            Some(folder) => folder,
            None => download(hub, &repo)?,
        };
        let loaded = LOADED.get_or_init(Mutex::default);
        // Not held while reading, so two threads may both load; one result is then dropped.
        if let Some(tokenizer) = lock(loaded).get(&folder) {
            return Ok(tokenizer.clone());
        }
        let tokenizer = Self::open(&folder)?.named(id.repo());
        let mut loaded = lock(loaded);
        if loaded.len() >= MAX_LOADED {
            loaded.clear();
        }
        Ok(loaded.entry(folder).or_insert(tokenizer).clone())
    }

    /// A tokenizer from a folder or a file.
    ///
    /// A folder has a `tokenizer.json`, a `tiktoken.model` or one `.gguf` file; a file is one of
    /// these. The special tokens and the chat templates come from `tokenizer_config.json`,
    /// `chat_template.jinja` and `additional_chat_templates` in the same folder, if they are
    /// there, and from the GGUF file itself.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a file cannot be read or understood; the error names it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = find(path.as_ref())?;
        let name = file.display().to_string();
        if file.extension().is_some_and(|ending| ending == "gguf") {
            let read = convert::gguf::read(&Gguf::open(&file)?);
            let (json, config) = read.map_err(|error| problem("cannot use", &file, error))?;
            return Self::of_value(name, json, config)
                .map_err(|error| problem("cannot use", &file, error));
        }
        let bytes = fs::read(&file).map_err(|error| problem("cannot read", &file, error))?;
        let (raw, config) = read_config(file.parent().unwrap_or(Path::new("")))?;
        let is_tiktoken = |ending| ending == "model" || ending == "tiktoken";
        match file.extension().is_some_and(is_tiktoken) {
            true => tiktoken_json(&bytes, &raw).and_then(|json| Self::of_value(name, json, config)),
            false => Self::build(name, &bytes, config),
        }
        .map_err(|error| problem("cannot use", &file, error))
    }

    /// A tokenizer from a vocabulary of tiktoken's: a line per token, its bytes in Base64 and its
    /// rank. `pattern` splits a text into words; special tokens have ids of their own.
    ///
    /// ```
    /// use tinker::text::Tokenizer;
    ///
    /// let ranks = b"YQ== 0\nYg== 1\nYWI= 2\n";
    /// let tokenizer = Tokenizer::from_tiktoken(ranks, r"\w+|\W+", &[("<end>", 3)])?;
    /// assert_eq!(tokenizer.encode("abba<end>")?, [2, 1, 0, 3]);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a line or the pattern cannot be understood.
    pub fn from_tiktoken(ranks: &[u8], pattern: &str, special: &[(&str, usize)]) -> Result<Self> {
        let special: Vec<_> = special
            .iter()
            .map(|(token, id)| (*id, (*token).to_owned(), true))
            .collect();
        convert::tiktoken::read(ranks)
            .map_err(BoxError::from)
            .and_then(|tokens| {
                let json = convert::tiktoken::to_json(&tokens, pattern, &special);
                Self::of_value("tiktoken".to_owned(), json, TokenizerConfig::default())
            })
            .map_err(|error| problem("cannot use", Path::new("the given ranks"), error))
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

    /// The one of the model that ships with the crate.
    #[cfg(feature = "local")]
    pub(crate) fn built_in() -> Result<Self> {
        let config = Some(builtin::TOKENIZER_CONFIG);
        Self::from_json(builtin::TOKENIZER.as_bytes(), config).map(|it| it.named(builtin::NAME))
    }

    fn build(name: String, json: &[u8], config: TokenizerConfig) -> Result<Self, BoxError> {
        let parts = survive(|| serde_json::from_slice(json))?;
        Ok(Self::new(name, parts, config))
    }

    fn of_value(name: String, json: Value, config: TokenizerConfig) -> Result<Self, BoxError> {
        let parts = survive(|| serde_json::from_value(json))?;
        Ok(Self::new(name, parts, config))
    }

    #[cfg_attr(not(feature = "chat"), expect(unused_mut))]
    fn new(name: String, parts: Parts, mut config: TokenizerConfig) -> Self {
        let inner = Inner {
            name,
            codec: Codec::new(parts),
            #[cfg(feature = "chat")]
            templates: ChatTemplates::new(std::mem::take(&mut config.chat_templates)),
            config,
            workers: Workers::default(),
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

/// Whether an id of a service is a place in some system's files: no repository is named so.
fn is_place(id: &str) -> bool {
    let has_drive = id.get(1..3) == Some(":/");
    id.starts_with(['/', '.', '~']) || id.contains('\\') || has_drive
}

type BoxError = Box<dyn StdError + Send + Sync>;

/// Brings what a tokenizer is made of. The vocabulary comes last, so that a folder that has one
/// has everything.
fn download(hub: &Hub, repo: &Repo) -> Result<PathBuf> {
    if hub.is_offline() {
        // The error says which file is missing, and where it belongs.
        repo.file(VOCABULARIES[0])?;
    }
    let files = repo.files()?;
    let pinned = repo.clone().with_revision(&files.commit);
    let has = |path: &&str| files.paths.iter().any(|known| known == path);
    let vocabulary = VOCABULARIES.into_iter().find(|path| has(path));
    let vocabulary = vocabulary.ok_or_else(|| {
        let message = format!(
            "{} has no {}: load another form of it with Tokenizer::open",
            repo.name(),
            VOCABULARIES.join(" and no ")
        );
        Error::Config(Context::new(message))
    })?;
    let is_wanted = |path: &str| {
        matches!(path, "tokenizer_config.json" | "chat_template.jinja")
            || path.starts_with("additional_chat_templates/")
    };
    for path in files.paths.iter().filter(|path| is_wanted(path)) {
        pinned.file(path)?;
    }
    pinned.file(vocabulary)?;
    let missing = || Error::Config(Context::new("a file vanished from the Hugging Face cache"));
    pinned.cached_folder(vocabulary).ok_or_else(missing)
}

/// The file that has the vocabulary.
fn find(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let known = VOCABULARIES.map(|name| path.join(name));
    if let Some(file) = known.into_iter().find(|file| file.is_file()) {
        return Ok(file);
    }
    let entries = fs::read_dir(path).map_err(|error| problem("cannot read", path, error))?;
    let is_gguf = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "gguf");
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(is_gguf)
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(file), true) => Ok(file),
        (Some(_), false) => Err(problem("cannot use", path, "it has several .gguf files")),
        (None, _) => Err(problem(
            "cannot use",
            path,
            "it has no tokenizer.json, no tiktoken.model and no .gguf file",
        )),
    }
}

/// What a vocabulary is called in a repository, the best first.
pub(in crate::text) const VOCABULARIES: [&str; 2] = ["tokenizer.json", "tiktoken.model"];

/// Files called `tiktoken.model` are Moonshot's; others are alike.
fn tiktoken_json(ranks: &[u8], config: &Map<String, Value>) -> Result<Value, BoxError> {
    let tokens = convert::tiktoken::read(ranks)?;
    let count = tokens.iter().map(|(_, rank)| rank + 1).max().unwrap_or(0);
    let special = convert::tiktoken::kimi_special_tokens(count, config);
    let pattern = convert::tiktoken::KIMI_PATTERN;
    Ok(convert::tiktoken::to_json(&tokens, pattern, &special))
}

/// What a folder says beside its vocabulary, as it is written and as it is understood.
pub(in crate::text) fn read_config(folder: &Path) -> Result<(Map<String, Value>, TokenizerConfig)> {
    let place = folder.join("tokenizer_config.json");
    let raw = match read_if_there(&place)? {
        Some(text) => {
            serde_json::from_str(&text).map_err(|error| problem("cannot parse", &place, error))?
        }
        None => Map::new(),
    };
    let mut config = TokenizerConfig::new(&raw);
    read_templates(folder, &mut config.chat_templates)?;
    Ok((raw, config))
}

fn read_if_there(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(problem("cannot read", file, error)),
    }
}

/// Templates in files of their own win over those of the configuration.
fn read_templates(folder: &Path, templates: &mut BTreeMap<String, String>) -> Result<()> {
    let read = |file: PathBuf| read_if_there(&file);
    if let Some(template) = read(folder.join("chat_template.jinja"))? {
        templates.insert("default".to_owned(), template);
    }
    let Ok(others) = fs::read_dir(folder.join("additional_chat_templates")) else {
        return Ok(());
    };
    for file in others.flatten().map(|entry| entry.path()) {
        let name = file
            .file_stem()
            .and_then(|name| name.to_str())
            .map(str::to_owned);
        if let (Some(name), Some(template)) = (name, read(file)?) {
            templates.insert(name, template);
        }
    }
    Ok(())
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

/// `tokenizers` panics over some damaged descriptions, where its decoders expect to be readable.
fn survive(
    parse: impl FnOnce() -> serde_json::Result<Parts> + std::panic::UnwindSafe,
) -> Result<Parts, BoxError> {
    match std::panic::catch_unwind(parse) {
        Ok(parts) => Ok(parts?),
        Err(_) => Err("its normalizer, decoder or model is damaged".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = "tests/fixtures/text/tiny";

    /// A server tells where its tokenizer lies, which may be on another machine.
    #[cfg(feature = "local")]
    #[test]
    fn a_place_on_the_services_machine_says_nothing_here() {
        let elsewhere = Some("/on/the/server/model");
        let tokenizer = Tokenizer::of_service(builtin::NAME, elsewhere).unwrap();
        assert_eq!(tokenizer.name(), builtin::NAME);
        for elsewhere in [
            r"C:\models\tiny",
            "d:/models/tiny",
            r"\\share\tiny",
            "~/tiny",
            "./tiny",
        ] {
            let tokenizer = Tokenizer::of_service(builtin::NAME, Some(elsewhere)).unwrap();
            assert_eq!(tokenizer.name(), builtin::NAME, "{elsewhere}");
        }
        let here = Tokenizer::of_service("org/any", Some(TINY)).unwrap();
        assert_ne!(here.name(), builtin::NAME);
    }

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
        let hub = Hub::new(cache.path()).with_offline(true);
        let first = Tokenizer::from_hub(&hub, &id).unwrap();
        let second = Tokenizer::from_hub(&hub, &id).unwrap();
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
        check(folder, "as a tokenizer");
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
