//! Where metrics go besides the run's folder: anything that is a [`Logger`].

use std::io::Write;
use std::time::Instant;

use serde_json::Value as Json;

use super::row::{Row, Value};

/// Something that wants to hear of a run's metrics.
///
/// A logger that fails keeps it to itself: training does not stop for a full disk or a closed
/// pipe.
///
/// ```
/// use tinker::train::{Logger, Row};
///
/// struct Best(f64);
/// impl Logger for Best {
///     fn metrics(&mut self, _step: usize, row: &Row) {
///         self.0 = row.number("train_mean_nll").unwrap_or(self.0).min(self.0);
///     }
/// }
/// ```
pub trait Logger: Send {
    /// The settings, once, before the first step.
    fn config(&mut self, config: &Json) {
        let _ = config;
    }

    /// The metrics of a step.
    fn metrics(&mut self, step: usize, row: &Row);

    /// The end.
    fn close(&mut self) {}
}

/// Every line of metrics as JSON, to anything that can be written to; NaN and the infinities, which
/// JSON does not have, are null.
#[derive(Debug)]
pub struct JsonLines<W>(pub W);

impl<W: Write + Send> Logger for JsonLines<W> {
    fn metrics(&mut self, step: usize, row: &Row) {
        let mut line = Row::new().with("step", step);
        line.merge(row.clone());
        let _ = writeln!(self.0, "{}", line.to_json_line());
    }
}

/// A table per step. Totals and counts of timings do not show.
///
/// ```
/// use tinker::train::{Logger, Row, Table};
///
/// let mut text = Vec::new();
/// Table(&mut text).metrics(3, &Row::new().with("learning_rate", 1e-4));
/// let text = String::from_utf8(text)?;
/// assert_eq!(text, "Step 3\n  learning_rate  0.000100\n");
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Table<W>(pub W);

impl<W: Write + Send> Logger for Table<W> {
    fn metrics(&mut self, step: usize, row: &Row) {
        let hidden = |name: &str| name.ends_with(":total") || name.ends_with(":count");
        let mut shown: Vec<(&str, &Value)> = row.iter().filter(|(name, _)| !hidden(name)).collect();
        shown.sort_by_key(|(name, _)| *name);
        let width = shown.iter().map(|(name, _)| name.chars().count()).max();
        let width = width.unwrap_or(0);
        let mut text = format!("Step {step}\n");
        for (name, value) in shown {
            let value = match value {
                Value::Float(number) => format!("{number:.6}"),
                other => other.to_string(),
            };
            text += &format!("  {name:width$}  {value}\n");
        }
        let _ = self
            .0
            .write_all(text.as_bytes())
            .and_then(|()| self.0.flush());
    }
}

/// A line that is drawn over itself: a bar, how far the run is, its loss or reward, and how long
/// it will take. Meant for a terminal's standard error.
#[derive(Debug)]
pub struct Bar<W: Write> {
    output: W,
    started: Option<(Instant, f64)>,
    width: usize,
}

impl<W: Write> Bar<W> {
    /// A bar on this output.
    pub fn new(output: W) -> Self {
        Self {
            output,
            started: None,
            width: 0,
        }
    }
}

/// The figures a bar shows, the first that a row has.
const HEADLINES: [(&str, &str); 4] = [
    ("train_mean_nll", "nll"),
    ("dpo_loss", "loss"),
    ("env/all/reward/total", "reward"),
    ("loss", "loss"),
];

impl<W: Write + Send> Logger for Bar<W> {
    fn metrics(&mut self, step: usize, row: &Row) {
        let done = row
            .number("progress")
            .or_else(|| row.number("progress/done_frac"));
        let done = done.unwrap_or(0.0).clamp(0.0, 1.0);
        let (started, at) = *self.started.get_or_insert_with(|| (Instant::now(), done));
        let left = match done - at {
            gone if gone > 0.0 => {
                let seconds = started.elapsed().as_secs_f64() * (1.0 - done) / gone;
                format!(", {} left", duration(seconds))
            }
            _ => String::new(),
        };
        let headline = HEADLINES
            .iter()
            .find_map(|(name, short)| Some(format!(" {short} {:.4}", row.number(name)?)))
            .unwrap_or_default();
        let filled = (done * 30.0) as usize;
        let line = format!(
            "{}{} {:3.0} % step {step}{headline}{left}",
            "█".repeat(filled),
            "░".repeat(30 - filled),
            done * 100.0
        );
        let length = line.chars().count();
        // What is left of a longer line before is covered with spaces.
        let cover = " ".repeat(self.width.saturating_sub(length));
        self.width = length;
        let _ = write!(self.output, "\r{line}{cover}").and_then(|()| self.output.flush());
    }

    fn close(&mut self) {
        if self.width > 0 {
            let _ = writeln!(self.output);
        }
    }
}

/// Seconds as a person says them.
pub(super) fn duration(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_how_far_it_is() {
        let mut bar = Bar::new(Vec::new());
        bar.metrics(
            0,
            &Row::new()
                .with("progress", 0.5)
                .with("train_mean_nll", 1.25),
        );
        bar.metrics(1, &Row::new().with("progress", 1.0));
        bar.close();
        let text = String::from_utf8(bar.output).unwrap();
        let lines: Vec<&str> = text.split('\r').collect();
        assert!(lines[1].ends_with(" 50 % step 0 nll 1.2500"), "{text}");
        assert!(
            lines[2].contains("100 % step 1, 0 s left") && text.ends_with('\n'),
            "{text}"
        );
    }

    #[test]
    fn durations_in_words() {
        for (seconds, text) in [(5.9, "5 s"), (61.0, "1 min 1 s"), (7260.0, "2 h 1 min")] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn lines_begin_with_their_step() {
        let mut logger = JsonLines(Vec::new());
        logger.metrics(2, &Row::new().with("a", 1usize));
        assert_eq!(logger.0, b"{\"step\": 2, \"a\": 1}\n");
    }
}
