//! Sessions: what they made and how they ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::macros::open_enum;
use crate::types::{ModelId, RequestId, SamplingSessionId, SessionId, Timestamp, time};

/// A page of session ids, newest first.
#[doc(alias = "ListSessionsResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPage {
    /// The ids.
    pub sessions: Vec<SessionId>,
}

/// What a session made.
#[doc(alias = "GetSessionResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDetails {
    /// The models it trained.
    pub training_run_ids: Vec<ModelId>,
    /// The samplers it used.
    pub sampler_ids: Vec<SamplingSessionId>,
    /// What its owner noted.
    #[serde(default)]
    pub user_metadata: Option<BTreeMap<String, String>>,
    /// What its owner called it.
    #[serde(default)]
    pub display_name: Option<String>,
}

/// A session in a list.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Its id.
    pub session_id: SessionId,
    /// When it was opened.
    #[serde(with = "time")]
    pub created_at: Timestamp,
    /// Whose it is.
    pub owner: String,
    /// The project it belongs to.
    pub project_id: String,
    /// How it is, if it ended or is known to run.
    #[serde(default)]
    pub status: Option<SessionStatus>,
    /// How many checkpoints it saved.
    pub checkpoints_count: u64,
    /// What its owner called it.
    #[serde(default)]
    pub display_name: Option<String>,
    /// What its owner noted.
    #[serde(default)]
    pub user_metadata: Option<BTreeMap<String, String>>,
    /// How much its checkpoints take.
    #[serde(default)]
    pub checkpoint_storage_bytes: Option<u64>,
}

/// How a session is.
///
/// ```
/// use tinker::types::SessionStatus;
/// let status: SessionStatus = serde_json::from_str(r#"{"type": "paused", "until": 3}"#)?;
/// assert!(matches!(status, SessionStatus::Other(_)));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SessionStatus {
    /// It runs.
    Active,
    /// It was cancelled in the console.
    Cancelled {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// Its client said that it was done.
    ClientFinished {
        /// How the client ended.
        #[serde(with = "finish_reason")]
        reason: FinishReason,
        /// What else the client said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// One of its requests, runs or samplers failed it.
    Failed {
        /// Whose fault it was.
        category: FailureCategory,
        /// What failed.
        reason: FailureReason,
        /// The failure's message.
        message: String,
    },
    /// A status this version does not know, as it came.
    #[serde(untagged)]
    Other(Value),
}

open_enum! {
    /// How a client ended.
    FinishReason {
        /// All went well.
        Success = "success",
        /// An error ended it.
        Errored = "errored",
        /// The user ended it.
        Interrupted = "interrupted",
    }
}

/// A finish reason is an object on the wire: `{"type": "success"}`.
mod finish_reason {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::FinishReason;

    #[derive(Serialize, Deserialize)]
    struct Tagged {
        r#type: FinishReason,
    }

    pub(super) fn serialize<S: Serializer>(
        reason: &FinishReason,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let r#type = reason.clone();
        Tagged { r#type }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<FinishReason, D::Error> {
        Ok(Tagged::deserialize(deserializer)?.r#type)
    }
}

open_enum! {
    /// Whose fault a failed session was.
    FailureCategory {
        /// The user's.
        User = "user",
        /// The service's.
        Internal = "internal",
    }
}

/// What failed a session.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FailureReason {
    /// A request.
    Request {
        /// Its id.
        request_id: RequestId,
        /// Its kind, such as `Sample`.
        request_type: String,
    },
    /// A training run.
    TrainingRun {
        /// Its id.
        training_run_id: ModelId,
    },
    /// A sampler.
    SamplingSession {
        /// Its id.
        sampling_session_id: SamplingSessionId,
    },
    /// Something this version does not know, as it came.
    #[serde(untagged)]
    Other(Value),
}

/// How far the export of a session's trace is.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceExport {
    /// Whether it is ready.
    pub status: TraceExportStatus,
    /// Where to download it: a signed URL.
    #[serde(default)]
    pub url: Option<String>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<String>,
}

/// Whoever has a signed URL can download, so it is not shown.
impl std::fmt::Debug for TraceExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceExport")
            .field("status", &self.status)
            .field("url", &self.url.as_ref().map(|_| "…"))
            .field("error", &self.error)
            .finish()
    }
}

open_enum! {
    /// Whether a trace can be downloaded.
    TraceExportStatus {
        /// Not yet.
        Pending = "pending",
        /// Yes.
        Ready = "ready",
        /// No, making it failed.
        Failed = "failed",
    }
}
