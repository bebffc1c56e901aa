//! Matrix products: a checked wrapper around `matrixmultiply`, and what beats it for few rows and
//! for large models.
#![allow(
    unsafe_code,
    reason = "matrixmultiply and vector instructions take raw pointers; every call is bounds-checked here"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use super::quant::{self, Dtype, Q8Block};
#[cfg(target_arch = "x86_64")]
use avx512::Load;
#[cfg(not(target_arch = "x86_64"))]
use std::marker::Copy as Load;

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

/// Runs a loop over numbers with the widest vectors the processor has, where the compiler would
/// only use those that every processor has. The numbers are the same, to the last bit.
///
/// It takes effect for what is inlined into `work`.
pub(crate) fn vectorised<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked.
        return unsafe { avx512::run(work) };
    } else if avx2::available() {
        // SAFETY: the processor has AVX2 and FMA, as was just asked.
        return unsafe { avx2::run(work) };
    }
    work()
}

/// A type that weights are kept in: `f32`, bf16 as its bytes, which may lie anywhere in a file, or
/// blocks of them.
pub(crate) trait Weight: Load + Sync {
    /// How many weights one of these is.
    const COUNT: usize = 1;

    /// The weights, one by one.
    fn widen(all: &[Self], out: &mut [f32]);
}

impl Weight for f32 {
    fn widen(all: &[Self], out: &mut [f32]) {
        out.copy_from_slice(all);
    }
}

impl Weight for [u8; 2] {
    fn widen(all: &[Self], out: &mut [f32]) {
        quant::widen(all.as_flattened(), Dtype::Bf16, out);
    }
}

impl Weight for Q8Block {
    const COUNT: usize = 32;

    fn widen(all: &[Self], out: &mut [f32]) {
        quant::widen(all.as_flattened(), Dtype::Q8_0, out);
    }
}

/// The weights, one by one, into exactly as many places.
///
/// # Panics
///
/// If there are more or fewer places.
pub(crate) fn widen<W: Weight>(all: &[W], out: &mut [f32]) {
    assert_eq!(all.len() * W::COUNT, out.len(), "as many places as weights");
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked.
        return unsafe { avx512::widen(all, out) };
    }
    W::widen(all, out);
}

/// Two dense matrices whose rows are multiplied with each other: `inner` numbers each, which are a
/// whole number of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors<'a, W> {
    pub(crate) x: &'a [f32],
    pub(crate) w: &'a [W],
    pub(crate) inner: usize,
}

impl Factors<'_, f32> {
    /// No products at all.
    pub(crate) const NONE: Self = Self {
        x: &[],
        w: &[],
        inner: 0,
    };
}

impl<W: Weight> Factors<'_, W> {
    fn columns(&self) -> usize {
        self.w.len() * W::COUNT / self.inner
    }

    fn check(&self, rows: usize, columns: usize) {
        assert!(
            self.x.len() >= rows * self.inner,
            "left matrix is too small"
        );
        assert!(
            self.w.len() * W::COUNT >= columns * self.inner,
            "right matrix is too small"
        );
        assert!(self.inner.is_multiple_of(W::COUNT), "rows end in a block");
    }
}

/// Whether rows may be treated differently when they come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// As if each came alone, to the last bit.
    Alone,
    /// Many at once, again however they are cut.
    Together,
}

/// Up to this many rows a dot product per weight row beats the general product.
pub(crate) const FEW_ROWS: usize = 8;

/// `out[i][first + j] = x[i] · w[j]`, with the products of `more` added.
///
/// An element is the same however the others are cut, so callers may split columns over threads.
///
/// # Panics
///
/// If a matrix is smaller than the result.
pub(crate) fn project<W: Weight>(
    main: Factors<'_, W>,
    more: Factors<'_, f32>,
    rows: Rows,
    first: usize,
    out: &mut [&mut [f32]],
) {
    let (count, columns) = (out.len(), main.columns());
    main.check(count, columns);
    more.check(count, columns);
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked.
        return unsafe { avx512::project(main, more, first, out) };
    }
    project_plain(main, more, rows, first, out);
}

fn project_plain<W: Weight>(
    main: Factors<'_, W>,
    more: Factors<'_, f32>,
    rows: Rows,
    first: usize,
    out: &mut [&mut [f32]],
) {
    let (count, columns) = (out.len(), main.columns());
    let mut dense = vec![0.0; count * columns];
    let mut add = |x: &[f32], w: &[f32], inner: usize| {
        let mut part = vec![0.0; dense.len()];
        if rows == Rows::Alone {
            dots(&x[..count * inner], inner, w, inner, &mut part, columns);
        } else {
            let w = View::new(w, columns, inner).transposed();
            product(1.0, View::new(x, count, inner), w, 0.0, &mut part, columns);
        }
        dense
            .iter_mut()
            .zip(part)
            .for_each(|(sum, part)| *sum += part);
    };
    let mut widened = vec![0.0; main.w.len() * W::COUNT];
    W::widen(main.w, &mut widened);
    add(main.x, &widened, main.inner);
    if more.inner > 0 {
        add(more.x, &more.w[..columns * more.inner], more.inner);
    }
    for (out, dense) in out.iter_mut().zip(dense.chunks_exact(columns)) {
        out[first..first + columns].copy_from_slice(dense);
    }
}

/// `out[i] += alpha * Σ a[i][p] * b[p]`, where row `p` of `b` starts at `p * stride`.
///
/// As with [`project`], callers may split rows and columns over threads.
///
/// # Panics
///
/// If a matrix reaches beyond its slice, or the rows of the result differ in length.
pub(crate) fn accumulate<W: Weight>(
    alpha: f32,
    a: View<'_>,
    b: &[W],
    stride: usize,
    out: &mut [&mut [f32]],
) {
    const { assert!(W::COUNT == 1, "columns cannot be cut within blocks") };
    let width = out.first().map_or(0, |row| row.len());
    if a.rows == 0 || a.cols == 0 || width == 0 {
        return;
    }
    assert_eq!(a.rows, out.len(), "left matrix has other rows");
    assert!(a.reach() <= a.data.len(), "left matrix exceeds its slice");
    assert!(
        (a.cols - 1) * stride + width <= b.len(),
        "right matrix exceeds its slice"
    );
    assert!(
        out.iter().all(|row| row.len() == width),
        "rows differ in length"
    );
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked.
        return unsafe { avx512::accumulate(alpha, a, b, stride, out) };
    }
    accumulate_plain(alpha, a, b, stride, out);
}

fn accumulate_plain<W: Weight>(
    alpha: f32,
    a: View<'_>,
    b: &[W],
    stride: usize,
    out: &mut [&mut [f32]],
) {
    let width = out[0].len();
    let mut widened = vec![0.0; a.cols * width];
    for (row, widened) in b.chunks(stride).zip(widened.chunks_exact_mut(width)) {
        W::widen(&row[..width], widened);
    }
    let mut dense = vec![0.0; a.rows * width];
    product(
        alpha,
        a,
        View::new(&widened, a.cols, width),
        0.0,
        &mut dense,
        width,
    );
    for (out, dense) in out.iter_mut().zip(dense.chunks_exact(width)) {
        out.iter_mut()
            .zip(dense)
            .for_each(|(sum, value)| *sum += value);
    }
}

/// `out[i][j] = x[i] · w[j]` for a few rows of `x`: the general product would spend its time
/// packing.
///
/// Rows of `x` are dense, rows of `w` and `out` start `w_stride` and `out_stride` apart. A row's
/// result does not depend on the others.
///
/// # Panics
///
/// If a row reaches beyond its slice.
pub(crate) fn dots(
    x: &[f32],
    inputs: usize,
    w: &[f32],
    w_stride: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(
        w_stride >= inputs && inputs > 0,
        "rows of the right matrix overlap"
    );
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: the processor has AVX2 and FMA, as was just asked.
        return unsafe { avx2::single::dots(x, inputs, w, w_stride, out, out_stride) };
    }
    for (x, out) in x.chunks_exact(inputs).zip(out.chunks_mut(out_stride)) {
        for (w, out) in w.chunks(w_stride).zip(out) {
            *out = dot(x, &w[..inputs]);
        }
    }
}

/// As [`dots`], for weights in bf16, which are widened in registers: for one row the time goes
/// into fetching them.
///
/// The result is, to the last bit, that of widening first.
///
/// # Panics
///
/// If a row reaches beyond its slice.
pub(crate) fn dots_bf16(
    x: &[f32],
    inputs: usize,
    w: &[u16],
    w_stride: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(
        w_stride >= inputs && inputs > 0,
        "rows of the right matrix overlap"
    );
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: the processor has AVX2 and FMA, as was just asked.
        return unsafe { avx2::half::dots(x, inputs, w, w_stride, out, out_stride) };
    }
    let mut row = vec![0.0; inputs];
    for (index, w) in w.chunks(w_stride).enumerate() {
        for (row, w) in row.iter_mut().zip(w) {
            *row = bf16(*w);
        }
        for (x, out) in x.chunks_exact(inputs).zip(out.chunks_mut(out_stride)) {
            out[index] = dot(x, &row);
        }
    }
}

/// A number in bf16: the upper half of an `f32`.
fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `out += Σ weights[i] * rows[i]`, where row `i` starts at `i * stride`.
///
/// # Panics
///
/// If a row reaches beyond its slice.
pub(crate) fn add_weighted(weights: &[f32], rows: &[f32], stride: usize, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: as in `dots`.
        return unsafe { avx2::single::add_weighted(weights, rows, stride, out) };
    }
    for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
        for (out, value) in out.iter_mut().zip(row) {
            *out += weight * value;
        }
    }
}

/// As [`add_weighted`], for rows in bf16.
///
/// # Panics
///
/// If a row reaches beyond its slice.
pub(crate) fn add_weighted_bf16(weights: &[f32], rows: &[u16], stride: usize, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: as in `dots`.
        return unsafe { avx2::half::add_weighted(weights, rows, stride, out) };
    }
    for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
        for (out, value) in out.iter_mut().zip(row) {
            *out += weight * bf16(*value);
        }
    }
}

/// The inner product, summed in sixteen lanes so that it vectorises.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks
        .remainder()
        .iter()
        .zip(b_chunks.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + tail
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

    #[test]
    fn few_rows_give_what_the_general_product_gives() {
        for (n, inputs, outputs) in [(1, 8, 3), (2, 31, 5), (3, 7, 1), (4, 96, 9), (7, 40, 6)] {
            let numbers = |len: usize| -> Vec<f32> {
                (0..len).map(|i| ((i * 37 % 19) as f32) - 9.0).collect()
            };
            let (x, w) = (numbers(n * inputs), numbers(outputs * inputs));
            let (mut few, mut general) = (vec![0.0; n * outputs], vec![0.0; n * outputs]);
            dots(&x, inputs, &w, inputs, &mut few, outputs);
            let right = View::new(&w, outputs, inputs).transposed();
            product(
                1.0,
                View::new(&x, n, inputs),
                right,
                0.0,
                &mut general,
                outputs,
            );
            assert_eq!(few, general);

            let halves: Vec<u16> = w.iter().map(|w| (w.to_bits() >> 16) as u16).collect();
            let mut fused = vec![0.0; n * outputs];
            dots_bf16(&x, inputs, &halves, inputs, &mut fused, outputs);
            assert_eq!(fused, few, "small whole numbers are the same in bf16");

            let mut summed = vec![0.0; inputs];
            add_weighted(&few[..outputs], &w, inputs, &mut summed);
            let left = View::new(&few[..outputs], 1, outputs);
            let mut general = vec![0.0; inputs];
            product(
                1.0,
                left,
                View::new(&w, outputs, inputs),
                0.0,
                &mut general,
                inputs,
            );
            assert_eq!(summed, general);
            let mut fused = general.clone();
            add_weighted_bf16(&few[..outputs], &halves, inputs, &mut fused);
            let twice: Vec<f32> = general.iter().map(|sum| 2.0 * sum).collect();
            assert_eq!(fused, twice, "added to what was there");
        }
    }

    /// Sizes that leave every kind of rest, against the general product; and every row alone.
    #[test]
    fn spread_products_give_what_the_general_product_gives() {
        let numbers =
            |len: usize| -> Vec<f32> { (0..len).map(|i| ((i * 37 % 19) as f32) - 9.0).collect() };
        for (n, inner, more, outputs) in [(1, 16, 0, 1), (3, 31, 5, 9), (15, 300, 32, 53)] {
            let (x, w) = (numbers(n * inner), numbers(outputs * inner));
            let (h, b) = (numbers(n * more), numbers(outputs * more));
            let upper = |w: &f32| [(w.to_bits() >> 16) as u8, (w.to_bits() >> 24) as u8];
            let halves: Vec<[u8; 2]> = w.iter().map(upper).collect();
            let mut general = vec![0.0; n * outputs];
            for (x, w, inner) in [(&x, &w, inner), (&h, &b, more)] {
                let w = View::new(w, outputs, inner).transposed();
                product(1.0, View::new(x, n, inner), w, 1.0, &mut general, outputs);
            }
            let more = Factors {
                x: &h,
                w: &b,
                inner: more,
            };
            let main = Factors {
                x: &x,
                w: &halves,
                inner,
            };
            for run in [project, project_plain] {
                for kind in [Rows::Together, Rows::Alone] {
                    let mut spread = vec![f32::NAN; n * (outputs + 2)];
                    let mut rows: Vec<&mut [f32]> = spread.chunks_exact_mut(outputs + 2).collect();
                    run(main, more, kind, 1, &mut rows);
                    for (row, general) in rows.iter().zip(general.chunks_exact(outputs)) {
                        assert_eq!(row[1..=outputs], *general);
                        assert!(row[0].is_nan() && row[outputs + 1].is_nan());
                    }
                }
            }

            let mut back = vec![1.0; n * inner];
            product(
                0.5,
                View::new(&general, n, outputs),
                View::new(&w, outputs, inner),
                1.0,
                &mut back,
                inner,
            );
            let dy = View::new(&general, n, outputs);
            for run in [accumulate, accumulate_plain] {
                let mut spread = vec![1.0; n * inner];
                let mut rows: Vec<&mut [f32]> = spread.chunks_exact_mut(inner).collect();
                run(0.5, dy, &halves, inner, &mut rows);
                assert_eq!(spread, back);
            }
            let mut back = vec![0.0; outputs * inner];
            product(
                1.0,
                View::new(&general, n, outputs).transposed(),
                View::new(&x, n, inner),
                0.0,
                &mut back,
                inner,
            );
            let mut spread = vec![0.0; outputs * inner];
            let mut rows: Vec<&mut [f32]> = spread.chunks_exact_mut(inner).collect();
            accumulate(
                1.0,
                View::new(&general, n, outputs).transposed(),
                &x,
                inner,
                &mut rows,
            );
            assert_eq!(spread, back);
        }
    }
}
