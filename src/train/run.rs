//! A run under way: its folder, who listens, and whether it should end.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::folder::{Existing, RunFolder};
use super::interrupt::Interrupt;
use super::log::Logger;
use super::reader::{RunReader, is_run};
use super::record::CheckpointRecord;
use super::row::Row;
use super::summary::Summary;
use super::timing::Timing;
use crate::client::ServiceClient;
use crate::types::FinishReason;
use crate::{Error, Result};

/// What every training loop takes: the run's folder, loggers, and a way to end early.
///
/// ```
/// use tinker::train::{Existing, Run, Table};
///
/// # let root = tempfile::tempdir()?;
/// # let path = root.path().join("run");
/// let run = Run::open(path, Existing::Resume)?.with_logger(Table(std::io::stderr()));
/// # Ok::<(), anyhow::Error>(())
/// ```
pub struct Run {
    folder: RunFolder,
    loggers: Vec<Box<dyn Logger>>,
    interrupt: Interrupt,
}

impl Run {
    /// A run in this folder: [`RunFolder::open`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open(path: impl Into<PathBuf>, existing: Existing) -> Result<Self> {
        Ok(Self::from(RunFolder::open(path, existing)?))
    }

    /// Adds a logger; the folder's `metrics.jsonl` is always written.
    #[must_use]
    pub fn with_logger(mut self, logger: impl Logger + 'static) -> Self {
        self.loggers.push(Box::new(logger));
        self
    }

    /// Sets what ends the run early. Default: nothing does.
    #[must_use]
    pub fn with_interrupt(mut self, interrupt: Interrupt) -> Self {
        self.interrupt = interrupt;
        self
    }

    /// The folder.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Whether someone wishes to end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }

    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Notes the command and the settings; gives the checkpoint to go on from, if there is one. What
    /// was set otherwise before is noted too, and told where the checkpoint decides it.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written.
    pub fn begin(&mut self, config: &impl Serialize) -> Result<Option<CheckpointRecord>> {
        let command: Vec<String> = std::env::args_os().map(|one| shown(&one)).collect();
        self.folder.note(&command.join(" "))?;
        let before = match is_run(self.folder.path()) {
            true => Some(self.folder.read()?),
            false => None,
        };
        let last = before.as_ref().and_then(RunReader::last_checkpoint);
        self.folder.write_config(config)?;
        let config = serde_json::to_value(config)
            .map_err(|error| Error::invalid("config", error.to_string()))?;
        for logger in &mut self.loggers {
            logger.config(&config);
        }
        if let Some(record) = &last {
            let path = record.state_path.as_deref().unwrap_or_default();
            self.folder.note(&format!("Resuming from {path}"))?;
            let old = before.as_ref().map(|before| &before.config);
            self.note_changes(&changes(old.unwrap_or(&Value::Null), &config))?;
        }
        Ok(last.cloned())
    }

    fn note_changes(&self, changes: &[Change]) -> Result<()> {
        let list = |changes: &mut dyn Iterator<Item = &Change>| {
            let texts: Vec<&str> = changes.map(|change| change.text.as_str()).collect();
            texts.join(", ")
        };
        if !changes.is_empty() {
            let all = list(&mut changes.iter());
            self.folder.note(&format!("Settings changed: {all}"))?;
        }
        let idle = list(&mut changes.iter().filter(|change| change.is_idle));
        if !idle.is_empty() {
            log::warn!("the run goes on with the model of its checkpoint, whatever is set: {idle}");
        }
        Ok(())
    }

    /// Logs the metrics of a step, and where its time went.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written.
    pub fn log(&mut self, step: usize, metrics: &Row, timing: &Timing) -> Result<()> {
        let mut row = Row::new().with("step", step);
        row.merge(metrics.clone());
        self.folder.append_timing(step, timing)?;
        self.folder.append_metrics(&row)?;
        for logger in &mut self.loggers {
            logger.metrics(step, metrics);
        }
        Ok(())
    }

    /// Ends the run: loggers are closed, the summary and its plots written.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written or read.
    pub fn end(&mut self, outcome: Outcome) -> Result<Report> {
        for logger in &mut self.loggers {
            logger.close();
        }
        self.folder.note(match outcome {
            Outcome::Completed => "Training completed",
            Outcome::Interrupted => "Training interrupted; it can be resumed",
        })?;
        let summary = Summary::write(&self.folder)?;
        let checkpoint = self.folder.read()?.last_checkpoint().cloned();
        Ok(Report {
            outcome,
            summary,
            checkpoint,
        })
    }
}

/// What the model of a checkpoint brings along.
const OF_CHECKPOINT: [&str; 2] = ["model_name", "lora_rank"];

/// The most letters of a setting that are noted.
const NOTED: usize = 60;

/// A setting that is not what it was.
struct Change {
    text: String,
    /// A resumed run does not take notice of it.
    is_idle: bool,
}

/// What two configurations say differently. What only one of them has is a matter of who wrote it,
/// and a folder may have been moved.
fn changes(before: &Value, now: &Value) -> Vec<Change> {
    let short = |value: &Value| value.to_string().chars().take(NOTED).collect::<String>();
    let is_same = |one: &Value, other: &Value| match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    };
    let settings = now.as_object().into_iter().flatten();
    let change = |(name, now): (&String, &Value)| {
        let before = before.get(name)?;
        (!is_same(before, now) && name != "log_path").then(|| Change {
            text: format!("{name} {} -> {}", short(before), short(now)),
            is_idle: OF_CHECKPOINT.contains(&name.as_str()),
        })
    };
    settings.filter_map(change).collect()
}

/// An argument as it may stand in a log: whatever its letters, and without the key it may hold.
fn shown(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let is_key = |at: usize| {
        let plain = |c: char| c.is_ascii_alphanumeric();
        let key = text[at + KEY.len()..].split(|c: char| !plain(c) && c != '-' && c != '_');
        !text[..at].ends_with(plain) && key.into_iter().next().is_some_and(|key| key.len() >= 8)
    };
    let mut places = text.match_indices(KEY).map(|(at, _)| at);
    match places.find(|at| is_key(*at)) {
        Some(at) => format!("{}{KEY}***", &text[..at]),
        None => text.into_owned(),
    }
}

/// How keys of the service begin.
const KEY: &str = "tml-";

impl From<RunFolder> for Run {
    fn from(folder: RunFolder) -> Self {
        Self {
            folder,
            loggers: Vec::new(),
            interrupt: Interrupt::new(),
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("folder", &self.folder)
            .field("loggers", &self.loggers.len())
            .finish_non_exhaustive()
    }
}

/// How a loop came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every step was done.
    Completed,
    /// Someone wished to end; the run can be resumed.
    Interrupted,
}

/// What a loop returns: how it ended, and what came of it. Its `Display` is the summary.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// How it ended.
    pub outcome: Outcome,
    /// The figures.
    pub summary: Summary,
    /// The last checkpoint that can be gone on from.
    pub checkpoint: Option<CheckpointRecord>,
}

impl Report {
    /// Closes the service client, which tells the service how the run ended.
    ///
    /// # Errors
    ///
    /// As [`ServiceClient::close_as`].
    pub fn close(&self, service: &ServiceClient) -> Result<()> {
        let reason = match self.outcome {
            Outcome::Completed => FinishReason::Success,
            Outcome::Interrupted => FinishReason::Interrupted,
        };
        service.close_as(reason, None)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.summary.fmt(f)?;
        match self.outcome {
            Outcome::Completed => Ok(()),
            Outcome::Interrupted => f.write_str("\ninterrupted; run it again to go on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_shown_without_keys() {
        for (argument, expected) in [
            ("train", "train"),
            ("--key=tml-abcdef0123", "--key=tml-***"),
            ("tml-A_b-c0123456", "tml-***"),
            ("html-tml-short.json", "html-tml-short.json"),
            ("html-conversations", "html-conversations"),
        ] {
            assert_eq!(shown(OsStr::new(argument)), expected);
        }
    }

    #[test]
    fn settings_that_changed_are_named() {
        #[track_caller]
        fn check(before: Value, now: Value, expected: &[(&str, bool)]) {
            let changes = changes(&before, &now);
            let found: Vec<_> = changes
                .iter()
                .map(|c| (c.text.as_str(), c.is_idle))
                .collect();
            assert_eq!(found, expected);
        }
        let run = json!({"model_name": "a", "lora_rank": 8, "learning_rate": 1, "log_path": "x"});
        check(run.clone(), run.clone(), &[]);
        check(
            run.clone(),
            json!({"model_name": "b", "lora_rank": 4, "learning_rate": 1.0, "log_path": "y"}),
            &[
                ("lora_rank 8 -> 4", true),
                (r#"model_name "a" -> "b""#, true),
            ],
        );
        let other = json!({"learning_rate": 0.5, "only_here": true});
        check(run, other, &[("learning_rate 1 -> 0.5", false)]);
        check(Value::Null, json!({"lora_rank": 4}), &[]);
    }

    #[cfg(unix)]
    #[test]
    fn arguments_need_not_be_text() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(
            shown(OsStr::from_bytes(b"caf\xe9.jsonl")),
            "caf\u{fffd}.jsonl"
        );
    }
}
