//! What a client tells an observer while it copes with trouble.

use std::time::Duration;

use super::SessionId;
use crate::Error;

/// Something that a client bears on its own, for those who want to see it: see
/// [`Config::with_event_observer`](crate::config::Config::with_event_observer).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientEvent {
    /// A request failed in a passing way and will be made again.
    #[non_exhaustive]
    Retry {
        /// What was asked for, such as `POST optim_step`; `sample` for a sample as a whole.
        request: String,
        /// How long until then.
        delay: Duration,
        /// What went wrong.
        error: Error,
    },
    /// The service is busy (429): no sample of this service and key is sent for a while.
    #[non_exhaustive]
    Backoff {
        /// For how long.
        delay: Duration,
    },
    /// The service reports that payment is due (402): work waits for it, and this is said again
    /// every minute.
    #[non_exhaustive]
    BillingPause,
    /// The service has ended the session, or forgotten it.
    #[non_exhaustive]
    SessionLost {
        /// The session.
        session_id: SessionId,
        /// How the service put it.
        error: Error,
    },
}
