//! When each request ran, for a picture of a session.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::types::Timestamp;

/// How many spans are remembered, over all sessions.
const SPANS: usize = 50_000;

/// One request's time at work.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) session: String,
    /// The model or sampler that worked.
    pub(super) lane: String,
    pub(super) name: &'static str,
    pub(super) request_id: String,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Traces {
    spans: Mutex<VecDeque<Span>>,
}

impl Traces {
    pub(super) fn add(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() == SPANS {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// A session's spans in the trace format browsers and Perfetto read.
    pub(super) fn export(&self, session: &str) -> Value {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let events: Vec<Value> = spans
            .iter()
            .filter(|span| span.session == session)
            .map(|span| {
                json!({
                    "ph": "X",
                    "name": span.name,
                    "cat": "request",
                    "ts": span.start.as_microsecond(),
                    "dur": span.end.as_microsecond() - span.start.as_microsecond(),
                    "pid": span.session,
                    "tid": span.lane,
                    "args": {"request_id": span.request_id},
                })
            })
            .collect();
        json!({"displayTimeUnit": "ms", "traceEvents": events})
    }
}
