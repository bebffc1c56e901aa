//! The two ends of an operation: the promise of whoever works on it, and the slot of its handle.

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::outstanding::{Entry, Outstanding};
use super::{Pending, Source, Status, Until, Watcher};
use crate::error::{Context, Error, Result};
use crate::sync::{Condvar, Mutex, lock, wait_while};

/// What happens to an operation whose handle is dropped before its result was there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    GoesOn,
    Cancels,
}

/// Makes the two ends of an operation. `keep` is held by the handle: its session.
pub(crate) fn promise<T: Send + 'static>(
    status: Arc<Status>,
    on_drop: OnDrop,
    keep: Arc<dyn Any + Send + Sync>,
) -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Slot {
        state: Mutex::new(State {
            result: None,
            done: false,
            watchers: Vec::new(),
        }),
        ready: Condvar::new(),
    });
    let promise = Promise {
        slot: Some(slot.clone()),
        status: status.clone(),
        _entry: None,
    };
    let handle = Handle {
        slot,
        status,
        on_drop,
        _keep: keep,
    };
    (
        promise,
        Pending {
            source: Box::new(handle),
        },
    )
}

/// Ends an operation with an error, or asks with `None` whether it is still open.
pub(crate) type Aborter = Box<dyn Fn(Option<Error>) -> bool + Send + Sync>;

/// The working end. Dropping it unresolved resolves it with an error, so that nobody waits for
/// ever for something that was given up.
pub(crate) struct Promise<T> {
    slot: Option<Arc<Slot<T>>>,
    status: Arc<Status>,
    /// Its place among the unfinished, given up after the result is there.
    _entry: Option<Entry>,
}

impl<T: Send + 'static> Promise<T> {
    /// A way for someone else to end the operation early. Returns whether it was still open.
    pub(crate) fn aborter(&self) -> Aborter {
        let slot = self.slot.as_ref().map(Arc::downgrade);
        Box::new(move |error| {
            let Some(slot) = slot.as_ref().and_then(Weak::upgrade) else {
                return false;
            };
            let open = !lock(&slot.state).done;
            if let (true, Some(error)) = (open, error) {
                slot.resolve(Err(error));
            }
            open
        })
    }
}

impl<T> Promise<T> {
    /// Counts among the unfinished operations until it is resolved.
    pub(crate) fn counted(mut self, all: &Outstanding, status: &Arc<Status>) -> Self {
        self._entry = Some(all.add(status));
        self
    }

    pub(crate) fn resolve(mut self, result: Result<T>) {
        if let Some(slot) = self.slot.take() {
            slot.resolve(result);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let error = if std::thread::panicking() {
                Error::Internal(Context::new("a thread panicked while it worked on this"))
            } else if self.status.is_cancelled() {
                Error::Cancelled(Context::new("before its result was there"))
            } else {
                Error::Closed(Context::new("the client was closed before this was done"))
            };
            slot.resolve(Err(self.status.name(error)));
        }
    }
}

struct Slot<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    /// Boxed: thousands of slots wait empty.
    result: Option<Box<Result<T>>>,
    done: bool,
    watchers: Vec<Watcher>,
}

impl<T> Slot<T> {
    /// False if it was resolved before.
    fn resolve(&self, result: Result<T>) -> bool {
        let mut state = lock(&self.state);
        if state.done {
            return false;
        }
        state.result = Some(Box::new(result));
        state.done = true;
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        self.ready.notify_all();
        watchers.into_iter().for_each(Watcher::tell);
        true
    }
}

struct Handle<T> {
    slot: Arc<Slot<T>>,
    status: Arc<Status>,
    on_drop: OnDrop,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl<T: Send> Source<T> for Handle<T> {
    fn wait(&self, until: Until) -> Option<Result<T>> {
        let limit = match until {
            Until::Now => Some(Duration::ZERO),
            Until::Done => None,
            Until::At(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
        };
        let state = lock(&self.slot.state);
        let mut state = wait_while(&self.slot.ready, state, limit, |state| !state.done);
        if !state.done {
            return None;
        }
        let taken = || {
            let message = "the result was already taken from this handle";
            Err(self.status.name(Error::Internal(Context::new(message))))
        };
        Some(state.result.take().map_or_else(taken, |result| *result))
    }

    fn is_finished(&self) -> bool {
        lock(&self.slot.state).done
    }

    fn status(&self) -> &Status {
        &self.status
    }

    fn watch(&self, watcher: Watcher) {
        let mut state = lock(&self.slot.state);
        if state.done {
            drop(state);
            watcher.tell();
        } else {
            // Hardly ever more than one, and thousands may wait.
            state.watchers.reserve_exact(1);
            state.watchers.push(watcher);
        }
    }

    fn cancel(&self) -> bool {
        if self.on_drop == OnDrop::GoesOn || self.is_finished() {
            return false;
        }
        let error = Error::Cancelled(Context::new("by its handle"));
        let cancelled = self.slot.resolve(Err(self.status.name(error)));
        self.status.cancel();
        cancelled
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Cancels && !lock(&self.slot.state).done {
            self.status.cancel();
        }
    }
}
