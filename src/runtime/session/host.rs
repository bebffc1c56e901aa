//! A service and this process's one session with it, opened when it is first needed.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::{Session, fetch_dynamic};
use crate::config::{Config, Secret};
use crate::error::Result;
use crate::runtime::calls::Link;
use crate::runtime::clock::Clock;
use crate::runtime::deadline::Deadline;
use crate::runtime::opened::Opened;
use crate::runtime::stop::Stop;
use crate::sync::lock;
use crate::transport::retry::error_from_response;
use crate::transport::{Auth, Request, Response, Transport};
use crate::types::{ClientConfig, ClientMetrics, FinishReason, Timestamp};
use crate::wire::handle::SamplerHandle;
use crate::wire::route::Route;

/// What a service client holds.
pub(crate) struct Host {
    config: Config,
    clock: Clock,
    current: Mutex<Arc<Visit>>,
}

/// The connections to a service and the session they serve. A session ends its connections, so a
/// new one brings its own.
struct Visit {
    stop: Stop,
    transport: Transport,
    link: Opened<(Arc<Link>, ClientConfig)>,
    session: Opened<Arc<Session>>,
}

impl Visit {
    fn new(config: &Config) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            transport: Transport::new(config)?,
            stop: Stop::default(),
            link: Opened::default(),
            session: Opened::default(),
        }))
    }
}

impl Host {
    pub(crate) fn new(config: Config, clock: Clock) -> Result<Self> {
        Ok(Self {
            current: Mutex::new(Visit::new(&config)?),
            config,
            clock,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The deadline of a blocking call that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::begin(self.config.call_deadline, &self.clock)
    }

    fn current(&self) -> Arc<Visit> {
        lock(&self.current).clone()
    }

    /// The connections, without a session.
    pub(crate) fn link(&self) -> Result<Arc<Link>> {
        Ok(self.connect(&self.current())?.0)
    }

    fn connect(&self, visit: &Visit) -> Result<(Arc<Link>, ClientConfig)> {
        visit.link.get(|| {
            let (clock, stop) = (self.clock.clone(), visit.stop.clone());
            let (link, client_config) =
                Link::open(&self.config, visit.transport.clone(), clock, stop)?;
            Ok((Arc::new(link), client_config))
        })
    }

    /// Calls an endpoint once with a key of its own, as whoever holds that key.
    pub(crate) fn call_as(&self, key: &Secret, route: &Route) -> Result<Response> {
        let mut request = Request::to(route, route.fixed_path());
        request.auth = Auth::Key(key);
        match self.current().transport.exchange(&request) {
            Ok(response) if response.is_success() => Ok(response),
            Ok(response) => {
                let now = SystemTime::now();
                Err(error_from_response(&response, &request.label, now))
            }
            Err(fault) => Err(fault.to_error(&request.label)),
        }
    }

    /// The session, opened at the first call. Others wait for it rather than open their own.
    pub(crate) fn session(&self) -> Result<Arc<Session>> {
        let visit = self.current();
        let session = visit.session.get(|| {
            let (link, client_config) = self.connect(&visit)?;
            let dynamic = fetch_dynamic(&link)?;
            Session::open(link, self.config.clone(), client_config, dynamic)
        })?;
        session.check_open()?;
        Ok(session)
    }

    /// The session if it was opened.
    pub(crate) fn opened(&self) -> Option<Arc<Session>> {
        self.current().session.peek()
    }

    /// When the service last took an operation of a model from this client.
    pub(crate) fn last_accepted(&self, model_id: &str) -> Option<Timestamp> {
        self.opened()?.core.training.last_accepted(model_id)
    }

    /// Leaves a session that the service no longer knows, so that the next call opens another.
    /// The id of the one that was left.
    pub(crate) fn leave_lost_session(&self) -> Result<Option<String>> {
        let visit = self.current();
        let Some(session) = visit.session.peek() else {
            return Ok(None);
        };
        if !session.ask_whether_lost() {
            return Ok(None);
        }
        let mut current = lock(&self.current);
        // Another thread may have been faster.
        if Arc::ptr_eq(&current, &visit) {
            *current = Visit::new(&self.config)?;
        }
        Ok(Some(session.core.session_id.clone()))
    }

    /// What was counted so far; asks the service nothing.
    pub(crate) fn metrics(&self) -> ClientMetrics {
        let mut metrics = match self.current().link.peek() {
            Some((link, _)) => link.metrics(),
            None => ClientMetrics::default(),
        };
        if let Some(session) = self.opened() {
            session.count(&mut metrics);
        }
        metrics
    }

    /// Joins the session of a sampler's maker, with this client's credentials.
    pub(crate) fn adopt(&self, handle: &SamplerHandle) -> Result<Arc<Session>> {
        let holder = &handle.holder;
        self.config.check_handle_origin(&holder.base_url)?;
        let mut config = self.config.clone().with_base_url(&holder.base_url);
        for (name, value) in &holder.default_headers_overrides {
            config = config.with_header(name, value.as_str());
        }
        let client_config = holder.client_config.clone();
        let (clock, stop) = (self.clock.clone(), Stop::default());
        let link = Link::with_config(&config, &client_config, clock, stop)?;
        let (dynamic, id) = (
            holder.client_dynamic_config.clone(),
            handle.session_id.clone(),
        );
        Session::join(Arc::new(link), config, client_config, dynamic, id)
    }

    /// Ends the session, if there is one, and every call under way.
    pub(crate) fn close(&self, reason: FinishReason, detail: Option<&str>) -> Result<()> {
        let visit = self.current();
        visit.link.close();
        let result = match visit.session.close() {
            Some(session) => session.close(reason, detail),
            None => Ok(()),
        };
        // Also for those who are just opening the session, or never needed one.
        visit.stop.set();
        visit.transport.stop();
        result
    }
}
