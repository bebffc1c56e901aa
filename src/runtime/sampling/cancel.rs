//! Telling the service that nobody wants a sample any more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::runtime::calls::{Effort, Link};
use crate::runtime::threads::Crew;
use crate::sync::lock;
use crate::transport::{Body, Request};
use crate::types::DynamicConfig;
use crate::wire::request::{CancelFutureRequest, to_json};
use crate::wire::route::CANCEL_FUTURE;

/// How many cancellations are on the wire at once.
const CANCELLERS: usize = 4;

/// How long one is tried.
const LIMIT: Duration = Duration::from_secs(30);

/// Samples to cancel, sent in the background.
pub(crate) struct Cancels {
    link: Arc<Link>,
    crew: Crew,
    dynamic: Arc<Mutex<DynamicConfig>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<String>,
    senders: usize,
}

impl Cancels {
    pub(super) fn new(link: Arc<Link>, crew: Crew, dynamic: Arc<Mutex<DynamicConfig>>) -> Self {
        Self {
            link,
            crew,
            dynamic,
            state: Mutex::default(),
        }
    }

    /// Cancels a sample where the service listens. Does not wait.
    pub(super) fn send(self: &Arc<Self>, request_id: String) {
        if !lock(&self.dynamic).sample_cancel_enabled || self.link.stop().is_set() {
            return;
        }
        let mut state = lock(&self.state);
        state.queue.push_back(request_id);
        if state.senders == CANCELLERS {
            return;
        }
        state.senders += 1;
        drop(state);
        let cancels = self.clone();
        self.crew.run(move || {
            while let Some(id) = cancels.next() {
                cancels.post(&id);
            }
        });
    }

    /// The next one to send. Leaving and looking happen under one lock, so none is left behind.
    fn next(&self) -> Option<String> {
        let mut state = lock(&self.state);
        let next = match self.link.stop().is_set() {
            true => None,
            false => state.queue.pop_front(),
        };
        if next.is_none() {
            state.senders -= 1;
        }
        next
    }

    fn post(&self, request_id: &str) {
        let sent = to_json(&CancelFutureRequest {
            request_id: request_id.into(),
        })
        .and_then(|body| {
            let request = Request::to(&CANCEL_FUTURE, CANCEL_FUTURE.fixed_path())
                .with_body(Body::Json(&body));
            let effort = Effort::from(&CANCEL_FUTURE).until(Some(Instant::now() + LIMIT));
            self.link.call_raw(request, effort)
        });
        if let Err(error) = sent {
            log::debug!("a sample could not be cancelled: {error}");
        }
    }
}
