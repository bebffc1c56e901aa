//! Trained models as files that other programs read.
//!
//! A checkpoint is an adapter: it needs its base model and a program that adds the two. An
//! [`Export`] writes what others take: the adapter as Python's `peft` reads it, a whole model as
//! `transformers` reads it, or a GGUF file for llama.cpp and Ollama.
//!
//! ```
//! # fn main() -> tinker::Result<()> {
//! use tinker::client::DownloadOptions;
//! use tinker::local::export::{Export, WeightType};
//! use tinker::{LoraConfig, ServiceClient};
//!
//! let service = ServiceClient::local()?;
//! let training = service.create_lora_training_client("tinker-local/tiny", LoraConfig::rank(4))?;
//! let saved = training.save_state("trained")?.join()?;
//!
//! # let root = tempfile::tempdir().unwrap();
//! # let folder = root.path();
//! let adapter = folder.join("adapter");
//! service.rest().download_checkpoint(saved.path, &adapter, DownloadOptions::default())?;
//! let export = Export::new(&adapter); // its base is named inside; `with_model` gives another
//! let merged = export.clone().with_type(WeightType::F32).to_hugging_face(folder.join("merged"))?;
//! let file = export.with_type(WeightType::Q8_0).to_gguf(folder.join("tiny.gguf"))?;
//! assert!(merged.path.join("model.safetensors").exists() && file.bytes > 100_000);
//! # Ok(()) }
//! ```
//!
//! Weights are read, corrected and written piece by piece: a model needs no more memory than its
//! adapter and a few megabytes. What is written has another name until it is whole, so a full disk
//! or Ctrl-C leave nothing behind that looks like a model.
//!
//! # The head
//!
//! Many models have no head of their own: the embedding serves as both. An adapter of the head
//! (`train_unembed`) corrects what comes out and not what goes in, so such a model gets a head of
//! its own when it is merged; [`Exported::untied`] says so. Tools that add the correction to the
//! embedding instead make another model than the one that was trained.

mod folder;
mod gguf;
mod numbers;
mod output;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use numbers::WeightType;

use super::adapter;
use super::engine::{Adapter, Dtype, PeftFiles, Weights, base_model, stored_as};
use super::source::{Files, ModelSource};
use crate::error::{Context, Error, Result};
use output::{Failure, Output};

/// How large a file of weights may be before another is begun, as the hub's tools have it.
const SHARD: u64 = 5_000_000_000;

/// An adapter to be written for other programs; see the [module](self).
#[must_use = "nothing is written before a `to_` method is called"]
#[derive(Clone)]
pub struct Export {
    adapter: PathBuf,
    model: Option<ModelSource>,
    weight_type: Option<WeightType>,
    force: bool,
    shard: u64,
    progress: Option<Arc<Progress>>,
}

type Progress = dyn Fn(u64, u64) -> ControlFlow<()> + Send + Sync;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// The folder or file.
    pub path: PathBuf,
    /// How large it is.
    pub bytes: u64,
    /// What most weights are stored as; `None` for an adapter, which stays as it is.
    pub weight_type: Option<WeightType>,
    /// Whether the model got a head of its own because the adapter corrects it.
    pub untied: bool,
}

impl Export {
    /// An adapter in a folder or in a tar archive (gzip or not): `adapter_config.json` and
    /// `adapter_model.safetensors`, as `peft`, the hosted service and this crate write them.
    pub fn new(adapter: impl Into<PathBuf>) -> Self {
        Self {
            adapter: adapter.into(),
            model: None,
            weight_type: None,
            force: false,
            shard: SHARD,
            progress: None,
        }
    }

    /// The base model: a folder, a GGUF file, or the name of a repository of the hub.
    /// Default: the one that the adapter's configuration names.
    pub fn with_model(mut self, model: impl Into<ModelSource>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// How weights are stored. Default: as the base model's are in a folder, or
    /// [`F16`](WeightType::F16) where those are quantised; [`F16`](WeightType::F16) in a GGUF file.
    pub fn with_type(mut self, weight_type: WeightType) -> Self {
        self.weight_type = Some(weight_type);
        self
    }

    /// Replaces what is there already. Default: that is refused.
    pub fn with_force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// How many bytes of weights a file of a folder has at most; a tensor is never cut.
    /// Default: 5 GB.
    pub fn with_shard_bytes(mut self, bytes: u64) -> Self {
        self.shard = bytes;
        self
    }

    /// Hears of the bytes of weights written so far, and of those there will be; a
    /// [`Break`](ControlFlow::Break) ends the export with [`Error::Cancelled`] and nothing left of
    /// it. Default: nobody does.
    pub fn on_progress(
        mut self,
        hear: impl Fn(u64, u64) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        self.progress = Some(Arc::new(hear));
        self
    }

    /// Writes the adapter as a folder that `peft` reads. The base model is not needed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no adapter, something in the folder's place, or a
    /// [type](Self::with_type) was asked for; [`Error::Io`] if a file cannot be read or written.
    /// Nothing half-written is left.
    pub fn to_peft(&self, folder: impl AsRef<Path>) -> Result<Exported> {
        if let Some(weight_type) = self.weight_type {
            let problem =
                format!("{weight_type} is for whole models; an adapter keeps its numbers");
            return Err(Error::invalid("weight type", problem));
        }
        let files = adapter::read(&self.adapter)?.renamed()?;
        let output = Output::folder(folder.as_ref(), self.force, &[&self.adapter])?;
        output.write(PeftFiles::CONFIG, files.config.as_bytes())?;
        output.write(PeftFiles::WEIGHTS, &files.weights)?;
        Ok(Exported {
            path: output.publish()?,
            bytes: (files.config.len() + files.weights.len()) as u64,
            weight_type: None,
            untied: false,
        })
    }

    /// Writes base model and adapter as one model in a folder that `transformers` reads, with the
    /// base's configuration and tokenizer.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the adapter does not fit the model, cannot be written that way, or
    /// something is in the folder's place; [`Error::Config`] if the model cannot be found or read;
    /// [`Error::Io`] if a file cannot be written. Nothing half-written is left.
    pub fn to_hugging_face(&self, folder: impl AsRef<Path>) -> Result<Exported> {
        let opened = self.open()?;
        folder::write(self, &opened, folder.as_ref())
    }

    /// Writes base model and adapter as one GGUF file, for llama.cpp and what is built on it.
    ///
    /// Norms and other vectors stay in `f32`. Where weights are quantised, matrices whose rows are
    /// no whole number of blocks are in `f16`.
    ///
    /// # Errors
    ///
    /// As [`to_hugging_face`](Self::to_hugging_face); what the format or llama.cpp cannot say of a
    /// model, and a tokenizer that it has no name for, is refused by name.
    pub fn to_gguf(&self, file: impl AsRef<Path>) -> Result<Exported> {
        let opened = self.open()?;
        gguf::write(self, &opened, file.as_ref())
    }

    fn open(&self) -> Result<Opened> {
        let adapter = adapter::read(&self.adapter)?;
        let source = match (&self.model, base_model(&adapter.config)) {
            (Some(model), _) => model.clone(),
            (None, Some(name)) => ModelSource::from(name),
            (None, None) => {
                let message = "the adapter does not say which model it belongs to: name it";
                return Err(Error::Config(Context::new(message)));
            }
        };
        let files = source.files()?;
        let weights = files.load()?;
        Ok(Opened {
            adapter: Adapter::from_peft(&weights.config, &adapter)?,
            stored: match &files {
                Files::BuiltIn => Dtype::Bf16,
                Files::Folder(path) => stored_as(path)?,
                // Types are mixed there.
                Files::Gguf(_) => Dtype::F16,
            },
            name: source.name().to_owned(),
            weights,
            files,
        })
    }

    fn hear(&self, done: u64, all: u64) -> Result<(), Failure> {
        let heard = self.progress.as_ref().map(|hear| hear(done, all));
        match heard {
            Some(ControlFlow::Break(())) => {
                let error = Error::Cancelled(Context::new("the export was stopped"));
                Err(Failure::Weights(error))
            }
            _ => Ok(()),
        }
    }
}

/// A model and its adapter, ready to be merged.
struct Opened {
    weights: Weights,
    adapter: Adapter,
    files: Files,
    name: String,
    stored: Dtype,
}

impl Opened {
    /// Whether the head becomes one of its own.
    fn unties(&self) -> bool {
        self.weights.config.tied_head && self.adapter.head().is_some()
    }

    /// What must not be replaced by what is made of it.
    fn sources<'a>(&'a self, export: &'a Export) -> Vec<&'a Path> {
        let mut sources = vec![export.adapter.as_path()];
        if let Files::Folder(path) | Files::Gguf(path) = &self.files {
            sources.push(path);
        }
        sources
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("adapter", &self.adapter)
            .field("model", &self.model)
            .field("weight_type", &self.weight_type)
            .field("force", &self.force)
            .finish_non_exhaustive()
    }
}
