//! Something that is opened at its first use and shared from then on: a link, a session, a
//! sampler's number.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Context, Error, Result};
use crate::sync::{Condvar, Mutex, lock, wait_while};

/// A value that one caller opens while the others wait for it.
///
/// No lock is held while it is being opened, so that closing never waits for the network.
pub(crate) struct Opened<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    phase: Phase<T>,
    /// Counts the attempts that have ended, so that whoever waits for one knows its end.
    ended: u64,
    failure: Option<Error>,
}

enum Phase<T> {
    Unopened,
    Opening,
    Open(T),
    Closed,
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                phase: Phase::Unopened,
                ended: 0,
                failure: None,
            }),
            changed: Condvar::new(),
        }
    }
}

impl<T: Clone> Opened<T> {
    /// The value. The first caller opens it on its own thread; those who come meanwhile share
    /// the outcome, a failure too, and the next call after a failure tries again.
    pub(crate) fn get(&self, open: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Open(value) => return Ok(value.clone()),
            Phase::Closed => return Err(closed()),
            Phase::Opening => {
                let ended = state.ended;
                let state = wait_while(&self.changed, state, None, |state| {
                    matches!(state.phase, Phase::Opening) && state.ended == ended
                });
                return match (&state.phase, &state.failure) {
                    (Phase::Open(value), _) => Ok(value.clone()),
                    (Phase::Unopened | Phase::Opening, Some(failure)) => Err(failure.clone()),
                    _ => Err(closed()),
                };
            }
            Phase::Unopened => state.phase = Phase::Opening,
        }
        drop(state);
        // A panic must not leave the others waiting.
        let outcome = catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(Error::Internal(Context::new("opening it panicked"))));
        self.end(outcome)
    }

    fn end(&self, outcome: Result<T>) -> Result<T> {
        let mut state = lock(&self.state);
        state.ended += 1;
        if matches!(state.phase, Phase::Closed) {
            drop(state);
            return outcome.and_then(|_late| Err(closed()));
        }
        match &outcome {
            Ok(value) => state.phase = Phase::Open(value.clone()),
            Err(error) => {
                state.phase = Phase::Unopened;
                state.failure = Some(error.clone());
            }
        }
        drop(state);
        self.changed.notify_all();
        outcome
    }

    /// Closes it for good: later calls and those who wait get an error. What was open is given
    /// back.
    pub(crate) fn close(&self) -> Option<T> {
        let phase = std::mem::replace(&mut lock(&self.state).phase, Phase::Closed);
        self.changed.notify_all();
        match phase {
            Phase::Open(value) => Some(value),
            _ => None,
        }
    }

    /// The value, if it is open.
    pub(crate) fn peek(&self) -> Option<T> {
        match &lock(&self.state).phase {
            Phase::Open(value) => Some(value.clone()),
            _ => None,
        }
    }
}

fn closed() -> Error {
    Error::Closed(Context::new("create a new client"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;

    /// Starts an opening that ends with what is sent, and returns once it is under way.
    fn begin(
        opened: &Arc<Opened<u32>>,
    ) -> (
        crossbeam_channel::Sender<Result<u32>>,
        thread::JoinHandle<Result<u32>>,
    ) {
        let (end, outcome) = bounded(1);
        let (begun, started) = bounded(1);
        let mine = opened.clone();
        let opener = thread::spawn(move || {
            mine.get(|| {
                begun.send(()).unwrap();
                outcome.recv().unwrap()
            })
        });
        started.recv().unwrap();
        (end, opener)
    }

    #[test]
    fn one_opens_and_the_others_share_it() {
        let opened = Arc::new(Opened::default());
        let (end, opener) = begin(&opened);
        let mine = opened.clone();
        let waiter = thread::spawn(move || mine.get(|| panic!("it is being opened")));
        end.send(Ok(7)).unwrap();
        assert_eq!(opener.join().unwrap().unwrap(), 7);
        assert!(matches!(waiter.join().unwrap(), Ok(7)));
        assert_eq!(opened.peek(), Some(7));
        assert_eq!(opened.close(), Some(7));
        assert!(matches!(opened.get(|| Ok(8)), Err(Error::Closed(_))));
    }

    #[test]
    fn a_failure_or_a_panic_is_told_and_the_next_call_tries_again() {
        let opened = Arc::new(Opened::default());
        let (end, opener) = begin(&opened);
        end.send(Err(Error::invalid("x", "y"))).unwrap();
        assert!(opener.join().unwrap().unwrap_err().is_user_error());
        let panicked = opened.get(|| panic!("on purpose"));
        assert!(matches!(panicked, Err(Error::Internal(_))));
        assert_eq!(opened.get(|| Ok(3)).unwrap(), 3);
    }

    #[test]
    fn closing_waits_for_nobody_and_what_comes_late_is_dropped() {
        let opened = Arc::new(Opened::default());
        let (end, opener) = begin(&opened);
        assert_eq!(opened.close(), None);
        assert!(matches!(opened.get(|| Ok(1)), Err(Error::Closed(_))));
        end.send(Ok(7)).unwrap();
        assert!(matches!(opener.join().unwrap(), Err(Error::Closed(_))));
        assert_eq!(opened.peek(), None);
    }
}
