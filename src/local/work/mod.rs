//! The threads that run models, and the work they are given.

mod batch;
pub(super) mod checkpoints;
pub(super) mod convert;
mod crew;
mod custom;
pub(super) mod generate;
pub(super) mod jobs;
pub(super) mod samples;
pub(super) mod training;
pub(super) mod vocabulary;

use std::path::PathBuf;
use std::sync::Arc;

use super::engine::Base;
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
        adapter_memory: Option<usize>,
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
        let budget = adapter_memory.unwrap_or(memory.limit() / 8);
        let root = state.catalogue.root().to_owned();
        let adapters = Arc::new(Adapters::new(base.clone(), budget, root));
        Ok(Self {
            state,
            base_model,
            vocabulary,
            tokenizer,
            memory,
            trainers: Crew::new("tinker-local-train", base.threads().clamp(1, 8))?,
            sampling: SamplingThread::start(&base, adapters.clone())?,
            adapters,
            base,
        })
    }

    /// The adapter of a checkpoint.
    pub(super) fn adapter(&self, path: &TinkerPath) -> Result<Arc<Slot>> {
        let load = || Ok(checkpoints::restore(self, path, false)?.adapter());
        self.adapters.of_checkpoint(path, load)
    }

    /// Whose model it is.
    fn owner_of(&self, model: &Model) -> String {
        let owner = self.state.sessions.owner(&model.session_id);
        owner.unwrap_or_else(|| LOCAL.to_owned())
    }

    /// Ends the work: what runs is finished, what waits is dropped.
    pub(super) fn close(&self) {
        self.state.futures.cancel_all();
        self.trainers.close();
        self.sampling.close();
        self.state.ledger.write();
    }
}
