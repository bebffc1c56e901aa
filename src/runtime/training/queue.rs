//! A model's operations: submitted in order by one worker thread, awaited apart from that.
//!
//! The worker never waits for a result. It draws sequence numbers as it sends, so an operation
//! that was never sent takes none, and it settles what a failed submission did to the sequence
//! before it goes on.

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::backlog::{Backlog, Next};
use super::room::Training;
use super::sequence::{Conflict, Sent, Sequel, classify, settle};
use crate::error::{Context, Effect, Error, Result};
use crate::runtime::clock::Clock;
use crate::runtime::pending::{Aborter, OnDrop, Pending, Promise, Status, promise};
use crate::runtime::process::Process;
use crate::sync::lock;
use crate::types::ModelId;

/// The owner of a model's queue. Clients and handles share it; when the last one goes, what is
/// queued is still sent, for at most the configured time.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    process: Process,
    _keep: Arc<dyn Any + Send + Sync>,
}

pub(crate) struct Shared {
    pub(super) training: Arc<Training>,
    pub(crate) model_id: ModelId,
    backlog: Backlog<Box<dyn Operation>>,
    broken: Mutex<Option<Error>>,
    open: Mutex<Vec<Aborter>>,
    worker: OnceLock<ThreadId>,
}

/// Something the worker submits.
pub(crate) trait Operation: Send {
    /// Submits it. False if that failed, and so must whatever depends on it.
    fn run(self: Box<Self>, worker: &mut Worker);
    /// Ends it unsent.
    fn fail(self: Box<Self>, error: Error);
}

/// Whether an operation was submitted, for one that depends on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<OnceLock<Option<Error>>>);

impl Gate {
    pub(crate) fn open(&self) {
        let _ = self.0.set(None);
    }

    /// The operation could not be submitted, and whatever depends on it is not sent.
    pub(super) fn shut(&self, cause: &Error) {
        let _ = self.0.set(Some(cause.clone()));
    }

    /// Why the operation behind this gate must not be sent.
    pub(super) fn check(&self) -> Result<()> {
        let message = "the operation before it could not be submitted";
        match self.0.get() {
            Some(None) => Ok(()),
            Some(Some(cause)) => Err(Error::NotSent(Context::caused(message, cause.clone()))),
            None => Err(Error::NotSent(Context::new(message))),
        }
    }
}

impl Queue {
    /// Starts the worker. `next` is the first sequence number it gives out; `keep` is held by the
    /// queue and its handles: its session.
    pub(crate) fn start(
        training: &Arc<Training>,
        keep: Arc<dyn Any + Send + Sync>,
        model_id: ModelId,
        next: i32,
    ) -> Result<Arc<Self>> {
        let shared = Arc::new(Shared {
            training: training.clone(),
            model_id,
            backlog: Backlog::default(),
            broken: Mutex::new(None),
            open: Mutex::default(),
            worker: OnceLock::new(),
        });
        let mut worker = Worker {
            shared: shared.clone(),
            next,
        };
        training
            .background
            .spawn("tinker-train", move || worker.work())?;
        training.add(&shared);
        Ok(Arc::new(Self {
            shared,
            process: Process::current(),
            _keep: keep,
        }))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn model_id(&self) -> &ModelId {
        &self.shared.model_id
    }

    /// Makes the two ends of an operation of this queue.
    pub(crate) fn promise<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
    ) -> (Arc<Status>, Promise<T>, Pending<T>) {
        let status = Status::new(operation);
        let keep: Arc<dyn Any + Send + Sync> = self.clone();
        let (promise, pending) = promise(status.clone(), OnDrop::GoesOn, keep);
        let promise = promise.counted(&self.shared.training.results.outstanding, &status);
        self.ends_with(promise.aborter());
        (status, promise, pending)
    }

    /// Has an operation ended should the model's sequence break while it waits.
    pub(crate) fn ends_with(&self, aborter: Aborter) {
        let mut open = lock(&self.shared.open);
        if open.len() >= 64 && open.len().is_power_of_two() {
            open.retain(|is_open| is_open(None));
        }
        open.push(aborter);
    }

    /// Queues operations one after the other, with none of another caller between them.
    pub(crate) fn submit(&self, operations: Vec<Box<dyn Operation>>) -> Result<()> {
        self.shared.training.results.check_open()?;
        if let Some(error) = self.shared.broken() {
            return Err(error);
        }
        let refused = self.shared.backlog.push(operations);
        refused.map_err(|_| Error::Closed(Context::new("the training client was closed")))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let shared = &self.shared;
        if !self.process.is_this() {
            return;
        }
        shared.backlog.close();
        if shared.worker.get() == Some(&thread::current().id()) {
            // The worker itself drops the last handle: it sends the rest after this.
            return;
        }
        let results = &shared.training.results;
        let limit = results.config.close_timeout;
        // Nobody would take what is queued for a service that is not there.
        if !results.link.is_unreachable() {
            shared.drain(Clock::after(limit));
        }
        let left = shared.abandon();
        if left > 0 {
            log::warn!(
                "{left} operations of {} were not sent within {limit:?} and are given up",
                shared.model_id
            );
        }
    }
}

impl Shared {
    /// Waits until nothing is left to send or the time is up.
    pub(super) fn drain(&self, deadline: Instant) {
        let limit = deadline.saturating_duration_since(Instant::now());
        self.backlog.drain(limit);
    }

    /// Gives up what is left; how many operations that were.
    pub(super) fn abandon(&self) -> usize {
        self.backlog.abandon()
    }

    pub(super) fn halt(&self) {
        self.backlog.halt();
    }

    /// Why nothing more can be sent for this model.
    pub(super) fn broken(&self) -> Option<Error> {
        lock(&self.broken).clone()
    }

    /// Nothing more can be sent for this model: everyone is told at once.
    pub(super) fn break_down(&self, message: String, cause: &Error) -> Error {
        let mut context = *Context::caused(message, cause.clone());
        context.status = cause.status();
        context.request = cause.context().and_then(|inner| inner.request.clone());
        context.effect = Effect::Unknown;
        let error = Error::Broken(Box::new(context));
        log::error!("{error}");
        *lock(&self.broken) = Some(error.clone());
        let open = std::mem::take(&mut *lock(&self.open));
        for abort in open {
            abort(Some(error.clone()));
        }
        error
    }
}

/// The thread that submits.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    next: i32,
}

impl Worker {
    fn work(&mut self) {
        let shared = self.shared.clone();
        let _ = shared.worker.set(thread::current().id());
        while let Some(next) = shared.backlog.next() {
            match (next, shared.broken()) {
                (Next::Send(operation) | Next::GiveUp(operation), Some(error)) => {
                    operation.fail(error);
                }
                (Next::Send(operation), None) => self.run(operation),
                (Next::GiveUp(operation), None) => {
                    let message = "given up when the client closed";
                    operation.fail(Error::Closed(Context::new(message)));
                }
            }
            shared.backlog.done();
        }
    }

    /// A panic in one operation must not end the queue.
    fn run(&mut self, operation: Box<dyn Operation>) {
        let run = std::panic::AssertUnwindSafe(|| operation.run(self));
        if std::panic::catch_unwind(run).is_err() {
            log::error!("an operation of {} panicked", self.shared.model_id);
        }
    }

    /// The numbers of a call of `count` requests; an error if the model has run out of them.
    pub(crate) fn numbers(&self, count: usize) -> Result<std::ops::Range<i32>> {
        i32::try_from(count)
            .ok()
            .and_then(|count| self.next.checked_add(count))
            .map(|end| self.next..end)
            .ok_or_else(|| {
                let message = "this model has run out of sequence numbers";
                Error::Broken(Context::new(message))
            })
    }

    /// Settles what became of the numbered requests of one call, and fills holes with `fill`.
    /// An error if the model's sequence is broken.
    pub(crate) fn settle(
        &mut self,
        sent: &[Sent],
        cause: Option<&Error>,
        fill: impl Fn(i32) -> Result<()>,
    ) -> Result<()> {
        let unknown = Error::Internal(Context::new("unknown cause"));
        let shared = self.shared.clone();
        let break_down = |number: i32, cause: &Error| {
            let model = &shared.model_id;
            let message = format!(
                "request number {number} of {model} may or may not have taken effect, so nothing \
                 can follow it"
            );
            shared.break_down(message, cause)
        };
        match settle(self.next, sent) {
            Sequel::Broken { number } => Err(break_down(number, cause.unwrap_or(&unknown))),
            Sequel::Next { next, holes } => {
                for number in holes {
                    log::debug!("filling number {number} of {}", self.shared.model_id);
                    if let Err(error) = fill(number)
                        && classify(&error, Conflict::Number) != Sent::Accepted
                    {
                        return Err(break_down(number, &error));
                    }
                }
                if next > self.next {
                    shared.training.note_accepted(shared.model_id.as_str());
                }
                self.next = next;
                Ok(())
            }
        }
    }
}
