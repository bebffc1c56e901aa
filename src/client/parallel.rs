//! Work of the user's own on the results of a batch, on the client's pool.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, bounded, select};

use super::batch::SampleBatch;
use crate::error::{Context, Error, Result};
use crate::runtime::sampling::Patience;
use crate::types::{SampleRequest, SampleResponse};

type Work<T, R> = dyn Fn(T) -> R + Send + Sync;

/// The results of a batch after work of yours; see [`SampleBatch::map_parallel`].
///
/// Dropping it cancels what is under way; work that has not begun is left undone.
#[must_use = "a batch does nothing until it is iterated"]
pub struct ParallelMap<
    I: Iterator<Item = (K, SampleRequest)>,
    K = usize,
    T = SampleResponse,
    R = (),
> {
    batch: SampleBatch<I, K, T>,
    work: Arc<Work<T, R>>,
    /// In the order of the batch, each with where its result will appear.
    at_work: VecDeque<(K, Receiver<Result<R>>)>,
    abandoned: Arc<AtomicBool>,
}

impl<I, K, T, R> ParallelMap<I, K, T, R>
where
    I: Iterator<Item = (K, SampleRequest)>,
    T: Send + 'static,
    R: Send + 'static,
{
    pub(super) fn new(
        batch: SampleBatch<I, K, T>,
        work: impl Fn(T) -> R + Send + Sync + 'static,
    ) -> Self {
        Self {
            batch,
            work: Arc::new(work),
            at_work: VecDeque::new(),
            abandoned: Arc::default(),
        }
    }

    fn hand_over(&mut self, (tag, result): (K, Result<T>)) {
        let (sender, done) = bounded(1);
        self.batch.at_work += 1;
        self.at_work.push_back((tag, done));
        let value = match result {
            Ok(value) => value,
            Err(error) => {
                // There is room for it.
                let _ = sender.send(Err(error));
                return;
            }
        };
        let (work, abandoned) = (Arc::clone(&self.work), Arc::clone(&self.abandoned));
        self.batch.samples.work(move || {
            if abandoned.load(Ordering::Relaxed) {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(|| work(value)));
            // Whoever asked may be gone.
            let _ = sender.send(result.map_err(|_| panicked()));
        });
    }

    /// Waits until the first item's work is done, a result of the batch arrives, or progress is
    /// to be reported; `None` for the latter two.
    fn wait(&mut self) -> Option<Result<R>> {
        let (_, done) = self.at_work.front()?;
        let tick = Patience::tick(self.batch.samples.has_hook());
        select! {
            recv(done) -> result => Some(result.unwrap_or_else(|_| Err(panicked()))),
            recv(self.batch.samples.arrivals()) -> index => {
                if let Ok(index) = index {
                    self.batch.samples.arrived(index);
                }
                None
            }
            recv(tick) -> _ => {
                self.batch.samples.report();
                None
            }
        }
    }
}

impl<I, K, T, R> Iterator for ParallelMap<I, K, T, R>
where
    I: Iterator<Item = (K, SampleRequest)>,
    T: Send + 'static,
    R: Send + 'static,
{
    type Item = (K, Result<R>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(item) = self.batch.ready() {
                self.hand_over(item);
            }
            if self.at_work.is_empty() {
                let item = self.batch.next()?;
                self.hand_over(item);
                // Others may have arrived with it.
                continue;
            }
            if let Some(result) = self.wait() {
                let (tag, _) = self.at_work.pop_front()?;
                self.batch.at_work -= 1;
                return Some((tag, result));
            }
        }
    }
}

impl<I: Iterator<Item = (K, SampleRequest)>, K, T, R> Drop for ParallelMap<I, K, T, R> {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

impl<I: Iterator<Item = (K, SampleRequest)>, K, T, R> fmt::Debug for ParallelMap<I, K, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelMap")
            .field("batch", &self.batch)
            .field("at_work", &self.at_work.len())
            .finish_non_exhaustive()
    }
}

fn panicked() -> Error {
    Error::Internal(Context::new("the work on this result panicked"))
}
