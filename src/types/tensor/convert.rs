//! Conversions from vectors, slices and arrays.

use std::sync::Arc;

use super::{TensorData, TensorValues};

impl From<TensorValues> for TensorData {
    fn from(values: TensorValues) -> Self {
        Self {
            shape: Some(vec![values.len()]),
            values,
            csr: None,
        }
    }
}

impl From<Arc<Vec<f32>>> for TensorData {
    fn from(values: Arc<Vec<f32>>) -> Self {
        TensorValues::F32(values).into()
    }
}

impl From<Arc<Vec<i64>>> for TensorData {
    fn from(values: Arc<Vec<i64>>) -> Self {
        TensorValues::I64(values).into()
    }
}

impl From<Vec<f32>> for TensorData {
    fn from(values: Vec<f32>) -> Self {
        TensorValues::from(values).into()
    }
}

impl From<Vec<i64>> for TensorData {
    fn from(values: Vec<i64>) -> Self {
        TensorValues::from(values).into()
    }
}

impl From<Vec<f64>> for TensorData {
    fn from(values: Vec<f64>) -> Self {
        let narrow: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        narrow.into()
    }
}

impl From<Vec<i32>> for TensorData {
    fn from(values: Vec<i32>) -> Self {
        values.into_iter().map(i64::from).collect::<Vec<_>>().into()
    }
}

impl From<Vec<u32>> for TensorData {
    fn from(values: Vec<u32>) -> Self {
        values.into_iter().map(i64::from).collect::<Vec<_>>().into()
    }
}

impl<T: Copy> From<&[T]> for TensorData
where
    Vec<T>: Into<Self>,
{
    fn from(values: &[T]) -> Self {
        Self::from_slice(values)
    }
}

impl<T: Copy, const N: usize> From<[T; N]> for TensorData
where
    Vec<T>: Into<Self>,
{
    fn from(values: [T; N]) -> Self {
        Self::from_slice(&values)
    }
}
