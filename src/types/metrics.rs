//! What a client counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Timestamp;

/// What a client has done and is doing, counted since it was made: see
/// [`ServiceClient::metrics`](crate::ServiceClient::metrics).
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ClientMetrics {
    /// Answers by request and status, such as `("POST asample", 200)`; status 0 counts attempts
    /// that got no answer.
    pub requests: BTreeMap<(String, u16), u64>,
    /// Requests that were made again.
    pub retries: u64,
    /// Bytes of the bodies that were sent, files and forms left out.
    pub bytes_sent: u64,
    /// Bytes of the bodies that were received, downloads left out.
    pub bytes_received: u64,
    /// Requests on the wire.
    pub in_flight: usize,
    /// Operations whose results are not there yet.
    pub unfinished: usize,
    /// Connections that are open, idle ones included.
    pub sockets: usize,
    /// Threads that run for the session, those of the CPU pool left out.
    pub threads: usize,
    /// How long samples are held back after a 429, if they are.
    pub backoff: Option<Duration>,
    /// How long ago a heartbeat was last taken by the service.
    pub since_heartbeat: Option<Duration>,
    /// When the token expires, where the service exchanges tokens.
    pub token_expires: Option<Timestamp>,
}

/// An operation whose result is not there yet: see
/// [`ServiceClient::drain`](crate::ServiceClient::drain).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// What was asked for, such as `optim_step`.
    pub operation: &'static str,
    /// The service's id for it, once it was accepted.
    pub request_id: Option<super::RequestId>,
    /// How long ago it was submitted.
    pub age: Duration,
}

impl Unfinished {
    pub(crate) fn new(
        operation: &'static str,
        request_id: Option<super::RequestId>,
        age: Duration,
    ) -> Self {
        Self {
            operation,
            request_id,
            age,
        }
    }
}
