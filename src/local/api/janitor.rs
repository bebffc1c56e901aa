//! The thread that tidies up once in a while.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::error::{Context, Error, Result};
use crate::local::work::Workshop;
use crate::local::work::crew::guarded;

/// Ends silent sessions, saves models in training and drops what is over, until it is dropped itself.
#[derive(Debug)]
pub(in crate::local) struct Janitor {
    /// `None` only while it stops.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Janitor {
    pub(in crate::local) fn start(workshop: Arc<Workshop>) -> Result<Self> {
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let timeout = workshop.state.sessions.timeout();
        let pause = workshop
            .options
            .save_every
            .map_or(timeout, |every| timeout.min(every))
            / 4;
        let pause = pause.clamp(Duration::from_millis(10), Duration::from_secs(5));
        let thread = std::thread::Builder::new()
            .name("tinker-local-janitor".into())
            .spawn(move || work(&stopped, pause, || workshop.tidy()))
            .map_err(|error| Error::Internal(Context::caused("no thread", error)))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn work(stopped: &Receiver<()>, pause: Duration, mut tidy: impl FnMut()) {
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        guarded(&mut tidy);
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_day_does_not_end_the_work() {
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let (mut stop, mut days) = (Some(stop), 0);
        work(&stopped, Duration::ZERO, || {
            days += 1;
            match days {
                1 => panic!("a bad day"),
                _ => drop(stop.take()),
            }
        });
        assert_eq!(days, 2);
    }
}
