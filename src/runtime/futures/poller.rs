//! One long poll for all samples of a sampler, where the service offers `retrieve_futures`.
//!
//! Waiting then needs no thread per sample: a sample registers what to do once it has ended.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::results::Results;
use super::trouble::{FORGIVEN, Trouble};
use crate::error::{Context, Error, Meaning, Result};
use crate::runtime::calls::{AttemptError, BILLING_PAUSE};
use crate::runtime::threads::Background;
use crate::sync::{Condvar, Mutex, lock, wait_while};
use crate::transport::retry::wish;
use crate::transport::{Body, Request, Response};
use crate::wire::reply::{CompletionsReply, decode_json};
use crate::wire::request::{FuturesTarget, RetrieveFuturesRequest, to_json};
use crate::wire::route::RETRIEVE_FUTURES;

/// Said of a result that has to be asked for, whether it is there or not.
const UNKNOWN_SIZE: u64 = 0;

/// Called with the size of the result, 0 if unknown, once the request has ended or the poller
/// cannot tell any more.
type Waiter = Box<dyn FnOnce(Result<u64>) + Send>;

/// The poller of one sampler. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Poller(Arc<Shared>);

struct Shared {
    sampling_session_id: String,
    clone_id: u64,
    state: Mutex<State>,
    changed: Condvar,
    tend: Tend,
}

/// Asked after every poll: an error ends what waits at present.
type Tend = Box<dyn Fn() -> Option<Error> + Send + Sync>;

#[derive(Default)]
struct State {
    waiting: HashMap<String, Waiter>,
    /// Ended before anyone asked, or after nobody did any more.
    early: Early,
    /// Fetched, and to be reported by the next poll.
    fetched: BTreeSet<String>,
    cursor: u64,
    /// What everyone is told once the poller has ended.
    ended: Option<Result<u64>>,
    closed: bool,
}

/// Announcements that came before their request was known to be waited for. Those of requests
/// that were given up are never asked for, so the oldest go.
#[derive(Default)]
struct Early {
    sizes: HashMap<String, u64>,
    order: VecDeque<String>,
}

impl Early {
    /// More than can be between being accepted and being waited for.
    const KEPT: usize = 4_096;

    fn insert(&mut self, id: String, size: u64) {
        if self.sizes.insert(id.clone(), size).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > Self::KEPT {
            let oldest = self.order.pop_front().expect("there are many");
            self.sizes.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &str) -> Option<u64> {
        self.sizes.remove(id)
    }
}

/// What one poll brought.
#[derive(Debug)]
pub(crate) enum Answer {
    Completions,
    /// Anything else; a success that cannot be read counts as broken off.
    Trouble(Trouble),
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Verdict {
    Poll,
    Wait(Duration),
    /// Those who wait now are told; later ones may try again.
    GiveUp(Error),
    /// This kind of poll does not work, and those who wait poll for themselves.
    Die(Error),
}

/// The poller's memory between polls; pure.
#[derive(Debug)]
pub(crate) struct Machine {
    patience: Duration,
    bad_requests: u32,
    failing_since: Option<Instant>,
}

const PAUSE: Duration = Duration::from_secs(1);

impl Machine {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            bad_requests: 0,
            failing_since: None,
        }
    }

    pub(crate) fn next(&mut self, answer: Answer, now: Instant) -> Verdict {
        match answer {
            Answer::Completions => {
                self.bad_requests = 0;
                self.failing_since = None;
                Verdict::Poll
            }
            Answer::Trouble(Trouble {
                meaning,
                error,
                paused,
            }) => match meaning {
                Meaning::Unpaid if paused => Verdict::Wait(BILLING_PAUSE),
                Meaning::BadRequest if self.bad_requests < FORGIVEN => {
                    self.bad_requests += 1;
                    Verdict::Wait(PAUSE)
                }
                // The service holds the poll for as long as we read.
                Meaning::Pending if error.is_timeout() => {
                    self.failing_since = None;
                    Verdict::Poll
                }
                Meaning::Busy => Verdict::Wait(wish(&error).unwrap_or(PAUSE)),
                meaning if meaning.is_passing() => self.fault(error, now),
                _ => Verdict::Die(error),
            },
        }
    }

    fn fault(&mut self, error: Error, now: Instant) -> Verdict {
        let since = *self.failing_since.get_or_insert(now);
        if now.saturating_duration_since(since) < self.patience {
            return Verdict::Wait(PAUSE);
        }
        self.failing_since = None;
        Verdict::GiveUp(error)
    }
}

impl Poller {
    /// Starts the poller's thread.
    pub(crate) fn start(
        results: &Arc<Results>,
        background: &Background,
        sampling_session_id: &str,
        clone_id: u64,
        tend: Tend,
    ) -> Result<Self> {
        let poller = Self(Arc::new(Shared {
            sampling_session_id: sampling_session_id.to_owned(),
            clone_id,
            state: Mutex::default(),
            changed: Condvar::new(),
            tend,
        }));
        let (shared, results) = (poller.0.clone(), results.clone());
        background.spawn("tinker-poll", move || shared.run(&results))?;
        Ok(poller)
    }

    /// Calls `waiter` when the request has ended: at once, if it already has.
    pub(crate) fn wait(&self, request_id: &str, waiter: Waiter) {
        let mut state = lock(&self.0.state);
        if let Some(size) = state.early.remove(request_id) {
            drop(state);
            return waiter(Ok(size));
        }
        if let Some(outcome) = state.ended.clone() {
            drop(state);
            return waiter(outcome);
        }
        let before = state.waiting.insert(request_id.to_owned(), waiter);
        drop(state);
        // Whoever waited under the same id, which no two requests should have.
        drop(before);
        self.0.changed.notify_all();
    }

    /// Lets go of a request that nobody waits for any more.
    pub(crate) fn forget(&self, request_id: &str) {
        // What waited tells its own waiters when it is dropped, which must not be under the lock.
        let waiter = lock(&self.0.state).waiting.remove(request_id);
        drop(waiter);
    }

    /// Notes that a result was fetched, or will never be.
    pub(crate) fn fetched(&self, request_id: &str) {
        let mut state = lock(&self.0.state);
        let waiter = state.waiting.remove(request_id);
        // The service may have announced it more than once.
        state.early.remove(request_id);
        // After the last poll nobody reports it any more.
        if state.ended.is_none() {
            state.fetched.insert(request_id.to_owned());
        }
        drop(state);
        drop(waiter);
        self.0.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.0.state).closed
    }

    /// Lets the thread end after its present poll; those who still wait are told.
    pub(crate) fn close(&self) {
        lock(&self.0.state).closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self, results: &Results) {
        let mut machine = Machine::new(results.patience());
        while self.has_work(results) {
            let answer = self.poll(results);
            match machine.next(answer, results.link.clock().now()) {
                Verdict::Poll => {}
                Verdict::Wait(delay) => {
                    results.link.clock().pause(results.link.stop(), delay);
                }
                Verdict::GiveUp(error) => self.end(&Err(error), false),
                Verdict::Die(error) if results.link.stop().is_set() => {
                    return self.end(&Err(error), true);
                }
                Verdict::Die(error) => {
                    log::warn!("samples are awaited one by one from now on: {error}");
                    return self.end(&Ok(UNKNOWN_SIZE), true);
                }
            }
            if let Some(error) = (self.tend)() {
                self.end(&Err(error), false);
            }
        }
        let error = Error::Closed(Context::new("the client was closed"));
        self.end(&Err(error), true);
    }

    /// Waits until someone waits or there is something to report; false to end.
    fn has_work(&self, results: &Results) -> bool {
        let ends = |state: &State| state.closed || results.link.stop().is_set();
        let state = lock(&self.state);
        let state = wait_while(&self.changed, state, None, |state| {
            state.waiting.is_empty() && state.fetched.is_empty() && !ends(state)
        });
        !ends(&state)
    }

    /// Tells those who wait, and if it is for good those who will.
    fn end(&self, outcome: &Result<u64>, for_good: bool) {
        let mut state = lock(&self.state);
        if for_good {
            state.ended = Some(outcome.clone());
            state.fetched = BTreeSet::new();
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiter in waiting.into_values() {
            waiter(outcome.clone());
        }
    }

    fn poll(&self, results: &Results) -> Answer {
        let (cursor, reported) = {
            let state = lock(&self.state);
            let reported: Vec<String> = state.fetched.iter().cloned().collect();
            (state.cursor, reported)
        };
        let body = to_json(&RetrieveFuturesRequest {
            target: FuturesTarget {
                sampling_session_id: self.sampling_session_id.as_str().into(),
                cloned_sampler_id: self.clone_id,
            },
            prev_cursor: cursor,
            timeout: None,
            retrieved_request_ids: reported.as_slice().into(),
        });
        let label = RETRIEVE_FUTURES.label();
        let outcome = body.map_err(AttemptError::Credentials).and_then(|body| {
            let request = Request::to(&RETRIEVE_FUTURES, RETRIEVE_FUTURES.fixed_path())
                .with_body(Body::Json(&body))
                .with_read_timeout(results.config.poll_timeout);
            results.link.attempt(request)
        });
        match outcome {
            Ok(response) if response.is_success() => match self.take(&response, &reported) {
                Ok(()) => Answer::Completions,
                Err(error) => Answer::Trouble(Trouble::new(Meaning::BrokenOff, error)),
            },
            Ok(response) => Answer::Trouble(Trouble::refused(&results.link, &response, &label)),
            Err(failed) => Answer::Trouble(Trouble::unanswered(failed, &label)),
        }
    }

    /// Wakes those whose requests have ended.
    fn take(&self, response: &Response, reported: &[String]) -> Result<()> {
        let reply: CompletionsReply = decode_json(&response.body)?;
        let mut woken = Vec::new();
        let mut state = lock(&self.state);
        state.cursor = reply.cursor;
        for id in reported {
            state.fetched.remove(id);
        }
        for completion in &reply.completions {
            let id = completion.request_id();
            let size = completion.payload_size().unwrap_or(UNKNOWN_SIZE);
            match state.waiting.remove(id) {
                Some(waiter) => woken.push((waiter, size)),
                None => state.early.insert(id.to_owned(), size),
            }
        }
        drop(state);
        for (waiter, size) in woken {
            waiter(Ok(size));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A poller without its thread.
    fn poller() -> Poller {
        Poller(Arc::new(Shared {
            sampling_session_id: "s".into(),
            clone_id: 0,
            state: Mutex::default(),
            changed: Condvar::new(),
            tend: Box::new(|| None),
        }))
    }

    #[test]
    fn a_poller_that_has_ended_keeps_no_list_of_what_was_fetched() {
        let poller = poller();
        let kept = || lock(&poller.0.state).fetched.len();
        poller.fetched("1");
        assert_eq!(kept(), 1);
        poller.0.end(&Ok(UNKNOWN_SIZE), true);
        poller.fetched("2");
        assert_eq!(kept(), 0);
    }

    /// Whoever waited is told by being dropped, and may do anything then: ask the poller, too.
    #[test]
    fn nobody_is_dropped_under_the_lock() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Asking(Poller, Arc<AtomicUsize>);
        impl Drop for Asking {
            fn drop(&mut self) {
                let free = self.0.0.state.try_lock().is_ok();
                self.1.fetch_add(usize::from(free), Ordering::Relaxed);
            }
        }
        let poller = poller();
        let free = Arc::default();
        // A server may give two samples one id.
        for _ in 0..2 {
            let asking = Asking(poller.clone(), Arc::clone(&free));
            poller.wait("1", Box::new(move |_| drop(asking)));
        }
        poller.fetched("1");
        assert_eq!(free.load(Ordering::Relaxed), 2);
    }

    fn status(status: u16) -> Answer {
        let mut context = Context::new("scripted");
        context.status = Some(status);
        let meaning = Meaning::of_status(status);
        Answer::Trouble(Trouble::new(meaning, Error::Status(context)))
    }

    /// Feeds the answers, one second apart, and lists the verdicts.
    #[track_caller]
    fn check(answers: Vec<Answer>, expected: &[&str]) {
        let mut machine = Machine::new(Duration::from_secs(3));
        let mut now = Instant::now();
        let seen: Vec<String> = answers
            .into_iter()
            .map(|answer| {
                now += Duration::from_secs(1);
                match machine.next(answer, now) {
                    Verdict::Poll => "poll".into(),
                    Verdict::Wait(delay) => format!("wait {}", delay.as_secs()),
                    Verdict::GiveUp(_) => "give up".into(),
                    Verdict::Die(_) => "die".into(),
                }
            })
            .collect();
        assert_eq!(seen, expected);
    }

    fn trouble(meaning: Meaning, error: Error, paused: bool) -> Answer {
        Answer::Trouble(Trouble {
            meaning,
            error,
            paused,
        })
    }

    fn fault() -> Answer {
        let error = Error::Connection(Context::new("reset"));
        trouble(Meaning::BrokenOff, error, false)
    }

    fn timed_out() -> Answer {
        let error = Error::Timeout(Context::new("held"));
        trouble(Meaning::Pending, error, false)
    }

    #[test]
    fn completions_and_silence_are_polled_again_at_once() {
        check(vec![Answer::Completions, timed_out()], &["poll", "poll"]);
    }

    #[test]
    fn passing_failures_wait_a_second() {
        for code in [408, 409, 429, 500, 503] {
            check(vec![status(code)], &["wait 1"]);
        }
        check(vec![fault()], &["wait 1"]);
    }

    #[test]
    fn failures_without_a_break_are_told_but_do_not_end_the_poller() {
        check(
            vec![
                fault(),
                fault(),
                fault(),
                fault(),
                fault(),
                Answer::Completions,
            ],
            &["wait 1", "wait 1", "wait 1", "give up", "wait 1", "poll"],
        );
        // A poll that is held is a break.
        check(
            vec![fault(), fault(), fault(), timed_out(), fault()],
            &["wait 1", "wait 1", "wait 1", "poll", "wait 1"],
        );
    }

    #[test]
    fn three_bad_requests_are_forgiven_until_a_success() {
        check(
            vec![status(400), status(400), status(400), status(400)],
            &["wait 1", "wait 1", "wait 1", "die"],
        );
        check(
            vec![
                status(400),
                status(400),
                status(400),
                Answer::Completions,
                status(400),
            ],
            &["wait 1", "wait 1", "wait 1", "poll", "wait 1"],
        );
    }

    #[test]
    fn what_cannot_pass_ends_it() {
        let error = Error::Credentials(Context::new("none"));
        check(vec![trouble(Meaning::Hopeless, error, false)], &["die"]);
    }

    #[test]
    fn other_statuses_end_it() {
        for code in [401, 402, 403, 404, 410, 422] {
            check(vec![status(code)], &["die"]);
        }
        let error = Error::Status(Context::new("unpaid"));
        check(vec![trouble(Meaning::Unpaid, error, true)], &["wait 5"]);
    }
}
