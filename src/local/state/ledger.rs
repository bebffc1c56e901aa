//! What was used, by the hour, and what was done with checkpoints.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::sync::lock;
use crate::types::{Timestamp, TinkerPath};

/// How many deeds are remembered.
const DEEDS: usize = 100_000;

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

/// How much of a kind a session used in an hour.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Count {
    /// The start of the hour, in seconds.
    pub(in crate::local) hour: i64,
    pub(in crate::local) session: String,
    pub(in crate::local) kind: Kind,
    pub(in crate::local) count: u64,
}

/// Something that was done with a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Deed {
    pub(in crate::local) time: Timestamp,
    pub(in crate::local) event: String,
    pub(in crate::local) path: TinkerPath,
}

/// The ledger as it is written down.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::local) struct Page {
    counts: Vec<Count>,
    deeds: Vec<Deed>,
}

#[derive(Debug, Default)]
pub(in crate::local) struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    counts: BTreeMap<(i64, String, Kind), u64>,
    deeds: Vec<Deed>,
    changed: bool,
    /// What was counted since the server started, in the order of [`Kind::ALL`].
    totals: [u64; 4],
}

impl Ledger {
    /// Goes on from what was written down.
    pub(in crate::local) fn new(pages: impl Iterator<Item = Page>) -> Self {
        let mut books = Books::default();
        for page in pages {
            for Count {
                hour,
                session,
                kind,
                count,
            } in page.counts
            {
                *books.counts.entry((hour, session, kind)).or_default() += count;
            }
            books.deeds.extend(page.deeds);
        }
        Self {
            books: Mutex::new(books),
        }
    }

    /// Counts usage.
    pub(in crate::local) fn count(&self, now: Timestamp, session: &str, kind: Kind, count: u64) {
        let hour = now.as_second() - now.as_second().rem_euclid(3600);
        let mut books = lock(&self.books);
        let key = (hour, session.to_owned(), kind);
        *books.counts.entry(key).or_default() += count;
        books.totals[kind as usize] += count;
        books.changed = true;
    }

    /// Notes a deed.
    pub(in crate::local) fn note(&self, now: Timestamp, event: &str, path: &TinkerPath) {
        let mut books = lock(&self.books);
        if books.deeds.len() >= DEEDS {
            books.deeds.drain(..DEEDS / 10);
        }
        books.deeds.push(Deed {
            time: now,
            event: event.to_owned(),
            path: path.clone(),
        });
        books.changed = true;
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
            .filter(|((hour, ..), _)| hours.contains(hour));
        wanted.map(count).collect()
    }

    pub(in crate::local) fn deeds(&self) -> Vec<Deed> {
        lock(&self.books).deeds.clone()
    }

    /// What to write down; `None` if nothing happened since the last time.
    pub(in crate::local) fn changed(&self) -> Option<Page> {
        let mut books = lock(&self.books);
        if !std::mem::take(&mut books.changed) {
            return None;
        }
        Some(Page {
            counts: books.counts.iter().map(count).collect(),
            deeds: books.deeds.clone(),
        })
    }
}

fn count(((hour, session, kind), count): (&(i64, String, Kind), &u64)) -> Count {
    Count {
        hour: *hour,
        session: session.clone(),
        kind: *kind,
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
        ledger.count(at(3599), "s", Kind::Training, 5);
        ledger.count(at(3600), "s", Kind::Training, 7);
        ledger.count(at(7199), "s", Kind::Training, 1);
        let counts = |ledger: &Ledger, from, to| -> Vec<u64> {
            let counts = ledger.counts(at(from), at(to));
            counts.iter().map(|count| count.count).collect()
        };
        assert_eq!(counts(&ledger, 0, 7200), [5, 8]);
        assert_eq!(counts(&ledger, 3600, 7200), [8]);
        let page = ledger.changed().unwrap();
        assert!(ledger.changed().is_none());
        let again = Ledger::new([page].into_iter());
        assert_eq!(counts(&again, 0, 7200), [5, 8]);
    }
}
