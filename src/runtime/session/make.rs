//! What a session makes on the service: models and samplers, each under a number of its own.

use std::sync::Arc;

use super::Session;
use crate::error::Result;
use crate::runtime::sampling::Sampler;
use crate::runtime::training::Queue;
use crate::types::ModelId;
use crate::wire::reply::{CreateModelReply, CreateSamplingSessionReply};
use crate::wire::request::{CreateSamplingSessionRequest, to_json};
use crate::wire::route;

impl Session {
    /// Creates a model and starts its queue. `body` makes the request from the session's id and
    /// the model's number.
    pub(crate) fn create_model(
        self: &Arc<Self>,
        body: impl FnOnce(&str, u64) -> Result<Vec<u8>>,
    ) -> Result<Arc<Queue>> {
        let body = body(&self.core.session_id, self.next_model())?;
        let reply: CreateModelReply = self.wait(self.run(&route::CREATE_MODEL, &body)?)?;
        self.start_queue(reply.model_id.into(), 1)
    }

    /// Creates a model and loads its weights in one request, and starts its queue. The model's id
    /// follows from the session's.
    pub(crate) fn load_model(
        self: &Arc<Self>,
        body: impl FnOnce(&str, u64) -> Result<Vec<u8>>,
    ) -> Result<Arc<Queue>> {
        let (session_id, number) = (self.core.session_id.as_str(), self.next_model());
        let body = body(session_id, number)?;
        let loaded = self.run::<serde_json::Value>(&route::LOAD_WEIGHTS, &body)?;
        self.wait(loaded)?;
        let model_id = ModelId::from(format!("{session_id}:train:{number}"));
        self.start_queue(model_id, 1)
    }

    /// Opens a sampler of a base model or of saved weights.
    pub(crate) fn open_sampler(
        &self,
        base_model: Option<&str>,
        model_path: Option<&str>,
    ) -> Result<Arc<Sampler>> {
        self.check_open()?;
        let body = to_json(&CreateSamplingSessionRequest {
            session_id: self.core.session_id.as_str().into(),
            sampling_session_seq_id: self.next_sampler(),
            base_model: base_model.map(Into::into),
            model_path: model_path.map(Into::into),
        })?;
        let route = &route::CREATE_SAMPLING_SESSION;
        let reply: CreateSamplingSessionReply = self.core.link.json(route, &body)?;
        Ok(self.sampler(reply.sampling_session_id.into(), false))
    }
}
