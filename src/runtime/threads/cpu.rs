//! Work for the processor: validating, encoding, decoding, on a rayon pool of our own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crossbeam_channel::bounded;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Context, Error, Result};

/// Work on less than this many bytes costs less than handing it over.
pub(crate) const WORTH_HANDING_OVER: usize = 64 * 1024;

/// A small pool, started at the first piece of work that is worth it.
///
/// Work is handed over with `spawn` and awaited on a channel. `install`, `join` and `scope` would
/// run the caller's other rayon jobs meanwhile, on the caller's thread and under its locks.
#[derive(Debug, Default)]
pub(crate) struct Cpu(OnceLock<Option<ThreadPool>>);

impl Cpu {
    /// Runs `work` on the pool if it is about `bytes` worth handing over, else here. A panic in
    /// it is an error, not the end of a thread.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pool = match bytes < WORTH_HANDING_OVER {
            true => None,
            false => self.pool(),
        };
        let Some(pool) = pool else {
            return guarded(work);
        };
        let (sender, result) = bounded(1);
        pool.spawn(move || {
            // Whoever asked may be gone.
            let _ = sender.send(guarded(work));
        });
        result.recv().unwrap_or_else(|_| Err(panicked()))
    }

    /// Runs `work` on the pool, whatever its size, and does not wait for it; here if there can be
    /// no pool. It must not panic.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        match self.pool() {
            Some(pool) => pool.spawn(work),
            None => work(),
        }
    }

    fn pool(&self) -> Option<&ThreadPool> {
        let build = || {
            let threads = std::thread::available_parallelism().map_or(2, usize::from);
            ThreadPoolBuilder::new()
                .num_threads(threads.min(16))
                .thread_name(|index| format!("tinker-cpu-{index}"))
                .build()
                .inspect_err(|error| log::warn!("no pool for encoding ({error})"))
                .ok()
        };
        self.0.get_or_init(build).as_ref()
    }
}

fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    Error::Internal(Context::new("encoding or decoding panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_work_runs_on_the_pool_and_small_work_here() {
        let cpu = Cpu::default();
        let name = || Ok(std::thread::current().name().map(str::to_owned));
        let large = cpu.run(WORTH_HANDING_OVER, name).unwrap();
        assert!(large.unwrap().starts_with("tinker-cpu-"));
        let here = std::thread::current().name().map(str::to_owned);
        assert_eq!(cpu.run(1, name).unwrap(), here);
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let cpu = Cpu::default();
        for bytes in [1, WORTH_HANDING_OVER] {
            let result: Result<()> = cpu.run(bytes, || panic!("on purpose"));
            assert!(matches!(result, Err(Error::Internal(_))));
            assert_eq!(cpu.run(bytes, || Ok(5)).unwrap(), 5);
        }
    }
}
