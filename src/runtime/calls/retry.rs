//! How much trouble a call is worth, and the ways to make one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::carry::Carrying;
use super::link::Link;
use crate::config::Secret;
use crate::error::{Context, Effect, Error, Result};
use crate::runtime::deadline::Deadline;
use crate::sync::lock;
use crate::transport::retry::{Billing, Meaning, deprecation};
use crate::transport::{Auth, Body, Fault, Request, Response};
use crate::types::ClientEvent;
use crate::wire::query;
use crate::wire::reply::decode_json;
use crate::wire::route::Route;

/// How long a 402 waits inside the pause.
pub(crate) const BILLING_PAUSE: Duration = Duration::from_secs(5);

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

    pub(super) fn ends_with(self, meaning: Meaning) -> bool {
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
            Err(error) if is_unknown(&error) => Ok(None),
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
    pub(super) fn call_patience(&self) -> Duration {
        match self.transport.has_met() {
            true => self.patience,
            false => self.patience.min(self.startup_patience),
        }
    }

    /// Passes on what the service says about this version, each note once.
    pub(super) fn note_deprecation(&self, response: &Response, label: &str) {
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
    pub(super) fn note_reach(&self, outcome: &Result<Response, Fault>) {
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

    /// Waits before looking again for what the service still makes; an error if the client stops
    /// or the deadline of the call comes first.
    pub(crate) fn look_again(&self, delay: Duration, why: &str) -> Result<()> {
        log::debug!("{why}: looking again in {delay:?}");
        let then = self.clock.now().checked_add(delay);
        if Deadline::of_request().is_some_and(|end| then.is_none_or(|then| then >= end)) {
            return Err(Error::Timeout(Context::new(why)));
        }
        match self.clock.pause(&self.stop, delay) {
            true => Err(Error::Closed(Context::new(why))),
            false => Ok(()),
        }
    }

    /// Waits before another attempt; an error if the client stops or the deadline comes first.
    pub(super) fn pause(
        &self,
        delay: Duration,
        deadline: Option<Instant>,
        cause: &Error,
    ) -> Result<()> {
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

/// Whether an error says that the service does not know what was asked for, or no longer.
pub(crate) fn is_unknown(error: &Error) -> bool {
    error.meaning().is_some_and(Meaning::is_unknown)
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
                    _ => error.meaning().is_some_and(Meaning::is_passing),
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
