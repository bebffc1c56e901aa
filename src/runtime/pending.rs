//! `Pending<T>`: the join handle of every submitted operation.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::clock::lock;
use crate::error::{Context, Error, Result};
use crate::types::QueueStatus;

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
/// let mut step = training.forward_backward(&data, LossFn::CrossEntropy)?;
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
pub struct Pending<T> {
    source: Box<dyn Source<T>>,
}

impl<T: Send + 'static> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// Whatever made the operation fail; see [`Error::remedy`].
    pub fn join(mut self) -> Result<T> {
        self.source
            .wait(Until::Done)
            .expect("waiting without a deadline ends with a result")
    }

    /// The result if it is there. `None` leaves the handle usable.
    ///
    /// After `Some` the result has been taken, and further calls give an error.
    pub fn try_join(&mut self) -> Option<Result<T>> {
        self.source.wait(Until::Now)
    }

    /// Waits at most `limit`. `None` leaves the handle usable and cancels nothing.
    pub fn join_timeout(&mut self, limit: Duration) -> Option<Result<T>> {
        match Instant::now().checked_add(limit) {
            Some(deadline) => self.source.wait(Until::At(deadline)),
            None => self.source.wait(Until::Done),
        }
    }

    /// Waits at most `limit`, then gives up: dropping the handle cancels a sample.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the result is not there in time, with the request's id and what the
    /// service last said about its queue.
    pub fn join_within(mut self, limit: Duration) -> Result<T> {
        self.join_timeout(limit).unwrap_or_else(|| {
            let queue = match self.queue_state() {
                Some(queue) => format!("; its queue is {}", queue.state),
                None => String::new(),
            };
            let message = format!("not done {:?} after it was submitted{queue}", self.age());
            let mut context = *Context::new(message);
            context.request = Some(self.operation().to_owned());
            context.request_id = self.request_id();
            Err(Error::Timeout(Box::new(context)))
        })
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
                f: Some(f),
            }),
        }
    }
}

impl<T> Pending<T> {
    /// Sends `index` when the result is there.
    pub(crate) fn notify(&self, sender: Sender<usize>, index: usize) {
        self.source.watch(Watcher { sender, index });
    }

    /// Whether the result is there, so that `join` would not wait.
    pub fn is_finished(&self) -> bool {
        self.source.is_finished()
    }

    /// What was asked for, such as `optim_step`.
    pub fn operation(&self) -> &'static str {
        self.source.status().operation
    }

    /// The id the service gave the request, once it was accepted.
    pub fn request_id(&self) -> Option<String> {
        self.source.status().request_id()
    }

    /// How long ago the operation was submitted.
    pub fn age(&self) -> Duration {
        self.source.status().started.elapsed()
    }

    /// What the service last said about the queue the request waits in.
    pub fn queue_state(&self) -> Option<QueueStatus> {
        lock(&self.source.status().progress)
            .queue
            .as_deref()
            .cloned()
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

pub(crate) enum Until {
    Now,
    At(Instant),
    Done,
}

/// Someone who wants to hear that a result is there.
pub(crate) struct Watcher {
    sender: Sender<usize>,
    index: usize,
}

trait Source<T>: Send {
    fn wait(&mut self, until: Until) -> Option<Result<T>>;
    fn is_finished(&self) -> bool;
    fn status(&self) -> &Status;
    fn watch(&self, watcher: Watcher);
}

/// What is known about an operation while it runs; shared by its handle and whoever works on it.
pub(crate) struct Status {
    operation: &'static str,
    started: Instant,
    progress: Mutex<Progress>,
    cancel: Mutex<Cancel>,
}

#[derive(Default)]
struct Progress {
    request_id: Option<String>,
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

    pub(crate) fn accepted(&self, request_id: &str) {
        lock(&self.progress).request_id = Some(request_id.to_owned());
    }

    pub(crate) fn request_id(&self) -> Option<String> {
        lock(&self.progress).request_id.clone()
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

/// What happens to an operation whose handle is dropped before its result was there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    GoesOn,
    Cancels,
}

/// Makes the two ends of an operation. `keep` is held by the handle: its session.
pub(crate) fn promise<T: Send + 'static>(
    status: Arc<Status>,
    on_drop: OnDrop,
    keep: Arc<dyn Any + Send + Sync>,
) -> (Promise<T>, Pending<T>) {
    let slot = Arc::new(Slot {
        state: Mutex::new(State {
            result: None,
            done: false,
            watchers: Vec::new(),
        }),
        ready: Condvar::new(),
    });
    let promise = Promise {
        slot: Some(slot.clone()),
        operation: status.operation,
    };
    let handle = Handle {
        slot,
        status,
        on_drop,
        _keep: keep,
    };
    (
        promise,
        Pending {
            source: Box::new(handle),
        },
    )
}

/// Ends an operation with an error, or asks with `None` whether it is still open.
pub(crate) type Aborter = Box<dyn Fn(Option<Error>) -> bool + Send + Sync>;

/// The working end. Dropping it unresolved resolves it with an error, so that nobody waits for
/// ever for something that was given up.
pub(crate) struct Promise<T> {
    slot: Option<Arc<Slot<T>>>,
    operation: &'static str,
}

impl<T: Send + 'static> Promise<T> {
    /// A way for someone else to end the operation early. Returns whether it was still open.
    pub(crate) fn aborter(&self) -> Aborter {
        let slot = self.slot.as_ref().map(Arc::downgrade);
        Box::new(move |error| {
            let Some(slot) = slot.as_ref().and_then(Weak::upgrade) else {
                return false;
            };
            let open = !lock(&slot.state).done;
            if let (true, Some(error)) = (open, error) {
                slot.resolve(Err(error));
            }
            open
        })
    }
}

impl<T> Promise<T> {
    pub(crate) fn resolve(mut self, result: Result<T>) {
        if let Some(slot) = self.slot.take() {
            slot.resolve(result);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let error = if std::thread::panicking() {
                Error::Internal(Context::new("a thread panicked while it worked on this"))
            } else {
                Error::Closed(Context::new("the client was closed before this was done"))
            };
            slot.resolve(Err(error.for_request(self.operation)));
        }
    }
}

struct Slot<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

struct State<T> {
    /// Boxed: thousands of slots wait empty.
    result: Option<Box<Result<T>>>,
    done: bool,
    watchers: Vec<Watcher>,
}

impl<T> Slot<T> {
    fn resolve(&self, result: Result<T>) {
        let mut state = lock(&self.state);
        if state.done {
            return;
        }
        state.result = Some(Box::new(result));
        state.done = true;
        let watchers = std::mem::take(&mut state.watchers);
        drop(state);
        self.ready.notify_all();
        for watcher in watchers {
            // The iterator may be gone; then nobody needs to know.
            let _ = watcher.sender.send(watcher.index);
        }
    }
}

struct Handle<T> {
    slot: Arc<Slot<T>>,
    status: Arc<Status>,
    on_drop: OnDrop,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl<T: Send> Source<T> for Handle<T> {
    fn wait(&mut self, until: Until) -> Option<Result<T>> {
        let state = lock(&self.slot.state);
        let mut state = match until {
            Until::Now => state,
            Until::Done => self
                .slot
                .ready
                .wait_while(state, |state| !state.done)
                .unwrap_or_else(PoisonError::into_inner),
            Until::At(deadline) => {
                let limit = deadline.saturating_duration_since(Instant::now());
                self.slot
                    .ready
                    .wait_timeout_while(state, limit, |state| !state.done)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        if !state.done {
            return None;
        }
        let taken = || {
            let message = "the result was already taken from this handle";
            Err(Error::Internal(Context::new(message)).for_request(self.status.operation))
        };
        Some(state.result.take().map_or_else(taken, |result| *result))
    }

    fn is_finished(&self) -> bool {
        lock(&self.slot.state).done
    }

    fn status(&self) -> &Status {
        &self.status
    }

    fn watch(&self, watcher: Watcher) {
        let mut state = lock(&self.slot.state);
        if state.done {
            drop(state);
            let _ = watcher.sender.send(watcher.index);
        } else {
            // Hardly ever more than one, and thousands may wait.
            state.watchers.reserve_exact(1);
            state.watchers.push(watcher);
        }
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Cancels && !lock(&self.slot.state).done {
            self.status.cancel();
        }
    }
}

struct Mapped<T, F> {
    inner: Pending<T>,
    f: Option<F>,
}

impl<T, U, F> Source<U> for Mapped<T, F>
where
    T: Send + 'static,
    F: FnOnce(T) -> Result<U> + Send,
{
    fn wait(&mut self, until: Until) -> Option<Result<U>> {
        let value = match self.inner.source.wait(until)? {
            Ok(value) => value,
            Err(error) => return Some(Err(error)),
        };
        let f = self
            .f
            .take()
            .expect("the inner handle gives its value once");
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    fn pair(on_drop: OnDrop) -> (Promise<i32>, Pending<i32>, Arc<Status>) {
        let status = Status::new("test");
        let (promise, pending) = promise(status.clone(), on_drop, Arc::new(()));
        (promise, pending, status)
    }

    #[test]
    fn joins_from_another_thread() {
        let (promise, pending, _) = pair(OnDrop::GoesOn);
        let joiner = thread::spawn(move || pending.map(|n| n + 1).join());
        promise.resolve(Ok(41));
        assert_eq!(joiner.join().unwrap().unwrap(), 42);
    }

    #[test]
    fn none_leaves_the_handle_usable_and_some_takes_the_result() {
        let (promise, mut pending, status) = pair(OnDrop::Cancels);
        assert!(pending.try_join().is_none());
        assert!(pending.join_timeout(Duration::ZERO).is_none());
        assert!(!pending.is_finished() && !status.is_cancelled());
        promise.resolve(Ok(1));
        assert!(pending.is_finished());
        assert_eq!(pending.try_join().unwrap().unwrap(), 1);
        assert!(matches!(pending.try_join(), Some(Err(Error::Internal(_)))));
    }

    #[test]
    fn a_dropped_promise_is_an_error_not_a_hang() {
        let (promise, pending, _) = pair(OnDrop::GoesOn);
        drop(promise);
        assert!(matches!(pending.join(), Err(Error::Closed(_))));
        let (promise, pending, _) = pair(OnDrop::GoesOn);
        let worker = thread::spawn(move || {
            let _promise = promise;
            panic!("on purpose");
        });
        assert!(worker.join().is_err());
        assert!(matches!(pending.join(), Err(Error::Internal(_))));
    }

    #[test]
    fn dropping_cancels_only_where_that_is_meant_and_only_before_the_result() {
        let (_promise, pending, status) = pair(OnDrop::GoesOn);
        drop(pending);
        assert!(!status.is_cancelled());

        let (_promise, pending, status) = pair(OnDrop::Cancels);
        let early = Arc::new(AtomicBool::new(false));
        let seen = early.clone();
        status.on_cancel(move || seen.store(true, Ordering::SeqCst));
        drop(pending.map(|n| n));
        assert!(status.is_cancelled() && early.load(Ordering::SeqCst));
        let late = Arc::new(AtomicBool::new(false));
        let seen = late.clone();
        status.on_cancel(move || seen.store(true, Ordering::SeqCst));
        assert!(late.load(Ordering::SeqCst));

        let (promise, pending, status) = pair(OnDrop::Cancels);
        promise.resolve(Ok(1));
        drop(pending);
        assert!(!status.is_cancelled());
    }

    #[test]
    fn completed_come_in_the_order_of_completion() {
        let (first, one, _) = pair(OnDrop::GoesOn);
        let (second, two, _) = pair(OnDrop::GoesOn);
        let (third, three, _) = pair(OnDrop::GoesOn);
        third.resolve(Ok(3));
        let mut results = as_completed([one, two, three.map(|n| n * 10)]);
        assert_eq!(results.size_hint(), (3, Some(3)));
        let mut next = || results.next().map(|(index, result)| (index, result.ok()));
        assert_eq!(next(), Some((2, Some(30))));
        second.resolve(Err(Error::invalid("x", "y")));
        assert_eq!(next(), Some((1, None)));
        first.resolve(Ok(1));
        assert_eq!(next(), Some((0, Some(1))));
        assert_eq!(next(), None);
    }

    #[test]
    fn join_all_keeps_the_order_and_every_error() {
        let (first, one, _) = pair(OnDrop::GoesOn);
        let (second, two, _) = pair(OnDrop::GoesOn);
        second.resolve(Ok(2));
        first.resolve(Err(Error::invalid("x", "y")));
        let results = join_all([one, two]);
        assert!(results[0].is_err());
        assert_eq!(*results[1].as_ref().unwrap(), 2);
    }
}
