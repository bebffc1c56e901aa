//! Which sample goes out next, and when: permits, bytes and backoff in front of the network.
//!
//! Jobs wait here without a thread each, in one queue per sampler; the samplers take turns. One
//! dispatcher thread calls [`Dispatcher::next`] and hands what it gets to the crew.

mod permits;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::permits::{Decision, Own, SILENT, Used, decide};
use super::backoff::Backoff;
use crate::runtime::clock::Clock;
use crate::sync::{Condvar, Mutex, MutexGuard, lock};

pub(crate) use self::permits::{Limits, POLLED_AT_ONCE, SHARE};

/// How much the ramp grows at a time, and how long nothing must have ended for that.
const RAMP_STEP: usize = 16;
const RAMP_PAUSE: Duration = Duration::from_millis(20);

/// What the reference multiplies a submission's weight by shortly after a backoff.
const NARROW_WEIGHT: i64 = 20;

/// The queues of a session's samplers. Cloning shares them.
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
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    lanes: BTreeMap<u64, Lane<J>>,
    next_lane: u64,
    /// The sampler that was served last.
    turn: u64,
    pushed: u64,
    closed: bool,
    used: Used,
    /// How many samples may be under way at present.
    ramp: usize,
    /// Whether the process's descriptors have held a sample back.
    full: bool,
    /// What the dispatcher waits for. Waking it for anything else costs more than it brings: a
    /// thread that ends a sample takes the next one itself.
    wanted: Wanted,
}

/// One sampler's queue.
struct Lane<J> {
    ready: VecDeque<Queued<J>>,
    later: BinaryHeap<Reverse<Later<J>>>,
    own: Own,
    /// What its client allows in flight, if less than the service does.
    most: Option<usize>,
    /// Jobs in the queue that nobody wants any more.
    unwanted: usize,
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

/// Events that the dispatcher waits for.
#[derive(Debug, Default, Clone, Copy)]
struct Wanted {
    /// A job that could start: the first of its sampler, or one that comes back with its flight
    /// and so needs no other's to end. True whenever the dispatcher waits.
    job: bool,
    post: bool,
    flight: bool,
}

impl Wanted {
    const A_JOB: Self = Self {
        job: true,
        post: false,
        flight: false,
    };
}

/// What [`Dispatcher::next`] is to do.
enum Step {
    Start(u64),
    Wait {
        wanted: Wanted,
        limit: Option<Duration>,
        ramp: bool,
    },
}

impl<J: Send + 'static> Dispatcher<J> {
    pub(crate) fn new(clock: Clock, backoff: Arc<Backoff>, limits: Limits) -> Self {
        Self(Arc::new(Shared {
            clock,
            backoff,
            limits,
            state: Mutex::new(State {
                lanes: BTreeMap::new(),
                next_lane: 0,
                turn: 0,
                pushed: 0,
                closed: false,
                used: Used::default(),
                ramp: limits.at_once(),
                full: false,
                wanted: Wanted::default(),
            }),
            changed: Condvar::new(),
        }))
    }

    /// A queue for one more sampler. A closed dispatcher gives it a number and nothing else.
    pub(crate) fn add_lane(&self) -> u64 {
        let mut state = lock(&self.0.state);
        let id = state.next_lane;
        state.next_lane += 1;
        if !state.closed {
            state.lanes.insert(id, Lane::default());
        }
        id
    }

    /// Sets how many of a sampler's jobs may be in flight; never more than the service says.
    pub(crate) fn limit_lane(&self, lane: u64, most: Option<usize>) {
        if let Some(lane) = lock(&self.0.state).lanes.get_mut(&lane) {
            lane.most = most;
        }
        self.0.changed.notify_all();
    }

    /// Forgets a sampler that has no jobs left.
    pub(crate) fn remove_lane(&self, lane: u64) {
        let gone = lock(&self.0.state).lanes.remove(&lane);
        drop(gone);
    }

    /// Queues a job at the back. A closed dispatcher drops it.
    pub(crate) fn push(&self, lane: u64, job: J, bytes: u64) {
        let queued = Queued {
            job,
            bytes,
            flight: None,
        };
        self.insert(lane, queued, |lane, _, queued| lane.ready.push_back(queued));
    }

    /// Puts a job that was sent too early back to the front.
    pub(crate) fn push_front(&self, lane: u64, job: J, bytes: u64, flight: Option<Flight>) {
        let queued = Queued { job, bytes, flight };
        self.insert(lane, queued, |lane, _, queued| {
            lane.ready.push_front(queued)
        });
    }

    /// Queues a job that is to be tried again after `delay`.
    pub(crate) fn push_later(
        &self,
        lane: u64,
        job: J,
        bytes: u64,
        flight: Option<Flight>,
        delay: Duration,
    ) {
        let now = self.0.clock.now();
        let due = now.checked_add(delay).unwrap_or(now + FAR);
        let queued = Queued { job, bytes, flight };
        self.insert(lane, queued, |lane, order, queued| {
            lane.later.push(Reverse(Later { due, order, queued }));
        });
    }

    fn insert(
        &self,
        lane: u64,
        queued: Queued<J>,
        insert: impl FnOnce(&mut Lane<J>, u64, Queued<J>),
    ) {
        let has_flight = queued.flight.is_some();
        let mut state = lock(&self.0.state);
        state.pushed += 1;
        let order = state.pushed;
        // Closing has taken every queue away, and none is made after it.
        let Some(lane) = state.lanes.get_mut(&lane) else {
            // Its promise tells whoever waits, which must not happen under the lock.
            drop(state);
            return drop(queued);
        };
        // What joins jobs that wait for a permit waits for it too.
        let could_start = lane.ready.is_empty() || has_flight;
        insert(lane, order, queued);
        let wake = state.wanted.job && could_start;
        drop(state);
        if wake {
            self.0.changed.notify_all();
        }
    }

    /// Notes that one of a sampler's jobs is no longer wanted, and drops such jobs once they are
    /// the greater part of the queue: each is looked at twice at most.
    pub(crate) fn give_up(&self, lane: u64, is_unwanted: impl Fn(&J) -> bool) {
        let mut state = lock(&self.0.state);
        let Some(lane) = state.lanes.get_mut(&lane) else {
            return;
        };
        lane.unwanted += 1;
        if lane.unwanted * 2 <= lane.len() {
            return;
        }
        let dropped = lane.sweep(is_unwanted);
        drop(state);
        drop(dropped);
    }

    /// A sampler's jobs that have not been handed out.
    pub(crate) fn waiting(&self, lane: u64) -> usize {
        lock(&self.0.state).lanes.get(&lane).map_or(0, Lane::len)
    }

    /// All jobs that have not been handed out.
    pub(crate) fn all_waiting(&self) -> usize {
        lock(&self.0.state).lanes.values().map(Lane::len).sum()
    }

    /// Submissions that no longer count, because they have gone unanswered for too long.
    pub(crate) fn silent(&self) -> usize {
        lock(&self.0.state).used.silent.posts
    }

    /// Samplers.
    pub(crate) fn lanes(&self) -> usize {
        lock(&self.0.state).lanes.len()
    }

    /// Whether the process's descriptors have ever held a sample back.
    pub(crate) fn was_full(&self) -> bool {
        lock(&self.0.state).full
    }

    /// Waits until a job may go out. `None` after [`close`](Self::close).
    pub(crate) fn next(&self) -> Option<Started<J>> {
        let mut state = lock(&self.0.state);
        loop {
            if state.closed {
                return None;
            }
            let now = self.0.clock.now();
            let (wanted, limit, ramp) = match self.step(&mut state, now) {
                Step::Start(lane) => return Some(self.start(&mut state, lane, now)),
                Step::Wait {
                    wanted,
                    limit,
                    ramp,
                } => (wanted, limit, ramp),
            };
            let ended = state.used.ended;
            state.wanted = wanted;
            state = self.wait(state, limit);
            state.wanted = Wanted::default();
            if ramp && state.used.ended == ended {
                state.ramp += RAMP_STEP;
            }
        }
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<J>>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State<J>> {
        // Whether submissions have gone silent is to be looked at now and then.
        let beat = state.wanted.post.then_some(SILENT);
        let changed = &self.0.changed;
        self.0.clock.wait_for(changed, state, limit, beat)
    }

    /// A job that may go out now: a thread that has just ended one takes the next, which saves
    /// handing it over.
    pub(crate) fn try_next(&self) -> Option<Started<J>> {
        let mut state = lock(&self.0.state);
        let now = self.0.clock.now();
        if state.closed {
            return None;
        }
        match self.step(&mut state, now) {
            Step::Start(lane) => Some(self.start(&mut state, lane, now)),
            Step::Wait { .. } => None,
        }
    }

    /// What to do now. Moves jobs whose time has come to the front of their queue before.
    fn step(&self, state: &mut State<J>, now: Instant) -> Step {
        let mut due = None;
        for lane in state.lanes.values_mut() {
            due = due.into_iter().chain(lane.ripen(now)).min();
        }
        if let Some(hold) = self.0.backoff.remaining(now) {
            let is_idle = state.lanes.values().all(|lane| lane.ready.is_empty());
            return Step::Wait {
                wanted: Wanted::A_JOB,
                limit: if is_idle { due } else { Some(hold) },
                ramp: false,
            };
        }
        state.used.turn(now);
        let limits = &self.0.limits;
        if limits.under_way(&state.used) == 0 {
            state.ramp = limits.at_once();
        }
        self.choose(state, due, self.0.backoff.is_recent(now))
    }

    /// Which sampler's job may start: the first after the one served last.
    fn choose(&self, state: &mut State<J>, due: Option<Duration>, recent: bool) -> Step {
        let (mut wanted, mut ramp, mut full) = (Wanted::A_JOB, false, false);
        let after = state.turn + 1;
        for (&id, lane) in state.lanes.range(after..).chain(state.lanes.range(..after)) {
            let Some(first) = lane.ready.front() else {
                continue;
            };
            let (own, has_flight) = (&lane.own, first.flight.is_some());
            let limits = &self.0.limits.for_lane(lane.most);
            match decide(limits, state.ramp, &state.used, own, has_flight, recent) {
                Decision::Start => return Step::Start(id),
                Decision::NoPost => {
                    wanted.post = true;
                    full |= limits.few_posts && !recent;
                }
                Decision::NoFlight => wanted.flight = true,
                Decision::Full => (wanted.flight, full) = (true, true),
                Decision::Ramp => ramp = true,
            }
        }
        state.full |= full;
        let pause = ramp.then_some(RAMP_PAUSE);
        Step::Wait {
            wanted,
            limit: pause.into_iter().chain(due).min(),
            ramp,
        }
    }

    /// Takes a sampler's first job.
    fn start(&self, state: &mut State<J>, id: u64, now: Instant) -> Started<J> {
        let factor = match self.0.backoff.is_recent(now) {
            true => NARROW_WEIGHT,
            false => 1,
        };
        let lane = state.lanes.get_mut(&id).expect("it was just seen");
        let queued = lane.ready.pop_front().expect("it was just seen");
        let bytes = i64::try_from(queued.bytes).unwrap_or(i64::MAX);
        let bytes = bytes.saturating_mul(factor);
        let takes_flight = self.0.limits.flights.is_some() && queued.flight.is_none();
        lane.own.load.posts += 1;
        lane.own.load.bytes = lane.own.load.bytes.saturating_add(bytes);
        lane.own.flights += usize::from(takes_flight);
        state.turn = id;
        state.used.fresh.posts += 1;
        state.used.fresh.bytes = state.used.fresh.bytes.saturating_add(bytes);
        state.used.flights += usize::from(takes_flight);
        let owner: Arc<dyn Release> = self.0.clone();
        let flight = match takes_flight {
            true => Some(Flight {
                owner: owner.clone(),
                lane: id,
            }),
            false => queued.flight,
        };
        let post = Post {
            owner,
            lane: id,
            generation: state.used.generation,
            bytes,
        };
        (queued.job, post, flight)
    }

    /// Drops what is queued, wakes `next`, and returns how many jobs were given up.
    pub(crate) fn close(&self) -> usize {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let lanes = std::mem::take(&mut state.lanes);
        drop(state);
        self.0.changed.notify_all();
        lanes.values().map(Lane::len).sum()
    }
}

/// A delay that does not fit into the clock is this long.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A job that may go out, with its permits.
pub(crate) type Started<J> = (J, Post, Option<Flight>);

impl<J> Default for Lane<J> {
    fn default() -> Self {
        Self {
            ready: VecDeque::new(),
            later: BinaryHeap::new(),
            own: Own::default(),
            most: None,
            unwanted: 0,
        }
    }
}

impl<J> Lane<J> {
    fn len(&self) -> usize {
        self.ready.len() + self.later.len()
    }

    /// Puts jobs whose time has come to the front; how long until the next one's has.
    fn ripen(&mut self, now: Instant) -> Option<Duration> {
        while self.later.peek().is_some_and(|later| later.0.due <= now) {
            let Reverse(later) = self.later.pop().expect("it was just seen");
            self.ready.push_front(later.queued);
        }
        self.later.peek().map(|later| later.0.due - now)
    }

    /// Takes out what nobody wants.
    fn sweep(&mut self, is_unwanted: impl Fn(&J) -> bool) -> Vec<Queued<J>> {
        self.unwanted = 0;
        let (out, kept) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition(|queued| is_unwanted(&queued.job));
        self.ready = kept;
        let mut out: Vec<_> = VecDeque::into(out);
        let (late, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|later| is_unwanted(&later.0.queued.job));
        self.later = kept.into();
        out.extend(late.into_iter().map(|later| later.0.queued));
        out
    }
}

/// Gives permits back; so that they need not know what the jobs are.
trait Release: Send + Sync {
    fn post_ended(&self, lane: u64, generation: u64, bytes: i64);
    fn flight_ended(&self, lane: u64);
}

impl<J: Send> Release for Shared<J> {
    fn post_ended(&self, lane: u64, generation: u64, bytes: i64) {
        let mut state = lock(&self.state);
        state.used.answered(generation, bytes);
        state.used.ended += u64::from(self.limits.flights.is_none());
        if let Some(lane) = state.lanes.get_mut(&lane) {
            lane.own.load.posts -= 1;
            lane.own.load.bytes -= bytes;
        }
        let wake = state.wanted.post;
        drop(state);
        if wake {
            self.changed.notify_all();
        }
    }

    fn flight_ended(&self, lane: u64) {
        let mut state = lock(&self.state);
        state.used.flights -= 1;
        state.used.ended += 1;
        if let Some(lane) = state.lanes.get_mut(&lane) {
            lane.own.flights -= 1;
        }
        let wake = state.wanted.flight;
        drop(state);
        if wake {
            self.changed.notify_all();
        }
    }
}

/// The permit to have one submission on the wire.
pub(crate) struct Post {
    owner: Arc<dyn Release>,
    lane: u64,
    generation: u64,
    bytes: i64,
}

impl Drop for Post {
    fn drop(&mut self) {
        self.owner
            .post_ended(self.lane, self.generation, self.bytes);
    }
}

/// The permit to be among the samples in flight.
pub(crate) struct Flight {
    owner: Arc<dyn Release>,
    lane: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.owner.flight_ended(self.lane);
    }
}

#[cfg(test)]
mod tests;
