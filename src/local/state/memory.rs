//! How much memory models may have, promised before it is used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Context, Error, Result};

/// What may be promised where the system does not say how much there is.
const FALLBACK: usize = 8 << 30;

/// A limit, and what has been promised of it.
#[derive(Debug)]
pub(in crate::local) struct Memory {
    limit: usize,
    used: Arc<AtomicUsize>,
}

/// Memory that was promised, until it is dropped.
#[derive(Debug)]
pub(in crate::local) struct Promise {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Memory {
    /// With no limit given, three quarters of what the machine has.
    pub(in crate::local) fn new(limit: Option<usize>) -> Self {
        Self {
            limit: limit.unwrap_or_else(|| total().unwrap_or(FALLBACK) / 4 * 3),
            used: Arc::default(),
        }
    }

    pub(in crate::local) fn limit(&self) -> usize {
        self.limit
    }

    pub(in crate::local) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Promises memory, or says which field asks for too much.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is not that much, [`Error::Failed`] if others have it now: that
    /// is nobody's mistake, and passes.
    pub(in crate::local) fn promise(&self, field: &str, bytes: usize) -> Result<Promise> {
        let grow = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let grown = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow);
        grown.map_err(|used| {
            let free = self.limit.saturating_sub(used) >> 20;
            let (wanted, limit) = (bytes >> 20, self.limit >> 20);
            if bytes > self.limit {
                let problem =
                    format!("would take {wanted} MiB, and the server has {limit} MiB in all");
                return Error::invalid(field, problem);
            }
            Error::Failed(Context::new(format!(
                "{field} would take {wanted} MiB, and the server has {free} MiB left of {limit}: \
                 other models and requests have the rest now; end some, or try again later"
            )))
        })?;
        Ok(Promise {
            bytes,
            used: self.used.clone(),
        })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The machine's memory, where the system says.
fn total() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The memory this process has now; 0 where the system does not say.
pub(in crate::local) fn resident() -> usize {
    let read = || {
        let text = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
        let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    };
    read().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_end_with_their_holders() {
        let memory = Memory::new(Some(100));
        let held = memory.promise("a", 60).unwrap();
        // What can never be had is told apart from what others have now.
        for (bytes, never) in [(41, false), (100, false), (101, true), (usize::MAX, true)] {
            let error = memory.promise("b", bytes).unwrap_err();
            assert_eq!(error.is_user_error(), never, "{error}");
            assert_eq!(error.to_string().contains("try again"), !never, "{error}");
        }
        drop(held);
        assert_eq!(memory.used(), 0);
        memory.promise("b", 100).unwrap();
    }
}
