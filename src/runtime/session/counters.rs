//! Numbers that a session gives out: the service names models and samplers by them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shared with operations that draw their number when they are sent.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    models: AtomicU64,
    samplers: AtomicU64,
}

impl Counters {
    pub(crate) fn next_model(&self) -> u64 {
        self.models.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_sampler(&self) -> u64 {
        self.samplers.fetch_add(1, Ordering::Relaxed)
    }
}
