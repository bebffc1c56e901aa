//! Threads that run as long as a session does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::crew::STACK;
use crate::error::{Context, Error, Result};
use crate::runtime::stop::Stop;
use crate::sync::lock;

/// How long a thread that panicked waits before it goes on.
const RESTART: Duration = Duration::from_secs(1);

/// The named threads of a session, joined at its end.
pub(crate) struct Background {
    stop: Stop,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Threads that end once `stop` is set.
    pub(crate) fn new(stop: Stop) -> Self {
        Self {
            stop,
            handles: Mutex::default(),
        }
    }

    /// Starts a thread that runs `run` until it returns. A panic in it is said, and `run` is
    /// called again: a session must not lose its heartbeat to a defect elsewhere.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        mut run: impl FnMut() + Send + 'static,
    ) -> Result<()> {
        let stop = self.stop.clone();
        let guarded = move || {
            while catch_unwind(AssertUnwindSafe(&mut run)).is_err() {
                log::error!("{name} panicked, which is a defect of this crate; it goes on");
                if stop.wait(Some(RESTART)) {
                    return;
                }
            }
        };
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(guarded)
            .map_err(|error| {
                let message = format!("cannot start thread {name}");
                Error::Internal(Context::caused(message, error))
            })?;
        let mut handles = lock(&self.handles);
        handles.retain(|thread| !thread.is_finished());
        handles.push(handle);
        Ok(())
    }

    /// How many run.
    pub(crate) fn threads(&self) -> usize {
        let handles = lock(&self.handles);
        handles
            .iter()
            .filter(|thread| !thread.is_finished())
            .count()
    }

    /// Waits for every thread to end, except for the one that called this, should it be among
    /// them.
    pub(crate) fn join(&self) {
        let handles = std::mem::take(&mut *lock(&self.handles));
        for handle in handles {
            if handle.thread().id() != thread::current().id() {
                // Panics were caught and said where they happened.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;

    #[test]
    fn a_thread_that_panics_goes_on() {
        let background = Background::new(Stop::default());
        let (done, runs) = unbounded();
        let mut count = 0;
        background
            .spawn("tinker-test", move || {
                count += 1;
                done.send(count).unwrap();
                assert!(count > 1, "on purpose");
            })
            .unwrap();
        assert_eq!(runs.iter().collect::<Vec<_>>(), [1, 2]);
        background.join();
    }

    #[test]
    fn a_stop_ends_a_thread_that_panicked() {
        let stop = Stop::default();
        let background = Background::new(stop.clone());
        let (done, runs) = unbounded::<()>();
        stop.set();
        background
            .spawn("tinker-test", move || {
                let _keep = &done;
                panic!("on purpose")
            })
            .unwrap();
        background.join();
        assert!(runs.recv().is_err());
    }
}
