//! Locks that outlive a panic, in one place.
//!
//! The hand-overs between threads that are hardest to get right take their locks from here and
//! nowhere else, so that a model checker can put its own in their place (`tests/models`).

use std::sync::PoisonError;

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Locks, going on after a panic elsewhere: no critical section of ours leaves half a change.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits to be notified, in the same spirit.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
