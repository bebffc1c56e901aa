//! When each request ran, for a picture of a session.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::types::Timestamp;

/// How many spans are remembered, over all sessions.
const SPANS: usize = 50_000;

/// One request's time at work.
#[derive(Debug, Clone)]
pub(in crate::local) struct Span {
    pub(in crate::local) session: String,
    /// The model or sampler that worked.
    pub(in crate::local) lane: String,
    pub(in crate::local) name: &'static str,
    pub(in crate::local) request_id: String,
    pub(in crate::local) start: Timestamp,
    pub(in crate::local) end: Timestamp,
}

#[derive(Debug, Default)]
pub(in crate::local) struct Traces {
    spans: Mutex<VecDeque<Span>>,
}

impl Traces {
    pub(in crate::local) fn add(&self, span: Span) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() == SPANS {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// A session's spans in the trace format browsers and Perfetto read.
    pub(in crate::local) fn export(&self, session: &str) -> Value {
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
