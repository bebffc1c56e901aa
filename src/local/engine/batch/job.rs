//! One request of a batch, and one of its samples.

use std::sync::{Arc, Mutex};

use super::Listener;
use crate::local::engine::decode::Newest;
use crate::local::engine::lora::Adapter;
use crate::local::engine::ops::{largest, log_sum_exp};
use crate::local::engine::pages::{PAGE, Table};
use crate::local::engine::pick::{Candidates, Picker, top};
use crate::local::engine::rng::Rng;
use crate::local::engine::sample::{SampleOutput, SampleRequest, SampledSequence, StopReason};
use crate::sync::lock;

/// One request.
pub(super) struct Job<'a> {
    /// Requests are numbered as they come.
    pub(super) order: u64,
    pub(super) adapter: Option<Arc<Adapter>>,
    pub(super) request: SampleRequest,
    pub(super) seed: u64,
    pub(super) picker: Picker,
    /// Bytes of the longest stop string.
    pub(super) longest_stop: usize,
    pub(super) listener: Box<dyn Listener + 'a>,
    results: Mutex<Results>,
}

struct Results {
    output: SampleOutput,
    /// Samples not done.
    left: usize,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        order: u64,
        adapter: Option<Arc<Adapter>>,
        request: SampleRequest,
        listener: Box<dyn Listener + 'a>,
    ) -> Self {
        let stops = request.stop.strings.iter();
        Self {
            order,
            adapter,
            seed: request.seed.unwrap_or_else(|| fastrand::u64(..)),
            picker: Picker::new(request.temperature, request.top_k, request.top_p),
            longest_stop: stops.map(String::len).max().unwrap_or(0),
            listener,
            results: Mutex::new(Results {
                left: request.num_samples,
                output: SampleOutput {
                    sequences: vec![SampledSequence::default(); request.num_samples],
                    ..SampleOutput::default()
                },
            }),
            request,
        }
    }
}

impl Job<'_> {
    /// Files what is known about the prompt.
    pub(super) fn report(&self, mut output: SampleOutput) {
        let mut results = lock(&self.results);
        output.sequences = std::mem::take(&mut results.output.sequences);
        results.output = output;
    }

    /// Files a sample; with the last one the request is finished.
    pub(super) fn settle(&self, number: usize, sequence: SampledSequence) {
        let mut results = lock(&self.results);
        results.output.sequences[number] = sequence;
        results.left -= 1;
        if results.left == 0 {
            let output = std::mem::take(&mut results.output);
            drop(results);
            self.listener.finish(&self.request, output);
        }
    }

    /// Whether a stop string appears in the text of the newest tokens.
    ///
    /// Only a tail is decoded: a token has at least one byte, except for special ones, for which
    /// some room is left.
    fn stop_string_ends(&self, tokens: &[u32]) -> bool {
        if self.longest_stop == 0 {
            return false;
        }
        let tail = &tokens[tokens.len().saturating_sub(self.longest_stop + 8)..];
        let tail = self.listener.decode(tail);
        let mut stops = self.request.stop.strings.iter();
        stops.any(|stop| {
            !stop.is_empty()
                && tail
                    .windows(stop.len())
                    .any(|window| window == stop.as_bytes())
        })
    }
}

/// The age of a sample: its request's number and its own. The smallest has the right of way.
pub(super) type Age = (u64, usize);

/// One sample on its way.
pub(super) struct Growing<'a> {
    pub(super) job: Arc<Job<'a>>,
    pub(super) number: usize,
    rng: Rng,
    /// The prompt and the tokens that were fed; empty while the sample rests.
    pub(super) table: Table,
    /// The logits after the prompt, for a sample that is about to begin.
    pub(super) first: Option<Arc<[f32]>>,
    pub(super) sequence: SampledSequence,
    pub(super) done: bool,
}

impl<'a> Growing<'a> {
    /// A sample that has not begun.
    pub(super) fn new(job: &Arc<Job<'a>>, number: usize) -> Self {
        Self {
            number,
            rng: Rng::stream(job.seed, number as u64),
            table: Table::default(),
            first: None,
            sequence: SampledSequence::default(),
            done: job.request.max_tokens == 0,
            job: job.clone(),
        }
    }
}

impl Growing<'_> {
    pub(super) fn age(&self) -> Age {
        (self.job.order, self.number)
    }

    /// How many pages it needs beside its prompt's to go on from where it was.
    pub(super) fn pages(&self) -> usize {
        // One more for the prompt's last page, of which it has its own copy.
        (self.sequence.tokens.len() + 1).div_ceil(PAGE) + 1
    }

    /// Draws the token that follows the prompt, unless it was drawn before a rest.
    pub(super) fn begin(&mut self, candidates: &mut Candidates) {
        let first = self.first.take();
        if let Some(first) = first.filter(|_| !self.done && self.sequence.tokens.is_empty()) {
            self.accept(&first, candidates);
        }
    }

    /// The token to feed next: the newest, or after a rest one that was drawn before. Those are fed
    /// one by one again, as they were the first time, so that nothing changes by a single bit.
    pub(super) fn newest(&mut self) -> Newest<'_> {
        let fed = self.table.rows() - self.job.request.prompt.len();
        Newest {
            token: self.sequence.tokens[fed],
            table: &mut self.table,
        }
    }

    /// Hears the logits after the token that was fed.
    pub(super) fn hear(&mut self, logits: &[f32], candidates: &mut Candidates) {
        let fed = self.table.rows() - self.job.request.prompt.len();
        if fed == self.sequence.tokens.len() {
            self.accept(logits, candidates);
        }
    }

    /// Draws the next token and decides whether the sample goes on.
    fn accept(&mut self, logits: &[f32], candidates: &mut Candidates) {
        let Job {
            request,
            picker,
            listener,
            ..
        } = &*self.job;
        let sequence = &mut self.sequence;
        let token = match request.adjust.is_idle() {
            true => picker.pick(logits, &mut self.rng, candidates),
            false => {
                let (before, so_far) = (&request.prompt, &sequence.tokens);
                let adjusted = request
                    .adjust
                    .apply(logits, before, so_far, request.temperature);
                picker.pick(&adjusted, &mut self.rng, candidates)
            }
        };
        let tempered = request.tempering().map(|scale| {
            // Counted from the likeliest, which changes no probability: next to a temperature of 0
            // the logits themselves would become infinite, and what is unlikely stays a number.
            let peak = largest(logits);
            let scaled = logits.iter().map(|logit| (logit - peak) * scale);
            let scaled = scaled.map(|logit| logit.clamp(f32::MIN, 0.0));
            scaled.collect::<Vec<f32>>()
        });
        let logits = tempered.as_deref().unwrap_or(logits);
        let total = log_sum_exp(logits);
        sequence.tokens.push(token);
        sequence.logprobs.push(logits[token as usize] - total);
        if request.topk_sample_logprobs > 0 {
            let top = top(logits, total, request.topk_sample_logprobs);
            sequence.topk.push(top);
        }
        listener.token(self.number, sequence);
        if request.stop.tokens.contains(&token) || self.job.stop_string_ends(&sequence.tokens) {
            sequence.stop_reason = StopReason::Stop;
            self.done = true;
        }
        self.done |= sequence.tokens.len() >= request.max_tokens;
    }
}
