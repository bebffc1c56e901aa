//! What a session counts, and waiting for all of it.

use std::time::{Duration, Instant};

use super::Session;
use crate::types::{ClientMetrics, Unfinished};

impl Session {
    /// Adds what the session knows to what its link has counted.
    pub(crate) fn count(&self, metrics: &mut ClientMetrics) {
        let core = &self.core;
        let now = core.link.clock().now();
        metrics.unfinished = core.results.outstanding.len();
        metrics.threads = core.background.threads()
            + core.results.crew.threads()
            + core.training.threads()
            + core.sampling.threads();
        metrics.backoff = core.sampling.backoff(now);
        metrics.since_heartbeat = core.since_heartbeat(now);
    }

    /// Waits for the results of everything submitted; what is left when the time is up.
    pub(crate) fn drain(&self, limit: Duration) -> Vec<Unfinished> {
        let deadline = Instant::now().checked_add(limit);
        self.core.results.outstanding.drain(deadline)
    }
}
