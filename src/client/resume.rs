//! Going on from a checkpoint.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use super::service::{ServiceClient, TrainingOptions};
use super::training::{Load, TrainingClient};
use crate::config::Secret;
use crate::error::{Context, Error, Result};
use crate::types::{
    AccessScope, Checkpoint, CheckpointKind, CheckpointRef, LoraConfig, OptimizerConfig, SessionId,
    TrainingRun, WeightsInfo,
};
use crate::wire::request::{LoadWeightsRequest, to_json};

/// A checkpoint to go on from, and how.
///
/// Anything that names a checkpoint will do wherever one is taken.
///
/// ```
/// use tinker::client::Resume;
///
/// let plain = Resume::from("tinker://run/weights/step-100");
/// let noted = Resume::from_checkpoint("tinker://run/weights/step-100").with_metadata("try", 2);
/// assert_eq!(plain.checkpoint, noted.checkpoint);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Resume {
    /// Where the weights are.
    pub checkpoint: CheckpointRef,
    /// Another base model than the checkpoint's. Default: the checkpoint's.
    pub base_model: Option<String>,
    /// The optimiser family of the new run, where the checkpoint's optimiser is not taken over.
    /// Default: AdamW.
    pub optimizer: Option<OptimizerConfig>,
    /// A token that grants access to someone else's checkpoint. Default: none.
    pub weights_access_token: Option<Secret>,
    /// Free-form metadata of the new run. Default: none.
    pub metadata: Option<Map<String, Value>>,
}

impl Resume {
    /// Goes on from this checkpoint.
    pub fn from_checkpoint(checkpoint: impl Into<CheckpointRef>) -> Self {
        Self {
            checkpoint: checkpoint.into(),
            base_model: None,
            optimizer: None,
            weights_access_token: None,
            metadata: None,
        }
    }

    /// Sets another base model.
    #[must_use]
    pub fn with_base_model(mut self, name: impl Into<String>) -> Self {
        self.base_model = Some(name.into());
        self
    }

    /// Sets the optimiser family of the new run.
    #[must_use]
    pub fn with_optimizer(mut self, optimizer: OptimizerConfig) -> Self {
        self.optimizer = Some(optimizer);
        self
    }

    /// Sets the token that grants access to the checkpoint.
    #[must_use]
    pub fn with_weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.weights_access_token = Some(token.into());
        self
    }

    /// Adds one entry of metadata.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }
}

impl Resume {
    fn load(&self) -> Load {
        Load {
            checkpoint: self.checkpoint.clone(),
            weights_access_token: self.weights_access_token.clone(),
        }
    }

    /// The request that makes a model from the checkpoint, given the session's id and the model's
    /// number.
    fn request(&self, with_state: bool) -> impl FnOnce(&str, u64) -> Result<Vec<u8>> {
        move |session_id, number| {
            let path = self.checkpoint.as_str();
            let mut request = LoadWeightsRequest::new_model(session_id, number, path, with_state);
            request.base_model = self.base_model.as_deref().map(Into::into);
            request.user_metadata = self.metadata.as_ref().map(Cow::Borrowed);
            request.optimizer_config = self.optimizer.as_ref().map(Cow::Borrowed);
            let token = self.weights_access_token.as_ref();
            request.weights_access_token = token.map(|token| token.expose().into());
            to_json(&request)
        }
    }
}

impl<C: Into<CheckpointRef>> From<C> for Resume {
    fn from(checkpoint: C) -> Self {
        Self::from_checkpoint(checkpoint)
    }
}

/// A client that goes on from a run's last checkpoint, and what was lost on the way.
#[derive(Debug)]
#[non_exhaustive]
pub struct Recovery {
    /// The new client: the checkpoint's weights and optimiser, in a new run.
    pub training: TrainingClient,
    /// What it was made from.
    pub checkpoint: Checkpoint,
    /// The run that was recovered.
    pub run: TrainingRun,
    /// How long the run went on after that checkpoint: this much work has to be done again.
    pub lost: Duration,
    /// The session that the service no longer knew; the new client is in another.
    pub left_session: Option<SessionId>,
}

impl ServiceClient {
    /// Creates a model from saved weights; the optimiser starts afresh.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// use tinker::{client::Resume, types::OptimizerConfig};
    ///
    /// let path = "tinker://run/weights/step-100";
    /// let training = service.create_training_client_from_state(path)?;
    /// let resume = Resume::from_checkpoint(path).with_optimizer(OptimizerConfig::Dimuon);
    /// let training = service.create_training_client_from_state(resume)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path does not begin with `tinker://`; [`Error::Reply`] for
    /// weights that are not an adapter.
    pub fn create_training_client_from_state(
        &self,
        resume: impl Into<Resume>,
    ) -> Result<TrainingClient> {
        self.resume(&resume.into(), false)
    }

    /// Creates a model from saved weights and optimiser: training goes on where it was.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// let path = "tinker://run/weights/step-100";
    /// let training = service.create_training_client_from_state_with_optimizer(path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`create_training_client_from_state`](Self::create_training_client_from_state), and
    /// [`Error::Invalid`] for an optimiser family, which is the checkpoint's here.
    pub fn create_training_client_from_state_with_optimizer(
        &self,
        resume: impl Into<Resume>,
    ) -> Result<TrainingClient> {
        let resume = resume.into();
        if resume.optimizer.is_some() {
            let problem = "is the checkpoint's where its state is loaded";
            return Err(Error::invalid("optimizer", problem));
        }
        self.resume(&resume, true)
    }

    /// Finds the last training checkpoint of a run and goes on from it, optimiser included. For
    /// use after [`Error::Broken`], or in a new process after a crash. If the service no longer
    /// knows this client's session, because it was restarted, a new one is opened; clients made
    /// in the old one are of no more use.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the run has no training checkpoint; otherwise what the service says.
    pub fn recover(&self, run_id: &str) -> Result<Recovery> {
        let _deadline = self.host().deadline();
        // A service that was restarted may have forgotten what it did last.
        let seen = self.host().last_accepted(run_id);
        let left_session = self.host().leave_lost_session()?;
        if let Some(left) = &left_session {
            log::warn!("the service no longer knows session {left}: opening another");
        }
        let run = self.rest().training_run(run_id, AccessScope::Owned)?;
        let checkpoint = self.last_checkpoint(run_id)?;
        let last = seen.map_or(run.last_request_time, |seen| {
            seen.max(run.last_request_time)
        });
        let lost = Duration::try_from(last.duration_since(checkpoint.time)).unwrap_or_default();
        let path = &checkpoint.tinker_path;
        log::info!("recovering {run_id} from {path}; {lost:?} of work after it is lost");
        Ok(Recovery {
            training: self.resume(&Resume::from(&checkpoint), true)?,
            checkpoint,
            run,
            lost,
            left_session: left_session.map(Into::into),
        })
    }

    fn last_checkpoint(&self, run_id: &str) -> Result<Checkpoint> {
        let listed = self.rest().list_checkpoints(run_id)?;
        listed
            .into_iter()
            .filter(|checkpoint| checkpoint.checkpoint_type == CheckpointKind::Training)
            .max_by_key(|checkpoint| checkpoint.time)
            .ok_or_else(|| {
                let problem = format!("run {run_id} has no training checkpoint to go on from");
                Error::invalid("run_id", problem)
            })
    }

    fn resume(&self, resume: &Resume, with_state: bool) -> Result<TrainingClient> {
        resume.checkpoint.checked()?;
        let session = self.session()?;
        if session.core.client_config.create_model_via_load_weights {
            let token = resume.weights_access_token.as_ref();
            session.core.link.hide(token);
            let queue = session.load_model(resume.request(with_state))?;
            return Ok(TrainingClient::new(queue, session.clone()));
        }
        let info = self.weights_info(resume)?;
        let optimizer = match with_state {
            true => info.optimizer_config.clone(),
            false => resume.optimizer.clone().unwrap_or_default(),
        };
        let creation = TrainingOptions {
            lora: adapter_of(&info)?,
            optimizer,
            metadata: resume.metadata.clone(),
        };
        let base_model = resume.base_model.as_deref().unwrap_or(&info.base_model);
        let queue = session.create_model(creation.request(base_model))?;
        let training = TrainingClient::new(queue, session.clone());
        training.wait(training.load(&resume.load(), with_state)?)?;
        Ok(training)
    }

    /// What saved weights are; a token asks in its own name.
    fn weights_info(&self, resume: &Resume) -> Result<WeightsInfo> {
        let asker = match &resume.weights_access_token {
            None => self.clone(),
            Some(token) => ServiceClient::new(self.config().clone().with_api_key(token.clone()))?,
        };
        asker.rest().weights_info(&resume.checkpoint)
    }
}

fn adapter_of(info: &WeightsInfo) -> Result<LoraConfig> {
    let rank = match (info.is_lora, info.lora_rank) {
        (true, Some(rank)) => rank,
        _ => {
            let message = "these weights are not a LoRA adapter, so no model can be made from them";
            return Err(Error::Reply(Context::new(message)));
        }
    };
    Ok(LoraConfig::rank(rank)
        .with_train_unembed(info.train_unembed.unwrap_or(true))
        .with_train_mlp(info.train_mlp.unwrap_or(true))
        .with_train_attn(info.train_attn.unwrap_or(true)))
}
