//! What was used, by the hour, and what was done with checkpoints.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use super::disk;
use super::sessions::{LOCAL, local};
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::types::{Timestamp, TinkerPath};

/// How many deeds are remembered.
const DEEDS: usize = 100_000;

/// A file is written anew when it is twice as long as it need be, but not below this.
const COMPACT: u64 = 1 << 20;
/// Counts are forgotten after this many seconds.
const OLDEST: i64 = 400 * 24 * 3600;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::local) enum Kind {
    /// Tokens trained on.
    Training,
    /// Prompt tokens.
    Prefill,
    /// Sampled tokens.
    Sample,
    /// Checkpoints saved.
    Checkpoint,
}

impl Kind {
    /// Every kind.
    const ALL: [Self; 4] = [
        Self::Training,
        Self::Prefill,
        Self::Sample,
        Self::Checkpoint,
    ];

    /// As metrics call it.
    pub(in crate::local) fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Prefill => "prefill",
            Self::Sample => "sample",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// How much of a kind a session used of a model in an hour.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Count {
    #[serde(flatten)]
    pub(in crate::local) of: Usage,
    pub(in crate::local) count: u64,
}

/// What is counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::local) struct Usage {
    /// The start of the hour, in seconds.
    pub(in crate::local) hour: i64,
    pub(in crate::local) session: String,
    /// Whose it is; whoever used the server without a key is [`LOCAL`], which goes without saying.
    #[serde(default = "local", skip_serializing_if = "is_local")]
    pub(in crate::local) owner: String,
    /// Earlier versions did not write it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::local) base_model: Option<String>,
    pub(in crate::local) kind: Kind,
}

fn is_local(owner: &str) -> bool {
    owner == LOCAL
}

/// Something that was done with a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Deed {
    pub(in crate::local) time: Timestamp,
    pub(in crate::local) event: String,
    pub(in crate::local) path: TinkerPath,
}

/// One line of the ledger's file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Count(Count),
    Deed(Deed),
}

/// The ledger as earlier versions wrote it: whole.
#[derive(Debug, Deserialize)]
struct Page {
    counts: Vec<Count>,
    deeds: Vec<Deed>,
}

#[derive(Debug, Default)]
pub(in crate::local) struct Ledger {
    books: Mutex<Books>,
    /// `None` where nothing is written down.
    journal: Mutex<Option<Journal>>,
}

#[derive(Debug, Default)]
struct Books {
    counts: BTreeMap<Usage, u64>,
    deeds: Vec<Deed>,
    /// What was not written down yet.
    new_counts: BTreeMap<Usage, u64>,
    new_deeds: Vec<Deed>,
    /// What was counted since the server started, in the order of [`Kind::ALL`].
    totals: [u64; 4],
}

/// Lines are appended to one file; now and then a new file with all of them takes its place.
#[derive(Debug)]
struct Journal {
    folder: PathBuf,
    /// The number of the file.
    generation: u64,
    bytes: u64,
    /// Beyond this the file is written anew.
    compact_at: u64,
}

impl Journal {
    fn file(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("{generation:06}.jsonl"))
    }

    fn append(&mut self, text: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.file(self.generation))?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// Puts a file with these lines in the place of the current one.
    fn compact(&mut self, text: &str) -> Result<()> {
        disk::write(&self.file(self.generation + 1), text.as_bytes())?;
        // The new file is complete, so the old one is not needed.
        let _ = std::fs::remove_file(self.file(self.generation));
        self.generation += 1;
        self.bytes = text.len() as u64;
        self.compact_at = (self.bytes * 2).max(COMPACT);
        Ok(())
    }
}

impl Ledger {
    /// Goes on from what was written down in a folder.
    ///
    /// Of several files the newest counts: each is complete before it gets its name. A line that
    /// was cut short by a crash is skipped.
    pub(super) fn open(folder: &Path) -> Self {
        let newest = disk::files(folder, ".jsonl").pop();
        let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse::<u64>().ok();
        let generation = newest.as_ref().and_then(number).unwrap_or(0);
        let text = newest.and_then(|path| std::fs::read(path).ok());
        let text = String::from_utf8_lossy(text.as_deref().unwrap_or_default()).into_owned();
        let mut lines: Vec<Line> = text.lines().flat_map(serde_json::from_str).collect();
        if generation == 0
            && let Ok(page) = disk::read_record::<Page>(&folder.join("ledger.json"))
        {
            lines.extend(page.counts.into_iter().map(Line::Count));
            lines.extend(page.deeds.into_iter().map(Line::Deed));
        }
        let mut books = Books::default();
        for line in lines {
            match line {
                Line::Count(Count { of, count }) => *books.counts.entry(of).or_default() += count,
                Line::Deed(deed) => books.deeds.push(deed),
            }
        }
        Self {
            books: Mutex::new(books),
            journal: Mutex::new(Some(Journal {
                folder: folder.to_owned(),
                generation,
                bytes: text.len() as u64,
                // The first line written makes a file of the current kind, without a cut line.
                compact_at: 0,
            })),
        }
    }

    /// Writes down what is new.
    pub(in crate::local) fn write(&self) {
        let mut journal = lock(&self.journal);
        let Some(journal) = &mut *journal else { return };
        let (new, all) = {
            let mut books = lock(&self.books);
            if books.new_counts.is_empty() && books.new_deeds.is_empty() {
                return;
            }
            let (counts, deeds) = (
                std::mem::take(&mut books.new_counts),
                std::mem::take(&mut books.new_deeds),
            );
            let new = lines(counts.iter().map(count), &deeds);
            let due = journal.bytes + new.len() as u64 > journal.compact_at;
            let all = due.then(|| lines(books.counts.iter().map(count), &books.deeds));
            (new, all)
        };
        let written = match all {
            Some(all) => journal.compact(&all),
            None => journal.append(&new).map_err(|error| {
                Error::Internal(Context::caused("cannot write the ledger", error))
            }),
        };
        if let Err(error) = written {
            // All of it is written as soon as that works again.
            journal.compact_at = 0;
            log::warn!("local server: {error}");
        }
    }

    /// Counts what a session used of a model.
    pub(in crate::local) fn count(
        &self,
        now: Timestamp,
        (owner, session): (&str, &str),
        base_model: &str,
        kind: Kind,
        count: u64,
    ) {
        let hour = now.as_second() - now.as_second().rem_euclid(3600);
        let mut books = lock(&self.books);
        let key = Usage {
            hour,
            session: session.to_owned(),
            owner: owner.to_owned(),
            base_model: Some(base_model.to_owned()),
            kind,
        };
        *books.counts.entry(key.clone()).or_default() += count;
        *books.new_counts.entry(key).or_default() += count;
        books.totals[kind as usize] += count;
        let oldest = hour - OLDEST;
        while let Some(first) = books.counts.first_entry()
            && first.key().hour < oldest
        {
            first.remove();
        }
    }

    /// Notes a deed.
    pub(in crate::local) fn note(&self, now: Timestamp, event: &str, path: &TinkerPath) {
        let mut books = lock(&self.books);
        if books.deeds.len() >= DEEDS {
            books.deeds.drain(..DEEDS / 10);
        }
        let deed = Deed {
            time: now,
            event: event.to_owned(),
            path: path.clone(),
        };
        books.deeds.push(deed.clone());
        books.new_deeds.push(deed);
    }

    /// What was counted since the server started.
    pub(in crate::local) fn totals(&self) -> [(Kind, u64); 4] {
        let totals = lock(&self.books).totals;
        Kind::ALL.map(|kind| (kind, totals[kind as usize]))
    }

    /// The counts of the hours from the first time up to the second.
    pub(in crate::local) fn counts(&self, from: Timestamp, to: Timestamp) -> Vec<Count> {
        let hours = from.as_second()..to.as_second();
        let books = lock(&self.books);
        let wanted = books
            .counts
            .iter()
            .filter(|(of, _)| hours.contains(&of.hour));
        wanted.map(count).collect()
    }

    pub(in crate::local) fn deeds(&self) -> Vec<Deed> {
        lock(&self.books).deeds.clone()
    }
}

fn lines(counts: impl Iterator<Item = Count>, deeds: &[Deed]) -> String {
    let deeds = deeds.iter().cloned().map(Line::Deed);
    let lines = counts.map(Line::Count).chain(deeds);
    let mut text = String::new();
    for line in lines {
        // Plain values, which can be encoded.
        text += &serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
    }
    text
}

fn count((of, count): (&Usage, &u64)) -> Count {
    Count {
        of: of.clone(),
        count: *count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_the_hour_and_survives_being_written_down() {
        let ledger = Ledger::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        ledger.count(at(3599), ("ann", "s"), "m", Kind::Training, 5);
        ledger.count(at(3600), ("ann", "s"), "m", Kind::Training, 7);
        ledger.count(at(7199), ("ann", "s"), "m", Kind::Training, 1);
        let counts = |ledger: &Ledger, from, to| -> Vec<u64> {
            let counts = ledger.counts(at(from), at(to));
            counts.iter().map(|count| count.count).collect()
        };
        assert_eq!(counts(&ledger, 0, 7200), [5, 8]);
        assert_eq!(counts(&ledger, 3600, 7200), [8]);
    }

    #[test]
    fn lines_of_earlier_versions_name_neither_model_nor_owner() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"{"count": {"hour": 3600, "session": "s", "kind": "sample", "count": 4}}"#;
        std::fs::write(folder.path().join("000001.jsonl"), line).unwrap();
        let ledger = Ledger::open(folder.path());
        let at = |second| Timestamp::from_second(second).unwrap();
        ledger.count(at(3600), ("ann", "s"), "m", Kind::Sample, 2);
        ledger.write();
        let counts = Ledger::open(folder.path()).counts(at(0), at(7200));
        let seen: Vec<_> = counts
            .into_iter()
            .map(|one| (one.of.owner, one.of.base_model, one.count))
            .collect();
        let (ann, model) = ("ann".to_owned(), Some("m".to_owned()));
        assert_eq!(seen, [(ann, model, 2), (local(), None, 4)]);
    }

    #[test]
    fn goes_on_from_what_was_appended_compacted_or_cut_short() {
        let folder = tempfile::tempdir().unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        let total = |ledger: &Ledger| -> u64 {
            ledger
                .counts(at(0), at(7200))
                .iter()
                .map(|one| one.count)
                .sum()
        };
        let path: TinkerPath = "tinker://run/weights/a".parse().unwrap();
        for round in 1..=5 {
            let ledger = Ledger::open(folder.path());
            assert_eq!(total(&ledger), 30 * (round - 1));
            assert_eq!(ledger.deeds().len() as u64, round - 1);
            for _ in 0..10 {
                ledger.count(at(3600), ("ann", "s"), "m", Kind::Training, 3);
                ledger.write();
            }
            ledger.note(at(3600), "saved", &path);
            ledger.write();
            ledger.write();
            let file = disk::files(folder.path(), ".jsonl").pop().unwrap();
            // A crash in the middle of a line.
            let mut file = File::options().append(true).open(file).unwrap();
            file.write_all(b"{\"count\": {\"ho").unwrap();
        }
        assert_eq!(disk::files(folder.path(), ".jsonl").len(), 1);
    }
}
