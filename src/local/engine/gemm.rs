//! Matrix products: a checked wrapper around `matrixmultiply`, and what beats it for few rows.
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
    if wide::available() {
        // SAFETY: the processor has AVX2 and FMA, as was just asked.
        return unsafe { wide::single::dots(x, inputs, w, w_stride, out, out_stride) };
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
    if wide::available() {
        // SAFETY: the processor has AVX2 and FMA, as was just asked.
        return unsafe { wide::half::dots(x, inputs, w, w_stride, out, out_stride) };
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
    if wide::available() {
        // SAFETY: as in `dots`.
        return unsafe { wide::single::add_weighted(weights, rows, stride, out) };
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
    if wide::available() {
        // SAFETY: as in `dots`.
        return unsafe { wide::half::add_weighted(weights, rows, stride, out) };
    }
    for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
        for (out, value) in out.iter_mut().zip(row) {
            *out += weight * bf16(*value);
        }
    }
}

/// The inner product, summed in sixteen lanes so that it vectorises.
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

/// The same in AVX2, in tiles that keep their sums in registers. Written out, because compilers
/// arrange it badly, and plain debug builds not at all.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    const LANES: usize = 8;

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    /// The products of one kind of weight; only how it is loaded differs.
    macro_rules! kernel {
        ($name:ident, $weight:ty, $load:path, $number:expr) => {
            pub(super) mod $name {
                use super::*;

                #[target_feature(enable = "avx2,fma")]
                pub(in super::super) fn dots(
                    mut x: &[f32],
                    inputs: usize,
                    w: &[$weight],
                    w_stride: usize,
                    mut out: &mut [f32],
                    out_stride: usize,
                ) {
                    while !x.is_empty() {
                        let left = x.len() / inputs;
                        let rows = if left >= 4 { 4 } else { left.min(2) };
                        let (now, later) = x.split_at(rows * inputs);
                        match rows {
                            4 => columns::<4, 2>(now, inputs, w, w_stride, out, out_stride),
                            2 => columns::<2, 4>(now, inputs, w, w_stride, out, out_stride),
                            _ => columns::<1, 8>(now, inputs, w, w_stride, out, out_stride),
                        }
                        x = later;
                        out = out.get_mut(rows * out_stride..).unwrap_or_default();
                    }
                }

                /// `ROWS` rows of `x` against all of `w`, `COLS` at a time.
                #[inline]
                #[target_feature(enable = "avx2,fma")]
                fn columns<const ROWS: usize, const COLS: usize>(
                    x: &[f32],
                    inputs: usize,
                    w: &[$weight],
                    w_stride: usize,
                    out: &mut [f32],
                    out_stride: usize,
                ) {
                    let x = std::array::from_fn(|row| &x[row * inputs..(row + 1) * inputs]);
                    let count = w.len().div_ceil(w_stride);
                    let mut done = 0;
                    while done + COLS <= count {
                        tile::<ROWS, COLS>(
                            x,
                            &w[done * w_stride..],
                            w_stride,
                            &mut out[done..],
                            out_stride,
                        );
                        done += COLS;
                    }
                    while done < count {
                        tile::<ROWS, 1>(
                            x,
                            &w[done * w_stride..],
                            w_stride,
                            &mut out[done..],
                            out_stride,
                        );
                        done += 1;
                    }
                }

                #[inline]
                #[target_feature(enable = "avx2,fma")]
                fn tile<const ROWS: usize, const COLS: usize>(
                    x: [&[f32]; ROWS],
                    w: &[$weight],
                    w_stride: usize,
                    out: &mut [f32],
                    out_stride: usize,
                ) {
                    let inputs = x[0].len();
                    let whole = inputs / LANES;
                    let w: [&[$weight]; COLS] =
                        std::array::from_fn(|col| &w[col * w_stride..col * w_stride + inputs]);
                    let x_lanes = x.map(|x| &x.as_chunks::<LANES>().0[..whole]);
                    let w_lanes = w.map(|w| &w.as_chunks::<LANES>().0[..whole]);
                    let mut sums = [[_mm256_setzero_ps(); COLS]; ROWS];
                    for index in 0..whole {
                        let mut w = [_mm256_setzero_ps(); COLS];
                        for (w, lanes) in w.iter_mut().zip(&w_lanes) {
                            *w = $load(&lanes[index]);
                        }
                        for (sums, lanes) in sums.iter_mut().zip(&x_lanes) {
                            let x = load(&lanes[index]);
                            for (sum, w) in sums.iter_mut().zip(w) {
                                *sum = _mm256_fmadd_ps(x, w, *sum);
                            }
                        }
                    }
                    for (row, (x, sums)) in x.into_iter().zip(sums).enumerate() {
                        for (col, (w, sum)) in w.into_iter().zip(sums).enumerate() {
                            let tail = x[whole * LANES..].iter().zip(&w[whole * LANES..]);
                            let sum = tail
                                .fold(add_lanes(sum), |sum, (x, w)| x.mul_add($number(*w), sum));
                            out[row * out_stride + col] = sum;
                        }
                    }
                }

                #[target_feature(enable = "avx2,fma")]
                pub(in super::super) fn add_weighted(
                    weights: &[f32],
                    rows: &[$weight],
                    stride: usize,
                    out: &mut [f32],
                ) {
                    const BLOCK: usize = 4 * LANES;
                    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                        let (start, width) = (index * BLOCK, out.len());
                        if width < BLOCK {
                            for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
                                for (out, value) in out.iter_mut().zip(&row[start..]) {
                                    *out = weight.mul_add($number(*value), *out);
                                }
                            }
                            continue;
                        }
                        let mut sums = [_mm256_setzero_ps(); 4];
                        for (sum, out) in sums.iter_mut().zip(out.as_chunks::<LANES>().0) {
                            *sum = load(out);
                        }
                        for (weight, row) in weights.iter().zip(rows.chunks(stride)) {
                            let weight = _mm256_set1_ps(*weight);
                            let row = row[start..start + BLOCK].as_chunks::<LANES>().0;
                            for (sum, row) in sums.iter_mut().zip(row) {
                                *sum = _mm256_fmadd_ps(weight, $load(row), *sum);
                            }
                        }
                        for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
                            // SAFETY: the pointer comes from an array of exactly eight numbers.
                            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sum) };
                        }
                    }
                }
            }
        };
    }

    kernel!(single, f32, load, |w: f32| w);
    kernel!(half, u16, load_bf16, super::super::bf16);

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn load(lanes: &[f32; LANES]) -> __m256 {
        // SAFETY: the pointer comes from an array of exactly eight numbers.
        unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn load_bf16(lanes: &[u16; LANES]) -> __m256 {
        // SAFETY: the pointer comes from an array of exactly eight numbers.
        let bits = unsafe { _mm_loadu_si128(lanes.as_ptr().cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn add_lanes(lanes: __m256) -> f32 {
        let four = _mm_add_ps(
            _mm256_castps256_ps128(lanes),
            _mm256_extractf128_ps::<1>(lanes),
        );
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
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
}
