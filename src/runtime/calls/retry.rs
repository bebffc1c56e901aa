//! A call carried out: attempts, and the delays between them.
//!
//! The transport makes single attempts and its `retry` module decides; the one loop that carries
//! the decisions out for ordinary calls is here.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Link;
use crate::config::{Secret, Timeout};
use crate::error::{Context, Effect, Error, Result};
use crate::sync::lock;
use crate::transport::auth::explain;
use crate::transport::retry::{
    Billing, Meaning, Verdict, deprecation, error_from_response, http_verdict, outer_verdict,
};
use crate::transport::{
    Auth, Body, CONNECT_TIMEOUT, Fault, FaultKind, READ_TIMEOUT, Request, Response,
};
use crate::types::ClientEvent;
use crate::wire::query;
use crate::wire::reply::decode_json;
use crate::wire::route::{Method, Route};

/// How long a 402 waits inside the pause.
pub(crate) const BILLING_PAUSE: Duration = Duration::from_secs(5);

/// How often a success that cannot be read is asked for again.
const DAMAGED: u32 = 10;

/// How often an address where nobody was ever met is tried.
const WRONG_ADDRESS: u32 = 3;

/// The most different notes about versions that are remembered.
const NOTES: usize = 64;

/// How much trouble a call is worth.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Repeats by the HTTP layer.
    pub(crate) retries: u32,
    /// Whether the five-minute retry goes around them.
    pub(crate) outer: bool,
    /// When to give up, whatever the retries say.
    pub(crate) deadline: Option<Instant>,
    /// Whether a 409 is an answer ("already so") rather than passing trouble.
    pub(crate) conflict_is_final: bool,
    /// Whether a service that cannot be reached ends the call at once.
    pub(crate) only_if_reached: bool,
    /// Whether the caller may make the same call again without harm.
    pub(crate) idempotent: bool,
}

impl From<&Route> for Effort {
    fn from(route: &Route) -> Self {
        Self {
            retries: route.retries,
            outer: route.outer_retry,
            ..Self::ONCE
        }
    }
}

impl Effort {
    /// One attempt.
    pub(crate) const ONCE: Self = Self {
        retries: 0,
        outer: false,
        deadline: None,
        conflict_is_final: false,
        only_if_reached: false,
        idempotent: true,
    };

    /// The same, taking a 409 for an answer.
    pub(crate) fn with_final_conflict(mut self) -> Self {
        self.conflict_is_final = true;
        self
    }

    /// The same, for a call that counts each time it is made.
    pub(crate) fn counting(mut self) -> Self {
        self.idempotent = false;
        self
    }

    /// The same, not waiting for a service that cannot be reached.
    pub(crate) fn if_reached(mut self) -> Self {
        self.only_if_reached = true;
        self
    }

    pub(crate) fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
    }

    fn ends_with(self, meaning: Meaning) -> bool {
        match meaning {
            Meaning::Conflict => self.conflict_is_final,
            Meaning::Unreached => self.only_if_reached,
            _ => false,
        }
    }
}

impl Link {
    /// Calls an endpoint and reads its JSON answer.
    pub(crate) fn json<T: DeserializeOwned>(&self, route: &Route, body: &[u8]) -> Result<T> {
        let request = Request::to(route, route.fixed_path()).with_body(Body::Json(body));
        self.call(request, route.into())
    }

    /// Asks for a record or a list.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        route: &Route,
        segments: &[&str],
        query: &[(&str, Value)],
    ) -> Result<T> {
        let request = Request::to(route, route.path(segments)?).with_query(query::encode(query));
        self.call(request, route.into())
    }

    /// Calls an endpoint that not every server has: `None` if this one does not.
    pub(crate) fn optional<T: DeserializeOwned>(
        &self,
        route: &Route,
        body: &[u8],
    ) -> Result<Option<T>> {
        match self.json(route, body) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Carries out a call and reads its JSON answer. An answer that cannot be read is repeated
    /// like one that did not come.
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        request: Request<'_>,
        effort: Effort,
    ) -> Result<T> {
        let key = |limit| self.key_within(limit);
        Carrying::new(self, effort, &key, &decode_reply).run(request)
    }

    /// Carries out a call whatever its answer holds.
    pub(crate) fn call_raw(&self, request: Request<'_>, effort: Effort) -> Result<Response> {
        let key = |limit| self.key_within(limit);
        Carrying::new(self, effort, &key, &|response| Ok(response)).run(request)
    }

    /// Submits a numbered request, which counts each time. The error's effect is what is known of
    /// all attempts.
    pub(crate) fn submit<T: DeserializeOwned>(
        &self,
        request: Request<'_>,
        effort: Effort,
    ) -> Result<T> {
        self.call(request, effort.counting())
    }

    /// The same with a key of its own.
    pub(super) fn call_as<T: DeserializeOwned>(
        &self,
        request: Request<'_>,
        effort: Effort,
        key: &Secret,
    ) -> Result<T> {
        Carrying::new(self, effort, &|_| Ok(key.clone()), &decode_reply).run(request)
    }

    /// One attempt, without a verdict.
    pub(crate) fn attempt(&self, request: Request<'_>) -> Result<Response, AttemptError> {
        let key = self.key().map_err(AttemptError::Credentials)?;
        let mut request = request;
        request.auth = Auth::Key(&key);
        let outcome = self.exchange(&request);
        self.note_reach(&outcome);
        if let Ok(response) = &outcome {
            self.note_deprecation(response, &request.label);
        }
        outcome.map_err(AttemptError::Fault)
    }

    /// Whether a 402 falls into the pause for topping up; says so once a minute.
    pub(crate) fn billing_pause(&self) -> bool {
        if self.never_waits_for_payment() {
            return false;
        }
        let billing = lock(&self.billing).refused(self.clock.now());
        match billing {
            Billing::GiveUp => false,
            Billing::Pause { log } => {
                if log {
                    self.tell(&ClientEvent::BillingPause);
                    log::warn!(
                        "the service reports that payment is due (402); waiting, add credit in \
                         the console to go on"
                    );
                }
                true
            }
        }
    }

    /// A moment of the link's clock; none if it lies beyond all time.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        self.clock.now().checked_add(limit)
    }

    /// Whether the last attempt found nobody to answer.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Relaxed)
    }

    /// How long failures of a call are borne: less of a service that was never met.
    fn call_patience(&self) -> Duration {
        match self.transport.has_met() {
            true => self.patience,
            false => self.patience.min(self.startup_patience),
        }
    }

    /// Passes on what the service says about this version, each note once.
    fn note_deprecation(&self, response: &Response, label: &str) {
        let Some((level, note)) = deprecation(&response.head) else {
            return;
        };
        let mut notes = lock(&self.notes);
        if notes.len() < NOTES && notes.insert(note.to_owned()) {
            drop(notes);
            log::log!(level, "{label}: {}", self.transport.redact(note));
        }
    }

    /// Says once that nobody answers, so that a wrong address does not look like patience.
    fn note_reach(&self, outcome: &Result<Response, Fault>) {
        let known = self.is_unreachable();
        match outcome {
            Ok(_) if known => self.unreachable.store(false, Ordering::Relaxed),
            Err(fault) if !known && fault.is_unreachable() => {
                self.unreachable.store(true, Ordering::Relaxed);
                log::warn!(
                    "cannot reach {}: {fault}; trying for up to {} s (`Config::{}`)",
                    self.transport.base_url(),
                    self.call_patience().as_secs(),
                    match self.transport.has_met() {
                        true => "with_patience",
                        false => "with_startup_patience",
                    }
                );
            }
            _ => {}
        }
    }

    /// Waits before another attempt; an error if the client stops or the deadline comes first.
    fn pause(&self, delay: Duration, deadline: Option<Instant>, cause: &Error) -> Result<()> {
        let about = |message: &str| {
            let mut context = *Context::caused(message, cause.clone());
            context.request = cause.context().and_then(|inner| inner.request.clone());
            context.effect = cause.effect();
            Box::new(context)
        };
        let late = |deadline: Instant| {
            let then = self.clock.now().checked_add(delay);
            then.is_none_or(|then| then >= deadline)
        };
        if deadline.is_some_and(late) {
            let message = "the deadline would pass before the next attempt";
            return Err(Error::Timeout(about(message)));
        }
        log::debug!("trying again in {delay:?}: {cause}");
        let context = cause.context();
        let request = context.and_then(|context| context.request.as_deref());
        self.retrying(request.unwrap_or_default(), delay, cause);
        if self.clock.pause(&self.stop, delay) {
            let message = "the client was closed while this waited for another attempt";
            return Err(Error::Closed(about(message)));
        }
        Ok(())
    }
}

/// One call under way.
struct Carrying<'a, T> {
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
    fn new(
        link: &'a Link,
        effort: Effort,
        key: &'a dyn Fn(Duration) -> Result<Secret>,
        decode: &'a dyn Fn(Response) -> Result<T>,
    ) -> Self {
        let effort = match (effort.deadline, link.call_deadline) {
            // Only what someone waits for: a queue's submissions end when they end.
            (None, Some(limit)) if effort.idempotent => effort.until(link.deadline(limit)),
            _ => effort,
        };
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

    fn run(mut self, request: Request<'_>) -> Result<T> {
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
        self.effect = self.effect.and(meaning.effect());
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

    /// No attempt outlasts the deadline by much.
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
    }
}

/// Whether an error says that the service does not know what was asked for.
pub(crate) fn is_gone(error: &Error) -> bool {
    error.status().map(Meaning::of_status) == Some(Meaning::Gone)
}

/// Why a single attempt brought no answer.
pub(crate) enum AttemptError {
    Credentials(Error),
    Fault(Fault),
}

impl AttemptError {
    /// What it means, and the error for whoever waits.
    pub(crate) fn read(self, label: &str) -> (Meaning, Error) {
        match self {
            Self::Fault(fault) => (fault.meaning(), fault.to_error(label)),
            // The request itself never left. An exchange of tokens that failed in passing is an
            // outage like any other.
            Self::Credentials(error) => {
                let passing = match &error {
                    Error::Connection(_) | Error::Timeout(_) => true,
                    _ => error
                        .status()
                        .is_some_and(|code| Meaning::of_status(code).is_passing()),
                };
                let meaning = match passing {
                    true => Meaning::Unreached,
                    false => Meaning::Hopeless,
                };
                (meaning, error.with_effect(Effect::None))
            }
        }
    }
}

fn decode_reply<T: DeserializeOwned>(response: Response) -> Result<T> {
    decode_json(&response.body)
}
