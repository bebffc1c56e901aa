//! Training runs and checkpoints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::types::{CheckpointKind, ModelId, SamplingSessionId, Timestamp, TinkerPath, time};

/// Whose records a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessScope {
    /// The caller's own.
    #[default]
    Owned,
    /// Everything the caller may see.
    Accessible,
}

impl AccessScope {
    /// The service's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owned => "owned",
            Self::Accessible => "accessible",
        }
    }
}

/// A model that was, or is, being trained.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingRun {
    /// Its id, which is the model's.
    pub training_run_id: ModelId,
    /// The model it started from.
    pub base_model: String,
    /// Whose it is.
    pub model_owner: String,
    /// Whether it trains an adapter.
    pub is_lora: bool,
    /// Whether its state is damaged.
    #[serde(default)]
    pub corrupted: bool,
    /// The adapter's rank.
    #[serde(default)]
    pub lora_rank: Option<u32>,
    /// When it was last used.
    #[serde(with = "time")]
    pub last_request_time: Timestamp,
    /// Its newest training checkpoint.
    #[serde(default)]
    pub last_checkpoint: Option<Checkpoint>,
    /// Its newest sampler checkpoint.
    #[serde(default)]
    pub last_sampler_checkpoint: Option<Checkpoint>,
    /// What its owner noted.
    #[serde(default)]
    pub user_metadata: Option<BTreeMap<String, String>>,
}

/// Saved weights.
///
/// ```
/// let checkpoint: tinker::types::Checkpoint = serde_json::from_str(
///     r#"{"checkpoint_id": "weights/a", "checkpoint_type": "training",
///         "time": "2026-01-02T03:04:05Z", "tinker_path": "tinker://r/weights/a"}"#,
/// )?;
/// assert_eq!(checkpoint.path()?.name(), "a");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its id within its run, such as `weights/0001`.
    pub checkpoint_id: String,
    /// What it holds. A word this version does not know is an error here, as in the official
    /// SDK: nothing could be done with such a checkpoint.
    pub checkpoint_type: CheckpointKind,
    /// When it was saved.
    #[serde(with = "time")]
    pub time: Timestamp,
    /// Its path.
    pub tinker_path: String,
    /// Its size.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Whether anyone may use it.
    #[serde(default)]
    pub public: bool,
    /// What its owner noted.
    #[serde(default)]
    pub user_metadata: Option<BTreeMap<String, String>>,
    /// When it will be deleted; `None` means never.
    #[serde(default, with = "time::option")]
    pub expires_at: Option<Timestamp>,
}

impl Checkpoint {
    /// Its path, parsed.
    ///
    /// # Errors
    ///
    /// If the service uses a form of its own, as some self-hosted ones do.
    pub fn path(&self) -> Result<TinkerPath> {
        self.tinker_path.parse()
    }
}

/// Where a page lies in a list.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// How many records come before it.
    pub offset: u64,
    /// How many it may hold.
    pub limit: u64,
    /// How many there are in all.
    pub total_count: u64,
}

/// A page of training runs.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingRunPage {
    /// The runs.
    pub training_runs: Vec<TrainingRun>,
    /// Where the page lies.
    pub cursor: Cursor,
}

/// A page of checkpoints.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPage {
    /// The checkpoints.
    pub checkpoints: Vec<Checkpoint>,
    /// Where the page lies; absent where the list has no pages.
    #[serde(default)]
    pub cursor: Option<Cursor>,
}

/// Where to download weights that were saved for other programs.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalWeightsUrls {
    /// A signed URL for each file, by its path within the checkpoint.
    pub urls: BTreeMap<String, String>,
    /// Until when the URLs work.
    #[serde(with = "time")]
    pub expires: Timestamp,
}

/// Whoever has a signed URL can download, so only the file names are shown.
impl std::fmt::Debug for ExternalWeightsUrls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalWeightsUrls")
            .field("files", &self.urls.keys())
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// What a sampler samples from.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerInfo {
    /// Its id.
    pub sampler_id: SamplingSessionId,
    /// The model's name.
    pub base_model: String,
    /// The weights' path, unless it samples from the base model.
    #[serde(default)]
    pub model_path: Option<String>,
    /// Where its tokenizer is, if the server says; the hosted service does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_id: Option<String>,
}
