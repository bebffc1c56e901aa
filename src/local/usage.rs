//! What was used, by the hour.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::types::Timestamp;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Tokens trained on.
    Training,
    /// Prompt tokens.
    Prefill,
    /// Sampled tokens.
    Sample,
    /// Checkpoints saved.
    Checkpoint,
}

/// Counts by hour, session and kind.
#[derive(Debug, Default)]
pub(super) struct Usage {
    counts: Mutex<BTreeMap<Key, u64>>,
}

/// The start of the hour in seconds, the session, the kind.
pub(super) type Key = (i64, String, Kind);

impl Usage {
    pub(super) fn add(&self, now: Timestamp, session: &str, kind: Kind, count: u64) {
        let hour = now.as_second() - now.as_second().rem_euclid(3600);
        let key = (hour, session.to_owned(), kind);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(key).or_default() += count;
    }

    /// The counts of the hours from the first time up to the second.
    pub(super) fn between(&self, from: Timestamp, to: Timestamp) -> Vec<(Key, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .filter(|((hour, ..), _)| (from.as_second()..to.as_second()).contains(hour))
            .map(|(key, count)| (key.clone(), *count))
            .collect()
    }
}
