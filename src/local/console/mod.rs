//! The console: one page, and what it reads about run folders and data files.
//!
//! Two servers show it. The embedded service adds checkpoints, chats and its own state
//! (`api/console.rs`); a [`ConsoleServer`] shows run folders alone, with no model in memory.

mod data;
mod events;
mod folders;
mod page;
mod pieces;
mod runs;
mod viewer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

pub(in crate::local) use events::{Event, stream};
pub(in crate::local) use page::{asset, page};
pub(in crate::local) use pieces::pieces;
pub use viewer::{ConsoleOptions, ConsoleServer};

use super::engine::builtin;
use super::http::{Refusal, Reply, Request};
use crate::error::Result;
use crate::text::{Renderer, Tokenizer, TrainOnWhat};
use folders::{Folders, Seen};

/// What both servers show.
#[derive(Debug)]
pub(in crate::local) struct Console {
    folders: Folders,
    model: String,
    tokenizer: Tokenizer,
}

/// What the page asks first.
#[derive(Debug, Serialize)]
pub(in crate::local) struct Hello<'a> {
    version: &'static str,
    /// Whether there is a server with models behind the page, or only folders.
    server: bool,
    model: &'a str,
    /// Every model of the server, that one first.
    models: Vec<&'a str>,
    user: &'a str,
    folders: Vec<String>,
    renderers: &'static [&'static str],
    train_on: Vec<&'static str>,
}

impl Console {
    /// Shows runs of these folders, and data as this model's tokenizer cuts it.
    pub(in crate::local) fn new(
        folders: Vec<PathBuf>,
        model: String,
        tokenizer: Tokenizer,
    ) -> Self {
        Self {
            folders: Folders::new(folders),
            model,
            tokenizer,
        }
    }

    /// Shows data as the built-in model's tokenizer cuts it.
    pub(in crate::local) fn plain(folders: Vec<PathBuf>) -> Result<Self> {
        let tokenizer = Tokenizer::built_in()?;
        Ok(Self::new(folders, builtin::NAME.to_owned(), tokenizer))
    }

    /// What the page is told first; a page without models has no server behind it.
    pub(in crate::local) fn hello<'a>(&'a self, models: Vec<&'a str>, user: &'a str) -> Hello<'a> {
        Hello {
            version: env!("CARGO_PKG_VERSION"),
            server: !models.is_empty(),
            model: &self.model,
            models,
            user,
            folders: self.folders.names(),
            renderers: Renderer::names(),
            train_on: TrainOnWhat::ALL.iter().map(|(_, name)| *name).collect(),
        }
    }

    /// How the model's conversations are laid out.
    pub(in crate::local) fn renderer(&self) -> Result<Renderer> {
        Renderer::for_model(&self.model, &self.tokenizer)
    }

    pub(in crate::local) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Answers a request about folders and data, by the name of its endpoint.
    pub(in crate::local) fn answer(
        &self,
        endpoint: &str,
        request: &Request,
    ) -> std::result::Result<Reply, Refusal> {
        match endpoint {
            "runs" => Ok(Reply::json(&runs::list(&self.folders))),
            "run" => runs::show(&self.folders, request),
            "plot" => runs::plot(&self.folders, request),
            "spans" => runs::spans(&self.folders, request),
            "rollouts" => runs::rollouts(&self.folders, request),
            "data" => data::render(self, request),
            _ => Err(Refusal::missing(format!("no such path: {endpoint}"))),
        }
    }

    /// Looks for runs that changed since the last look.
    pub(in crate::local) fn watch(self: &Arc<Self>) -> impl FnMut() -> Vec<Event> + Send + 'static {
        let (console, mut seen) = (self.clone(), Seen::default());
        move || match console.folders.changes(&mut seen, SystemTime::now()) {
            Some(changes) => vec![Event::of("runs", &changes)],
            None => Vec::new(),
        }
    }
}
