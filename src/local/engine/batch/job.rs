//! One request of a batch, and one of its samples.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::Listener;
use crate::local::engine::config::Config;
use crate::local::engine::decode::{Cache, Newest};
use crate::local::engine::lora::Adapter;
use crate::local::engine::ops::log_sum_exp;
use crate::local::engine::pick::{Candidates, Picker, top};
use crate::local::engine::prompt::Prompt;
use crate::local::engine::rng::Rng;
use crate::local::engine::sample::{SampleOutput, SampleRequest, SampledSequence, StopReason};

/// One request.
pub(super) struct Job<'a> {
    pub(super) adapter: Option<Arc<Adapter>>,
    pub(super) request: SampleRequest,
    pub(super) seed: u64,
    pub(super) picker: Picker,
    /// Bytes of the longest stop string.
    pub(super) longest_stop: usize,
    pub(super) listener: Box<dyn Listener + 'a>,
    /// There once the prompt has been read.
    pub(super) prompt: OnceLock<Prompt>,
    pub(super) results: Mutex<Results>,
}

pub(super) struct Results {
    pub(super) output: SampleOutput,
    /// Samples not done.
    pub(super) left: usize,
}

impl<'a> Job<'a> {
    pub(super) fn new(
        adapter: Option<Arc<Adapter>>,
        request: SampleRequest,
        listener: Box<dyn Listener + 'a>,
    ) -> Self {
        let stops = request.stop.strings.iter();
        Self {
            adapter,
            seed: request.seed.unwrap_or_else(|| fastrand::u64(..)),
            picker: Picker::new(request.temperature, request.top_k, request.top_p),
            longest_stop: stops.map(String::len).max().unwrap_or(0),
            listener,
            prompt: OnceLock::new(),
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
    pub(super) fn prompt(&self) -> &Prompt {
        self.prompt.get().expect("samples begin after the prompt")
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files a sample; true if it was the last one, and the request is finished.
    pub(super) fn settle(&self, number: usize, sequence: SampledSequence) -> bool {
        self.lock().output.sequences[number] = sequence;
        self.abandon(1)
    }

    /// Counts samples as done; true if the request is finished with them.
    pub(super) fn abandon(&self, samples: usize) -> bool {
        let left = {
            let mut results = self.lock();
            results.left -= samples;
            results.left
        };
        if left == 0 {
            self.finish();
        }
        left == 0
    }

    pub(super) fn finish(&self) {
        let output = std::mem::take(&mut self.lock().output);
        self.listener.finish(&self.request, output);
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

/// One sample on its way.
pub(super) struct Growing<'a> {
    pub(super) job: Arc<Job<'a>>,
    pub(super) number: usize,
    pub(super) rng: Rng,
    pub(super) own: Cache,
    pub(super) sequence: SampledSequence,
    pub(super) done: bool,
}

impl<'a> Growing<'a> {
    /// Begins with the token that follows the prompt.
    pub(super) fn new(job: &Arc<Job<'a>>, number: usize, config: &Config) -> Self {
        let mut growing = Self {
            number,
            rng: Rng::stream(job.seed, number as u64),
            own: Cache::new(config),
            sequence: SampledSequence::default(),
            done: job.request.max_tokens == 0,
            job: job.clone(),
        };
        if !growing.done {
            growing.accept(&job.prompt().first, &mut Candidates::new());
        }
        growing
    }
}

impl Growing<'_> {
    pub(super) fn newest(&mut self) -> Newest<'_> {
        Newest {
            token: *self.sequence.tokens.last().expect("each begins with one"),
            prompt: &self.job.prompt().cache,
            own: &mut self.own,
        }
    }

    /// Draws the next token and decides whether the sample goes on.
    pub(super) fn accept(&mut self, logits: &[f32], candidates: &mut Candidates) {
        let Job {
            request,
            picker,
            listener,
            ..
        } = &*self.job;
        let token = picker.pick(logits, &mut self.rng, candidates);
        let tempered = request.tempering().map(|scale| {
            let scaled = logits.iter().map(|logit| logit * scale);
            scaled.collect::<Vec<f32>>()
        });
        let logits = tempered.as_deref().unwrap_or(logits);
        let total = log_sum_exp(logits);
        let sequence = &mut self.sequence;
        sequence.tokens.push(token);
        sequence.logprobs.push(logits[token as usize] - total);
        if request.topk_sample_logprobs > 0 {
            let top = top(logits, total, request.topk_sample_logprobs);
            sequence.topk.push(top);
        }
        listener.token(self.number, token);
        if request.stop.tokens.contains(&token) || self.job.stop_string_ends(&sequence.tokens) {
            sequence.stop_reason = StopReason::Stop;
            self.done = true;
        }
        self.done |= sequence.tokens.len() >= request.max_tokens;
    }
}
