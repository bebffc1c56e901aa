//! Sampling: prompts are read once, then sequences grow side by side from the shared cache.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::decode::{Cache, Decoder};
use super::lora::Adapter;
use super::model::{Base, Net};
use super::ops::log_sum_exp;
use super::pick::{Picker, top};
use super::prompt::read_prompt;
use super::rng::Rng;
use super::scratch::Scratch;
use crate::error::{Error, Result};

/// What to sample, and what to say about the prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampleRequest {
    pub(crate) prompt: Vec<u32>,
    pub(crate) num_samples: usize,
    pub(crate) max_tokens: usize,
    /// 0 takes the likeliest token.
    pub(crate) temperature: f64,
    /// Only the likeliest so many tokens; `None` for all.
    pub(crate) top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability; 1 for all.
    pub(crate) top_p: f64,
    /// The same seed gives the same samples; `None` draws one.
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Stop,
    /// Score the prompt's tokens.
    pub(crate) prompt_logprobs: bool,
    /// Score only the last so many prompt tokens.
    pub(crate) prompt_logprobs_last_n: Option<usize>,
    /// The likeliest tokens at each scored prompt position.
    pub(crate) topk_prompt_logprobs: usize,
    /// The likeliest tokens at each sampled position.
    pub(crate) topk_sample_logprobs: usize,
    /// Tokens to score at each prompt position after the first, `width` per position; negative
    /// ones are skipped.
    pub(crate) target_prompt_logprobs: Option<PromptTargets>,
    /// Tokens to draw at each prompt position after the first.
    pub(crate) prompt_alt_tokens: usize,
}

/// What ends a sample before `max_tokens`. Whatever ended it is part of the sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stop {
    pub(crate) tokens: Vec<u32>,
    pub(crate) strings: Vec<String>,
}

/// Tokens to score at prompt positions: `[len(prompt) - 1, width]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptTargets {
    pub(crate) tokens: Vec<i64>,
    pub(crate) width: usize,
}

impl SampleRequest {
    /// One sample at temperature 1, with no stop and nothing else asked.
    pub(crate) fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            num_samples: 1,
            max_tokens,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            seed: None,
            stop: Stop::default(),
            prompt_logprobs: false,
            prompt_logprobs_last_n: None,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens: 0,
        }
    }

    /// Refuses what the model cannot do.
    ///
    /// # Errors
    ///
    /// Names the setting and what is allowed.
    pub(crate) fn check(&self, base: &Base) -> Result<()> {
        let refuse = |field: &str, problem: String| Err(Error::invalid(field, problem));
        let limit = base.config().max_positions;
        if self.prompt.is_empty() {
            return refuse("prompt", "must have at least one token".into());
        }
        if self.prompt.len().saturating_add(self.max_tokens) > limit + 1 {
            let problem = format!(
                "{} prompt tokens and {} new ones exceed the model's {limit} positions",
                self.prompt.len(),
                self.max_tokens
            );
            return refuse("max_tokens", problem);
        }
        if self.num_samples == 0 {
            return refuse("num_samples", "must be at least 1".into());
        }
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return refuse(
                "temperature",
                format!("must be finite and at least 0, got {}", self.temperature),
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse(
                "top_p",
                format!("must be above 0 and at most 1, got {}", self.top_p),
            );
        }
        if self.top_k == Some(0) {
            return refuse("top_k", "must be at least 1, or -1 for no limit".into());
        }
        if self
            .prompt_logprobs_last_n
            .is_some_and(|n| n == 0 || n >= self.prompt.len())
        {
            return refuse(
                "prompt_logprobs_last_n",
                "must be between 1 and len(prompt) - 1".into(),
            );
        }
        if let Some(targets) = &self.target_prompt_logprobs {
            let vocab = base.config().vocab as i64;
            if targets.tokens.len() != (self.prompt.len() - 1) * targets.width {
                return refuse(
                    "target_prompt_logprobs",
                    "must have the shape [len(prompt) - 1, K]".into(),
                );
            }
            if let Some(token) = targets.tokens.iter().find(|token| **token >= vocab) {
                let problem = format!("token {token} is outside the vocabulary of {vocab}");
                return refuse("target_prompt_logprobs", problem);
            }
        }
        base.check_tokens("prompt", &self.prompt)
    }
}

/// Tokens and their log-probabilities, likeliest first.
pub(crate) type TopTokens = Vec<(u32, f32)>;

/// Everything a sampling call gives back.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SampleOutput {
    pub(crate) sequences: Vec<SampledSequence>,
    /// One per prompt token, `None` where not computed; absent if not asked.
    pub(crate) prompt_logprobs: Option<Vec<Option<f32>>>,
    /// Per prompt token the likeliest tokens, best first; `None` where not computed.
    pub(crate) topk_prompt_logprobs: Option<Vec<Option<TopTokens>>>,
    /// Shaped like the request's targets, 0 where they were skipped.
    pub(crate) target_prompt_logprobs: Option<Vec<f32>>,
    /// Row-major `[len(prompt) - 1, k]`: drawn tokens and their log-probabilities.
    pub(crate) prompt_alt_tokens: Option<Vec<(u32, f32)>>,
}

/// One sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SampledSequence {
    pub(crate) tokens: Vec<u32>,
    /// The model's own log-probabilities, whatever the temperature.
    pub(crate) logprobs: Vec<f32>,
    /// Per token the likeliest tokens, best first; empty if not asked.
    pub(crate) topk: Vec<TopTokens>,
    pub(crate) stop_reason: StopReason,
}

/// Why a sample ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// It reached `max_tokens`.
    #[default]
    Length,
    /// It met a stop token or string.
    Stop,
}

/// Turns tokens into the bytes of their text.
pub(crate) type Decode<'a> = dyn Fn(&[u32]) -> Vec<u8> + Sync + 'a;

/// What the caller may hook into a sampling call.
#[derive(Default, Clone, Copy)]
pub(crate) struct Hooks<'a> {
    /// Turns tokens into bytes, to find stop strings; without it they never match.
    pub(crate) decode: Option<&'a Decode<'a>>,
    /// Called with the sample's number, token and log-probability, on an engine thread.
    pub(crate) on_token: Option<&'a (dyn Fn(usize, u32, f32) + Sync)>,
    /// Set it to end the call early; what was sampled so far is returned.
    pub(crate) cancel: Option<&'a AtomicBool>,
}

impl fmt::Debug for Hooks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// Sequences decoded in one batch; more are spread over threads.
const BATCH: usize = 8;

/// Samples from a base, or from a base with an adapter.
///
/// For a given seed the result does not depend on the number of threads.
///
/// # Errors
///
/// If the request does not suit the model; see [`SampleRequest::check`].
pub(crate) fn sample(
    base: &Base,
    adapter: Option<&Adapter>,
    request: &SampleRequest,
    hooks: Hooks<'_>,
) -> Result<SampleOutput> {
    request.check(base)?;
    let seed = request.seed.unwrap_or_else(|| fastrand::u64(..));
    Ok(base.run(|| {
        let net = Net::new(base.weights(), adapter);
        let (mut output, cache, first) =
            base.with_scratch(|scratch| read_prompt(&net, request, seed, scratch));
        let numbers: Vec<usize> = (0..request.num_samples).collect();
        output.sequences = numbers
            .par_chunks(BATCH)
            .flat_map_iter(|numbers| {
                base.with_scratch(|scratch| {
                    let batch = Batch::new(net, request, hooks, seed, numbers);
                    batch.run(&cache, &first, scratch)
                })
            })
            .collect();
        output
    }))
}

/// Some samples of one request, grown in step.
struct Batch<'a> {
    net: Net<'a>,
    request: &'a SampleRequest,
    hooks: Hooks<'a>,
    picker: Picker,
    samples: Vec<Growing>,
    /// Bytes of the longest stop string.
    longest_stop: usize,
}

struct Growing {
    number: usize,
    rng: Rng,
    done: bool,
    sequence: SampledSequence,
}

impl<'a> Batch<'a> {
    fn new(
        net: Net<'a>,
        request: &'a SampleRequest,
        hooks: Hooks<'a>,
        seed: u64,
        numbers: &[usize],
    ) -> Self {
        let samples = numbers
            .iter()
            .map(|number| Growing {
                number: *number,
                rng: Rng::stream(seed, *number as u64),
                done: false,
                sequence: SampledSequence::default(),
            })
            .collect();
        Self {
            net,
            request,
            hooks,
            picker: Picker::new(request.temperature, request.top_k, request.top_p),
            samples,
            longest_stop: request
                .stop
                .strings
                .iter()
                .map(String::len)
                .max()
                .unwrap_or(0),
        }
    }

    fn run(mut self, cache: &Cache, first: &[f32], scratch: &mut Scratch) -> Vec<SampledSequence> {
        if self.request.max_tokens > 0 {
            for sample in 0..self.samples.len() {
                self.accept(sample, first);
            }
        }
        let mut decoder = Decoder::new(self.net, cache, self.samples.len());
        loop {
            let live: Vec<usize> = (0..self.samples.len())
                .filter(|i| !self.samples[*i].done)
                .collect();
            if live.is_empty() || self.request.max_tokens == 0 || self.cancelled() {
                break;
            }
            let last = |index: &usize| {
                *self.samples[*index]
                    .sequence
                    .tokens
                    .last()
                    .expect("each has one")
            };
            let tokens: Vec<u32> = live.iter().map(last).collect();
            let logits = decoder.step(&live, &tokens, scratch);
            let vocab = self.net.weights.config.vocab;
            for (sample, logits) in live.iter().zip(logits.chunks_exact(vocab)) {
                self.accept(*sample, logits);
            }
            scratch.give(logits);
        }
        self.samples
            .into_iter()
            .map(|sample| sample.sequence)
            .collect()
    }

    /// Draws the next token of a sample and decides whether it goes on.
    fn accept(&mut self, index: usize, logits: &[f32]) {
        let request = self.request;
        let sample = &mut self.samples[index];
        let token = self.picker.pick(logits, &mut sample.rng);
        let total = log_sum_exp(logits);
        let logprob = logits[token as usize] - total;
        let sequence = &mut sample.sequence;
        sequence.tokens.push(token);
        sequence.logprobs.push(logprob);
        if request.topk_sample_logprobs > 0 {
            sequence
                .topk
                .push(top(logits, total, request.topk_sample_logprobs));
        }
        if let Some(on_token) = self.hooks.on_token {
            on_token(sample.number, token, logprob);
        }
        let stopped = request.stop.tokens.contains(&token)
            || stop_string_ends(
                &sequence.tokens,
                &request.stop.strings,
                self.longest_stop,
                self.hooks,
            );
        if stopped {
            sequence.stop_reason = StopReason::Stop;
        }
        sample.done = stopped || sequence.tokens.len() >= request.max_tokens;
    }

    fn cancelled(&self) -> bool {
        self.hooks
            .cancel
            .is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Whether a stop string appears in the text of the newest tokens.
///
/// Only a tail is decoded: a token has at least one byte, except for special ones, for which
/// some room is left.
fn stop_string_ends(tokens: &[u32], strings: &[String], longest: usize, hooks: Hooks<'_>) -> bool {
    let (Some(decode), true) = (hooks.decode, longest > 0) else {
        return false;
    };
    let tail = decode(&tokens[tokens.len().saturating_sub(longest + 8)..]);
    strings.iter().filter(|stop| !stop.is_empty()).any(|stop| {
        tail.windows(stop.len())
            .any(|window| window == stop.as_bytes())
    })
}
