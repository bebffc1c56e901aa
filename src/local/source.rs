//! Where a served model comes from, and what it is called.

use std::path::{Component, Path, PathBuf};

/// A model on this machine's disk and the name clients know it by.
///
/// Made from a path, or from text of the form `NAME=PATH`. Without a name, a snapshot in the
/// Hugging Face cache has its repository's, and any other folder or GGUF file is called after
/// itself and the folder it lies in, as repositories are after their owner:
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
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSource {
    name: String,
    path: PathBuf,
}

impl ModelSource {
    /// A model by name and place.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
        }
    }

    /// What clients call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a GGUF file rather than a folder.
    pub(super) fn is_gguf(&self) -> bool {
        self.path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
    }
}

impl From<&str> for ModelSource {
    fn from(text: &str) -> Self {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !Path::new(text).exists() => {
                Self::new(name, path)
            }
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
