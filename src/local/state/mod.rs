//! What the server remembers: sessions, models, checkpoints, results.
//!
//! Stores know nothing of HTTP. What they cannot do they say with a [`StateError`], or with the
//! crate's [`Error`] where a value or a file is at fault.

pub(super) mod adapters;
pub(super) mod catalogue;
pub(super) mod disk;
pub(super) mod downloads;
mod folder;
pub(super) mod futures;
pub(super) mod ledger;
pub(super) mod losses;
pub(super) mod memory;
pub(super) mod models;
pub(super) mod queue;
pub(super) mod samplers;
pub(super) mod saved;
pub(super) mod sequence;
pub(super) mod sessions;
pub(super) mod traces;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::sync::lock;
use crate::types::{SessionStatus, Timestamp};
use catalogue::Catalogue;
use downloads::Downloads;
use futures::{Futures, Outcome};
use ledger::Ledger;
use losses::Losses;
use models::Models;
use samplers::{Sampler, Samplers};
use saved::Saved;
use sessions::{Origin, Session, Sessions};
use traces::{Span, Traces};

/// Why the state cannot do what it was asked.
#[derive(Debug)]
pub(super) enum StateError {
    /// There is no such thing.
    Missing(String),
    /// It was there once.
    Ended(String),
    /// It was understood, and cannot be done.
    Refused(String),
    /// It belongs to another.
    Conflict(String),
    /// There is no room; later there may be.
    Full(String),
    /// A value was refused, or a file cannot be used.
    Other(Error),
}

impl From<Error> for StateError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(text)
            | Self::Ended(text)
            | Self::Refused(text)
            | Self::Conflict(text)
            | Self::Full(text) => f.write_str(text),
            Self::Other(error) => error.fmt(f),
        }
    }
}

/// The time now, as precise as the service writes it.
pub(super) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// How long records are kept that nothing needs any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    pub(super) age: Duration,
    pub(super) count: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(90 * 24 * 3600),
            count: 10_000,
        }
    }
}

/// Everything there is to remember.
#[derive(Debug)]
pub(super) struct State {
    pub(super) sessions: Sessions,
    pub(super) futures: Arc<Futures>,
    pub(super) models: Models,
    pub(super) samplers: Samplers,
    pub(super) losses: Losses,
    pub(super) catalogue: Catalogue,
    pub(super) saved: Saved,
    pub(super) ledger: Ledger,
    pub(super) traces: Traces,
    pub(super) downloads: Downloads,
    keep: Keep,
    /// How much later the results of an endpoint come, for tests of clients.
    latencies: HashMap<String, Duration>,
    /// Where results wait for that.
    runtime: Handle,
    stopped: watch::Sender<bool>,
    /// Held while a session's record is written, so that what it said last is what stays.
    keeping: Mutex<()>,
}

impl State {
    pub(super) fn open(
        data: Option<PathBuf>,
        session_timeout: Duration,
        keep: Keep,
        latencies: HashMap<String, Duration>,
        runtime: Handle,
    ) -> Result<Self> {
        let (catalogue, sessions, ledger) = Catalogue::open(data)?;
        let sessions = Sessions::new(session_timeout, sessions);
        let samplers = Samplers::default();
        for session in sessions.revive_samplers() {
            samplers.rest(&session);
        }
        Ok(Self {
            sessions,
            futures: Arc::default(),
            models: Models::default(),
            samplers,
            losses: Losses::default(),
            saved: Saved::new(catalogue.root()),
            catalogue,
            ledger,
            traces: Traces::default(),
            downloads: Downloads::default(),
            keep,
            latencies,
            runtime,
            stopped: watch::channel(false).0,
            keeping: Mutex::default(),
        })
    }

    /// How much slower an endpoint is to be.
    pub(super) fn latency(&self, endpoint: &str) -> Option<Duration> {
        self.latencies.get(endpoint).copied()
    }

    /// Files the result of a request, as late as the endpoint's latency wants it.
    pub(super) fn finish(&self, endpoint: &str, id: &str, outcome: Outcome) {
        let Some(latency) = self.latency(endpoint) else {
            return self.futures.finish(id, outcome);
        };
        let (futures, id) = (self.futures.clone(), id.to_owned());
        self.runtime.spawn(async move {
            tokio::time::sleep(latency).await;
            futures.finish(&id, outcome);
        });
    }

    /// Notes when a request ran.
    pub(super) fn trace(
        &self,
        session: &str,
        lane: &str,
        name: &'static str,
        request_id: &str,
        start: Timestamp,
    ) {
        self.traces.add(Span {
            session: session.to_owned(),
            lane: lane.to_owned(),
            name,
            request_id: request_id.to_owned(),
            start,
            end: now(),
        });
    }

    pub(super) fn project_of(&self, session_id: &str) -> Option<String> {
        self.sessions.get(session_id).ok()?.project_id
    }

    /// Makes a sampling session known; one with an origin comes back after a restart.
    pub(super) fn add_sampler(&self, number: u64, sampler: Sampler, origin: Option<Origin>) {
        let id = sampler.id.clone();
        let session_id = sampler.session_id.clone();
        let is_kept = origin.is_some();
        self.samplers.add(sampler);
        let added = self.sessions.with_active(&session_id, |session| {
            session.add_sampler(number, id, origin);
        });
        if added.is_err() {
            // A session that ended meanwhile has no more use for it, and will not end again.
            return self.samplers.remove_session(&session_id, &self.futures);
        }
        if is_kept && let Err(error) = self.keep_session(&session_id) {
            log::warn!("local server: {error}");
        }
    }

    /// Writes a session down as it is now.
    pub(super) fn keep_session(&self, id: &str) -> Result<(), StateError> {
        let _keeping = lock(&self.keeping);
        let session = self.sessions.get(id)?;
        Ok(self.catalogue.keep_session(&session)?)
    }

    /// Lets go of what belonged to a session.
    pub(super) fn end_session(&self, session: &Session) {
        for id in session.models.values() {
            for request_id in self.end_model(id) {
                let outcome = Outcome::refused("the session has ended");
                self.futures.finish(&request_id, outcome);
            }
        }
        self.samplers.remove_session(&session.id, &self.futures);
        self.losses.remove_session(&session.id);
        let mut kept = self.keep_session(&session.id);
        // A client that finished needs its models no more; what another left behind may be wanted.
        if let SessionStatus::ClientFinished { .. } = session.status {
            let mut models = session.models.values();
            let removed = models.try_for_each(|id| self.saved.remove(id));
            kept = kept.and(removed.map_err(StateError::from));
        }
        if let Err(error) = kept {
            log::warn!("local server: {error}");
        }
    }

    /// Takes a model out, and gives the requests that still wait for lower numbers: in vain.
    pub(super) fn end_model(&self, id: &str) -> Vec<String> {
        let Some(model) = self.models.remove(id) else {
            return Vec::new();
        };
        let mut queue = lock(&model.queue);
        queue.ended = true;
        queue
            .sequence
            .drain()
            .into_iter()
            .map(|job| job.request_id)
            .collect()
    }

    /// Drops what is over: results nobody wants, expired checkpoints, old records.
    pub(super) fn sweep(&self) {
        self.futures.sweep(Instant::now());
        self.catalogue.expire(self::now());
        self.ledger.write();
        self.prune(self::now());
    }

    /// Forgets the records of what ended long ago.
    fn prune(&self, now: Timestamp) {
        let age = i64::try_from(self.keep.age.as_secs()).unwrap_or(i64::MAX);
        let since = Timestamp::from_second(now.as_second().saturating_sub(age));
        let since = since.unwrap_or(Timestamp::MIN);
        let sessions = self.sessions.prune(since, self.keep.count);
        self.catalogue.remove_sessions(&sessions);
        let is_alive = |id: &str| self.models.get(id).is_ok();
        self.catalogue.prune_runs(since, self.keep.count, is_alive);
    }

    /// Answers whoever waits; nothing new is waited for.
    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Returns when the server stops.
    pub(super) async fn stopping(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot that was asked for may be taken after its session has ended.
    #[tokio::test]
    async fn a_sampler_of_a_session_that_has_ended_is_not_kept() {
        let runtime = Handle::current();
        let hour = Duration::from_secs(3600);
        let state = State::open(None, hour, Keep::default(), HashMap::new(), runtime).unwrap();
        let sampler = |id: &str| {
            let of = ("s".to_owned(), sessions::LOCAL.to_owned());
            Sampler::new(id.to_owned(), of, "m".to_owned(), None, None)
        };
        state.sessions.add(sessions::session("s"));
        state.add_sampler(0, sampler("s:sample:0"), None);
        assert!(state.samplers.get("s:sample:0").is_ok());
        let status = SessionStatus::Cancelled { detail: None };
        let ended = state.sessions.finish("s", status).unwrap().unwrap();
        state.end_session(&ended);
        state.add_sampler(1, sampler("s:sample:1"), None);
        for id in ["s:sample:0", "s:sample:1"] {
            assert!(state.samplers.get(id).is_err(), "{id}");
        }
        assert_eq!(state.sessions.get("s").unwrap().samplers.len(), 1);
    }
}
