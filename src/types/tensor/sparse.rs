//! Sparse matrices in compressed rows.

use std::fmt;
use std::sync::Arc;

use super::{Brief, TensorData, TensorValues};
use crate::{Error, Result};

/// Where the stored values of a sparse tensor sit: compressed rows.
#[derive(Clone, PartialEq, Eq)]
pub struct Csr {
    crow: Arc<Vec<i64>>,
    col: Arc<Vec<i64>>,
}

impl Csr {
    /// Checks that the indices describe a matrix of this shape with so many stored values.
    pub(super) fn new(
        values: usize,
        crow: Vec<i64>,
        col: Vec<i64>,
        shape: &[usize],
    ) -> Result<Self> {
        check_csr(values, &crow, &col, shape)?;
        Ok(Self {
            crow: Arc::new(crow),
            col: Arc::new(col),
        })
    }

    /// Row pointers: the values of row `r` are those from `crow[r]` up to `crow[r + 1]`.
    pub fn crow_indices(&self) -> &[i64] {
        &self.crow
    }

    /// The column of each stored value.
    pub fn col_indices(&self) -> &[i64] {
        &self.col
    }
}

impl TensorData {
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
        .find(|&&col| !usize::try_from(col).is_ok_and(|col| col < columns))
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

impl fmt::Debug for Csr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csr")
            .field("crow", &Brief(&self.crow))
            .field("col", &Brief(&self.col))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_indices_that_are_no_matrix() {
        #[track_caller]
        fn check(crow: &[i64], col: &[i64], shape: &[usize], expected: &str) {
            let values = TensorValues::from(vec![7i64, 8]);
            let parts = Some((crow.to_vec(), col.to_vec()));
            let error = TensorData::from_parts(values, Some(shape.to_vec()), parts).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        check(
            &[0, 2],
            &[0, 1],
            &[2],
            "invalid shape: [2] is not two-dimensional, as a sparse tensor must be",
        );
        check(
            &[0, 2],
            &[0, 1],
            &[2, 3],
            "invalid sparse_crow_indices: needs one entry more than the 2 rows, got 2",
        );
        let rise = "invalid sparse_crow_indices: must rise from 0 to the 2 values";
        check(&[1, 1, 2], &[0, 1], &[2, 3], rise);
        check(&[0, 2, 1], &[0, 1], &[2, 3], rise);
        check(&[0, 3, 2], &[0, 1], &[2, 3], rise);
        check(
            &[0, 1, 2],
            &[0],
            &[2, 3],
            "invalid sparse_col_indices: needs 2 entries, one per value, got 1",
        );
        check(
            &[0, 1, 2],
            &[0, 3],
            &[2, 3],
            "invalid sparse_col_indices: 3 is not one of the 3 columns",
        );
        check(
            &[0, 2, 2],
            &[1, 1],
            &[2, 3],
            "invalid sparse_col_indices: must rise within each row",
        );
    }

    #[test]
    fn is_sparse_only_where_that_is_smaller() {
        #[track_caller]
        fn check(rows: usize, columns: usize, stored: usize, sparse: bool) {
            let mut values = vec![0.0f32; rows * columns];
            values[..stored].fill(1.0);
            let dense = TensorData::from(values)
                .with_shape([rows, columns])
                .unwrap();
            let packed = dense.clone().sparsify(0);
            assert_eq!(packed.csr().is_some(), sparse);
            assert_eq!(packed.to_dense(0).unwrap(), dense);
        }
        // (rows + 1) + 2 × stored against rows × columns.
        check(3, 4, 3, true);
        check(3, 4, 4, false);
        check(1, 2, 0, false);
        check(1, 3, 0, true);
        check(0, 0, 0, false);
    }

    #[test]
    fn pads_with_what_was_left_out() {
        let dense = TensorData::from_rows(&[vec![-1i64; 9], vec![-1; 9]]).unwrap();
        let packed = dense.clone().sparsify(-1);
        assert!(packed.is_empty() && packed.csr().is_some());
        assert_eq!(packed.to_dense(-1).unwrap(), dense);
        assert_eq!(packed.to_dense(0).unwrap().as_i64(), Some(&[0; 18][..]));
    }
}
