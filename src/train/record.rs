//! Rows of `checkpoints.jsonl`.

use super::row::{Row, Value};
use crate::{Error, Result};

/// One saved checkpoint of a run, as `checkpoints.jsonl` holds it.
///
/// What this version does not know is kept in `extra`, in order.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CheckpointRecord {
    /// Its name: the number of steps it holds, or `final`.
    pub name: String,
    /// The batch to go on with, within its epoch.
    pub batch: Option<u64>,
    /// The epoch to go on with.
    pub epoch: Option<u64>,
    /// Whether the run ended with it.
    pub is_final: bool,
    /// Weights and optimiser, to go on from.
    pub state_path: Option<String>,
    /// Weights to sample from.
    pub sampler_path: Option<String>,
    /// Everything else, such as `elapsed_tokens` and `rolling`.
    pub extra: Row,
}

impl CheckpointRecord {
    /// A record of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Whether it is one of those that are deleted when the next is saved.
    pub fn is_rolling(&self) -> bool {
        self.extra.is_true("rolling")
    }

    /// The record as a row, names in the order of the Python tools, absent ones left out.
    pub fn to_row(&self) -> Row {
        let mut row = Row::new().with("name", self.name.as_str());
        let numbers = [("batch", self.batch), ("epoch", self.epoch)];
        for (name, number) in numbers {
            if let Some(number) = number {
                row.set(name, number);
            }
        }
        if self.is_final {
            row.set("final", true);
        }
        let paths = [
            ("state_path", &self.state_path),
            ("sampler_path", &self.sampler_path),
        ];
        for (name, path) in paths {
            if let Some(path) = path {
                row.set(name, path.as_str());
            }
        }
        row.merge(self.extra.clone());
        row
    }

    /// Reads a row.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it has no name.
    pub fn from_row(mut row: Row) -> Result<Self> {
        let text = |value: Option<Value>| match value {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        };
        let name = text(row.remove("name"));
        let name = name.ok_or_else(|| Error::invalid("name", "a checkpoint must have one"))?;
        let (batch, epoch) = (row.count("batch"), row.count("epoch"));
        let is_final = row.is_true("final");
        for known in ["batch", "epoch", "final"] {
            row.remove(known);
        }
        Ok(Self {
            name,
            batch,
            epoch,
            is_final,
            state_path: text(row.remove("state_path")),
            sampler_path: text(row.remove("sampler_path")),
            extra: row,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        for line in [
            r#"{"name": "000002", "batch": 2, "epoch": 0, "state_path": "tinker://a", "elapsed_tokens": 52, "rolling": true}"#,
            r#"{"name": "final", "batch": 0, "epoch": 2, "final": true, "sampler_path": "tinker://b", "mine": {"x": 1}}"#,
            r#"{"name": "x"}"#,
        ] {
            let record = CheckpointRecord::from_row(Row::parse(line).unwrap()).unwrap();
            assert_eq!(record.to_row().to_line(), line);
        }
        assert!(CheckpointRecord::from_row(Row::new()).is_err());
    }
}
