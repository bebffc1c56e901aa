//! A checkpoint's folder in the making: its files come together beside its place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use super::files::{self, Links, Plan};
use super::link::Link;
use super::part::{cannot, forget};
use crate::error::{Context, Error, Result};

/// A downloaded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloaded {
    /// Where it is.
    pub folder: PathBuf,
    /// Its files, below the folder.
    pub files: Vec<PathBuf>,
    /// How many bytes they have together.
    pub bytes: u64,
}

/// The hidden folder beside a target in which its files come together. One process at a time.
pub(crate) struct Stage {
    target: PathBuf,
    folder: PathBuf,
    lock: PathBuf,
    held: File,
}

impl Stage {
    pub(crate) fn open(target: &Path, force: bool) -> Result<Self> {
        let refuse = |problem: &str| {
            let problem = format!("{problem}: {}", target.display());
            Error::invalid("folder", problem)
        };
        if target.exists() && !force {
            return Err(refuse("is there already"));
        }
        let name = target
            .file_name()
            .ok_or_else(|| refuse("names no folder"))?;
        let name = name.to_string_lossy();
        let folder = target.with_file_name(format!(".{name}.partial"));
        let lock = target.with_file_name(format!(".{name}.partial.lock"));
        fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, error))?;
        let held = File::create(&lock).map_err(|error| cannot("write", &lock, error))?;
        held.try_lock()
            .map_err(|_| refuse("another download to it is under way"))?;
        let target = target.to_owned();
        Ok(Self {
            target,
            folder,
            lock,
            held,
        })
    }

    /// Fetches every file the links lead to, then gives the folder its name.
    pub(crate) fn fetch(
        &self,
        link: &Link,
        links: &Links<'_>,
        plan: &Plan<'_>,
    ) -> Result<Downloaded> {
        let names = links.names();
        if names.is_empty() {
            let message = "the checkpoint has no files";
            return Err(Error::Reply(Context::new(message)));
        }
        let mut places = BTreeMap::new();
        for name in &names {
            places.insert(name.clone(), inside(&self.folder, name)?);
        }
        let bytes = files::all(link, links, &places, plan)?;
        places.values().for_each(|place| forget(place));
        place(&self.folder, &self.target)?;
        Ok(Downloaded {
            folder: self.target.clone(),
            files: names.iter().map(|name| self.target.join(name)).collect(),
            bytes,
        })
    }

    /// The same from an archive, which `download` puts into a file.
    #[cfg(feature = "archive")]
    pub(crate) fn unpack(&self, download: impl FnOnce(&Path) -> Result<()>) -> Result<Downloaded> {
        let (archive, unpacked) = (self.folder.join("archive"), self.folder.join("unpacked"));
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked).map_err(|error| cannot("remove", &unpacked, error))?;
        }
        download(&archive)?;
        let opened = File::open(&archive).map_err(|error| cannot("read", &archive, error))?;
        let outcome = super::unpack::unpack(opened, &unpacked);
        let _ = fs::remove_file(&archive);
        let files = outcome.inspect_err(|_| drop(fs::remove_dir_all(&unpacked)))?;
        let size = |file: &PathBuf| file.metadata().map_or(0, |found| found.len());
        let bytes = files.iter().map(size).sum();
        let placed = |file: &PathBuf| {
            self.target
                .join(file.strip_prefix(&unpacked).unwrap_or(file))
        };
        let files = files.iter().map(placed).collect();
        place(&unpacked, &self.target)?;
        Ok(Downloaded {
            folder: self.target.clone(),
            files,
            bytes,
        })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What a failure left stays for the next call; only an empty folder goes.
        let _ = fs::remove_dir(&self.folder);
        let _ = fs::remove_file(&self.lock);
        let _ = self.held.unlock();
    }
}

/// Gives a folder another's place, whole.
fn place(made: &Path, target: &Path) -> Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let old = target.with_file_name(format!(".{name}.replaced"));
    let replaces = target.exists();
    if replaces {
        let _ = fs::remove_dir_all(&old);
        fs::rename(target, &old).map_err(|error| cannot("replace", target, error))?;
    }
    fs::rename(made, target).map_err(|error| cannot("write", target, error))?;
    if replaces {
        let _ = fs::remove_dir_all(&old);
    }
    Ok(())
}

/// The place of a listed file below a folder. The names come from the service; none may lead
/// elsewhere, on any operating system.
pub(crate) fn inside(folder: &Path, name: &str) -> Result<PathBuf> {
    let mut components = Path::new(name).components().peekable();
    let is_plain = components.peek().is_some()
        && components.all(|part| matches!(part, Component::Normal(_)))
        && !name.contains(['\\', ':', '\0']);
    match is_plain {
        true => Ok(folder.join(name)),
        false => Err(Error::Reply(Context::new(format!(
            "the service names a file outside the folder: {name:?}"
        )))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        let folder = Path::new("to");
        for (name, expected) in [
            ("a.json", Some("to/a.json")),
            ("a/b/c.bin", Some("to/a/b/c.bin")),
            ("", None),
            (".", None),
            ("..", None),
            ("../a", None),
            ("a/../../b", None),
            ("/etc/passwd", None),
            ("..\\a", None),
            ("C:\\a", None),
            ("C:a", None),
            ("a\0b", None),
        ] {
            let found = inside(folder, name).ok();
            assert_eq!(found, expected.map(PathBuf::from), "{name:?}");
        }
    }
}
