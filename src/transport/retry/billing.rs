//! How long an unpaid bill pauses a job instead of ending it.

use std::time::{Duration, Instant};

/// The window in which a 402 pauses a job instead of ending it.
///
/// It opens at the first 402 and closes after the service's limit; five minutes without a logged
/// 402 mean that the next one is a new incident.
#[derive(Debug, Clone)]
pub(crate) struct BillingWindow {
    limit: Duration,
    first: Option<Instant>,
    logged: Option<Instant>,
}

/// What a 402 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Billing {
    /// Wait a little and try again; `log` says that the user should hear of it now.
    Pause { log: bool },
    /// It has lasted too long.
    GiveUp,
}

impl BillingWindow {
    const LOG_INTERVAL: Duration = Duration::from_secs(60);
    const RESET: Duration = Duration::from_secs(300);

    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            first: None,
            logged: None,
        }
    }

    /// Notes a 402.
    pub(crate) fn refused(&mut self, now: Instant) -> Billing {
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        if since(self.logged).is_some_and(|quiet| quiet > Self::RESET) {
            self.first = None;
            self.logged = None;
        }
        if since(self.first).is_some_and(|open| open > self.limit) {
            return Billing::GiveUp;
        }
        let log = since(self.logged).is_none_or(|quiet| quiet > Self::LOG_INTERVAL);
        if log {
            self.logged = Some(now);
        }
        self.first.get_or_insert(now);
        Billing::Pause { log }
    }
}
