//! How much training data may be queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Context, Error, Result};

/// The bytes queued by all models of a session, as estimated.
#[derive(Clone, Default)]
pub(super) struct QueueLimit(Arc<AtomicU64>);

/// Bytes that count as queued until this is dropped.
pub(super) struct QueuedBytes {
    limit: QueueLimit,
    bytes: u64,
}

impl QueueLimit {
    /// Counts `bytes` in, if the total stays within `most`. A call alone in the queue is always
    /// taken.
    pub(super) fn take(&self, bytes: u64, most: u64) -> Result<QueuedBytes> {
        let fits = |queued: u64| {
            let total = queued.saturating_add(bytes);
            (queued == 0 || total <= most).then_some(total)
        };
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.0.fetch_update(order, failed, fits) {
            Ok(_) => Ok(QueuedBytes {
                limit: self.clone(),
                bytes,
            }),
            Err(queued) => Err(Error::NotSent(Context::new(format!(
                "{queued} bytes of training data are queued, and {bytes} more would exceed {most} \
                 (`Config::with_max_queued_bytes`); join some results first"
            )))),
        }
    }
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.limit.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_queued_stays_within_the_limit() {
        let limit = QueueLimit::default();
        let first = limit.take(60, 100).unwrap();
        let error = limit.take(41, 100).err().unwrap();
        assert!(error.to_string().contains("60 bytes"), "{error}");
        let second = limit.take(40, 100).unwrap();
        drop((first, second));
        // Alone, anything goes.
        let large = limit.take(1_000, 100).unwrap();
        assert!(limit.take(1, 100).is_err());
        drop(large);
        assert!(limit.take(1, 100).is_ok());
    }
}
