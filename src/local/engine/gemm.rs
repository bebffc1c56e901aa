//! The matrix product: a checked wrapper around `matrixmultiply`.
#![allow(
    unsafe_code,
    reason = "matrixmultiply takes raw pointers; every call is bounds-checked here"
)]

/// A read-only matrix inside a slice, with strides counted in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// A dense row-major matrix.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols)
    }

    /// A row-major matrix whose rows start `row_stride` elements apart.
    pub(crate) fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self {
            data,
            rows,
            cols,
            row_stride,
            col_stride: 1,
        }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// One more than the largest index any element has.
    fn reach(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride + 1
    }
}

/// `c = alpha * a * b + beta * c`, where row `i` of `c` starts at `i * c_stride`.
///
/// With `beta` 0 the old contents of `c` do not matter, not even NaN. Each element is summed in
/// the same order however the other dimensions are cut, so callers may split rows and columns
/// over threads without changing a bit of the result.
///
/// # Panics
///
/// If the inner dimensions differ or a matrix reaches beyond its slice.
pub(crate) fn product(
    alpha: f32,
    a: View<'_>,
    b: View<'_>,
    beta: f32,
    c: &mut [f32],
    c_stride: usize,
) {
    let (rows, inner, cols) = (a.rows, a.cols, b.cols);
    assert_eq!(inner, b.rows, "inner dimensions differ");
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(a.reach() <= a.data.len(), "left matrix exceeds its slice");
    assert!(b.reach() <= b.data.len(), "right matrix exceeds its slice");
    assert!(c_stride >= cols, "rows of the result overlap");
    assert!(
        (rows - 1) * c_stride + cols <= c.len(),
        "result exceeds its slice"
    );
    let (a_rows, a_cols) = (a.row_stride as isize, a.col_stride as isize);
    let (b_rows, b_cols) = (b.row_stride as isize, b.col_stride as isize);
    // SAFETY: the asserts above bound every index the product touches: element (i, j) of each
    // operand lies at i * row_stride + j * col_stride, largest at the last row and column, which
    // is inside its slice. The result is exclusively borrowed and its rows do not overlap.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            inner,
            cols,
            alpha,
            a.data.as_ptr(),
            a_rows,
            a_cols,
            b.data.as_ptr(),
            b_rows,
            b_cols,
            beta,
            c.as_mut_ptr(),
            c_stride as isize,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies_strided_and_transposed_matrices() {
        // a = [1 2; 3 4] inside rows of 3; b stored transposed.
        let a = [1.0, 2.0, 9.0, 3.0, 4.0, 9.0];
        let b = [5.0, 7.0, 6.0, 8.0];
        let mut c = [f32::NAN; 5];
        let right = View::new(&b, 2, 2).transposed();
        product(2.0, View::strided(&a, 2, 2, 3), right, 0.0, &mut c, 3);
        assert_eq!((c[0], c[1], c[3], c[4]), (38.0, 44.0, 86.0, 100.0));
        assert!(c[2].is_nan(), "the gap between rows is left alone");
    }

    #[test]
    #[should_panic(expected = "right matrix exceeds its slice")]
    fn refuses_to_read_beyond_a_slice() {
        let mut c = [0.0; 4];
        product(
            1.0,
            View::new(&[0.0; 4], 2, 2),
            View::new(&[0.0; 3], 2, 2),
            0.0,
            &mut c,
            2,
        );
    }
}
