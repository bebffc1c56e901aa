//! Who is asking, what the service offers, and its log of what was done.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::types::macros::open_enum;
use crate::types::{Timestamp, time};

/// Whom a credential stands for.
#[doc(alias = "WhoamiResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhoAmI {
    /// The user or service account.
    pub user_urn: String,
    /// The organisation it acts in.
    pub org_urn: String,
    /// The user's address, if it is a user.
    #[serde(default)]
    pub email: Option<String>,
}

impl WhoAmI {
    /// An identity from its parts.
    pub fn new(
        user_urn: impl Into<String>,
        org_urn: impl Into<String>,
        email: Option<String>,
    ) -> Self {
        Self {
            user_urn: user_urn.into(),
            org_urn: org_urn.into(),
            email,
        }
    }
}

/// What the service offers.
#[doc(alias = "GetServerCapabilitiesResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerCapabilities {
    /// Its models.
    pub supported_models: Vec<SupportedModel>,
}

impl ServerCapabilities {
    /// The names of its models, in the service's order.
    pub fn model_names(&self) -> impl Iterator<Item = &str> {
        let models = self.supported_models.iter();
        models.filter_map(|model| model.model_name.as_deref())
    }
}

/// A model the service offers.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportedModel {
    /// Its name.
    #[serde(default)]
    pub model_name: Option<String>,
    /// The longest context it takes, in tokens.
    #[serde(default)]
    pub max_context_length: Option<u64>,
    /// Whether it can be trained.
    #[serde(default)]
    pub trainable: Option<bool>,
    /// Whether it can be sampled from.
    #[serde(default)]
    pub sampleable: Option<bool>,
}

open_enum! {
    /// Which part of the audit log to read.
    AuditEventType {
        /// Everything.
        All = "all",
        /// What was done with checkpoints.
        Checkpoints = "checkpoints",
        /// What was done with projects.
        Projects = "projects",
        /// What was done with teams.
        Teams = "teams",
        /// What was done with organisations.
        Organizations = "organizations",
    }
}

/// The audit log of a day.
#[doc(alias = "AuditLogResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AuditLog {
    /// Its entries.
    pub entries: Vec<AuditEntry>,
}

/// Something that was done.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    #[serde(with = "time")]
    pub timestamp: Timestamp,
    /// What, such as `checkpoint_read`.
    pub event: String,
    /// By whom, to what, and whatever else was recorded.
    #[serde(default)]
    pub event_details: Map<String, Value>,
    /// The model of a checkpoint event; now in `event_details`.
    #[serde(default)]
    pub model_id: Option<String>,
    /// The path of a checkpoint event; now in `event_details`.
    #[serde(default)]
    pub tinker_path: Option<String>,
    /// Why a checkpoint was read; now in `event_details`.
    #[serde(default)]
    pub purpose: Option<String>,
}

/// An API key, as its holder may see it.
///
/// ```
/// let key: tinker::types::ApiKeyInfo = serde_json::from_str(
///     r#"{"key_id": 42, "name": "laptop", "note": "", "details":
///         {"org_details": {"name": "Acme"}, "user_details": {"email": "a@b.c"}}}"#,
/// )?;
/// assert_eq!(key.details.unwrap().org_details.name, "Acme");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyInfo {
    /// The key's number.
    pub key_id: i64,
    /// What it is called.
    pub name: String,
    /// What was noted about it.
    #[serde(default)]
    pub note: Option<String>,
    /// Whose it is.
    #[serde(default)]
    pub details: Option<ApiKeyDetails>,
}

/// Whose an API key is.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyDetails {
    /// The organisation.
    pub org_details: ApiKeyOrganization,
    /// The user.
    pub user_details: ApiKeyUser,
}

/// The organisation an API key acts in.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyOrganization {
    /// Its name.
    pub name: String,
}

/// The user an API key belongs to.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeyUser {
    /// The user's address.
    pub email: String,
}
