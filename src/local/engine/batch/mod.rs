//! Sampling for many requests at once: they join a running batch and leave it when they are done.
//!
//! Work goes in rounds. A round reads a piece of some prompts and adds one token to every
//! sequence under way, so that a long prompt delays nobody and a newcomer waits for one token.
//! What a request gets depends on its seed alone: prompts are cut by their own length, rows that
//! are decoded together do not know of each other, and a sample that had to rest is computed again
//! exactly as before.

mod job;
mod room;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use rayon::prelude::*;

use super::decode::{self, Newest};
use super::lora::{Adapter, Merged};
use super::model::{Base, Net, Weights};
use super::pages::{PAGE, Pool, Precision};
use super::pick::Candidates;
use super::prefix::Prefixes;
use super::prompt::{self, Due, PIECE, Reading};
use super::sample::{SampleOutput, SampleRequest, SampledSequence};
use super::scratch::Scratch;
use crate::error::{Error, Result};
use job::{Age, Growing, Job};
#[cfg(test)]
pub(crate) use tests::sample;

/// Sequences under way at once.
const SEQUENCES: usize = 64;
/// What one request may have of them while others wait.
const SHARE: usize = SEQUENCES / 2;
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

    /// A sample, by its number, has one more token: the last one of what it has so far.
    fn token(&self, _sample: usize, _so_far: &SampledSequence) {}

    /// Whether nobody waits any more; what was sampled so far is the result then.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Here is everything. Called once.
    fn finish(&self, request: &SampleRequest, output: SampleOutput);

    /// It cannot be sampled, for this reason; nothing more is heard then.
    fn fail(&self, _reason: &Error) {}
}

/// The requests under way on one base, whatever their adapters.
///
/// A request takes pages for its keys and values as it needs them, not as many as it might. When
/// they run out, what was read of old prompts is forgotten; then the youngest sample rests, gives
/// its pages back, and is computed again when there is room. The oldest always goes on, so each
/// comes to its end.
pub(crate) struct Batch<'a> {
    base: Base,
    pool: Pool,
    prefixes: Prefixes,
    /// Requests that have no pages, in order of arrival.
    waiting: Vec<Pending<'a>>,
    /// Requests whose prompts are read, or were and have samples left to begin, in the same order.
    begun: Vec<Pending<'a>>,
    groups: Vec<Group<'a>>,
    /// How many requests have come.
    arrivals: u64,
}

/// A request and those of its samples that do not run.
struct Pending<'a> {
    job: Arc<Job<'a>>,
    /// In order of their numbers; never empty.
    samples: VecDeque<Growing<'a>>,
    reading: Reading,
    /// By how many rows its prompt is read on in this round, if it is.
    due: Option<usize>,
}

/// Sequences on the same weights.
struct Group<'a> {
    adapter: Option<Arc<Adapter>>,
    sequences: Vec<Growing<'a>>,
}

impl<'a> Batch<'a> {
    /// The most memory it pays to give to keys and values.
    pub(crate) const MEMORY: usize = 1 << 30;

    /// An empty batch that keeps its keys and values in so many bytes, unless a single sequence
    /// needs more.
    pub(crate) fn new(base: &Base, memory: usize) -> Self {
        let precision = Precision::of(base.weights());
        Self {
            base: base.clone(),
            pool: Pool::new(base.weights(), precision, memory),
            prefixes: Prefixes::default(),
            waiting: Vec::new(),
            begun: Vec::new(),
            groups: Vec::new(),
            arrivals: 0,
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
        request.check(self.base.config())?;
        let job = Arc::new(Job::new(self.arrivals, adapter, request, listener));
        self.arrivals += 1;
        let samples = 0..job.request.num_samples;
        self.waiting.push(Pending {
            samples: samples.map(|number| Growing::new(&job, number)).collect(),
            reading: Reading::new(&job.request, job.seed),
            job,
            due: None,
        });
        Ok(())
    }

    /// How many requests have not begun.
    pub(crate) fn waiting(&self) -> usize {
        let new = |one: &&Pending<'_>| one.samples[0].sequence.tokens.is_empty();
        self.waiting.iter().filter(new).count()
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.begun.is_empty() && self.groups.is_empty()
    }

    /// One round; call it on a thread of the base's pool.
    pub(crate) fn round(&mut self) {
        self.give_up();
        self.go_on();
        // Some samples end with their first token.
        self.sweep();
        self.let_in();
        self.make_room();
        let base = self.base.clone();
        let mut tasks = self.tasks();
        tasks
            .par_iter_mut()
            .for_each(|task| base.with_scratch(|scratch| task.run(base.sampler(), scratch)));
        self.share();
        self.sweep();
    }

    /// Begins more samples of the requests whose prompts have been read.
    fn go_on(&mut self) {
        for index in 0..self.begun.len() {
            let pending = &mut self.begun[index];
            if pending.reading.whole().is_some()
                && let Some(output) = pending.reading.take_report()
            {
                pending.job.report(output);
            }
            while self.may_begin(index)
                && let Some(sample) = self.begun[index].next_sample()
            {
                self.place(sample);
            }
        }
        self.begun.retain(|pending| !pending.samples.is_empty());
        let sequences = self.groups.iter_mut().flat_map(|one| &mut one.sequences);
        let mut fresh: Vec<&mut Growing<'_>> =
            sequences.filter(|one| one.first.is_some()).collect();
        fresh
            .par_iter_mut()
            .for_each_init(Candidates::default, |candidates, one| one.begin(candidates));
    }

    /// Whether the next sample of a request may begin.
    fn may_begin(&mut self, index: usize) -> bool {
        let pending = &self.begun[index];
        let (Some(_), Some(next)) = (pending.reading.whole(), pending.samples.front()) else {
            return false;
        };
        let (age, pages, running) = (next.age(), next.pages(), self.running(&pending.job));
        // The first one's place was kept while the prompt was read.
        let place = running == 0
            || self.places() < SEQUENCES && (self.waiting.is_empty() || running < SHARE);
        place && self.has_room(age, pages)
    }

    /// Lets waiting requests in, in order, as long as there is room.
    fn let_in(&mut self) {
        let (mut index, mut promised) = (0, 0);
        while index < self.waiting.len() && self.places() < SEQUENCES {
            let pending = &self.waiting[index];
            let (age, pages) = (pending.age(), promised + self.wants(pending));
            if self.has_room(age, pages) {
                promised = pages;
                let pending = self.waiting.remove(index);
                insert(&mut self.begun, pending);
            } else {
                index += 1;
            }
        }
    }

    /// How many pages a request will take to begin with.
    fn wants(&self, pending: &Pending<'a>) -> usize {
        let Job {
            adapter, request, ..
        } = &*pending.job;
        let same = |other: &&Pending<'a>| same_adapter(adapter, &other.job.adapter);
        let others = self.begun.iter().filter(same);
        let shared = others.map(|other| shared(&request.prompt, &other.job.request.prompt));
        let known = self.prefixes.known(adapter.as_ref(), &request.prompt);
        let shared = shared.max().unwrap_or(0).max(known);
        (request.prompt.len() - shared).div_ceil(PAGE) + pending.samples[0].pages()
    }

    /// Sequences under way, and places kept for requests whose prompts are being read.
    fn places(&self) -> usize {
        let running: usize = self.groups.iter().map(|group| group.sequences.len()).sum();
        let kept = |one: &&Pending<'a>| !one.samples.is_empty() && self.running(&one.job) == 0;
        running + self.begun.iter().filter(kept).count()
    }

    /// Samples of a request that are under way.
    fn running(&self, job: &Arc<Job<'a>>) -> usize {
        let sequences = self.groups.iter().flat_map(|group| &group.sequences);
        sequences.filter(|one| Arc::ptr_eq(&one.job, job)).count()
    }

    /// Puts a sample with the others on the same weights.
    fn place(&mut self, sample: Growing<'a>) {
        let adapter = &sample.job.adapter;
        let same = |group: &&mut Group<'a>| same_adapter(&group.adapter, adapter);
        match self.groups.iter_mut().find(same) {
            Some(group) => group.sequences.push(sample),
            None => self.groups.push(Group {
                adapter: adapter.clone(),
                sequences: vec![sample],
            }),
        }
    }

    /// What this round computes, cut so that every thread has something to do.
    fn tasks(&mut self) -> Vec<Task<'_, 'a>> {
        let large = self.is_large();
        let together = match large {
            true => SEQUENCES,
            false => self
                .places()
                .div_ceil(self.base.threads())
                .clamp(1, TOGETHER),
        };
        let mut tasks: Vec<Task<'_, 'a>> = Vec::new();
        for pending in &mut self.begun {
            let Pending {
                job, reading, due, ..
            } = pending;
            let Some(rows) = *due else { continue };
            let due = Due {
                request: &job.request,
                reading,
                rows,
            };
            let same = tasks.iter_mut().find_map(|task| match task {
                Task::Read(adapter, all) if same_adapter(adapter, &job.adapter) => Some(all),
                _ => None,
            });
            match same.filter(|_| large) {
                Some(all) => all.push(due),
                None => tasks.push(Task::Read(&job.adapter, vec![due])),
            }
        }
        for Group { adapter, sequences } in &mut self.groups {
            let chunks = sequences.chunks_mut(together);
            tasks.extend(chunks.map(|chunk| Task::Grow(adapter, chunk)));
        }
        tasks
    }

    /// Whether the model's products are spread over threads themselves; for a small one, tasks are.
    fn is_large(&self) -> bool {
        self.base.weights().len() > Merged::LIMIT
    }

    /// Hands the pieces of prompts that were read to whoever reads the same.
    fn share(&mut self) {
        for pending in self.begun.iter_mut().filter(|one| one.due.is_some()) {
            let Job {
                adapter, request, ..
            } = &*pending.job;
            let prefixes = &mut self.prefixes;
            pending.reading.share(adapter.as_ref(), request, prefixes);
            pending.due = None;
        }
    }

    /// Lets go of the samples that are done or not wanted any more.
    fn sweep(&mut self) {
        for group in &mut self.groups {
            let over = |one: &mut Growing<'a>| one.done || one.job.listener.is_cancelled();
            for one in group.sequences.extract_if(.., over) {
                one.job.settle(one.number, one.sequence);
            }
        }
        self.groups.retain(|group| !group.sequences.is_empty());
    }

    /// Begins no more samples of requests that were cancelled.
    fn give_up(&mut self) {
        for list in [&mut self.waiting, &mut self.begun] {
            let over = |one: &mut Pending<'a>| one.job.listener.is_cancelled();
            for pending in list.extract_if(.., over) {
                for one in pending.samples {
                    one.job.settle(one.number, one.sequence);
                }
            }
        }
    }
}

impl<'a> Pending<'a> {
    /// The age of its oldest sample.
    fn age(&self) -> Age {
        self.samples[0].age()
    }

    /// The next sample, ready to go on from the prompt; none before that is read.
    fn next_sample(&mut self) -> Option<Growing<'a>> {
        let (prompt, first) = self.reading.whole()?;
        let mut sample = self.samples.pop_front()?;
        sample.table = prompt.clone();
        sample.first = Some(first.clone());
        Some(sample)
    }
}

/// Puts a request among others in order of arrival.
fn insert<'a>(list: &mut Vec<Pending<'a>>, pending: Pending<'a>) {
    let place = list.partition_point(|other| other.job.order < pending.job.order);
    list.insert(place, pending);
}

fn same_adapter(one: &Option<Arc<Adapter>>, other: &Option<Arc<Adapter>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// How many tokens of a prompt need not be read again after another one: whole pieces.
fn shared(prompt: &[u32], other: &[u32]) -> usize {
    if prompt == other {
        return prompt.len();
    }
    let same = prompt
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other);
    same.count() / PIECE * PIECE
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("waiting", &self.waiting.len())
            .field("sequences", &self.places())
            .field("pages", &self.pool.used())
            .finish_non_exhaustive()
    }
}

/// A piece of a round, and the adapter it runs with.
enum Task<'t, 'a> {
    Read(&'t Option<Arc<Adapter>>, Vec<Due<'t>>),
    Grow(&'t Option<Arc<Adapter>>, &'t mut [Growing<'a>]),
}

impl Task<'_, '_> {
    fn run(&mut self, weights: &Weights, scratch: &mut Scratch) {
        let (Self::Read(adapter, _) | Self::Grow(adapter, _)) = self;
        let net = Net::new(weights, adapter.as_deref());
        match self {
            Self::Read(_, due) => prompt::advance(&net, due, scratch),
            Self::Grow(_, sequences) => grow(&net, sequences, scratch),
        }
    }
}

/// Adds a token to each sequence.
fn grow(net: &Net<'_>, sequences: &mut [Growing<'_>], scratch: &mut Scratch) {
    let mut newest: Vec<Newest<'_>> = sequences.iter_mut().map(Growing::newest).collect();
    let logits = decode::grow(net, &mut newest, scratch);
    let vocab = net.weights.config.vocab;
    // A token is drawn from the whole vocabulary: with a large one that is work.
    match vocab * sequences.len() < ACCEPT_TOGETHER {
        true => {
            let mut candidates = Candidates::default();
            for (one, logits) in sequences.iter_mut().zip(logits.chunks_exact(vocab)) {
                one.hear(logits, &mut candidates);
            }
        }
        false => sequences
            .par_iter_mut()
            .zip(logits.par_chunks_exact(vocab))
            .for_each_init(Candidates::default, |candidates, (one, logits)| {
                one.hear(logits, candidates);
            }),
    }
    scratch.give(logits);
}
