//! A service and this process's one session with it, opened when it is first needed.

use std::sync::Arc;
use std::time::SystemTime;

use super::{Opened, Session, fetch_dynamic};
use crate::config::{Config, Secret};
use crate::error::Result;
use crate::runtime::calls::Link;
use crate::runtime::clock::Clock;
use crate::runtime::stop::Stop;
use crate::transport::retry::error_from_response;
use crate::transport::{Auth, Request, Response, Transport};
use crate::types::{ClientConfig, FinishReason};
use crate::wire::handle::SamplerHandle;
use crate::wire::route::Route;

/// What a service client holds.
pub(crate) struct Host {
    config: Config,
    clock: Clock,
    stop: Stop,
    transport: Transport,
    link: Opened<(Arc<Link>, ClientConfig)>,
    session: Opened<Arc<Session>>,
}

impl Host {
    pub(crate) fn new(config: Config, clock: Clock) -> Result<Self> {
        Ok(Self {
            transport: Transport::new(&config)?,
            config,
            clock,
            stop: Stop::default(),
            link: Opened::default(),
            session: Opened::default(),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The connections, without a session.
    pub(crate) fn link(&self) -> Result<Arc<Link>> {
        Ok(self.connect()?.0)
    }

    fn connect(&self) -> Result<(Arc<Link>, ClientConfig)> {
        self.link.get(|| {
            let (clock, stop) = (self.clock.clone(), self.stop.clone());
            let (link, client_config) =
                Link::open(&self.config, self.transport.clone(), clock, stop)?;
            Ok((Arc::new(link), client_config))
        })
    }

    /// Calls an endpoint once with a key of its own, as whoever holds that key.
    pub(crate) fn call_as(&self, key: &Secret, route: &Route) -> Result<Response> {
        let mut request = Request::to(route, route.fixed_path());
        request.auth = Auth::Key(key);
        match self.transport.exchange(&request) {
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
        let session = self.session.get(|| {
            let (link, client_config) = self.connect()?;
            let dynamic = fetch_dynamic(&link)?;
            Session::open(link, self.config.clone(), client_config, dynamic)
        })?;
        session.check_open()?;
        Ok(session)
    }

    /// The session if it was opened.
    pub(crate) fn opened(&self) -> Option<Arc<Session>> {
        self.session.peek()
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
        self.link.close();
        let result = match self.session.close() {
            Some(session) => session.close(reason, detail),
            None => Ok(()),
        };
        // Also for those who are just opening the session, or never needed one.
        self.stop.set();
        self.transport.stop();
        result
    }
}
