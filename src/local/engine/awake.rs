//! Keeps the threads of a pool awake while a large model runs.
//!
//! Between two of its products the other threads have nothing to do, but for so short a time that
//! going to sleep and being woken would take longer.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::Yield;

thread_local! {
    /// Whether the thread is inside a run of some model.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A run of a large model, on a thread of the pool; the others stay awake until it is dropped.
#[derive(Debug)]
pub(crate) struct Awake {
    needed: Arc<AtomicBool>,
    /// Whether the thread was inside another run before.
    nested: bool,
}

impl Awake {
    /// How often a thread looks for work before it lets other programs run.
    const LOOKS: usize = 64;

    /// Begins a run on this thread.
    pub(crate) fn new() -> Self {
        let needed = Arc::new(AtomicBool::new(true));
        for _ in 1..rayon::current_num_threads() {
            let needed = needed.clone();
            // Nobody waits for these: one may find a long piece of another model's work.
            rayon::spawn(move || {
                // A thread that waits within a run, for others, must be back when they are done.
                if !INSIDE.get() {
                    look_for_work(&needed);
                }
            });
        }
        let nested = INSIDE.replace(true);
        Self { needed, nested }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        INSIDE.set(self.nested);
        self.needed.store(false, Ordering::Relaxed);
    }
}

fn look_for_work(needed: &AtomicBool) {
    let mut looks = 0;
    while needed.load(Ordering::Relaxed) {
        match rayon::yield_now() {
            Some(Yield::Executed) => looks = 0,
            _ if looks < Awake::LOOKS => {
                looks += 1;
                std::hint::spin_loop();
            }
            _ => std::thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> rayon::ThreadPool {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build().unwrap()
    }

    /// With one thread there is nobody to keep awake, with several all of them come back.
    #[test]
    fn a_run_ends_and_leaves_every_thread_free() {
        for threads in 1..4 {
            let pool = pool(threads);
            for _ in 0..20 {
                let sum: u32 = pool.install(|| {
                    let _awake = Awake::new();
                    let (one, other) = rayon::join(|| 1, || 2);
                    one + other
                });
                assert_eq!(sum, 3);
            }
            // Everyone has to come, so nobody looks for work any more.
            assert_eq!(pool.broadcast(|_| INSIDE.get()), vec![false; threads]);
        }
    }

    /// Two runs on the same threads: one waits for the other, which has only the thread that the
    /// first keeps awake.
    #[test]
    fn a_run_does_not_keep_another_from_ending() {
        let pool = pool(2);
        let (begun, begins) = crossbeam_channel::bounded(1);
        let (ended, ends) = crossbeam_channel::bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.install(|| {
                    let _awake = Awake::new();
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                });
            });
            begins.recv().unwrap();
            pool.install(|| {
                let _awake = Awake::new();
                for _ in 0..100 {
                    rayon::join(|| (), || ());
                }
            });
            ended.send(()).unwrap();
        });
    }
}
