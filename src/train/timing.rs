//! Where the time of a step went: named spans, from any thread.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::row::Row;
use crate::sync::lock;

/// One span of a [`Timing`].
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// What was done.
    pub name: String,
    /// When it began, from the timing's own start.
    pub start: Duration,
    /// When it was done.
    pub end: Duration,
}

/// The spans of one step, in the order in which they ended.
///
/// ```
/// use tinker::train::Timing;
///
/// let timing = Timing::start();
/// let sum: u64 = timing.span("add", || (0..10).sum());
/// assert_eq!(sum, 45);
/// assert!(timing.metrics().number("time/add").unwrap() >= 0.0);
/// ```
#[derive(Debug)]
pub struct Timing {
    started: Instant,
    spans: Mutex<Vec<Span>>,
}

impl Timing {
    /// Starts the clock of a step.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            spans: Mutex::default(),
        }
    }

    /// A timing of spans that were measured elsewhere.
    pub fn of(spans: Vec<Span>) -> Self {
        Self {
            started: Instant::now(),
            spans: Mutex::new(spans),
        }
    }

    /// Runs a piece of work as a span. Spans may nest, and run on several threads at once.
    pub fn span<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let start = self.started.elapsed();
        let result = work();
        let end = self.started.elapsed();
        let name = name.to_owned();
        lock(&self.spans).push(Span { name, start, end });
        result
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The spans as metrics: `time/<name>` of one that ran once, `:total`, `:count`, `:mean` and
    /// `:max` of one that ran several times.
    pub fn metrics(&self) -> Row {
        let spans = lock(&self.spans);
        let mut names: Vec<&str> = Vec::new();
        for span in spans.iter() {
            if !names.contains(&span.name.as_str()) {
                names.push(&span.name);
            }
        }
        let mut row = Row::new();
        for name in names {
            let same = spans.iter().filter(|span| span.name == name);
            let seconds: Vec<f64> = same.map(seconds).collect();
            if let [once] = seconds[..] {
                row.set(format!("time/{name}"), once);
                continue;
            }
            let total: f64 = seconds.iter().sum();
            row.set(format!("time/{name}:total"), total);
            row.set(format!("time/{name}:count"), seconds.len());
            row.set(format!("time/{name}:mean"), total / seconds.len() as f64);
            let max = seconds.iter().copied().fold(0.0, f64::max);
            row.set(format!("time/{name}:max"), max);
        }
        row
    }

    /// The spans as a line of `timing_spans.jsonl`; times are in seconds since the earliest span.
    pub fn line(&self, step: usize) -> Row {
        let spans = lock(&self.spans);
        let earliest = spans
            .iter()
            .map(|span| span.start)
            .min()
            .unwrap_or_default();
        let since = |time: Duration| time.saturating_sub(earliest).as_secs_f64();
        let list = spans.iter().map(|span| {
            Row::new()
                .with("name", span.name.as_str())
                .with("duration", seconds(span))
                .with("wall_start", since(span.start))
                .with("wall_end", since(span.end))
        });
        Row::new()
            .with("step", step)
            .with("spans", list.collect::<Vec<Row>>())
    }
}

fn seconds(span: &Span) -> f64 {
    span.end.saturating_sub(span.start).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_ends_before_it_begins_took_no_time() {
        let (start, end) = (Duration::from_secs(2), Duration::from_secs(1));
        let name = "clock".to_owned();
        let timing = Timing::of(vec![Span { name, start, end }]);
        assert_eq!(timing.metrics().number("time/clock"), Some(0.0));
        assert!(timing.line(0).to_line().contains("\"wall_end\": 0.0"));
    }
}
