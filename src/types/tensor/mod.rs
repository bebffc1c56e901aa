//! Tensors: shared numbers with a type and a shape, dense or sparse.

mod brief;
mod convert;
mod json;
#[cfg(feature = "ndarray")]
mod ndarray;
mod sparse;
mod values;

use std::fmt;

use crate::{Error, Result};

pub(super) use brief::Brief;
pub(super) use json::{Floats, Numbers};
pub use sparse::Csr;
pub use values::{Dtype, TensorValues};

/// An immutable tensor of [`f32`] or [`i64`].
///
/// It takes a `Vec` without copying it and shares it between clones, so passing tensors
/// around is cheap. A one-dimensional tensor converts from a vector, a slice or an array:
///
/// ```
/// use tinker::TensorData;
///
/// let weights = TensorData::from(vec![0.0f32, 1.0, 1.0]);
/// assert_eq!(weights.shape(), Some(&[3][..]));
/// assert_eq!(weights.as_f32(), Some(&[0.0, 1.0, 1.0][..]));
///
/// let targets = TensorData::from_rows(&[vec![1i64, 2], vec![3, 4]])?;
/// assert_eq!(targets.shape(), Some(&[2, 2][..]));
/// # Ok::<(), tinker::Error>(())
/// ```
///
/// `i32` and `u32` widen to `i64`, `f64` narrows to `f32`; both copy.
#[derive(Clone, PartialEq)]
pub struct TensorData {
    values: TensorValues,
    shape: Option<Vec<usize>>,
    csr: Option<Csr>,
}

impl TensorData {
    /// A one-dimensional tensor with a copy of the slice.
    ///
    /// ```
    /// let tensor = tinker::TensorData::from_slice(&[1i64, 2, 3]);
    /// assert_eq!(tensor.as_i64(), Some(&[1, 2, 3][..]));
    /// ```
    pub fn from_slice<T: Copy>(values: &[T]) -> Self
    where
        Vec<T>: Into<Self>,
    {
        values.to_vec().into()
    }

    /// A two-dimensional tensor from rows of equal length.
    ///
    /// # Errors
    ///
    /// If the rows differ in length.
    pub fn from_rows<R, T>(rows: &[R]) -> Result<Self>
    where
        R: AsRef<[T]>,
        T: Copy,
        Vec<T>: Into<Self>,
    {
        let columns = rows.first().map_or(0, |row| row.as_ref().len());
        if let Some((index, row)) = rows
            .iter()
            .enumerate()
            .find(|(_, row)| row.as_ref().len() != columns)
        {
            return Err(Error::invalid(
                format!("rows[{index}]"),
                format!(
                    "has {} values where row 0 has {columns}; ragged rows are not supported",
                    row.as_ref().len()
                ),
            ));
        }
        let mut values = Vec::with_capacity(rows.len() * columns);
        for row in rows {
            values.extend_from_slice(row.as_ref());
        }
        values.into().with_shape(vec![rows.len(), columns])
    }

    /// The same numbers in another shape.
    ///
    /// # Errors
    ///
    /// If the shape does not hold exactly the numbers there are, or the tensor is sparse.
    ///
    /// ```
    /// use tinker::TensorData;
    /// let matrix = TensorData::from(vec![1i64, 2, 3, 4]).with_shape(vec![2, 2])?;
    /// assert!(matrix.with_shape(vec![3]).is_err());
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn with_shape(self, shape: impl Into<Vec<usize>>) -> Result<Self> {
        if self.csr.is_some() {
            return Err(Error::invalid(
                "shape",
                "a sparse tensor cannot be reshaped",
            ));
        }
        Self::from_parts(self.values, Some(shape.into()), None)
    }

    /// The same numbers without a shape: the service then assumes one dimension.
    #[must_use]
    pub fn without_shape(mut self) -> Self {
        if self.csr.is_none() {
            self.shape = None;
        }
        self
    }

    /// A two-dimensional sparse tensor in compressed rows: only the listed values are stored,
    /// the others are implied.
    ///
    /// # Errors
    ///
    /// If the indices do not describe a matrix of that shape: `crow` needs one more entry than
    /// there are rows, rising from 0 to the number of values; `col` needs one entry per value,
    /// within the columns and rising within each row.
    ///
    /// ```
    /// use tinker::TensorData;
    ///
    /// let sparse = TensorData::sparse_csr(vec![7i64, 8], vec![0, 1, 1, 2], vec![0, 3], [3, 4])?;
    /// let dense = sparse.to_dense(-1)?;
    /// assert_eq!(dense.as_i64(), Some(&[7, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 8][..]));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn sparse_csr(
        values: impl Into<TensorValues>,
        crow: Vec<i64>,
        col: Vec<i64>,
        shape: [usize; 2],
    ) -> Result<Self> {
        Self::from_parts(values.into(), Some(shape.to_vec()), Some((crow, col)))
    }

    /// A tensor from everything that describes one, checked.
    ///
    /// # Errors
    ///
    /// As [`with_shape`](Self::with_shape) and [`sparse_csr`](Self::sparse_csr).
    pub fn from_parts(
        values: TensorValues,
        shape: Option<Vec<usize>>,
        csr: Option<(Vec<i64>, Vec<i64>)>,
    ) -> Result<Self> {
        let csr = match csr {
            Some((crow, col)) => {
                let shape = shape.as_deref().ok_or_else(|| {
                    Error::invalid("shape", "a sparse tensor needs its dense shape")
                })?;
                Some(Csr::new(values.len(), crow, col, shape)?)
            }
            None => {
                if let Some(shape) = &shape {
                    check_shape(values.len(), shape)?;
                }
                None
            }
        };
        Ok(Self { values, shape, csr })
    }

    /// The number type.
    pub fn dtype(&self) -> Dtype {
        self.values.dtype()
    }

    /// The stored numbers; for a sparse tensor only the listed ones.
    pub fn values(&self) -> &TensorValues {
        &self.values
    }

    /// How many numbers are stored.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether no number is stored.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The (dense) shape, if it was given.
    pub fn shape(&self) -> Option<&[usize]> {
        self.shape.as_deref()
    }

    /// Where the stored values sit, if the tensor is sparse.
    pub fn csr(&self) -> Option<&Csr> {
        self.csr.as_ref()
    }

    /// The stored floats, unless the tensor holds integers.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.values {
            TensorValues::F32(values) => Some(values),
            TensorValues::I64(_) => None,
        }
    }

    /// The stored integers, unless the tensor holds floats.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.values {
            TensorValues::I64(values) => Some(values),
            TensorValues::F32(_) => None,
        }
    }

    /// The length, if there is one dimension (or no shape at all).
    pub(crate) fn length_1d(&self) -> Option<usize> {
        match (&self.csr, self.shape()) {
            (None, None) => Some(self.len()),
            (None, Some([length])) => Some(*length),
            _ => None,
        }
    }

    /// The same tensor with numbers of another type: integers round to the nearest float,
    /// floats lose their fraction. Costs nothing if the type is right already.
    #[must_use]
    pub fn cast(self, dtype: Dtype) -> Self {
        let values = match (&self.values, dtype) {
            (TensorValues::F32(values), Dtype::Int64) => {
                TensorValues::from(values.iter().map(|&value| value as i64).collect::<Vec<_>>())
            }
            (TensorValues::I64(values), Dtype::Float32) => {
                TensorValues::from(values.iter().map(|&value| value as f32).collect::<Vec<_>>())
            }
            _ => return self,
        };
        Self { values, ..self }
    }

    /// Bytes the numbers and indices take in a request.
    pub(crate) fn byte_estimate(&self) -> usize {
        let indices = self
            .csr
            .as_ref()
            .map_or(0, |csr| csr.crow_indices().len() + csr.col_indices().len());
        self.len() * self.dtype().size() + 8 * indices
    }

    /// Refuses NaN and infinities, which JSON has no form for.
    ///
    /// # Errors
    ///
    /// If a number is not finite.
    pub fn check_finite(&self) -> Result<()> {
        let Some(values) = self.as_f32() else {
            return Ok(());
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(index) => Err(Error::invalid(
                format!("data[{index}]"),
                format!(
                    "{} cannot be written as JSON; must be finite",
                    values[index]
                ),
            )),
        }
    }
}

fn check_shape(length: usize, shape: &[usize]) -> Result<()> {
    let expected = shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim));
    if expected == Some(length) {
        return Ok(());
    }
    Err(Error::invalid(
        "shape",
        format!("{shape:?} does not hold exactly {length} values"),
    ))
}

impl fmt::Debug for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TensorData");
        out.field("dtype", &format_args!("{}", self.dtype()));
        match &self.shape {
            Some(shape) => out.field("shape", &format_args!("{shape:?}")),
            None => out.field("shape", &None::<()>),
        };
        if let Some(csr) = &self.csr {
            out.field("csr", csr);
        }
        out.field("values", &self.values).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn takes_a_vector_over_and_shares_it() {
        let values = vec![1.0f32, 2.0];
        let address = values.as_ptr();
        let tensor = TensorData::from(values);
        assert_eq!(tensor.as_f32().unwrap().as_ptr(), address);
        assert_eq!(tensor.clone().as_f32().unwrap().as_ptr(), address);
        let shared = Arc::new(vec![3i64]);
        assert_eq!(TensorData::from(shared.clone()).as_i64(), Some(&[3][..]));
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn refuses_shapes_that_do_not_fit() {
        #[track_caller]
        fn check(shape: &[usize], fits: bool) {
            let tensor = TensorData::from(vec![1i64, 2, 3, 4]).with_shape(shape);
            assert_eq!(tensor.is_ok(), fits, "{tensor:?}");
        }
        check(&[4], true);
        check(&[2, 2], true);
        check(&[1, 4, 1], true);
        check(&[], false);
        check(&[5], false);
        check(&[4, 0], false);
        check(&[usize::MAX, usize::MAX], false);
        assert!(
            TensorData::from(vec![1i64]).with_shape([]).is_ok(),
            "a scalar"
        );

        let ragged = TensorData::from_rows(&[vec![1.0f32], vec![1.0, 2.0]]).unwrap_err();
        assert_eq!(
            ragged.to_string(),
            "invalid rows[1]: has 2 values where row 0 has 1; ragged rows are not supported"
        );
    }

    #[test]
    fn shows_long_tensors_briefly() {
        let tensor = TensorData::from(vec![0i64; 100]);
        assert_eq!(
            format!("{tensor:?}"),
            "TensorData { dtype: int64, shape: [100], \
             values: [0, 0, 0, 0, 0, 0, 0, 0, … 100 in all] }"
        );
    }
}
