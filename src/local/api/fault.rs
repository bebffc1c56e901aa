//! Faults served on purpose, so that clients can be tested against a bad day.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One fault: which endpoint it hits, what goes wrong, and how often.
///
/// A fault hits every request to its endpoint unless told otherwise. Where several faults match
/// one request, the first that decides to strike wins.
///
/// ```no_run
/// use tinker::local::{Fault, LocalServer};
///
/// let server = LocalServer::builder()
///     .fault(Fault::status("asample", 429).with_header("retry-after-ms", "20").with_times(3))
///     .fault(Fault::dropped_after("optim_step").with_skip(4).with_times(1))
///     .fault(Fault::truncated("retrieve_future").with_rate(0.05, 7))
///     .start()?;
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    endpoint: String,
    kind: FaultKind,
    #[serde(default)]
    skip: u64,
    #[serde(default)]
    times: Option<u64>,
    #[serde(default = "always")]
    rate: f64,
    #[serde(default)]
    seed: u64,
}

/// What goes wrong.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FaultKind {
    /// An error status instead of the answer; the request has no effect.
    Status {
        /// The HTTP status, from 200 to 999.
        status: u16,
        /// Extra headers, in order.
        #[serde(default)]
        headers: Vec<(String, String)>,
        /// The body; JSON with a `detail` unless given.
        #[serde(default)]
        body: Option<String>,
    },
    /// The right answer, late.
    Slow {
        /// How late.
        millis: u64,
    },
    /// The request is read and has no effect; no answer ever comes, the connection stays open.
    Stalled,
    /// The connection closes before the request takes effect.
    DroppedBefore,
    /// The request takes effect, then the connection closes without an answer.
    DroppedAfter,
    /// The request takes effect; the connection closes in the middle of the answer's body.
    Truncated,
    /// The request takes effect; the answer arrives whole, but its body is damaged.
    Malformed,
}

fn always() -> f64 {
    1.0
}

impl Fault {
    /// A fault of any kind. `endpoint` is a path below `/api/v1/` as the documentation writes it,
    /// such as `asample` or `sessions/{id}/finish`; `*` stands for all.
    pub fn new(endpoint: impl Into<String>, kind: FaultKind) -> Self {
        Self {
            endpoint: endpoint.into(),
            kind,
            skip: 0,
            times: None,
            rate: 1.0,
            seed: 0,
        }
    }

    /// Answers with this status, from 200 to 999; the request has no effect.
    pub fn status(endpoint: impl Into<String>, status: u16) -> Self {
        Self::new(
            endpoint,
            FaultKind::Status {
                status,
                headers: Vec::new(),
                body: None,
            },
        )
    }

    /// Answers rightly, but this much later.
    pub fn slow(endpoint: impl Into<String>, delay: Duration) -> Self {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Self::new(endpoint, FaultKind::Slow { millis })
    }

    /// Never answers; the request has no effect.
    pub fn stalled(endpoint: impl Into<String>) -> Self {
        Self::new(endpoint, FaultKind::Stalled)
    }

    /// Closes the connection before the request takes effect.
    pub fn dropped_before(endpoint: impl Into<String>) -> Self {
        Self::new(endpoint, FaultKind::DroppedBefore)
    }

    /// Closes the connection after the request took effect, without an answer.
    pub fn dropped_after(endpoint: impl Into<String>) -> Self {
        Self::new(endpoint, FaultKind::DroppedAfter)
    }

    /// Cuts the answer's body in half; the request takes effect.
    pub fn truncated(endpoint: impl Into<String>) -> Self {
        Self::new(endpoint, FaultKind::Truncated)
    }

    /// Damages the answer's body; the request takes effect.
    pub fn malformed(endpoint: impl Into<String>) -> Self {
        Self::new(endpoint, FaultKind::Malformed)
    }

    /// Adds a header to a [status](Self::status) fault; other kinds have no headers of their own.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let FaultKind::Status { headers, .. } = &mut self.kind {
            headers.push((name.into(), value.into()));
        }
        self
    }

    /// Sets the body of a [status](Self::status) fault. Default: JSON with a `detail`.
    #[must_use]
    pub fn with_body(mut self, text: impl Into<String>) -> Self {
        if let FaultKind::Status { body, .. } = &mut self.kind {
            *body = Some(text.into());
        }
        self
    }

    /// Lets this many matching requests pass first. Default: 0.
    #[must_use]
    pub fn with_skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Strikes at most this often. Default: without limit.
    #[must_use]
    pub fn with_times(mut self, count: u64) -> Self {
        self.times = Some(count);
        self
    }

    /// Strikes this share of the matching requests (0 to 1), chosen by the seed: the same seed
    /// hits the same positions. Default: all of them.
    #[must_use]
    pub fn with_rate(mut self, rate: f64, seed: u64) -> Self {
        self.rate = rate;
        self.seed = seed;
        self
    }

    /// Refuses what could not strike as it is told to.
    pub(in crate::local) fn check(&self) -> Result<()> {
        if !(0.0..=1.0).contains(&self.rate) {
            let problem = format!("must be from 0 to 1, got {}", self.rate);
            return Err(Error::invalid("rate", problem));
        }
        let FaultKind::Status {
            status, headers, ..
        } = &self.kind
        else {
            return Ok(());
        };
        // Below 200 it would not be an answer yet.
        if !(200..=999).contains(status) {
            let problem = format!("must be from 200 to 999, got {status}");
            return Err(Error::invalid("status", problem));
        }
        let is_header = |(name, value): &&(String, String)| {
            HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok()
        };
        match headers.iter().find(|header| !is_header(header)) {
            Some((name, value)) => {
                let problem = format!("{name:?} cannot be one, of {value:?}");
                Err(Error::invalid("headers", problem))
            }
            None => Ok(()),
        }
    }

    pub(in crate::local) fn endpoint(&self) -> &str {
        &self.endpoint
    }
}

/// The faults in force, with what each has seen and done so far.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Armed>);

#[derive(Debug)]
struct Armed {
    fault: Fault,
    seen: u64,
    struck: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(Armed {
            fault,
            seen: 0,
            struck: 0,
        });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What goes wrong with this request, if anything.
    pub(super) fn strike(&mut self, endpoint: &str) -> Option<FaultKind> {
        let mut hit = None;
        for armed in &mut self.0 {
            if armed.matches(endpoint) && armed.decide() && hit.is_none() {
                armed.struck += 1;
                hit = Some(armed.fault.kind.clone());
            }
        }
        hit
    }
}

impl Armed {
    fn matches(&self, endpoint: &str) -> bool {
        self.fault.endpoint == "*" || self.fault.endpoint == endpoint
    }

    fn decide(&mut self) -> bool {
        let position = self.seen;
        self.seen += 1;
        position >= self.fault.skip
            && self.fault.times.is_none_or(|times| self.struck < times)
            && unit(self.fault.seed, position) < self.fault.rate
    }
}

/// A number in [0, 1) that depends on the seed and the position only.
fn unit(seed: u64, position: u64) -> f64 {
    fastrand::Rng::with_seed(seed ^ position.wrapping_mul(0x9E37_79B9_7F4A_7C15)).f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(fault: Fault, expected: &str) {
        let mut faults = Faults::default();
        faults.add(fault);
        let hits: String = (0..expected.len())
            .map(|_| match faults.strike("asample") {
                Some(_) => 'x',
                None => '.',
            })
            .collect();
        assert_eq!(hits, expected);
    }

    #[test]
    fn strikes_where_told() {
        check(Fault::stalled("asample"), "xxxx");
        check(Fault::stalled("*"), "xxxx");
        check(Fault::stalled("optim_step"), "....");
        check(Fault::stalled("asample").with_times(2), "xx..");
        check(Fault::stalled("asample").with_skip(1).with_times(1), ".x..");
        check(Fault::stalled("asample").with_rate(0.0, 1), "....");
    }

    #[test]
    fn rate_is_a_function_of_the_seed() {
        let run = |seed| {
            let mut faults = Faults::default();
            faults.add(Fault::truncated("asample").with_rate(0.25, seed));
            (0..4000)
                .map(|_| faults.strike("asample").is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        let share = run(3).iter().filter(|hit| **hit).count();
        assert!((800..1200).contains(&share), "{share} of 4000");
    }

    #[test]
    fn reads_the_admin_routes_json() {
        let text = r#"{"endpoint":"asample","kind":{"type":"status","status":503},"times":2}"#;
        let fault: Fault = serde_json::from_str(text).unwrap();
        assert_eq!(fault, Fault::status("asample", 503).with_times(2));
    }
}
