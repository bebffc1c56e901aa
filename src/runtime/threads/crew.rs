//! Threads that wait: grown on demand, reused, given back when idle, joined at the end.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::sync::{Condvar, Mutex, lock, wait};

/// Enough for a request, its TLS and the decoding of its answer.
pub(crate) const STACK: usize = 256 * 1024;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(3);

/// How long no job must have ended for a crew that begins small to grow.
const STALL: Duration = Duration::from_millis(20);

type Job = Box<dyn FnOnce() + Send>;

/// A pool for work that mostly waits for the network, so one thread per job is what it takes.
///
/// Up to `limit` threads run at once; jobs past that queue up, first come first served, and
/// [`is_crowded`](Crew::is_crowded) tells the running ones to take turns.
#[derive(Clone)]
pub(crate) struct Crew(Arc<Shared>);

struct Shared {
    name: &'static str,
    limit: AtomicUsize,
    stack: AtomicUsize,
    /// Threads that are started at once; more only while none of them ends its job.
    at_once: usize,
    state: Mutex<State>,
    gone: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    queue: VecDeque<Job>,
    /// Idle threads, the most recently used last.
    idle: Vec<(u64, Sender<Job>)>,
    running: HashMap<u64, (ThreadId, JoinHandle<()>)>,
    finished: Vec<JoinHandle<()>>,
    next_id: u64,
    /// How many threads there may be at present.
    ramp: usize,
    /// When a job last began or ended.
    moved: Option<Instant>,
}

impl State {
    /// Allows twice as many threads if jobs wait and none has ended for a while.
    fn climb(&mut self, now: Instant) {
        if self.running.len() < self.ramp || self.queue.is_empty() {
            return;
        }
        let moved = *self.moved.get_or_insert(now);
        if now.saturating_duration_since(moved) >= STALL {
            self.ramp = self.ramp.saturating_mul(2);
            self.moved = Some(now);
        }
    }
}

impl Crew {
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        Self::beginning_with(name, usize::MAX, limit)
    }

    /// A crew for jobs that are mostly short: `at_once` threads do, unless the jobs turn out to
    /// take long.
    pub(crate) fn beginning_with(name: &'static str, at_once: usize, limit: usize) -> Self {
        let state = State {
            ramp: at_once,
            ..State::default()
        };
        Self(Arc::new(Shared {
            name,
            limit: AtomicUsize::new(limit.max(1)),
            stack: AtomicUsize::new(STACK),
            at_once,
            state: Mutex::new(state),
            gone: Condvar::new(),
        }))
    }

    /// Runs `job` on a thread of its own, or queues it. After [`close`](Self::close) the job is
    /// dropped, and its promise with it.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.add(Box::new(job), VecDeque::push_back);
    }

    /// The same, before all others that wait for a thread.
    pub(crate) fn run_first(&self, job: impl FnOnce() + Send + 'static) {
        self.add(Box::new(job), VecDeque::push_front);
    }

    fn add(&self, mut job: Job, queue: impl FnOnce(&mut VecDeque<Job>, Job)) {
        let mut state = lock(&self.0.state);
        if state.closed {
            drop(state);
            return;
        }
        while let Some((_, idle)) = state.idle.pop() {
            match idle.try_send(job) {
                Ok(()) => {
                    state.moved = Some(Instant::now());
                    return;
                }
                Err(error) => job = error.into_inner(),
            }
        }
        for handle in state.finished.drain(..) {
            // Each has left its loop, so this does not wait.
            drop(handle.join());
        }
        // Those who came first get the thread.
        queue(&mut state.queue, job);
        self.grow(&mut state);
    }

    /// Starts threads for the first jobs in the queue, as many as are allowed.
    fn grow(&self, state: &mut State) {
        state.climb(Instant::now());
        let limit = self.0.limit.load(Ordering::Relaxed).min(state.ramp);
        while state.running.len() < limit
            && let Some(first) = state.queue.pop_front()
        {
            if !self.start(state, first) {
                break;
            }
        }
    }

    /// Tries again to start threads that the system refused, and those that were not needed when
    /// they were last asked for: nobody else might take what is queued.
    pub(crate) fn rescue(&self) {
        self.grow(&mut lock(&self.0.state));
    }

    /// Sets how many threads there may be; those that run already are left alone.
    pub(crate) fn allow(&self, threads: usize) {
        self.0.limit.store(threads.max(1), Ordering::Relaxed);
    }

    /// Starts a thread for the job. If the system refuses, the job waits for one that runs, or for
    /// [`rescue`](Self::rescue).
    fn start(&self, state: &mut State, job: Job) -> bool {
        let id = state.next_id;
        let slot = Arc::new(Mutex::new(Some(job)));
        let (crew, mine) = (self.clone(), slot.clone());
        let spawned = thread::Builder::new()
            .name(format!("{}-{id}", self.0.name))
            .stack_size(self.0.stack.load(Ordering::Relaxed))
            .spawn(move || {
                let first = lock(&mine).take();
                crew.work(id, first);
            });
        match spawned {
            Ok(handle) => {
                state.next_id += 1;
                state.running.insert(id, (handle.thread().id(), handle));
                state.moved = Some(Instant::now());
                true
            }
            Err(error) => {
                let job = lock(&slot).take().expect("no thread started to take it");
                log::warn!("cannot start another waiting thread ({error}); requests take turns");
                state.queue.push_front(job);
                false
            }
        }
    }

    /// Whether jobs wait for a thread: long polls should then be short and queue up again.
    pub(crate) fn is_crowded(&self) -> bool {
        !lock(&self.0.state).queue.is_empty()
    }

    /// Sets the stack of threads to come; one that no system can give makes it refuse them.
    #[cfg(test)]
    fn set_stack(&self, bytes: usize) {
        self.0.stack.store(bytes, Ordering::Relaxed);
    }

    /// How many threads there are, idle ones included.
    pub(crate) fn threads(&self) -> usize {
        lock(&self.0.state).running.len()
    }

    /// Drops queued jobs, lets running ones end, and joins every thread but the caller's own.
    pub(crate) fn close(&self) {
        let me = thread::current().id();
        let mut state = lock(&self.0.state);
        state.closed = true;
        let queued = std::mem::take(&mut state.queue);
        state.idle.clear();
        drop(state);
        drop(queued);
        let mut state = lock(&self.0.state);
        while state.running.values().any(|(id, _)| *id != me) {
            state = wait(&self.0.gone, state);
        }
        let finished = std::mem::take(&mut state.finished);
        drop(state);
        for handle in finished {
            if handle.thread().id() != me {
                drop(handle.join());
            }
        }
    }
}

fn run_job(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        log::error!("a waiting thread caught a panic; the operation it ran has failed");
    }
}

impl Crew {
    fn work(&self, id: u64, first: Option<Job>) {
        let mut next = first;
        while let Some(job) = next {
            run_job(job);
            next = self.next(id);
        }
        let mut state = lock(&self.0.state);
        state.idle.retain(|(idle, _)| *idle != id);
        if let Some((_, handle)) = state.running.remove(&id) {
            state.finished.push(handle);
        }
        if state.running.is_empty() {
            state.ramp = self.0.at_once;
        }
        drop(state);
        self.0.gone.notify_all();
    }

    fn next(&self, id: u64) -> Option<Job> {
        let inbox: Receiver<Job>;
        {
            let mut state = lock(&self.0.state);
            self.grow(&mut state);
            state.moved = Some(Instant::now());
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            let (sender, receiver) = bounded(1);
            state.idle.push((id, sender));
            inbox = receiver;
        }
        if let Ok(job) = inbox.recv_timeout(IDLE) {
            return Some(job);
        }
        // A job may have been handed over just before giving up: look once more under the lock.
        let mut state = lock(&self.0.state);
        state.idle.retain(|(idle, _)| *idle != id);
        inbox.try_recv().ok().or_else(|| state.queue.pop_front())
    }
}

#[cfg(test)]
mod tests {

    use crossbeam_channel::unbounded;

    use super::*;

    #[test]
    fn a_job_whose_thread_was_refused_runs_once_one_can_be_had() {
        let crew = Crew::new("test", 2);
        crew.set_stack(usize::MAX / 4);
        let (done, results) = unbounded();
        crew.run(move || done.send(1).unwrap());
        crew.rescue();
        assert_eq!((crew.threads(), crew.is_crowded()), (0, true));
        crew.set_stack(STACK);
        crew.rescue();
        assert_eq!(results.recv(), Ok(1));
        crew.close();
    }

    #[test]
    fn a_small_crew_grows_only_while_no_job_ends() {
        let start = Instant::now();
        let queued = |ramp| State {
            ramp,
            queue: VecDeque::from([Box::new(|| ()) as Job]),
            ..State::default()
        };
        // It may start a thread, so nothing changes.
        let mut state = queued(1);
        state.climb(start + STALL);
        assert_eq!(state.ramp, 1);
        // None is left to start.
        let mut state = queued(1);
        for (after, moved, expected) in [
            (STALL, None, 1),
            (STALL, Some(start), 2),
            (STALL / 2, Some(start), 1),
        ] {
            let handle = thread::spawn(|| ());
            state.running = HashMap::from([(0, (handle.thread().id(), handle))]);
            (state.ramp, state.moved) = (1, moved);
            state.climb(start + after);
            assert_eq!(state.ramp, expected, "{after:?} {moved:?}");
        }
    }

    #[test]
    fn jobs_that_take_long_get_threads_of_their_own() {
        let crew = Crew::beginning_with("test", 1, 8);
        let (begun, count) = unbounded();
        let (release, gate) = bounded::<()>(0);
        for _ in 0..8 {
            let (begun, gate) = (begun.clone(), gate.clone());
            crew.run(move || {
                begun.send(()).unwrap();
                let _ = gate.recv();
            });
        }
        // No job ends; whoever looks after the crew finds it stalled.
        for _ in 0..8 {
            while count.try_recv().is_err() {
                crew.rescue();
                thread::yield_now();
            }
        }
        assert_eq!(crew.threads(), 8);
        drop(release);
        crew.close();
    }

    #[test]
    fn who_may_go_first_gets_the_next_thread() {
        let crew = Crew::new("test", 1);
        let (release, gate) = bounded::<()>(0);
        let (done, results) = unbounded();
        crew.run(move || gate.recv().unwrap());
        for index in [1, 2] {
            let done = done.clone();
            crew.run(move || done.send(index).unwrap());
        }
        crew.run_first(move || done.send(0).unwrap());
        release.send(()).unwrap();
        assert_eq!(results.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        crew.close();
    }

    #[test]
    fn grows_on_demand_and_queues_past_the_limit() {
        let crew = Crew::new("test", 2);
        let (release, gate) = bounded::<()>(0);
        let (done, results) = unbounded();
        for index in 0..4 {
            let (gate, done) = (gate.clone(), done.clone());
            crew.run(move || {
                gate.recv().unwrap();
                done.send(index).unwrap();
            });
        }
        assert_eq!(crew.threads(), 2);
        assert!(crew.is_crowded());
        for _ in 0..4 {
            release.send(()).unwrap();
        }
        let mut seen: Vec<i32> = results.iter().take(4).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        crew.close();
        assert_eq!(crew.threads(), 0);
    }

    #[test]
    fn reuses_an_idle_thread() {
        let crew = Crew::new("test", 100);
        for _ in 0..50 {
            let (done, finished) = bounded(1);
            crew.run(move || done.send(()).unwrap());
            finished.recv().unwrap();
            while lock(&crew.0.state).idle.is_empty() {
                thread::yield_now();
            }
        }
        assert_eq!(crew.threads(), 1);
        crew.close();
    }

    #[test]
    fn a_higher_limit_serves_those_who_came_first() {
        let crew = Crew::new("test", 1);
        let (release, gate) = bounded::<()>(0);
        crew.run(move || gate.recv().unwrap());
        let (done, order) = bounded(2);
        for name in ["first", "second"] {
            let done = done.clone();
            crew.run(move || done.send(name).unwrap());
            crew.allow(2);
        }
        assert_eq!(
            order.iter().take(2).collect::<Vec<_>>(),
            ["first", "second"]
        );
        release.send(()).unwrap();
        crew.close();
    }

    #[test]
    fn a_panicking_job_leaves_the_crew_working() {
        let crew = Crew::new("test", 1);
        crew.run(|| panic!("on purpose"));
        let (done, finished) = bounded(1);
        crew.run(move || done.send(7).unwrap());
        assert_eq!(finished.recv().unwrap(), 7);
        crew.close();
    }

    #[test]
    fn closing_drops_what_is_queued_and_waits_for_what_runs() {
        let crew = Crew::new("test", 1);
        let ran = Arc::new(AtomicUsize::new(0));
        let (release, gate) = bounded::<()>(0);
        let (started, running) = bounded(1);
        let count = ran.clone();
        crew.run(move || {
            started.send(()).unwrap();
            gate.recv().unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        });
        running.recv().unwrap();
        let count = ran.clone();
        crew.run(move || {
            count.fetch_add(100, Ordering::SeqCst);
        });
        let closer = thread::spawn({
            let crew = crew.clone();
            move || crew.close()
        });
        release.send(()).unwrap();
        closer.join().unwrap();
        // The second job may have been taken up before the close, but never after it.
        assert!(ran.load(Ordering::SeqCst) % 100 == 1);
        assert_eq!(crew.threads(), 0);
    }

    #[test]
    fn closing_from_its_own_thread_does_not_wait_for_itself() {
        let crew = Crew::new("test", 4);
        let (done, finished) = bounded(1);
        let own = crew.clone();
        crew.run(move || {
            own.close();
            done.send(()).unwrap();
        });
        finished.recv().unwrap();
    }
}
