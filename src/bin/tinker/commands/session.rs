//! `tinker session`: what a client did between opening and closing.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Failure, is_foreign};
use crate::output::Table;
use crate::units::size;

#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// Download a session's timeline as a Perfetto trace, for ui.perfetto.dev.
    ExportTrace(ExportTrace),
}

#[derive(Debug, Args)]
pub(crate) struct ExportTrace {
    /// The session's id.
    session_id: String,
    /// Where to write it [default: ./<session id>.pftrace]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the signed URL, which works for about an hour, instead of downloading.
    #[arg(long)]
    url_only: bool,
}

#[derive(Serialize)]
struct Exported<'a> {
    session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_size_bytes: Option<u64>,
}

impl Session {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let Self::ExportTrace(export) = self;
        let session_id = export.session_id.as_str();
        let rest = context.rest()?;
        context.note(&format!(
            "Exporting the trace of session {session_id} (this may take a while)..."
        ));
        if export.url_only {
            let url = rest.export_session_trace(session_id).map_err(unknown)?;
            return match context.is_json() {
                true => context.out.json(&Exported {
                    session_id,
                    url: Some(&url),
                    destination: None,
                    file_size_bytes: None,
                }),
                false => context.out.line(&url),
            };
        }
        let file = export.output.unwrap_or_else(|| {
            // An id is the service's word and names a file here only.
            PathBuf::from(format!("{}.pftrace", session_id.replace(['/', '\\'], "_")))
        });
        rest.download_session_trace(session_id, &file)
            .map_err(unknown)?;
        let bytes = std::fs::metadata(&file)?.len();
        let destination = file.display().to_string();
        if context.is_json() {
            return context.out.json(&Exported {
                session_id,
                url: None,
                destination: Some(destination),
                file_size_bytes: Some(bytes),
            });
        }
        let mut table = Table::properties().titled(format!("Trace Export: {session_id}"));
        table.row(["Session ID", session_id]);
        table.row(["Saved to", &destination]);
        table.row(["Size", &size(bytes)]);
        context.out.table(&table)
    }
}

/// Sessions are not listed; their runs are.
fn unknown(error: tinker::Error) -> anyhow::Error {
    match error.status() {
        Some(404) if !is_foreign(&error) => Failure::because(error)
            .advise(
                "A session's id stands before ':train' in the ids of its runs: 'tinker run list'.",
            )
            .into(),
        _ => error.into(),
    }
}
