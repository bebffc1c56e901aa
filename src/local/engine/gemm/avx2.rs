//! A few rows in AVX2, in tiles that keep their sums in registers. Written out, because compilers
//! arrange it badly, and plain debug builds not at all.

use std::arch::x86_64::*;

const LANES: usize = 8;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn run<T>(work: impl FnOnce() -> T) -> T {
    work()
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn dots(
    mut x: &[f32],
    inputs: usize,
    w: &[f32],
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
    w: &[f32],
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
    w: &[f32],
    w_stride: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let inputs = x[0].len();
    let whole = inputs / LANES;
    let w: [&[f32]; COLS] = std::array::from_fn(|col| &w[col * w_stride..col * w_stride + inputs]);
    let x_lanes = x.map(|x| &x.as_chunks::<LANES>().0[..whole]);
    let w_lanes = w.map(|w| &w.as_chunks::<LANES>().0[..whole]);
    let mut sums = [[_mm256_setzero_ps(); COLS]; ROWS];
    for index in 0..whole {
        let mut w = [_mm256_setzero_ps(); COLS];
        for (w, lanes) in w.iter_mut().zip(&w_lanes) {
            *w = load(&lanes[index]);
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
            let sum = tail.fold(add_lanes(sum), |sum, (x, w)| x.mul_add(*w, sum));
            out[row * out_stride + col] = sum;
        }
    }
}

/// `out += Σ weights[i] * rows[i]`, one product after the other; only how rows are loaded differs.
macro_rules! add_weighted {
    ($name:ident, $weight:ty, $load:path, $number:path) => {
        #[target_feature(enable = "avx2,fma")]
        pub(super) fn $name(weights: &[f32], rows: &[$weight], stride: usize, out: &mut [f32]) {
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
    };
}

add_weighted!(add_weighted, f32, load, std::convert::identity);
add_weighted!(add_weighted_bf16, [u8; 2], load_bf16, super::bf16);

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(lanes: &[f32; LANES]) -> __m256 {
    // SAFETY: the pointer comes from an array of exactly eight numbers.
    unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_bf16(lanes: &[[u8; 2]; LANES]) -> __m256 {
    // SAFETY: the pointer comes from an array of exactly eight numbers of two bytes.
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
