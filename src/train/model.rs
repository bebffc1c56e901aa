//! The model a run trains: made anew, from weights, or from the run's own last checkpoint.

use super::record::CheckpointRecord;
use super::run::Run;
use crate::Result;
use crate::client::{Resume, SamplingClient, Save, ServiceClient, TrainingClient, TrainingOptions};
use crate::types::LoraConfig;

/// Which model a run trains, and how it is made.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Model {
    /// The base model.
    pub name: String,
    /// The adapter. Default: rank 32 on every layer.
    pub lora: LoraConfig,
    /// Weights to begin with, whose optimiser is not taken over. Default: none.
    pub load_checkpoint_path: Option<String>,
    /// The renderer that made the data, which is noted with the run. Default: none.
    pub renderer_name: Option<String>,
}

impl Model {
    /// A base model with an adapter of rank 32.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            lora: LoraConfig::rank(32),
            load_checkpoint_path: None,
            renderer_name: None,
        }
    }

    /// Sets the adapter.
    #[must_use]
    pub fn with_lora(mut self, lora: LoraConfig) -> Self {
        self.lora = lora;
        self
    }

    /// Begins with saved weights.
    #[must_use]
    pub fn with_weights(mut self, path: impl Into<String>) -> Self {
        self.load_checkpoint_path = Some(path.into());
        self
    }

    /// Notes the renderer that made the data.
    #[must_use]
    pub fn with_renderer(mut self, name: impl Into<String>) -> Self {
        self.renderer_name = Some(name.into());
        self
    }

    /// Makes it: from the run's last checkpoint with its optimiser if there is one, else from the
    /// weights to begin with, else anew.
    ///
    /// # Errors
    ///
    /// What the service says.
    pub fn start(
        &self,
        service: &ServiceClient,
        run: &Run,
        last: Option<&CheckpointRecord>,
    ) -> Result<TrainingClient> {
        let renderer = self.renderer_name.as_deref();
        let resume = |path: &str| {
            let resume = Resume::from_checkpoint(path);
            match renderer {
                Some(name) => resume.with_metadata("renderer_name", name),
                None => resume,
            }
        };
        if let Some(path) = last.and_then(|last| last.state_path.as_deref()) {
            self.check_renderer(service, run, path)?;
            return service.create_training_client_from_state_with_optimizer(resume(path));
        }
        if let Some(path) = self.load_checkpoint_path.as_deref() {
            self.check_renderer(service, run, path)?;
            return service.create_training_client_from_state(resume(path));
        }
        let mut options = TrainingOptions::from(self.lora.clone());
        if let Some(name) = renderer {
            options = options.with_metadata("renderer_name", name);
        }
        service.create_lora_training_client(&self.name, options)
    }

    /// The run's reference at a step: the model as the run began, or as it was last frozen before.
    pub(super) fn reference(
        &self,
        service: &ServiceClient,
        run: &Run,
        training: &TrainingClient,
        resumed: bool,
        step: usize,
    ) -> Result<SamplingClient> {
        let records = run.folder().read()?.checkpoints;
        let kept = records
            .into_iter()
            .rfind(|record| record.name == REFERENCE && record.batch.unwrap_or(0) <= step as u64);
        if let Some(path) = kept.and_then(|record| record.sampler_path) {
            return service.create_sampling_client(path);
        }
        if resumed {
            // A run that some other tool began: its first weights are not known any better.
            let start = self.load_checkpoint_path.as_deref();
            return service.create_sampling_client(start.unwrap_or(&self.name));
        }
        freeze(run, training, 0)
    }

    /// Says so if a checkpoint was made with another renderer.
    fn check_renderer(&self, service: &ServiceClient, run: &Run, path: &str) -> Result<()> {
        let Some(mine) = self.renderer_name.as_deref() else {
            return Ok(());
        };
        let scope = crate::types::AccessScope::Owned;
        let stored = service.rest().training_run_by_tinker_path(path, scope);
        let stored = stored.ok().and_then(|run| run.user_metadata);
        let stored = stored.and_then(|metadata| metadata.get("renderer_name").cloned());
        match stored {
            None => run
                .folder()
                .note(&format!("{path} does not say its renderer")),
            Some(stored) if stored != mine => {
                ::log::warn!("{path} was made with renderer {stored}, this run uses {mine}");
                run.folder().note(&format!(
                    "{path} was made with renderer {stored}, not {mine}"
                ))
            }
            Some(_) => Ok(()),
        }
    }
}

/// The name under which a reference stands in `checkpoints.jsonl`.
const REFERENCE: &str = "reference";

/// Saves the weights as they are as the run's reference from this step on.
pub(super) fn freeze(run: &Run, training: &TrainingClient, step: usize) -> Result<SamplingClient> {
    let name = match step {
        0 => REFERENCE.to_owned(),
        _ => format!("{REFERENCE}-{step:06}"),
    };
    let saved = training.save_weights_for_sampler(Save::named(name))?;
    let saved = saved.join()?;
    let mut record = CheckpointRecord::new(REFERENCE);
    record.batch = Some(step as u64);
    record.sampler_path = saved.path.map(|path| path.to_string());
    run.folder().append_checkpoint(&record)?;
    let path = record.sampler_path.unwrap_or_default();
    training.create_sampling_client(path)
}

impl From<&str> for Model {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Model {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}
