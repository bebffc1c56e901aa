//! Conversions between tensors and `ndarray` arrays (feature `ndarray`).

use ::ndarray::{Array, ArrayD, ArrayViewD, Dimension, IxDyn};

use super::{TensorData, TensorValues};
use crate::{Error, Result};

impl TensorData {
    /// A view of a dense float tensor as an array, without copying; `None` for integers and
    /// sparse tensors.
    ///
    /// ```
    /// let tensor = tinker::TensorData::from(ndarray::array![[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(tensor.as_array_f32().unwrap()[[1, 0]], 3.0);
    /// ```
    pub fn as_array_f32(&self) -> Option<ArrayViewD<'_, f32>> {
        view(self, self.as_f32()?)
    }

    /// A view of a dense integer tensor as an array, without copying; `None` for floats and
    /// sparse tensors.
    pub fn as_array_i64(&self) -> Option<ArrayViewD<'_, i64>> {
        view(self, self.as_i64()?)
    }
}

fn view<'a, T>(tensor: &TensorData, values: &'a [T]) -> Option<ArrayViewD<'a, T>> {
    if tensor.csr().is_some() {
        return None;
    }
    let shape = match tensor.shape() {
        Some(shape) => IxDyn(shape),
        None => IxDyn(&[values.len()]),
    };
    ArrayViewD::from_shape(shape, values).ok()
}

/// Takes the array's numbers over without copying if they lie in row-major order.
impl<T, D> From<Array<T, D>> for TensorData
where
    T: Clone,
    D: Dimension,
    Vec<T>: Into<TensorValues>,
{
    fn from(array: Array<T, D>) -> Self {
        let shape = array.shape().to_vec();
        let values = if array.is_standard_layout() {
            let (values, offset) = array.into_raw_vec_and_offset();
            let length: usize = shape.iter().product();
            match offset {
                None | Some(0) if values.len() == length => values,
                offset => {
                    let start = offset.unwrap_or(0);
                    values[start..start + length].to_vec()
                }
            }
        } else {
            array.iter().cloned().collect()
        };
        Self::from_parts(values.into(), Some(shape), None)
            .expect("an array has as many numbers as its shape says")
    }
}

impl TryFrom<&TensorData> for ArrayD<f32> {
    type Error = Error;

    /// Copies the tensor, with zeros where a sparse one lists nothing.
    fn try_from(tensor: &TensorData) -> Result<Self> {
        let dense = tensor.to_dense(0)?;
        dense
            .as_array_f32()
            .map(|view| view.to_owned())
            .ok_or_else(|| Error::invalid("dtype", "the tensor holds int64, the array float32"))
    }
}

impl TryFrom<&TensorData> for ArrayD<i64> {
    type Error = Error;

    /// Copies the tensor, with zeros where a sparse one lists nothing.
    fn try_from(tensor: &TensorData) -> Result<Self> {
        let dense = tensor.to_dense(0)?;
        dense
            .as_array_i64()
            .map(|view| view.to_owned())
            .ok_or_else(|| Error::invalid("dtype", "the tensor holds float32, the array int64"))
    }
}
