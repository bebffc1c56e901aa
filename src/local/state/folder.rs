//! The data folder: whose it is, in which format, and that one server uses it.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};

/// The file that makes a folder a data folder.
const MARKER: &str = "tinker-data.json";
/// The layout of the folder; raised when older versions could no longer find their way.
const FORMAT: u32 = 1;
/// What temporary folders are called.
const TEMPORARY: &str = "tinker-local-";

/// What the marker says.
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    format: u32,
    /// Whether the folder goes with its server.
    #[serde(default)]
    temporary: bool,
}

/// A data folder that is this server's alone.
#[derive(Debug)]
pub(in crate::local) struct Folder {
    root: PathBuf,
    temporary: bool,
    /// The marker, locked as long as this server uses the folder; the system lets go of it after
    /// a crash.
    marker: File,
}

impl Folder {
    /// Opens a data folder, or makes a temporary one.
    ///
    /// # Errors
    ///
    /// If the folder holds files and no marker, belongs to a newer version, or is in use.
    pub(in crate::local) fn open(folder: Option<PathBuf>) -> Result<Self> {
        match folder {
            Some(root) => Self::claim(root, false),
            None => Self::temporary_in(&std::env::temp_dir()),
        }
    }

    /// Makes a folder that goes with this server; those of servers that are gone are swept.
    pub(super) fn temporary_in(parent: &Path) -> Result<Self> {
        sweep_temporary(parent);
        let root = parent.join(format!("{TEMPORARY}{}", uuid::Uuid::new_v4()));
        Self::claim(root, true)
    }

    fn claim(root: PathBuf, temporary: bool) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let message = format!("cannot use the data folder {}", root.display());
            Error::Config(Context::caused(message, error))
        };
        // Clients are told of files in it, and run in folders of their own.
        let root = std::path::absolute(&root).map_err(cannot)?;
        fs::create_dir_all(&root).map_err(cannot)?;
        let path = root.join(MARKER);
        if !path.exists() && holds_others(&root).map_err(cannot)? {
            return Err(Error::Config(Context::new(format!(
                "{} is not a data folder of this program: it holds files and no {MARKER}; \
                 choose a new or an empty folder (one that an earlier version of this program made \
                 is taken once it has that file, saying {{\"format\": {FORMAT}}})",
                root.display()
            ))));
        }
        let mut marker = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(cannot)?;
        // A new temporary folder is known to nobody, but a server that starts at the same moment
        // may be looking whether it is left over: that takes no time, and is waited for.
        let locked = if temporary {
            marker.lock().map_err(TryLockError::Error)
        } else {
            marker.try_lock()
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("another server uses the data folder {}", root.display());
                return Err(Error::Config(Context::new(message)));
            }
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
        }
        // Read and written through the locked handle, so that two newcomers cannot both begin.
        let mut text = String::new();
        marker.read_to_string(&mut text).map_err(cannot)?;
        if text.is_empty() && !holds_others(&root).map_err(cannot)? {
            write_marker(&mut marker, temporary).map_err(cannot)?;
        } else {
            check_marker(&path, &text)?;
        }
        Ok(Self {
            root,
            temporary,
            marker,
        })
    }

    pub(in crate::local) fn path(&self) -> &Path {
        &self.root
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.root);
        }
        // Closing alone would leave the lock to a program that another thread is just starting: until
        // that runs, it has the same file open.
        let _ = self.marker.unlock();
    }
}

fn write_marker(file: &mut File, temporary: bool) -> std::io::Result<()> {
    let marker = Marker {
        format: FORMAT,
        temporary,
    };
    let text = serde_json::to_string(&marker).map_err(std::io::Error::other)? + "\n";
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

fn check_marker(path: &Path, text: &str) -> Result<()> {
    let refuse = |message: String| Err(Error::Config(Context::new(message)));
    match serde_json::from_str::<Marker>(text) {
        Ok(marker) if marker.format <= FORMAT => Ok(()),
        Ok(Marker { format, .. }) => refuse(format!(
            "{} says format {format}, which a newer version of this program wrote: this one reads \
             up to {FORMAT}, and leaves the folder as it is",
            path.display()
        )),
        Err(error) => refuse(format!(
            "{} cannot be read ({error}); {{\"format\": {FORMAT}}} is what it should say",
            path.display()
        )),
    }
}

/// Whether anything but the marker is there.
fn holds_others(root: &Path) -> std::io::Result<bool> {
    for entry in fs::read_dir(root)? {
        if entry?.file_name() != MARKER {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes temporary folders whose servers are gone.
///
/// A marker is written under its lock, which its server holds to the end: one that says
/// `temporary` and can be locked is left over.
fn sweep_temporary(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            continue;
        }
        let Ok(mut file) = File::open(entry.path().join(MARKER)) else {
            continue;
        };
        let mut text = String::new();
        let left_over = file.try_lock().is_ok()
            && file.read_to_string(&mut text).is_ok()
            && serde_json::from_str::<Marker>(&text).is_ok_and(|marker| marker.temporary);
        if left_over {
            // Somebody else may be sweeping too.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_free_once_its_server_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let open = || Folder::open(Some(root.path().to_owned()));
        let first = open().unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("another server uses"), "{error}");
        // As a process has it that is being started.
        let inherited = first.marker.try_clone().unwrap();
        drop(first);
        open().unwrap();
        drop(inherited);
    }

    #[test]
    fn servers_that_start_together_do_not_take_each_other_for_left_over() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let folder = Folder::temporary_in(parent.path()).unwrap();
                        assert!(folder.path().join(MARKER).exists());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_temporary_folders_without_a_server_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| parent.path().join(format!("{TEMPORARY}{name}"));
        let make = |name: &str, temporary: bool| {
            let mut opened = Folder::open(Some(folder(name))).unwrap();
            write_marker(&mut opened.marker, temporary).unwrap();
            opened
        };
        drop(make("gone", true));
        drop(make("kept", false));
        let used = make("used", true);
        fs::create_dir_all(folder("theirs")).unwrap();
        sweep_temporary(parent.path());
        let left = ["gone", "kept", "used", "theirs"].map(|name| folder(name).exists());
        assert_eq!(left, [false, true, true, true]);
        drop(used);
    }
}
