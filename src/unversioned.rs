//! What this crate's own tests, benches and examples need beyond the API. Nothing here is covered
//! by a version: it may change or go at any time.

use std::time::Duration;

use crate::{Result, ServiceClient, config::Config};

pub use crate::runtime::clock::{Clock, Recording};
pub use crate::types::server_config::{ClientConfig, DynamicConfig};
pub use crate::wire::bench;

/// Every reader of bytes from outside, for fuzzers and for the bounded tests beside them.
pub mod fuzz;

/// Events that clients report to the service.
pub mod telemetry {
    pub use crate::types::telemetry::*;
}

/// A client whose pauses a test can read instead of sitting through.
///
/// # Errors
///
/// As [`ServiceClient::new`].
pub fn client_with_clock(config: Config, clock: Clock) -> Result<ServiceClient> {
    ServiceClient::with_clock(config, clock)
}

/// Intervals the service expects to be as they are; tests set them shorter.
pub trait Intervals {
    /// How often the session tells the service that it lives. The service expects 10 s.
    #[must_use]
    fn with_heartbeat_interval(self, interval: Duration) -> Self;

    /// How long a poll for a result is held open. The service expects 45 s.
    #[must_use]
    fn with_poll_timeout(self, limit: Duration) -> Self;
}

impl Intervals for Config {
    fn with_heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    fn with_poll_timeout(mut self, limit: Duration) -> Self {
        self.poll_timeout = limit;
        self
    }
}
