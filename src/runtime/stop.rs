//! Ending as a value: a flag that wakes whoever waits.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock, wait_while};

/// A flag that many threads may wait on; once set it stays set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(pub(super) Arc<Flag>);

pub(super) type Flag = (Mutex<bool>, Condvar);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.0.0)
    }

    pub(crate) fn set(&self) {
        self.set_first();
    }

    /// Sets the flag; whether it was not set before.
    pub(crate) fn set_first(&self) -> bool {
        let before = std::mem::replace(&mut *lock(&self.0.0), true);
        self.0.1.notify_all();
        !before
    }

    /// Waits until the flag is set or the time is up; `None` waits for the flag alone.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let guard = lock(&self.0.0);
        *wait_while(&self.0.1, guard, limit, |set| !*set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_stop_wakes_a_waiter() {
        let stop = Stop::default();
        let waiter = std::thread::spawn({
            let stop = stop.clone();
            move || stop.wait(None)
        });
        stop.set();
        assert!(waiter.join().unwrap());
    }
}
