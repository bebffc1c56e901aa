//! What the handlers share, and the way from a request to its handler.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::auth::Auth;
use super::fault::{Fault, FaultKind, Faults};
use super::flags::Flags;
use super::metrics::Metrics;
use super::table::{self, Endpoint};
use super::{Call, faults, openai};
use crate::error::{Error, Result};
use crate::local::http::{App, Dropped, Exchange, Refusal, Reply, Request};
use crate::local::state::State;
use crate::local::work::Workshop;
use crate::sync::lock;

/// The target of the lines about requests.
const REQUESTS: &str = "tinker::local::requests";

/// What handlers need to know of the server's options.
#[derive(Debug)]
pub(in crate::local) struct Options {
    pub(in crate::local) long_poll: Duration,
    pub(in crate::local) metadata_only_above: usize,
    pub(in crate::local) max_request_bytes: usize,
    pub(in crate::local) max_pending_samples: usize,
    pub(in crate::local) admin: bool,
    /// Whether each request is worth a line of the log at `info`.
    pub(in crate::local) request_log: bool,
    /// `http` or `https`.
    pub(in crate::local) scheme: &'static str,
}

/// Everything the handlers share.
#[derive(Debug)]
pub(in crate::local) struct Service {
    pub(super) auth: Auth,
    pub(super) flags: Flags,
    pub(super) state: Arc<State>,
    pub(super) work: Arc<Workshop>,
    pub(super) options: Options,
    pub(super) metrics: Metrics,
    #[cfg(feature = "chat")]
    pub(super) console: Arc<crate::local::console::Console>,
    faults: Mutex<Faults>,
}

impl Service {
    pub(in crate::local) fn new(
        auth: Auth,
        flags: Flags,
        work: Arc<Workshop>,
        options: Options,
        #[cfg(feature = "chat")] console: crate::local::console::Console,
    ) -> Self {
        Self {
            auth,
            flags,
            state: work.state.clone(),
            work,
            options,
            metrics: Metrics::default(),
            #[cfg(feature = "chat")]
            console: Arc::new(console),
            faults: Mutex::default(),
        }
    }

    pub(in crate::local) fn work(&self) -> &Arc<Workshop> {
        &self.work
    }

    pub(in crate::local) fn add_fault(&self, fault: Fault) -> Result<()> {
        check_endpoint("endpoint", fault.endpoint())?;
        fault.check()?;
        lock(&self.faults).add(fault);
        Ok(())
    }

    pub(in crate::local) fn clear_faults(&self) {
        lock(&self.faults).clear();
    }

    /// What goes wrong with this request, if anything.
    pub(super) fn strike(&self, endpoint: &str) -> Option<FaultKind> {
        lock(&self.faults).strike(endpoint)
    }
}

/// Refuses the name of an endpoint that does not exist, which would never strike.
pub(in crate::local) fn check_endpoint(field: &str, endpoint: &str) -> Result<()> {
    if endpoint == "*" || table::is_endpoint(endpoint) {
        return Ok(());
    }
    let problem = format!("{endpoint:?} is not an endpoint of this server");
    Err(Error::invalid(field, problem))
}

/// Which endpoint was asked, with what its path carries.
pub(in crate::local) struct Ticket {
    endpoint: &'static Endpoint,
    segments: Vec<String>,
    user: Arc<str>,
}

impl App for Service {
    type Ticket = Ticket;

    fn admit(&self, request: &Request) -> Result<Ticket, Refusal> {
        let (endpoint, segments) = table::find(&request.method, &request.path)?;
        let user = self.auth.check(endpoint.access, request)?;
        Ok(Ticket {
            endpoint,
            segments,
            user,
        })
    }

    async fn answer(self: Arc<Self>, ticket: Ticket, request: Request) -> Result<Reply, Dropped> {
        let Ticket {
            endpoint,
            segments,
            user,
        } = ticket;
        let call = Call {
            service: self.clone(),
            endpoint: endpoint.template,
            segments,
            user,
            request,
        };
        faults::answer(&self, endpoint, call).await
    }

    fn refuse(&self, path: &str, refusal: Refusal) -> Reply {
        match openai::is_ours(path) {
            true => openai::Fault::from(refusal).reply(path),
            false => refusal.into(),
        }
    }

    fn done(&self, exchange: &Exchange<'_>) {
        let found = table::find(exchange.method, exchange.path);
        let endpoint = found.map_or(("", "other"), |(endpoint, _)| endpoint.name());
        let status = exchange.status.as_u16();
        self.metrics.count(endpoint, status, exchange.elapsed);
        // What follows in a link to a file is a credential.
        let shown = exchange.path.split_inclusive("/download/").next();
        let (method, path) = (exchange.method, shown.unwrap_or_default());
        let level = match self.options.request_log {
            true => log::Level::Info,
            false => log::Level::Debug,
        };
        let millis = exchange.elapsed.as_millis();
        log::log!(target: REQUESTS, level, "{method} {path} {status} {millis} ms");
    }

    fn stop(&self) {
        self.state.stop();
    }
}
