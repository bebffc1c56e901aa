//! The folders that runs are looked for in, and nothing outside them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde::Serialize;

use crate::local::http::Refusal;
use crate::sync::lock;
use crate::train::{RunReader, is_recent};

/// What a run's files are watched by.
const FILES: [&str; 5] = [
    "config.json",
    "metrics.jsonl",
    "checkpoints.jsonl",
    "timing_spans.jsonl",
    "logs.log",
];
/// The file by which a run is seen to be running.
const METRICS: usize = 1;

/// Sizes and times of a run's files: another value, and something changed.
type Stamp = [Option<(u64, SystemTime)>; FILES.len()];

/// Folders with runs in them. A run is asked for by the id it was listed under, never by a path,
/// so that nothing outside the folders can be named.
#[derive(Debug)]
pub(super) struct Folders {
    roots: Vec<PathBuf>,
    /// What was read, until it changes.
    read: Mutex<HashMap<PathBuf, (Stamp, Arc<RunReader>)>>,
}

/// A run that was found.
#[derive(Debug)]
pub(super) struct Found {
    /// The number of its folder and its path inside, such as `0/chats`.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// The runs as they were at the last look: their files, and whether those had changed lately.
#[derive(Debug, Default)]
pub(super) struct Seen(Option<HashMap<String, (Stamp, bool)>>);

/// What is different from the last look.
#[derive(Debug, Serialize)]
pub(super) struct Changes {
    changed: Vec<String>,
    gone: Vec<String>,
}

impl Folders {
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots,
            read: Mutex::default(),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        let roots = self.roots.iter();
        roots.map(|root| root.display().to_string()).collect()
    }

    /// Every run, by folder and path.
    pub(super) fn find(&self) -> Vec<Found> {
        let roots = self.roots.iter().enumerate();
        roots
            .flat_map(|(number, root)| found(number, root))
            .collect()
    }

    /// The run with this id.
    pub(super) fn open(&self, id: &str) -> Result<Arc<RunReader>, Refusal> {
        let found = self.find().into_iter().find(|run| run.id == id);
        found.and_then(|run| self.read(&run)).ok_or_else(|| {
            Refusal::missing(format!(
                "there is no run {id}; it may have been moved or deleted"
            ))
        })
    }

    /// Reads a run, unless it has not changed since it was read.
    pub(super) fn read(&self, run: &Found) -> Option<Arc<RunReader>> {
        let now = stamp(&run.path);
        if let Some((then, reader)) = lock(&self.read).get(&run.path)
            && *then == now
        {
            return Some(reader.clone());
        }
        let reader = Arc::new(RunReader::open(&run.path).ok()?);
        let kept = (now, reader.clone());
        lock(&self.read).insert(run.path.clone(), kept);
        Some(reader)
    }

    /// What changed since the last look, if anything did; at the first look, nothing has.
    pub(super) fn changes(&self, seen: &mut Seen, time: SystemTime) -> Option<Changes> {
        let found = self.find();
        lock(&self.read).retain(|path, _| found.iter().any(|run| run.path == *path));
        let now: HashMap<_, _> = found
            .into_iter()
            .map(|run| {
                let stamp = stamp(&run.path);
                // A run that was stopped writes nothing, and is not running any more all the same.
                let metrics = stamp[METRICS].map(|(_, changed)| changed);
                let lately = metrics.is_some_and(|changed| is_recent(changed, time));
                (run.id, (stamp, lately))
            })
            .collect();
        let then = seen.0.replace(now.clone())?;
        let changed = now
            .iter()
            .filter(|(id, stamp)| then.get(*id) != Some(stamp));
        let gone = then.keys().filter(|id| !now.contains_key(*id));
        let changes = Changes {
            changed: changed.map(|(id, _)| id.clone()).collect(),
            gone: gone.cloned().collect(),
        };
        (!changes.changed.is_empty() || !changes.gone.is_empty()).then_some(changes)
    }
}

fn found(number: usize, root: &Path) -> Vec<Found> {
    let Ok(real) = root.canonicalize() else {
        return Vec::new();
    };
    let mut runs = RunReader::find(root);
    runs.retain(|path| is_inside(&real, path));
    let name = |path: &Path| match path.strip_prefix(root) {
        Ok(inside) if !inside.as_os_str().is_empty() => inside.display().to_string(),
        _ => real
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    let found = runs.into_iter().map(|path| {
        let name = name(&path);
        Found {
            id: format!("{number}/{name}"),
            name,
            path,
        }
    });
    found.collect()
}

/// Whether a run and its files are where they seem to be: a link may lead anywhere.
fn is_inside(root: &Path, run: &Path) -> bool {
    let mut paths = FILES.iter().map(|file| run.join(file));
    leads_inside(root, run) && paths.all(|file| !file.exists() || leads_inside(root, &file))
}

/// Whether a path leads into a folder, links followed.
pub(super) fn leads_inside(root: &Path, path: &Path) -> bool {
    path.canonicalize().is_ok_and(|real| real.starts_with(root))
}

fn stamp(run: &Path) -> Stamp {
    FILES.map(|file| {
        let found = fs::metadata(run.join(file)).ok()?;
        Some((found.len(), found.modified().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(root: &Path, name: &str) -> PathBuf {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("metrics.jsonl"), "{\"step\": 0, \"loss\": 1.0}\n").unwrap();
        path
    }

    #[test]
    fn runs_are_found_by_the_ids_they_are_listed_under() {
        let root = tempfile::tempdir().unwrap();
        run(root.path(), "a/inner");
        let path = run(root.path(), "b");
        let folders = Folders::new(vec![root.path().to_owned(), path]);
        let ids: Vec<String> = folders.find().into_iter().map(|run| run.id).collect();
        assert_eq!(ids, ["0/a/inner", "0/b", "1/b"]);
        assert_eq!(folders.open("0/b").unwrap().metrics.len(), 1);
        for id in [
            "", "0", "0/..", "0/../b", "0/b/../b", "7/b", "0//etc", "0/a",
        ] {
            assert_eq!(folders.open(id).unwrap_err().status.as_u16(), 404, "{id}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_outside_are_not_followed() {
        let (outside, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let other = run(outside.path(), "other");
        std::os::unix::fs::symlink(&other, root.path().join("link")).unwrap();
        let own = run(root.path(), "own");
        std::os::unix::fs::symlink(other.join("metrics.jsonl"), own.join("logs.log")).unwrap();
        assert!(Folders::new(vec![root.path().to_owned()]).find().is_empty());
        fs::remove_file(own.join("logs.log")).unwrap();
        std::os::unix::fs::symlink(own.join("metrics.jsonl"), own.join("logs.log")).unwrap();
        assert_eq!(Folders::new(vec![root.path().to_owned()]).find().len(), 1);
    }

    #[test]
    fn changes_are_told_once() {
        assert_eq!(FILES[METRICS], "metrics.jsonl");
        let root = tempfile::tempdir().unwrap();
        let path = run(root.path(), "a");
        let (folders, mut seen) = (Folders::new(vec![root.path().to_owned()]), Seen::default());
        let mut changes = |time| folders.changes(&mut seen, time);
        let now = SystemTime::now();
        assert!(changes(now).is_none());
        assert!(changes(now).is_none());
        let first = folders.open("0/a").unwrap();
        assert!(Arc::ptr_eq(&first, &folders.open("0/a").unwrap()));
        fs::write(path.join("logs.log"), "x\n").unwrap();
        run(root.path(), "b");
        let mut changed = changes(now).unwrap().changed;
        changed.sort();
        assert_eq!(changed, ["0/a", "0/b"]);
        assert!(!Arc::ptr_eq(&first, &folders.open("0/a").unwrap()));
        fs::remove_dir_all(path).unwrap();
        assert_eq!(changes(now).unwrap().gone, ["0/a"]);
        let later = now + std::time::Duration::from_secs(300);
        assert_eq!(changes(later).unwrap().changed, ["0/b"], "it is idle");
        assert!(changes(later).is_none());
    }
}
