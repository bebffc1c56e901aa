//! Many texts on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_channel::bounded;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Context, Error, Result};

/// A pool that starts its threads at the first batch.
///
/// Work is handed over with `spawn` and awaited on a channel. `install`, `join` and `scope` would
/// run the caller's other rayon jobs meanwhile, on the caller's thread and under its locks.
#[derive(Debug, Default)]
pub(in crate::text) struct Workers(OnceLock<Option<ThreadPool>>);

/// How many items a worker takes at a time: enough that taking them costs nothing.
const GRAIN: usize = 16;

impl Workers {
    /// Maps every item, in parallel, keeping their order.
    ///
    /// # Errors
    ///
    /// The error of the first item that has one; nothing is returned then.
    pub(in crate::text) fn map<T, R>(
        &self,
        items: Vec<T>,
        work: impl Fn(usize, &T) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let pool = match items.len() <= 1 {
            true => None,
            false => self.pool(),
        };
        let Some(pool) = pool else {
            let results = items.iter().enumerate();
            return results.map(|(index, item)| work(index, item)).collect();
        };
        let count = items.len();
        let shared = Arc::new((items, AtomicUsize::new(0), work));
        let (sender, results) = bounded(count);
        for _ in 0..pool.current_num_threads().min(count.div_ceil(GRAIN)) {
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            pool.spawn(move || {
                let (items, next, work) = &*shared;
                loop {
                    let start = next.fetch_add(GRAIN, Ordering::Relaxed);
                    let mine = items.iter().enumerate().skip(start).take(GRAIN);
                    for (index, item) in mine {
                        let guarded = AssertUnwindSafe(|| work(index, item));
                        let result = catch_unwind(guarded).unwrap_or_else(|_| Err(panicked()));
                        // Room for every result; only a caller that is gone does not take it.
                        let _ = sender.send((index, result));
                    }
                    if start + GRAIN >= items.len() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut ordered: Vec<Option<Result<R>>> = Vec::with_capacity(count);
        ordered.resize_with(count, || None);
        for (index, result) in results {
            ordered[index] = Some(result);
        }
        let whole = ordered.into_iter();
        whole
            .map(|slot| slot.unwrap_or_else(|| Err(panicked())))
            .collect()
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let build = || {
            let threads = std::thread::available_parallelism().map_or(2, usize::from);
            ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|index| format!("tinker-text-{index}"))
                .build()
                .inspect_err(|error| log::warn!("no pool for tokenizing ({error})"))
                .ok()
        };
        self.0.get_or_init(build).as_ref()
    }
}

fn panicked() -> Error {
    Error::Internal(Context::new("work on a text panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_items() {
        let workers = Workers::default();
        for count in [0, 1, 2, 15, 16, 17, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let doubled = workers.map(items, |index, item| Ok(index + item)).unwrap();
            assert!(doubled.iter().enumerate().all(|(index, d)| *d == 2 * index));
            assert_eq!(doubled.len(), count);
        }
    }

    #[test]
    fn the_first_error_in_order_wins_and_a_panic_is_one() {
        let workers = Workers::default();
        let fail = |_, item: &usize| match item {
            40 => panic!("on purpose"),
            70 | 90 => Err(Error::invalid(format!("texts[{item}]"), "bad")),
            _ => Ok(()),
        };
        let error = workers.map((0..100).collect(), fail).unwrap_err();
        assert!(matches!(error, Error::Internal(_)), "{error}");
        let error = workers.map((50..100).collect(), fail).unwrap_err();
        assert_eq!(error.to_string(), "invalid texts[70]: bad");
    }
}
