//! Which sample goes out next, and when: permits, bytes and backoff in front of the network.
//!
//! Jobs wait here without a thread each. One dispatcher thread calls [`Dispatcher::next`] and
//! hands what it gets to the crew.

mod usage;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use self::usage::{SILENT, Usage, Used, Wanted};
use crate::runtime::clock::Clock;
use crate::runtime::sampling::backoff::Backoff;
use crate::sync::lock;

pub(crate) use self::usage::{Flight, Post};

/// How much may go on at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Submissions on the wire.
    pub(crate) posts: usize,
    /// Submissions on the wire shortly after a backoff.
    pub(crate) narrow_posts: usize,
    /// Samples anywhere between submission and result; `None` if waiting costs no thread.
    pub(crate) flights: Option<usize>,
    /// Estimated bytes of submissions on the wire.
    pub(crate) bytes: u64,
}

/// Samples in flight that are started at once; beyond them the number grows only while none ends,
/// so that a fast service is not met with a thread for every sample of a large batch.
const FLIGHTS_AT_ONCE: usize = 512;
/// How much it grows at a time, and how long nothing must have ended for that.
const RAMP_STEP: usize = 16;
const RAMP_PAUSE: Duration = Duration::from_millis(20);

/// What the reference multiplies a submission's weight by shortly after a backoff.
const NARROW_WEIGHT: i64 = 20;

pub(crate) struct Dispatcher<J>(Arc<Shared<J>>);

impl<J> Clone for Dispatcher<J> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<J> {
    clock: Clock,
    backoff: Arc<Backoff>,
    limits: Limits,
    queue: Mutex<Queue<J>>,
    usage: Arc<Usage>,
}

struct Queue<J> {
    ready: VecDeque<Queued<J>>,
    later: BinaryHeap<Reverse<Later<J>>>,
    pushed: u64,
    closed: bool,
    /// How many flights are allowed at present.
    ramp: usize,
}

struct Queued<J> {
    job: J,
    bytes: u64,
    flight: Option<Flight>,
}

struct Later<J> {
    due: Instant,
    order: u64,
    queued: Queued<J>,
}

impl<J> PartialEq for Later<J> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<J> Eq for Later<J> {}

impl<J> PartialOrd for Later<J> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<J> Ord for Later<J> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Start,
    /// Nothing to send, or no room: wait for that.
    Wait(Wanted),
    WaitFor(Duration),
    /// Wait for a flight to end; if none does for a while, allow more.
    Ramp,
}

/// Whether the next job may start. Pure, so that a table can test it.
fn decide(
    limits: &Limits,
    ramp: usize,
    used: &Used,
    has_flight: bool,
    hold: Option<Duration>,
    recent: bool,
) -> Decision {
    if let Some(hold) = hold {
        return Decision::WaitFor(hold);
    }
    let posts = if recent {
        limits.narrow_posts
    } else {
        limits.posts
    };
    let flights = limits.flights.unwrap_or(usize::MAX);
    // As with every byte budget here, the last one in may overdraw it.
    let over = used.bytes() > i64::try_from(limits.bytes).unwrap_or(i64::MAX);
    if used.posts() >= posts || over {
        Decision::Wait(Wanted::Post)
    } else if !has_flight && used.flights >= flights {
        Decision::Wait(Wanted::Flight)
    } else if !has_flight && used.flights >= ramp {
        Decision::Ramp
    } else {
        Decision::Start
    }
}

impl<J> Dispatcher<J> {
    pub(crate) fn new(clock: Clock, backoff: Arc<Backoff>, limits: Limits) -> Self {
        Self(Arc::new(Shared {
            clock,
            backoff,
            limits,
            queue: Mutex::new(Queue {
                ready: VecDeque::new(),
                later: BinaryHeap::new(),
                pushed: 0,
                closed: false,
                ramp: FLIGHTS_AT_ONCE,
            }),
            usage: Arc::new(Usage {
                used: Mutex::default(),
                changed: Condvar::new(),
            }),
        }))
    }

    /// Queues a job at the back. A closed dispatcher drops it.
    pub(crate) fn push(&self, job: J, bytes: u64) {
        self.insert(|queue| {
            queue.ready.push_back(Queued {
                job,
                bytes,
                flight: None,
            });
        });
    }

    /// Puts a job that was sent too early back to the front.
    pub(crate) fn push_front(&self, job: J, bytes: u64, flight: Option<Flight>) {
        self.insert(|queue| queue.ready.push_front(Queued { job, bytes, flight }));
    }

    /// Queues a job that is to be tried again after `delay`.
    pub(crate) fn push_later(&self, job: J, bytes: u64, flight: Option<Flight>, delay: Duration) {
        let due = self.0.clock.now() + delay;
        self.insert(|queue| {
            queue.pushed += 1;
            queue.later.push(Reverse(Later {
                due,
                order: queue.pushed,
                queued: Queued { job, bytes, flight },
            }));
        });
    }

    fn insert(&self, insert: impl FnOnce(&mut Queue<J>)) {
        let mut queue = lock(&self.0.queue);
        if queue.closed {
            return;
        }
        insert(&mut queue);
        drop(queue);
        self.0.usage.change(Wanted::Job, |_| ());
    }

    /// Jobs that have not been handed out.
    pub(crate) fn waiting(&self) -> usize {
        let queue = lock(&self.0.queue);
        queue.ready.len() + queue.later.len()
    }

    /// Submissions that no longer count, because they have gone unanswered for too long.
    pub(crate) fn silent(&self) -> usize {
        lock(&self.0.usage.used).silent
    }

    /// Waits until a job may go out. `None` after [`close`](Self::close).
    pub(crate) fn next(&self) -> Option<(J, Post, Option<Flight>)> {
        loop {
            let seen = *lock(&self.0.usage.used);
            let now = self.0.clock.now();
            let mut queue = lock(&self.0.queue);
            if queue.closed {
                return None;
            }
            let decision = self.decide(&mut queue, now);
            let due = queue.later.peek().map(|later| later.0.due - now);
            let (wanted, limit) = match decision {
                Decision::Start => return Some(self.start(queue, now)),
                Decision::Wait(wanted) => (wanted, None),
                Decision::WaitFor(hold) => (Wanted::Nothing, Some(hold)),
                Decision::Ramp => (Wanted::Nothing, Some(RAMP_PAUSE)),
            };
            drop(queue);
            let limit = [limit, due].into_iter().flatten().min();
            let ended = self.wait(seen.version, wanted, limit);
            if decision == Decision::Ramp && ended == Some(seen.ended) {
                lock(&self.0.queue).ramp += RAMP_STEP;
            }
        }
    }

    /// A job that may go out now: a thread that has just ended one takes the next, which saves
    /// handing it over.
    pub(crate) fn try_next(&self) -> Option<(J, Post, Option<Flight>)> {
        let now = self.0.clock.now();
        let mut queue = lock(&self.0.queue);
        if queue.closed || self.decide(&mut queue, now) != Decision::Start {
            return None;
        }
        Some(self.start(queue, now))
    }

    /// Whether the first job may start; moves those whose time has come to the front before.
    fn decide(&self, queue: &mut Queue<J>, now: Instant) -> Decision {
        while queue.later.peek().is_some_and(|later| later.0.due <= now) {
            let Reverse(later) = queue.later.pop().expect("it was just seen");
            queue.ready.push_front(later.queued);
        }
        let Some(first) = queue.ready.front() else {
            return Decision::Wait(Wanted::Job);
        };
        let used = {
            let mut used = lock(&self.0.usage.used);
            used.turn(now);
            *used
        };
        if used.flights == 0 {
            queue.ramp = FLIGHTS_AT_ONCE;
        }
        let backoff = &self.0.backoff;
        decide(
            &self.0.limits,
            queue.ramp,
            &used,
            first.flight.is_some(),
            backoff.remaining(now),
            backoff.is_recent(now),
        )
    }

    /// Takes the first job. The queue stays locked until it counts as started, so that two
    /// threads cannot both take the last permit.
    fn start(
        &self,
        mut queue: MutexGuard<'_, Queue<J>>,
        now: Instant,
    ) -> (J, Post, Option<Flight>) {
        let queued = queue.ready.pop_front().expect("it was just seen");
        let factor = if self.0.backoff.is_recent(now) {
            NARROW_WEIGHT
        } else {
            1
        };
        let bytes = i64::try_from(queued.bytes)
            .unwrap_or(i64::MAX)
            .saturating_mul(factor);
        let counts_flights = self.0.limits.flights.is_some();
        let takes_flight = counts_flights && queued.flight.is_none();
        let generation = {
            let mut used = lock(&self.0.usage.used);
            used.fresh.posts += 1;
            used.fresh.bytes = used.fresh.bytes.saturating_add(bytes);
            used.flights += usize::from(takes_flight);
            used.generation
        };
        let usage = &self.0.usage;
        let post = Post {
            usage: usage.clone(),
            generation,
            bytes,
        };
        let flight = match queued.flight {
            Some(flight) => Some(flight),
            None if takes_flight => Some(Flight(usage.clone())),
            None => None,
        };
        (queued.job, post, flight)
    }

    /// Waits for what is wanted, or for the time, unless something changed since version `seen`.
    /// How many flights have ended by the end of the wait; `None` if there was none.
    fn wait(&self, seen: u64, wanted: Wanted, limit: Option<Duration>) -> Option<u64> {
        let usage = &self.0.usage;
        let mut used = lock(&usage.used);
        if used.version != seen {
            return None;
        }
        used.wanted = wanted;
        let beat = (wanted == Wanted::Post).then_some(SILENT);
        self.0.clock.wait_for(&usage.changed, used, limit, beat);
        let mut used = lock(&usage.used);
        used.wanted = Wanted::Nothing;
        Some(used.ended)
    }

    /// Drops what is queued, wakes `next`, and returns how many jobs were given up.
    pub(crate) fn close(&self) -> usize {
        let mut queue = lock(&self.0.queue);
        queue.closed = true;
        let (ready, later) = (
            std::mem::take(&mut queue.ready),
            std::mem::take(&mut queue.later),
        );
        drop(queue);
        self.0.usage.change(Wanted::Nothing, |_| ());
        self.0.usage.changed.notify_all();
        ready.len() + later.len()
    }
}

#[cfg(test)]
mod tests;
