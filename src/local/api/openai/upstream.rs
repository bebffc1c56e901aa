//! What stands behind a proxy.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::text::Tokenizer;
use crate::types::{SampleRequest, SampleResponse};

/// The server behind a [`Proxy`](crate::local::Proxy): which models it has, and how they are asked.
pub trait Upstream: Send + Sync + 'static {
    /// The names of the models to list: base models, and paths of sampler weights.
    ///
    /// # Errors
    ///
    /// What kept the server from answering.
    fn models(&self) -> Result<Vec<String>>;

    /// A model by its name, ready to be asked. Called for every request, so it is worth keeping
    /// what was opened.
    ///
    /// # Errors
    ///
    /// If there is no such model, or what kept the server from answering.
    fn open(&self, model: &str) -> Result<UpstreamModel>;
}

type Sample = dyn Fn(SampleRequest) -> Result<SampleResponse> + Send + Sync;

/// A model of an [`Upstream`]. Cloning is cheap.
#[derive(Clone)]
pub struct UpstreamModel {
    pub(in crate::local) base_model: String,
    pub(in crate::local) tokenizer: Tokenizer,
    pub(in crate::local) context: Option<usize>,
    pub(in crate::local) sample: Arc<Sample>,
}

impl UpstreamModel {
    /// A model of a family that its base model tells, and what asks it: a function that waits for
    /// the answer, such as [`SamplingClient::sample`](crate::SamplingClient::sample). It runs on a
    /// thread of its own for every prompt.
    pub fn new(
        base_model: impl Into<String>,
        tokenizer: Tokenizer,
        sample: impl Fn(SampleRequest) -> Result<SampleResponse> + Send + Sync + 'static,
    ) -> Self {
        Self {
            base_model: base_model.into(),
            tokenizer,
            context: None,
            sample: Arc::new(sample),
        }
    }

    /// How many tokens prompt and answer may have together. Default: the server's business.
    #[must_use]
    pub fn with_context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }
}

impl fmt::Debug for UpstreamModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamModel")
            .field("base_model", &self.base_model)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
