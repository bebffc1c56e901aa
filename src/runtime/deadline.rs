//! The deadline of a blocking call as a whole: its requests, the waits between them, and the wait
//! for a result.
//!
//! It belongs to the thread that the call blocks. What other threads do on behalf of a model or a
//! sampler has no deadline: it goes on, whoever stops waiting for it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::{Duration, Instant};

use super::clock::Clock;

thread_local! {
    static PRESENT: Cell<Option<Ends>> = const { Cell::new(None) };
}

/// When the call on this thread ends: by the client's clock, and by the system's, which differ only
/// under a test that drives the first by hand.
#[derive(Clone, Copy)]
struct Ends {
    by_clock: Option<Instant>,
    by_system: Instant,
}

/// Holds while a blocking call is under way on this thread. A call inside another has the outer
/// one's deadline.
pub(crate) struct Deadline {
    outer: Option<Ends>,
    /// Stays on its thread.
    _here: PhantomData<*const ()>,
}

impl Deadline {
    #[must_use = "it holds until it is dropped"]
    pub(crate) fn begin(limit: Option<Duration>, clock: &Clock) -> Self {
        let outer = PRESENT.get();
        let ends = |limit| Ends {
            by_clock: clock.now().checked_add(limit),
            by_system: Clock::after(limit),
        };
        PRESENT.set(outer.or(limit.map(ends)));
        Self {
            outer,
            _here: PhantomData,
        }
    }

    /// When a request of the call on this thread must have ended, by the client's clock.
    pub(crate) fn of_request() -> Option<Instant> {
        PRESENT.get()?.by_clock
    }

    /// How much longer the call on this thread may wait.
    pub(crate) fn left() -> Option<Duration> {
        let ends = PRESENT.get()?;
        Some(ends.by_system.saturating_duration_since(Instant::now()))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        PRESENT.set(self.outer);
    }
}

/// What a call works with, and the call's deadline for as long as it does.
pub(crate) struct Within<T> {
    value: T,
    _deadline: Deadline,
}

impl<T> Within<T> {
    pub(crate) fn new(value: T, deadline: Deadline) -> Self {
        Self {
            value,
            _deadline: deadline,
        }
    }
}

impl<T> Deref for Within<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_call_decides_and_only_on_its_thread() {
        let (clock, second) = (Clock::recorded(), Duration::from_secs(1));
        let begin = |limit| Deadline::begin(limit, &clock);
        assert_eq!((Deadline::of_request(), Deadline::left()), (None, None));
        let outer = begin(Some(second));
        let ends = Deadline::of_request();
        assert_eq!(ends, Some(clock.now() + second));
        {
            let _inner = begin(Some(100 * second));
            assert_eq!(Deadline::of_request(), ends);
            assert!(Deadline::left() <= Some(second));
            std::thread::scope(|scope| {
                let other = scope.spawn(Deadline::of_request);
                assert_eq!(other.join().unwrap(), None);
            });
        }
        assert_eq!(Deadline::of_request(), ends);
        drop(outer);
        let _unlimited = begin(None);
        assert_eq!(Deadline::left(), None);
        let _endless = begin(Some(Duration::MAX));
        assert_eq!(Deadline::of_request(), None, "beyond all time");
        assert!(Deadline::left() > Some(1_000 * second));
    }
}
