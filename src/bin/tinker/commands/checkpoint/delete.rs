//! `tinker checkpoint delete`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use clap::Args;
use serde::Serialize;
use tinker::RestClient;
use tinker::types::{Checkpoint, CheckpointKind, Date, Timestamp};

use super::checked;
use crate::context::Context;
use crate::failure::Failure;
use crate::terminal;
use crate::units::{since, size};

/// Delete checkpoints for good.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// The checkpoints' paths: tinker://run-id/weights/0001 ...
    checkpoint_paths: Vec<String>,
    /// Delete the checkpoints of this run instead: all, or those that the filters below leave.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// Only of this kind: weights, sampler_weights or external_weights.
    #[arg(long = "type", value_name = "KIND")]
    kind: Option<String>,
    /// Only those made before this time: 2024-01-01 or 2024-01-01T08:00:00Z, in UTC.
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
    /// Only those made after this time.
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
}

/// How many deletions are under way at once.
const PARALLEL: usize = 32;

#[derive(Debug, Serialize)]
struct Report {
    deleted_count: usize,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
struct Failed {
    tinker_path: String,
    error: String,
}

impl Delete {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        self.check()?;
        let filter = Filter::new(&self)?;
        let rest = context.rest()?;
        let (paths, question) = match &self.run_id {
            Some(run) => {
                let mut found = rest.list_checkpoints(run)?;
                found.retain(|checkpoint| filter.admits(checkpoint));
                if found.is_empty() {
                    return nothing(context, run);
                }
                let summary = summary(&found);
                (
                    found.into_iter().map(|one| one.tinker_path).collect(),
                    summary,
                )
            }
            None => {
                // What is named twice is deleted once.
                let mut paths: Vec<String> = Vec::new();
                for path in &self.checkpoint_paths {
                    if !paths.contains(path) {
                        paths.push(path.clone());
                    }
                }
                let listed: Vec<String> = paths.iter().map(|path| format!("  - {path}")).collect();
                (paths, listed.join("\n"))
            }
        };
        if !self.yes && !confirmed(&paths, &question)? {
            return context.out.line("Deletion cancelled.");
        }
        let report = delete(&rest, &paths);
        present(context, report)
    }

    fn check(&self) -> anyhow::Result<()> {
        let by_path = !self.checkpoint_paths.is_empty();
        let filtered = self.kind.is_some() || self.before.is_some() || self.after.is_some();
        let example =
            "tinker checkpoint delete --run-id <run-id> --type weights --before 2024-06-01";
        let failure = match (by_path, &self.run_id) {
            (false, None) if filtered => {
                Failure::new("--type, --before and --after need --run-id").advise(example)
            }
            (false, None) => {
                Failure::new("checkpoint paths or --run-id are needed").advise(format!(
                    "Examples:\n  tinker checkpoint delete tinker://run-id/weights/0001\n  \
                 tinker checkpoint delete --run-id <run-id>\n  {example}"
                ))
            }
            (true, Some(_)) => Failure::new("paths and --run-id exclude each other")
                .advise("Give either paths, or --run-id with filters."),
            (true, None) if filtered => {
                Failure::new("--type, --before and --after need --run-id").advise(example)
            }
            _ => {
                for path in &self.checkpoint_paths {
                    checked(path)?;
                }
                return Ok(());
            }
        };
        Err(failure.into())
    }
}

/// Which checkpoints of a run are meant.
#[derive(Debug, Default)]
struct Filter {
    kind: Option<CheckpointKind>,
    before: Option<Timestamp>,
    after: Option<Timestamp>,
}

impl Filter {
    fn new(delete: &Delete) -> anyhow::Result<Self> {
        Ok(Self {
            kind: delete.kind.as_deref().map(kind).transpose()?,
            before: delete.before.as_deref().map(time).transpose()?,
            after: delete.after.as_deref().map(time).transpose()?,
        })
    }

    fn admits(&self, checkpoint: &Checkpoint) -> bool {
        self.kind
            .is_none_or(|kind| checkpoint.checkpoint_type == kind)
            && self.before.is_none_or(|time| checkpoint.time < time)
            && self.after.is_none_or(|time| checkpoint.time > time)
    }
}

/// A kind by the word of paths or of records.
fn kind(word: &str) -> anyhow::Result<CheckpointKind> {
    let mut kinds = CheckpointKind::ALL.into_iter();
    kinds
        .find(|kind| kind.segment() == word || kind.as_str() == word)
        .ok_or_else(|| {
            Failure::new(format!("invalid checkpoint type: {word}"))
                .advise("There are weights, sampler_weights and external_weights.")
                .into()
        })
}

/// A day, which begins at midnight, or a time; in UTC unless it says otherwise.
fn time(text: &str) -> anyhow::Result<Timestamp> {
    let text = text.trim();
    let naive = || format!("{text}Z").parse().ok();
    let day = || {
        let day: Date = text.parse().ok()?;
        format!("{day}T00:00:00Z").parse().ok()
    };
    let found = text.parse().ok().or_else(naive).or_else(day);
    found.ok_or_else(|| {
        Failure::new(format!("invalid date: {text}"))
            .advise("Write it as 2024-01-01 or 2024-01-01T12:00:00Z.")
            .into()
    })
}

fn nothing(context: &mut Context, run: &str) -> anyhow::Result<()> {
    match context.is_json() {
        true => context.out.json_line(&Report {
            deleted_count: 0,
            failed: Vec::new(),
        }),
        false => context.out.line(&format!(
            "No checkpoints found for run {run} matching filters"
        )),
    }
}

fn summary(checkpoints: &[Checkpoint]) -> String {
    let mut text = String::new();
    for one in checkpoints {
        let size = one.size_bytes.map_or_else(|| "N/A".into(), size);
        let made = since(one.time);
        text.push_str(&format!(
            "  - {} ({size}, created {made})\n",
            one.tinker_path
        ));
    }
    let total: u64 = checkpoints.iter().filter_map(|one| one.size_bytes).sum();
    text + &format!("\nTotal size: {}", size(total))
}

fn confirmed(paths: &[String], listed: &str) -> anyhow::Result<bool> {
    let count = paths.len();
    say!("Will delete {count} checkpoint(s):\n{listed}");
    say!("WARNING: This action is permanent and cannot be undone.");
    terminal::confirm(&format!(
        "Are you sure you want to delete {count} checkpoint(s)?"
    ))
}

fn delete(rest: &RestClient, paths: &[String]) -> Report {
    let bar = terminal::bar(paths.len() as u64, terminal::COUNTS).with_prefix("Deleting");
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..PARALLEL.min(paths.len()) {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = rest.delete_checkpoint(path.as_str()) {
                        let failure = Failed {
                            tinker_path: path.clone(),
                            error: error.to_string(),
                        };
                        failed
                            .lock()
                            .expect("no thread panics while it holds the list")
                            .push(failure);
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let failed = failed.into_inner().expect("every thread has ended well");
    Report {
        deleted_count: paths.len() - failed.len(),
        failed,
    }
}

fn present(context: &mut Context, report: Report) -> anyhow::Result<()> {
    if context.is_json() {
        context.out.json_line(&report)?;
    } else {
        let out = &mut context.out;
        out.line(&format!("Deleted {} checkpoint(s)", report.deleted_count))?;
        for one in &report.failed {
            out.line(&format!("  - {}: {}", one.tinker_path, one.error))?;
        }
    }
    context.out.flush()?;
    match report.failed.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} checkpoint(s) could not be deleted")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_kinds_are_read() {
        for (text, expected) in [
            ("2024-01-01", Some("2024-01-01T00:00:00Z")),
            ("2024-01-01T12:00:00", Some("2024-01-01T12:00:00Z")),
            ("2024-01-01T12:00:00Z", Some("2024-01-01T12:00:00Z")),
            ("2024-01-01T12:00:00+02:00", Some("2024-01-01T10:00:00Z")),
            ("2024-13-01", None),
            ("soon", None),
        ] {
            let found = time(text).ok().map(|time| time.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
        assert_eq!(kind("weights").unwrap(), CheckpointKind::Training);
        assert_eq!(kind("external").unwrap(), CheckpointKind::External);
        assert!(kind("all").is_err());
    }
}
