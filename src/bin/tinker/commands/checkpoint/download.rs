//! `tinker checkpoint download`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tinker::ServiceClient;
use tinker::client::{DownloadOptions, Downloaded};
use tinker::types::{CheckpointKind, FinishReason, TinkerPath};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;
use crate::units::size;

/// Download a training checkpoint or external weights.
#[derive(Debug, Args)]
pub(crate) struct Download {
    /// tinker://run-id/weights/name or tinker://run-id/external_weights/name
    checkpoint_path: String,
    /// Where to make the checkpoint's folder [default: the current folder]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Replace the folder if it is there.
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    checkpoint_path: &'a str,
    destination: String,
    file_size_bytes: u64,
}

const DOWNLOADABLE: &str = "Only training (tinker://run-id/weights/name) and external weights \
    (tinker://run-id/external_weights/name) can be downloaded; sampler weights are for sampling.";

impl Download {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let path = self.checkpoint_path.as_str();
        let parsed = downloadable(path)?;
        let parent = self.output.unwrap_or_else(|| PathBuf::from("."));
        let parent = std::path::absolute(parent)?;
        let folder = parent.join(
            path.trim_start_matches(TinkerPath::PREFIX)
                .replace('/', "_"),
        );
        if folder.exists() && !self.force {
            let message = format!("{} is there already", folder.display());
            return Err(Failure::new(message)
                .advise("Use --force to replace it, or choose another folder with --output.")
                .into());
        }
        if parsed.kind() == CheckpointKind::Training {
            context.note(&format!(
                "Exporting {path} as external weights (this starts a training session on the \
                 checkpoint's base model)..."
            ));
        }
        let service = context.patient_service()?;
        let got = fetch(context, &service, path, &folder, self.force)?;
        let destination = got.folder.display().to_string();
        if context.is_json() {
            return context.out.json(&Report {
                checkpoint_path: path,
                destination,
                file_size_bytes: got.bytes,
            });
        }
        let mut table = Table::properties().titled(format!("Checkpoint Download: {path}"));
        table.row(["Checkpoint Path", path]);
        table.row(["Total Size", &size(got.bytes)]);
        table.row(["Downloaded to", &destination]);
        context.out.table(&table)
    }
}

/// A path of something that can be downloaded.
pub(crate) fn downloadable(path: &str) -> anyhow::Result<TinkerPath> {
    let parsed: TinkerPath = super::checked(path)?.parse()?;
    match parsed.kind() {
        CheckpointKind::Sampler => {
            let message = format!("sampler weights cannot be downloaded: {path}");
            Err(Failure::new(message).advise(DOWNLOADABLE).into())
        }
        _ => Ok(parsed),
    }
}

/// Downloads with a bar, and ends the session the export opened.
pub(crate) fn fetch(
    context: &Context,
    service: &ServiceClient,
    path: &str,
    folder: &Path,
    force: bool,
) -> anyhow::Result<Downloaded> {
    let bar = match context.is_json() {
        true => indicatif::ProgressBar::hidden(),
        false => terminal::bar(0, terminal::BYTES).with_prefix("Downloading"),
    };
    let drawn = bar.clone();
    let options = DownloadOptions::default()
        .with_force(force)
        .on_progress(move |progress| {
            drawn.set_length(progress.all_bytes);
            drawn.set_position(progress.bytes);
            if progress.all_files > 1 {
                drawn.set_message(format!("{}/{} files", progress.files, progress.all_files));
            }
        });
    let outcome = service.rest().download_checkpoint(path, folder, options);
    bar.finish_and_clear();
    let reason = match outcome {
        Ok(_) => FinishReason::Success,
        Err(_) => FinishReason::Errored,
    };
    // The session ends with its heartbeats in any case.
    let _ = service.close_as(reason, None);
    outcome.context("the download failed")
}
