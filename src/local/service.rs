//! The server's state, and the way from a request to its handler.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::api;
use super::auth::Auth;
use super::builder::{Builder, check_endpoint};
use super::fault::{Fault, FaultKind, Faults};
use super::flags::Flags;
use super::futures::{Futures, Outcome};
use super::http::{Recorder, Refusal, Reply, Request};
use super::routes::{Found, Route};
use super::sessions::Sessions;
use crate::error::Result;

/// Bodies beyond this are decoded away from the thread that serves the connections.
const INLINE_BYTES: usize = 64 << 10;

/// Everything the handlers share.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) auth: Auth,
    pub(super) flags: Flags,
    pub(super) sessions: Sessions,
    pub(super) futures: Arc<Futures>,
    pub(super) long_poll: Duration,
    pub(super) metadata_only_above: usize,
    pub(super) admin: bool,
    latencies: HashMap<String, Duration>,
    faults: Mutex<Faults>,
    recorder: Option<Recorder>,
    runtime: Handle,
    stopped: watch::Sender<bool>,
}

impl Service {
    pub(super) fn new(options: Builder, flags: Flags, runtime: Handle) -> Result<Self> {
        let mut faults = Faults::default();
        for fault in options.faults {
            faults.add(fault);
        }
        let jwt_lifetime = flags.jwt_enabled().then_some(options.jwt_lifetime);
        Ok(Self {
            auth: Auth::new(options.api_key, jwt_lifetime),
            flags,
            sessions: Sessions::new(options.session_timeout, Vec::new()),
            futures: Arc::default(),
            long_poll: options.long_poll,
            metadata_only_above: options.metadata_only_above,
            admin: options.admin,
            latencies: options.latencies,
            faults: Mutex::new(faults),
            recorder: options.record.then(Recorder::default),
            runtime,
            stopped: watch::channel(false).0,
        })
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub(super) fn add_fault(&self, fault: Fault) -> Result<()> {
        check_endpoint("endpoint", fault.endpoint())?;
        self.lock_faults().add(fault);
        Ok(())
    }

    pub(super) fn clear_faults(&self) {
        self.lock_faults().clear();
    }

    /// What goes wrong with this request, if anything.
    pub(super) fn strike(&self, endpoint: &str) -> Option<FaultKind> {
        self.lock_faults().strike(endpoint)
    }

    fn lock_faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whoever waits; nothing new is waited for.
    pub(super) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Returns when the server stops.
    pub(super) async fn stopping(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    pub(super) fn sweep_interval(&self) -> Duration {
        (self.sessions.timeout() / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// Drops what is over: silent sessions, results nobody wants.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        for session in self.sessions.expire(now) {
            log::warn!("local server: session {} lost its heartbeat", session.id);
        }
        self.futures.sweep(now);
    }

    /// Files the result of a request, as late as the endpoint's latency wants it.
    pub(super) fn finish(&self, endpoint: &str, id: &str, outcome: Outcome) {
        let Some(latency) = self.latencies.get(endpoint) else {
            return self.futures.finish(id, outcome);
        };
        let (futures, id, latency) = (self.futures.clone(), id.to_owned(), *latency);
        self.runtime.spawn(async move {
            tokio::time::sleep(latency).await;
            futures.finish(&id, outcome);
        });
    }

    /// Finds the handler and runs it where it belongs.
    pub(super) async fn answer(self: &Arc<Self>, found: Found, request: Request) -> Reply {
        if let Err(refusal) = self.auth.check(found.route, &request) {
            return refusal.into();
        }
        if !found.route.makes_future()
            && let Some(latency) = self.latencies.get(found.endpoint)
        {
            tokio::time::sleep(*latency).await;
        }
        let answer = match found.route {
            Route::RetrieveFuture => api::futures::retrieve(self, &request).await,
            Route::RetrieveFutures => api::futures::retrieve_many(self, &request).await,
            route if route.is_heavy() || request.body.len() > INLINE_BYTES => {
                let service = self.clone();
                let work = move || service.handle(&found, &request);
                tokio::task::spawn_blocking(work)
                    .await
                    .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))
            }
            _ => self.handle(&found, &request),
        };
        answer.unwrap_or_else(Reply::from)
    }

    fn handle(&self, found: &Found, request: &Request) -> Result<Reply, Refusal> {
        match found.route {
            Route::Healthz => api::session::healthz(),
            Route::ClientConfig => Ok(Reply::json(self.flags.client())),
            Route::DynamicConfig => Ok(Reply::json(self.flags.dynamic())),
            Route::AuthToken => api::session::token(self),
            Route::CreateSession => api::session::create(self, request),
            Route::Heartbeat => api::session::heartbeat(self, request),
            Route::FinishSession => api::session::finish(self, &found.segments[0], request),
            Route::Telemetry => api::session::telemetry(request),
            Route::CancelFuture => api::futures::cancel(self, request),
            Route::AddFault => api::admin::add_fault(self, request),
            Route::ClearFaults => api::admin::clear_faults(self),
            _ => Err(Refusal::missing("not served yet")),
        }
    }
}
