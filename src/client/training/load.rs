//! Loading saved weights into a model.

use super::TrainingClient;
use crate::config::Secret;
use crate::error::Result;
use crate::runtime::pending::Pending;
use crate::types::{CheckpointRef, LoadWeightsResponse};
use crate::wire::request::{LoadWeightsRequest, to_json};
use crate::wire::route;

/// A checkpoint to load into a model.
///
/// Anything that names a checkpoint will do wherever one is taken.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Load {
    /// Where the weights are.
    pub checkpoint: CheckpointRef,
    /// A token that grants access to someone else's checkpoint. Default: none.
    pub weights_access_token: Option<Secret>,
}

impl Load {
    /// Loads this checkpoint.
    pub fn from_checkpoint(checkpoint: impl Into<CheckpointRef>) -> Self {
        Self {
            checkpoint: checkpoint.into(),
            weights_access_token: None,
        }
    }

    /// Sets the token that grants access to the checkpoint.
    #[must_use]
    pub fn with_weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.weights_access_token = Some(token.into());
        self
    }
}

impl<C: Into<CheckpointRef>> From<C> for Load {
    fn from(checkpoint: C) -> Self {
        Self::from_checkpoint(checkpoint)
    }
}

impl TrainingClient {
    /// Loads saved weights into this model; the optimiser starts afresh.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the path does not begin with `tinker://`.
    #[deprecated(
        note = "use ServiceClient::create_training_client_from_state: the hosted service \
                accepts a load only as a model's first request"
    )]
    pub fn load_state(&self, load: impl Into<Load>) -> Result<Pending<LoadWeightsResponse>> {
        self.load(&load.into(), false)
    }

    /// Loads saved weights and optimiser into this model.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the path does not begin with `tinker://`.
    #[deprecated(
        note = "use ServiceClient::create_training_client_from_state_with_optimizer: the \
                hosted service accepts a load only as a model's first request"
    )]
    pub fn load_state_with_optimizer(
        &self,
        load: impl Into<Load>,
    ) -> Result<Pending<LoadWeightsResponse>> {
        self.load(&load.into(), true)
    }

    pub(in crate::client) fn load(
        &self,
        load: &Load,
        optimizer: bool,
    ) -> Result<Pending<LoadWeightsResponse>> {
        let path = load.checkpoint.checked()?.to_owned();
        let token = load.weights_access_token.clone();
        self.session.core.link.hide(token.as_ref());
        self.queue
            .post(&route::LOAD_WEIGHTS, move |model_id, number| {
                let mut request =
                    LoadWeightsRequest::into_model(model_id.as_str(), number, path, optimizer);
                request.weights_access_token = token.as_ref().map(|token| token.expose().into());
                to_json(&request)
            })
    }
}
