//! Going on from a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::service::{ServiceClient, TrainingOptions};
use super::train_ops::checked_path;
use super::training::TrainingClient;
use crate::config::Secret;
use crate::error::{Context, Error, Result};
use crate::runtime::session::Session;
use crate::transport::Request;
use crate::types::{
    Checkpoint, CheckpointKind, CheckpointPage, LoadWeightsResponse, LoraConfig, OptimizerConfig,
    TrainingRun, WeightsInfo,
};
use crate::wire::request::{LoadWeightsRequest, WeightsInfoRequest, to_json};
use crate::wire::route;

/// How to go on from a checkpoint.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ResumeOptions {
    /// Another base model than the checkpoint's. Default: the checkpoint's.
    pub base_model: Option<String>,
    /// A token that grants access to someone else's checkpoint. Default: none.
    pub weights_access_token: Option<Secret>,
    /// Free-form metadata of the new run. Default: none.
    pub metadata: Option<Map<String, Value>>,
}

impl ResumeOptions {
    /// Sets another base model.
    #[must_use]
    pub fn with_base_model(mut self, name: impl Into<String>) -> Self {
        self.base_model = Some(name.into());
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
}

impl ServiceClient {
    /// Creates a model from saved weights; the optimiser starts afresh.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path does not begin with `tinker://`, or names weights that are
    /// not an adapter.
    pub fn create_training_client_from_state(
        &self,
        path: &str,
        options: ResumeOptions,
    ) -> Result<TrainingClient> {
        self.resume(path, false, &options)
    }

    /// Creates a model from saved weights and optimiser: training goes on where it was.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// use tinker::client::ResumeOptions;
    ///
    /// let training = service.create_training_client_from_state_with_optimizer(
    ///     "tinker://run/weights/step-100",
    ///     ResumeOptions::default(),
    /// )?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`create_training_client_from_state`](Self::create_training_client_from_state).
    pub fn create_training_client_from_state_with_optimizer(
        &self,
        path: &str,
        options: ResumeOptions,
    ) -> Result<TrainingClient> {
        self.resume(path, true, &options)
    }

    /// Finds the last training checkpoint of a run and goes on from it, optimiser included. For
    /// use after [`Error::Broken`], or in a new process after a crash.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the run has no training checkpoint; otherwise what the service says.
    pub fn recover(&self, run_id: &str) -> Result<Recovery> {
        let link = self.link()?;
        let route = &route::GET_TRAINING_RUN;
        let path = route.path(&[run_id])?;
        let request = Request::to(route, path).with_query("access_scope=owned");
        let run: TrainingRun = link.call(request, route.into())?;
        let route = &route::LIST_CHECKPOINTS;
        let request = Request::to(route, route.path(&[run_id])?);
        let listed: CheckpointPage = link.call(request, route.into())?;
        let checkpoint = listed
            .checkpoints
            .into_iter()
            .filter(|checkpoint| checkpoint.checkpoint_type == CheckpointKind::Training)
            .max_by_key(|checkpoint| checkpoint.time)
            .ok_or_else(|| {
                let problem = format!("run {run_id} has no training checkpoint to go on from");
                Error::invalid("run_id", problem)
            })?;
        let lost = run.last_request_time.duration_since(checkpoint.time);
        let lost = Duration::try_from(lost).unwrap_or_default();
        log::info!(
            "recovering {run_id} from {}; {lost:?} of work after it is lost",
            checkpoint.tinker_path
        );
        let training = self.resume(&checkpoint.tinker_path, true, &ResumeOptions::default())?;
        Ok(Recovery {
            training,
            checkpoint,
            run,
            lost,
        })
    }

    fn resume(
        &self,
        path: &str,
        optimizer: bool,
        options: &ResumeOptions,
    ) -> Result<TrainingClient> {
        checked_path(path)?;
        let session = self.session()?;
        if session.core.client_config.create_model_via_load_weights {
            return resume_in_one(&session, path, optimizer, options);
        }
        let info = self.weights_info(path, options.weights_access_token.as_ref())?;
        let creation = TrainingOptions {
            lora: adapter_of(&info)?,
            optimizer: match optimizer {
                true => info.optimizer_config.clone(),
                false => OptimizerConfig::default(),
            },
            metadata: options.metadata.clone(),
        };
        let base_model = options.base_model.as_deref().unwrap_or(&info.base_model);
        let model_id = self.create_model(&session, base_model, &creation)?;
        let training = TrainingClient::start(session, model_id, 1)?;
        let token = options.weights_access_token.clone();
        training.load(path, optimizer, token)?.join()?;
        Ok(training)
    }

    /// What saved weights are; a token asks in its own name.
    fn weights_info(&self, path: &str, token: Option<&Secret>) -> Result<WeightsInfo> {
        let body = to_json(&WeightsInfoRequest {
            tinker_path: path.into(),
        })?;
        let link = match token {
            None => self.link()?,
            Some(token) => {
                let config = self.config().clone().with_api_key(token.clone());
                ServiceClient::new(config)?.link()?
            }
        };
        link.json(&route::WEIGHTS_INFO, &body)
    }
}

/// One request that creates the model and loads it; its id follows from the session's.
fn resume_in_one(
    session: &Arc<Session>,
    path: &str,
    optimizer: bool,
    options: &ResumeOptions,
) -> Result<TrainingClient> {
    let core = &session.core;
    let number = session.next_model();
    let mut request =
        LoadWeightsRequest::new_model(core.session_id.as_str(), number, path, optimizer);
    request.base_model = options.base_model.as_deref().map(Into::into);
    request.user_metadata = options.metadata.as_ref().map(std::borrow::Cow::Borrowed);
    let token = options.weights_access_token.as_ref();
    request.weights_access_token = token.map(|token| token.expose().into());
    let body = to_json(&request)?;
    let _: LoadWeightsResponse = session
        .run(&route::LOAD_WEIGHTS, "LoadWeights", &body)?
        .join()?;
    let model_id = format!("{}:train:{number}", core.session_id);
    TrainingClient::start(session.clone(), model_id, 1)
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
