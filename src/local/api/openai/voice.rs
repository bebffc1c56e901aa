//! What an endpoint needs of a model: the embedded engine and a server elsewhere both have it.

use std::sync::Arc;

use super::errors::Fault;
use crate::error::Error;
use crate::local::engine::{SampleRequest, Usual};
use crate::local::state::memory::Promise;
use crate::local::work::generate::Hearer;
use crate::local::work::vocabulary::Vocabulary;

/// The models there are for whoever asks.
pub(in crate::local) trait Backend: Send + Sync + 'static {
    type Voice: Voice;

    /// All of them. May take long.
    fn models(&self) -> Result<Vec<Card>, Fault>;

    /// One of them, ready to be asked. May take long.
    fn open(&self, model: &str) -> Result<Arc<Self::Voice>, Fault>;
}

/// A model as it is listed.
#[derive(Debug)]
pub(in crate::local) struct Card {
    pub(in crate::local) id: String,
    /// Seconds since 1970.
    pub(in crate::local) created: i64,
}

/// A model that can be asked.
pub(in crate::local) trait Voice: Send + Sync + 'static {
    fn vocabulary(&self) -> &Vocabulary;

    /// What reads its answers, if its family is known.
    #[cfg(feature = "text")]
    fn renderer(&self) -> Option<&crate::text::Renderer>;

    /// Tokens that end a text.
    fn ends(&self) -> Vec<u32>;

    /// How its makers sample from it, for what a request does not say.
    fn usual(&self) -> Usual;

    /// How many tokens prompt and answer may have together, if that is known.
    fn positions(&self) -> Option<usize>;

    /// Refuses what cannot be sampled, before anything is made of its numbers.
    fn check(&self, request: &SampleRequest) -> Result<(), Fault>;

    /// Takes so much of the server's memory for an answer; nothing where there is no limit.
    fn promise(&self, _bytes: usize) -> Result<Option<Promise>, Fault> {
        Ok(None)
    }

    /// What a sample's failure is to whoever asked.
    fn fault(&self, error: Error) -> Fault {
        error.into()
    }

    /// Samples; the requests were checked. Refused if there are too many already.
    fn sample(
        self: Arc<Self>,
        requests: Vec<SampleRequest>,
        hearer: Arc<dyn Hearer>,
    ) -> Result<(), Fault>;
}
