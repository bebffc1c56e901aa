//! How calls take a checkpoint.

use std::fmt;

use super::{Checkpoint, TinkerPath};
use crate::{Error, Result};

/// The checkpoint a call is about: calls take `impl Into<CheckpointRef>`, so the text of a path, a
/// [`TinkerPath`] and a listed [`Checkpoint`] will all do.
///
/// Text is checked by the call, not here; self-hosted servers have paths of other forms than
/// [`TinkerPath`]'s.
///
/// ```
/// use tinker::types::{CheckpointRef, TinkerPath};
///
/// let text = CheckpointRef::from("tinker://run/weights/0001");
/// let path: TinkerPath = "tinker://run/weights/0001".parse()?;
/// assert_eq!(CheckpointRef::from(path), text);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CheckpointRef(String);

impl CheckpointRef {
    /// The path's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, if it is a path at all.
    pub(crate) fn checked(&self) -> Result<&str> {
        self.after_prefix().map(|_| self.0.as_str())
    }

    /// The run's id and the checkpoint's within it. A checkpoint's id has two parts on the hosted
    /// service (`weights/0001`) and may have one elsewhere.
    pub(crate) fn parts(&self) -> Result<(&str, &str)> {
        let (run, id) = self.after_prefix()?.split_once('/').unwrap_or_default();
        let one_part = !run.is_empty() && !id.is_empty() && !id.contains('/');
        if !one_part {
            self.0.parse::<TinkerPath>()?;
        }
        Ok((run, id))
    }

    /// The same of weights that were saved for elsewhere.
    pub(crate) fn external_parts(&self) -> Result<(&str, &str)> {
        match self.parts()? {
            (run, id) if id.starts_with("external_weights/") => Ok((run, id)),
            _ => {
                let form = "must be tinker://<run>/external_weights/<name>";
                Err(Error::invalid("path", format!("{form}, got {:?}", self.0)))
            }
        }
    }

    fn after_prefix(&self) -> Result<&str> {
        self.0.strip_prefix(TinkerPath::PREFIX).ok_or_else(|| {
            let problem = format!("must begin with tinker://, got {:?}", self.0);
            Error::invalid("path", problem)
        })
    }
}

impl fmt::Display for CheckpointRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for CheckpointRef {
    fn from(path: &str) -> Self {
        Self(path.to_owned())
    }
}

impl From<String> for CheckpointRef {
    fn from(path: String) -> Self {
        Self(path)
    }
}

impl From<&String> for CheckpointRef {
    fn from(path: &String) -> Self {
        Self(path.clone())
    }
}

impl From<TinkerPath> for CheckpointRef {
    fn from(path: TinkerPath) -> Self {
        Self(path.to_string())
    }
}

impl From<&TinkerPath> for CheckpointRef {
    fn from(path: &TinkerPath) -> Self {
        Self(path.to_string())
    }
}

impl From<&Checkpoint> for CheckpointRef {
    fn from(checkpoint: &Checkpoint) -> Self {
        Self(checkpoint.tinker_path.clone())
    }
}

impl From<&CheckpointRef> for CheckpointRef {
    fn from(checkpoint: &CheckpointRef) -> Self {
        checkpoint.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<(&str, &str)>) {
        assert_eq!(CheckpointRef::from(path).parts().ok(), expected, "{path}");
    }

    #[test]
    fn paths_have_a_run_and_an_id() {
        check(
            "tinker://R:train:0/weights/1",
            Some(("R:train:0", "weights/1")),
        );
        check(
            "tinker://R/sampler_weights/1",
            Some(("R", "sampler_weights/1")),
        );
        check("tinker://R/sw1", Some(("R", "sw1")));
        check("tinker://R/other/1", None);
        check("tinker://R/weights/1/2", None);
        check("tinker://R/", None);
        check("tinker:///sw1", None);
        check("tinker://R", None);
        check("R/weights/1", None);
    }
}
