//! Counts of every exchange, and the user's observer of what goes wrong.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::{Body, Link, Request, Response, Source};
use crate::error::Error;
use crate::sync::lock;
use crate::transport::Fault;
use crate::types::{ClientEvent, ClientMetrics};

/// The most requests that are told apart; raw calls may be to any path.
const LABELS: usize = 1_000;

/// What a link has counted.
#[derive(Default)]
pub(super) struct Metrics {
    answers: Mutex<BTreeMap<(String, u16), u64>>,
    retries: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    in_flight: AtomicUsize,
    observer_failed: AtomicBool,
}

impl Metrics {
    fn answered(&self, label: &str, outcome: &Result<Response, Fault>) {
        let status = outcome.as_ref().map_or(0, Response::status);
        if let Ok(response) = outcome {
            let bytes = response.body.len() as u64;
            self.received.fetch_add(bytes, Ordering::Relaxed);
        }
        let mut answers = lock(&self.answers);
        let label = match answers.len() < LABELS {
            true => label,
            false => "others",
        };
        *answers.entry((label.to_owned(), status)).or_default() += 1;
    }
}

impl Link {
    /// One exchange, counted.
    pub(super) fn exchange(&self, request: &Request<'_>) -> Result<Response, Fault> {
        let metrics = &self.metrics;
        let bytes = length(&request.body);
        metrics.sent.fetch_add(bytes, Ordering::Relaxed);
        metrics.in_flight.fetch_add(1, Ordering::Relaxed);
        let outcome = self.transport.exchange(request);
        metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        metrics.answered(&request.label, &outcome);
        outcome
    }

    /// Counts a request that will be made again, and tells the observer.
    pub(crate) fn retrying(&self, request: &str, delay: Duration, error: &Error) {
        self.metrics.retries.fetch_add(1, Ordering::Relaxed);
        if self.observer.is_some() {
            self.tell(&ClientEvent::Retry {
                request: request.to_owned(),
                delay,
                error: error.clone(),
            });
        }
    }

    /// Tells the user's observer; a panic in it is logged once and the thread lives on.
    pub(crate) fn tell(&self, event: &ClientEvent) {
        let Some(observer) = &self.observer else {
            return;
        };
        let run = catch_unwind(AssertUnwindSafe(|| observer.call(event)));
        if run.is_err() && !self.metrics.observer_failed.swap(true, Ordering::Relaxed) {
            log::error!("the event observer panicked; the client goes on");
        }
    }

    /// What the link has counted; the rest is for those who know.
    pub(crate) fn metrics(&self) -> ClientMetrics {
        let metrics = &self.metrics;
        ClientMetrics {
            requests: lock(&metrics.answers).clone(),
            retries: metrics.retries.load(Ordering::Relaxed),
            bytes_sent: metrics.sent.load(Ordering::Relaxed),
            bytes_received: metrics.received.load(Ordering::Relaxed),
            in_flight: metrics.in_flight.load(Ordering::Relaxed),
            sockets: self.transport.open_connections(),
            token_expires: self.token_expiry(),
            ..ClientMetrics::default()
        }
    }
}

/// The bytes of a body that lie in memory.
fn length(body: &Body<'_>) -> u64 {
    let bytes = match body {
        Body::Json(bytes) | Body::Proto { bytes, .. } => bytes.len(),
        Body::Raw {
            source: Source::Bytes(bytes),
            ..
        } => bytes.len(),
        _ => 0,
    };
    bytes as u64
}
