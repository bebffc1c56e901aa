//! Which sample goes out next, and when: permits, bytes and backoff in front of the network.
//!
//! Jobs wait here without a thread each. One dispatcher thread calls [`Dispatcher::next`] and
//! hands what it gets to the crew.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::clock::{Clock, lock};
use super::limits::Backoff;

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
const FLIGHTS_AT_ONCE: usize = 400;
/// How much it grows at a time, and how long nothing must have ended for that.
const RAMP_STEP: usize = 16;
const RAMP_PAUSE: Duration = Duration::from_millis(20);

/// A submission that goes unanswered for this long, or twice as long at most, no longer counts:
/// silent ones must not hold every permit until their timeout.
const SILENT: Duration = Duration::from_secs(5);

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

/// What is on the wire and in flight. Its own lock, so that guards need no job type.
struct Usage {
    used: Mutex<Used>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy)]
struct Used {
    /// Counts every change, so that whoever decides to wait cannot miss one.
    version: u64,
    /// Submissions of the present generation and of the one before; older ones are silent.
    fresh: Load,
    aging: Load,
    silent: usize,
    generation: u64,
    /// When the present generation began.
    turned: Option<Instant>,
    flights: usize,
    /// Flights that have ended.
    ended: u64,
    /// What the dispatcher waits for. Waking it for anything else costs more than it brings: a
    /// thread that ends a sample takes the next one itself.
    wanted: Wanted,
}

/// Submissions on the wire.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    posts: usize,
    bytes: i64,
}

impl Used {
    fn posts(&self) -> usize {
        self.fresh.posts + self.aging.posts
    }

    fn bytes(&self) -> i64 {
        self.fresh.bytes.saturating_add(self.aging.bytes)
    }

    /// Begins a new generation when the present one has lasted long enough.
    fn turn(&mut self, now: Instant) {
        let turned = *self.turned.get_or_insert(now);
        if now.saturating_duration_since(turned) >= SILENT {
            self.silent += self.aging.posts;
            self.aging = std::mem::take(&mut self.fresh);
            self.generation += 1;
            self.turned = Some(now);
        }
    }

    fn answered(&mut self, generation: u64, bytes: i64) {
        let load = match self.generation - generation {
            0 => &mut self.fresh,
            1 => &mut self.aging,
            _ => {
                self.silent -= 1;
                return;
            }
        };
        load.posts -= 1;
        load.bytes -= bytes;
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Nothing but time, or it does not wait.
    #[default]
    Nothing,
    Job,
    Post,
    Flight,
}

impl Usage {
    fn change(&self, what: Wanted, change: impl FnOnce(&mut Used)) {
        let mut used = lock(&self.used);
        change(&mut used);
        used.version += 1;
        let wake = used.wanted == what;
        drop(used);
        if wake {
            self.changed.notify_all();
        }
    }
}

/// The right to have one submission on the wire.
pub(crate) struct Post {
    usage: Arc<Usage>,
    generation: u64,
    bytes: i64,
}

impl Drop for Post {
    fn drop(&mut self) {
        self.usage.change(Wanted::Post, |used| {
            used.answered(self.generation, self.bytes);
        });
    }
}

/// A place among the samples in flight.
pub(crate) struct Flight(Arc<Usage>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.change(Wanted::Flight, |used| {
            used.flights -= 1;
            used.ended += 1;
        });
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
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        posts: 4,
        narrow_posts: 1,
        flights: Some(6),
        bytes: 100,
    };

    fn dispatcher(limits: Limits) -> (Dispatcher<u32>, Clock, Arc<Backoff>) {
        let (clock, backoff) = (Clock::recorded(), Arc::new(Backoff::default()));
        let dispatcher = Dispatcher::new(clock.clone(), backoff.clone(), limits);
        (dispatcher, clock, backoff)
    }

    #[test]
    fn decisions() {
        #[track_caller]
        fn check(used: (usize, usize, i64), flight: bool, recent: bool, expected: Decision) {
            let (posts, flights, bytes) = used;
            let used = Used {
                fresh: Load { posts, bytes },
                flights,
                ..Used::default()
            };
            assert_eq!(decide(&LIMITS, 5, &used, flight, None, recent), expected);
        }
        check((0, 0, 0), false, false, Decision::Start);
        check((3, 4, 100), false, false, Decision::Start);
        check((3, 5, 100), false, false, Decision::Ramp);
        check((3, 5, 100), true, false, Decision::Start);
        check((4, 0, 0), false, false, Decision::Wait(Wanted::Post));
        check((0, 0, 101), false, false, Decision::Wait(Wanted::Post));
        check((0, 6, 0), false, false, Decision::Wait(Wanted::Flight));
        check((0, 6, 0), true, false, Decision::Start);
        check((1, 1, 0), false, true, Decision::Wait(Wanted::Post));
        let hold = Some(Duration::from_secs(2));
        assert_eq!(
            decide(&LIMITS, 5, &Used::default(), false, hold, true),
            Decision::WaitFor(Duration::from_secs(2))
        );
    }

    #[test]
    fn jobs_come_in_order_and_permits_bound_them() {
        let (dispatcher, ..) = dispatcher(LIMITS);
        for job in 0..5 {
            dispatcher.push(job, 1);
        }
        let mut held: Vec<_> = (0..4).map(|_| dispatcher.next().unwrap()).collect();
        let jobs: Vec<u32> = held.iter().map(|(job, ..)| *job).collect();
        assert_eq!(jobs, [0, 1, 2, 3]);
        assert_eq!(dispatcher.waiting(), 1);
        let waiter = std::thread::spawn({
            let dispatcher = dispatcher.clone();
            move || dispatcher.next().unwrap().0
        });
        held.truncate(3);
        assert_eq!(waiter.join().unwrap(), 4);
    }

    #[test]
    fn silent_submissions_do_not_hold_every_permit() {
        let (dispatcher, clock, _) = dispatcher(LIMITS);
        for job in 0..12 {
            dispatcher.push(job, 1);
        }
        let jobs = |dispatcher: &Dispatcher<u32>| {
            let started = std::iter::from_fn(|| dispatcher.try_next());
            started
                .map(|(job, post, _)| (job, post))
                .collect::<Vec<_>>()
        };
        let silent = jobs(&dispatcher);
        assert_eq!(silent.len(), 4);
        // A generation may have begun just before; after the second they are old for certain.
        let stop = crate::runtime::clock::Stop::default();
        clock.pause(&stop, SILENT);
        assert!(dispatcher.try_next().is_none());
        clock.pause(&stop, SILENT);
        let next = jobs(&dispatcher);
        assert_eq!((next.len(), dispatcher.silent()), (4, 4));
        // Late answers to the silent ones make no more room than there is.
        drop(silent);
        assert_eq!(dispatcher.silent(), 0);
        assert!(dispatcher.try_next().is_none());
        drop(next);
        assert_eq!(jobs(&dispatcher).len(), 4);
    }

    #[test]
    fn a_backoff_holds_everything_then_narrows() {
        let (dispatcher, clock, backoff) = dispatcher(LIMITS);
        backoff.extend(clock.now() + Duration::from_secs(5));
        dispatcher.push(1, 10);
        let (job, post, _flight) = dispatcher.next().unwrap();
        assert_eq!(job, 1);
        assert_eq!(clock.pauses(), [Duration::from_secs(5)]);
        assert_eq!(post.bytes, 200);
    }

    #[test]
    fn later_jobs_wait_for_their_time_and_the_front_goes_first() {
        let (dispatcher, clock, _) = dispatcher(LIMITS);
        dispatcher.push_later(9, 1, None, Duration::from_secs(3));
        dispatcher.push_later(8, 1, None, Duration::from_secs(1));
        dispatcher.push(1, 1);
        dispatcher.push_front(0, 1, None);
        let order: Vec<u32> = (0..4).map(|_| dispatcher.next().unwrap().0).collect();
        assert_eq!(order, [0, 1, 8, 9]);
        assert_eq!(
            clock.pauses(),
            [Duration::from_secs(1), Duration::from_secs(2)]
        );
    }

    #[test]
    fn closing_counts_what_is_given_up_and_ends_the_wait() {
        let (dispatcher, ..) = dispatcher(Limits { posts: 0, ..LIMITS });
        dispatcher.push(1, 1);
        let waiter = std::thread::spawn({
            let dispatcher = dispatcher.clone();
            move || dispatcher.next().is_none()
        });
        assert_eq!(dispatcher.close(), 1);
        assert!(waiter.join().unwrap());
        dispatcher.push(2, 1);
        assert_eq!(dispatcher.waiting(), 0);
    }
}
