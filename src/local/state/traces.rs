//! When each request ran, for a picture of a session.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Serialize;

use crate::sync::lock;
use crate::types::Timestamp;

/// How many spans are remembered, over all sessions.
const SPANS: usize = 10_000;

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
        let mut spans = lock(&self.spans);
        if spans.len() == SPANS {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// A session's spans in the trace format browsers and Perfetto read.
    pub(in crate::local) fn export(&self, session: &str) -> Trace {
        let spans = lock(&self.spans);
        let spans = spans.iter().filter(|span| span.session == session);
        Trace {
            display_time_unit: "ms",
            trace_events: spans.map(Event::new).collect(),
        }
    }
}

/// A trace as it is written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::local) struct Trace {
    display_time_unit: &'static str,
    trace_events: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Event {
    /// A whole span in one event.
    ph: &'static str,
    name: &'static str,
    cat: &'static str,
    ts: i64,
    dur: i64,
    pid: String,
    tid: String,
    args: Args,
}

#[derive(Debug, Serialize)]
struct Args {
    request_id: String,
}

impl Event {
    fn new(span: &Span) -> Self {
        Self {
            ph: "X",
            name: span.name,
            cat: "request",
            ts: span.start.as_microsecond(),
            dur: span.end.as_microsecond() - span.start.as_microsecond(),
            pid: span.session.clone(),
            tid: span.lane.clone(),
            args: Args {
                request_id: span.request_id.clone(),
            },
        }
    }
}
