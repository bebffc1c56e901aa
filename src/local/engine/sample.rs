//! What can be asked of sampling, and what comes back.

use super::adjust::Adjust;
use super::config::Config;
use super::pick::sharpness;
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
    /// What else is done to the logits.
    pub(crate) adjust: Adjust,
    /// The same seed gives the same samples; `None` draws one.
    pub(crate) seed: Option<u64>,
    pub(crate) stop: Stop,
    /// Give the probabilities that the temperature makes of the model's own. Tokens of the prompt
    /// always have the model's own, and so does everything at temperature 0.
    pub(crate) tempered_logprobs: bool,
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
    /// How many samples one request may ask for.
    pub(crate) const MAX_SAMPLES: usize = 4096;
    /// How many strings or tokens may stop it, and the bytes of those strings: each new token is
    /// compared with all of them, while others wait.
    const MAX_STOPS: usize = 1024;
    const MAX_STOP_BYTES: usize = 64 << 10;
    /// How many bytes its answer may take.
    const MAX_BYTES: usize = 1 << 30;

    /// One sample at temperature 1, with no stop and nothing else asked.
    pub(crate) fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            num_samples: 1,
            max_tokens,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            adjust: Adjust::default(),
            seed: None,
            stop: Stop::default(),
            tempered_logprobs: false,
            prompt_logprobs: false,
            prompt_logprobs_last_n: None,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens: 0,
        }
    }

    /// What logits are multiplied by before they are scored, unless that changes nothing.
    pub(crate) fn tempering(&self) -> Option<f32> {
        let tempers = self.tempered_logprobs && self.temperature != 1.0;
        tempers.then(|| sharpness(self.temperature)).flatten()
    }

    /// Refuses what the model cannot do.
    ///
    /// # Errors
    ///
    /// Names the setting and what is allowed.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let refuse = |field: &str, problem: String| Err(Error::invalid(field, problem));
        let limit = config.max_positions;
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
        if self.num_samples > Self::MAX_SAMPLES {
            let most = Self::MAX_SAMPLES;
            return refuse(
                "num_samples",
                format!("must be at most {most}, got {}", self.num_samples),
            );
        }
        let Stop { tokens, strings } = &self.stop;
        let bytes = strings.iter().map(String::len).sum::<usize>();
        if tokens.len().max(strings.len()) > Self::MAX_STOPS || bytes > Self::MAX_STOP_BYTES {
            let (most, kib) = (Self::MAX_STOPS, Self::MAX_STOP_BYTES >> 10);
            return refuse(
                "stop",
                format!("must be {most} at most, of {kib} KiB at most"),
            );
        }
        self.check_size(config.vocab)?;
        self.adjust.check(config.vocab)?;
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
            let vocab = config.vocab as i64;
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
        config.check_tokens("prompt", &self.prompt)
    }
}

impl SampleRequest {
    /// Refuses an answer that would not fit, by the number that asks for most of it.
    fn check_size(&self, vocab: usize) -> Result<()> {
        let per_token = |count: usize| count.min(vocab).saturating_mul(8).saturating_add(8);
        let prompt = |count: usize| count.saturating_mul(8).saturating_mul(self.prompt.len());
        let sampled = self.num_samples.saturating_mul(self.max_tokens);
        let parts = [
            (
                "topk_sample_logprobs",
                sampled.saturating_mul(per_token(self.topk_sample_logprobs)),
            ),
            (
                "topk_prompt_logprobs",
                prompt(self.topk_prompt_logprobs.min(vocab)),
            ),
            ("prompt_alt_tokens_k", prompt(self.prompt_alt_tokens)),
        ];
        for (field, bytes) in parts {
            if bytes > Self::MAX_BYTES {
                let problem = format!(
                    "asks for {} MiB of results, and a request may have {} MiB: lower it, \
                     num_samples or max_tokens",
                    bytes >> 20,
                    Self::MAX_BYTES >> 20
                );
                return Err(Error::invalid(field, problem));
            }
        }
        Ok(())
    }
}

/// Tokens and their log-probabilities, likeliest first.
pub(crate) type TopTokens = Vec<(u32, f32)>;

/// Everything a sampling call gives back.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SampleOutput {
    pub(crate) sequences: Vec<SampledSequence>,
    /// Prompt tokens that had been read for others already.
    pub(crate) cached: usize,
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
