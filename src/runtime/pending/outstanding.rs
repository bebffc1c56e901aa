//! The operations whose results are not there yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::Status;
use crate::sync::{Condvar, Mutex, lock, wait_while};
use crate::types::Unfinished;

/// Every unfinished operation of a session.
#[derive(Clone, Default)]
pub(crate) struct Outstanding(Arc<Shared>);

#[derive(Default)]
struct Shared {
    open: Mutex<Open>,
    done: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    operations: BTreeMap<u64, Arc<Status>>,
}

impl Outstanding {
    /// Adds an operation, until the entry is dropped.
    pub(super) fn add(&self, status: &Arc<Status>) -> Entry {
        let mut open = lock(&self.0.open);
        let number = open.next;
        open.next += 1;
        open.operations.insert(number, status.clone());
        Entry {
            shared: self.0.clone(),
            number,
        }
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.0.open).operations.len()
    }

    /// Waits until there is none or the time is up; what is left then, the oldest first.
    pub(crate) fn drain(&self, deadline: Option<Instant>) -> Vec<Unfinished> {
        let open = lock(&self.0.open);
        let waits = |open: &mut Open| !open.operations.is_empty();
        let limit = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let open = wait_while(&self.0.done, open, limit, waits);
        let operations = open.operations.values();
        operations
            .map(|status| Unfinished::new(status.operation(), status.request_id(), status.age()))
            .collect()
    }
}

/// An operation's place among the unfinished ones.
pub(super) struct Entry {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut open = lock(&self.shared.open);
        open.operations.remove(&self.number);
        if open.operations.is_empty() {
            self.shared.done.notify_all();
        }
    }
}
