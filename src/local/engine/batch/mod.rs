//! Sampling for many requests at once: they join a running batch and leave it when they are done.
//!
//! Work goes in rounds. A round reads a piece of some prompts and adds one token to every
//! sequence under way, so that a long prompt delays nobody and a newcomer waits for one token.
//! What a request gets depends on its seed alone: prompts are cut by their own length, and rows
//! that are decoded together do not know of each other.

mod job;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;

use super::decode::{self, Cache, Newest};
use super::lora::{Adapter, Merged};
use super::model::{Base, Net};
use super::pick::Candidates;
use super::prompt::{PIECE, Reading};
use super::sample::{SampleOutput, SampleRequest};
use super::scratch::Scratch;
use crate::error::Result;
use job::{Growing, Job};
#[cfg(test)]
pub(crate) use tests::{sample, sample_all};

/// Sequences under way at once.
const SEQUENCES: usize = 64;
/// What one request may have of them while others wait.
const SHARE: usize = SEQUENCES / 2;
/// Bytes of keys and values at once; a request that needs more runs alone.
const MEMORY: usize = 1 << 30;
/// Sequences that one thread decodes together: their rows share the weights it has at hand.
const TOGETHER: usize = 16;

/// From this many logits on, tokens are drawn on several threads.
const ACCEPT_TOGETHER: usize = 1 << 17;

/// Whoever waits for a request's samples. Called on the engine's threads: be quick.
///
/// One that is dropped unfinished has failed.
pub(crate) trait Listener: Send + Sync {
    /// The bytes of some tokens' text, in which stop strings are looked for.
    fn decode(&self, tokens: &[u32]) -> Vec<u8>;

    /// A sample, by its number, has one more token.
    fn token(&self, _sample: usize, _token: u32) {}

    /// Whether nobody waits any more; what was sampled so far is the result then.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Here is everything. Called once.
    fn finish(&self, request: &SampleRequest, output: SampleOutput);
}

/// The requests under way on one base, whatever their adapters.
pub(crate) struct Batch<'a> {
    base: Base,
    /// Requests not begun, in order of arrival.
    waiting: VecDeque<Arc<Job<'a>>>,
    /// Requests with samples left to begin, in the same order.
    begun: Vec<Begun<'a>>,
    groups: Vec<Group<'a>>,
    /// Sequences under way, and those promised to prompts that are being read.
    sequences: usize,
    /// Positions that are promised room for their keys and values.
    rows: usize,
    /// Bytes there are for them.
    memory: usize,
}

struct Begun<'a> {
    job: Arc<Job<'a>>,
    reading: Option<Reading>,
    /// Samples that have begun.
    samples: usize,
}

/// Sequences on the same weights.
struct Group<'a> {
    adapter: Option<Arc<Adapter>>,
    sequences: Vec<Growing<'a>>,
}

impl<'a> Batch<'a> {
    /// An empty batch.
    pub(crate) fn new(base: &Base) -> Self {
        Self {
            base: base.clone(),
            waiting: VecDeque::new(),
            begun: Vec::new(),
            groups: Vec::new(),
            sequences: 0,
            rows: 0,
            memory: MEMORY,
        }
    }

    /// Takes a request in, to sample from the base or from the base with an adapter.
    ///
    /// # Errors
    ///
    /// If the request does not suit the model; see [`SampleRequest::check`].
    pub(crate) fn add(
        &mut self,
        adapter: Option<Arc<Adapter>>,
        request: SampleRequest,
        listener: Box<dyn Listener + 'a>,
    ) -> Result<()> {
        request.check(&self.base)?;
        self.waiting
            .push_back(Arc::new(Job::new(adapter, request, listener)));
        Ok(())
    }

    /// How many requests have not begun.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.begun.is_empty() && self.groups.is_empty()
    }

    /// One round; call it on a thread of the base's pool.
    pub(crate) fn round(&mut self) {
        self.go_on();
        // Some samples end with their first token.
        self.sweep();
        self.let_in();
        let base = self.base.clone();
        let mut tasks = self.tasks();
        tasks
            .par_iter_mut()
            .for_each(|task| base.with_scratch(|scratch| task.run(scratch)));
        self.sweep();
    }

    /// Begins more samples of the requests whose prompts have been read.
    fn go_on(&mut self) {
        let mut full = false;
        for mut begun in std::mem::take(&mut self.begun) {
            if begun.job.listener.is_cancelled() {
                self.give_up(begun);
                continue;
            }
            if let Some(reading) = &begun.reading {
                if reading.next_piece(&begun.job.request) > 0 {
                    self.begun.push(begun);
                    continue;
                }
                begun.finish_reading();
            }
            let total = begun.job.request.num_samples;
            while begun.samples < total {
                // The first sample's place was promised with the prompt's.
                if begun.samples > 0 {
                    if !self.waiting.is_empty() && begun.running() >= SHARE {
                        break;
                    }
                    full = full || !self.promise(begun.job.request.max_tokens);
                    if full {
                        break;
                    }
                }
                self.begin(&begun.job, begun.samples);
                begun.samples += 1;
            }
            if begun.samples < total {
                self.begun.push(begun);
            }
        }
    }

    /// Lets waiting requests in, in order, as long as there is room.
    fn let_in(&mut self) {
        // Nobody overtakes a request that waits for room itself.
        let waits = |one: &Begun<'_>| one.reading.is_none() && one.running() < SHARE;
        if self.begun.iter().any(waits) {
            return;
        }
        while let Some(job) = self.waiting.front() {
            if job.listener.is_cancelled() {
                job.finish();
                self.waiting.pop_front();
                continue;
            }
            let job = job.clone();
            if !self.promise(job.request.prompt.len() + job.request.max_tokens) {
                return;
            }
            self.waiting.pop_front();
            let net = Net::new(self.base.weights(), job.adapter.as_deref());
            self.begun.push(Begun {
                reading: Some(Reading::new(&job.request, job.seed, &net)),
                samples: 0,
                job,
            });
        }
    }

    /// Sets a sequence and its rows aside, if there is room; alone, anything has room.
    fn promise(&mut self, rows: usize) -> bool {
        let per_row = Cache::bytes_per_row(self.base.config());
        let fits = self.sequences < SEQUENCES && (self.rows + rows) * per_row <= self.memory;
        if fits || self.sequences == 0 {
            self.sequences += 1;
            self.rows += rows;
            return true;
        }
        false
    }

    /// Starts a sample with the token that follows the prompt.
    fn begin(&mut self, job: &Arc<Job<'a>>, number: usize) {
        let growing = Growing::new(job, number, self.base.config());
        let same = |group: &&mut Group<'a>| match (&group.adapter, &job.adapter) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        match self.groups.iter_mut().find(same) {
            Some(group) => group.sequences.push(growing),
            None => self.groups.push(Group {
                adapter: job.adapter.clone(),
                sequences: vec![growing],
            }),
        }
    }

    /// What this round computes, cut so that every thread has something to do.
    fn tasks(&mut self) -> Vec<Task<'_, 'a>> {
        let weights = self.base.weights();
        let mut tasks = Vec::new();
        // A round reads one whole piece per thread, or as much of shorter prompts.
        let read = PIECE * self.base.threads();
        let mut rows = 0;
        for begun in &mut self.begun {
            let Begun { job, reading, .. } = begun;
            let Some(reading) = reading else { continue };
            rows += reading.next_piece(&job.request);
            if rows > read && !tasks.is_empty() {
                break;
            }
            let net = Net::new(weights, job.adapter.as_deref());
            tasks.push(Task::Read(net, &job.request, reading));
        }
        // A large model's products are spread over threads themselves.
        let together = match weights.len() > Merged::LIMIT {
            true => SEQUENCES,
            false => self
                .sequences
                .div_ceil(self.base.threads())
                .clamp(1, TOGETHER),
        };
        for Group { adapter, sequences } in &mut self.groups {
            let net = Net::new(weights, adapter.as_deref());
            let chunks = sequences.chunks_mut(together);
            tasks.extend(chunks.map(|chunk| Task::Grow(net, chunk)));
        }
        tasks
    }

    /// Lets go of the samples that are done or not wanted any more.
    fn sweep(&mut self) {
        for group in &mut self.groups {
            let mut index = 0;
            while let Some(one) = group.sequences.get(index) {
                if !one.done && !one.job.listener.is_cancelled() {
                    index += 1;
                    continue;
                }
                let one = group.sequences.swap_remove(index);
                self.sequences -= 1;
                self.rows -= one.job.request.max_tokens;
                if one.job.settle(one.number, one.sequence) {
                    self.rows -= one.job.request.prompt.len();
                }
            }
        }
        self.groups.retain(|group| !group.sequences.is_empty());
    }

    /// Begins no more samples of a request that was cancelled.
    fn give_up(&mut self, begun: Begun<'a>) {
        let job = begun.job;
        if begun.samples == 0 {
            self.sequences -= 1;
            self.rows -= job.request.max_tokens;
        }
        if job.abandon(job.request.num_samples - begun.samples) {
            self.rows -= job.request.prompt.len();
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("waiting", &self.waiting.len())
            .field("sequences", &self.sequences)
            .finish_non_exhaustive()
    }
}

impl Begun<'_> {
    fn finish_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            let (prompt, mut output) = reading.finish();
            let mut results = self.job.lock();
            output.sequences = std::mem::take(&mut results.output.sequences);
            results.output = output;
            // It is read once.
            let _ = self.job.prompt.set(prompt);
        }
    }

    /// Samples under way.
    fn running(&self) -> usize {
        let done = self.job.request.num_samples - self.job.lock().left;
        self.samples - done
    }
}

/// A piece of a round.
enum Task<'t, 'a> {
    Read(Net<'t>, &'t SampleRequest, &'t mut Reading),
    Grow(Net<'t>, &'t mut [Growing<'a>]),
}

impl Task<'_, '_> {
    fn run(&mut self, scratch: &mut Scratch) {
        match self {
            Self::Read(net, request, reading) => reading.advance(net, request, scratch),
            Self::Grow(net, sequences) => {
                let mut newest: Vec<Newest<'_>> =
                    sequences.iter_mut().map(Growing::newest).collect();
                let logits = decode::grow(net, &mut newest, scratch);
                let vocab = net.weights.config.vocab;
                // A token is drawn from the whole vocabulary: with a large one that is work.
                match vocab * sequences.len() < ACCEPT_TOGETHER {
                    true => {
                        let mut candidates = Candidates::new();
                        for (one, logits) in sequences.iter_mut().zip(logits.chunks_exact(vocab)) {
                            one.accept(logits, &mut candidates);
                        }
                    }
                    false => sequences
                        .par_iter_mut()
                        .zip(logits.par_chunks_exact(vocab))
                        .for_each_init(Candidates::new, |candidates, (one, logits)| {
                            one.accept(logits, candidates);
                        }),
                }
                scratch.give(logits);
            }
        }
    }
}
