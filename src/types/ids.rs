//! Names the service gives to things, and the paths of checkpoints.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::macros::string_id;
use crate::{Error, Result};

string_id! {
    /// A session: everything one client does between opening and closing.
    ///
    /// ```
    /// let id = tinker::types::SessionId::from("S1");
    /// assert_eq!(id, "S1");
    /// assert_eq!(id.to_string(), "S1");
    /// ```
    SessionId
}

string_id! {
    /// A model being trained, which is also the id of its training run (`S1:train:0`).
    #[doc(alias = "ModelID")]
    ModelId
}

string_id! {
    /// A sampling session, also called a sampler (`S1:sample:0`).
    SamplingSessionId
}

string_id! {
    /// A submitted request, whose result is fetched by this id.
    RequestId
}

string_id! {
    /// A sampled sequence, named when later training refers to it.
    SequenceId
}

/// What a checkpoint holds.
#[doc(alias = "CheckpointType")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointKind {
    /// Weights and optimiser state, to resume training from.
    Training,
    /// Weights to sample from.
    Sampler,
    /// Weights in a format for other programs, to download.
    External,
}

/// How long the service keeps a checkpoint that is to go: from an hour to ten years, leap years
/// included, in seconds.
pub(crate) const CHECKPOINT_TTL: std::ops::RangeInclusive<u64> = 3_600..=10 * 366 * 86_400;

/// A lifetime of checkpoints in seconds, if the service keeps any so long.
pub(crate) fn checkpoint_ttl(field: &str, ttl: Option<Duration>) -> Result<Option<u64>> {
    match ttl.map(|ttl| ttl.as_secs()) {
        Some(seconds) if !CHECKPOINT_TTL.contains(&seconds) => Err(Error::invalid(
            field,
            format!("must be from one hour to ten years, got {seconds} s"),
        )),
        seconds => Ok(seconds),
    }
}

impl CheckpointKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Training, Self::Sampler, Self::External];

    /// The word used in records: `training`, `sampler` or `external`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Sampler => "sampler",
            Self::External => "external",
        }
    }

    /// The word used in paths: `weights`, `sampler_weights` or `external_weights`.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
            Self::External => "external_weights",
        }
    }
}

impl fmt::Display for CheckpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The path of a checkpoint: `tinker://<training run>/<weights|sampler_weights|external_weights>/<name>`.
///
/// ```
/// use tinker::types::{CheckpointKind, TinkerPath};
///
/// let path: TinkerPath = "tinker://S1:train:0/sampler_weights/final".parse()?;
/// assert_eq!(path.run_id(), "S1:train:0");
/// assert_eq!(path.kind(), CheckpointKind::Sampler);
/// assert_eq!(path.checkpoint_id(), "sampler_weights/final");
/// assert_eq!(path.to_string(), "tinker://S1:train:0/sampler_weights/final");
/// assert!("tinker://S1:train:0".parse::<TinkerPath>().is_err());
/// # Ok::<(), tinker::Error>(())
/// ```
#[doc(alias = "ParsedCheckpointTinkerPath")]
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TinkerPath {
    run_id: ModelId,
    kind: CheckpointKind,
    name: String,
}

impl TinkerPath {
    /// What every path starts with.
    pub const PREFIX: &str = "tinker://";

    /// A path from its parts.
    ///
    /// # Errors
    ///
    /// If the run id or the name contains a slash, which would not read back.
    ///
    /// ```
    /// use tinker::types::{CheckpointKind, TinkerPath};
    ///
    /// let path = TinkerPath::new("run", CheckpointKind::Training, "0001")?;
    /// assert_eq!(path.to_string(), "tinker://run/weights/0001");
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn new(
        run_id: impl Into<ModelId>,
        kind: CheckpointKind,
        name: impl Into<String>,
    ) -> Result<Self> {
        let (run_id, name) = (run_id.into(), name.into());
        for (field, text) in [("run_id", &*run_id), ("name", name.as_str())] {
            if text.contains('/') {
                return Err(Error::invalid(
                    field,
                    format!("must not contain `/`: {text:?}"),
                ));
            }
        }
        Ok(Self { run_id, kind, name })
    }

    /// The training run that saved the checkpoint.
    pub fn run_id(&self) -> &ModelId {
        &self.run_id
    }

    /// What the checkpoint holds.
    pub fn kind(&self) -> CheckpointKind {
        self.kind
    }

    /// The name it was saved under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checkpoint's id within its run, such as `weights/0001`.
    pub fn checkpoint_id(&self) -> String {
        format!("{}/{}", self.kind.segment(), self.name)
    }
}

impl FromStr for TinkerPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: &str| {
            Error::invalid(
                "tinker_path",
                format!(
                    "{problem}: {text:?}; expected tinker://<run>/<weights|sampler_weights|external_weights>/<name>"
                ),
            )
        };
        let rest = text
            .strip_prefix(Self::PREFIX)
            .ok_or_else(|| refuse("does not start with tinker://"))?;
        let mut parts = rest.split('/');
        let (Some(run_id), Some(segment), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse("does not have three parts"));
        };
        let kind = CheckpointKind::ALL
            .into_iter()
            .find(|kind| kind.segment() == segment)
            .ok_or_else(|| refuse("unknown kind of checkpoint"))?;
        Ok(Self {
            run_id: run_id.into(),
            kind,
            name: name.to_owned(),
        })
    }
}

impl fmt::Display for TinkerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_id, kind, name } = self;
        write!(f, "{}{run_id}/{}/{name}", Self::PREFIX, kind.segment())
    }
}

impl Serialize for TinkerPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TinkerPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}
