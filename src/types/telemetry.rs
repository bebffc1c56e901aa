//! Events that clients report to the service. They can be turned off; see the crate's
//! configuration.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Timestamp, time};

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// For finding faults.
    Debug,
    /// In the ordinary course.
    Info,
    /// The user's mistake, or something that mends itself.
    Warning,
    /// Something failed.
    Error,
    /// Nothing works any more.
    Critical,
}

/// Something that happened in a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// A fresh UUID.
    pub event_id: String,
    /// Counts the events of a session, from 0.
    pub event_session_index: u64,
    /// How serious it is.
    pub severity: Severity,
    /// When it happened.
    #[serde(with = "micros")]
    pub timestamp: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// What happened.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum EventKind {
    /// The session began.
    SessionStart,
    /// The session ended with a fatal error.
    SessionEnd {
        /// How long it lasted, as [`duration`] writes it.
        duration: String,
    },
    /// An operation failed, and not through the user's fault.
    UnhandledException {
        /// The error's kind.
        error_type: String,
        /// Its message.
        error_message: String,
        /// Where it came from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        traceback: Option<String>,
    },
    /// Anything else.
    GenericEvent {
        /// What it is called; a small set of names.
        event_name: String,
        /// Its details.
        #[serde(default)]
        event_data: Map<String, Value>,
    },
}

/// The events of one report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The events, oldest first.
    pub events: Vec<Event>,
    /// `Linux`, `Darwin` or `Windows`.
    pub platform: String,
    /// The version of the SDK whose dialect the client speaks.
    pub sdk_version: String,
    /// The session, or `sessionless-<uuid>`.
    pub session_id: String,
    /// The same for every session of a process. Older clients do not send it.
    #[serde(default)]
    pub process_uuid: String,
}

/// A duration as the service expects it: `[N day[s], ]H:MM:SS[.ffffff]`.
///
/// ```
/// use std::time::Duration;
/// use tinker::unversioned::telemetry::duration;
///
/// assert_eq!(duration(Duration::from_millis(61_500)), "0:01:01.500000");
/// assert_eq!(duration(Duration::from_secs(90_000)), "1 day, 1:00:00");
/// ```
pub fn duration(duration: std::time::Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let mut out = match days {
        0 => String::new(),
        1 => "1 day, ".to_owned(),
        days => format!("{days} days, "),
    };
    out.push_str(&format!("{hours}:{minutes:02}:{:02}", seconds % 60));
    let micros = duration.subsec_micros();
    if micros > 0 {
        out.push_str(&format!(".{micros:06}"));
    }
    out
}

/// Times that always show their six digits of fraction.
mod micros {
    use serde::{Deserializer, Serializer};

    use super::{Timestamp, time};

    pub(super) fn serialize<S: Serializer>(
        timestamp: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&timestamp.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        time::deserialize(deserializer)
    }
}
