//! What changes while a session runs: its token and the service's dynamic configuration.

use std::time::Duration;

use super::core::Core;
use crate::error::Result;
use crate::runtime::calls::{Effort, Link, config_body};
use crate::sync::lock;
use crate::transport::{Body, IDLE_AGE, Request};
use crate::types::DynamicConfig;
use crate::wire::route;

/// The least time between two looks at the dynamic configuration.
const MIN_REFRESH: u64 = 10;
/// The most.
const MAX_REFRESH: u64 = 86_400;

/// The longest time between two looks at anything.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How often work is looked for whose thread the system refused to start.
const RESCUE: Duration = Duration::from_secs(5);

/// What the service wants changed while a session runs; a server without it gets the defaults.
pub(crate) fn fetch_dynamic(link: &Link) -> Result<DynamicConfig> {
    let reply = link.optional(&route::DYNAMIC_CONFIG, &config_body()?)?;
    Ok(reply.unwrap_or_default())
}

/// Renews the token, looks for changes of configuration, starts threads that the system has refused
/// before, and closes connections that nobody needs any more.
pub(super) fn upkeep(core: &Core) {
    let interval = |dynamic: &DynamicConfig| {
        Duration::from_secs(dynamic.refresh_interval_sec.clamp(MIN_REFRESH, MAX_REFRESH))
    };
    let clock = core.link.clock();
    let mut due = clock.now() + interval(&lock(&core.dynamic));
    let mut token = clock.now();
    let mut idle = clock.now() + IDLE_AGE;
    loop {
        if token <= clock.now() {
            let lasts = core.link.refresh_token().unwrap_or(LONGEST);
            token = clock.now() + lasts.min(LONGEST);
        }
        let wait = due.min(token).saturating_duration_since(clock.now());
        if clock.beat(core.link.stop(), wait.min(RESCUE)) {
            return;
        }
        core.rescue();
        if idle <= clock.now() {
            core.link.transport().release_idle();
            idle = clock.now() + IDLE_AGE;
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
