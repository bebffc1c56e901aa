//! `Pending<T>`: the join handle of every submitted operation.

mod outstanding;
mod promise;
mod status;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error::{Context, Effect, Error, Result};
use crate::runtime::deadline::Deadline;
use crate::sync::lock;
use crate::types::{QueueStatus, RequestId};

pub(crate) use self::outstanding::Outstanding;
pub(crate) use self::promise::{Aborter, OnDrop, Promise, promise};
pub(crate) use self::status::Status;

/// An operation under way: a join handle, like a thread's.
///
/// The operation goes on whether or not anyone waits, and its result is kept until it is taken.
/// A `Pending` also keeps its client's session running. Dropping the handle of a *sample* cancels
/// it on the service where that is supported; dropping the handle of a *training* operation
/// cancels nothing.
///
/// ```no_run
/// # fn example(training: tinker::TrainingClient, data: Vec<tinker::Datum>) -> tinker::Result<()> {
/// use std::time::Duration;
/// use tinker::{AdamParams, LossFn};
///
/// let step = training.forward_backward(&data, LossFn::CrossEntropy)?;
/// let optim = training.optim_step(AdamParams::default())?;
/// // Both are in flight. `None` means not yet: the handle stays usable, nothing is cancelled.
/// let output = loop {
///     match step.join_timeout(Duration::from_secs(60)) {
///         Some(result) => break result?,
///         None => eprintln!("waiting since {:?}: {:?}", step.age(), step.queue_state()),
///     }
/// };
/// optim.join()?;
/// # Ok(()) }
/// ```
#[must_use = "a dropped handle loses the result; call `join`"]
#[doc(alias = "APIFuture")]
pub struct Pending<T> {
    source: Box<dyn Source<T>>,
}

impl<T: Send + 'static> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// Whatever made the operation fail; see [`Error::remedy`].
    pub fn join(self) -> Result<T> {
        self.source
            .wait(Until::Done)
            .expect("waiting without a deadline ends with a result")
    }

    /// The result if it is there. `None` leaves the handle usable.
    ///
    /// After `Some` the result has been taken, and further calls give an error.
    pub fn try_join(&self) -> Option<Result<T>> {
        self.source.wait(Until::Now)
    }

    /// Waits at most `limit`. `None` leaves the handle usable and cancels nothing.
    pub fn join_timeout(&self, limit: Duration) -> Option<Result<T>> {
        match Instant::now().checked_add(limit) {
            Some(deadline) => self.source.wait(Until::At(deadline)),
            None => self.source.wait(Until::Done),
        }
    }

    /// Waits at most `limit`, with an error when it runs out. The operation and this handle live
    /// on: join again, or later.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the result is not there in time, with the request's id and what the
    /// service last said about its queue, or without effect if it was not even sent. Its remedy is
    /// to wait, never to submit a training operation again.
    pub fn join_within(&self, limit: Duration) -> Result<T> {
        self.join_timeout(limit).unwrap_or_else(|| {
            let queue = match (self.queue_state(), self.trouble()) {
                (_, Some(trouble)) => format!("; its polls fail: {}", trouble.reason),
                (Some(queue), None) => format!("; its queue is {}", queue.state),
                (None, None) => String::new(),
            };
            let effect = self.source.status().effect();
            let what = match effect {
                Effect::None => "not yet sent",
                _ => "not done",
            };
            let message = format!("{what} {:?} after it was submitted{queue}", self.age());
            let mut context = *Context::new(message);
            context.request = Some(self.operation().to_owned());
            context.request_id = self.request_id().map(Into::into);
            context.effect = effect;
            context.under_way = true;
            context.idempotent = matches!(self.operation(), "sample" | "forward");
            Err(Error::Timeout(Box::new(context)))
        })
    }

    /// Waits until the deadline of the blocking call on this thread, if it has one.
    pub(crate) fn join_in_call(self) -> Result<T> {
        match Deadline::left() {
            Some(limit) => self.join_within(limit),
            None => self.join(),
        }
    }

    /// Applies `f` to the result, on the thread that joins.
    pub fn map<U, F>(self, f: F) -> Pending<U>
    where
        U: Send + 'static,
        F: FnOnce(T) -> U + Send + 'static,
    {
        self.and_then(|value| Ok(f(value)))
    }

    /// Applies `f`, which may fail, to the result, on the thread that joins.
    pub fn and_then<U, F>(self, f: F) -> Pending<U>
    where
        U: Send + 'static,
        F: FnOnce(T) -> Result<U> + Send + 'static,
    {
        Pending {
            source: Box::new(Mapped {
                inner: self,
                f: Mutex::new(Some(f)),
            }),
        }
    }
}

impl<T> Pending<T> {
    /// Sends `index` when the result is there.
    pub(crate) fn notify(&self, sender: Sender<usize>, index: usize) {
        self.source.watch(Watcher::Channel { sender, index });
    }

    /// Calls `callback` when the result is there, which may be at once: to wake an event loop,
    /// say. It runs on whichever thread brought the result, so it should be brief; a panic in it
    /// is caught.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient) -> tinker::Result<()> {
    /// let (sender, ready) = std::sync::mpsc::channel();
    /// let optim = training.optim_step(tinker::AdamParams::default())?;
    /// optim.on_ready(move || drop(sender.send("optim_step")));
    /// # let _ = ready; optim.join()?; Ok(()) }
    /// ```
    pub fn on_ready(&self, callback: impl FnOnce() + Send + 'static) {
        self.source.watch(Watcher::Call(Box::new(callback)));
    }

    /// Gives a sample up: whoever joins it gets [`Error::Cancelled`], and it is cancelled on the
    /// service where that is supported. False for what is done already, and for operations of a
    /// model, which cannot be taken back.
    pub fn cancel(&self) -> bool {
        self.source.cancel()
    }

    /// Whether the result is there, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.source.is_finished()
    }

    /// What was asked for, such as `optim_step`.
    pub fn operation(&self) -> &'static str {
        self.source.status().operation()
    }

    /// The id the service gave the request, once it was accepted.
    pub fn request_id(&self) -> Option<RequestId> {
        self.source.status().request_id()
    }

    /// The ids of all requests of the operation that were accepted so far: one for each chunk of
    /// a large `forward_backward`. Each can be taken up again by
    /// [`TrainingClient::attach`](crate::TrainingClient::attach).
    pub fn request_ids(&self) -> Vec<RequestId> {
        self.source.status().request_ids()
    }

    /// Since when, and why, the service cannot be asked for the result. The operation goes on
    /// there meanwhile; asking for it does too.
    pub fn trouble(&self) -> Option<Trouble> {
        let (since, reason) = self.source.status().trouble()?;
        Some(Trouble {
            lasting: Instant::now().saturating_duration_since(since),
            reason,
        })
    }

    /// How long ago the operation was submitted.
    pub fn age(&self) -> Duration {
        self.source.status().age()
    }

    /// What the service last said about the queue the request waits in.
    pub fn queue_state(&self) -> Option<QueueStatus> {
        self.source.status().queue_state()
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("operation", &self.operation())
            .field("request_id", &self.request_id())
            .field("age", &self.age())
            .field("finished", &self.is_finished())
            .finish()
    }
}

/// Waits for all, in order; one failure does not hide the others.
///
/// ```no_run
/// # fn main() -> tinker::Result<()> {
/// # let steps: Vec<tinker::Pending<tinker::OptimStepResponse>> = vec![];
/// let results: tinker::Result<Vec<_>> = tinker::join_all(steps).into_iter().collect();
/// # results?; Ok(()) }
/// ```
pub fn join_all<T: Send + 'static>(
    pendings: impl IntoIterator<Item = Pending<T>>,
) -> Vec<Result<T>> {
    pendings.into_iter().map(Pending::join).collect()
}

/// The results in the order in which they arrive, each with its position in the input.
///
/// Dropping the iterator drops the handles that are left.
///
/// ```no_run
/// # let samples: Vec<tinker::Pending<tinker::SampleResponse>> = vec![];
/// for (index, result) in tinker::as_completed(samples) {
///     println!("{index}: {result:?}");
/// }
/// ```
pub fn as_completed<T: Send + 'static>(
    pendings: impl IntoIterator<Item = Pending<T>>,
) -> AsCompleted<T> {
    let (sender, done) = unbounded();
    let pendings: Vec<_> = pendings
        .into_iter()
        .enumerate()
        .map(|(index, pending)| {
            pending.notify(sender.clone(), index);
            Some(pending)
        })
        .collect();
    AsCompleted { pendings, done }
}

/// The iterator of [`as_completed`].
#[derive(Debug)]
pub struct AsCompleted<T> {
    pendings: Vec<Option<Pending<T>>>,
    done: Receiver<usize>,
}

impl<T: Send + 'static> Iterator for AsCompleted<T> {
    type Item = (usize, Result<T>);

    fn next(&mut self) -> Option<Self::Item> {
        // Each slot reports once, so the senders run out when the last result was taken.
        let index = self.done.recv().ok()?;
        let pending = self.pendings[index].take()?;
        Some((index, pending.join()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.pendings.iter().flatten().count();
        (left, Some(left))
    }
}

/// Why the result of an operation cannot be asked for at present: see [`Pending::trouble`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trouble {
    /// For how long every poll has failed.
    pub lasting: Duration,
    /// Why the last one did.
    pub reason: String,
}

pub(crate) enum Until {
    Now,
    At(Instant),
    Done,
}

/// Someone who wants to hear that a result is there.
pub(crate) enum Watcher {
    Channel { sender: Sender<usize>, index: usize },
    Call(Box<dyn FnOnce() + Send>),
}

impl Watcher {
    fn tell(self) {
        match self {
            // The iterator may be gone; then nobody needs to know.
            Self::Channel { sender, index } => drop(sender.send(index)),
            Self::Call(call) => {
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    log::error!("a callback for a finished operation panicked; the client goes on");
                }
            }
        }
    }
}

trait Source<T>: Send + Sync {
    fn wait(&self, until: Until) -> Option<Result<T>>;
    fn is_finished(&self) -> bool;
    fn status(&self) -> &Status;
    fn watch(&self, watcher: Watcher);
    fn cancel(&self) -> bool;
}

struct Mapped<T, F> {
    inner: Pending<T>,
    f: Mutex<Option<F>>,
}

impl<T, U, F> Source<U> for Mapped<T, F>
where
    T: Send + 'static,
    F: FnOnce(T) -> Result<U> + Send,
{
    fn wait(&self, until: Until) -> Option<Result<U>> {
        let value = match self.inner.source.wait(until)? {
            Ok(value) => value,
            Err(error) => return Some(Err(error)),
        };
        let f = lock(&self.f).take();
        let f = f.expect("the inner handle gives its value once");
        Some(f(value))
    }

    fn is_finished(&self) -> bool {
        self.inner.is_finished()
    }

    fn status(&self) -> &Status {
        self.inner.source.status()
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.source.watch(watcher);
    }

    fn cancel(&self) -> bool {
        self.inner.source.cancel()
    }
}

#[cfg(test)]
mod tests;
