//! Which groups are on their way when several batches are played at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::sync::lock;
use crate::train::record::CheckpointRecord;
use crate::train::row::{Row, Value};

/// A group's place in the data: its batch, and its number there.
pub(super) type Place = (usize, usize);

/// The groups that were handed out and not trained on yet, and where the others begin. Each
/// checkpoint keeps it, so that a resumed run trains on every group once.
///
/// `Clone + Send + Sync` around one `Arc`.
#[derive(Debug, Clone)]
pub(super) struct Ledger(Arc<Mutex<Entries>>);

#[derive(Debug, Default, PartialEq)]
struct Entries {
    open: BTreeSet<Place>,
    next: Place,
}

/// The names in `checkpoints.jsonl`.
const OPEN: &str = "groups_open";
const NEXT: &str = "groups_next";

impl Ledger {
    /// After a checkpoint. One that says nothing of groups, of another mode or tool, has trained
    /// on all batches before its own and on no other.
    pub(super) fn after(last: Option<&CheckpointRecord>, start: usize) -> Self {
        let read = last.and_then(|last| Entries::read(&last.extra));
        let entries = read.unwrap_or(Entries {
            open: BTreeSet::new(),
            next: (start, 0),
        });
        Self(Arc::new(Mutex::new(entries)))
    }

    /// The first batch with a group that is to be handed out.
    pub(super) fn first_batch(&self) -> usize {
        let entries = lock(&self.0);
        let open = entries.open.first().map(|place| place.0);
        open.map_or(entries.next.0, |open| open.min(entries.next.0))
    }

    /// Whether this group is to be handed out, which is noted. Asked for all groups in order.
    pub(super) fn hand_out(&self, place: Place) -> bool {
        let mut entries = lock(&self.0);
        if place >= entries.next {
            entries.open.insert(place);
            entries.next = (place.0, place.1 + 1);
        }
        entries.open.contains(&place)
    }

    /// How many groups were handed out and not trained on yet.
    pub(super) fn open(&self) -> usize {
        lock(&self.0).open.len()
    }

    /// Strikes out groups that were trained on or given up.
    pub(super) fn close(&self, places: &[Place]) {
        let mut entries = lock(&self.0);
        for place in places {
            entries.open.remove(place);
        }
    }

    /// As a checkpoint's row has it.
    pub(super) fn to_row(&self) -> Row {
        let entries = lock(&self.0);
        Row::new()
            .with(OPEN, json!(entries.open))
            .with(NEXT, json!(entries.next))
    }
}

impl Entries {
    fn read(row: &Row) -> Option<Self> {
        let value = |name: &str| match row.get(name) {
            Some(Value::Json(value)) => Some(value.clone()),
            _ => None,
        };
        Some(Self {
            open: serde_json::from_value(value(OPEN)?).ok()?,
            next: serde_json::from_value(value(NEXT)?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_hands_out_what_was_open_and_what_comes_next() {
        let ledger = Ledger::after(None, 2);
        assert_eq!(ledger.first_batch(), 2);
        assert!(!ledger.hand_out((1, 1)), "before the start");
        let all = [(2, 0), (2, 1), (3, 0), (3, 1)];
        assert!(all[..3].iter().all(|place| ledger.hand_out(*place)));
        ledger.close(&[(2, 1), (3, 0)]);
        let mut record = CheckpointRecord::new("000003");
        record.extra = Row::parse(&ledger.to_row().to_line()).unwrap();
        assert_eq!(
            record.extra.to_line(),
            r#"{"groups_open": [[2, 0]], "groups_next": [3, 1]}"#
        );

        let resumed = Ledger::after(Some(&record), 3);
        assert_eq!(resumed.first_batch(), 2);
        let handed: Vec<Place> = all.into_iter().filter(|p| resumed.hand_out(*p)).collect();
        assert_eq!(handed, [(2, 0), (3, 1)]);
    }
}
