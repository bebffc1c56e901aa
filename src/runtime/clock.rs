//! Time as a value: real, or driven by a test that wants the list of delays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stop::{Flag, Stop};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait, wait_for, wait_while};

/// Where the runtime gets the time from and how it waits.
///
/// Every pause goes through here with a stop flag, so that closing a client wakes whoever sleeps.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The system's monotonic clock.
    #[default]
    Real,
    /// A clock that never sleeps: each pause is recorded and moves the time on, and so does
    /// [`advance`](Self::advance).
    Recorded(Arc<Recording>),
}

/// The pauses a [`Clock::Recorded`] was asked for.
#[derive(Debug)]
pub struct Recording {
    start: Instant,
    state: Mutex<(Duration, Vec<Duration>)>,
    /// Who waits for a beat.
    beating: Mutex<Vec<Arc<Flag>>>,
    arrived: Condvar,
}

impl Clock {
    /// A clock for tests: pauses return at once, are listed by [`pauses`](Self::pauses), and
    /// move [`now`](Self::now) on.
    pub fn recorded() -> Self {
        Self::Recorded(Arc::new(Recording {
            start: Instant::now(),
            state: Mutex::default(),
            beating: Mutex::default(),
            arrived: Condvar::new(),
        }))
    }

    /// Moves a recorded clock on, as if the time had passed: background rhythms that are due by
    /// then go on. The real clock takes no notice.
    pub fn advance(&self, by: Duration) {
        let Self::Recorded(recording) = self else {
            return;
        };
        lock(&recording.state).0 += by;
        let beating = lock(&recording.beating).clone();
        for flag in beating {
            // Whoever is about to wait has looked at the old time under this lock.
            drop(lock(&flag.0));
            flag.1.notify_all();
        }
    }

    /// Waits until this many background rhythms wait for their next beat on a recorded clock.
    pub fn wait_for_rhythms(&self, count: usize) {
        if let Self::Recorded(recording) = self {
            let beating = lock(&recording.beating);
            let fewer = |beating: &mut Vec<_>| beating.len() < count;
            drop(wait_while(&recording.arrived, beating, None, fewer));
        }
    }

    /// The present.
    pub fn now(&self) -> Instant {
        match self {
            Self::Real => Instant::now(),
            Self::Recorded(recording) => recording.start + lock(&recording.state).0,
        }
    }

    /// The moment after `limit`; where that lies beyond all time, years from now.
    pub(crate) fn after(limit: Duration) -> Instant {
        const YEARS: Duration = Duration::from_secs(20 * 365 * 86_400);
        Instant::now() + limit.min(YEARS)
    }

    /// The pauses so far, for a recorded clock; none for the real one.
    pub fn pauses(&self) -> Vec<Duration> {
        match self {
            Self::Real => Vec::new(),
            Self::Recorded(recording) => lock(&recording.state).1.clone(),
        }
    }

    /// Waits before trying something again. Returns whether `stop` was set meanwhile.
    pub(crate) fn pause(&self, stop: &Stop, duration: Duration) -> bool {
        match self {
            Self::Real => stop.wait(Some(duration)),
            Self::Recorded(recording) => {
                let mut state = lock(&recording.state);
                state.0 += duration;
                state.1.push(duration);
                drop(state);
                stop.is_set()
            }
        }
    }

    /// Waits for `changed`, at most for `limit`, which a recorded clock takes as already over,
    /// or until the next `beat`, which it never reaches.
    pub(crate) fn wait_for<'a, T>(
        &self,
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
        beat: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        let soonest = [limit, beat].into_iter().flatten().min();
        match (self, limit, soonest) {
            (Self::Real, _, Some(limit)) => wait_for(changed, guard, limit),
            (Self::Real, ..) | (Self::Recorded(_), None, _) => wait(changed, guard),
            (Self::Recorded(recording), Some(limit), _) => {
                let mut state = lock(&recording.state);
                state.0 += limit;
                state.1.push(limit);
                guard
            }
        }
    }

    /// Waits for the next beat of a background rhythm, which on a recorded clock comes only when
    /// a test moves it on. Returns whether `stop` was set meanwhile.
    pub(crate) fn beat(&self, stop: &Stop, duration: Duration) -> bool {
        let Self::Recorded(recording) = self else {
            return stop.wait(Some(duration));
        };
        let due = self.now().checked_add(duration);
        lock(&recording.beating).push(stop.0.clone());
        recording.arrived.notify_all();
        let guard = lock(&stop.0.0);
        let early = || due.is_none_or(|due| self.now() < due);
        let stopped = *wait_while(&stop.0.1, guard, None, |set| !*set && early());
        let mut beating = lock(&recording.beating);
        if let Some(mine) = beating.iter().position(|flag| Arc::ptr_eq(flag, &stop.0)) {
            beating.swap_remove(mine);
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_pauses_move_the_time_and_return_at_once() {
        let clock = Clock::recorded();
        let (start, stop) = (clock.now(), Stop::default());
        assert!(!clock.pause(&stop, Duration::from_secs(30)));
        assert!(!clock.pause(&stop, Duration::from_secs(1)));
        assert_eq!(clock.now() - start, Duration::from_secs(31));
        assert_eq!(
            clock.pauses(),
            [Duration::from_secs(30), Duration::from_secs(1)]
        );
        stop.set();
        assert!(clock.pause(&stop, Duration::from_secs(1)));
        assert!(clock.beat(&stop, Duration::from_secs(1)));
    }

    #[test]
    fn a_recorded_beat_comes_when_the_clock_is_moved_on() {
        let (clock, stop) = (Clock::recorded(), Stop::default());
        let (beat, beats) = crossbeam_channel::unbounded();
        let rhythm = std::thread::spawn({
            let (clock, stop) = (clock.clone(), stop.clone());
            move || {
                while !clock.beat(&stop, Duration::from_secs(10)) {
                    beat.send(()).unwrap();
                }
            }
        });
        for _ in 0..3 {
            clock.wait_for_rhythms(1);
            clock.advance(Duration::from_secs(9));
            assert!(beats.try_recv().is_err());
            clock.advance(Duration::from_secs(1));
            beats.recv().unwrap();
        }
        stop.set();
        rhythm.join().unwrap();
        assert_eq!(clock.pauses(), []);
    }
}
