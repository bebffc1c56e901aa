//! `tinker console`: run folders in a browser, without a server.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use tinker::config::Config;
use tinker::local::{ConsoleOptions, ConsoleServer};

use super::runs::default_root;
use super::sampler::open_tokenizer;
use super::serve::{Signals, hindered};
use crate::context::install_logger;
use crate::failure::of_settings;

/// What was typed after `tinker console`.
#[derive(Debug, Args)]
pub(crate) struct Console {
    /// Folders with runs in them, or runs [default: $TINKER_COOKBOOK_RUNS_DIR, else ~/tinker-runs]
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// Port to listen on, on this machine only; 0 takes any that is free.
    #[arg(long, default_value_t = 8001)]
    port: u16,
    /// Show data files as this model reads them: its name, or a folder with its tokenizer [default:
    /// as the built-in model does]
    #[arg(long, value_name = "PATH|MODEL")]
    model: Option<String>,
}

impl Console {
    /// Shows the page until SIGTERM or Ctrl-C.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        install_logger(Config::from_env().map_err(of_settings)?.log_level());
        let signals = Signals::listen()?;
        let folders = match self.folders.is_empty() {
            true => vec![default_root()],
            false => self.folders,
        };
        let mut options = ConsoleOptions::default().with_port(self.port);
        if let Some(model) = &self.model {
            options = options.with_model(model, open_tokenizer(model)?);
        }
        let console = ConsoleServer::start(folders, options).map_err(hindered)?;
        // Whoever reads a pipe waits for this line.
        let mut out = std::io::stdout();
        writeln!(out, "{}", console.base_url())?;
        out.flush()?;
        signals.wait();
        drop(console);
        Ok(())
    }
}
