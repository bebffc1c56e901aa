//! What was used and what it costs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::{SessionId, Timestamp, time};

/// Usage by the hour.
#[doc(alias = "BillingUsageResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BillingUsage {
    /// The usage, by hour and then by size.
    pub data: Vec<BillingEvent>,
    /// The sessions that `data` names.
    #[serde(default)]
    pub sessions: BTreeMap<SessionId, BillingSession>,
    /// Until when costs are from invoices; later ones are from the published rates.
    #[serde(default, with = "time::option")]
    pub cost_data_through: Option<Timestamp>,
}

/// A session that usage is attributed to.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillingSession {
    /// What its owner noted.
    #[serde(default)]
    pub user_metadata: Option<BTreeMap<String, String>>,
}

/// One kind of usage in one hour. Costs are estimates before credits, not amounts due.
#[doc(alias = "BillingUsageEvent")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BillingEvent {
    /// When the hour began.
    #[serde(with = "time")]
    pub bucket_start: Timestamp,
    /// When it ended.
    #[serde(with = "time")]
    pub bucket_end: Timestamp,
    /// The model, where it is known.
    #[serde(default)]
    pub base_model: Option<String>,
    /// Who opened the session.
    #[serde(default)]
    pub user_id: Option<String>,
    /// What that user is called.
    #[serde(default)]
    pub user_name: Option<String>,
    /// The session; storage has none.
    #[serde(default)]
    pub session_id: Option<SessionId>,
    /// The project that the session belongs to now.
    #[serde(default)]
    pub project_id: Option<String>,
    /// The estimated cost, where it can be told.
    #[serde(default)]
    pub estimated_cost_usd: Option<f64>,
    /// The rate it was estimated with, for tokens.
    #[serde(default)]
    pub effective_rate_usd_per_million_tokens: Option<f64>,
    /// The rate it was estimated with, for storage; a month has 720 hours.
    #[serde(default)]
    pub effective_rate_usd_per_gigabyte_month: Option<f64>,
    /// What was used, and how much.
    pub event_info: BillingEventInfo,
}

/// What was used, and how much.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BillingEventInfo {
    /// Forward and backward passes.
    Training {
        /// Tokens.
        token_count: u64,
    },
    /// Prompts of samples.
    SamplingPrefill {
        /// Whether they were served from the prefix cache, at a lower rate.
        cached: bool,
        /// Tokens.
        token_count: u64,
    },
    /// Sampled tokens.
    SamplingSample {
        /// Tokens.
        token_count: u64,
    },
    /// Checkpoint operations.
    Checkpoint {
        /// How many.
        count: u64,
    },
    /// Stored checkpoints.
    Storage {
        /// Gigabytes times hours.
        gigabyte_hours: f64,
    },
    /// A kind of usage this version does not know, as it came.
    #[serde(untagged)]
    Other(Value),
}

/// What checkpoints take at present; up to two hours behind.
#[doc(alias = "CurrentCheckpointStorageUsageResponse")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StorageUsage {
    /// The rate that costs are projected with.
    #[serde(default)]
    pub effective_rate_usd_per_gigabyte_month: Option<f64>,
    /// Storage by project and owner.
    pub data: Vec<StorageUsageItem>,
}

/// What one owner's checkpoints in one project take.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StorageUsageItem {
    /// The project.
    #[serde(default)]
    pub project_id: Option<String>,
    /// The owner.
    #[serde(default)]
    pub org_user_urn: Option<String>,
    /// The owner's address.
    #[serde(default)]
    pub user_email: Option<String>,
    /// The owner's name.
    #[serde(default)]
    pub user_name: Option<String>,
    /// How many checkpoints.
    pub checkpoint_count: u64,
    /// How many bytes.
    pub size_bytes: u64,
    /// The same in the unit of billing.
    pub size_gigabytes: f64,
    /// What they cost in a month of 720 hours.
    #[serde(default)]
    pub estimated_monthly_cost_usd: Option<f64>,
}
