//! What the system says about this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time and processor time of the timed part.
pub(crate) struct Meter {
    started: Instant,
    before: Process,
}

pub(crate) struct Figures {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
    pub(crate) base_rss: f64,
}

impl Meter {
    pub(crate) fn start() -> Self {
        let before = Process::now();
        Self {
            started: Instant::now(),
            before,
        }
    }

    pub(crate) fn stop(self) -> Figures {
        let wall = self.started.elapsed().as_secs_f64();
        let cpu = Process::now().cpu - self.before.cpu;
        Figures {
            wall,
            cpu,
            base_rss: self.before.rss,
        }
    }
}

/// What the system says about this process; sizes in MB, times in seconds.
pub(crate) struct Process {
    pub(crate) cpu: f64,
    pub(crate) rss: f64,
    pub(crate) peak_rss: f64,
    threads: usize,
}

impl Process {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // After the name, which may hold anything; Linux counts in hundredths of a second.
        let after_name = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let ticks = after_name
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<f64>().ok());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        Self {
            cpu: ticks.sum::<f64>() / 100.0,
            rss: field("VmRSS:") * 1024.0 / 1e6,
            peak_rss: field("VmHWM:") * 1024.0 / 1e6,
            threads: field("Threads:") as usize,
        }
    }
}

/// Looks every few milliseconds how many threads there are.
pub(crate) struct ThreadCount {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicUsize>,
    watcher: JoinHandle<()>,
}

impl ThreadCount {
    pub(crate) fn start() -> Self {
        let (stop, most) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let watcher = thread::spawn({
            let (stop, most) = (stop.clone(), most.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    // Without the watcher itself.
                    most.fetch_max(Process::now().threads.saturating_sub(1), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self {
            stop,
            most,
            watcher,
        }
    }

    pub(crate) fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.watcher.join();
        self.most.load(Ordering::Relaxed)
    }
}
