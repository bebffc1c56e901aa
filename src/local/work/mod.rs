//! The threads that run models, and the work they are given.

mod batch;
pub(super) mod checkpoints;
pub(super) mod convert;
mod crew;
mod custom;
pub(super) mod generate;
pub(super) mod jobs;
pub(super) mod samples;
pub(super) mod saving;
pub(super) mod training;
pub(super) mod vocabulary;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::{self, Base, Batch, Listener, SampleRequest};
use super::source::ModelSource;
use super::state::State;
use super::state::adapters::{Adapters, Slot};
use super::state::memory::Memory;
use super::state::models::Model;
use super::state::sessions::LOCAL;
use crate::error::{Context, Error, Result};
use crate::types::TinkerPath;
use batch::SamplingThread;
use crew::Crew;
use vocabulary::Vocabulary;

/// The name of the built-in model.
const BUILT_IN: &str = "tinker-local/tiny";

/// How models are run.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkOptions {
    /// Bytes for adapters that are sampled from.
    pub(super) adapter_memory: Option<usize>,
    /// How often models in training are saved; `None` for never.
    pub(super) save_every: Option<Duration>,
    /// Whether samples come with the probabilities that the temperature makes.
    pub(super) tempered_logprobs: bool,
}

/// The model that is served and the threads that run it.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) state: Arc<State>,
    pub(super) base: Base,
    pub(super) base_model: String,
    pub(super) vocabulary: Vocabulary,
    /// The folder clients load the tokenizer from.
    pub(super) tokenizer: PathBuf,
    pub(super) adapters: Arc<Adapters>,
    pub(super) memory: Memory,
    pub(super) options: WorkOptions,
    trainers: Crew,
    sampling: SamplingThread,
}

impl Workshop {
    /// Loads the model, or the built-in one, and starts the threads.
    pub(super) fn open(
        state: Arc<State>,
        model: Option<ModelSource>,
        threads: usize,
        memory: Memory,
        options: WorkOptions,
    ) -> Result<Self> {
        let (base, base_model, vocabulary, tokenizer) = match model {
            None => (
                Base::builtin(threads)?,
                BUILT_IN.to_owned(),
                Vocabulary::Bytes,
                vocabulary::write_builtin(state.catalogue.root())?,
            ),
            Some(model) => {
                let path = model.path().canonicalize().map_err(|error| {
                    let message = format!("cannot open the model {}", model.path().display());
                    Error::Config(Context::caused(message, error))
                })?;
                let base = match model.is_gguf() {
                    true => Base::load_gguf(&path, threads)?,
                    false => Base::load(&path, threads)?,
                };
                (
                    base,
                    model.name().to_owned(),
                    Vocabulary::load(&path)?,
                    path,
                )
            }
        };
        let budget = options.adapter_memory.unwrap_or(memory.limit() / 8);
        let cache = Batch::MEMORY.min(memory.limit() / 8);
        let root = state.catalogue.root().to_owned();
        let adapters = Arc::new(Adapters::new(base.clone(), budget, root));
        let workshop = Self {
            state,
            base_model,
            vocabulary,
            tokenizer,
            memory,
            options,
            trainers: Crew::new("tinker-local-train", base.threads().clamp(1, 8))?,
            sampling: SamplingThread::start(&base, adapters.clone(), cache)?,
            adapters,
            base,
        };
        saving::restore_all(&workshop);
        Ok(workshop)
    }

    /// The adapter of a checkpoint.
    pub(super) fn adapter(&self, path: &TinkerPath) -> Result<Arc<Slot>> {
        let load = || Ok(checkpoints::restore(self, path, false)?.adapter());
        self.adapters.of_checkpoint(path, load)
    }

    /// Hands a request that was checked to the batch.
    fn sample(
        &self,
        adapter: Option<Arc<Slot>>,
        mut request: SampleRequest,
        listener: Box<dyn Listener>,
    ) {
        request.tempered_logprobs = self.options.tempered_logprobs;
        let engine::Stop { tokens, strings } = &mut request.stop;
        tokens.extend(
            strings
                .iter()
                .filter_map(|text| self.vocabulary.special(text)),
        );
        self.sampling.submit(adapter, request, listener);
    }

    /// Whose model it is.
    fn owner_of(&self, model: &Model) -> String {
        let owner = self.state.sessions.owner(&model.session_id);
        // A session may have been forgotten before its runs.
        let owner = owner.or_else(|| Some(self.state.catalogue.run(&model.id).ok()?.owner));
        owner.unwrap_or_else(|| LOCAL.to_owned())
    }

    /// Does what is due now and then.
    pub(super) fn tidy(self: &Arc<Self>) {
        for session in self.state.sessions.expire(Instant::now()) {
            log::warn!("local server: session {} lost its heartbeat", session.id);
            let models = session.models.values();
            for model in models.filter_map(|id| self.state.models.get(id).ok()) {
                saving::lay_down(self, &model);
            }
            self.state.end_session(&session);
        }
        self.state.sweep();
        saving::save_due(self);
    }

    /// Ends the work: samples are dropped, and so is training that will not be kept.
    pub(super) fn close(self: &Arc<Self>) {
        self.state.futures.cancel_all();
        saving::farewell(self);
        self.sampling.close();
        self.state.ledger.write();
    }
}
