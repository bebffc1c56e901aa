//! Reading run folders, ours and the Python cookbook's.

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value as Json;

use super::fault;
use super::record::CheckpointRecord;
use super::row::{Row, lenient};
use crate::{Error, Result};

/// What a run is of, by its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunKind {
    /// Supervised.
    Supervised,
    /// From preferences.
    Dpo,
    /// By reinforcement.
    Rl,
    /// Something else.
    Other,
}

impl RunKind {
    /// The short name: `sl`, `dpo`, `rl` or `other`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Supervised => "sl",
            Self::Dpo => "dpo",
            Self::Rl => "rl",
            Self::Other => "other",
        }
    }
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunStatus {
    /// Its last checkpoint is final.
    Completed,
    /// Its metrics changed in the last two minutes.
    Running,
    /// Neither: stopped on the way, or waiting.
    Idle,
}

impl RunStatus {
    /// The word for it: `completed`, `running` or `idle`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Running => "running",
            Self::Idle => "idle",
        }
    }
}

/// A run folder, read: ours or the Python cookbook's. Missing files are empty, and a last line
/// that was cut short is left out.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunReader {
    /// Where it is.
    pub path: PathBuf,
    /// `config.json`; null if there is none.
    pub config: Json,
    /// The lines of `metrics.jsonl`.
    pub metrics: Vec<Row>,
    /// The lines of `checkpoints.jsonl`.
    pub checkpoints: Vec<CheckpointRecord>,
    changed: Option<SystemTime>,
}

impl RunReader {
    /// Reads a folder.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it holds neither `config.json` nor `metrics.jsonl`,
    /// or metrics or checkpoints that cannot be read.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if !is_run(&path) {
            let folder = path.display();
            return Err(fault::setup(format!(
                "{folder} holds no run: no config.json, no metrics.jsonl"
            )));
        }
        let config = fs::read(path.join("config.json")).unwrap_or_default();
        let records = rows(&path.join("checkpoints.jsonl"))?;
        let metrics = path.join("metrics.jsonl");
        Ok(Self {
            config: lenient(&String::from_utf8_lossy(&config)).unwrap_or_default(),
            metrics: rows(&metrics)?,
            checkpoints: records
                .into_iter()
                .flat_map(CheckpointRecord::from_row)
                .collect(),
            changed: fs::metadata(&metrics).and_then(|m| m.modified()).ok(),
            path,
        })
    }

    /// The runs in a folder and one level below it, by path; the folder itself if it is one.
    pub fn find(root: impl AsRef<Path>) -> Vec<PathBuf> {
        let below = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.retain(|path| path.is_dir());
            paths.sort();
            paths
        };
        let root = root.as_ref();
        let mut found = Vec::new();
        if is_run(root) {
            found.push(root.to_owned());
        }
        for path in below(root) {
            if is_run(&path) {
                found.push(path);
            } else {
                found.extend(below(&path).into_iter().filter(|path| is_run(path)));
            }
        }
        found
    }

    /// What it is a run of.
    pub fn kind(&self) -> RunKind {
        let has = |key: &str| self.config.get(key).is_some();
        match () {
            () if has("dpo_beta") => RunKind::Dpo,
            () if has("loss_fn") => RunKind::Rl,
            () if has("num_epochs") => RunKind::Supervised,
            () => RunKind::Other,
        }
    }

    /// How it stands at this moment. The Python loops do not say in their metrics that they are
    /// done, so a last checkpoint named `final` counts as well.
    pub fn status(&self, now: SystemTime) -> RunStatus {
        let done = self.metrics.last().is_some_and(|row| row.is_true("final"));
        let last = self.checkpoints.last();
        let is_last = |record: &CheckpointRecord| record.is_final || record.name == "final";
        let saved = last.is_some_and(|record| is_last(record) && !self.went_on_after(record));
        match self.changed {
            _ if done || saved => RunStatus::Completed,
            Some(changed) if is_recent(changed, now) => RunStatus::Running,
            _ => RunStatus::Idle,
        }
    }

    /// Whether steps were done after a checkpoint, as in a run that was given more epochs.
    fn went_on_after(&self, record: &CheckpointRecord) -> bool {
        let Some(batch) = record.batch else {
            return false;
        };
        let from = |name: &str, first: u64| {
            let later = |row: &&Row| row.count(name).is_some_and(|own| own >= first);
            self.metrics.iter().filter(later).count() as u64
        };
        match record.epoch {
            Some(epoch) => from("epoch", epoch) > batch,
            None => from("step", batch) > 0,
        }
    }

    /// The base model, as far as the configuration says.
    pub fn model(&self) -> Option<&str> {
        self.config.get("model_name")?.as_str()
    }

    /// The last checkpoint that can be gone on from.
    pub fn last_checkpoint(&self) -> Option<&CheckpointRecord> {
        self.checkpoints
            .iter()
            .rfind(|record| record.state_path.is_some())
    }

    /// A metric over the steps: `(step, value)` wherever it is a number.
    pub fn curve(&self, name: &str) -> Vec<(f64, f64)> {
        let point = |row: &Row| Some((row.number("step")?, row.number(name)?));
        self.metrics.iter().filter_map(point).collect()
    }

    /// A metric over the time that the steps took, as far as it was measured: `(seconds, value)`
    /// at each step's end.
    pub fn curve_over_time(&self, name: &str) -> Vec<(f64, f64)> {
        let mut elapsed = 0.0;
        let point = |row: &Row| {
            elapsed += step_seconds(row).unwrap_or(0.0);
            Some((elapsed, row.number(name)?))
        };
        self.metrics.iter().filter_map(point).collect()
    }

    /// The metric that says best how it goes: a reward, else a loss.
    pub fn main_metric(&self) -> Option<&'static str> {
        let found = self.metrics.iter().find_map(main_metric);
        found.map(|(name, _)| name)
    }

    /// When its metrics changed last.
    pub fn changed(&self) -> Option<SystemTime> {
        self.changed
    }

    /// The names of all metrics that are numbers, in the order of their first appearance.
    pub fn metric_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, value) in self.metrics.iter().flat_map(Row::iter) {
            if value.as_f64().is_some() && name != "step" && !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    /// Where the time of each step went: the lines of `timing_spans.jsonl`.
    pub fn timings(&self) -> Vec<Row> {
        rows(&self.path.join("timing_spans.jsonl")).unwrap_or_default()
    }

    /// The end of `logs.log`: its last lines, out of its last 256 KiB.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = fs::File::open(self.path.join("logs.log"))?;
            let start = file.metadata()?.len().saturating_sub(256 << 10);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let text = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        let first = all.len().saturating_sub(lines);
        all[first..].iter().map(|&line| line.to_owned()).collect()
    }

    /// The iterations that wrote down their rollouts, in order, each with the labels they were
    /// written under.
    pub fn iterations(&self) -> Vec<(usize, Vec<String>)> {
        let mut found = Vec::new();
        for folder in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = folder.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("iteration_");
            let Some(number) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            let files = fs::read_dir(folder.path()).into_iter().flatten().flatten();
            let label = |file: fs::DirEntry| {
                let name = file.file_name().into_string().ok()?;
                let label = name.strip_suffix("_rollout_summaries.jsonl")?;
                Some(label.to_owned())
            };
            let mut labels: Vec<String> = files.filter_map(label).collect();
            labels.sort_by_key(|label| (label != "train", label.clone()));
            if !labels.is_empty() {
                found.push((number, labels));
            }
        }
        found.sort();
        found
    }

    /// The summaries of an iteration's rollouts, by the label they were written under.
    pub fn rollouts(&self, iteration: usize, label: &str) -> Vec<Row> {
        rows(&self.rollouts_file(iteration, label)).unwrap_or_default()
    }

    /// Where those are.
    pub(crate) fn rollouts_file(&self, iteration: usize, label: &str) -> PathBuf {
        let file = format!("iteration_{iteration:06}/{label}_rollout_summaries.jsonl");
        self.path.join(file)
    }
}

/// The metrics that say how a run goes, the best known first.
const MAIN: &[&str] = &[
    "env/all/reward/total",
    "dpo_loss",
    "train_mean_nll",
    "loss",
    "test/nll",
];

/// The metric of a step that says best how a run goes, with its value: a reward, else a loss.
///
/// ```
/// use tinker::train::{Row, main_metric};
///
/// let row = Row::new().with("step", 3usize).with("train_mean_nll", 0.5);
/// assert_eq!(main_metric(&row), Some(("train_mean_nll", 0.5)));
/// ```
pub fn main_metric(row: &Row) -> Option<(&'static str, f64)> {
    let value = |name: &&'static str| Some((*name, row.number(name)?));
    MAIN.iter().find_map(value)
}

/// How long a step took, as far as it was measured.
pub(super) fn step_seconds(row: &Row) -> Option<f64> {
    let names = ["time/total", "batch_time", "time/step"];
    names.iter().find_map(|name| row.number(name))
}

/// Whether metrics that changed then are those of a run that goes on.
pub(crate) fn is_recent(changed: SystemTime, now: SystemTime) -> bool {
    now.duration_since(changed).unwrap_or_default() < Duration::from_secs(120)
}

pub(super) fn is_run(path: &Path) -> bool {
    ["metrics.jsonl", "config.json"]
        .iter()
        .any(|file| path.join(file).exists())
}

/// What a file holds; nothing if there is none.
pub(super) fn bytes(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| fault::file(path, "read", error)),
    }
}

/// Reads a line.
pub(super) fn row(line: &[u8]) -> Result<Row> {
    let text = std::str::from_utf8(line);
    Row::parse(text.map_err(|error| Error::invalid("row", error.to_string()))?)
}

/// The rows of a file, none if there is no file. A damaged line hides no other.
fn rows(path: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let bytes = bytes(path)?;
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match row(line) {
            Ok(row) => rows.push(row),
            Err(error) => ::log::warn!("{}:{}: {error}; left out", path.display(), index + 1),
        }
    }
    Ok(rows)
}
