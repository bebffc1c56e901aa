//! What the server counts about itself, as Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use super::{Answer, Call};
use crate::local::http::Reply;
use crate::local::state::memory;
use crate::sync::lock;

/// Upper ends of the latency buckets, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0];

/// Requests by endpoint: how many of each status, and how long they took.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    endpoints: Mutex<BTreeMap<(&'static str, &'static str), Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    statuses: BTreeMap<u16, u64>,
    buckets: [u64; BUCKETS.len()],
    seconds: f64,
}

/// What was asked of one endpoint.
#[cfg(feature = "chat")]
#[derive(Debug, serde::Serialize)]
pub(super) struct Requests {
    method: &'static str,
    path: &'static str,
    count: u64,
    failed: u64,
    /// All of them together, until each answer began.
    seconds: f64,
}

impl Metrics {
    /// Counts a request that was answered.
    pub(super) fn count(
        &self,
        endpoint: (&'static str, &'static str),
        status: u16,
        elapsed: Duration,
    ) {
        let mut endpoints = lock(&self.endpoints);
        let seen = endpoints.entry(endpoint).or_default();
        *seen.statuses.entry(status).or_default() += 1;
        let seconds = elapsed.as_secs_f64();
        seen.seconds += seconds;
        for (count, end) in seen.buckets.iter_mut().zip(BUCKETS) {
            *count += u64::from(seconds <= end);
        }
    }

    /// What was asked of endpoints that are wanted, the most asked first.
    #[cfg(feature = "chat")]
    pub(super) fn requests(&self, wanted: impl Fn(&str) -> bool) -> Vec<Requests> {
        let endpoints = lock(&self.endpoints);
        let wanted = endpoints.iter().filter(|((_, path), _)| wanted(path));
        let mut list: Vec<Requests> = wanted
            .map(|(&(method, path), seen)| Requests {
                method,
                path,
                count: seen.statuses.values().sum(),
                failed: seen.statuses.range(400..).map(|(_, count)| count).sum(),
                seconds: seen.seconds,
            })
            .collect();
        list.sort_by_key(|line| std::cmp::Reverse(line.count));
        list
    }

    fn write(&self, out: &mut String) {
        let endpoints = lock(&self.endpoints);
        family(
            out,
            "requests_total",
            "counter",
            "Requests by endpoint and status.",
        );
        for ((method, path), seen) in endpoints.iter() {
            for (status, count) in &seen.statuses {
                let labels = format!(r#"method="{method}",endpoint="{path}",status="{status}""#);
                line(out, "requests_total", &labels, *count as f64);
            }
        }
        let name = "request_seconds";
        family(out, name, "histogram", "Time until an answer began.");
        for ((method, path), seen) in endpoints.iter() {
            let labels = format!(r#"method="{method}",endpoint="{path}""#);
            for (end, count) in BUCKETS.iter().zip(seen.buckets) {
                let labels = format!(r#"{labels},le="{end}""#);
                line(out, &format!("{name}_bucket"), &labels, count as f64);
            }
            let all = seen.statuses.values().sum::<u64>() as f64;
            line(
                out,
                &format!("{name}_bucket"),
                &format!(r#"{labels},le="+Inf""#),
                all,
            );
            line(out, &format!("{name}_sum"), &labels, seen.seconds);
            line(out, &format!("{name}_count"), &labels, all);
        }
    }
}

pub(super) fn metrics(call: &Call) -> Answer {
    let (state, work) = (call.state(), call.work());
    let mut out = String::new();
    call.service.metrics.write(&mut out);
    family(
        &mut out,
        "tokens_total",
        "counter",
        "Tokens trained on, read and sampled.",
    );
    for (kind, count) in state.ledger.totals() {
        line(
            &mut out,
            "tokens_total",
            &format!(r#"kind="{}""#, kind.name()),
            count as f64,
        );
    }
    let gauges = [
        (
            "sessions",
            "Sessions alive.",
            state.sessions.active() as f64,
        ),
        ("models", "Models in training.", state.models.len() as f64),
        (
            "queued_requests",
            "Requests waiting for a model.",
            state.models.queued() as f64,
        ),
        (
            "pending_samples",
            "Samples under way.",
            state.samplers.pending() as f64,
        ),
        (
            "samplers",
            "Sampling sessions alive.",
            state.samplers.len() as f64,
        ),
        ("results", "Results kept.", state.futures.kept().0 as f64),
        ("result_bytes", "Their size.", state.futures.kept().1 as f64),
        (
            "base_models",
            "Models of the server in memory.",
            work.library.loaded() as f64,
        ),
        (
            "adapters",
            "Adapters in memory.",
            work.adapters.resident().0 as f64,
        ),
        (
            "adapter_bytes",
            "Their size.",
            work.adapters.resident().1 as f64,
        ),
        (
            "reserved_bytes",
            "Memory promised to models in training.",
            work.memory.used() as f64,
        ),
        (
            "memory_limit_bytes",
            "How much may be promised.",
            work.memory.limit() as f64,
        ),
        (
            "resident_memory_bytes",
            "Memory of the process.",
            memory::resident() as f64,
        ),
    ];
    for (name, help, value) in gauges {
        family(&mut out, name, "gauge", help);
        line(&mut out, name, "", value);
    }
    Ok(Reply::new("text/plain; version=0.0.4", out))
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "# HELP tinker_{name} {help}\n# TYPE tinker_{name} {kind}\n"
    );
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let _ = match labels {
        "" => writeln!(out, "tinker_{name} {value}"),
        labels => writeln!(out, "tinker_{name}{{{labels}}} {value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_endpoint_status_and_time() {
        let metrics = Metrics::default();
        for (status, millis) in [(200, 1), (200, 700), (404, 3)] {
            metrics.count(("GET", "a"), status, Duration::from_millis(millis));
        }
        let mut text = String::new();
        metrics.write(&mut text);
        for expected in [
            r#"tinker_requests_total{method="GET",endpoint="a",status="200"} 2"#,
            r#"tinker_request_seconds_bucket{method="GET",endpoint="a",le="0.005"} 2"#,
            r#"tinker_request_seconds_bucket{method="GET",endpoint="a",le="+Inf"} 3"#,
            r#"tinker_request_seconds_count{method="GET",endpoint="a"} 3"#,
        ] {
            assert!(
                text.lines().any(|line| line == expected),
                "{expected}\n{text}"
            );
        }
    }
}
