//! Folders and files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, Result};
use crate::files::{PARTIAL, folder_of, sync_folder};

/// In every folder that was exported: what was written there, a name a line. A folder with anything
/// else in it is somebody's own.
const MARKER: &str = ".tinker-export";

/// What is being written, under another name until it is whole.
#[derive(Debug)]
pub(super) struct Output {
    target: PathBuf,
    partial: PathBuf,
    /// What is in the target's place and shall be replaced.
    replaces: bool,
}

impl Output {
    /// A folder to be made.
    ///
    /// # Errors
    ///
    /// If something is in its place that may not be replaced: it was not asked for, holds other
    /// things than an export does, or is what the export is made from.
    pub(super) fn folder(target: &Path, force: bool, sources: &[&Path]) -> Result<Self> {
        let output = Self::new(target, force, sources)?;
        if output.replaces && !is_export(target) {
            let problem = "is no exported model, or has other things in it, so it is not replaced: \
                           choose another folder";
            return Err(Error::invalid(target.display().to_string(), problem));
        }
        fs::create_dir_all(&output.partial).map_err(|error| cannot(&output.partial, error))?;
        Ok(output)
    }

    /// A file to be made.
    ///
    /// # Errors
    ///
    /// As [`folder`](Self::folder).
    pub(super) fn file(target: &Path, force: bool, sources: &[&Path]) -> Result<Self> {
        let output = Self::new(target, force, sources)?;
        if target.is_dir() {
            let problem = "is a folder: name a file";
            return Err(Error::invalid(target.display().to_string(), problem));
        }
        let folder = folder_of(target);
        fs::create_dir_all(folder).map_err(|error| cannot(folder, error))?;
        Ok(output)
    }

    fn new(target: &Path, force: bool, sources: &[&Path]) -> Result<Self> {
        let refuse = |problem: &str| Err(Error::invalid(target.display().to_string(), problem));
        let Some(name) = target.file_name() else {
            return refuse("is no name for an export");
        };
        let replaces = target.symlink_metadata().is_ok();
        if replaces && !force {
            return refuse("is there already: choose another name, or ask to replace it");
        }
        // What is replaced must not be, or hold, what is still being read.
        if let Ok(place) = target.canonicalize() {
            let within = |source: &&Path| {
                source
                    .canonicalize()
                    .is_ok_and(|source| source.starts_with(&place))
            };
            if sources.iter().any(within) {
                return refuse("is what the export is made from: choose another name");
            }
        }
        let partial = format!(
            "{}.{}{PARTIAL}",
            name.to_string_lossy(),
            uuid::Uuid::new_v4()
        );
        Ok(Self {
            partial: folder_of(target).join(partial),
            target: target.to_owned(),
            replaces,
        })
    }

    /// Writes a small file of the folder.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.stream(name, |file| file.write_all(bytes).map_err(Failure::from))
    }

    /// Writes a file of the folder piece by piece; an empty name means the output itself.
    pub(super) fn stream(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
    ) -> Result<()> {
        let path = match name {
            "" => self.partial.clone(),
            name => self.partial.join(name),
        };
        let attempt = || {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
            write(&mut file)?;
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            Ok(file.sync_all()?)
        };
        attempt().map_err(|failure| match failure {
            Failure::Disk(error) => cannot(&path, error),
            Failure::Weights(error) => error,
        })
    }

    /// Gives it its name.
    pub(super) fn publish(self) -> Result<PathBuf> {
        let aside = self.partial.with_extension("old");
        let attempt = || {
            if self.partial.is_dir() {
                fs::write(
                    self.partial.join(MARKER),
                    entries(&self.partial)?.join("\n"),
                )?;
            }
            if self.replaces && self.target.is_dir() {
                fs::rename(&self.target, &aside)?;
            }
            if let Err(error) = fs::rename(&self.partial, &self.target) {
                // The old one is better than none.
                let _ = fs::rename(&aside, &self.target);
                return Err(error);
            }
            sync_folder(folder_of(&self.target))
        };
        attempt().map_err(|error| cannot(&self.target, error))?;
        let _ = fs::remove_dir_all(&aside);
        Ok(self.target.clone())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // After a success there is nothing under that name any more.
        match self.partial.is_dir() {
            true => drop(fs::remove_dir_all(&self.partial)),
            false => drop(fs::remove_file(&self.partial)),
        }
    }
}

/// Why a file was not written.
pub(super) enum Failure {
    Disk(io::Error),
    /// What was to be written is at fault.
    Weights(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Whether a folder holds what an export wrote, and nothing else.
fn is_export(folder: &Path) -> bool {
    let Ok(found) = entries(folder) else {
        return false;
    };
    let written = fs::read_to_string(folder.join(MARKER)).unwrap_or_default();
    let ours = |name: &String| name == MARKER || written.lines().any(|one| one == name);
    found.iter().all(ours)
}

/// The names in a folder; one that is not text is no export's.
fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        let name = entry?.file_name().into_string();
        name.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let mut names: Vec<String> = fs::read_dir(folder)?.map(name).collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn cannot(path: &Path, error: io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "the disk is full: {} was not written, and nothing is left of it",
            path.display()
        ),
        _ => format!("cannot write {}", path.display()),
    };
    Error::Io(Context::caused(message, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        entries(folder).unwrap()
    }

    #[test]
    fn there_whole_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("model");
        let begin = |force| {
            let output = Output::folder(&target, force, &[])?;
            output.write("config.json", b"{}").map(|()| output)
        };
        drop(begin(false).unwrap());
        assert_eq!(names(root.path()), Vec::<String>::new());
        begin(false).unwrap().publish().unwrap();
        assert!(begin(false).unwrap_err().to_string().contains("already"));
        let output = begin(true).unwrap();
        output.write("more", b"").unwrap();
        output.publish().unwrap();
        assert_eq!(names(root.path()), ["model"]);
        assert_eq!(names(&target), [MARKER, "config.json", "more"]);
        // What somebody put beside it is not ours to replace.
        fs::write(target.join("notes.txt"), "").unwrap();
        assert!(begin(true).is_err());
        assert!(target.join("notes.txt").exists());
        fs::remove_file(target.join("notes.txt")).unwrap();

        let file = root.path().join("model.gguf");
        let output = Output::file(&file, false, &[]).unwrap();
        let full = |_: &mut dyn Write| Err(io::Error::from(io::ErrorKind::StorageFull).into());
        let error = output.stream("", full).unwrap_err().to_string();
        assert!(error.contains("the disk is full"), "{error}");
        drop(output);
        assert_eq!(names(root.path()), ["model"]);
    }

    #[test]
    fn nothing_else_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let (letters, model) = (root.path().join("letters"), root.path().join("model"));
        for (folder, file) in [(&letters, "to-mother.txt"), (&model, "config.json")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join(file), "").unwrap();
        }
        let refused = |target: &Path, sources: &[&Path]| {
            Output::folder(target, true, sources)
                .unwrap_err()
                .to_string()
        };
        // Many things have a `config.json`.
        assert!(refused(&letters, &[]).contains("no exported model"));
        assert!(refused(&model, &[]).contains("no exported model"));
        assert!(refused(&model, &[&model]).contains("made from"));
        assert!(refused(root.path(), &[&model]).contains("made from"));
        assert!(Output::file(&model, true, &[]).is_err());
    }
}
