//! The heartbeat that keeps a session alive.

use std::time::Duration;

use super::core::Core;
use crate::error::{Meaning, Result};
use crate::runtime::calls::is_unknown;
use crate::transport::{Body, Request};
use crate::wire::request::{SessionHeartbeatRequest, to_json};
use crate::wire::route;

/// Without a heartbeat for this long the service will soon give the session up.
const SILENCE: Duration = Duration::from_secs(120);

/// One heartbeat.
pub(super) fn beat(core: &Core) -> Result<()> {
    let body = to_json(&SessionHeartbeatRequest {
        session_id: core.session_id.as_str().into(),
    })?;
    let route = &route::SESSION_HEARTBEAT;
    let request = Request::to(route, route.fixed_path()).with_body(Body::Json(&body));
    core.link.call_raw(request, route.into())?;
    core.beaten(core.link.clock().now());
    Ok(())
}

/// Keeps the session alive. Its own thread and its own connections: nothing delays it.
pub(super) fn heartbeat(core: &Core) {
    let clock = core.link.clock();
    let (mut last, mut known) = (clock.now(), false);
    while !clock.beat(core.link.stop(), core.config.heartbeat) {
        match beat(core) {
            Ok(()) => (last, known) = (clock.now(), true),
            // The hosted service ends a session with 410. A 404 counts only of a server that has taken
            // a heartbeat before, and so was restarted: one that never did may have no such route.
            Err(error)
                if error.meaning() == Some(Meaning::Gone) || (known && is_unknown(&error)) =>
            {
                return core.results.lose(&core.session_id, &error);
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
