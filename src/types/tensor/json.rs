//! Tensors as JSON: `{data, dtype, shape?, sparse_crow_indices?, sparse_col_indices?}`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeStruct, Serializer};
use serde_json::Value;

use super::{Dtype, TensorData, TensorValues};
use crate::{Error, Result};

impl TensorData {
    /// A tensor from a (nested) JSON list of numbers, typed by the loss input it is meant for.
    ///
    /// `target_tokens` become integers (fractions are cut off), the other inputs the service
    /// knows become floats; for an input of your own build the tensor explicitly.
    ///
    /// # Errors
    ///
    /// If the input's type is not known, the lists are ragged, or something is not a number.
    ///
    /// ```
    /// use serde_json::json;
    /// use tinker::TensorData;
    ///
    /// let tensor = TensorData::from_json_list("logprobs", &json!([[-0.5, -1.0]]))?;
    /// assert_eq!(tensor.shape(), Some(&[1, 2][..]));
    /// assert!(TensorData::from_json_list("my_own", &json!([1])).is_err());
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn from_json_list(input: &str, list: &Value) -> Result<Self> {
        let dtype = Dtype::of_input(input).ok_or_else(|| {
            Error::invalid(
                input,
                "a list has a known type only under target_tokens, weights, advantages, logprobs, \
                 clip_low_threshold, clip_high_threshold or sequence_ratio_mask; give a tensor",
            )
        })?;
        let mut shape = Vec::new();
        let mut level = list;
        while let Value::Array(items) = level {
            shape.push(items.len());
            match items.first() {
                Some(first) => level = first,
                None => break,
            }
        }
        if shape.is_empty() {
            return Err(Error::invalid(input, "must be a list of numbers"));
        }
        let mut numbers = Numbers::default();
        flatten(list, &shape, &mut numbers).map_err(|problem| Error::invalid(input, problem))?;
        let values = match dtype {
            Dtype::Float32 => numbers.into_f32().into(),
            Dtype::Int64 => numbers.truncate_to_i64().into(),
        };
        Self::from_parts(values, Some(shape), None)
    }
}

fn flatten(list: &Value, shape: &[usize], numbers: &mut Numbers) -> Result<(), String> {
    let ragged = || "must be a rectangular list of numbers; ragged lists are not supported".into();
    match (list, shape) {
        (Value::Array(items), [length, rest @ ..]) => {
            if items.len() != *length {
                return Err(ragged());
            }
            items
                .iter()
                .try_for_each(|item| flatten(item, rest, numbers))
        }
        (Value::Number(number), []) => {
            if let Some(integer) = number.as_i64() {
                numbers.push_int(integer);
            } else if let Some(float) = number.as_f64() {
                numbers.push_float(float);
            }
            Ok(())
        }
        (Value::Array(_), []) | (Value::Number(_), _) => Err(ragged()),
        (other, _) => Err(format!("must hold numbers only, got {other}")),
    }
}

impl Serialize for TensorData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.check_finite().map_err(S::Error::custom)?;
        let fields =
            2 + usize::from(self.shape().is_some()) + 2 * usize::from(self.csr().is_some());
        let mut out = serializer.serialize_struct("TensorData", fields)?;
        match self.values() {
            TensorValues::F32(values) => out.serialize_field("data", &Floats(values))?,
            TensorValues::I64(values) => out.serialize_field("data", values)?,
        }
        out.serialize_field("dtype", &self.dtype())?;
        if let Some(shape) = self.shape() {
            out.serialize_field("shape", shape)?;
        }
        if let Some(csr) = self.csr() {
            out.serialize_field("sparse_crow_indices", csr.crow_indices())?;
            out.serialize_field("sparse_col_indices", csr.col_indices())?;
        }
        out.end()
    }
}

impl<'de> Deserialize<'de> for TensorData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        struct Raw {
            data: Numbers,
            dtype: Dtype,
            #[serde(default)]
            shape: Option<Vec<usize>>,
            #[serde(default)]
            sparse_crow_indices: Option<Vec<i64>>,
            #[serde(default)]
            sparse_col_indices: Option<Vec<i64>>,
        }
        let raw = Raw::deserialize(deserializer)?;
        let values = match raw.dtype {
            Dtype::Float32 => raw.data.into_f32().into(),
            Dtype::Int64 => raw.data.into_i64().map_err(D::Error::custom)?.into(),
        };
        let csr = match (raw.sparse_crow_indices, raw.sparse_col_indices) {
            (Some(crow), Some(col)) => Some((crow, col)),
            (None, None) => None,
            _ => {
                return Err(D::Error::custom(
                    "sparse_crow_indices and sparse_col_indices belong together",
                ));
            }
        };
        Self::from_parts(values, raw.shape, csr).map_err(D::Error::custom)
    }
}

/// 32-bit floats written with the digits of their 64-bit value, as Python writes them.
pub(crate) struct Floats<'a>(pub(crate) &'a [f32]);

impl Serialize for Floats<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&value| f64::from(value)))
    }
}

/// A list of JSON numbers: integers stay exact unless a float is among them.
pub(crate) enum Numbers {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Ints(Vec::new())
    }
}

impl Numbers {
    fn push_int(&mut self, value: i64) {
        match self {
            Self::Ints(values) => values.push(value),
            Self::Floats(values) => values.push(value as f64),
        }
    }

    fn push_float(&mut self, value: f64) {
        if let Self::Ints(values) = self {
            *self = Self::Floats(values.iter().map(|&value| value as f64).collect());
        }
        if let Self::Floats(values) = self {
            values.push(value);
        }
    }

    pub(crate) fn into_f32(self) -> Vec<f32> {
        match self {
            Self::Ints(values) => values.into_iter().map(|value| value as f32).collect(),
            Self::Floats(values) => values.into_iter().map(|value| value as f32).collect(),
        }
    }

    fn truncate_to_i64(self) -> Vec<i64> {
        match self {
            Self::Ints(values) => values,
            Self::Floats(values) => values.into_iter().map(|value| value as i64).collect(),
        }
    }

    /// The integers, or which number is not one.
    fn into_i64(self) -> Result<Vec<i64>, String> {
        // Up to here every whole f64 is exact.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self {
            Self::Ints(values) => Ok(values),
            Self::Floats(values) => values
                .into_iter()
                .map(|value| {
                    if value.fract() == 0.0 && value.abs() <= EXACT {
                        Ok(value as i64)
                    } else {
                        Err(format!("{value} is not an int64"))
                    }
                })
                .collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a flat list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Numbers, A::Error> {
                let mut numbers = Numbers::default();
                while let Some(number) = seq.next_element()? {
                    match number {
                        Number::Int(value) => numbers.push_int(value),
                        Number::Float(value) => numbers.push_float(value),
                    }
                }
                Ok(numbers)
            }
        }

        deserializer.deserialize_seq(List)
    }
}

enum Number {
    Int(i64),
    Float(f64),
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One;

        impl Visitor<'_> for One {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Int(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(i64::try_from(value).map_or(Number::Float(value as f64), Number::Int))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number::Float(value))
            }
        }

        deserializer.deserialize_any(One)
    }
}
