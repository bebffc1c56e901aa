//! What a sampling request asks for.

use serde::{Deserialize, Serialize};

use super::{Dtype, ModelInput, SampleResponse, TensorData};
use crate::error::Context;
use crate::{Error, Result};

/// How tokens are drawn.
///
/// ```
/// use tinker::SamplingParams;
///
/// let params = SamplingParams::max_tokens(64).with_temperature(0.7).with_stop("\n\n");
/// assert_eq!(params.top_p, 1.0);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// The most tokens to draw. Default: chosen by the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Seed, for draws that can be repeated. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// What ends a sequence. Default: the model's own end of sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Sampling temperature; 0 takes the likeliest token. Default: 1.
    pub temperature: f64,
    /// Draw from this many likeliest tokens; -1 means all. Default: -1.
    pub top_k: i64,
    /// Draw from the likeliest tokens that together have this probability. Default: 1.
    pub top_p: f64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: None,
            seed: None,
            stop: None,
            temperature: 1.0,
            top_k: -1,
            top_p: 1.0,
        }
    }
}

impl SamplingParams {
    /// The defaults with this many tokens at most.
    pub fn max_tokens(max_tokens: u32) -> Self {
        Self::default().with_max_tokens(max_tokens)
    }

    /// Sets the most tokens to draw.
    #[must_use]
    pub fn with_max_tokens(mut self, max_tokens: u32) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// Sets the seed.
    #[must_use]
    pub fn with_seed(mut self, seed: i64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets what ends a sequence: a text, several texts, or token ids. An empty list is not the
    /// default: it means that nothing ends a sequence before `max_tokens`.
    ///
    /// ```
    /// use tinker::SamplingParams;
    /// use tinker::types::Stop;
    ///
    /// let params = SamplingParams::max_tokens(64).with_stop(["\n", "User:"]);
    /// let endless = SamplingParams::max_tokens(64).with_stop(Stop::never());
    /// # let _ = (params, endless);
    /// ```
    #[must_use]
    pub fn with_stop(mut self, stop: impl Into<Stop>) -> Self {
        self.stop = Some(stop.into());
        self
    }

    /// Sets the temperature.
    #[must_use]
    pub fn with_temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Sets how many of the likeliest tokens to draw from.
    #[must_use]
    pub fn with_top_k(mut self, top_k: i64) -> Self {
        self.top_k = top_k;
        self
    }

    /// Sets the probability that the tokens to draw from have together.
    #[must_use]
    pub fn with_top_p(mut self, top_p: f64) -> Self {
        self.top_p = top_p;
        self
    }

    /// Checks the parameters. Clients call this before sending.
    ///
    /// # Errors
    ///
    /// If the temperature is negative or not finite, `top_p` is outside 0 to 1, or `top_k` is
    /// below -1.
    pub fn validate(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            let problem = format!("must be finite and at least 0, got {}", self.temperature);
            return Err(Error::invalid("temperature", problem));
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            let problem = format!("must be from 0 to 1, got {}", self.top_p);
            return Err(Error::invalid("top_p", problem));
        }
        if self.top_k < -1 {
            let problem = format!("must be -1 (all tokens) or more, got {}", self.top_k);
            return Err(Error::invalid("top_k", problem));
        }
        Ok(())
    }
}

/// What ends a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Stop {
    /// This text.
    Text(String),
    /// Any of these texts.
    Texts(Vec<String>),
    /// Any of these tokens. An empty list means that nothing does, not even the model's own end
    /// of sequence.
    Tokens(Vec<i32>),
}

impl Stop {
    /// Nothing ends a sequence before `max_tokens`.
    pub fn never() -> Self {
        Self::Tokens(Vec::new())
    }
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Text(String),
            // First, so that an empty list reads as `never`.
            Tokens(Vec<i32>),
            Texts(Vec<String>),
        }
        Ok(match Raw::deserialize(deserializer)? {
            Raw::Text(text) => Self::Text(text),
            Raw::Tokens(tokens) => Self::Tokens(tokens),
            Raw::Texts(texts) => Self::Texts(texts),
        })
    }
}

impl From<&str> for Stop {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<String>> for Stop {
    fn from(texts: Vec<String>) -> Self {
        Self::Texts(texts)
    }
}

impl From<Vec<i32>> for Stop {
    fn from(tokens: Vec<i32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl<const N: usize> From<[&str; N]> for Stop {
    fn from(texts: [&str; N]) -> Self {
        Self::Texts(texts.map(str::to_owned).into())
    }
}

impl<const N: usize> From<[i32; N]> for Stop {
    fn from(tokens: [i32; N]) -> Self {
        Self::Tokens(tokens.into())
    }
}

/// Everything a sampling request asks for besides its prompt.
///
/// Calls that take one accept bare [`SamplingParams`] too.
///
/// ```
/// use tinker::{SampleOptions, SamplingParams};
///
/// let options = SampleOptions::from(SamplingParams::max_tokens(64))
///     .with_num_samples(8)
///     .with_prompt_logprobs(true);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// How tokens are drawn.
    pub params: SamplingParams,
    /// How many sequences to draw. Default: 1.
    pub num_samples: u32,
    /// Whether to score the prompt's tokens too. Default: false.
    pub prompt_logprobs: bool,
    /// How many of the likeliest tokens to report at each prompt position. Default: 0.
    pub topk_prompt_logprobs: u32,
    /// How many of the likeliest tokens to report at each sampled position. Default: 0.
    pub topk_sample_logprobs: u32,
    /// Which tokens to score at each prompt position after the first: an int64 matrix with a
    /// row per position, -1 for none. Default: none.
    pub target_prompt_logprobs: Option<TensorData>,
    /// How many alternatives to draw at each prompt position after the first. Default: 0.
    pub prompt_alt_tokens_k: u32,
    /// Score only this many tokens at the prompt's end. Default: all of them.
    pub prompt_logprobs_last_n: Option<u32>,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self::from(SamplingParams::default())
    }
}

impl From<SamplingParams> for SampleOptions {
    fn from(params: SamplingParams) -> Self {
        Self {
            params,
            num_samples: 1,
            prompt_logprobs: false,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens_k: 0,
            prompt_logprobs_last_n: None,
        }
    }
}

impl From<&SamplingParams> for SampleOptions {
    fn from(params: &SamplingParams) -> Self {
        params.clone().into()
    }
}

impl From<&SampleOptions> for SampleOptions {
    fn from(options: &SampleOptions) -> Self {
        options.clone()
    }
}

impl SampleOptions {
    /// What scoring a prompt needs: its log-probabilities, and the one token that the service
    /// insists on drawing.
    pub fn score_prompt() -> Self {
        Self::from(SamplingParams::max_tokens(1)).with_prompt_logprobs(true)
    }

    /// Sets how many sequences to draw.
    #[must_use]
    pub fn with_num_samples(mut self, num_samples: u32) -> Self {
        self.num_samples = num_samples;
        self
    }

    /// Says whether to score the prompt's tokens.
    #[doc(alias = "include_prompt_logprobs")]
    #[must_use]
    pub fn with_prompt_logprobs(mut self, include: bool) -> Self {
        self.prompt_logprobs = include;
        self
    }

    /// Sets how many of the likeliest tokens to report at each prompt position.
    #[must_use]
    pub fn with_topk_prompt_logprobs(mut self, k: u32) -> Self {
        self.topk_prompt_logprobs = k;
        self
    }

    /// Sets how many of the likeliest tokens to report at each sampled position.
    #[must_use]
    pub fn with_topk_sample_logprobs(mut self, k: u32) -> Self {
        self.topk_sample_logprobs = k;
        self
    }

    /// Sets which tokens to score at each prompt position after the first.
    #[must_use]
    pub fn with_target_prompt_logprobs(mut self, tokens: impl Into<TensorData>) -> Self {
        self.target_prompt_logprobs = Some(tokens.into());
        self
    }

    /// Sets how many alternatives to draw at each prompt position after the first.
    #[must_use]
    pub fn with_prompt_alt_tokens(mut self, k: u32) -> Self {
        self.prompt_alt_tokens_k = k;
        self
    }

    /// Scores only this many tokens at the prompt's end, so that what comes before may be
    /// served from the prefix cache.
    #[must_use]
    pub fn with_prompt_logprobs_last_n(mut self, n: u32) -> Self {
        self.prompt_logprobs_last_n = Some(n);
        self
    }

    /// Checks the options. Clients call this before sending.
    ///
    /// # Errors
    ///
    /// If the service would refuse them: bad [`SamplingParams`], no sample at all, a target
    /// tensor that is not an int64 matrix, or a `prompt_logprobs_last_n` that is 0 or comes
    /// without prompt log-probabilities.
    pub fn validate(&self) -> Result<()> {
        self.params.validate()?;
        if self.num_samples == 0 {
            return Err(Error::invalid("num_samples", "must be at least 1, got 0"));
        }
        if let Some(target) = &self.target_prompt_logprobs {
            check_target(target)?;
        }
        match self.prompt_logprobs_last_n {
            Some(0) => Err(Error::invalid(
                "prompt_logprobs_last_n",
                "must be at least 1, got 0",
            )),
            Some(_) if !self.prompt_logprobs => Err(Error::invalid(
                "prompt_logprobs_last_n",
                "applies to prompt logprobs; set prompt_logprobs too",
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the service did what was asked. One that predates an option ignores it, and
    /// answers as if it had not been set.
    ///
    /// # Errors
    ///
    /// If alternatives were asked for and are missing, or tokens before the last `n` were scored.
    pub fn check_response(&self, response: &SampleResponse) -> Result<()> {
        let ignored = |problem: String| {
            let message = format!("{problem}; the service may predate this option");
            Err(Error::Reply(Context::new(message)))
        };
        if self.prompt_alt_tokens_k > 0 && response.prompt_alt_tokens.is_none() {
            return ignored(format!(
                "prompt_alt_tokens_k={} was asked for but no alternatives came",
                self.prompt_alt_tokens_k
            ));
        }
        let (Some(n), Some(logprobs)) = (self.prompt_logprobs_last_n, &response.prompt_logprobs)
        else {
            return Ok(());
        };
        let skipped = logprobs.len().saturating_sub(n as usize);
        if logprobs
            .iter()
            .take(skipped)
            .any(|logprob| logprob.is_some())
        {
            return ignored(format!(
                "prompt_logprobs_last_n={n} was asked for but earlier tokens were scored"
            ));
        }
        Ok(())
    }
}

fn check_target(target: &TensorData) -> Result<()> {
    let refuse = |problem: String| Err(Error::invalid("target_prompt_logprobs", problem));
    if target.dtype() != Dtype::Int64 {
        return refuse(format!("must hold int64 token ids, got {}", target.dtype()));
    }
    match target.shape() {
        Some([_, _]) => Ok(()),
        shape => refuse(format!(
            "must have two dimensions, [prompt length - 1, k], got shape {shape:?}"
        )),
    }
}

/// A prompt and what to do with it: one item of a sampling batch.
///
/// ```
/// use tinker::{ModelInput, SampleRequest, SamplingParams};
///
/// let request = SampleRequest::new(ModelInput::from_ints(vec![1, 2]), SamplingParams::max_tokens(8));
/// assert_eq!(request.options.num_samples, 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SampleRequest {
    /// The prompt.
    pub prompt: ModelInput,
    /// What to do with it.
    pub options: SampleOptions,
}

impl SampleRequest {
    /// A request from its parts.
    pub fn new(prompt: impl Into<ModelInput>, options: impl Into<SampleOptions>) -> Self {
        Self {
            prompt: prompt.into(),
            options: options.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::PromptAltTokens;

    #[test]
    fn options_the_service_would_refuse() {
        #[track_caller]
        fn check(options: impl Into<SampleOptions>, expected: &str) {
            let problem = options
                .into()
                .validate()
                .err()
                .map(|error| error.to_string());
            assert_eq!(problem.unwrap_or_default(), expected);
        }
        let params = || SamplingParams::max_tokens(1);
        let options = || SampleOptions::from(params());
        check(params(), "");
        check(
            params().with_temperature(0.0).with_top_k(0).with_top_p(0.0),
            "",
        );
        check(
            params().with_temperature(f64::NAN),
            "invalid temperature: must be finite and at least 0, got NaN",
        );
        check(
            params().with_top_p(1.5),
            "invalid top_p: must be from 0 to 1, got 1.5",
        );
        check(
            params().with_top_k(-2),
            "invalid top_k: must be -1 (all tokens) or more, got -2",
        );
        check(
            options().with_num_samples(0),
            "invalid num_samples: must be at least 1, got 0",
        );
        check(
            options().with_target_prompt_logprobs(vec![1.0f32]),
            "invalid target_prompt_logprobs: must hold int64 token ids, got float32",
        );
        check(
            options().with_target_prompt_logprobs(vec![1i64]),
            "invalid target_prompt_logprobs: must have two dimensions, \
             [prompt length - 1, k], got shape Some([1])",
        );
        check(
            options().with_prompt_logprobs_last_n(1),
            "invalid prompt_logprobs_last_n: applies to prompt logprobs; set prompt_logprobs too",
        );
        check(
            SampleOptions::score_prompt().with_prompt_logprobs_last_n(0),
            "invalid prompt_logprobs_last_n: must be at least 1, got 0",
        );
        check(
            SampleOptions::score_prompt().with_prompt_logprobs_last_n(1),
            "",
        );
    }

    #[test]
    fn answers_that_ignore_an_option() {
        let mut response = SampleResponse::default();
        let alternatives = SampleOptions::default().with_prompt_alt_tokens(2);
        assert!(alternatives.check_response(&response).is_err());
        response.prompt_alt_tokens = Some(PromptAltTokens {
            tokens: [1i64].into(),
            logprobs: [-1.0f32].into(),
        });
        assert!(alternatives.check_response(&response).is_ok());

        let last = SampleOptions::score_prompt().with_prompt_logprobs_last_n(1);
        for (logprobs, honoured) in [
            (vec![f32::NAN, f32::NAN, -1.0], true),
            (vec![f32::NAN, -1.0, -1.0], false),
            (vec![-1.0], true),
            (vec![], true),
        ] {
            response.prompt_logprobs = Some(logprobs.clone().into());
            let checked = last.check_response(&response);
            assert_eq!(checked.is_ok(), honoured, "{logprobs:?}");
        }
    }

    #[test]
    fn an_empty_stop_list_is_not_an_absent_one() {
        let write = |params: SamplingParams| serde_json::to_value(params).unwrap();
        let never = SamplingParams::default().with_stop(Stop::never());
        assert_eq!(write(never)["stop"], serde_json::json!([]));
        assert_eq!(write(SamplingParams::default()).get("stop"), None);
    }
}
