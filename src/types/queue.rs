//! What the service says about the queue a request waits in.

use std::time::Duration;

use super::RequestId;

/// The state of the queue a request waits in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueStatus {
    /// `active`, `paused_capacity`, `paused_rate_limit`, or a newer word.
    pub state: String,
    /// The service's explanation, if it gave one.
    pub reason: Option<String>,
}

impl QueueStatus {
    /// A state, with the reason for it if there is one.
    pub fn new(state: impl Into<String>, reason: Option<String>) -> Self {
        Self {
            state: state.into(),
            reason,
        }
    }
}

/// What a queue observer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueUpdate {
    /// What waits, such as `optim_step`.
    pub operation: &'static str,
    /// The service's id for it.
    pub request_id: Option<RequestId>,
    /// How long ago it was submitted.
    pub age: Duration,
    /// What the service says about its queue.
    pub queue: QueueStatus,
}

impl QueueUpdate {
    pub(crate) fn new(
        operation: &'static str,
        request_id: Option<RequestId>,
        age: Duration,
        queue: QueueStatus,
    ) -> Self {
        Self {
            operation,
            request_id,
            age,
            queue,
        }
    }
}
