//! Locks that outlive a panic, in one place.
//!
//! The hand-overs between threads that are hardest to get right take their locks from here and
//! nowhere else, so that a model checker can put its own in their place (`tests/models`).

use std::sync::PoisonError;
#[cfg(feature = "text")]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks, going on after a panic elsewhere: no critical section of ours leaves half a change.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for many readers.
#[cfg(feature = "text")]
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// And for the one that changes what they read.
#[cfg(feature = "text")]
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified, in the same spirit.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The same, for `limit` at most.
pub(crate) fn wait_for<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(guard, limit);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Waits while a condition holds, for `limit` at most if there is one.
pub(crate) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Option<Duration>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    match limit {
        None => {
            let waited = changed.wait_while(guard, condition);
            waited.unwrap_or_else(PoisonError::into_inner)
        }
        Some(limit) => {
            let waited = changed.wait_timeout_while(guard, limit, condition);
            waited.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}
