//! The models of the embedded engine: the base, and everything saved for sampling.

use std::sync::Arc;

use super::voice::Voice;
use super::{Backend, Card, Fault, Style};
use crate::local::api::sampling::new_sampler;
use crate::local::api::{Answer, Call};
use crate::local::engine::{SampleRequest, Usual};
use crate::local::http::Refusal;
use crate::local::state::memory::Promise;
use crate::local::state::samplers::Sampler;
use crate::local::work::Workshop;
use crate::local::work::generate::{Hearer, generate};
use crate::local::work::vocabulary::Vocabulary;
use crate::types::{CheckpointKind, TinkerPath};

pub(in crate::local::api) async fn models(call: Call) -> Answer {
    let (path, id) = (call.request.path.clone(), call.segments.first().cloned());
    Ok(super::models(Arc::new(Embedded(call)), &path, id).await)
}

pub(in crate::local::api) async fn complete(call: Call, style: Style) -> Answer {
    let (path, body) = (call.request.path.clone(), call.request.body.clone());
    Ok(super::complete(Arc::new(Embedded(call)), &path, body, style).await)
}

/// What whoever asks may use.
struct Embedded(Call);

impl Backend for Embedded {
    type Voice = Local;

    fn models(&self) -> Result<Vec<Card>, Fault> {
        let call = &self.0;
        let offers = call.work().library.offers().iter();
        let mut cards: Vec<Card> = offers
            .map(|offer| Card {
                id: offer.name.clone(),
                created: 0,
            })
            .collect();
        for checkpoint in call.state().catalogue.checkpoints(None) {
            let visible = checkpoint.owner == *call.user || checkpoint.public;
            if visible && checkpoint.path.kind() == CheckpointKind::Sampler {
                cards.push(Card {
                    id: checkpoint.path.to_string(),
                    created: checkpoint.time.as_second(),
                });
            }
        }
        Ok(cards)
    }

    fn open(&self, model: &str) -> Result<Arc<Local>, Fault> {
        let call = &self.0;
        let id = uuid::Uuid::new_v4().to_string();
        let (base, path) = match model.starts_with(TinkerPath::PREFIX) {
            true => (None, Some(model)),
            false => (Some(model), None),
        };
        if base.is_some_and(|name| call.work().library.offer(name).is_err()) {
            return Err(super::no_model(model));
        }
        let sampler = new_sampler(call, id, "openai".to_owned(), base, path)?;
        Ok(Arc::new(Local {
            work: call.work().clone(),
            sampler: Arc::new(sampler),
            most: call.service.options.max_pending_samples,
        }))
    }
}

/// The base, with or without an adapter.
struct Local {
    work: Arc<Workshop>,
    sampler: Arc<Sampler>,
    /// How many samples may wait at once.
    most: usize,
}

impl Voice for Local {
    fn vocabulary(&self) -> &Vocabulary {
        self.work.vocabulary(&self.sampler)
    }

    #[cfg(feature = "text")]
    fn renderer(&self) -> Option<&crate::text::Renderer> {
        self.work.offer_of(&self.sampler).renderer()
    }

    fn ends(&self) -> Vec<u32> {
        self.work.offer_of(&self.sampler).config.eos.clone()
    }

    fn usual(&self) -> Usual {
        self.work.offer_of(&self.sampler).config.usual
    }

    fn positions(&self) -> Option<usize> {
        Some(self.work.offer_of(&self.sampler).config.max_positions)
    }

    fn check(&self, request: &SampleRequest) -> Result<(), Fault> {
        Ok(request.check(&self.work.offer_of(&self.sampler).config)?)
    }

    fn promise(&self, bytes: usize) -> Result<Option<Promise>, Fault> {
        let promise = self.work.memory.promise("max_tokens", bytes);
        let full = |_| Refusal::busy("there is no memory left for so many log-probabilities");
        Ok(Some(promise.map_err(full)?))
    }

    fn sample(
        self: Arc<Self>,
        requests: Vec<SampleRequest>,
        hearer: Arc<dyn Hearer>,
    ) -> Result<(), Fault> {
        if self.work.state.samplers.pending() + requests.len() > self.most {
            return Err(Refusal::busy("too many samples are waiting").into());
        }
        generate(&self.work, &self.sampler, requests, hearer);
        Ok(())
    }
}
