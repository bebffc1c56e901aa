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
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Multiply, Number};
#[cfg(not(target_arch = "x86_64"))]
use std::marker::Copy as Load;

/// Numbers that are multiplied with each other.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) trait Number {}

#[cfg(not(target_arch = "x86_64"))]
impl<X> Number for X {}

/// Weights that can be multiplied with numbers of type `X`.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) trait Multiply<X> {}

#[cfg(not(target_arch = "x86_64"))]
impl<X, W> Multiply<X> for W {}

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

/// A type that weights are kept in, and the rows they are multiplied with: `f32`, bf16 as its
/// bytes, which may lie anywhere in a file, or blocks of bytes.
pub(crate) trait Weight: Load + Sync {
    /// How many weights one of these is.
    const COUNT: usize = 1;

    /// The weights, one by one.
    fn widen(all: &[Self], out: &mut [f32]);

    /// `out += Σ weights[i] * rows[i]`, one product after the other, where row `i` starts at
    /// `i * stride`.
    fn add_weighted(weights: &[f32], rows: &[Self], stride: usize, out: &mut [f32]) {
        add_weighted(weights, rows, stride, out);
    }
}

fn add_weighted<W: Weight>(weights: &[f32], rows: &[W], stride: usize, out: &mut [f32]) {
    let mut widened = vec![0.0; out.len()];
    for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
        W::widen(&row[..out.len() / W::COUNT], &mut widened);
        for (out, value) in out.iter_mut().zip(&widened) {
            *out += weight * value;
        }
    }
}

impl Weight for f32 {
    fn widen(all: &[Self], out: &mut [f32]) {
        out.copy_from_slice(all);
    }

    #[cfg(target_arch = "x86_64")]
    fn add_weighted(weights: &[f32], rows: &[Self], stride: usize, out: &mut [f32]) {
        match avx2::available() {
            // SAFETY: the processor has AVX2 and FMA, as was just asked.
            true => unsafe { avx2::add_weighted(weights, rows, stride, out) },
            false => add_weighted(weights, rows, stride, out),
        }
    }
}

impl Weight for [u8; 2] {
    fn widen(all: &[Self], out: &mut [f32]) {
        quant::widen(all.as_flattened(), Dtype::Bf16, out);
    }

    #[cfg(target_arch = "x86_64")]
    fn add_weighted(weights: &[f32], rows: &[Self], stride: usize, out: &mut [f32]) {
        match avx2::available() {
            // SAFETY: the processor has AVX2 and FMA, as was just asked.
            true => unsafe { avx2::add_weighted_bf16(weights, rows, stride, out) },
            false => add_weighted(weights, rows, stride, out),
        }
    }
}

/// A number in bf16: the upper half of an `f32`.
#[cfg(target_arch = "x86_64")]
fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
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

/// Whether the processor multiplies numbers in bf16, twice as many at a time as in `f32`.
pub(crate) fn short_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return avx512::short_products();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Blocks in bf16, for a processor with [`short_products`].
///
/// # Panics
///
/// If there are more or fewer places than weights, or no such products.
pub(crate) fn shorten(all: &[Q8Block], out: &mut [[u8; 2]]) {
    assert_eq!(
        all.len() * Q8Block::COUNT,
        out.len(),
        "as many places as weights"
    );
    assert!(short_products(), "products of bf16");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has them, as was just asked.
    unsafe {
        avx512::shorten(all, out);
    }
}

/// Two dense matrices whose rows are multiplied with each other: `inner` numbers each, which are a
/// whole number of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factors<'a, X, W> {
    pub(crate) x: &'a [X],
    /// What rounding took from `x`, rounded too; or nothing, where that does not count.
    pub(crate) rest: &'a [X],
    pub(crate) w: &'a [W],
    pub(crate) inner: usize,
}

impl Factors<'_, f32, f32> {
    /// No products at all.
    pub(crate) const NONE: Self = Self {
        x: &[],
        rest: &[],
        w: &[],
        inner: 0,
    };
}

impl<X: Weight, W: Weight> Factors<'_, X, W> {
    fn columns(&self) -> usize {
        self.w.len() * W::COUNT / self.inner
    }

    fn check(&self, rows: usize, columns: usize) {
        assert!(
            self.x.len() >= rows * self.inner,
            "left matrix is too small"
        );
        assert!(
            self.rest.is_empty() || self.rest.len() == self.x.len(),
            "the rest of other rows"
        );
        assert!(
            self.w.len() * W::COUNT >= columns * self.inner,
            "right matrix is too small"
        );
        assert!(X::COUNT == 1, "the left matrix has no blocks");
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

/// As many products at a time are added up in [`accumulate`] before they are added to the result.
pub(crate) const DEPTH: usize = 256;

/// Up to this many rows a dot product per weight row beats the general product.
pub(crate) const FEW_ROWS: usize = 8;

/// `out[i][first + j] = x[i] · w[j]`, with the products of `more` added.
///
/// An element is the same however the others are cut, so callers may split columns over threads.
///
/// # Panics
///
/// If a matrix is smaller than the result.
pub(crate) fn project<X: Weight + Number, W: Weight + Multiply<X>>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    rows: Rows,
    first: usize,
    out: &mut [&mut [f32]],
) {
    let (count, columns) = (out.len(), main.columns());
    main.check(count, columns);
    more.check(count, columns);
    #[cfg(target_arch = "x86_64")]
    if avx512::short_products() {
        // SAFETY: the processor has AVX-512 with these products, as was just asked.
        return unsafe { avx512::project_short(main, more, first, out) };
    } else if X::COMMON && avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked, and needs nothing else.
        return unsafe { avx512::project(main, more, first, out) };
    }
    project_plain(main, more, rows, first, out);
}

fn project_plain<X: Weight, W: Weight>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
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
    let mut w = vec![0.0; main.w.len() * W::COUNT];
    W::widen(main.w, &mut w);
    for x in [main.x, main.rest].into_iter().filter(|x| !x.is_empty()) {
        let mut widened = vec![0.0; x.len()];
        X::widen(x, &mut widened);
        add(&widened, &w, main.inner);
    }
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
        return unsafe { avx2::dots(x, inputs, w, w_stride, out, out_stride) };
    }
    for (x, out) in x.chunks_exact(inputs).zip(out.chunks_mut(out_stride)) {
        for (w, out) in w.chunks(w_stride).zip(out) {
            *out = dot(x, &w[..inputs]);
        }
    }
}

/// `out[i] += Σ weights[i][p] * rows[p]`, `width` numbers each and one product after the other, where
/// row `p` starts at `p * stride` and row `i` of the result at `i * out_stride`.
///
/// For few numbers: nothing is packed.
///
/// # Panics
///
/// If a matrix reaches beyond its slice.
pub(crate) fn add_rows<W: Weight>(
    weights: View<'_>,
    rows: &[W],
    stride: usize,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    const { assert!(W::COUNT == 1, "columns cannot be cut within blocks") };
    if weights.rows == 0 || weights.cols == 0 {
        return;
    }
    let reach = |count: usize, stride: usize| (count - 1) * stride + width;
    assert!(
        weights.reach() <= weights.data.len(),
        "left matrix exceeds its slice"
    );
    assert!(
        reach(weights.cols, stride) <= rows.len(),
        "right matrix exceeds its slice"
    );
    assert!(
        out_stride >= width && reach(weights.rows, out_stride) <= out.len(),
        "result exceeds its slice"
    );
    #[cfg(target_arch = "x86_64")]
    if avx512::available() {
        // SAFETY: the processor has AVX-512, as was just asked.
        return unsafe { avx512::add_rows(weights, rows, stride, width, out, out_stride) };
    }
    let mut row = Vec::with_capacity(weights.cols);
    for (index, out) in out.chunks_mut(out_stride).take(weights.rows).enumerate() {
        let from = weights.data[index * weights.row_stride..].iter();
        row.clear();
        row.extend(from.step_by(weights.col_stride).take(weights.cols));
        W::add_weighted(&row, rows, stride, &mut out[..width]);
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

            let halves: Vec<[u8; 2]> = w.iter().map(upper_half).collect();
            let mut back = vec![1.0; n * inputs];
            product(
                1.0,
                View::new(&few, n, outputs),
                View::new(&w, outputs, inputs),
                1.0,
                &mut back,
                inputs,
            );
            let few = View::new(&few, n, outputs);
            let mut summed = vec![1.0; n * (inputs + 3)];
            let mut fused = summed.clone();
            add_rows(few, &w, inputs, inputs, &mut summed, inputs + 3);
            add_rows(few, &halves, inputs, inputs, &mut fused, inputs + 3);
            assert_eq!(summed, fused, "small whole numbers are the same in bf16");
            for run in [f32::add_weighted, add_weighted] {
                let mut summed = vec![1.0; inputs];
                run(&few.data[..outputs], &w, inputs, &mut summed);
                assert_eq!(summed, back[..inputs]);
            }
            for run in [<[u8; 2]>::add_weighted, add_weighted] {
                let mut summed = vec![1.0; inputs];
                run(&few.data[..outputs], &halves, inputs, &mut summed);
                assert_eq!(summed, back[..inputs]);
            }
            for (summed, back) in summed.chunks(inputs + 3).zip(back.chunks(inputs)) {
                assert_eq!(summed[..inputs], *back);
                assert_eq!(
                    summed[inputs..],
                    [1.0; 3],
                    "the gap between rows is left alone"
                );
            }
        }
    }

    fn upper_half(number: &f32) -> [u8; 2] {
        [
            (number.to_bits() >> 16) as u8,
            (number.to_bits() >> 24) as u8,
        ]
    }

    /// Products in every way, into the middle of longer rows.
    #[track_caller]
    fn check_spread<X: Weight + Number, W: Weight + Multiply<X>>(
        main: Factors<'_, X, W>,
        more: Factors<'_, f32, f32>,
        n: usize,
        general: &[f32],
    ) {
        let outputs = general.len() / n;
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
    }

    impl<'a, X, W> Factors<'a, X, W> {
        /// The same with the rows in another form.
        fn with<Y>(self, x: &'a [Y]) -> Factors<'a, Y, W> {
            let (w, inner) = (self.w, self.inner);
            Factors {
                x,
                rest: &[],
                w,
                inner,
            }
        }
    }

    /// Whole numbers times a power of two, which every form can spell.
    #[test]
    fn blocks_give_what_their_weights_give() {
        for (n, inner, outputs) in [(1, 32, 1), (3, 96, 9), (4, 64, 7), (15, 320, 53)] {
            let numbers = |index: usize| ((index * 37 % 19) as f32) - 9.0;
            let x: Vec<f32> = (0..n * inner).map(numbers).collect();
            let block = |index: usize| -> Q8Block {
                let quants = (32 * index..32 * (index + 1)).map(|at| numbers(at) as i8 as u8);
                // A scale of 1/2 in half precision.
                let bytes: Vec<u8> = [0x00, 0x38].into_iter().chain(quants).collect();
                bytes.try_into().unwrap()
            };
            let blocks: Vec<Q8Block> = (0..outputs * inner / 32).map(block).collect();
            let mut w = vec![0.0; outputs * inner];
            widen(&blocks, &mut w);
            assert_eq!(w[..2], [numbers(0) / 2.0, numbers(1) / 2.0]);
            let mut general = vec![0.0; n * outputs];
            let right = View::new(&w, outputs, inner).transposed();
            let left = View::new(&x, n, inner);
            product(1.0, left, right, 0.0, &mut general, outputs);
            let main = Factors {
                x: &x,
                rest: &[],
                w: &blocks,
                inner,
            };
            check_spread(main, Factors::NONE, n, &general);
            let short: Vec<[u8; 2]> = x.iter().map(upper_half).collect();
            check_spread(main.with(&short), Factors::NONE, n, &general);
            if short_products() {
                let mut all = vec![[0; 2]; w.len()];
                shorten(&blocks, &mut all);
                let halves: Vec<[u8; 2]> = w.iter().map(upper_half).collect();
                assert_eq!(all, halves);
            }
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
            let halves: Vec<[u8; 2]> = w.iter().map(upper_half).collect();
            let mut general = vec![0.0; n * outputs];
            for (x, w, inner) in [(&x, &w, inner), (&h, &b, more)] {
                let w = View::new(w, outputs, inner).transposed();
                product(1.0, View::new(x, n, inner), w, 1.0, &mut general, outputs);
            }
            let more = Factors {
                x: &h,
                rest: &[],
                w: &b,
                inner: more,
            };
            let main = Factors {
                x: &x,
                rest: &[],
                w: &halves,
                inner,
            };
            check_spread(main, more, n, &general);
            let short: Vec<[u8; 2]> = x.iter().map(upper_half).collect();
            check_spread(main.with(&short), more, n, &general);

            // Of twice the numbers, half is rounded off.
            let mut twice = vec![0.0; n * outputs];
            for (x, w, inner) in [(&x, &w, inner), (&x, &w, inner), (&h, &b, more.inner)] {
                let w = View::new(w, outputs, inner).transposed();
                product(1.0, View::new(x, n, inner), w, 1.0, &mut twice, outputs);
            }
            let rest = Factors {
                rest: &short,
                ..main.with(&short)
            };
            check_spread(rest, more, n, &twice);

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
