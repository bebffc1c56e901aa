//! `SamplingClient`: thousands of samples in flight from plain threads.

use std::fmt;
use std::iter::Enumerate;
use std::sync::Arc;

use super::batch::{SampleBatch, Samples};
use crate::error::{Context, Error, Result};
use crate::runtime::pending::Pending;
use crate::runtime::sampling::{Sampler, SamplingProgress, Settings};
use crate::runtime::session::Session;
use crate::sync::lock;
use crate::types::{
    Checkpoint, CheckpointRef, ModelInput, PromptLogprobs, RetryConfig, SampleOptions,
    SampleRequest, SampleResponse, SamplerInfo, SamplingSessionId, TinkerPath,
};
use crate::wire::handle::{Holder, SamplerHandle};
use crate::wire::route;

/// What a sampling client samples from.
///
/// Text is taken for saved weights if it begins with `tinker://`, else for a base model.
///
/// ```
/// use tinker::client::SamplerSource;
///
/// assert_eq!(SamplerSource::from("Qwen/Qwen3-8B"), SamplerSource::base_model("Qwen/Qwen3-8B"));
/// let path = "tinker://run/sampler_weights/final";
/// assert_eq!(SamplerSource::from(path), SamplerSource::weights(path));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplerSource {
    /// A model without an adapter.
    BaseModel(String),
    /// Saved weights: `tinker://…/sampler_weights/…`.
    Weights(CheckpointRef),
    /// A sampler that is there already, by its id; it lives as long as the session that made it.
    Session(SamplingSessionId),
}

impl SamplerSource {
    /// A model without an adapter.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    pub fn base_model(name: impl Into<String>) -> Self {
        Self::BaseModel(name.into())
    }

    /// Saved weights.
    #[doc(alias = "model_path")]
    pub fn weights(path: impl Into<CheckpointRef>) -> Self {
        Self::Weights(path.into())
    }
}

impl From<&str> for SamplerSource {
    fn from(text: &str) -> Self {
        match text.starts_with(TinkerPath::PREFIX) {
            true => Self::weights(text),
            false => Self::base_model(text),
        }
    }
}

impl From<String> for SamplerSource {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&String> for SamplerSource {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<CheckpointRef> for SamplerSource {
    fn from(weights: CheckpointRef) -> Self {
        Self::Weights(weights)
    }
}

impl From<TinkerPath> for SamplerSource {
    fn from(weights: TinkerPath) -> Self {
        Self::weights(weights)
    }
}

impl From<&TinkerPath> for SamplerSource {
    fn from(weights: &TinkerPath) -> Self {
        Self::weights(weights)
    }
}

impl From<&Checkpoint> for SamplerSource {
    fn from(weights: &Checkpoint) -> Self {
        Self::weights(weights)
    }
}

impl From<SamplingSessionId> for SamplerSource {
    fn from(id: SamplingSessionId) -> Self {
        Self::Session(id)
    }
}

impl From<&SamplingSessionId> for SamplerSource {
    fn from(id: &SamplingSessionId) -> Self {
        Self::Session(id.clone())
    }
}

/// Samples from one set of weights.
///
/// [`sample`](Self::sample) blocks its own thread only: call it from as many threads as you like.
/// [`submit_sample`](Self::submit_sample) gives a handle instead, and
/// [`sample_batch`](Self::sample_batch) works through any number of prompts with bounded memory.
/// After a 429 all samplers of the same service and key in the process hold back together.
///
/// `Clone + Send + Sync` around one `Arc`.
#[derive(Clone)]
pub struct SamplingClient {
    inner: Arc<Inner>,
    record_stability_info: bool,
    retry: RetryConfig,
}

struct Inner {
    sampler: Arc<Sampler>,
    session: Arc<Session>,
}

impl SamplingClient {
    pub(super) fn new(sampler: Arc<Sampler>, session: Arc<Session>) -> Self {
        Self {
            inner: Arc::new(Inner { sampler, session }),
            record_stability_info: false,
            retry: RetryConfig::default(),
        }
    }

    /// This client with settings of its own for repeating what failed. Clones made before stay as
    /// they are.
    ///
    /// ```no_run
    /// # fn example(service: tinker::ServiceClient) -> tinker::Result<()> {
    /// use tinker::types::RetryConfig;
    ///
    /// let sampler = service
    ///     .create_sampling_client("Qwen/Qwen3-8B")?
    ///     .with_retry(RetryConfig::default().without_retries())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for settings out of range.
    #[doc(alias = "retry_config")]
    pub fn with_retry(mut self, retry: RetryConfig) -> Result<Self> {
        retry.validate()?;
        self.retry = retry;
        Ok(self)
    }

    /// This client with the service recording, for every sample, what stability-aware training
    /// ([`LossFn::StableReinforce`](crate::LossFn::StableReinforce)) needs later. Clones made
    /// before stay as they are.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient) -> tinker::Result<()> {
    /// let sampler = training.save_weights_and_get_sampling_client()?.with_stability_info();
    /// # Ok(()) }
    /// ```
    #[doc(alias = "record_stability_info")]
    #[must_use]
    pub fn with_stability_info(mut self) -> Self {
        self.record_stability_info = true;
        self
    }

    /// Samples and waits for the result.
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient) -> tinker::Result<()> {
    /// use tinker::{ModelInput, SampleOptions, SamplingParams};
    ///
    /// let prompt = ModelInput::from_ints(vec![9906, 11]);
    /// let answer = sampler.sample(&prompt, SamplingParams::max_tokens(64))?;
    /// let options = SampleOptions::from(SamplingParams::max_tokens(64)).with_num_samples(8);
    /// let eight = sampler.sample(&prompt, options)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for options out of range; otherwise what the service says. Passing
    /// trouble is retried until sampling counts as stuck (two hours without any success).
    pub fn sample(
        &self,
        prompt: &ModelInput,
        options: impl Into<SampleOptions>,
    ) -> Result<SampleResponse> {
        self.inner
            .session
            .wait(self.submit_sample(prompt, options)?)
    }

    /// Submits a sample and returns its handle. Dropping the handle cancels the sample.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for options out of range.
    pub fn submit_sample(
        &self,
        prompt: &ModelInput,
        options: impl Into<SampleOptions>,
    ) -> Result<Pending<SampleResponse>> {
        let retries = !self.inner.session.core.client_config.sample_no_retries;
        self.submit(prompt.clone(), options.into(), retries)
    }

    /// Samples every request, in the order in which results arrive; see [`SampleBatch`].
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient, prompts: Vec<tinker::ModelInput>) {
    /// use tinker::{SampleRequest, SamplingParams};
    ///
    /// let requests = prompts.into_iter().map(|prompt| {
    ///     SampleRequest::new(prompt, SamplingParams::max_tokens(64))
    /// });
    /// for (index, result) in sampler.sample_batch(requests) {
    ///     match result {
    ///         Ok(response) => println!("{index}: {} tokens", response.sequences[0].tokens.len()),
    ///         Err(error) => eprintln!("{index}: {error}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn sample_batch<I>(&self, requests: I) -> SampleBatch<Enumerate<I::IntoIter>>
    where
        I: IntoIterator<Item = SampleRequest>,
    {
        self.sample_tagged(requests.into_iter().enumerate())
    }

    /// The same for requests that carry a tag of yours, which comes back with the result.
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient, questions: Vec<(String, tinker::SampleRequest)>) {
    /// for (question, result) in sampler.sample_tagged(questions) {
    ///     println!("{question}: {result:?}");
    /// }
    /// # }
    /// ```
    pub fn sample_tagged<K, I>(&self, requests: I) -> SampleBatch<I::IntoIter, K>
    where
        I: IntoIterator<Item = (K, SampleRequest)>,
    {
        SampleBatch::new(self.samples(), requests.into_iter())
    }

    /// Samples to which requests can be added while results come: see [`Samples`].
    pub fn samples<K>(&self) -> Samples<K> {
        Samples::new(self.clone(), |client, request| {
            client.submit_sample(&request.prompt, request.options)
        })
    }

    /// The log probability of each token of the prompt; the first has none.
    ///
    /// With [`LogprobsRequest::last`] only the last tokens are scored, such as a completion's
    /// after a long context that the service may have in its cache.
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient) -> tinker::Result<()> {
    /// use tinker::{ModelInput, client::LogprobsRequest};
    ///
    /// let prompt = ModelInput::from_ints(vec![9906, 11, 1917]);
    /// let all = sampler.compute_logprobs(&prompt)?;
    /// let completion = sampler.compute_logprobs(LogprobsRequest::last(prompt, 1))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`sample`](Self::sample); [`Error::Invalid`] for more tokens than the prompt has after
    /// its first; [`Error::Reply`] if the service scored nothing.
    pub fn compute_logprobs(&self, request: impl Into<LogprobsRequest>) -> Result<PromptLogprobs> {
        self.inner.session.wait(self.submit_logprobs(request)?)
    }

    /// The handle twin of [`compute_logprobs`](Self::compute_logprobs).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for more tokens than the prompt has after its first;
    /// [`Error::Closed`] if the client is closed.
    pub fn submit_logprobs(
        &self,
        request: impl Into<LogprobsRequest>,
    ) -> Result<Pending<PromptLogprobs>> {
        let request = request.into();
        let options = request.options()?;
        self.score(request.prompt, options)
    }

    /// Scores every prompt, in the order in which results arrive: a [`SampleBatch`] of log
    /// probabilities.
    pub fn compute_logprobs_batch<I>(
        &self,
        prompts: I,
    ) -> SampleBatch<impl Iterator<Item = (usize, SampleRequest)> + use<I>, usize, PromptLogprobs>
    where
        I: IntoIterator<Item = ModelInput>,
    {
        let score = |prompt| SampleRequest::new(prompt, SampleOptions::score_prompt());
        let samples = Samples::new(self.clone(), |client, request| {
            client.score(request.prompt, request.options)
        });
        SampleBatch::new(samples, prompts.into_iter().map(score).enumerate())
    }

    /// Repeats what fails, also where the service asks for samples not to be repeated: scoring
    /// draws nothing.
    fn score(&self, prompt: ModelInput, options: SampleOptions) -> Result<Pending<PromptLogprobs>> {
        Ok(self
            .submit(prompt, options, true)?
            .and_then(prompt_logprobs))
    }

    /// How this sampler is getting on: counts, tokens, speed, the oldest sample under way.
    pub fn progress(&self) -> SamplingProgress {
        let sampler = &self.inner.sampler;
        sampler.progress.snapshot(sampler.waiting())
    }

    /// The base model behind the weights.
    ///
    /// # Errors
    ///
    /// What the service says to being asked about the sampler.
    #[doc(alias = "get_base_model")]
    pub fn base_model(&self) -> Result<String> {
        Ok(self.info()?.base_model)
    }

    /// The tokenizer of the base model: as
    /// [`TrainingClient::tokenizer`](crate::TrainingClient::tokenizer).
    ///
    /// # Errors
    ///
    /// As there.
    #[cfg(feature = "text")]
    #[doc(alias = "get_tokenizer")]
    pub fn tokenizer(&self) -> Result<crate::text::Tokenizer> {
        let info = self.info()?;
        crate::text::Tokenizer::of_service(&info.base_model, info.tokenizer_id.as_deref())
    }

    /// Runs work for the processor on the pool of the session.
    pub(super) fn work(&self, work: impl FnOnce() + Send + 'static) {
        self.inner.sampler.cpu().spawn(work);
    }

    fn info(&self) -> Result<SamplerInfo> {
        self.inner.session.check_open()?;
        let route = route::GET_SAMPLER.with_sdk_method(None);
        let _deadline = self.inner.session.deadline();
        let link = &self.inner.session.core.link;
        link.get(&route, &[self.sampling_session_id()], &[])
    }

    /// The id of the sampling session.
    pub fn sampling_session_id(&self) -> &SamplingSessionId {
        &self.inner.sampler.sampling_session_id
    }

    /// A string from which another process, with credentials of its own, can make a client of the
    /// same sampler: here with
    /// [`from_sampler_handle`](crate::ServiceClient::from_sampler_handle), or with the Python
    /// SDK. It carries no credentials, and is of use while this client's session lives.
    ///
    /// # Errors
    ///
    /// If the service's configuration cannot be written down.
    #[doc(alias = "get_sampler_handle")]
    pub fn sampler_handle(&self) -> Result<String> {
        let core = &self.inner.session.core;
        let mut holder = Holder::new(core.link.transport().base_url());
        holder.client_config = (*core.client_config).clone();
        holder.client_dynamic_config = lock(&core.dynamic).clone();
        SamplerHandle {
            session_id: core.session_id.clone(),
            sampling_session_id: self.sampling_session_id().to_string(),
            holder,
            record_stability_info: self.record_stability_info,
        }
        .encode()
    }

    pub(super) fn submit(
        &self,
        prompt: ModelInput,
        options: SampleOptions,
        retries: bool,
    ) -> Result<Pending<SampleResponse>> {
        let settings = Settings {
            retries: retries && self.retry.enable_retry_logic,
            record_stability_info: self.record_stability_info,
            retry: self.retry,
        };
        let keep = self.inner.clone();
        self.inner.sampler.submit(keep, prompt, options, settings)
    }
}

impl fmt::Debug for SamplingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SamplingClient")
            .field("sampling_session_id", &self.sampling_session_id())
            .finish_non_exhaustive()
    }
}

/// A prompt to score: the whole of it, or its last tokens.
///
/// A bare prompt will do wherever one is taken.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LogprobsRequest {
    /// The prompt.
    pub prompt: ModelInput,
    /// How many tokens at its end are scored. Default: all but the first.
    #[doc(alias = "prompt_logprobs_last_n")]
    pub last: Option<u32>,
}

impl LogprobsRequest {
    /// Scores the last `count` tokens: from 1 to all but the first.
    pub fn last(prompt: impl Into<ModelInput>, count: u32) -> Self {
        Self {
            prompt: prompt.into(),
            last: Some(count),
        }
    }

    fn options(&self) -> Result<SampleOptions> {
        let options = SampleOptions::score_prompt();
        let Some(last) = self.last else {
            return Ok(options);
        };
        let scored = self.prompt.length()?.saturating_sub(1);
        if !(1..=scored).contains(&(last as usize)) {
            let problem = format!("must be from 1 to {scored}, got {last}");
            return Err(Error::invalid("prompt_logprobs_last_n", problem));
        }
        Ok(options.with_prompt_logprobs_last_n(last))
    }
}

impl From<ModelInput> for LogprobsRequest {
    fn from(prompt: ModelInput) -> Self {
        Self { prompt, last: None }
    }
}

impl From<&ModelInput> for LogprobsRequest {
    fn from(prompt: &ModelInput) -> Self {
        prompt.clone().into()
    }
}

fn prompt_logprobs(response: SampleResponse) -> Result<PromptLogprobs> {
    response.prompt_logprobs.ok_or_else(|| {
        let message = "prompt logprobs were asked for but none came";
        Error::Reply(Context::new(message))
    })
}
