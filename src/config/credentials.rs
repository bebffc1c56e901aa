//! Stored keys: one JSON file, never torn, never readable by others.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Secret;
use crate::error::{Context, Error, Result};
use crate::files::{folder_of, replace};

/// The file that holds API keys between runs, shared with the Python SDK.
///
/// The file is replaced as a whole (a temporary file, then a rename), so a reader never sees
/// half of one, and changes hold a lock, so two processes never lose each other's. The directory
/// is created with mode 0700, the file has mode 0600. A missing file is an empty store.
///
/// ```
/// use tinker::config::{CredentialStore, StoredKey};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("credentials.json");
/// let store = CredentialStore::new(path);
/// store.update(|keys| {
///     keys.insert("42", StoredKey::manual("tml-123", "laptop"));
///     keys.set_default(Some("42"));
/// })?;
/// assert_eq!(store.load()?.default_key().unwrap().key().expose(), "tml-123");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct CredentialStore {
    path: PathBuf,
}

/// What the file holds: keys by id, and which of them is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredKeys {
    version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    #[serde(default)]
    keys: BTreeMap<String, StoredKey>,
}

/// One stored key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum StoredKey {
    /// Pasted in by the user.
    #[non_exhaustive]
    Manual {
        /// The key.
        #[serde(serialize_with = "expose", deserialize_with = "conceal")]
        key: Secret,
        /// Its name on the service.
        name: String,
        /// Its note on the service.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Whose it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<KeyDetails>,
    },
    /// Made for this machine by an older command line.
    #[non_exhaustive]
    Generated {
        /// The key.
        #[serde(serialize_with = "expose", deserialize_with = "conceal")]
        key: Secret,
        /// Its name on the service.
        name: String,
        /// Whose it is.
        details: KeyDetails,
    },
}

/// Whose key it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDetails {
    /// The organization's name.
    pub organization: String,
    /// The user's address.
    pub email: String,
}

impl StoredKey {
    /// A key the user pasted in.
    pub fn manual(key: impl Into<Secret>, name: impl Into<String>) -> Self {
        Self::Manual {
            key: key.into(),
            name: name.into(),
            note: None,
            details: None,
        }
    }

    /// Adds what the service knows about a manual key; a generated one is left as it is.
    #[must_use]
    pub fn with_details(mut self, about: impl Into<String>, whose: KeyDetails) -> Self {
        if let Self::Manual { note, details, .. } = &mut self {
            *note = Some(about.into());
            *details = Some(whose);
        }
        self
    }

    /// The key itself.
    pub fn key(&self) -> &Secret {
        match self {
            Self::Manual { key, .. } | Self::Generated { key, .. } => key,
        }
    }

    /// The key's name on the service.
    pub fn name(&self) -> &str {
        match self {
            Self::Manual { name, .. } | Self::Generated { name, .. } => name,
        }
    }

    /// Whose key it is, if known.
    pub fn details(&self) -> Option<&KeyDetails> {
        match self {
            Self::Manual { details, .. } => details.as_ref(),
            Self::Generated { details, .. } => Some(details),
        }
    }
}

impl StoredKeys {
    /// Adds a key, replacing one of the same id.
    pub fn insert(&mut self, id: impl Into<String>, key: StoredKey) {
        self.keys.insert(id.into(), key);
    }

    /// Removes a key and, if it was the default, leaves none.
    pub fn remove(&mut self, id: &str) -> Option<StoredKey> {
        if self.default.as_deref() == Some(id) {
            self.default = None;
        }
        self.keys.remove(id)
    }

    /// Makes a key the default; one that is not stored counts as none.
    pub fn set_default(&mut self, id: Option<&str>) {
        self.default = id.map(str::to_owned);
    }

    /// The default key's id.
    pub fn default_id(&self) -> Option<&str> {
        self.default
            .as_deref()
            .filter(|id| self.keys.contains_key(*id))
    }

    /// The default key.
    pub fn default_key(&self) -> Option<&StoredKey> {
        self.keys.get(self.default.as_deref()?)
    }

    /// A key by its id.
    pub fn get(&self, id: &str) -> Option<&StoredKey> {
        self.keys.get(id)
    }
}

impl CredentialStore {
    /// The store in this file, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where the store is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when the file cannot be read or does not have the expected form.
    pub fn load(&self) -> Result<StoredKeys> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(StoredKeys::default());
            }
            Err(error) => return Err(self.problem("cannot be read; check its permissions", error)),
        };
        serde_json::from_str(&text).map_err(|error| {
            // The parser's own words can quote the file, so only the place is kept.
            let place = format!("line {}, column {}", error.line(), error.column());
            Error::Credentials(Context::new(format!(
                "{} is not a credentials file of version 1 ({place}); \
                 repair it or remove it",
                self.path.display()
            )))
        })
    }

    /// Changes the file: reads it, applies `change`, writes it back, all under a lock.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when the file cannot be read, locked or written.
    pub fn update<T>(&self, change: impl FnOnce(&mut StoredKeys) -> T) -> Result<T> {
        let fail = |error| self.problem("cannot be written; check the folder's permissions", error);
        create_private_folder(folder_of(&self.path)).map_err(fail)?;
        let lock = private_file(&self.lock_file()).map_err(fail)?;
        lock.lock().map_err(fail)?;
        let mut keys = self.load()?;
        let outcome = change(&mut keys);
        let text = serde_json::to_string_pretty(&keys).map_err(|error| fail(error.into()))?;
        replace(&self.path, &[text.as_bytes()], private_file).map_err(fail)?;
        Ok(outcome)
    }

    /// A hidden file beside the store's, on which writers wait for each other.
    fn lock_file(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        folder_of(&self.path).join(format!(".{}.lock", name.to_string_lossy()))
    }

    fn problem(&self, what: &str, error: io::Error) -> Error {
        let message = format!("{} {what}", self.path.display());
        Error::Credentials(Context::caused(message, error))
    }
}

fn create_private_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn expose<S: Serializer>(key: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key.expose())
}

fn conceal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::from)
}

/// The file's version, always 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Version;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(1)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)?.as_u64() {
            Some(1) => Ok(Self),
            _ => Err(serde::de::Error::custom("the version is not 1")),
        }
    }
}

/// `{"org_details": {"name"}, "user_details": {"email"}}`, the service's own nesting.
#[derive(Serialize, Deserialize)]
struct NestedDetails {
    org_details: Named,
    user_details: Mailed,
}

#[derive(Serialize, Deserialize)]
struct Named {
    name: String,
}

#[derive(Serialize, Deserialize)]
struct Mailed {
    email: String,
}

impl Serialize for KeyDetails {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        NestedDetails {
            org_details: Named {
                name: self.organization.clone(),
            },
            user_details: Mailed {
                email: self.email.clone(),
            },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeyDetails {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let nested = NestedDetails::deserialize(deserializer)?;
        Ok(Self {
            organization: nested.org_details.name,
            email: nested.user_details.email,
        })
    }
}
