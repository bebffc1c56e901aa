//! What the queues of a session's models share.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use serde::de::DeserializeOwned;

use super::buffers::Buffers;
use super::dialect::Dialect;
use super::limit::QueueLimit;
use super::losses::Losses;
use super::lost::plain_result;
use super::queue::Shared;
use crate::error::Result;
use crate::runtime::futures::{Accepted, Results, Watch};
use crate::runtime::pending::{OnDrop, Pending, Status, promise};
use crate::runtime::threads::{Background, Bytes, Crew};
use crate::sync::lock;
use crate::types::Timestamp;
use crate::wire::reply::{FutureReply, decode_json};
use crate::wire::route::Route;

/// Threads that send chunks, of all models together.
const SUBMITTERS: usize = 64;

/// The training side of a session.
pub(crate) struct Training {
    pub(crate) results: Arc<Results>,
    pub(super) background: Arc<Background>,
    /// Threads that send the chunks of large calls. Apart from those that wait for results, which
    /// may all be taken.
    pub(super) submitters: Crew,
    /// Bytes of requests on the wire.
    pub(super) budget: Bytes,
    pub(super) buffers: Buffers,
    pub(super) dialect: Dialect,
    pub(super) losses: Losses,
    /// Bytes of calls that wait to be sent.
    pub(super) queued: QueueLimit,
    /// Loss inputs that the user has been told about, a few.
    pub(super) misspelt: Mutex<BTreeSet<String>>,
    queues: Mutex<Vec<Weak<Shared>>>,
    /// When the service last took an operation of each model.
    accepted: Mutex<HashMap<String, Timestamp>>,
}

impl Training {
    pub(crate) fn new(results: Arc<Results>, background: Arc<Background>) -> Self {
        let others = results.link.transport().sockets().others;
        let budget = results.client_config.fwdbwd_dispatch_bytes_semaphore_size;
        Self {
            submitters: Crew::new("tinker-submit", SUBMITTERS.min(others)),
            budget: Bytes::new(budget),
            buffers: Buffers::default(),
            dialect: Dialect::new(results.config.dialect),
            losses: Losses::default(),
            queued: QueueLimit::default(),
            misspelt: Mutex::default(),
            queues: Mutex::default(),
            accepted: Mutex::default(),
            results,
            background,
        }
    }

    /// Calls an endpoint that answers with a future and starts to wait for its JSON result.
    /// `keep` is held by the handle: its session.
    pub(crate) fn run<T: DeserializeOwned + Send + 'static>(
        &self,
        keep: Arc<dyn Any + Send + Sync>,
        route: &'static Route,
        body: &[u8],
    ) -> Result<Pending<T>> {
        self.results.check_open()?;
        let started = Instant::now();
        let reply: FutureReply = self.results.link.json(route, body)?;
        let status = Status::new(route.template);
        status.accepted(&reply.request_id);
        let (promise, pending) = promise(status.clone(), OnDrop::GoesOn, keep);
        let promise = promise.counted(&self.results.outstanding, &status);
        let accepted = Accepted {
            request_id: reply.request_id,
            request_type: route.request_type,
            binary: false,
            roundtrip: started.elapsed(),
        };
        let decode = Arc::new(|_: Option<&str>, body: Vec<u8>| decode_json(&body));
        let done = move |outcome| promise.resolve(plain_result(outcome));
        Watch::new(self.results.clone(), accepted, status, decode, done).start();
        Ok(pending)
    }

    pub(super) fn note_accepted(&self, model_id: &str) {
        let mut accepted = lock(&self.accepted);
        match accepted.get_mut(model_id) {
            Some(time) => *time = Timestamp::now(),
            None => drop(accepted.insert(model_id.to_owned(), Timestamp::now())),
        }
    }

    pub(crate) fn last_accepted(&self, model_id: &str) -> Option<Timestamp> {
        lock(&self.accepted).get(model_id).copied()
    }

    pub(super) fn add(&self, queue: &Arc<Shared>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    fn queues(&self) -> Vec<Arc<Shared>> {
        lock(&self.queues)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Waits until every queue has sent what it holds, or the time is up, and gives up what is
    /// left: how many operations.
    pub(crate) fn flush(&self, deadline: Instant) -> usize {
        let queues = self.queues();
        for queue in &queues {
            queue.drain(deadline);
        }
        queues.iter().map(|queue| queue.abandon()).sum()
    }

    /// Threads that send chunks; those of the queues are the session's.
    pub(crate) fn threads(&self) -> usize {
        self.submitters.threads()
    }

    pub(crate) fn rescue(&self) {
        self.submitters.rescue();
    }

    /// Ends the queues' threads.
    pub(crate) fn shut_down(&self) {
        self.budget.close();
        for queue in self.queues() {
            queue.halt();
        }
        self.submitters.close();
    }
}
