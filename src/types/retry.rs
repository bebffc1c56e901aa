//! How a sampling client repeats what failed.

use std::time::Duration;

use crate::{Error, Result};

/// How a sampling client repeats what failed, and when it gives up: see
/// [`SamplingClient::with_retry`](crate::SamplingClient::with_retry).
///
/// ```
/// use std::time::Duration;
/// use tinker::types::RetryConfig;
///
/// let patient = RetryConfig::default().with_progress_timeout(Duration::from_secs(86_400));
/// let eager = RetryConfig::default().with_delays(Duration::from_millis(100), Duration::from_secs(1));
/// assert!(eager.validate().is_ok() && patient.validate().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RetryConfig {
    /// How many samples of this sampler may wait for their results at once, each on a connection
    /// of its own; the rest wait to be sent. Default: as many as the service says (usually
    /// thousands), which is the most there can be.
    ///
    /// Python's SDK has the setting and always puts the service's number in its place. As there, it
    /// counts for nothing where one poll serves all samples: waiting then costs no connection.
    pub max_connections: Option<usize>,
    /// How long sampling may go on without any success before it counts as stuck. Default: the
    /// configuration's, two hours.
    pub progress_timeout: Option<Duration>,
    /// The wait before a sample is repeated for the first time; it doubles each time.
    /// Default: 0.5 s.
    pub retry_delay_base: Duration,
    /// The longest such wait. Default: 10 s.
    pub retry_delay_max: Duration,
    /// By what share a wait varies, from 0 to 1. Default: 0.25.
    pub jitter_factor: f64,
    /// Whether a sample that failed after the service had taken it is submitted again as a new
    /// request. Default: true, unless the service says otherwise.
    pub enable_retry_logic: bool,
    /// Whether sampling that counts as stuck ends with an error. Default: true, unless the
    /// service says otherwise.
    pub enable_stuck_detection: bool,
}

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            max_connections: None,
            progress_timeout: None,
            retry_delay_base: Duration::from_millis(500),
            retry_delay_max: Duration::from_secs(10),
            jitter_factor: 0.25,
            enable_retry_logic: true,
            enable_stuck_detection: true,
        }
    }
}

impl RetryConfig {
    /// Sets how many samples may wait for their results at once.
    #[must_use]
    pub fn with_max_connections(mut self, most: usize) -> Self {
        self.max_connections = Some(most);
        self
    }

    /// Sets how long sampling may go on without any success.
    #[must_use]
    pub fn with_progress_timeout(mut self, limit: Duration) -> Self {
        self.progress_timeout = Some(limit);
        self
    }

    /// Sets the first and the longest wait before a sample is repeated.
    #[must_use]
    pub fn with_delays(mut self, base: Duration, max: Duration) -> Self {
        (self.retry_delay_base, self.retry_delay_max) = (base, max);
        self
    }

    /// Sets by what share a wait varies.
    #[must_use]
    pub fn with_jitter_factor(mut self, share: f64) -> Self {
        self.jitter_factor = share;
        self
    }

    /// Submits no sample anew: one that failed, or whose result was lost, is an error at once. As
    /// in Python's SDK, a submission that nobody took is still repeated under its number, for as
    /// long as [`Config::with_patience`](crate::config::Config::with_patience) says.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.enable_retry_logic = false;
        self
    }

    /// Waits for as long as it takes.
    #[must_use]
    pub fn without_stuck_detection(mut self) -> Self {
        self.enable_stuck_detection = false;
        self
    }

    /// Checks the ranges. Clients call this when they are given one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no connections at all, a first wait above the longest, or a share
    /// outside 0 to 1.
    pub fn validate(&self) -> Result<()> {
        if self.max_connections == Some(0) {
            return Err(Error::invalid("max_connections", "must be at least 1"));
        }
        if self.retry_delay_base > self.retry_delay_max {
            let problem = "must not be more than retry_delay_max";
            return Err(Error::invalid("retry_delay_base", problem));
        }
        if !(0.0..=1.0).contains(&self.jitter_factor) {
            let problem = format!("must be from 0 to 1, got {}", self.jitter_factor);
            return Err(Error::invalid("jitter_factor", problem));
        }
        Ok(())
    }
}
