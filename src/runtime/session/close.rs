//! Closing a session.

use std::thread;
use std::time::{Duration, Instant};

use super::Session;
use crate::error::{Context, Error, Result};
use crate::runtime::calls::{Effort, is_unknown};
use crate::runtime::clock::Clock;
use crate::transport::{Body, Request};
use crate::types::FinishReason;
use crate::wire::request::{FinishSessionRequest, to_json};
use crate::wire::route;

/// How long an explicit close goes on trying to tell the service.
const FINISH: Duration = Duration::from_secs(10);

/// How long a close waits for the last events to be reported.
const TELEMETRY: Duration = Duration::from_secs(2);

impl Session {
    /// Sends what is queued, tells the service how the session ended, stops every thread. The
    /// first reason wins; a second close does nothing.
    pub(crate) fn close(&self, reason: FinishReason, detail: Option<&str>) -> Result<()> {
        self.end(reason, detail, FINISH)
    }

    fn end(&self, reason: FinishReason, detail: Option<&str>, finish: Duration) -> Result<()> {
        // A forked child has none of the threads, and the session is its parent's.
        if !self.process.is_this() || !self.core.results.begin_closing() {
            return Ok(());
        }
        let limit = self.core.config.close_timeout;
        // Nobody would take what is queued for a service that is not there.
        let deadline = match self.core.link.is_unreachable() {
            true => Instant::now(),
            false => Clock::after(limit),
        };
        let abandoned = self.core.training.flush(deadline);
        let finished = match self.is_owner && !self.core.results.is_lost() {
            true => self.finish(reason, detail, finish),
            false => Ok(()),
        };
        if !self.core.link.is_unreachable() {
            self.core.telemetry.drain(limit.min(TELEMETRY));
        }
        self.core.shut_down();
        finished?;
        match abandoned {
            0 => Ok(()),
            count => Err(Error::Closed(Context::new(format!(
                "{count} queued operations were not sent within {limit:?} and are given up"
            )))),
        }
    }

    fn finish(&self, reason: FinishReason, detail: Option<&str>, limit: Duration) -> Result<()> {
        let body = to_json(&FinishSessionRequest::new(reason, detail.map(Into::into)))?;
        let path = route::FINISH_SESSION.path(&[&self.core.session_id])?;
        let request = Request::to(&route::FINISH_SESSION, path)
            .with_body(Body::Json(&body))
            .with_read_timeout(limit);
        let link = &self.core.link;
        let effort = Effort::from(&route::FINISH_SESSION)
            .if_reached()
            .until(link.deadline(limit));
        match link.call_raw(request, effort) {
            // SkyRL and servers of the JSON era have no such route, and a server that was restarted
            // has nothing to end: 404 either way.
            Err(error) if !is_unknown(&error) => Err(error),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::config::Config;
    use crate::runtime::clock::Clock;
    use crate::runtime::process::Process;
    use crate::runtime::session::host::Host;
    use crate::scripted::{Reply, Server};

    /// What a forked child holds: the same session, of another process.
    #[test]
    fn a_child_that_drops_its_copy_leaves_the_parents_session_alone() {
        let server = Server::start();
        for route in [
            "client/config",
            "client/dynamic_config",
            "sessions/S1/finish",
        ] {
            server.always("POST", route, Reply::json(&json!({})));
        }
        let opened = Reply::json(&json!({"session_id": "S1"}));
        server.always("POST", "create_session", opened);
        let config = Config::default()
            .with_base_url(server.url())
            .with_api_key("tml-mine")
            .with_telemetry(false);
        let host = Host::new(config, Clock::Real).unwrap();
        let session = host.session().unwrap();
        drop(Session {
            core: session.core.clone(),
            counters: Arc::clone(&session.counters),
            is_owner: true,
            process: Process::other(),
        });
        assert_eq!(server.requests_to("sessions/S1/finish").len(), 0);
        session.check_open().unwrap();
        drop((session, host));
        assert_eq!(server.requests_to("sessions/S1/finish").len(), 1);
    }
}
