//! The heartbeat that keeps a session alive.

use std::time::Duration;

use super::core::Core;
use crate::transport::{Body, Request};
use crate::wire::request::{SessionHeartbeatRequest, to_json};
use crate::wire::route;

/// Without a heartbeat for this long the service will soon give the session up.
const SILENCE: Duration = Duration::from_secs(120);

/// Keeps the session alive. Its own thread and its own connections: nothing delays it.
pub(super) fn heartbeat(core: &Core) {
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
