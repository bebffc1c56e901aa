//! What is on the wire and in flight.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::sync::lock;

/// A submission that goes unanswered for this long, or twice as long at most, no longer counts:
/// silent ones must not hold every permit until their timeout.
pub(super) const SILENT: Duration = Duration::from_secs(5);

/// The counts, under a lock of their own, so that guards need no job type.
pub(super) struct Usage {
    pub(super) used: Mutex<Used>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Used {
    /// Counts every change, so that whoever decides to wait cannot miss one.
    pub(super) version: u64,
    /// Submissions of the present generation and of the one before; older ones are silent.
    pub(super) fresh: Load,
    pub(super) aging: Load,
    pub(super) silent: usize,
    pub(super) generation: u64,
    /// When the present generation began.
    pub(super) turned: Option<Instant>,
    pub(super) flights: usize,
    /// Flights that have ended.
    pub(super) ended: u64,
    /// What the dispatcher waits for. Waking it for anything else costs more than it brings: a
    /// thread that ends a sample takes the next one itself.
    pub(super) wanted: Wanted,
}

/// Submissions on the wire.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Load {
    pub(super) posts: usize,
    pub(super) bytes: i64,
}

impl Used {
    pub(super) fn posts(&self) -> usize {
        self.fresh.posts + self.aging.posts
    }

    pub(super) fn bytes(&self) -> i64 {
        self.fresh.bytes.saturating_add(self.aging.bytes)
    }

    /// Begins a new generation when the present one has lasted long enough.
    pub(super) fn turn(&mut self, now: Instant) {
        let turned = *self.turned.get_or_insert(now);
        if now.saturating_duration_since(turned) >= SILENT {
            self.silent += self.aging.posts;
            self.aging = std::mem::take(&mut self.fresh);
            self.generation += 1;
            self.turned = Some(now);
        }
    }

    fn answered(&mut self, generation: u64, bytes: i64) {
        let load = match self.generation - generation {
            0 => &mut self.fresh,
            1 => &mut self.aging,
            _ => {
                self.silent -= 1;
                return;
            }
        };
        load.posts -= 1;
        load.bytes -= bytes;
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Nothing but time, or it does not wait.
    #[default]
    Nothing,
    Job,
    Post,
    Flight,
}

impl Usage {
    pub(super) fn change(&self, what: Wanted, change: impl FnOnce(&mut Used)) {
        let mut used = lock(&self.used);
        change(&mut used);
        used.version += 1;
        let wake = used.wanted == what;
        drop(used);
        if wake {
            self.changed.notify_all();
        }
    }
}

/// The right to have one submission on the wire.
pub(crate) struct Post {
    pub(super) usage: Arc<Usage>,
    pub(super) generation: u64,
    pub(super) bytes: i64,
}

impl Drop for Post {
    fn drop(&mut self) {
        self.usage.change(Wanted::Post, |used| {
            used.answered(self.generation, self.bytes);
        });
    }
}

/// A place among the samples in flight.
pub(crate) struct Flight(pub(super) Arc<Usage>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.change(Wanted::Flight, |used| {
            used.flights -= 1;
            used.ended += 1;
        });
    }
}
