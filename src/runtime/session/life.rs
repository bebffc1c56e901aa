//! A session's life: open, keep alive, close.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::runtime::calls::{Effort, Link, config_body};
use crate::runtime::core::Core;
use crate::sync::lock;
use crate::transport::{Body, PROTOCOL_VERSION, Request};
use crate::types::{ClientConfig, DynamicConfig, FinishReason};
use crate::wire::reply::CreateSessionReply;
use crate::wire::request::{
    CreateSessionRequest, FinishSessionRequest, SessionHeartbeatRequest, to_json,
};
use crate::wire::route;

/// Without a heartbeat for this long the service will soon give the session up.
const SILENCE: Duration = Duration::from_secs(120);

/// The least time between two looks at the dynamic configuration.
const MIN_REFRESH: u64 = 10;

/// How long an explicit close goes on trying to tell the service.
const FINISH: Duration = Duration::from_secs(10);

/// How long a close waits for the last events to be reported.
const TELEMETRY: Duration = Duration::from_secs(2);

/// The owner of everything that runs for a session. Clients and handles share it; the last one
/// to go closes it.
pub(crate) struct Session {
    pub(crate) core: Arc<Core>,
    backlogs: Mutex<Vec<Weak<dyn Backlog>>>,
    closed: Mutex<bool>,
}

/// Operations that wait to be sent.
pub(crate) trait Backlog: Send + Sync {
    /// Waits until nothing is left to send or the time is up.
    fn drain(&self, deadline: Instant);
    /// Gives up what is left; how many operations that were.
    fn abandon(&self) -> usize;
}

impl Session {
    /// Opens a session with the service.
    pub(crate) fn open(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
    ) -> Result<Arc<Self>> {
        let body = to_json(&CreateSessionRequest {
            tags: config.tags.as_slice().into(),
            user_metadata: std::borrow::Cow::Borrowed(&config.user_metadata),
            sdk_version: PROTOCOL_VERSION.into(),
            project_id: config.project_id.as_deref().map(Into::into),
            display_name: config.display_name.as_deref().map(Into::into),
        })?;
        let reply: CreateSessionReply = link.json(&route::CREATE_SESSION, &body)?;
        for (level, message) in [
            (log::Level::Info, &reply.info_message),
            (log::Level::Warn, &reply.warning_message),
            (log::Level::Error, &reply.error_message),
        ] {
            if let Some(message) = message {
                log::log!(level, "the service says: {message}");
            }
        }
        Self::adopt(link, config, client_config, dynamic, reply.session_id)
    }

    /// Joins a session that another client opened.
    pub(crate) fn adopt(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
        session_id: String,
    ) -> Result<Arc<Self>> {
        let core = Arc::new(Core::new(link, config, client_config, dynamic, session_id));
        let session = Arc::new(Self {
            core: core.clone(),
            backlogs: Mutex::default(),
            closed: Mutex::new(false),
        });
        Core::spawn(&core, "tinker-heartbeat", heartbeat)?;
        Core::spawn(&core, "tinker-upkeep", upkeep)?;
        if core.config.telemetry {
            Core::spawn(&core, "tinker-telemetry", |core| {
                core.telemetry.run(&core.link, core.link.stop());
            })?;
        }
        Ok(session)
    }

    /// An error once the session was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match *lock(&self.closed) {
            true => Err(Error::Closed(Context::new("create a new client"))),
            false => Ok(()),
        }
    }

    /// Adds operations that a close has to wait for.
    pub(crate) fn add_backlog(&self, backlog: Weak<dyn Backlog>) {
        let mut backlogs = lock(&self.backlogs);
        backlogs.retain(|known| known.strong_count() > 0);
        backlogs.push(backlog);
    }

    /// Sends what is queued, tells the service how the session ended, stops every thread. The
    /// first reason wins; a second close does nothing.
    pub(crate) fn close(&self, reason: FinishReason, detail: Option<&str>) -> Result<()> {
        self.end(reason, detail, FINISH)
    }

    fn end(&self, reason: FinishReason, detail: Option<&str>, finish: Duration) -> Result<()> {
        if std::mem::replace(&mut *lock(&self.closed), true) {
            return Ok(());
        }
        let abandoned = self.flush();
        let finished = self.finish(reason, detail, finish);
        self.core
            .telemetry
            .drain(self.core.config.close_timeout.min(TELEMETRY));
        self.core.shut_down();
        finished?;
        match abandoned {
            0 => Ok(()),
            count => Err(Error::Closed(Context::new(format!(
                "{count} queued operations were not sent within {:?} and are given up",
                self.core.config.close_timeout
            )))),
        }
    }

    /// Waits for queued operations to be sent; how many were given up.
    fn flush(&self) -> usize {
        let deadline = Instant::now() + self.core.config.close_timeout;
        let backlogs: Vec<_> = lock(&self.backlogs)
            .drain(..)
            .filter_map(|backlog| backlog.upgrade())
            .collect();
        for backlog in &backlogs {
            backlog.drain(deadline);
        }
        backlogs.iter().map(|backlog| backlog.abandon()).sum()
    }

    fn finish(&self, reason: FinishReason, detail: Option<&str>, limit: Duration) -> Result<()> {
        let body = to_json(&FinishSessionRequest::new(reason, detail.map(Into::into)))?;
        let path = route::FINISH_SESSION.path(&[&self.core.session_id])?;
        let request = Request::to(&route::FINISH_SESSION, path)
            .with_body(Body::Json(&body))
            .with_read_timeout(limit);
        let effort = Effort::from(&route::FINISH_SESSION).until(Some(Instant::now() + limit));
        match self.core.link.call_raw(request, effort) {
            // Not every server keeps books.
            Err(error) if error.status() != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let reason = match thread::panicking() {
            true => FinishReason::Errored,
            false => FinishReason::Success,
        };
        let limit = self.core.config.close_timeout;
        if let Err(error) = self.end(reason, None, limit) {
            log::warn!("closing session {}: {error}", self.core.session_id);
        }
    }
}

/// What the service wants changed while a session runs; a server without it gets the defaults.
pub(crate) fn fetch_dynamic(link: &Link) -> Result<DynamicConfig> {
    let reply = link.optional(&route::DYNAMIC_CONFIG, &config_body()?)?;
    Ok(reply.unwrap_or_default())
}

/// Keeps the session alive. Its own thread and its own connections: nothing delays it.
fn heartbeat(core: &Core) {
    let request = SessionHeartbeatRequest {
        session_id: core.session_id.as_str().into(),
    };
    let Ok(body) = to_json(&request) else { return };
    let clock = core.link.clock();
    let mut last = clock.now();
    while !clock.beat(core.link.stop(), core.config.heartbeat) {
        let route = &route::SESSION_HEARTBEAT;
        let request = Request::to(route, route.fixed_path()).with_body(Body::Json(&body));
        match core.link.call_raw(request, route.into()) {
            Ok(_) => last = clock.now(),
            Err(error) if error.status() == Some(410) => {
                log::debug!("the service has finished session {}", core.session_id);
                return;
            }
            Err(error) => {
                let silence = clock.now().saturating_duration_since(last);
                if silence > SILENCE {
                    log::warn!(
                        "no heartbeat of session {} got through for {} s, it may be lost: {error}",
                        core.session_id,
                        silence.as_secs()
                    );
                }
            }
        }
    }
}

/// Renews the token and looks for changes of configuration.
fn upkeep(core: &Core) {
    let interval = |dynamic: &DynamicConfig| {
        Duration::from_secs(dynamic.refresh_interval_sec.max(MIN_REFRESH))
    };
    let clock = core.link.clock();
    let mut due = clock.now() + interval(&lock(&core.dynamic));
    loop {
        let token = core.link.refresh_token().unwrap_or(Duration::MAX);
        let wait = due.saturating_duration_since(clock.now()).min(token);
        if clock.beat(core.link.stop(), wait) {
            return;
        }
        if clock.now() < due {
            continue;
        }
        let route = &route::DYNAMIC_CONFIG;
        let fetched = config_body().and_then(|body| {
            let request = Request::to(route, route.fixed_path()).with_body(Body::Json(&body));
            core.link.call::<DynamicConfig>(request, Effort::ONCE)
        });
        match fetched {
            Ok(fresh) => *lock(&core.dynamic) = fresh,
            Err(error) => log::debug!("the dynamic configuration stays as it is: {error}"),
        }
        due = clock.now() + interval(&lock(&core.dynamic));
    }
}
