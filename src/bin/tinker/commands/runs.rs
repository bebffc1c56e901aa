//! `tinker runs`: run folders on this machine, ours and the Python cookbook's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use tinker::plot::{Plot, Series, sparkline};
use tinker::train::{Row, RunReader, RunStatus, main_metric};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// List the runs in a folder and one level below it.
    Ls {
        /// The folder [default: $TINKER_COOKBOOK_RUNS_DIR, else ~/tinker-runs]
        root: Option<PathBuf>,
    },
    /// Show a run: its settings, its checkpoints and how its metrics went.
    Show(Folder),
    /// Print the metrics of a run, and go on as they are written.
    Tail(Tail),
    /// Draw metrics of one or several runs, in the terminal or as SVG.
    Plot(Draw),
}

/// A run.
#[derive(Debug, Args)]
pub(crate) struct Folder {
    /// The run's folder, or its name in the default folder.
    run: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Tail {
    #[command(flatten)]
    folder: Folder,
    /// How many of the last steps to begin with.
    #[arg(short, long, default_value_t = 10, value_name = "STEPS")]
    number: usize,
    /// Do not wait for more.
    #[arg(long)]
    no_follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Draw {
    /// The runs' folders, or their names in the default folder.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Which metric; may be repeated [default: the run's loss or reward]
    #[arg(short, long, value_name = "NAME")]
    metric: Vec<String>,
    /// Write an SVG to this file instead of drawing in the terminal.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Smooth the curves: 0 is not at all, 0.9 is much.
    #[arg(long, default_value_t = 0.0, value_name = "FACTOR")]
    smooth: f64,
    /// Logarithmic values.
    #[arg(long)]
    log: bool,
}

impl Runs {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::Ls { root } => list(context, root),
            Self::Show(folder) => show(context, &folder.run),
            Self::Tail(tail) => tail.run(context),
            Self::Plot(draw) => draw.run(context),
        }
    }
}

/// Where runs are kept unless said otherwise.
pub(crate) fn default_root() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("TINKER_COOKBOOK_RUNS_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(set("HOME").unwrap_or_default()).join("tinker-runs"),
    }
}

fn open(run: &Path) -> anyhow::Result<RunReader> {
    let inside = default_root().join(run);
    let path = match run.exists() || !inside.exists() {
        true => run.to_owned(),
        false => inside,
    };
    RunReader::open(&path).map_err(|error| match RunReader::find(&path).first() {
        Some(found) if *found == path => error.into(),
        _ => Failure::because(error)
            .advise("'tinker runs ls FOLDER' lists the runs in a folder.")
            .into(),
    })
}

#[derive(Serialize)]
struct Listed {
    path: String,
    kind: &'static str,
    status: &'static str,
    model: Option<String>,
    steps: usize,
    metric: Option<&'static str>,
    value: Option<f64>,
    checkpoint: Option<String>,
}

fn listed(path: &Path) -> Option<Listed> {
    let run = RunReader::open(path).ok()?;
    let last = run.metrics.iter().rev().find_map(main_metric);
    Some(Listed {
        path: path.display().to_string(),
        kind: run.kind().as_str(),
        status: run.status(SystemTime::now()).as_str(),
        model: run.model().map(str::to_owned),
        steps: run.metrics.len(),
        metric: last.map(|(name, _)| name),
        value: last.map(|(_, value)| value),
        checkpoint: run
            .last_checkpoint()
            .and_then(|last| last.state_path.clone()),
    })
}

fn list(context: &mut Context, root: Option<PathBuf>) -> anyhow::Result<()> {
    let root = match root {
        Some(root) if !root.is_dir() => {
            return Err(
                Failure::new(format!("there is no folder {}", root.display()))
                    .advise("Without one, 'tinker runs ls' lists those of the default folder.")
                    .into(),
            );
        }
        Some(root) => root,
        None => default_root(),
    };
    let found: Vec<Listed> = RunReader::find(&root)
        .iter()
        .filter_map(|path| listed(path))
        .collect();
    if context.is_json() {
        return context.out.json(&serde_json::json!({ "runs": found }));
    }
    let title = super::records::title(
        "run",
        found.len() as u64,
        found.len() as u64,
        &format!(" in {}", root.display()),
    );
    let mut table = Table::new(["Run", "Kind", "Status", "Model", "Steps", "Last"]).titled(title);
    for run in found {
        let name = Path::new(&run.path)
            .strip_prefix(&root)
            .map(|path| path.display().to_string());
        let name = name.ok().filter(|name| !name.is_empty());
        let last = run
            .metric
            .zip(run.value)
            .map(|(name, value)| format!("{name} {value:.4}"));
        table.row([
            name.unwrap_or(run.path),
            run.kind.into(),
            run.status.into(),
            run.model.unwrap_or_default(),
            run.steps.to_string(),
            last.unwrap_or_default(),
        ]);
    }
    context.out.table(&table)
}

fn show(context: &mut Context, path: &Path) -> anyhow::Result<()> {
    let run = open(path)?;
    let names = run.metric_names();
    if context.is_json() {
        let checkpoints: Vec<serde_json::Value> = run
            .checkpoints
            .iter()
            .map(|record| serde_json::from_str(&record.to_row().to_json_line()))
            .collect::<Result<_, _>>()?;
        let last = run.metrics.last().map(Row::to_json_line);
        return context.out.json(&serde_json::json!({
            "path": run.path, "kind": run.kind().as_str(),
            "status": run.status(SystemTime::now()).as_str(), "steps": run.metrics.len(),
            "config": run.config, "checkpoints": checkpoints, "metrics": names,
            "last": last.and_then(|line| serde_json::from_str::<serde_json::Value>(&line).ok()),
        }));
    }
    let mut table = Table::properties().titled(run.path.display().to_string());
    table.row(["Kind", run.kind().as_str()]);
    table.row(["Status", run.status(SystemTime::now()).as_str()]);
    table.row(["Model", run.model().unwrap_or("unknown")]);
    table.row(["Steps", &run.metrics.len().to_string()]);
    if let Some(path) = run
        .last_checkpoint()
        .and_then(|last| last.state_path.as_deref())
    {
        table.row(["Resume from", path]);
    }
    // A reference is what the run began with, not what came of it.
    let own = run.checkpoints.iter().rev();
    let mut own = own.filter(|record| record.name != "reference");
    let sampler = own.find_map(|record| record.sampler_path.as_deref());
    if let Some(path) = sampler {
        table.row(["Sample from", path]);
    }
    context.out.table(&table)?;
    context.out.line("")?;
    let mut metrics = Table::new(["Metric", "First", "Last", ""]);
    for name in names.iter().filter(|name| !name.starts_with("time/")) {
        let values: Vec<f64> = run
            .curve(name)
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        if let (Some(first), Some(last)) = (values.first(), values.last()) {
            metrics.row([
                name.clone(),
                format!("{first:.4}"),
                format!("{last:.4}"),
                sparkline(&values, 24),
            ]);
        }
    }
    context.out.table(&metrics)
}

/// How often a growing file is looked at.
const LOOK: Duration = Duration::from_millis(500);

impl Tail {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let mut run = open(&self.folder.run)?;
        let mut seen = Seen::default();
        seen.unseen(&run.metrics[..run.metrics.len().saturating_sub(self.number)]);
        loop {
            for row in seen.unseen(&run.metrics) {
                print(context, row)?;
            }
            context.out.flush()?;
            // Ctrl-C ends it, as it ends any command.
            if self.no_follow || run.status(SystemTime::now()) == RunStatus::Completed {
                return Ok(());
            }
            std::thread::sleep(LOOK);
            run = RunReader::open(run.path)?;
        }
    }
}

/// The rows that were printed.
#[derive(Default)]
struct Seen(Vec<String>);

impl Seen {
    /// Those of all rows that are new: what was added, and what a resumed run does again.
    fn unseen<'a>(&mut self, rows: &'a [Row]) -> &'a [Row] {
        let line = |row: &Row| {
            let mut row = row.clone();
            // The last row is told only at the end that it is the last.
            row.remove("final");
            row.to_line()
        };
        let lines: Vec<String> = rows.iter().map(line).collect();
        let same = self.0.iter().zip(&lines).take_while(|(a, b)| a == b);
        let same = same.count();
        self.0 = lines;
        &rows[same..]
    }
}

fn print(context: &mut Context, row: &Row) -> anyhow::Result<()> {
    match context.is_json() {
        true => context.out.line(&row.to_json_line()),
        false => context.out.line(&brief(row)),
    }
}

/// A step's metrics in one line, without the timings.
pub(crate) fn brief(row: &Row) -> String {
    let shown = |(name, value): (&str, &tinker::train::Value)| {
        let number = value.as_f64()?;
        let hidden = name.starts_with("time/") || name == "step";
        let text = match number.fract() == 0.0 && number.abs() < 1e9 {
            true => format!("{number:.0}"),
            false if number.abs() < 1e-3 => format!("{number:.2e}"),
            false => format!("{number:.4}"),
        };
        (!hidden).then(|| format!("{name} {text}"))
    };
    let parts: Vec<String> = row.iter().filter_map(shown).collect();
    let step = row
        .number("step")
        .map_or_else(String::new, |step| format!("step {step:.0}  "));
    format!("{step}{}", parts.join("  "))
}

/// A metric of a run, as it is: neither smoothed nor thinned.
#[derive(Serialize)]
struct Curve {
    run: String,
    metric: String,
    /// A step and the value there.
    points: Vec<(f64, f64)>,
}

impl Draw {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let runs = self
            .runs
            .iter()
            .map(|path| open(path))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut metrics = self.metric.clone();
        if metrics.is_empty() {
            let name = runs.iter().find_map(RunReader::main_metric);
            metrics.push(
                name.context("no metric that says how it goes; name one with --metric")?
                    .to_owned(),
            );
        }
        let mut plot = Plot::new(metrics.join(", ")).with_x_label("step");
        for run in &runs {
            let name = run.path.file_name().unwrap_or_default().to_string_lossy();
            for metric in &metrics {
                let label = match (runs.len(), metrics.len()) {
                    (_, 1) => name.to_string(),
                    (1, _) => metric.clone(),
                    _ => format!("{name} {metric}"),
                };
                let series = Series::new(label, run.curve(metric)).with_smoothing(self.smooth);
                plot = plot.with_series(series);
            }
        }
        if self.log {
            plot = plot.with_log_y();
        }
        if plot.is_empty() {
            let known = runs
                .iter()
                .flat_map(|run| run.metric_names())
                .collect::<Vec<_>>();
            return Err(Failure::new(format!("no values of {}", metrics.join(", ")))
                .advise(format!("There are: {}", known.join(", ")))
                .into());
        }
        match &self.svg {
            None if context.is_json() => {
                let mut curves = Vec::new();
                for run in &runs {
                    curves.extend(metrics.iter().map(|metric| Curve {
                        run: run.path.display().to_string(),
                        metric: metric.clone(),
                        points: run.curve(metric),
                    }));
                }
                context.out.json(&serde_json::json!({ "curves": curves }))
            }
            Some(file) => {
                let cannot = || format!("cannot write {}", file.display());
                fs::write(file, plot.to_svg()).with_context(cannot)?;
                context.note(&format!("Wrote {}", file.display()));
                Ok(())
            }
            None => context
                .out
                .line(&plot.to_text(terminal::width().unwrap_or(80).min(160), 18)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(looks: &[&[usize]], printed: &[usize]) {
        let mut seen = Seen::default();
        let mut found = Vec::new();
        for look in looks {
            let rows: Vec<Row> = look
                .iter()
                .map(|step| Row::new().with("step", *step))
                .collect();
            found.extend(
                seen.unseen(&rows)
                    .iter()
                    .filter_map(|row| row.number("step")),
            );
        }
        let printed: Vec<f64> = printed.iter().map(|step| *step as f64).collect();
        assert_eq!(found, printed, "{looks:?}");
    }

    #[test]
    fn rows_are_followed_through_a_resumed_run() {
        check(&[&[], &[0], &[0, 1, 2]], &[0, 1, 2]);
        check(&[&[0, 1, 2], &[0, 1], &[0, 1, 2, 3]], &[0, 1, 2, 2, 3]);
        check(&[&[0, 1], &[0, 5]], &[0, 1, 5]);
        let mut seen = Seen::default();
        let row = Row::new().with("loss", f64::NAN);
        assert_eq!(seen.unseen(std::slice::from_ref(&row)).len(), 1);
        assert_eq!(seen.unseen(&[row.with("final", true)]).len(), 0);
    }
}
