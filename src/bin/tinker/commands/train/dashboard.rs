//! How a run goes: a few lines redrawn on a terminal, a line per step in a pipe.

use std::time::Instant;

use console::Term;
use tinker::plot::sparkline;
use tinker::train::{Logger, Row, main_metric};
use tinker::types::QueueUpdate;

use super::Shared;
use crate::commands::runs::brief;
use crate::units::{duration, short};

/// What the service last said about its queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue(Shared<Option<String>>);

impl Queue {
    pub(super) fn hear(&self, update: &QueueUpdate) {
        let state = update.queue.state.as_str();
        let reason = update.queue.reason.as_ref();
        let reason = reason.map_or_else(String::new, |reason| format!(", {reason}"));
        let text = format!("{} waits: {state}{reason}", update.operation);
        if let Ok(mut last) = self.0.lock() {
            *last = Some(text);
        }
    }

    fn take(&self) -> Option<String> {
        self.0.lock().ok()?.take()
    }
}

/// A line per step.
#[derive(Debug, Default)]
pub(super) struct Lines(Pace);

impl Logger for Lines {
    fn metrics(&mut self, step: usize, row: &Row) {
        let left = self.0.left(row);
        let mut line = Row::new().with("step", step);
        line.merge(row.clone());
        let left = left.map_or_else(String::new, |left| format!("  left {}", duration(left)));
        say!("{}{left}", brief(&line));
    }
}

/// How fast a run is.
#[derive(Debug)]
struct Pace {
    started: Instant,
    /// The first progress that was heard of: a resumed run does not begin at 0.
    first: Option<f64>,
    tokens: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            first: None,
            tokens: 0.0,
        }
    }
}

impl Pace {
    /// Seconds to the end, once two steps tell.
    fn left(&mut self, row: &Row) -> Option<f64> {
        let names = ["num_tokens", "env/all/total_ac_tokens"];
        self.tokens += names
            .iter()
            .find_map(|name| row.number(name))
            .unwrap_or(0.0);
        let progress = progress(row)?;
        match self.first {
            None => {
                self.first = Some(progress);
                self.started = Instant::now();
                None
            }
            Some(first) => left(progress, first, self.started.elapsed().as_secs_f64()),
        }
    }
}

fn progress(row: &Row) -> Option<f64> {
    row.number("progress")
        .or_else(|| row.number("progress/done_frac"))
}

fn left(progress: f64, first: f64, elapsed: f64) -> Option<f64> {
    let done = progress - first;
    (done > 0.0).then(|| elapsed / done * (1.0 - progress).max(0.0))
}

/// A few lines at the bottom of the terminal.
#[derive(Debug)]
pub(super) struct Dashboard {
    term: Term,
    drawn: usize,
    pace: Pace,
    values: Vec<f64>,
    queue: Queue,
}

impl Dashboard {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            term: Term::stderr(),
            drawn: 0,
            pace: Pace::default(),
            values: Vec::new(),
            queue,
        }
    }
}

impl Logger for Dashboard {
    fn metrics(&mut self, step: usize, row: &Row) {
        let left = self.pace.left(row);
        let main = main_metric(row);
        self.values.extend(main.map(|(_, value)| value));
        let speed = self.pace.tokens / self.pace.started.elapsed().as_secs_f64().max(1e-3);
        let width = usize::from(self.term.size().1);
        let lines = frame(&Frame {
            step,
            progress: progress(row),
            left,
            main,
            values: &self.values,
            speed,
            queue: self.queue.take(),
            width,
        });
        // A terminal that cannot be drawn on is no reason to stop training.
        let _ = self.term.clear_last_lines(self.drawn);
        for line in &lines {
            let _ = self.term.write_line(line);
        }
        self.drawn = lines.len();
    }
}

/// What a drawing shows.
struct Frame<'a> {
    step: usize,
    progress: Option<f64>,
    left: Option<f64>,
    main: Option<(&'static str, f64)>,
    values: &'a [f64],
    speed: f64,
    queue: Option<String>,
    width: usize,
}

fn frame(frame: &Frame<'_>) -> Vec<String> {
    let room = frame.width.saturating_sub(1).max(20);
    let mut head = format!("step {}", frame.step);
    if let Some(progress) = frame.progress {
        let done = (progress.clamp(0.0, 1.0) * 20.0).round() as usize;
        let bar = format!("{}{}", "━".repeat(done), "─".repeat(20 - done));
        head.push_str(&format!("  {bar} {:.0} %", progress * 100.0));
    }
    if let Some(left) = frame.left {
        head.push_str(&format!("  {} left", duration(left)));
    }
    if frame.speed > 0.0 {
        head.push_str(&format!("  {} tokens/s", short(frame.speed)));
    }
    let mut lines = vec![head];
    if let Some((name, value)) = frame.main {
        let label = format!("{name} {value:.4}  ");
        let curve = sparkline(
            frame.values,
            room.saturating_sub(label.chars().count()).min(60),
        );
        lines.push(format!("{label}{curve}"));
    }
    lines.extend(frame.queue.clone());
    let cut = |line: String| line.chars().take(room).collect();
    lines.into_iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_fit_and_times_are_told_from_two_steps() {
        let values = [3.0, 2.0, 1.0];
        let lines = frame(&Frame {
            step: 7,
            progress: Some(0.5),
            left: Some(65.0),
            main: Some(("train_mean_nll", 1.0)),
            values: &values,
            speed: 12_345.0,
            queue: Some("optim_step waits: paused".repeat(9)),
            width: 60,
        });
        assert_eq!(
            lines[0],
            "step 7  ━━━━━━━━━━────────── 50 %  1m 05s left  12.3k token"
        );
        assert!(lines[1].starts_with("train_mean_nll 1.0000  "));
        assert!(
            lines.iter().all(|line| line.chars().count() < 60),
            "{lines:?}"
        );
        assert_eq!(left(0.5, 0.0, 10.0), Some(10.0));
        assert_eq!(left(0.75, 0.5, 10.0), Some(10.0));
        assert_eq!(left(0.5, 0.5, 10.0), None);
    }
}
