//! How a run went: its figures in words, and its curves.

use std::fmt;

use super::folder::RunFolder;
use super::log::duration;
use super::reader::{RunKind, RunReader, step_seconds};
use crate::Result;
use crate::plot::{Plot, Series, sparkline};

/// The figures of a run, and its curves.
///
/// ```no_run
/// use tinker::train::{RunReader, Summary};
///
/// let summary = Summary::of(&RunReader::open("runs/pig-latin")?);
/// println!("{summary}");
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// What the run was of.
    pub kind: RunKind,
    /// The base model, as far as the configuration says.
    pub model: Option<String>,
    /// How many steps were logged.
    pub steps: usize,
    /// The seconds of all steps, as far as they were measured.
    pub seconds: f64,
    /// The curves that tell most, by the metric's name.
    pub curves: Vec<(String, Vec<f64>)>,
    loss: Plot,
    reward: Plot,
    paths: Vec<String>,
}

/// The curves of losses, and those of rewards.
const LOSSES: [&str; 3] = ["train_mean_nll", "test/nll", "dpo_loss"];
const REWARDS: [&str; 3] = [
    "env/all/reward/total",
    "test/env/all/reward/total",
    "accuracy",
];

impl Summary {
    /// Sums a run up.
    pub fn of(run: &RunReader) -> Self {
        let curves = LOSSES.iter().chain(&REWARDS).map(|name| {
            let values = run.curve(name).into_iter().map(|point| point.1).collect();
            ((*name).to_owned(), values)
        });
        let last = run.checkpoints.last();
        let paths = last.map(|last| [last.state_path.clone(), last.sampler_path.clone()]);
        Self {
            kind: run.kind(),
            model: run.model().map(str::to_owned),
            steps: run
                .metrics
                .iter()
                .filter(|row| row.get("step").is_some())
                .count(),
            seconds: run.metrics.iter().filter_map(step_seconds).sum(),
            curves: curves
                .filter(|(_, values): &(_, Vec<f64>)| !values.is_empty())
                .collect(),
            loss: plot("Loss", &LOSSES, run),
            reward: plot("Reward", &REWARDS, run),
            paths: paths.into_iter().flatten().flatten().collect(),
        }
    }

    /// Sums a folder's run up and writes `summary.txt`, and `loss.svg` and `reward.svg` where
    /// there is something to draw.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or written.
    pub fn write(folder: &RunFolder) -> Result<Self> {
        let summary = Self::of(&folder.read()?);
        folder.write("summary.txt", &format!("{summary}\n"))?;
        for (file, plot) in [("loss.svg", &summary.loss), ("reward.svg", &summary.reward)] {
            if !plot.is_empty() {
                folder.write(file, &plot.to_svg())?;
            }
        }
        Ok(summary)
    }

    /// The plots that have something to show: losses first, then rewards.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        [&self.loss, &self.reward]
            .into_iter()
            .filter(|plot| !plot.is_empty())
    }
}

fn plot(title: &str, names: &[&str], run: &RunReader) -> Plot {
    let title = match run.model() {
        Some(model) => format!("{title}: {model}"),
        None => title.to_owned(),
    };
    let mut plot = Plot::new(title).with_x_label("step");
    for name in names {
        let curve = run.curve(name);
        let smoothing = if curve.len() > 30 { 0.8 } else { 0.0 };
        plot = plot.with_series(Series::new(*name, curve).with_smoothing(smoothing));
    }
    plot
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.as_deref().unwrap_or("a model");
        let (kind, seconds) = (self.kind.as_str(), duration(self.seconds));
        let steps = match self.steps {
            1 => "1 step".to_owned(),
            steps => format!("{steps} steps"),
        };
        write!(f, "{kind} run of {model}: {steps} in {seconds}")?;
        let width = self.curves.iter().map(|(name, _)| name.len()).max();
        let width = width.unwrap_or(0);
        for (name, values) in &self.curves {
            let (first, last) = (values[0], values[values.len() - 1]);
            let line = sparkline(values, 32);
            write!(f, "\n  {name:width$}  {first:.4} -> {last:.4}  {line}")?;
        }
        for path in &self.paths {
            write!(f, "\n  saved {path}")?;
        }
        Ok(())
    }
}
