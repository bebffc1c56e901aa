//! The hand-over between whoever submits operations and the one worker that sends them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock, wait, wait_while};

/// Operations in the order of the calls.
pub(super) struct Backlog<T> {
    state: Mutex<State<T>>,
    /// There is something to send, or nothing will come.
    pushed: Condvar,
    /// Something was sent.
    sent: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    /// Whether the worker is sending one.
    sending: bool,
    closed: bool,
    halted: bool,
}

/// What the worker is to do with an operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    Send(T),
    GiveUp(T),
}

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                sending: false,
                closed: false,
                halted: false,
            }),
            pushed: Condvar::new(),
            sent: Condvar::new(),
        }
    }
}

impl<T> Backlog<T> {
    /// Queues operations one after the other, with none of another caller between them. Gives
    /// them back if nothing more is taken.
    pub(super) fn push(&self, operations: Vec<T>) -> Result<(), Vec<T>> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(operations);
        }
        state.queue.extend(operations);
        drop(state);
        self.pushed.notify_all();
        Ok(())
    }

    /// Waits for the next operation; `None` once there will be none. Whoever took one says
    /// [`done`](Self::done) before taking the next.
    pub(super) fn next(&self) -> Option<Next<T>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(operation) = state.queue.pop_front() {
                state.sending = true;
                return Some(match state.halted {
                    true => Next::GiveUp(operation),
                    false => Next::Send(operation),
                });
            }
            if state.closed {
                return None;
            }
            state = wait(&self.pushed, state);
        }
    }

    /// Notes that the operation taken last was dealt with.
    pub(super) fn done(&self) {
        lock(&self.state).sending = false;
        self.sent.notify_all();
    }

    /// Takes nothing more; what is queued is still sent.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        self.pushed.notify_all();
    }

    /// Takes nothing more, and gives up what is queued.
    pub(super) fn halt(&self) {
        let mut state = lock(&self.state);
        (state.closed, state.halted) = (true, true);
        drop(state);
        self.pushed.notify_all();
    }

    /// Waits until nothing is left to send, at most for `limit`.
    pub(super) fn drain(&self, limit: Duration) {
        let state = lock(&self.state);
        drop(wait_while(&self.sent, state, Some(limit), |state| {
            state.left() > 0
        }));
    }

    /// Halts if anything is left; how many operations that were.
    pub(super) fn abandon(&self) -> usize {
        let left = lock(&self.state).left();
        if left > 0 {
            self.halt();
        }
        left
    }
}

impl<T> State<T> {
    fn left(&self) -> usize {
        self.queue.len() + usize::from(self.sending)
    }
}
