//! How a sampler is getting on: counts for its hook, its log line, and the detection of a stuck run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, after, never};

use crate::sync::lock;

/// How often a hook is told while no result arrives.
const TICK: Duration = Duration::from_millis(100);

/// How long to wait for a result of a batch.
pub(crate) struct Patience(Option<Instant>);

/// What ended a wait.
pub(crate) enum Arrival {
    Result(usize),
    /// It is time to say how things stand.
    Tick,
    TimedOut,
}

impl Patience {
    pub(crate) fn unlimited() -> Self {
        Self(None)
    }

    pub(crate) fn at_most(limit: Duration) -> Self {
        Self(Instant::now().checked_add(limit))
    }

    /// Where a tick appears when it is time to say how things stand, if anyone wants to know.
    pub(crate) fn tick(wanted: bool) -> Receiver<Instant> {
        match wanted {
            true => after(TICK),
            false => never(),
        }
    }

    /// The next result, which someone who holds the channel's other end will send.
    pub(crate) fn arrival(&self, done: &Receiver<usize>, ticks: bool) -> Arrival {
        let left = self
            .0
            .map(|end| end.saturating_duration_since(Instant::now()));
        let limit = [left, ticks.then_some(TICK)].into_iter().flatten().min();
        let received = match limit {
            Some(limit) => done.recv_timeout(limit).ok(),
            None => done.recv().ok(),
        };
        match received {
            Some(index) => Arrival::Result(index),
            None if left == limit => Arrival::TimedOut,
            None => Arrival::Tick,
        }
    }
}

/// How often the progress of a big run is logged.
const PROGRESS_LOG: Duration = Duration::from_secs(60);

/// How a sampler is getting on.
pub(crate) struct Progress {
    started: Instant,
    counts: Mutex<Counts>,
    open: Arc<Mutex<BTreeMap<u64, Instant>>>,
    next_ticket: AtomicU64,
}

struct Counts {
    succeeded: u64,
    failed: u64,
    retries: u64,
    tokens: u64,
    last_success: Instant,
    last_log: Instant,
}

/// A sample under way; counts as done when dropped.
pub(super) struct Ticket {
    id: u64,
    open: Arc<Mutex<BTreeMap<u64, Instant>>>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.id);
    }
}

impl Progress {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: Instant::now(),
            counts: Mutex::new(Counts {
                succeeded: 0,
                failed: 0,
                retries: 0,
                tokens: 0,
                last_success: now,
                last_log: now,
            }),
            open: Arc::default(),
            next_ticket: AtomicU64::new(0),
        }
    }

    pub(super) fn begin(&self, now: Instant) -> Ticket {
        let id = self.next_ticket.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&self.open);
        if open.is_empty() {
            // Nobody was waiting, so nothing was stuck.
            lock(&self.counts).last_success = now;
        }
        open.insert(id, Instant::now());
        Ticket {
            id,
            open: self.open.clone(),
        }
    }

    pub(super) fn succeeded(&self, tokens: usize, now: Instant) {
        let mut counts = lock(&self.counts);
        counts.succeeded += 1;
        counts.tokens += tokens as u64;
        counts.last_success = now;
    }

    pub(super) fn failed(&self) {
        lock(&self.counts).failed += 1;
    }

    pub(super) fn retried(&self) {
        lock(&self.counts).retries += 1;
    }

    pub(super) fn since_success(&self, now: Instant) -> Duration {
        now.saturating_duration_since(lock(&self.counts).last_success)
    }

    pub(super) fn log(&self, now: Instant, waiting: impl FnOnce() -> usize) {
        let mut counts = lock(&self.counts);
        if now.saturating_duration_since(counts.last_log) < PROGRESS_LOG {
            return;
        }
        counts.last_log = now;
        drop(counts);
        log::info!("sampling: {}", self.snapshot(waiting()));
    }

    pub(crate) fn snapshot(&self, waiting: usize) -> SamplingProgress {
        let open = lock(&self.open);
        let counts = lock(&self.counts);
        let seconds = self.started.elapsed().as_secs_f64();
        SamplingProgress {
            succeeded: counts.succeeded,
            failed: counts.failed,
            retries: counts.retries,
            tokens: counts.tokens,
            tokens_per_second: counts.tokens as f64 / seconds.max(1e-9),
            open: open.len(),
            waiting,
            oldest: open.values().next().map(Instant::elapsed),
        }
    }
}

/// How a sampler is getting on, at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SamplingProgress {
    /// Samples that arrived.
    pub succeeded: u64,
    /// Samples that failed for good.
    pub failed: u64,
    /// Submissions that had to be repeated.
    pub retries: u64,
    /// Tokens sampled.
    pub tokens: u64,
    /// Tokens sampled per second since the sampler was made.
    pub tokens_per_second: f64,
    /// Samples submitted and not yet done.
    pub open: usize,
    /// Samples not yet sent.
    pub waiting: usize,
    /// How long ago the oldest sample under way was submitted.
    pub oldest: Option<Duration>,
}

impl std::fmt::Display for SamplingProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} done, {} failed, {} under way ({} not yet sent), {} retries, {} tokens, \
             {:.0} tokens/s",
            self.succeeded,
            self.failed,
            self.open,
            self.waiting,
            self.retries,
            self.tokens,
            self.tokens_per_second
        )?;
        match self.oldest {
            Some(oldest) => write!(f, ", oldest {:.0} s", oldest.as_secs_f64()),
            None => Ok(()),
        }
    }
}
