//! A budget of bytes: a semaphore whose permits are bytes and whose guards give them back.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sync::{Condvar, Mutex, lock, wait};

/// A budget of bytes that may be overdrawn once.
///
/// As in the reference, a taker waits while the balance is negative and then subtracts, so one
/// item larger than the whole budget still gets through, alone. Those who wait are served in the
/// order in which they came.
#[derive(Clone)]
pub(crate) struct Bytes(Arc<Balance>);

struct Balance {
    state: Mutex<State>,
}

struct State {
    left: i64,
    waiting: VecDeque<(i64, Waiter)>,
    closed: bool,
}

/// Told that its bytes were taken; `None` when the budget was closed.
type Waiter = Box<dyn FnOnce(Option<BytesGuard>) + Send>;

/// Bytes taken from a budget, given back on drop.
pub(crate) struct BytesGuard {
    balance: Arc<Balance>,
    taken: i64,
}

impl Bytes {
    pub(crate) fn new(budget: u64) -> Self {
        Self(Arc::new(Balance {
            state: Mutex::new(State {
                left: i64::try_from(budget).unwrap_or(i64::MAX),
                waiting: VecDeque::new(),
                closed: false,
            }),
        }))
    }

    /// Takes bytes if there is room and nobody was here before.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<BytesGuard> {
        let taken = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut state = lock(&self.0.state);
        if !state.has_room() || !state.waiting.is_empty() {
            return None;
        }
        state.left = state.left.saturating_sub(taken);
        drop(state);
        Some(self.guard(taken))
    }

    /// Calls `waiter` with the bytes once there is room, on the thread that made it, or here. So
    /// waiting holds no thread.
    pub(crate) fn take_later(
        &self,
        bytes: u64,
        waiter: impl FnOnce(Option<BytesGuard>) + Send + 'static,
    ) {
        let taken = i64::try_from(bytes).unwrap_or(i64::MAX);
        lock(&self.0.state)
            .waiting
            .push_back((taken, Box::new(waiter)));
        self.0.serve();
    }

    /// Waits for room on this thread; `None` if the budget was closed first.
    pub(crate) fn take(&self, bytes: u64) -> Option<BytesGuard> {
        if let Some(guard) = self.try_take(bytes) {
            return Some(guard);
        }
        let slot = Arc::new((Mutex::new(None), Condvar::new()));
        let filled = slot.clone();
        self.take_later(bytes, move |guard| {
            *lock(&filled.0) = Some(guard);
            filled.1.notify_all();
        });
        let mut guard = lock(&slot.0);
        loop {
            match guard.take() {
                Some(answer) => return answer,
                None => guard = wait(&slot.1, guard),
            }
        }
    }

    /// Tells everyone who waits, now or later, that there is nothing more to have.
    pub(crate) fn close(&self) {
        lock(&self.0.state).closed = true;
        self.0.serve();
    }

    fn guard(&self, taken: i64) -> BytesGuard {
        BytesGuard {
            balance: self.0.clone(),
            taken,
        }
    }

    #[cfg(test)]
    pub(crate) fn left(&self) -> i64 {
        lock(&self.0.state).left
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.left >= 0 && !self.closed
    }
}

impl Balance {
    /// Serves those who wait, as far as there is room. Called after every change that makes some.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut state = lock(&self.state);
            if !state.has_room() && !state.closed {
                return;
            }
            let Some((taken, waiter)) = state.waiting.pop_front() else {
                return;
            };
            let guard = (!state.closed).then(|| {
                state.left = state.left.saturating_sub(taken);
                BytesGuard {
                    balance: self.clone(),
                    taken,
                }
            });
            // The waiter may do anything, but not under this lock.
            drop(state);
            waiter(guard);
        }
    }
}

impl Drop for BytesGuard {
    fn drop(&mut self) {
        lock(&self.balance.state).left += self.taken;
        self.balance.serve();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_be_overdrawn_once_and_come_back() {
        let budget = Bytes::new(10);
        let large = budget.take(100).unwrap();
        assert_eq!(budget.left(), -90);
        let waiter = std::thread::spawn({
            let budget = budget.clone();
            move || budget.take(1).is_some()
        });
        drop(large);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.left(), 10);
    }

    #[test]
    fn who_came_first_is_served_first_and_nobody_gets_past_them() {
        let budget = Bytes::new(0);
        let held = budget.take(1).unwrap();
        let (done, served) = crossbeam_channel::unbounded();
        for index in 0..3 {
            let done = done.clone();
            budget.take_later(1, move |guard| done.send((index, guard)).unwrap());
        }
        assert!(budget.try_take(1).is_none());
        drop(held);
        for expected in 0..3 {
            let (index, guard) = served.recv().unwrap();
            assert_eq!(index, expected);
            assert!(served.is_empty(), "one at a time");
            drop(guard);
        }
        assert_eq!(budget.left(), 0);
    }

    #[test]
    fn closing_ends_every_wait_for_bytes() {
        let budget = Bytes::new(0);
        let held = budget.take(1).unwrap();
        let waiter = std::thread::spawn({
            let budget = budget.clone();
            move || budget.take(1).is_none()
        });
        budget.close();
        assert!(waiter.join().unwrap());
        drop(held);
        assert!(budget.take(1).is_none());
    }
}
