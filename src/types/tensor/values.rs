//! The number types, and shared lists of numbers.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::brief::debug_list;

/// The number type of a tensor. The service knows these two.
#[doc(alias = "TensorDtype")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit floats.
    Float32,
    /// 64-bit signed integers.
    Int64,
}

impl Dtype {
    /// The service's spelling: `float32` or `int64`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Int64 => "int64",
        }
    }

    /// Bytes per number.
    pub fn size(self) -> usize {
        match self {
            Self::Float32 => 4,
            Self::Int64 => 8,
        }
    }

    /// The type that a plain list under this loss input takes, if the name is a known one.
    ///
    /// ```
    /// use tinker::types::Dtype;
    /// assert_eq!(Dtype::of_input("target_tokens"), Some(Dtype::Int64));
    /// assert_eq!(Dtype::of_input("advantages"), Some(Dtype::Float32));
    /// assert_eq!(Dtype::of_input("my_own"), None);
    /// ```
    pub fn of_input(name: &str) -> Option<Self> {
        match name {
            "target_tokens" => Some(Self::Int64),
            "weights"
            | "advantages"
            | "logprobs"
            | "clip_low_threshold"
            | "clip_high_threshold"
            | "sequence_ratio_mask" => Some(Self::Float32),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The numbers of a tensor, shared between its clones.
#[derive(Clone, PartialEq)]
pub enum TensorValues {
    /// 32-bit floats.
    F32(Arc<Vec<f32>>),
    /// 64-bit integers.
    I64(Arc<Vec<i64>>),
}

impl TensorValues {
    /// How many numbers are stored.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
        }
    }

    /// Whether no number is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::Float32,
            Self::I64(_) => Dtype::Int64,
        }
    }
}

impl From<Vec<f32>> for TensorValues {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(Arc::new(values))
    }
}

impl From<Vec<i64>> for TensorValues {
    fn from(values: Vec<i64>) -> Self {
        Self::I64(Arc::new(values))
    }
}

impl fmt::Debug for TensorValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(values) => debug_list(values, f),
            Self::I64(values) => debug_list(values, f),
        }
    }
}
