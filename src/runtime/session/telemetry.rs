//! Events reported to the service: queued, sent in batches, never in anyone's way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::error::{Error, ErrorCategory, Meaning};
use crate::runtime::calls::{Effort, Link};
use crate::runtime::futures::Failure;
use crate::runtime::stop::Stop;
use crate::sync::{lock, wait_while};
use crate::transport::{Body, PROTOCOL_VERSION, Request};
use crate::types::Timestamp;
use crate::types::telemetry::{Batch, Event, EventKind, Severity, duration};
use crate::wire::reply::TelemetryReply;
use crate::wire::request::to_json;
use crate::wire::route;

/// Events past this many are dropped.
const CAPACITY: usize = 10_000;
const BATCH: usize = 100;
const FLUSH: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// The queue of events. Cloning shares it; one that is off takes nothing.
#[derive(Clone)]
pub(crate) struct Telemetry(Option<Arc<Shared>>);

struct Shared {
    session_id: String,
    started: Instant,
    index: AtomicU64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    events: Vec<Event>,
    flush: bool,
    /// Events handed to the sender and not yet accepted.
    sending: usize,
}

impl Telemetry {
    pub(crate) fn off() -> Self {
        Self(None)
    }

    /// A queue that begins with the start of the session.
    pub(crate) fn new(session_id: &str) -> Self {
        let telemetry = Self(Some(Arc::new(Shared {
            session_id: session_id.to_owned(),
            started: Instant::now(),
            index: AtomicU64::new(0),
            queue: Mutex::default(),
            changed: Condvar::new(),
        })));
        telemetry.push(vec![(Severity::Info, EventKind::SessionStart)]);
        telemetry
    }

    /// Reports that an operation failed for good, as the reference does: what the future saw,
    /// the error as its caller sees it, and the end of the session's good time.
    pub(crate) fn operation_failed(&self, failure: &Failure<'_>) {
        let Some(shared) = &self.0 else { return };
        let (error, user) = (failure.error, failure.error.is_user_error());
        let severity = match user {
            true => Severity::Warning,
            false => Severity::Error,
        };
        let mut data = Map::new();
        let mut put = |name: &str, value: Value| data.insert(name.to_owned(), value);
        put("request_id", json!(failure.request_id));
        put("request_type", json!(failure.request_type));
        let name = match error {
            Error::Failed(context) => {
                let category = context.category.unwrap_or_default();
                put("error", json!(context.message));
                put("error_category", json!(category_name(category)));
                "application_error"
            }
            Error::Status(_) | Error::Lost(_) => {
                put("status_code", json!(error.status()));
                "api_status_error"
            }
            Error::Timeout(_) => "timeout",
            Error::Reply(_) => "validation_error",
            _ => "connection_error",
        };
        put("is_user_error", json!(user));
        put("iteration", json!(failure.iteration));
        put("elapsed_time", json!(failure.elapsed.as_secs_f64()));
        let mut events = vec![(
            severity,
            generic(&format!("APIFuture.result_async.{name}"), data),
        )];
        events.push(exception(error, user));
        events.push((
            Severity::Info,
            EventKind::SessionEnd {
                duration: duration(shared.started.elapsed()),
            },
        ));
        self.push(events);
        self.flush();
    }

    fn push(&self, kinds: Vec<(Severity, EventKind)>) {
        let Some(shared) = &self.0 else { return };
        let mut queue = lock(&shared.queue);
        if queue.events.len() + kinds.len() > CAPACITY {
            log::debug!("telemetry is full, dropping {} events", kinds.len());
            return;
        }
        for (severity, kind) in kinds {
            queue.events.push(Event {
                event_id: uuid::Uuid::new_v4().to_string(),
                event_session_index: shared.index.fetch_add(1, Ordering::Relaxed),
                severity,
                timestamp: Timestamp::now(),
                kind,
            });
        }
    }

    /// Asks for what is queued to be sent now. Does not wait.
    pub(crate) fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        lock(&shared.queue).flush = true;
        shared.changed.notify_all();
    }

    /// Waits until everything was accepted, at most for `limit`.
    pub(crate) fn drain(&self, limit: Duration) {
        let Some(shared) = &self.0 else { return };
        self.flush();
        let queue = lock(&shared.queue);
        drop(shared.changed.wait_timeout_while(queue, limit, |queue| {
            !queue.events.is_empty() || queue.sending > 0
        }));
    }

    /// The sender's loop; ends when `stop` is set.
    pub(crate) fn run(&self, link: &Link, stop: &Stop) {
        let Some(shared) = &self.0 else { return };
        while !stop.is_set() {
            let events = shared.next_batch(stop);
            if events.is_empty() {
                continue;
            }
            while !shared.send(link, &events) {
                if stop.wait(Some(RETRY)) {
                    return;
                }
            }
            lock(&shared.queue).sending = 0;
            shared.changed.notify_all();
        }
    }

    /// Wakes the sender so that it sees its stop.
    pub(crate) fn wake(&self) {
        if let Some(shared) = &self.0 {
            shared.changed.notify_all();
        }
    }
}

impl Shared {
    fn next_batch(&self, stop: &Stop) -> Vec<Event> {
        let queue = lock(&self.queue);
        let mut queue = wait_while(&self.changed, queue, Some(FLUSH), |queue| {
            !queue.flush && !stop.is_set()
        });
        let count = queue.events.len().min(BATCH);
        queue.sending = count;
        queue.flush = queue.flush && queue.events.len() > count;
        queue.events.drain(..count).collect()
    }

    fn send(&self, link: &Link, events: &[Event]) -> bool {
        let batch = Batch {
            events: events.to_vec(),
            platform: platform().to_owned(),
            sdk_version: PROTOCOL_VERSION.to_owned(),
            session_id: self.session_id.clone(),
            process_uuid: process_uuid(),
        };
        let Ok(body) = to_json(&batch) else {
            return true;
        };
        let request = Request::to(&route::TELEMETRY, route::TELEMETRY.fixed_path())
            .with_body(Body::Json(&body));
        match link.call::<TelemetryReply>(request, Effort::ONCE) {
            Ok(reply) => reply.is_accepted(),
            // A server without telemetry (404, 405) will not grow it.
            Err(error) => matches!(
                error.meaning(),
                Some(Meaning::Missing | Meaning::Gone | Meaning::Unsupported)
            ),
        }
    }
}

/// The same for every client of a process; a forked child has its own.
fn process_uuid() -> String {
    static UUID: OnceLock<Mutex<(u32, String)>> = OnceLock::new();
    let fresh = || (std::process::id(), uuid::Uuid::new_v4().to_string());
    let mut current = lock(UUID.get_or_init(|| Mutex::new(fresh())));
    if current.0 != std::process::id() {
        *current = fresh();
    }
    current.1.clone()
}

fn platform() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "windows" => "Windows",
        other => other,
    }
}

fn category_name(category: ErrorCategory) -> &'static str {
    match category {
        ErrorCategory::Unknown => "Unknown",
        ErrorCategory::Server => "Server",
        ErrorCategory::User => "User",
    }
}

fn generic(name: &str, data: Map<String, Value>) -> EventKind {
    EventKind::GenericEvent {
        event_name: name.to_owned(),
        event_data: data,
    }
}

/// The error as its caller sees it. Messages are the service's own words or ours; they hold
/// neither headers nor prompts.
fn exception(error: &Error, user: bool) -> (Severity, EventKind) {
    let kind = match error {
        Error::Failed(_) => "RequestFailedError",
        Error::Status(_) => "APIStatusError",
        Error::Timeout(_) => "APITimeoutError",
        Error::Connection(_) => "APIConnectionError",
        Error::Reply(_) => "APIResponseValidationError",
        Error::Lost(_) => "RetryableException",
        _ => "TinkerError",
    };
    if !user {
        return (
            Severity::Error,
            EventKind::UnhandledException {
                error_type: kind.to_owned(),
                error_message: error.to_string(),
                traceback: None,
            },
        );
    }
    let mut data = Map::new();
    data.insert("error_type".into(), json!(kind));
    data.insert("message".into(), json!(error.to_string()));
    if let Some(status) = error.status() {
        data.insert("status_code".into(), json!(status));
    }
    (Severity::Warning, generic("user_error", data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_whole() {
        let telemetry = Telemetry::new("S1");
        let queued = || lock(&telemetry.0.as_ref().unwrap().queue).events.len();
        let push = |count: usize| {
            let event = (Severity::Info, EventKind::SessionStart);
            telemetry.push(vec![event; count]);
        };
        // The start of the session is the first event.
        push(CAPACITY - 2);
        assert_eq!(queued(), CAPACITY - 1);
        push(2);
        assert_eq!(queued(), CAPACITY - 1);
        push(1);
        assert_eq!(queued(), CAPACITY);
        assert!(Telemetry::off().0.is_none());
    }
}
