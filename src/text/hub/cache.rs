//! The cache of the Hugging Face tools: `refs` say which commit a branch means, `snapshots` hold a
//! folder per commit whose files point to `blobs`, named after their ETags.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::files::{put, replace};

/// How often somebody else's download is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The part of the cache that belongs to one repository.
#[derive(Debug, Clone)]
pub(super) struct RepoCache {
    root: PathBuf,
    /// `models--org--name`
    name: String,
}

impl RepoCache {
    pub(super) fn new(root: &Path, kind: &str, repo: &str) -> Self {
        Self {
            root: root.to_owned(),
            name: format!("{kind}--{}", repo.replace('/', "--")),
        }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The commit a revision means, as far as the cache knows.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.reference(revision)?).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_name(commit))
    }

    /// Where a file of a commit is, or would be.
    pub(super) fn place(&self, commit: &str, path: &str) -> PathBuf {
        self.snapshot(commit).join(path)
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// A file that is there.
    pub(super) fn file(&self, revision: &str, path: &str) -> Option<PathBuf> {
        let place = self.place(&self.commit(revision)?, path);
        place.is_file().then_some(place)
    }

    /// Whether the hub has said before that a commit has no such file.
    pub(super) fn is_absent(&self, revision: &str, path: &str) -> bool {
        let commit = self.commit(revision);
        commit.is_some_and(|commit| self.absence(&commit, path).is_file())
    }

    pub(super) fn note_absent(&self, commit: &str, path: &str) -> Result<()> {
        write(&self.absence(commit, path), "")
    }

    fn absence(&self, commit: &str, path: &str) -> PathBuf {
        self.folder().join(".no_exist").join(commit).join(path)
    }

    fn reference(&self, revision: &str) -> Option<PathBuf> {
        is_path(revision).then(|| self.folder().join("refs").join(revision))
    }

    /// Remembers which commit a branch means.
    pub(super) fn note_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        match self.reference(revision) {
            Some(place) => write(&place, commit),
            None => Ok(()),
        }
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder().join("blobs").join(etag)
    }

    /// A download in the making.
    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder()
            .join("blobs")
            .join(format!("{etag}.incomplete"))
    }

    /// Waits until no other thread, process or tool is downloading the same file, and tells
    /// `observe` how many bytes the other has. One that brings nothing for that long is given up.
    pub(super) fn lock(
        &self,
        etag: &str,
        patience: Option<Duration>,
        observe: impl Fn(u64),
    ) -> Result<File> {
        let place = self
            .root
            .join(".locks")
            .join(&self.name)
            .join(format!("{etag}.lock"));
        make_parent(&place)?;
        let file = File::create(&place).map_err(|error| cannot("make", &place, error))?;
        let mut seen = None;
        let mut since = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => {}
                // Where a file system knows no locks, two downloads at once waste time and harm nothing.
                Err(TryLockError::Error(error)) => {
                    log::debug!("no lock on {}: {error}", place.display());
                    return Ok(file);
                }
            }
            let found = fs::metadata(self.incomplete(etag)).ok();
            let now = found.and_then(|found| Some((found.len(), found.modified().ok()?)));
            if seen.is_none() {
                let name = &self.name;
                log::warn!("waiting for another download of the same file of {name}");
            }
            if seen != Some(now) {
                observe(now.map_or(0, |(length, _)| length));
                (seen, since) = (Some(now), Instant::now());
            }
            if let Some(limit) = patience.filter(|limit| since.elapsed() >= *limit) {
                return Err(Error::Timeout(Context::new(format!(
                    "another thread or program is downloading the same file of {} and has brought \
                     nothing for {limit:?}: end it, or wait and try again (it holds {})",
                    self.name,
                    place.display()
                ))));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Points a file of a snapshot to its blob.
    pub(super) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<PathBuf> {
        let place = self.place(commit, path);
        if place.is_file() {
            return Ok(place);
        }
        make_parent(&place)?;
        let up = "../".repeat(2 + path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        // In one step: another thread's or process's link, and what points to a blob that is gone,
        // give way to one that is as good.
        let made = self.incomplete(&uuid::Uuid::new_v4().to_string());
        put(&place, &made, |made| link(&target, &self.blob(etag), made))
            .map_err(|error| cannot("make", &place, error))?;
        Ok(place)
    }
}

#[cfg(unix)]
fn link(relative: &Path, _: &Path, place: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, place)
}

/// Elsewhere links need rights that few have; the other tools copy too.
#[cfg(not(unix))]
fn link(_: &Path, blob: &Path, place: &Path) -> io::Result<()> {
    fs::copy(blob, place).map(|_| ())
}

pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text of the hub's can be the name of a file.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() < 200 && !text.starts_with('.') && text.chars().all(is_plain)
}

/// Whether a path stays below the folder it is joined to.
pub(super) fn is_path(path: &str) -> bool {
    // What means more than itself in a name.
    let special: &[char] = if cfg!(windows) {
        &['\\', ':', '\0']
    } else {
        &['\0']
    };
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(special);
    path.split('/').all(is_part)
}

pub(super) fn make_parent(place: &Path) -> Result<()> {
    let folder = place.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(|error| cannot("make", folder, error))
}

/// Whole or not at all.
fn write(place: &Path, text: &str) -> Result<()> {
    make_parent(place)?;
    replace(place, &[text.as_bytes()], |partial| File::create(partial))
        .map_err(|error| cannot("write", place, error))
}

pub(super) fn cannot(what: &str, place: &Path, error: io::Error) -> Error {
    Error::Io(Context::caused(
        format!(
            "cannot {what} {} in the Hugging Face cache",
            place.display()
        ),
        error,
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn names_of_the_hub_stay_in_their_folder() {
        for good in [
            "a",
            "a/b.json",
            "1_Pooling/config.json",
            "refs/pr/1",
            "a..b",
        ] {
            assert!(is_path(good), "{good}");
        }
        for bad in ["", "/a", "a/", "../a", "a/../b", "./a", "a//b", "a\0"] {
            assert!(!is_path(bad), "{bad}");
        }
        for elsewhere in ["c:\\x", "a\\b", "2026-11-18T10:00.json"] {
            assert_eq!(is_path(elsewhere), cfg!(not(windows)), "{elsewhere}");
        }
        assert!(is_name("0a1b") && !is_name("../x") && !is_name("") && !is_name(".x"));
    }

    #[test]
    fn branches_and_pins_lead_to_snapshots() {
        let root = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(root.path(), "models", "org/name");
        assert_eq!(cache.file("main", "a/b.json"), None);
        cache.note_commit("main", "abc").unwrap();
        cache.note_commit("refs/pr/1", "def").unwrap();
        assert_eq!(cache.commit("refs/pr/1").as_deref(), Some("def"));
        fs::create_dir_all(root.path().join("models--org--name/blobs")).unwrap();
        fs::write(cache.blob("e1"), "{}").unwrap();
        let place = cache.link("abc", "a/b.json", "e1").unwrap();
        assert_eq!(cache.file("main", "a/b.json"), Some(place.clone()));
        assert_eq!(fs::read_to_string(&place).unwrap(), "{}");
        assert!(place.ends_with("models--org--name/snapshots/abc/a/b.json"));
        assert!(!cache.is_absent("main", "c"));
        cache.note_absent("abc", "c").unwrap();
        assert!(cache.is_absent("main", "c"));
    }

    /// Also where something points to a blob that is gone.
    #[test]
    fn what_one_thread_linked_no_other_takes_away() {
        let root = tempfile::tempdir().unwrap();
        let cache = RepoCache::new(root.path(), "models", "org/name");
        make_parent(&cache.blob("e1")).unwrap();
        fs::write(cache.blob("e1"), "{}").unwrap();
        let commits: Vec<String> = (0..1000).map(|commit| format!("c{commit}")).collect();
        for commit in commits.iter().step_by(2) {
            let place = cache.place(commit, "a.json");
            make_parent(&place).unwrap();
            link(Path::new("../../blobs/gone"), &cache.blob("e1"), &place).unwrap();
        }
        let (arrived, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (round, commit) in commits.iter().enumerate() {
                        // Awake, so that they begin at once.
                        arrived.fetch_add(1, Ordering::SeqCst);
                        while arrived.load(Ordering::SeqCst) < 4 * (round + 1) {
                            std::thread::yield_now();
                        }
                        let place = cache.link(commit, "a.json", "e1").ok();
                        if place.and_then(|place| fs::read(place).ok()).is_none() {
                            lost.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(lost.into_inner(), 0);
        let blobs = fs::read_dir(root.path().join("models--org--name/blobs"));
        assert_eq!(blobs.unwrap().count(), 1, "nothing half made is left");
    }
}
