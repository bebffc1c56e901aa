//! A budget of bytes: a semaphore whose permits are bytes and whose guards give them back.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::runtime::stop::Stop;
use crate::sync::lock;

/// A budget of bytes that may be overdrawn once.
///
/// As in the reference, a taker waits while the balance is negative and then subtracts, so one
/// item larger than the whole budget still gets through, alone.
#[derive(Clone)]
pub(crate) struct Bytes(Arc<Balance>);

struct Balance {
    left: Mutex<i64>,
    freed: Condvar,
}

/// Bytes taken from a budget, given back on drop.
pub(crate) struct BytesGuard {
    balance: Arc<Balance>,
    taken: i64,
}

impl Bytes {
    pub(crate) fn new(budget: u64) -> Self {
        Self(Arc::new(Balance {
            left: Mutex::new(i64::try_from(budget).unwrap_or(i64::MAX)),
            freed: Condvar::new(),
        }))
    }

    /// Waits for room; `None` if `stop` was set first.
    pub(crate) fn take(&self, bytes: u64, stop: &Stop) -> Option<BytesGuard> {
        let taken = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut left = lock(&self.0.left);
        while *left < 0 {
            if stop.is_set() {
                return None;
            }
            // Woken by a guard; the timeout only notices a stop.
            left = self
                .0
                .freed
                .wait_timeout(left, Duration::from_millis(200))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *left = left.saturating_sub(taken);
        drop(left);
        Some(BytesGuard {
            balance: self.0.clone(),
            taken,
        })
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> i64 {
        *lock(&self.0.left)
    }
}

impl Drop for BytesGuard {
    fn drop(&mut self) {
        *lock(&self.balance.left) += self.taken;
        self.balance.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_be_overdrawn_once_and_come_back() {
        let (budget, stop) = (Bytes::new(10), Stop::default());
        let large = budget.take(100, &stop).unwrap();
        assert_eq!(budget.left(), -90);
        let waiter = std::thread::spawn({
            let (budget, stop) = (budget.clone(), stop.clone());
            move || budget.take(1, &stop).is_some()
        });
        drop(large);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.left(), 10);
    }

    #[test]
    fn a_stop_ends_the_wait_for_bytes() {
        let (budget, stop) = (Bytes::new(0), Stop::default());
        let _all = budget.take(1, &stop).unwrap();
        stop.set();
        assert!(budget.take(1, &stop).is_none());
    }
}
