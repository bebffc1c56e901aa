//! Budgets that guards give back: how many at once, how many bytes at once.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::clock::{Stop, lock};

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

/// Buffers to encode into, used again: fresh memory costs more than the copy.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// As many as are on the wire at once; more would only hold memory.
    const KEPT: usize = 8;

    pub(crate) fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut kept = lock(&self.0);
        if kept.len() < Self::KEPT {
            kept.push(buffer);
        }
    }
}

/// A backoff that every sampler of one service and key in the process obeys.
///
/// After a 429 nobody sends a sample before `until`; for ten seconds after that the service
/// counts as recently overloaded, and dispatch is narrow.
#[derive(Debug, Default)]
pub(crate) struct Backoff(Mutex<Option<Instant>>);

/// How long after a backoff dispatch stays narrow.
const RECENT: Duration = Duration::from_secs(10);

impl Backoff {
    /// The backoff shared by everyone who talks to this service with this credential.
    pub(crate) fn shared(base_url: &str, credential: &str) -> Arc<Self> {
        static ALL: OnceLock<Mutex<HashMap<u64, Weak<Backoff>>>> = OnceLock::new();
        let key = {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            (base_url, credential).hash(&mut hasher);
            hasher.finish()
        };
        let mut all = lock(ALL.get_or_init(Mutex::default));
        all.retain(|_, backoff| backoff.strong_count() > 0);
        if let Some(backoff) = all.get(&key).and_then(Weak::upgrade) {
            return backoff;
        }
        let backoff = Arc::new(Self::default());
        all.insert(key, Arc::downgrade(&backoff));
        backoff
    }

    /// Asks everyone to hold back until `until`, at least.
    pub(crate) fn extend(&self, until: Instant) {
        let mut current = lock(&self.0);
        *current = Some(current.map_or(until, |now| now.max(until)));
    }

    /// How long to hold back from `now` on.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        let until = (*lock(&self.0))?;
        (until > now).then(|| until - now)
    }

    /// Whether the service asked for a backoff a short while ago.
    pub(crate) fn is_recent(&self, now: Instant) -> bool {
        lock(&self.0).is_some_and(|until| now < until + RECENT)
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

    #[test]
    fn backoff_is_shared_per_service_and_key() {
        let one = Backoff::shared("http://a", "k");
        let same = Backoff::shared("http://a", "k");
        let other = Backoff::shared("http://a", "other");
        let now = Instant::now();
        one.extend(now + Duration::from_secs(5));
        assert_eq!(same.remaining(now), Some(Duration::from_secs(5)));
        assert_eq!(other.remaining(now), None);
        same.extend(now + Duration::from_secs(1));
        assert_eq!(one.remaining(now), Some(Duration::from_secs(5)));
        assert!(one.is_recent(now + Duration::from_secs(14)));
        assert!(!one.is_recent(now + Duration::from_secs(15)));
    }
}
