//! Tensors: shared numbers with a type and a shape, dense or sparse.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The number type of a tensor. The service knows these two.
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

/// Where the stored values of a sparse tensor sit: compressed rows.
#[derive(Clone, PartialEq, Eq)]
pub struct Csr {
    crow: Arc<Vec<i64>>,
    col: Arc<Vec<i64>>,
}

impl Csr {
    /// Row pointers: the values of row `r` are those from `crow[r]` up to `crow[r + 1]`.
    pub fn crow_indices(&self) -> &[i64] {
        &self.crow
    }

    /// The column of each stored value.
    pub fn col_indices(&self) -> &[i64] {
        &self.col
    }
}

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
                check_csr(values.len(), &crow, &col, shape)?;
                Some(Csr {
                    crow: Arc::new(crow),
                    col: Arc::new(col),
                })
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

    /// The sparse form of a matrix that is mostly `pad`, where that is smaller.
    ///
    /// Sparse is smaller when (rows + 1) + 2 × (values other than `pad`) is below
    /// rows × columns. Any other tensor is returned as it is.
    ///
    /// ```
    /// use tinker::TensorData;
    ///
    /// let mut rows = vec![vec![0i64; 8]; 4];
    /// rows[2][5] = 9;
    /// let sparse = TensorData::from_rows(&rows)?.sparsify(0);
    /// assert_eq!(sparse.as_i64(), Some(&[9][..]));
    /// assert_eq!(sparse.csr().unwrap().col_indices(), [5]);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    #[must_use]
    pub fn sparsify(self, pad: i64) -> Self {
        let (None, Some(&[rows, columns])) = (&self.csr, self.shape.as_deref()) else {
            return self;
        };
        let sparse = match &self.values {
            TensorValues::F32(values) => compress(values, rows, columns, pad as f32),
            TensorValues::I64(values) => compress(values, rows, columns, pad),
        };
        let Some((values, crow, col)) = sparse else {
            return self;
        };
        Self {
            values,
            shape: self.shape,
            csr: Some(Csr {
                crow: Arc::new(crow),
                col: Arc::new(col),
            }),
        }
    }

    /// The dense form, with `pad` wherever a sparse tensor lists nothing.
    ///
    /// # Errors
    ///
    /// If the dense form does not fit in memory.
    pub fn to_dense(&self, pad: i64) -> Result<Self> {
        let (Some(csr), Some(&[rows, columns])) = (&self.csr, self.shape.as_deref()) else {
            return Ok(self.clone());
        };
        let values = match &self.values {
            TensorValues::F32(values) => expand(values, csr, rows, columns, pad as f32)?.into(),
            TensorValues::I64(values) => expand(values, csr, rows, columns, pad)?.into(),
        };
        Ok(Self {
            values,
            shape: self.shape.clone(),
            csr: None,
        })
    }

    /// Bytes the numbers and indices take in a request.
    pub(crate) fn byte_estimate(&self) -> usize {
        let indices = self
            .csr
            .as_ref()
            .map_or(0, |csr| csr.crow.len() + csr.col.len());
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

fn check_csr(length: usize, crow: &[i64], col: &[i64], shape: &[usize]) -> Result<()> {
    let &[rows, columns] = shape else {
        return Err(Error::invalid(
            "shape",
            format!("{shape:?} is not two-dimensional, as a sparse tensor must be"),
        ));
    };
    let crow_error = |problem: String| Err(Error::invalid("sparse_crow_indices", problem));
    if Some(crow.len()) != rows.checked_add(1) {
        return crow_error(format!(
            "needs one entry more than the {rows} rows, got {}",
            crow.len()
        ));
    }
    if crow[0] != 0 || usize::try_from(crow[rows]) != Ok(length) || !crow.is_sorted() {
        return crow_error(format!("must rise from 0 to the {length} values"));
    }
    let col_error = |problem: String| Err(Error::invalid("sparse_col_indices", problem));
    if col.len() != length {
        return col_error(format!(
            "needs {length} entries, one per value, got {}",
            col.len()
        ));
    }
    if let Some(&wrong) = col
        .iter()
        .find(|&&col| usize::try_from(col).is_ok_and(|col| col < columns) == false)
    {
        return col_error(format!("{wrong} is not one of the {columns} columns"));
    }
    // `crow` is known to rise from 0 to `length`, so these ranges lie within `col`.
    let rises = |range: &[i64]| {
        let row = &col[range[0] as usize..range[1] as usize];
        row.windows(2).all(|pair| pair[0] < pair[1])
    };
    if !crow.windows(2).all(rises) {
        return col_error("must rise within each row".to_owned());
    }
    Ok(())
}

type Compressed = (TensorValues, Vec<i64>, Vec<i64>);

/// The matrix in compressed rows, if that is smaller.
fn compress<T>(values: &[T], rows: usize, columns: usize, pad: T) -> Option<Compressed>
where
    T: Copy + PartialEq,
    TensorValues: From<Vec<T>>,
{
    let stored = values.iter().filter(|&&value| value != pad).count();
    if (rows + 1) + 2 * stored >= values.len() {
        return None;
    }
    let mut kept = Vec::with_capacity(stored);
    let mut crow = Vec::with_capacity(rows + 1);
    let mut col = Vec::with_capacity(stored);
    crow.push(0);
    for row in values.chunks_exact(columns) {
        for (column, &value) in row.iter().enumerate().filter(|&(_, &value)| value != pad) {
            kept.push(value);
            col.push(column as i64);
        }
        crow.push(kept.len() as i64);
    }
    Some((kept.into(), crow, col))
}

fn expand<T: Copy>(values: &[T], csr: &Csr, rows: usize, columns: usize, pad: T) -> Result<Vec<T>> {
    let too_large = || {
        Error::invalid(
            "shape",
            format!("[{rows}, {columns}] does not fit in memory as a dense tensor"),
        )
    };
    let length = rows.checked_mul(columns).ok_or_else(too_large)?;
    let mut dense = Vec::new();
    dense.try_reserve_exact(length).map_err(|_| too_large())?;
    dense.resize(length, pad);
    for (row, range) in csr.crow.windows(2).enumerate() {
        for index in range[0] as usize..range[1] as usize {
            dense[row * columns + csr.col[index] as usize] = values[index];
        }
    }
    Ok(dense)
}

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

impl fmt::Debug for TensorValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(values) => debug_list(values, f),
            Self::I64(values) => debug_list(values, f),
        }
    }
}

impl fmt::Debug for Csr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csr")
            .field("crow", &Brief(&self.crow))
            .field("col", &Brief(&self.col))
            .finish()
    }
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

/// A slice whose `Debug` shows the first few entries and the count.
pub(super) struct Brief<'a, T>(pub(super) &'a [T]);

impl<T: fmt::Debug> fmt::Debug for Brief<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_list(self.0, f)
    }
}

fn debug_list<T: fmt::Debug>(values: &[T], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN: usize = 8;
    if values.len() <= SHOWN {
        return write!(f, "{values:?}");
    }
    f.write_str("[")?;
    for value in &values[..SHOWN] {
        write!(f, "{value:?}, ")?;
    }
    write!(f, "… {} in all]", values.len())
}
