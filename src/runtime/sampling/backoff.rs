//! The rate limit: after a 429 every sampler of a service holds back.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::sync::{Mutex, lock};

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
