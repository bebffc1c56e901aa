//! Where a served model comes from, and what it is called.

use std::path::{Component, Path, PathBuf};

use super::engine::{Weights, builtin};
use crate::error::{Context, Error, Result};

/// A model to serve and the name clients know it by.
///
/// Made from a path, from text of the form `NAME=PATH`, or from the name of a repository on the
/// Hugging Face hub, which is taken from the tools' cache or downloaded (feature `text`).
/// Without a name, a snapshot in that cache has its repository's, and any other folder or GGUF file
/// is called after itself and the folder it lies in, as repositories are after their owner:
///
/// ```
/// use tinker::local::ModelSource;
///
/// let given = ModelSource::from("Qwen/Qwen3-0.6B=/models/small");
/// assert_eq!(given.name(), "Qwen/Qwen3-0.6B");
/// assert_eq!(ModelSource::from("/models/Qwen/Qwen3-0.6B").name(), "Qwen/Qwen3-0.6B");
/// let cached = "/cache/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12";
/// assert_eq!(ModelSource::from(cached).name(), "Qwen/Qwen3-0.6B");
/// assert_eq!(ModelSource::from("/models/smollm2.Q8_0.gguf").name(), "models/smollm2.Q8_0");
///
/// let named = ModelSource::from("Qwen/Qwen3-0.6B");
/// assert_eq!((named.name(), named.path()), ("Qwen/Qwen3-0.6B", None));
/// ```
///
/// `tinker-local/tiny` is the built-in model, for a server that has others too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    name: String,
    place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    BuiltIn,
    Path(PathBuf),
    /// A repository of the model's name.
    Hub,
}

/// A model's files on this machine.
#[derive(Debug, Clone)]
pub(super) enum Files {
    BuiltIn,
    Folder(PathBuf),
    Gguf(PathBuf),
}

impl Files {
    /// Reads the model.
    pub(super) fn load(&self) -> Result<Weights> {
        match self {
            Self::BuiltIn => Weights::builtin(),
            Self::Folder(path) => Weights::load(path),
            Self::Gguf(path) => Weights::load_gguf(path),
        }
    }
}

impl ModelSource {
    /// A model by name and place.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            place: Place::Path(path.into()),
        }
    }

    /// The built-in model.
    pub(super) fn built_in() -> Self {
        Self {
            name: builtin::NAME.to_owned(),
            place: Place::BuiltIn,
        }
    }

    /// What clients call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder or file, if it was given as such.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Path(path) => Some(path),
            Place::BuiltIn | Place::Hub => None,
        }
    }

    /// Its files, brought here if they are on the hub only.
    ///
    /// # Errors
    ///
    /// If they cannot be found or downloaded.
    pub(super) fn files(&self) -> Result<Files> {
        let path = match &self.place {
            Place::BuiltIn => return Ok(Files::BuiltIn),
            Place::Path(path) => path.clone(),
            Place::Hub => self.download()?,
        };
        let path = path.canonicalize().map_err(|error| {
            let message = format!("cannot open the model {}", path.display());
            Error::Config(Context::caused(message, error))
        })?;
        let extension = path.extension();
        let gguf = extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        Ok(match gguf {
            true => Files::Gguf(path),
            false => Files::Folder(path),
        })
    }

    #[cfg(feature = "text")]
    fn download(&self) -> Result<PathBuf> {
        let hub = crate::text::Hub::from_env()?;
        let cached = hub.clone().with_offline(true).model(&self.name)?;
        if let Ok(config) = cached.file("config.json")
            && let Some(folder) = config.parent().filter(|folder| is_whole(folder))
        {
            return Ok(folder.to_owned());
        }
        log::info!("local server: fetching {} from the hub", self.name);
        let folder = hub.model(&self.name)?.snapshot(is_wanted);
        folder.map_err(|error| {
            let name = &self.name;
            let message = format!(
                "cannot get the model {name}; a folder or file of that name is not here either"
            );
            Error::Config(Context::caused(message, error))
        })
    }

    #[cfg(not(feature = "text"))]
    fn download(&self) -> Result<PathBuf> {
        let name = &self.name;
        let message = format!(
            "{name} is no folder or file here, and without the feature `text` the hub is not asked"
        );
        Err(Error::Config(Context::new(message)))
    }
}

/// Whether a folder of the cache has all that is needed, weights and tokenizer included.
#[cfg(feature = "text")]
fn is_whole(folder: &Path) -> bool {
    let weights = super::engine::weight_files(folder);
    let weights = weights.is_ok_and(|files| files.iter().all(|file| folder.join(file).exists()));
    weights && folder.join("tokenizer.json").exists()
}

/// Which files of a repository make the model: weights, settings, tokenizer, template.
#[cfg(feature = "text")]
fn is_wanted(path: &str) -> bool {
    let kinds = [
        ".safetensors",
        ".json",
        ".jinja",
        "tokenizer.model",
        "merges.txt",
    ];
    !path.contains('/') && kinds.iter().any(|kind| path.ends_with(kind))
}

/// Whether a text can be the name of a repository: an owner's and its own.
fn is_repository(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(plain)
    };
    !text.to_ascii_lowercase().ends_with(".gguf")
        && text
            .split_once('/')
            .is_some_and(|(owner, name)| part(owner) && part(name))
}

impl From<&str> for ModelSource {
    fn from(text: &str) -> Self {
        if Path::new(text).exists() {
            return Self::from(Path::new(text));
        }
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() => Self::new(name, path),
            _ if text == builtin::NAME => Self::built_in(),
            _ if is_repository(text) => Self {
                name: text.to_owned(),
                place: Place::Hub,
            },
            _ => Self::from(Path::new(text)),
        }
    }
}

impl From<String> for ModelSource {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl From<&PathBuf> for ModelSource {
    fn from(path: &PathBuf) -> Self {
        Self::from(path.as_path())
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        Self::new(name_of(path), path)
    }
}

fn name_of(path: &Path) -> String {
    // A path such as `.` says nothing of itself.
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut parts: Vec<String> = whole
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    if let [.., repository, snapshots, _] = &parts[..]
        && snapshots == "snapshots"
        && let Some(repository) = repository.strip_prefix("models--")
    {
        return repository.replace("--", "/");
    }
    if let Some(last) = parts.last_mut() {
        let stem = last.to_ascii_lowercase();
        if stem.ends_with(".gguf") {
            last.truncate(last.len() - ".gguf".len());
        }
    }
    parts[parts.len().saturating_sub(2)..].join("/")
}
