//! What is known about an operation while it runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::{Effect, Error};
use crate::sync::lock;
use crate::types::{QueueStatus, RequestId};

/// What is known about an operation while it runs; shared by its handle and whoever works on it.
pub(crate) struct Status {
    operation: &'static str,
    started: Instant,
    progress: Mutex<Progress>,
    cancel: Mutex<Cancel>,
}

#[derive(Default)]
struct Progress {
    /// Whether any of it may have left.
    sent: bool,
    /// One for each part of the call that was accepted.
    request_ids: Vec<RequestId>,
    trouble: Option<Box<(Instant, String)>>,
    queue: Option<Box<QueueStatus>>,
    logged: Option<Instant>,
}

enum Cancel {
    Open(Vec<Box<dyn FnOnce() + Send>>),
    Cancelled,
}

impl Status {
    pub(crate) fn new(operation: &'static str) -> Arc<Self> {
        Arc::new(Self {
            operation,
            started: Instant::now(),
            progress: Mutex::default(),
            cancel: Mutex::new(Cancel::Open(Vec::new())),
        })
    }

    pub(crate) fn operation(&self) -> &'static str {
        self.operation
    }

    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Its request, or part of it, is about to be sent.
    pub(crate) fn sending(&self) {
        lock(&self.progress).sent = true;
    }

    /// Whether it took effect on the service, as far as is known.
    pub(crate) fn effect(&self) -> Effect {
        let progress = lock(&self.progress);
        match (progress.request_ids.is_empty(), progress.sent) {
            (false, _) => Effect::Accepted,
            (true, true) => Effect::Unknown,
            (true, false) => Effect::None,
        }
    }

    /// An error that ends it here, with what is known of it there.
    pub(crate) fn name(&self, error: Error) -> Error {
        let error = error.for_request(self.operation);
        let error = error.with_effect(self.effect());
        match self.request_ids().first() {
            Some(id) => error.with_request_id(id),
            None => error,
        }
    }

    pub(crate) fn accepted(&self, request_id: &str) {
        lock(&self.progress).request_ids = vec![request_id.into()];
    }

    /// One part of a call of several was accepted.
    pub(crate) fn part_accepted(&self, request_id: &str) {
        lock(&self.progress).request_ids.push(request_id.into());
    }

    /// The id of a call of one request.
    pub(crate) fn request_id(&self) -> Option<RequestId> {
        match &lock(&self.progress).request_ids[..] {
            [only] => Some(only.clone()),
            _ => None,
        }
    }

    pub(crate) fn request_ids(&self) -> Vec<RequestId> {
        lock(&self.progress).request_ids.clone()
    }

    /// Notes since when polls for the result have failed, and why the last one did.
    pub(crate) fn polled(&self, failing_since: Option<Instant>, reason: String) {
        let mut progress = lock(&self.progress);
        match failing_since {
            Some(since) => progress.trouble = Some(Box::new((since, reason))),
            None => progress.trouble = None,
        }
    }

    pub(crate) fn trouble(&self) -> Option<(Instant, String)> {
        lock(&self.progress).trouble.as_deref().cloned()
    }

    pub(crate) fn queue_state(&self) -> Option<QueueStatus> {
        lock(&self.progress).queue.as_deref().cloned()
    }

    /// Notes the state of the queue; whether it is worth a line in the log, which is at most
    /// once per `interval` and never while the queue moves.
    pub(crate) fn queued(&self, queue: QueueStatus, interval: Duration) -> bool {
        let mut progress = lock(&self.progress);
        let due = queue.state != "active"
            && progress
                .logged
                .is_none_or(|last| last.elapsed() >= interval);
        if due {
            progress.logged = Some(Instant::now());
        }
        progress.queue = Some(Box::new(queue));
        due
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(*lock(&self.cancel), Cancel::Cancelled)
    }

    /// Runs `hook` when the operation is cancelled: now, if it already was.
    pub(crate) fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        let mut cancel = lock(&self.cancel);
        match &mut *cancel {
            Cancel::Open(hooks) => hooks.push(Box::new(hook)),
            Cancel::Cancelled => {
                drop(cancel);
                hook();
            }
        }
    }

    pub(crate) fn cancel(&self) {
        let before = std::mem::replace(&mut *lock(&self.cancel), Cancel::Cancelled);
        if let Cancel::Open(hooks) = before {
            for hook in hooks {
                hook();
            }
        }
    }
}
