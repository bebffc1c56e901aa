//! Training runs and their checkpoints: what is listed, and what survives a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::StateError;
use super::disk::{self, Record};
use super::folder::Folder;
use super::ledger::Ledger;
use super::sessions::{Session, local};
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::types::{CheckpointKind, LoraConfig, Timestamp, TinkerPath};

/// What the record of a checkpoint ends with once it is deleted and its weights may still be there.
const DELETED: &str = "deleted";

/// A training run, which is a model's life from creation on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Run {
    pub(in crate::local) id: String,
    pub(in crate::local) session_id: String,
    #[serde(default = "local")]
    pub(in crate::local) owner: String,
    pub(in crate::local) base_model: String,
    pub(in crate::local) lora: LoraConfig,
    pub(in crate::local) created_at: Timestamp,
    pub(in crate::local) last_request_time: Timestamp,
    #[serde(default)]
    pub(in crate::local) corrupted: bool,
    #[serde(default)]
    pub(in crate::local) user_metadata: Option<Map<String, Value>>,
}

/// A checkpoint's record; its weights lie beside it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Checkpoint {
    pub(in crate::local) path: TinkerPath,
    #[serde(default = "local")]
    pub(in crate::local) owner: String,
    pub(in crate::local) base_model: String,
    pub(in crate::local) lora: LoraConfig,
    pub(in crate::local) time: Timestamp,
    /// Which model it was made on; names can be the same.
    #[serde(default)]
    pub(in crate::local) fingerprint: Option<u64>,
    /// The file of the weights, beside the record: a new one each time, so that replacing the
    /// record replaces both at once.
    pub(in crate::local) file: String,
    pub(in crate::local) size_bytes: u64,
    pub(in crate::local) checksum: u64,
    /// The file these weights took the place of, until it is gone.
    #[serde(default)]
    pub(in crate::local) replaces: Option<String>,
    #[serde(default)]
    pub(in crate::local) public: bool,
    #[serde(default)]
    pub(in crate::local) expires_at: Option<Timestamp>,
    #[serde(default)]
    pub(in crate::local) user_metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(in crate::local) project_id: Option<String>,
}

/// Every run, every checkpoint and the folder they are kept in.
#[derive(Debug)]
pub(in crate::local) struct Catalogue {
    folder: Folder,
    shelves: Mutex<Shelves>,
    /// Held by whoever changes a record, from the look at what it was until disk and shelves say
    /// what it is: two changes that overlap would undo each other. Nobody reads with it.
    writing: Mutex<()>,
    /// Records that could not be read, which nothing may take the place of.
    unreadable: BTreeSet<PathBuf>,
    problems: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct Shelves {
    runs: BTreeMap<String, Run>,
    /// By run, so that a run's are found without looking at all.
    checkpoints: BTreeMap<String, BTreeMap<TinkerPath, Checkpoint>>,
}

impl Shelves {
    fn put(&mut self, checkpoint: Checkpoint) {
        let run = self.checkpoints.entry(checkpoint.path.run_id().to_string());
        run.or_default().insert(checkpoint.path.clone(), checkpoint);
    }

    fn remove(&mut self, path: &TinkerPath) {
        if let Some(run) = self.checkpoints.get_mut(&**path.run_id()) {
            run.remove(path);
            if run.is_empty() {
                self.checkpoints.remove(&**path.run_id());
            }
        }
    }
}

impl Catalogue {
    /// Opens a data folder, or makes a temporary one. Gives back what else it remembers.
    ///
    /// What an earlier process had begun to delete or to replace is finished. Nothing else is
    /// removed: weights that no readable record names stay, and are named as a problem.
    pub(in crate::local) fn open(folder: Option<PathBuf>) -> Result<(Self, Vec<Session>, Ledger)> {
        let folder = Folder::open(folder)?;
        let root = folder.path();
        let (runs, mut unreadable) = disk::read_records::<Run>(&root.join("runs"));
        let (sessions, more) = disk::read_records::<Session>(&root.join("sessions"));
        unreadable.extend(more);
        let (checkpoints, more) = read_checkpoints(root);
        unreadable.extend(more);
        let ledger = Ledger::open(&root.join("ledger"));
        let mut problems: Vec<String> = unreadable.values().cloned().collect();
        let mut shelves = Shelves::default();
        for record in runs {
            shelves.runs.insert(record.value.id.clone(), record.value);
        }
        let mut known = BTreeSet::new();
        for Record { path, value } in checkpoints {
            let weights = path.with_file_name(&value.file);
            if weights.exists() {
                known.insert(weights);
                shelves.put(value);
            } else {
                let problem = format!("{}: its weights {} are missing", path.display(), value.file);
                log::warn!("local server: {problem}");
                problems.push(problem);
            }
        }
        for weights in disk::files(&root.join("checkpoints"), ".safetensors") {
            if !known.contains(&weights) {
                let problem = "no readable record names it; it stays";
                let problem = format!("{}: {problem}", weights.display());
                log::warn!("local server: {problem}");
                problems.push(problem);
            }
        }
        // A record that cannot be read may name weights that were about to get their name.
        if unreadable.is_empty() {
            disk::sweep_partial(root);
        }
        let catalogue = Self {
            folder,
            shelves: Mutex::new(shelves),
            writing: Mutex::default(),
            unreadable: unreadable.into_keys().collect(),
            problems: Mutex::new(problems),
        };
        let sessions = sessions.into_iter().map(|record| record.value).collect();
        Ok((catalogue, sessions, ledger))
    }

    pub(in crate::local) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Adds to what is wrong with the folder.
    pub(in crate::local) fn note_problem(&self, problem: String) {
        log::warn!("local server: {problem}");
        lock(&self.problems).push(problem);
    }

    /// What was found damaged so far.
    pub(in crate::local) fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }

    pub(in crate::local) fn keep_session(&self, session: &Session) -> Result<()> {
        let name = format!("{}.json", disk::escape_id(&session.id));
        disk::write_record(&self.root().join("sessions").join(name), session)
    }

    pub(in crate::local) fn add_run(&self, run: Run) -> Result<()> {
        let _writing = lock(&self.writing);
        disk::write_record(&self.run_file(&run.id), &run)?;
        lock(&self.shelves).runs.insert(run.id.clone(), run);
        Ok(())
    }

    /// Notes a request to a run; written down with its next checkpoint.
    pub(in crate::local) fn touch_run(&self, id: &str, now: Timestamp) {
        if let Some(run) = lock(&self.shelves).runs.get_mut(id) {
            run.last_request_time = now;
        }
    }

    pub(in crate::local) fn mark_corrupted(&self, id: &str) {
        if let Some(run) = lock(&self.shelves).runs.get_mut(id) {
            run.corrupted = true;
        }
    }

    pub(in crate::local) fn run(&self, id: &str) -> Result<Run, StateError> {
        let shelves = lock(&self.shelves);
        let run = shelves.runs.get(id).cloned();
        run.ok_or_else(|| StateError::Missing(format!("no such training run: {id}")))
    }

    /// Every run, the one used last first.
    pub(in crate::local) fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = lock(&self.shelves).runs.values().cloned().collect();
        runs.sort_by(|a, b| (b.last_request_time, &b.id).cmp(&(a.last_request_time, &a.id)));
        runs
    }

    /// Keeps a checkpoint: the weights first, then the record that makes them count.
    pub(in crate::local) fn add_checkpoint(
        &self,
        mut checkpoint: Checkpoint,
        weights: &[u8],
    ) -> Result<()> {
        let path = checkpoint.path.clone();
        let record = self.record_file(&path);
        if self.unreadable.contains(&record) {
            let problem = format!("{path} has a record that this version cannot read");
            return Err(Error::invalid("path", problem));
        }
        checkpoint.file = format!("{}.safetensors", uuid::Uuid::new_v4());
        checkpoint.size_bytes = weights.len() as u64;
        checkpoint.checksum = disk::checksum(weights);
        let file = self.folder(&path).join(&checkpoint.file);
        // What takes long comes first: until the record names them, the weights do not count.
        disk::write_ahead(&file, weights)?;
        self.enter(checkpoint)
    }

    /// Has weights that were written ahead count. If that fails, everything is as it was.
    fn enter(&self, mut checkpoint: Checkpoint) -> Result<()> {
        let path = checkpoint.path.clone();
        let record = self.record_file(&path);
        let file = self.folder(&path).join(&checkpoint.file);
        let _writing = lock(&self.writing);
        let old = self.checkpoint(&path);
        let replaced = old.as_ref().map(|old| old.file.clone());
        checkpoint.replaces = replaced.clone();
        let written = disk::write_record(&record, &checkpoint);
        if let Err(error) = written.and_then(|()| disk::publish(&file)) {
            let undone = match &old {
                Some(old) => disk::write_record(&record, old),
                None => disk::remove(&record),
            };
            // As long as the record may name the new weights, they stay.
            let undone = undone
                .and_then(|()| disk::remove(&disk::ahead(&file)))
                .and_then(|()| disk::remove(&file));
            if let Err(error) = undone {
                log::error!("local server: {path} was not saved, but may be there later: {error}");
            }
            return Err(error);
        }
        let run = {
            let mut shelves = lock(&self.shelves);
            shelves.put(checkpoint);
            shelves.runs.get(&**path.run_id()).cloned()
        };
        // The checkpoint is there: what goes wrong with the rest does not undo it.
        let removed = replaced.map(|replaced| disk::remove(&self.folder(&path).join(replaced)));
        let noted = run.map(|run| disk::write_record(&self.run_file(&run.id), &run));
        for error in [removed, noted]
            .into_iter()
            .flatten()
            .filter_map(Result::err)
        {
            log::warn!("local server: {path} was saved, but {error}");
        }
        Ok(())
    }

    pub(in crate::local) fn checkpoint(&self, path: &TinkerPath) -> Option<Checkpoint> {
        lock(&self.shelves)
            .checkpoints
            .get(&**path.run_id())?
            .get(path)
            .cloned()
    }

    /// A checkpoint that must be there.
    pub(in crate::local) fn find(&self, path: &TinkerPath) -> Result<Checkpoint, StateError> {
        self.checkpoint(path)
            .ok_or_else(|| StateError::Missing(format!("no such checkpoint: {path}")))
    }

    /// The weights of a checkpoint. Those that are not what was written are set aside.
    pub(in crate::local) fn weights(&self, path: &TinkerPath) -> Result<Vec<u8>> {
        let missing = || Error::invalid("path", format!("no such checkpoint: {path}"));
        loop {
            let checkpoint = self.checkpoint(path).ok_or_else(missing)?;
            let read = disk::read(&self.folder(path).join(&checkpoint.file));
            match read {
                Ok(bytes) if disk::checksum(&bytes) == checkpoint.checksum => return Ok(bytes),
                // Replaced or deleted meanwhile: what there is now counts.
                _ if !self.is_current(&checkpoint) => {}
                Ok(_) => {
                    let problem = self.report_damage(&checkpoint, "its content has changed");
                    return Err(Error::invalid("path", problem));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a checkpoint is still what its path stands for.
    fn is_current(&self, checkpoint: &Checkpoint) -> bool {
        let current = self.checkpoint(&checkpoint.path);
        current.is_some_and(|current| current.file == checkpoint.file)
    }

    /// Checkpoints, newest first; of one run if it is named.
    pub(in crate::local) fn checkpoints(&self, run: Option<&str>) -> Vec<Checkpoint> {
        let shelves = lock(&self.shelves);
        let mut list: Vec<Checkpoint> = match run {
            Some(run) => {
                let run = shelves.checkpoints.get(run).into_iter();
                run.flat_map(BTreeMap::values).cloned().collect()
            }
            None => {
                let runs = shelves.checkpoints.values();
                runs.flat_map(BTreeMap::values).cloned().collect()
            }
        };
        list.sort_by(|a, b| (b.time, &b.path).cmp(&(a.time, &a.path)));
        list
    }

    /// The newest checkpoint of a kind.
    pub(in crate::local) fn last_checkpoint(
        &self,
        run: &str,
        kind: CheckpointKind,
    ) -> Option<Checkpoint> {
        let list = self.checkpoints(Some(run));
        list.into_iter().find(|c| c.path.kind() == kind)
    }

    /// The number of a run's next checkpoint without a name.
    pub(in crate::local) fn next_number(&self, run: &str, kind: CheckpointKind) -> usize {
        let list = self.checkpoints(Some(run));
        let mut number = list.iter().filter(|c| c.path.kind() == kind).count() + 1;
        while list.iter().any(|c| c.path.name() == format!("{number:06}")) {
            number += 1;
        }
        number
    }

    /// Changes a checkpoint's record.
    pub(in crate::local) fn edit(
        &self,
        path: &TinkerPath,
        change: impl FnOnce(&mut Checkpoint),
    ) -> Result<(), StateError> {
        let _writing = lock(&self.writing);
        let mut checkpoint = self.find(path)?;
        change(&mut checkpoint);
        self.write_checkpoint(&checkpoint)?;
        lock(&self.shelves).put(checkpoint);
        Ok(())
    }

    /// Removes a checkpoint. Its record is renamed first, so that it is gone whatever happens next,
    /// and the rest of the deletion can be made up for.
    pub(in crate::local) fn delete(&self, path: &TinkerPath) -> Result<(), StateError> {
        self.delete_if(path, |_| true)
    }

    /// Removes a checkpoint that is still as it should be for that.
    fn delete_if(
        &self,
        path: &TinkerPath,
        is_due: impl Fn(&Checkpoint) -> bool,
    ) -> Result<(), StateError> {
        let _writing = lock(&self.writing);
        if !is_due(&self.find(path)?) {
            return Ok(());
        }
        let record = self.record_file(path);
        let deleted = record.with_extension(DELETED);
        disk::rename(&record, &deleted)?;
        lock(&self.shelves).remove(path);
        // It is gone; the next start makes up for the rest.
        if let Err(error) = finish_deleting(self.root(), &deleted) {
            log::warn!("local server: {path} was deleted, but {error}");
        }
        Ok(())
    }

    /// Removes the checkpoints whose time is up.
    pub(in crate::local) fn expire(&self, now: Timestamp) {
        let has_expired = |one: &Checkpoint| one.expires_at.is_some_and(|at| at <= now);
        let expired: Vec<TinkerPath> = lock(&self.shelves)
            .checkpoints
            .values()
            .flat_map(BTreeMap::values)
            .filter(|checkpoint| has_expired(checkpoint))
            .map(|checkpoint| checkpoint.path.clone())
            .collect();
        for path in expired {
            match self.delete_if(&path, has_expired) {
                // Somebody else deleted it meanwhile.
                Ok(()) | Err(StateError::Missing(_)) => {}
                Err(error) => log::warn!("local server: {path} has expired but stays: {error}"),
            }
        }
    }

    /// Forgets runs that are older than `since` or not among the latest `count`, are not alive and
    /// have no checkpoints.
    pub(in crate::local) fn prune_runs(
        &self,
        since: Timestamp,
        count: usize,
        is_alive: impl Fn(&str) -> bool,
    ) {
        let runs = self.runs().into_iter().enumerate();
        let over = runs.filter(|(place, run)| *place >= count || run.last_request_time < since);
        for (_, run) in over {
            let _writing = lock(&self.writing);
            let mut shelves = lock(&self.shelves);
            if shelves.checkpoints.contains_key(&run.id) || is_alive(&run.id) {
                continue;
            }
            shelves.runs.remove(&run.id);
            drop(shelves);
            if let Err(error) = disk::remove(&self.run_file(&run.id)) {
                log::warn!("local server: {error}");
            }
        }
    }

    /// Forgets the records of sessions.
    pub(in crate::local) fn remove_sessions(&self, ids: &[String]) {
        for id in ids {
            let name = format!("{}.json", disk::escape_id(id));
            if let Err(error) = disk::remove(&self.root().join("sessions").join(name)) {
                log::warn!("local server: {error}");
            }
        }
    }

    /// Sets a checkpoint aside because its weights cannot be used, and says so.
    fn report_damage(&self, checkpoint: &Checkpoint, error: &str) -> String {
        let path = &checkpoint.path;
        let _writing = lock(&self.writing);
        if !self.is_current(checkpoint) {
            return format!("{path} was damaged and has been replaced: {error}");
        }
        let damaged = self.root().join("damaged");
        let weights = self.folder(path).join(&checkpoint.file);
        let message = disk::set_aside(&weights, &damaged, error);
        disk::set_aside(&self.record_file(path), &damaged, error);
        lock(&self.shelves).remove(path);
        lock(&self.problems).push(message);
        format!("{path} is damaged and was set aside: {error}")
    }

    fn write_checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        disk::write_record(&self.record_file(&checkpoint.path), checkpoint)
    }

    fn run_file(&self, id: &str) -> PathBuf {
        let name = format!("{}.json", disk::escape_id(id));
        self.root().join("runs").join(name)
    }

    fn record_file(&self, path: &TinkerPath) -> PathBuf {
        let name = format!("{}.json", disk::escape(path.name()));
        self.folder(path).join(name)
    }

    fn folder(&self, path: &TinkerPath) -> PathBuf {
        folder_of(self.root(), path)
    }
}

/// Where a checkpoint's record and weights lie below a data folder.
fn folder_of(root: &Path, path: &TinkerPath) -> PathBuf {
    root.join("checkpoints")
        .join(disk::escape_id(path.run_id()))
        .join(path.kind().segment())
}

/// Refuses a record that would lead out of its folder: files are moved and removed by the names
/// in it, and anybody may have written it.
fn check_place(root: &Path, record: &Path, checkpoint: &Checkpoint) -> Result<(), String> {
    let folder = folder_of(root, &checkpoint.path);
    if record.parent() != Some(&folder) {
        return Err(format!("{} does not belong there", checkpoint.path));
    }
    let is_ours = |file: &str| {
        let stem = file.strip_suffix(".safetensors");
        stem.is_some_and(|stem| uuid::Uuid::try_parse(stem).is_ok())
    };
    let mut named = std::iter::once(&checkpoint.file).chain(&checkpoint.replaces);
    match named.find(|file| !is_ours(file)) {
        Some(file) => Err(format!("{file:?} is no name of weights")),
        None => Ok(()),
    }
}

/// The records of checkpoints, and the problem of each that cannot be read, after finishing what an
/// earlier process had begun.
fn read_checkpoints(root: &Path) -> (Vec<Record<Checkpoint>>, BTreeMap<PathBuf, String>) {
    let folder = root.join("checkpoints");
    for deleted in disk::files(&folder, &format!(".{DELETED}")) {
        if let Err(error) = finish_deleting(root, &deleted) {
            log::warn!("local server: {error}");
        }
    }
    let check = |path: &Path, value: &Checkpoint| check_place(root, path, value);
    let (mut records, unreadable) = disk::read_checked_records::<Checkpoint>(&folder, check);
    for Record { path, value } in &mut records {
        // Earlier versions did not mark capitals.
        let name = format!("{}.json", disk::escape(value.path.name()));
        let wanted = path.with_file_name(name);
        if *path != wanted && !wanted.exists() && disk::rename(path, &wanted).is_ok() {
            *path = wanted;
        }
        let weights = path.with_file_name(&value.file);
        if !weights.exists() && disk::ahead(&weights).exists() {
            // The record counts, so the weights do. What is wrong with them shows when they are read.
            let _ = disk::publish(&weights);
        }
        let replaced = value.replaces.as_ref().filter(|file| **file != value.file);
        if let Some(replaced) = replaced.filter(|_| weights.exists()) {
            let _ = disk::remove(&path.with_file_name(replaced));
        }
    }
    (records, unreadable)
}

/// Removes the weights that a deleted record names, then the record. One that cannot be read stays
/// with whatever it names.
fn finish_deleting(root: &Path, deleted: &Path) -> Result<()> {
    let checked = disk::read_record(deleted).and_then(|checkpoint: Checkpoint| {
        check_place(root, deleted, &checkpoint).map(|()| checkpoint)
    });
    let checkpoint = checked.map_err(|problem| {
        let message = format!("{} cannot be read: {problem}", deleted.display());
        Error::Internal(Context::new(message))
    })?;
    disk::remove(&deleted.with_file_name(checkpoint.file))?;
    disk::remove(deleted)
}

/// A checkpoint of nothing in particular.
#[cfg(test)]
pub(in crate::local) fn checkpoint(name: &str, expires_at: Option<Timestamp>) -> Checkpoint {
    Checkpoint {
        path: TinkerPath::new("s:train:0", CheckpointKind::Training, name).unwrap(),
        owner: local(),
        base_model: "m".into(),
        lora: LoraConfig::rank(1),
        time: Timestamp::UNIX_EPOCH,
        fingerprint: None,
        file: String::new(),
        size_bytes: 0,
        checksum: 0,
        replaces: None,
        public: false,
        expires_at,
        user_metadata: None,
        project_id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a folder where a file was, which can then be neither written nor removed.
    fn block(file: &Path) {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    }

    /// Two things done to one checkpoint side by side, again and again. What the disk says then is
    /// what the catalogue says, and no file is without a record.
    #[track_caller]
    fn check_together(
        first: impl Fn(&Catalogue, &TinkerPath) + Sync,
        second: impl Fn(&Catalogue, &TinkerPath) + Sync,
        after: impl Fn(&Catalogue, &TinkerPath),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let open = || Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
        let mut catalogue = open();
        for round in 0..10 {
            let old = checkpoint("a", Some(Timestamp::UNIX_EPOCH));
            let path = old.path.clone();
            catalogue.add_checkpoint(old, b"old").unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    first(&catalogue, &path);
                });
                start.wait();
                second(&catalogue, &path);
            });
            after(&catalogue, &path);
            if let Some(known) = catalogue.checkpoint(&path) {
                let weights = catalogue.weights(&path);
                assert!(weights.is_ok(), "round {round}: {known:?}: {weights:?}");
            }
            let listed = format!("{:?}", catalogue.checkpoints(None));
            drop(catalogue);
            catalogue = open();
            assert_eq!(catalogue.problems(), Vec::<String>::new(), "round {round}");
            let found = format!("{:?}", catalogue.checkpoints(None));
            assert_eq!(found, listed, "round {round}");
        }
    }

    fn save(catalogue: &Catalogue, path: &TinkerPath) {
        let new = checkpoint(path.name(), None);
        catalogue.add_checkpoint(new, b"new").unwrap();
    }

    /// Waits until a save beside this has got as far as its record.
    fn await_record(catalogue: &Catalogue, path: &TinkerPath) {
        let record = || std::fs::read_to_string(catalogue.record_file(path)).unwrap();
        while !record().contains("\"expires_at\": null") {
            std::thread::yield_now();
        }
    }

    fn edit(catalogue: &Catalogue, path: &TinkerPath) {
        // It may be gone.
        let _ = catalogue.edit(path, |one| one.public = true);
    }

    fn delete(catalogue: &Catalogue, path: &TinkerPath) {
        let _ = catalogue.delete(path);
    }

    fn expire(catalogue: &Catalogue, _: &TinkerPath) {
        catalogue.expire(Timestamp::UNIX_EPOCH);
    }

    fn late(
        what: impl Fn(&Catalogue, &TinkerPath) + Sync,
    ) -> impl Fn(&Catalogue, &TinkerPath) + Sync {
        move |catalogue, path| {
            await_record(catalogue, path);
            what(catalogue, path);
        }
    }

    fn is_saved(catalogue: &Catalogue, path: &TinkerPath) {
        assert!(catalogue.checkpoint(path).is_some(), "it was acknowledged");
    }

    /// Whoever hears that a save failed saves again, or goes on without it.
    #[test]
    fn what_was_saved_did_not_fail() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
        let old = checkpoint("a", None);
        let path = old.path.clone();
        let run = Run {
            id: path.run_id().to_string(),
            session_id: "s".into(),
            owner: local(),
            base_model: "m".into(),
            lora: LoraConfig::rank(1),
            created_at: Timestamp::UNIX_EPOCH,
            last_request_time: Timestamp::UNIX_EPOCH,
            corrupted: false,
            user_metadata: None,
        };
        let file = catalogue.run_file(&run.id);
        catalogue.add_run(run).unwrap();
        catalogue.add_checkpoint(old, b"old").unwrap();
        // Neither the record of the run nor the old weights can be got rid of.
        let weights = catalogue.checkpoint(&path).unwrap().file;
        block(&file);
        block(&catalogue.folder(&path).join(weights));
        save(&catalogue, &path);
        assert_eq!(catalogue.weights(&path).unwrap(), b"new");
    }

    /// Nor is it there after a restart, and what it would have replaced is.
    #[test]
    fn what_failed_was_not_saved() {
        for replaces in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let open = || Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
            let catalogue = open();
            let path = checkpoint("a", None).path;
            if replaces {
                let old = checkpoint("a", None);
                catalogue.add_checkpoint(old, b"old").unwrap();
            }
            // The weights cannot get their name: they are not there.
            let new = Checkpoint {
                file: format!("{}.safetensors", uuid::Uuid::new_v4()),
                ..checkpoint("a", None)
            };
            catalogue.enter(new).unwrap_err();
            let check = |catalogue: &Catalogue| match replaces {
                true => assert_eq!(catalogue.weights(&path).unwrap(), b"old"),
                false => assert!(catalogue.checkpoint(&path).is_none()),
            };
            check(&catalogue);
            drop(catalogue);
            let catalogue = open();
            assert_eq!(catalogue.problems(), Vec::<String>::new());
            check(&catalogue);
        }
    }

    /// What a record replaces is removed for the sake of what it names.
    #[test]
    fn old_weights_stay_as_long_as_there_are_no_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
        let catalogue = open();
        let old = checkpoint("a", None);
        let path = old.path.clone();
        catalogue.add_checkpoint(old, b"old").unwrap();
        let old = catalogue.checkpoint(&path).unwrap();
        let new = Checkpoint {
            file: format!("{}.safetensors", uuid::Uuid::new_v4()),
            replaces: Some(old.file.clone()),
            ..old.clone()
        };
        catalogue.write_checkpoint(&new).unwrap();
        let weights = catalogue.folder(&path).join(&old.file);
        drop(catalogue);
        let _catalogue = open();
        assert_eq!(std::fs::read(weights).unwrap(), b"old");
    }

    /// Whoever hears that it failed deletes again, and is told that there is no such checkpoint.
    #[test]
    fn what_is_gone_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
        let one = checkpoint("a", None);
        let path = one.path.clone();
        catalogue.add_checkpoint(one, b"one").unwrap();
        // The weights cannot be got rid of.
        let weights = catalogue.checkpoint(&path).unwrap().file;
        block(&catalogue.folder(&path).join(weights));
        assert!(catalogue.delete(&path).is_ok());
        assert!(catalogue.checkpoint(&path).is_none());
    }

    /// Nor is it half gone, so that the next start would finish the deletion.
    #[cfg(unix)]
    #[test]
    fn what_could_not_be_deleted_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Catalogue::open(Some(folder.path().to_owned())).unwrap().0;
        let catalogue = open();
        let one = checkpoint("a", None);
        let path = one.path.clone();
        catalogue.add_checkpoint(one, b"one").unwrap();
        disk::while_sealed(&catalogue.folder(&path), || {
            assert!(catalogue.delete(&path).is_err());
        });
        catalogue.edit(&path, |one| one.public = true).unwrap();
        drop(catalogue);
        let catalogue = open();
        assert_eq!(catalogue.problems(), Vec::<String>::new());
        assert_eq!(catalogue.weights(&path).unwrap(), b"one");
    }

    #[test]
    fn a_save_beside_the_end_of_what_it_replaces_stays() {
        check_together(save, late(expire), is_saved);
    }

    #[test]
    fn a_save_beside_a_change_names_its_own_weights() {
        check_together(save, late(edit), is_saved);
    }

    #[test]
    fn two_saves_at_once_leave_one_file() {
        check_together(save, save, is_saved);
        check_together(save, late(save), is_saved);
    }

    #[test]
    fn what_is_deleted_beside_a_change_stays_deleted() {
        check_together(delete, edit, |catalogue, path| {
            assert!(catalogue.checkpoint(path).is_none());
        });
    }
}
