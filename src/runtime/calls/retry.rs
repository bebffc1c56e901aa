//! A call carried out: attempts, and the delays between them.
//!
//! The transport makes single attempts and its `retry` module decides; the one loop that carries
//! the decisions out for ordinary calls is here.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::link::Link;
use crate::config::Secret;
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::transport::auth::explain;
use crate::transport::retry::{
    Billing, Verdict, deprecation, error_from_response, http_verdict, outer_verdict,
};
use crate::transport::{Auth, Body, Fault, FaultKind, Request, Response};
use crate::wire::query;
use crate::wire::reply::decode_json;
use crate::wire::route::{Method, Route};

/// How long a 402 waits inside the pause that the service grants for topping up.
pub(crate) const BILLING_PAUSE: Duration = Duration::from_secs(5);

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
}

impl From<&Route> for Effort {
    fn from(route: &Route) -> Self {
        Self {
            retries: route.retries,
            outer: route.outer_retry,
            deadline: None,
            conflict_is_final: false,
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
    };

    /// The same, taking a 409 for an answer.
    pub(crate) fn with_final_conflict(mut self) -> Self {
        self.conflict_is_final = true;
        self
    }

    fn ends_with(self, error: &Error) -> bool {
        self.conflict_is_final && error.status() == Some(409)
    }

    pub(crate) fn until(mut self, deadline: Option<Instant>) -> Self {
        self.deadline = deadline;
        self
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

    /// Calls an endpoint that not every server has: `None` for a 404.
    pub(crate) fn optional<T: DeserializeOwned>(
        &self,
        route: &Route,
        body: &[u8],
    ) -> Result<Option<T>> {
        match self.json(route, body) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if error.status() == Some(404) => Ok(None),
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
        self.rounds(request, effort, &|| self.key(), &decode_reply)
    }

    /// Carries out a call whatever its answer holds.
    pub(crate) fn call_raw(&self, request: Request<'_>, effort: Effort) -> Result<Response> {
        self.rounds(request, effort, &|| self.key(), &|response| Ok(response))
    }

    /// Submits a numbered request. The error says whether an attempt may have taken effect.
    pub(crate) fn submit<T: DeserializeOwned>(
        &self,
        request: Request<'_>,
        effort: Effort,
    ) -> Result<T, Unaccepted> {
        let arrived = Cell::new(false);
        self.tracked_rounds(request, effort, &|| self.key(), &decode_reply, &arrived)
            .map_err(|error| Unaccepted {
                error,
                arrived: arrived.get(),
            })
    }

    /// One attempt, without a verdict.
    pub(crate) fn attempt(&self, request: Request<'_>) -> Result<Response, AttemptError> {
        let key = self.key().map_err(AttemptError::Credentials)?;
        let mut request = request;
        request.auth = Auth::Key(&key);
        let outcome = self.transport.exchange(&request);
        self.note_reach(&outcome);
        if let Ok(response) = &outcome {
            self.note_deprecation(response, &request.label);
        }
        outcome.map_err(AttemptError::Fault)
    }

    /// Whether a 402 falls into the pause for topping up; says so once a minute.
    pub(crate) fn billing_pause(&self) -> bool {
        match lock(&self.billing).refused(self.clock.now()) {
            Billing::GiveUp => false,
            Billing::Pause { log } => {
                if log {
                    log::warn!(
                        "the service reports that payment is due (402); waiting, add credit in \
                         the console to go on"
                    );
                }
                true
            }
        }
    }

    pub(super) fn rounds<T>(
        &self,
        request: Request<'_>,
        effort: Effort,
        key: &dyn Fn() -> Result<Secret>,
        decode: &dyn Fn(Response) -> Result<T>,
    ) -> Result<T> {
        self.tracked_rounds(request, effort, key, decode, &Cell::new(false))
    }

    /// The outer retry around rounds of the HTTP layer. `arrived` is set once an attempt may
    /// have taken effect although it failed.
    fn tracked_rounds<T>(
        &self,
        request: Request<'_>,
        effort: Effort,
        key: &dyn Fn() -> Result<Secret>,
        decode: &dyn Fn(Response) -> Result<T>,
        arrived: &Cell<bool>,
    ) -> Result<T> {
        let mut start = self.clock.now();
        let mut tries = 0;
        loop {
            let error = match self.round(&request, effort, start, key, decode, arrived) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if !effort.outer || effort.ends_with(&error) {
                return Err(error);
            }
            if error.status() == Some(402) && self.billing_pause() {
                self.pause(BILLING_PAUSE, effort.deadline, &error)?;
                start += BILLING_PAUSE;
                continue;
            }
            let elapsed = self.clock.now().saturating_duration_since(start);
            match outer_verdict(&error, tries, elapsed, self.patience) {
                Verdict::Retry(delay) => {
                    log::warn!(
                        "still failing after {} s, giving up after {} s: {error}",
                        elapsed.as_secs(),
                        self.patience.as_secs()
                    );
                    self.pause(delay, effort.deadline, &error)?;
                }
                Verdict::Done | Verdict::Fail => return Err(error),
            }
            tries += 1;
        }
    }

    /// Attempts with the same idempotency key, as often as the HTTP layer allows and while
    /// patience lasts.
    fn round<T>(
        &self,
        request: &Request<'_>,
        effort: Effort,
        start: Instant,
        key: &dyn Fn() -> Result<Secret>,
        decode: &dyn Fn(Response) -> Result<T>,
        arrived: &Cell<bool>,
    ) -> Result<T> {
        let idempotency = (request.method != Method::Get && request.idempotency_key.is_none())
            .then(|| self.transport.new_idempotency_key());
        let mut request = request.clone();
        if let Some(idempotency) = &idempotency {
            request = request.with_idempotency_key(idempotency);
        }
        for tries in 0.. {
            // An exchange of credentials that failed is not repeated here.
            let key = key()?;
            let mut attempt = request.clone();
            attempt.auth = Auth::Key(&key);
            attempt.retry_count = tries;
            let outcome = self.transport.exchange(&attempt);
            self.note_reach(&outcome);
            let now = SystemTime::now();
            let (outcome, error) = match outcome {
                Ok(response) if response.is_success() => {
                    self.note_deprecation(&response, &request.label);
                    match decode(response) {
                        Ok(value) => return Ok(value),
                        // Repeated like a broken connection; surfaces as what it is.
                        Err(error) => (
                            Err(Fault::new(FaultKind::Malformed, error.to_string())),
                            error.for_request(&request.label),
                        ),
                    }
                }
                Ok(response) => {
                    let error = error_from_response(&response, &request.label, now);
                    (Ok(response), explain(error, &key, now))
                }
                Err(fault) => {
                    let error = fault.to_error(&request.label);
                    (Err(fault), error)
                }
            };
            if may_have_arrived(&outcome) {
                arrived.set(true);
            }
            let spent = self.clock.now().saturating_duration_since(start);
            let left = self.patience.saturating_sub(spent);
            match http_verdict(&outcome, tries, effort.retries, now, fastrand::f64()) {
                Verdict::Retry(delay) if !effort.ends_with(&error) && !left.is_zero() => {
                    self.pause(delay.min(left), effort.deadline, &error)?;
                }
                _ => {
                    if let Ok(response) = &outcome {
                        self.note_deprecation(response, &request.label);
                    }
                    return Err(error);
                }
            }
        }
        unreachable!("the verdict ends the loop at its limit of retries")
    }

    /// Passes on what the service says about this version, each note once.
    fn note_deprecation(&self, response: &Response, label: &str) {
        if let Some((level, note)) = deprecation(&response.head)
            && lock(&self.notes).insert(note.to_owned())
        {
            log::log!(level, "{label}: {note}");
        }
    }

    /// Says once that nobody answers, so that a wrong address does not look like patience.
    fn note_reach(&self, outcome: &Result<Response, Fault>) {
        let known = self.unreachable.load(Ordering::Relaxed);
        match outcome {
            Ok(_) if known => self.unreachable.store(false, Ordering::Relaxed),
            Err(fault) if !known && fault.is_unreachable() => {
                self.unreachable.store(true, Ordering::Relaxed);
                log::warn!(
                    "cannot reach {}: {fault}; trying for up to {} s (`Config::with_patience`)",
                    self.transport.base_url(),
                    self.patience.as_secs()
                );
            }
            _ => {}
        }
    }

    /// Waits before another attempt; an error if the client stops or the deadline comes first.
    fn pause(&self, delay: Duration, deadline: Option<Instant>, cause: &Error) -> Result<()> {
        if deadline.is_some_and(|deadline| self.clock.now() + delay >= deadline) {
            let message = "the deadline would pass before the next attempt";
            let mut context = *Context::caused(message, cause.clone());
            context.request = cause.context().and_then(|inner| inner.request.clone());
            return Err(Error::Timeout(Box::new(context)));
        }
        log::debug!("trying again in {delay:?}: {cause}");
        if self.clock.pause(&self.stop, delay) {
            return Err(Error::Closed(Context::caused(
                "the client was closed while this waited for another attempt",
                cause.clone(),
            )));
        }
        Ok(())
    }
}

/// A numbered request that the service did not accept.
#[derive(Debug)]
pub(crate) struct Unaccepted {
    pub(crate) error: Error,
    /// Whether an attempt may have taken effect all the same.
    pub(crate) arrived: bool,
}

/// A server that failed may have done the work first; one that refused has not.
fn may_have_arrived(outcome: &Result<Response, Fault>) -> bool {
    match outcome {
        Ok(response) => response.status() == 408 || response.status() >= 500,
        Err(fault) => fault.may_have_arrived(),
    }
}

/// Why a single attempt brought no answer.
pub(crate) enum AttemptError {
    Credentials(Error),
    Fault(Fault),
}

pub(super) fn decode_reply<T: DeserializeOwned>(response: Response) -> Result<T> {
    decode_json(&response.body)
}
