//! A checkpoint's folder in the making: its files come together beside its place.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::path::{Component, Path, PathBuf};

use super::files::{self, Links, Plan};
use super::link::Link;
use super::part::cannot;
use crate::error::{Context, Error, Result};
use crate::files::folder_of;

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

/// In a stage: the checkpoint whose files come together there. It is not published.
const MARK: &str = ".of-checkpoint";

/// The hidden folder beside a target in which its files come together. One process at a time.
pub(crate) struct Stage {
    target: PathBuf,
    folder: PathBuf,
    lock: PathBuf,
    held: File,
}

impl Stage {
    /// The stage of a target. What an earlier call left there stays only if it was of the same
    /// checkpoint: others have files of the same names and lengths.
    pub(crate) fn open(target: &Path, checkpoint: &str, force: bool) -> Result<Self> {
        let refuse = |problem: &str| {
            let problem = format!("{problem}: {}", target.display());
            Error::invalid("folder", problem)
        };
        let check = || match target {
            target if target.exists() && !force => Err(refuse("is there already")),
            target if target.is_file() => Err(refuse("is a file")),
            _ => Ok(()),
        };
        check()?;
        let name = target
            .file_name()
            .ok_or_else(|| refuse("names no folder"))?;
        let name = name.to_string_lossy();
        let folder = target.with_file_name(format!(".{name}.partial"));
        let lock = target.with_file_name(format!(".{name}.partial.lock"));
        let home = folder_of(target);
        fs::create_dir_all(home).map_err(|error| cannot("make", home, error))?;
        let held = loop {
            let mut options = OpenOptions::new();
            let held = options.create(true).append(true).open(&lock);
            let held = held.map_err(|error| cannot("write", &lock, error))?;
            held.try_lock()
                .map_err(|_| refuse("another download to it is under way"))?;
            // Whoever had it before may have removed it meanwhile: then it keeps nobody out.
            if has_name(&held) {
                break held;
            }
        };
        let stage = Self {
            target: target.to_owned(),
            folder,
            lock,
            held,
        };
        // What was true before the lock may be so no longer.
        check()?;
        fs::create_dir_all(&stage.folder).map_err(|error| cannot("make", &stage.folder, error))?;
        stage.reserve(checkpoint)?;
        Ok(stage)
    }

    fn reserve(&self, checkpoint: &str) -> Result<()> {
        let mark = self.folder.join(MARK);
        let refuse = |problem: &str| {
            let problem = format!("{problem}: {}", self.folder.display());
            Err(Error::invalid("folder", problem))
        };
        // A link would lead to what is not ours to empty.
        if self.folder.is_symlink() {
            return refuse("is a link");
        }
        match fs::read_to_string(&mark) {
            Ok(known) if known == checkpoint => return Ok(()),
            Ok(_) => {}
            Err(_) if fs::read_dir(&self.folder).is_ok_and(|mut found| found.next().is_none()) => {}
            Err(_) => return refuse("no download left what is there, so move it away"),
        }
        // The mark last: without it nothing here is ours.
        keep_only(&self.folder, &[&mark])?;
        fs::write(&mark, checkpoint).map_err(|error| cannot("write", &mark, error))
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
        let mark = self.folder.join(MARK);
        let checkpoint = fs::read(&mark).map_err(|error| cannot("read", &mark, error))?;
        keep_only(&self.folder, &places.values().collect::<Vec<_>>())?;
        place(&self.folder, &self.target).inspect_err(|_| {
            // Where not even this can be written, the next call says what is in its way.
            let _ = fs::write(&mark, checkpoint);
        })?;
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
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        if entries.into_iter().all(|entry| entry.file_name() == MARK) {
            let _ = fs::remove_file(self.folder.join(MARK));
            let _ = fs::remove_dir(&self.folder);
        }
        let _ = fs::remove_file(&self.lock);
        let _ = self.held.unlock();
    }
}

/// Whether an open file still has a name, as far as can be told.
#[cfg(unix)]
fn has_name(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|found| found.nlink() > 0)
}

#[cfg(not(unix))]
fn has_name(_: &File) -> bool {
    true
}

/// Removes everything below a folder but these files.
fn keep_only(folder: &Path, files: &[&PathBuf]) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|error| cannot("read", folder, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| cannot("read", folder, error))?;
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = match is_folder {
            _ if files.contains(&&path) => Ok(()),
            true if files.iter().any(|file| file.starts_with(&path)) => {
                keep_only(&path, files)?;
                Ok(())
            }
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(|error| cannot("remove", &path, error))?;
    }
    Ok(())
}

/// Gives a folder another's place, whole. Should that fail, the other is where it was.
fn place(made: &Path, target: &Path) -> Result<()> {
    if !target.exists() {
        return fs::rename(made, target).map_err(|error| cannot("write", target, error));
    }
    let old = unused_beside(target);
    fs::rename(target, &old).map_err(|error| cannot("replace", target, error))?;
    if let Err(error) = fs::rename(made, target) {
        let _ = fs::rename(&old, target);
        return Err(cannot("write", target, error));
    }
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

/// A name that nothing has yet: what has one may be the user's.
fn unused_beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let numbered = |number: usize| target.with_file_name(format!(".{name}.replaced-{number}"));
    let mut names = (1..).map(numbered);
    let unused = names.find(|path| path.symlink_metadata().is_err());
    unused.expect("there are more numbers than files")
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
    fn a_file_is_no_folder_to_replace() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("notes.txt");
        fs::write(&file, "mine").unwrap();
        let error = Stage::open(&file, "tinker://R/weights/a", true).err();
        assert!(error.unwrap().to_string().contains("is a file"));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_what_a_download_left_is_emptied() {
        let home = tempfile::tempdir().unwrap();
        let (target, stage) = (home.path().join("a"), home.path().join(".a.partial"));
        let open = |checkpoint: &str| Stage::open(&target, checkpoint, false);
        let leave = |file: &str| fs::write(stage.join(file), "half").unwrap();

        fs::create_dir(&stage).unwrap();
        leave("mine");
        let error = open("tinker://R/weights/a").err().unwrap().to_string();
        assert!(error.contains(".a.partial"), "{error}");
        assert!(stage.join("mine").exists());
        fs::remove_file(stage.join("mine")).unwrap();

        for (checkpoint, stays) in [("a", false), ("a", true), ("b", false)] {
            let opened = open(&format!("tinker://R/weights/{checkpoint}")).unwrap();
            assert_eq!(stage.join("left").exists(), stays, "{checkpoint}");
            leave("left");
            drop(opened);
        }
    }

    #[test]
    fn a_folder_is_replaced_whole_or_left_as_it_was() {
        let home = tempfile::tempdir().unwrap();
        let [target, made, mine] = ["a", "made", ".a.replaced-1"].map(|name| {
            let folder = home.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("name"), name).unwrap();
            folder
        });
        let name = |folder: &Path| fs::read_to_string(folder.join("name")).unwrap();
        place(&home.path().join("none"), &target).unwrap_err();
        assert_eq!(name(&target), "a");
        place(&made, &target).unwrap();
        assert_eq!(name(&target), "made");
        assert_eq!(name(&mine), ".a.replaced-1");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    }

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

    /// Many come and go at once: only one is there at a time, and what one has made is not taken
    /// for nothing by the next.
    #[cfg(unix)]
    #[test]
    fn a_place_is_one_downloads_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("a");
        let holders = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        match Stage::open(&target, "tinker://R/weights/a", false) {
                            Ok(stage) => {
                                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                                assert!(stage.folder.is_dir());
                                fs::create_dir(&target).unwrap();
                                holders.fetch_sub(1, Ordering::SeqCst);
                            }
                            Err(error) => {
                                let text = error.to_string();
                                let refused = ["is there already", "is under way"];
                                assert!(refused.iter().any(|one| text.contains(one)), "{text}");
                                let _ = fs::remove_dir(&target);
                            }
                        }
                    }
                });
            }
        });
    }
}
