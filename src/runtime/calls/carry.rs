//! The loop that carries out one call: attempts, their verdicts, and the waits between them.

use std::time::{Duration, Instant, SystemTime};

use super::link::Link;
use super::retry::{BILLING_PAUSE, Effort};
use crate::config::{Secret, Timeout};
use crate::error::{Effect, Error, Result};
use crate::runtime::deadline::Deadline;
use crate::transport::auth::explain;
use crate::transport::retry::{Meaning, Verdict, error_from_response, http_verdict, outer_verdict};
use crate::transport::{Auth, CONNECT_TIMEOUT, Fault, FaultKind, READ_TIMEOUT, Request, Response};
use crate::wire::route::Method;

/// How often a success that cannot be read is asked for again.
const DAMAGED: u32 = 10;

/// How often an address where nobody was ever met is tried.
const WRONG_ADDRESS: u32 = 3;

/// One call under way.
pub(super) struct Carrying<'a, T> {
    link: &'a Link,
    effort: Effort,
    /// The key to send, within a time.
    key: &'a dyn Fn(Duration) -> Result<Secret>,
    decode: &'a dyn Fn(Response) -> Result<T>,
    start: Instant,
    /// What is known of the attempts so far.
    effect: Effect,
    /// Successes that could not be read.
    damaged: u32,
    /// Attempts that found nobody of that name, or nobody at that address.
    misses: u32,
}

/// An attempt that failed.
struct Trouble {
    error: Error,
    meaning: Meaning,
    /// The HTTP layer would try again after this long.
    again: Option<Duration>,
}

impl Trouble {
    /// One that says itself that nothing more is to be tried.
    fn last(error: Error) -> Self {
        Self {
            error,
            meaning: Meaning::Hopeless,
            again: None,
        }
    }
}

impl<'a, T> Carrying<'a, T> {
    pub(super) fn new(
        link: &'a Link,
        effort: Effort,
        key: &'a dyn Fn(Duration) -> Result<Secret>,
        decode: &'a dyn Fn(Response) -> Result<T>,
    ) -> Self {
        let effort = effort.until(effort.deadline.or_else(Deadline::of_request));
        Self {
            link,
            effort,
            key,
            decode,
            start: link.clock.now(),
            effect: Effect::None,
            damaged: 0,
            misses: 0,
        }
    }

    pub(super) fn run(mut self, request: Request<'_>) -> Result<T> {
        let idempotent = self.effort.idempotent;
        self.rounds(&request).map_err(|error| {
            let error = error.with_effect(self.effect);
            match idempotent {
                true => error.for_idempotent(),
                false => error,
            }
        })
    }

    /// The outer retry around rounds of the HTTP layer.
    fn rounds(&mut self, request: &Request<'_>) -> Result<T> {
        let (link, effort) = (self.link, self.effort);
        let mut tries = 0;
        loop {
            let Trouble { error, meaning, .. } = match self.round(request) {
                Ok(value) => return Ok(value),
                Err(trouble) => trouble,
            };
            if !effort.outer || self.is_final(meaning) {
                return Err(error);
            }
            if meaning == Meaning::Unpaid && link.billing_pause() {
                link.pause(BILLING_PAUSE, effort.deadline, &error)?;
                self.start += BILLING_PAUSE;
                continue;
            }
            let (elapsed, patience) = (self.elapsed(), link.call_patience());
            match outer_verdict(meaning, tries, elapsed, patience, fastrand::f64()) {
                Verdict::Retry(delay) => {
                    log::warn!(
                        "still failing after {} s, giving up after {} s: {error}",
                        elapsed.as_secs(),
                        patience.as_secs()
                    );
                    link.pause(delay, effort.deadline, &error)?;
                }
                Verdict::Done | Verdict::Fail => return Err(error),
            }
            tries += 1;
        }
    }

    /// Attempts with the same idempotency key, as often as the HTTP layer allows and while
    /// patience lasts.
    fn round(&mut self, request: &Request<'_>) -> Result<T, Trouble> {
        let link = self.link;
        let idempotency = (request.method != Method::Get && request.idempotency_key.is_none())
            .then(|| link.transport.new_idempotency_key());
        let mut request = request.clone();
        if let Some(idempotency) = &idempotency {
            request = request.with_idempotency_key(idempotency);
        }
        for tries in 0.. {
            request.retry_count = tries;
            let trouble = match self.attempt(&request) {
                Ok(value) => return Ok(value),
                Err(trouble) => trouble,
            };
            let left = link.call_patience().saturating_sub(self.elapsed());
            match trouble.again {
                Some(delay) if !self.is_final(trouble.meaning) && !left.is_zero() => {
                    link.pause(delay.min(left), self.effort.deadline, &trouble.error)
                        .map_err(Trouble::last)?;
                }
                _ => return Err(trouble),
            }
        }
        unreachable!("the verdict ends the loop at its limit of retries")
    }

    fn attempt(&mut self, request: &Request<'_>) -> Result<T, Trouble> {
        let link = self.link;
        // An exchange of credentials that failed is not repeated here.
        let key = (self.key)(self.left()).map_err(Trouble::last)?;
        let mut request = request.clone();
        request.auth = Auth::Key(&key);
        self.limit(&mut request);
        let outcome = link.exchange(&request);
        link.note_reach(&outcome);
        let now = SystemTime::now();
        let (tries, retries) = (request.retry_count, self.effort.retries);
        let verdict = |outcome: &_| http_verdict(outcome, tries, retries, now, fastrand::f64());
        if let (Ok(response), Verdict::Done | Verdict::Fail) = (&outcome, verdict(&outcome)) {
            link.note_deprecation(response, &request.label);
        }
        let (outcome, error) = match outcome {
            Ok(response) if response.is_success() => match (self.decode)(response) {
                Ok(value) => return Ok(value),
                // Repeated like a broken connection; surfaces as what it is.
                Err(error) => {
                    self.damaged += 1;
                    let error = link.transport.redact_error(error);
                    let fault = Fault::new(FaultKind::Malformed, error.to_string());
                    (Err(fault), error.for_request(&request.label))
                }
            },
            Ok(response) => {
                let error = error_from_response(&response, &request.label, now);
                (Ok(response), explain(error, &key, now))
            }
            Err(fault) => {
                self.misses += u32::from(fault.is_wrong_address());
                let error = fault.to_error(&request.label);
                (Err(fault), error)
            }
        };
        let meaning = Meaning::of(&outcome);
        let effect = match &outcome {
            Ok(response) => response.head.effect(),
            Err(fault) => fault.meaning().effect(),
        };
        self.effect = self.effect.and(effect);
        Err(Trouble {
            error,
            meaning,
            again: match verdict(&outcome) {
                Verdict::Retry(delay) => Some(delay),
                Verdict::Done | Verdict::Fail => None,
            },
        })
    }

    /// What no patience changes.
    fn is_final(&self, meaning: Meaning) -> bool {
        let never_met = !self.link.transport.has_met();
        self.effort.ends_with(meaning)
            || self.damaged > DAMAGED
            || (never_met && self.misses >= WRONG_ADDRESS)
    }

    fn elapsed(&self) -> Duration {
        let now = self.link.clock.now();
        now.saturating_duration_since(self.start)
    }

    /// How long until the deadline.
    fn left(&self) -> Duration {
        let now = self.link.clock.now();
        let deadline = self.effort.deadline;
        deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(now))
    }

    /// No attempt outlasts the deadline, however its bytes trickle in.
    fn limit(&self, request: &mut Request<'_>) {
        if self.effort.deadline.is_none() {
            return;
        }
        let left = self.left().max(Duration::from_millis(1));
        let within = |limit: Timeout, usual| {
            let usual = limit.or(Some(usual)).unwrap_or(left);
            Timeout::After(usual.min(left))
        };
        request.read_timeout = within(request.read_timeout, READ_TIMEOUT);
        request.connect_timeout = within(request.connect_timeout, CONNECT_TIMEOUT);
        request.whole_timeout = Some(left);
    }
}
