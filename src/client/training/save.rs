//! Saving, and questions about the model.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::TrainingClient;
use crate::client::sampling::{SamplerSource, SamplingClient};
use crate::client::service::open_sampler;
use crate::error::{Context, Error, Result};
use crate::runtime::pending::Pending;
use crate::types::{
    CheckpointRef, ModelInfo, SaveWeightsExternalResponse, SaveWeightsForSamplerResponse,
    SaveWeightsResponse, checkpoint_ttl,
};
use crate::wire::request::{
    GetInfoRequest, SaveWeightsExternalRequest, SaveWeightsForSamplerRequest, SaveWeightsRequest,
    UnloadModelRequest, to_json,
};
use crate::wire::route;

/// A checkpoint to be saved: its name, how long it is kept, what is noted with it.
///
/// A bare name will do wherever one is taken.
///
/// ```
/// use std::time::Duration;
/// use tinker::client::Save;
///
/// let plain = Save::from("step-100");
/// let kept_a_day = Save::named("step-100").with_ttl(Duration::from_secs(86_400));
/// assert_eq!(plain.name, kept_a_day.name);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Save {
    /// Its name, which becomes the end of its path.
    pub name: String,
    /// How long the service keeps it: from an hour to ten years. Default: for ever.
    pub ttl: Option<Duration>,
    /// Whether it may replace one of the same name; training checkpoints only. Default: no.
    pub overwrite: bool,
    /// Free-form metadata. Default: none.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl Save {
    /// A checkpoint of this name, kept for ever.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ttl: None,
            overwrite: false,
            metadata: None,
        }
    }

    /// Sets how long the checkpoint is kept.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Lets it replace a checkpoint of the same name.
    #[must_use]
    pub fn with_overwrite(mut self) -> Self {
        self.overwrite = true;
        self
    }

    /// Adds one entry of metadata.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }
}

impl<N: Into<String>> From<N> for Save {
    fn from(name: N) -> Self {
        Self::named(name)
    }
}

/// Weights to be exported: their name, how long they are kept, for whom they are encrypted.
///
/// A bare name will do wherever one is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Export {
    /// Their name, which becomes the end of their path.
    pub name: String,
    /// How long the service keeps them: from an hour to ten years. Default: for ever.
    pub ttl: Option<Duration>,
    /// Public keys of [age](https://age-encryption.org) to encrypt them for, at most ten.
    /// Default: none, which leaves them unencrypted.
    pub age_recipients: Vec<String>,
}

impl Export {
    /// An export of this name, kept for ever and unencrypted.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ttl: None,
            age_recipients: Vec::new(),
        }
    }

    /// Sets how long the export is kept.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Adds a public key to encrypt the export for.
    #[must_use]
    pub fn with_age_recipient(mut self, key: impl Into<String>) -> Self {
        self.age_recipients.push(key.into());
        self
    }
}

impl<N: Into<String>> From<N> for Export {
    fn from(name: N) -> Self {
        Self::named(name)
    }
}

impl TrainingClient {
    /// Saves weights and optimiser under a name, to go on from later.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient) -> tinker::Result<()> {
    /// use std::time::Duration;
    /// use tinker::client::Save;
    ///
    /// let saved = training.save_state("step-100")?.join()?;
    /// println!("{}", saved.path); // tinker://…/weights/step-100
    /// let day = Duration::from_secs(86_400);
    /// training.save_state(Save::named("step-101").with_ttl(day))?.join()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty name or a ttl out of range.
    pub fn save_state(&self, save: impl Into<Save>) -> Result<Pending<SaveWeightsResponse>> {
        let save = save.into();
        let (name, ttl_seconds) = (checked_name(save.name)?, checkpoint_ttl("ttl", save.ttl)?);
        self.queue
            .post(&route::SAVE_WEIGHTS, move |model_id, number| {
                to_json(&SaveWeightsRequest {
                    model_id: model_id.as_str().into(),
                    path: Some(name.into()),
                    seq_id: Some(number),
                    ttl_seconds,
                    overwrite: save.overwrite,
                    user_metadata: save.metadata.map(Cow::Owned),
                })
            })
    }

    /// Saves weights under a name, for sampling.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state); [`Error::Invalid`] for `overwrite`, which sampler
    /// weights do not know.
    pub fn save_weights_for_sampler(
        &self,
        save: impl Into<Save>,
    ) -> Result<Pending<SaveWeightsForSamplerResponse>> {
        let save = save.into();
        if save.overwrite {
            let problem = "sampler weights cannot replace others; choose another name";
            return Err(Error::invalid("overwrite", problem));
        }
        let (name, ttl_seconds) = (checked_name(save.name)?, checkpoint_ttl("ttl", save.ttl)?);
        let route = &route::SAVE_WEIGHTS_FOR_SAMPLER;
        let pending = self.queue.post(route, move |model_id, number| {
            to_json(&SaveWeightsForSamplerRequest {
                model_id: model_id.as_str().into(),
                path: Some(name.into()),
                sampling_session_seq_id: None,
                seq_id: Some(number),
                ttl_seconds,
                user_metadata: save.metadata.map(Cow::Owned),
            })
        })?;
        Ok(pending.and_then(with_path))
    }

    /// Writes the weights in the format other tools read, for download.
    ///
    /// # Errors
    ///
    /// As [`save_state`](Self::save_state); [`Error::Invalid`] for more than ten recipients.
    pub fn save_weights_external(
        &self,
        export: impl Into<Export>,
    ) -> Result<Pending<SaveWeightsExternalResponse>> {
        let export = export.into();
        let (name, ttl_seconds) = (
            checked_name(export.name)?,
            checkpoint_ttl("ttl", export.ttl)?,
        );
        let recipients = export.age_recipients;
        if recipients.len() > 10 {
            let problem = format!("at most 10 are possible, got {}", recipients.len());
            return Err(Error::invalid("age_recipients", problem));
        }
        let route = &route::SAVE_WEIGHTS_EXTERNAL;
        self.queue.post(route, move |model_id, number| {
            to_json(&SaveWeightsExternalRequest {
                model_id: model_id.as_str().into(),
                path: name.into(),
                seq_id: Some(number),
                ttl_seconds,
                age_encryption_recipients: (!recipients.is_empty()).then(|| recipients.into()),
            })
        })
    }

    /// A sampling client for the weights as they are after everything submitted so far. They are
    /// not kept: when the session ends they are gone.
    ///
    /// # Errors
    ///
    /// What befalls operations of the queue; [`Error::Reply`] if the service names no sampler.
    pub fn save_weights_and_get_sampling_client(&self) -> Result<SamplingClient> {
        let _deadline = self.session.deadline();
        let saved = self.wait(self.save_for_sampling()?)?;
        match (saved.sampling_session_id, saved.path) {
            (Some(id), _) => {
                let sampler = self.session.sampler(id, false);
                Ok(SamplingClient::new(sampler, self.session.clone()))
            }
            // The hosted service opens the sampler in the same request; a server may
            // also just save.
            (None, Some(path)) => self.create_sampling_client(path),
            (None, None) => Err(Error::Reply(Context::new(
                "the saved weights have neither a sampling session nor a path",
            ))),
        }
    }

    /// Saves the weights for a sampler without a name.
    fn save_for_sampling(&self) -> Result<Pending<SaveWeightsForSamplerResponse>> {
        let numbers = self.session.counters.clone();
        let route = &route::SAVE_WEIGHTS_FOR_SAMPLER;
        self.queue.post(route, move |model_id, number| {
            to_json(&SaveWeightsForSamplerRequest {
                model_id: model_id.as_str().into(),
                path: None,
                sampling_session_seq_id: Some(numbers.next_sampler()),
                seq_id: Some(number),
                ttl_seconds: None,
                user_metadata: None,
            })
        })
    }

    /// A sampling client for saved weights, in this client's session.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path does not begin with `tinker://`.
    pub fn create_sampling_client(
        &self,
        weights: impl Into<CheckpointRef>,
    ) -> Result<SamplingClient> {
        let _deadline = self.session.deadline();
        open_sampler(&self.session, &SamplerSource::weights(weights))
    }

    /// Frees the model on servers that have this call; others answer 404.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 from servers that do not have it.
    pub fn unload_model(&self) -> Result<()> {
        let body = to_json(&UnloadModelRequest {
            model_id: self.model_id().as_str().into(),
        })?;
        let _deadline = self.session.deadline();
        let route = &route::UNLOAD_MODEL;
        let unloaded = self.session.run::<serde_json::Value>(route, &body)?;
        self.wait(unloaded)?;
        Ok(())
    }

    /// What the service knows about the model.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    #[doc(alias = "get_info")]
    pub fn info(&self) -> Result<ModelInfo> {
        let body = to_json(&GetInfoRequest {
            model_id: self.model_id().as_str().into(),
        })?;
        self.session.check_open()?;
        let _deadline = self.session.deadline();
        self.session.core.link.json(&route::GET_INFO, &body)
    }

    /// The model's tokenizer.
    ///
    /// The service says which it is: a folder or a file on this machine (the embedded server
    /// writes one), or a model on the Hugging Face hub, which is downloaded unless it is in the
    /// cache already. See [`Tokenizer::for_model`](crate::text::Tokenizer::for_model).
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// # use tinker::{LoraConfig, ServiceClient};
    /// # let service = ServiceClient::local()?;
    /// # let model = service.capabilities()?.supported_models[0].model_name.clone().unwrap();
    /// # let training = service.create_lora_training_client(&model, LoraConfig::rank(4))?;
    /// let tokenizer = training.tokenizer()?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("hello")?)?, "hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it is not on this machine, naming the file and how to get it.
    #[cfg(feature = "text")]
    #[doc(alias = "get_tokenizer")]
    pub fn tokenizer(&self) -> Result<crate::text::Tokenizer> {
        let info = self.info()?;
        let name = info.model_data.model_name.or(info.model_name);
        let id = info.model_data.tokenizer_id;
        crate::text::Tokenizer::of_service(&name.unwrap_or_default(), id.as_deref())
    }
}

/// An answer that must say where the weights are.
fn with_path(saved: SaveWeightsForSamplerResponse) -> Result<SaveWeightsForSamplerResponse> {
    match saved.path {
        Some(_) => Ok(saved),
        None => Err(Error::Reply(Context::new("the saved weights have no path"))),
    }
}

fn checked_name(name: String) -> Result<String> {
    match name.is_empty() {
        true => Err(Error::invalid("name", "must not be empty")),
        false => Ok(name),
    }
}
