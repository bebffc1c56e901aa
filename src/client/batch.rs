//! Any number of samples: [`Samples`], into which requests are pushed, and [`SampleBatch`], which
//! pulls them from an iterator.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Fuse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::parallel::ParallelMap;
use super::sampling::SamplingClient;
use crate::error::Result;
use crate::runtime::pending::Pending;
use crate::runtime::sampling::{Arrival, Patience, SamplingProgress};
use crate::types::{SampleRequest, SampleResponse};

type Hook = Box<dyn FnMut(SamplingProgress) + Send>;

/// How a request of a batch is submitted.
pub(super) type Submit<T> = fn(&SamplingClient, SampleRequest) -> Result<Pending<T>>;

/// Samples under way, each with a tag of yours: push requests, take results as they arrive.
///
/// For programs whose next request depends on results, such as a conversation: nothing is pulled,
/// so nothing can wait for itself. [`sample_batch`](SamplingClient::sample_batch) is shorter where
/// the requests are known beforehand. Dropping it cancels what is under way.
///
/// ```
/// # fn main() -> tinker::Result<()> {
/// # use tinker::{ModelInput, SampleRequest, SamplingParams, ServiceClient};
/// # let service = ServiceClient::local()?;
/// let sampler = service.create_sampling_client("tinker-local/tiny")?;
/// let mut turns = sampler.samples();
/// for game in ["one", "two"] {
///     turns.push((game, 1), SampleRequest::new(ModelInput::from_ints(vec![7]), SamplingParams::max_tokens(4)));
/// }
/// while let Some(((game, turn), result)) = turns.next() {
///     let said = result?.sequences.remove(0).tokens;
///     if turn < 3 {
///         let prompt = ModelInput::from_ints(said);
///         turns.push((game, turn + 1), SampleRequest::new(prompt, SamplingParams::max_tokens(4)));
///     }
/// }
/// # Ok(()) }
/// ```
#[must_use = "results that nobody takes are lost"]
pub struct Samples<K, T = SampleResponse> {
    client: SamplingClient,
    submit: Submit<T>,
    in_order: bool,
    pushed: usize,
    open: BTreeMap<usize, (K, Pending<T>)>,
    ready: BTreeMap<usize, (K, Result<T>)>,
    sender: Sender<usize>,
    done: Receiver<usize>,
    hook: Option<Hook>,
}

impl<K, T: Send + 'static> Samples<K, T> {
    pub(super) fn new(client: SamplingClient, submit: Submit<T>) -> Self {
        let (sender, done) = unbounded();
        Self {
            client,
            submit,
            in_order: false,
            pushed: 0,
            open: BTreeMap::new(),
            ready: BTreeMap::new(),
            sender,
            done,
            hook: None,
        }
    }

    /// Gives the results in the order of the requests, from the next one on.
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Calls `hook` with the sampler's progress; see [`SampleBatch::on_progress`].
    pub fn on_progress(mut self, hook: impl FnMut(SamplingProgress) + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Submits a request. Never waits for the network; a request that cannot be submitted is a
    /// result like any other.
    pub fn push(&mut self, tag: K, request: SampleRequest) {
        let index = self.pushed;
        self.pushed += 1;
        match (self.submit)(&self.client, request) {
            Ok(pending) => {
                pending.notify(self.sender.clone(), index);
                self.open.insert(index, (tag, pending));
            }
            Err(error) => {
                self.ready.insert(index, (tag, Err(error)));
            }
        }
    }

    /// How many were pushed and not yet taken.
    pub fn len(&self) -> usize {
        self.open.len() + self.ready.len()
    }

    /// Whether everything that was pushed was taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next result, if it is there.
    pub fn try_next(&mut self) -> Option<(K, Result<T>)> {
        while let Ok(index) = self.done.try_recv() {
            self.arrived(index);
        }
        self.take_ready()
    }

    /// Waits at most `limit` for the next result. `None` if there was none in time, and at once if
    /// nothing is under way.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<(K, Result<T>)> {
        self.wait(&Patience::at_most(limit))
    }

    fn wait(&mut self, patience: &Patience) -> Option<(K, Result<T>)> {
        loop {
            if let Some(item) = self.try_next() {
                return Some(item);
            }
            if self.open.is_empty() {
                return None;
            }
            match patience.arrival(&self.done, self.has_hook()) {
                Arrival::Result(index) => self.arrived(index),
                Arrival::Tick => self.report(),
                Arrival::TimedOut => return None,
            }
        }
    }

    /// Where the numbers of results appear that have arrived, for [`arrived`](Self::arrived).
    pub(super) fn arrivals(&self) -> &Receiver<usize> {
        &self.done
    }

    /// Hands work to the client's pool.
    pub(super) fn work(&self, work: impl FnOnce() + Send + 'static) {
        self.client.work(work);
    }

    pub(super) fn arrived(&mut self, index: usize) {
        if let Some((tag, pending)) = self.open.remove(&index) {
            self.ready.insert(index, (tag, pending.join()));
        }
    }

    fn take_ready(&mut self) -> Option<(K, Result<T>)> {
        let first = self.ready.first_entry()?;
        let before = self.open.keys().next();
        if self.in_order && before.is_some_and(|before| before < first.key()) {
            return None;
        }
        let item = first.remove();
        self.report();
        Some(item)
    }

    /// Whether progress is to be reported while nothing arrives.
    pub(super) fn has_hook(&self) -> bool {
        self.hook.is_some()
    }

    pub(super) fn report(&mut self) {
        let Some(hook) = &mut self.hook else {
            return;
        };
        let progress = self.client.progress();
        if catch_unwind(AssertUnwindSafe(|| hook(progress))).is_err() {
            log::error!("the progress hook panicked; the batch goes on without it");
            self.hook = None;
        }
    }

    /// Cancels what is under way and forgets what has arrived.
    fn clear(&mut self) {
        self.open.clear();
        self.ready.clear();
    }
}

/// Waits for the next result; `None` when nothing is under way, which a further push may change.
impl<K, T: Send + 'static> Iterator for Samples<K, T> {
    type Item = (K, Result<T>);

    fn next(&mut self) -> Option<Self::Item> {
        self.wait(&Patience::unlimited())
    }
}

impl<K, T> fmt::Debug for Samples<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Samples")
            .field("pushed", &self.pushed)
            .field("under_way", &self.open.len())
            .finish_non_exhaustive()
    }
}

/// The results of a batch, each with its request's tag, in the order in which they arrive.
///
/// A result that is there is given before the next request is pulled; requests are pulled only as
/// the window has room, on the thread that calls `next`. An item counts from being pulled until it
/// is taken from here, so a million prompts need the memory of one window. A request that fails
/// is an item, not the end. Dropping the batch cancels what is under way.
///
/// The input may look at results that were taken before, but must not wait for ones that are to
/// come: `next` would wait for the input. [`Samples`] is for that.
#[must_use = "a batch does nothing until it is iterated"]
pub struct SampleBatch<I: Iterator<Item = (K, SampleRequest)>, K = usize, T = SampleResponse> {
    input: Fuse<I>,
    pub(super) samples: Samples<K, T>,
    window: usize,
    keeps_full: bool,
    ends_at_error: bool,
    /// Results given to [`map_parallel`](Self::map_parallel) and not yet taken from there.
    pub(super) at_work: usize,
    /// Whether one was taken for which none has been pulled.
    owes: bool,
    ended: bool,
}

impl<I: Iterator<Item = (K, SampleRequest)>, K, T: Send + 'static> SampleBatch<I, K, T> {
    pub(super) fn new(samples: Samples<K, T>, input: I) -> Self {
        Self {
            input: input.fuse(),
            samples,
            window: 1_000,
            keeps_full: false,
            ends_at_error: false,
            at_work: 0,
            owes: false,
            ended: false,
        }
    }

    /// Gives the results in the order of the requests. One slow sample then holds back those
    /// after it, which stay in the window.
    pub fn in_order(mut self) -> Self {
        self.samples = self.samples.in_order();
        self
    }

    /// Sets how many items may be between being pulled and being taken; at least 1. Default:
    /// 1000.
    pub fn with_window(mut self, items: usize) -> Self {
        self.window = items.max(1);
        self
    }

    /// Pulls a request for every result taken, before the next result is given: the service stays
    /// busy while this program works on results that have piled up. For inputs that are at hand,
    /// such as a list.
    pub fn keep_full(mut self) -> Self {
        self.keeps_full = true;
        self
    }

    /// Ends with the first error that submitting the same request again would not heal: a wrong
    /// key, a bad prompt. That error is the last item; what is under way is cancelled.
    pub fn end_at_error(mut self) -> Self {
        self.ends_at_error = true;
        self
    }

    /// Calls `hook` with the sampler's progress, to draw a bar: with every result, and ten times a
    /// second while none arrives. It runs on the thread that iterates; if it panics, the batch
    /// goes on without it.
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient, requests: Vec<tinker::SampleRequest>) {
    /// let bar = indicatif::ProgressBar::new(requests.len() as u64);
    /// let results = sampler.sample_batch(requests).on_progress(move |progress| {
    ///     bar.set_position(progress.succeeded + progress.failed);
    ///     bar.set_message(format!("{:.0} tokens/s", progress.tokens_per_second));
    /// });
    /// for (index, result) in results {
    ///     println!("{index}: {result:?}");
    /// }
    /// # }
    /// ```
    pub fn on_progress(mut self, hook: impl FnMut(SamplingProgress) + Send + 'static) -> Self {
        self.samples = self.samples.on_progress(hook);
        self
    }

    /// Does work of yours on every result, on the client's pool of threads for the processor,
    /// while further results arrive: decode, parse, grade. The items come in the order in which
    /// the batch would give its results; a slow one holds back those after it.
    ///
    /// An item counts to the [window](Self::with_window) until it is taken from here, so memory
    /// stays bounded. Work that panics is an error of its item. The pool is also the one that
    /// decodes answers: give it work for the processor, nothing that waits.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// # use tinker::{ModelInput, SampleRequest, SamplingParams, ServiceClient};
    /// # let service = ServiceClient::local()?;
    /// let sampler = service.create_sampling_client("tinker-local/tiny")?;
    /// let tokenizer = sampler.tokenizer()?;
    /// let prompts = (0..8).map(|token| ModelInput::from_ints(vec![token]));
    /// let requests = prompts.map(|prompt| SampleRequest::new(prompt, SamplingParams::max_tokens(4)));
    /// let texts = sampler.sample_batch(requests).in_order().map_parallel(move |response| {
    ///     tokenizer.decode(&response.sequences[0].tokens)
    /// });
    /// for (index, text) in texts {
    ///     println!("{index}: {}", text??);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn map_parallel<R, F>(self, work: F) -> ParallelMap<I, K, T, R>
    where
        R: Send + 'static,
        F: Fn(T) -> R + Send + Sync + 'static,
    {
        ParallelMap::new(self, work)
    }

    /// Waits at most `limit` for the next result. `None` leaves the batch usable: either nothing
    /// came in time or, if [`is_done`](Self::is_done), nothing will.
    pub fn next_timeout(&mut self, limit: Duration) -> Option<(K, Result<T>)> {
        self.wait(&Patience::at_most(limit))
    }

    /// Whether the last result was taken.
    pub fn is_done(&self) -> bool {
        self.ended
    }

    /// The next result that is there, after pulling as many requests as the window has room for.
    pub(super) fn ready(&mut self) -> Option<(K, Result<T>)> {
        if self.owes && self.keeps_full {
            self.pull();
        }
        loop {
            if let Some(item) = self.samples.try_next() {
                return Some(self.give(item));
            }
            if !self.pull() {
                return None;
            }
        }
    }

    fn wait(&mut self, patience: &Patience) -> Option<(K, Result<T>)> {
        if let Some(item) = self.ready() {
            return Some(item);
        }
        match self.samples.wait(patience) {
            Some(item) => Some(self.give(item)),
            None => {
                self.ended |= self.samples.is_empty();
                None
            }
        }
    }

    fn give(&mut self, item: (K, Result<T>)) -> (K, Result<T>) {
        self.owes = true;
        if let Err(error) = &item.1
            && self.ends_at_error
            && !error.is_retryable()
        {
            self.ended = true;
            self.samples.clear();
        }
        item
    }

    /// Submits the next request; false if the window is full or the input at its end.
    fn pull(&mut self) -> bool {
        if self.ended || self.samples.len() + self.at_work >= self.window {
            return false;
        }
        let Some((tag, request)) = self.input.next() else {
            return false;
        };
        self.owes = false;
        self.samples.push(tag, request);
        true
    }
}

impl<I: Iterator<Item = (K, SampleRequest)>, K, T: Send + 'static> Iterator
    for SampleBatch<I, K, T>
{
    type Item = (K, Result<T>);

    fn next(&mut self) -> Option<Self::Item> {
        self.wait(&Patience::unlimited())
    }
}

impl<I: Iterator<Item = (K, SampleRequest)>, K, T> fmt::Debug for SampleBatch<I, K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampleBatch")
            .field("samples", &self.samples)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
