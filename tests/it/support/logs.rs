//! What the library logs, for tests that assert on it.

use std::sync::{Mutex, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Capture;

impl Log for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tinker")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{}: {}", record.level(), record.args());
            let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push(line);
        }
    }

    fn flush(&self) {}
}

/// Keeps what is said at `info` and above from now on, of every test of the process.
pub(crate) fn capture() {
    static START: Once = Once::new();
    START.call_once(|| {
        log::set_logger(&Capture).unwrap();
        log::set_max_level(LevelFilter::Info);
    });
}

/// The lines that contain `words`, which should be something only one test says.
pub(crate) fn with(words: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines
        .iter()
        .filter(|line| line.contains(words))
        .cloned()
        .collect()
}
