//! A loss of your own as plain data, for a service that runs it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// An input of a custom loss, with the rank that every example's value has.
///
/// ```
/// use tinker::types::CustomLossInput;
/// assert!(CustomLossInput::new("logprobs", 1).is_ok());
/// assert!(CustomLossInput::new("logprobs", 3).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawInput")]
pub struct CustomLossInput {
    name: String,
    rank: u8,
}

impl CustomLossInput {
    /// An input by name: `logprobs`, or the loss input of that name. Its rank is 0 for one
    /// number, 1 for one per position, 2 for several per position.
    ///
    /// # Errors
    ///
    /// If the rank is above 2, or the name is not made of up to 64 lower-case letters, digits
    /// and `_`, beginning with a letter or `_`.
    pub fn new(name: impl Into<String>, rank: u8) -> Result<Self> {
        let name = name.into();
        if rank > 2 {
            return Err(Error::invalid(
                "rank",
                format!("must be 0, 1 or 2, got {rank}"),
            ));
        }
        let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let starts = name
            .bytes()
            .next()
            .is_some_and(|byte| !byte.is_ascii_digit());
        if !starts || name.len() > 64 || !name.bytes().all(word) {
            return Err(Error::invalid(
                "name",
                format!("must match [a-z_][a-z0-9_]{{0,63}}, got {name:?}"),
            ));
        }
        Ok(Self { name, rank })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rank.
    pub fn rank(&self) -> u8 {
        self.rank
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInput {
    name: String,
    rank: u8,
}

impl TryFrom<RawInput> for CustomLossInput {
    type Error = Error;

    fn try_from(raw: RawInput) -> Result<Self> {
        Self::new(raw.name, raw.rank)
    }
}

/// What a node of a custom loss does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CustomLossOp {
    /// Takes an input.
    Placeholder,
    /// Reads an attribute.
    GetAttr,
    /// Calls a function by its qualified name, such as `torch.exp`.
    CallFunction,
    /// Calls a method of its first argument.
    CallMethod,
    /// Calls a module.
    CallModule,
    /// Returns its argument.
    Output,
}

/// One step of a custom loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomLossNode {
    /// What it does.
    pub op: CustomLossOp,
    /// Its name, by which later nodes refer to it.
    pub name: String,
    /// The input, function, method or attribute, or `output`.
    pub target: String,
    /// Its arguments. JSON numbers, texts and lists stand for themselves; anything else is an
    /// object with one key: `{"ref": "node"}`, `{"tuple": […]}`, `{"dict": {…}}`, ….
    #[serde(default)]
    pub args: Vec<Value>,
    /// Its named arguments, in the same form.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
}

/// A custom loss: its nodes in the order they run.
///
/// ```
/// use tinker::types::CustomLossGraph;
/// let graph = CustomLossGraph::new(Vec::new());
/// assert_eq!(serde_json::to_string(&graph).unwrap(), r#"{"format":1,"nodes":[]}"#);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawGraph")]
pub struct CustomLossGraph {
    format: u32,
    nodes: Vec<CustomLossNode>,
}

impl CustomLossGraph {
    /// The version of the form.
    const FORMAT: u32 = 1;

    /// A graph of these nodes.
    pub fn new(nodes: Vec<CustomLossNode>) -> Self {
        Self {
            format: Self::FORMAT,
            nodes,
        }
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[CustomLossNode] {
        &self.nodes
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGraph {
    #[serde(default = "format")]
    format: u32,
    nodes: Vec<CustomLossNode>,
}

fn format() -> u32 {
    CustomLossGraph::FORMAT
}

impl TryFrom<RawGraph> for CustomLossGraph {
    type Error = Error;

    fn try_from(raw: RawGraph) -> Result<Self> {
        if raw.format != Self::FORMAT {
            return Err(Error::invalid(
                "format",
                format!("must be 1, got {}", raw.format),
            ));
        }
        Ok(Self::new(raw.nodes))
    }
}
