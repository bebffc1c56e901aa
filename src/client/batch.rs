//! `SampleBatch`: any number of samples, with a window over them.

use std::collections::{BTreeMap, HashMap};
use std::iter::Fuse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::sampling::SamplingClient;
use crate::error::Result;
use crate::runtime::pending::Pending;
use crate::runtime::sampling::{SamplingProgress, arrival};
use crate::types::{SampleRequest, SampleResponse};

type Hook = Box<dyn FnMut(SamplingProgress) + Send>;

/// The results of a batch, each with its request's position, in the order in which they arrive.
///
/// Requests are pulled from the input only as the window has room, on the thread that calls
/// `next`; an item counts from being pulled until it is taken from here. So a million prompts
/// need the memory of one window. A request that fails is an item, not the end. Dropping the
/// batch cancels what is under way.
#[must_use = "a batch does nothing until it is iterated"]
pub struct SampleBatch<I: Iterator<Item = SampleRequest>> {
    client: SamplingClient,
    input: Fuse<I>,
    window: usize,
    in_order: bool,
    pulled: usize,
    taken: usize,
    open: HashMap<usize, Pending<SampleResponse>>,
    ready: BTreeMap<usize, Result<SampleResponse>>,
    sender: Sender<usize>,
    done: Receiver<usize>,
    hook: Option<Hook>,
}

impl<I: Iterator<Item = SampleRequest>> SampleBatch<I> {
    pub(super) fn new(client: SamplingClient, input: I) -> Self {
        let (sender, done) = unbounded();
        Self {
            client,
            input: input.fuse(),
            window: 1_000,
            in_order: false,
            pulled: 0,
            taken: 0,
            open: HashMap::new(),
            ready: BTreeMap::new(),
            sender,
            done,
            hook: None,
        }
    }

    /// Gives the results in the order of the requests. One slow sample then holds back those
    /// after it, which stay in the window.
    pub fn in_order(mut self) -> Self {
        self.in_order = true;
        self
    }

    /// Sets how many items may be between being pulled and being taken; at least 1. Default:
    /// 1000.
    pub fn with_window(mut self, items: usize) -> Self {
        self.window = items.max(1);
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
        self.hook = Some(Box::new(hook));
        self
    }

    fn fill(&mut self) {
        while self.open.len() + self.ready.len() < self.window {
            let Some(request) = self.input.next() else {
                return;
            };
            let index = self.pulled;
            self.pulled += 1;
            match self.client.submit_sample(&request.prompt, request.options) {
                Ok(pending) => {
                    pending.notify(self.sender.clone(), index);
                    self.open.insert(index, pending);
                }
                Err(error) => {
                    self.ready.insert(index, Err(error));
                }
            }
        }
    }

    fn take_ready(&mut self) -> Option<(usize, Result<SampleResponse>)> {
        let (&first, _) = self.ready.first_key_value()?;
        if self.in_order && first != self.taken {
            return None;
        }
        self.taken += 1;
        self.ready.pop_first()
    }

    /// Waits for a result; the hook hears how things stand meanwhile.
    fn wait(&mut self) -> usize {
        while self.hook.is_some() {
            if let Some(index) = arrival(&self.done) {
                return index;
            }
            self.report();
        }
        self.done.recv().expect("the batch holds a sender itself")
    }

    fn report(&mut self) {
        let Some(hook) = &mut self.hook else {
            return;
        };
        let progress = self.client.progress();
        if catch_unwind(AssertUnwindSafe(|| hook(progress))).is_err() {
            log::error!("the progress hook panicked; the batch goes on without it");
            self.hook = None;
        }
    }
}

impl<I: Iterator<Item = SampleRequest>> Iterator for SampleBatch<I> {
    type Item = (usize, Result<SampleResponse>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.fill();
            if let Some(item) = self.take_ready() {
                self.report();
                return Some(item);
            }
            if self.open.is_empty() {
                return None;
            }
            let index = self.wait();
            if let Some(pending) = self.open.remove(&index) {
                self.ready.insert(index, pending.join());
            }
        }
    }
}

impl<I: Iterator<Item = SampleRequest>> std::fmt::Debug for SampleBatch<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleBatch")
            .field("pulled", &self.pulled)
            .field("under_way", &self.open.len())
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}
