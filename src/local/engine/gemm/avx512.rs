//! The products of large models in AVX-512, in tiles that keep their sums in registers.
//!
//! The order in which an element is summed depends on the inner dimension alone, so rows and
//! columns may be cut in any way without changing a bit of the result.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{DEPTH, Factors, View, Weight};
use crate::local::engine::quant::Q8Block;

const LANES: usize = 16;

/// Most vectors side by side in a tile of [`accumulate`]: with [`DEPTH`] rows of them packed at a time
/// they stay in the second cache.
const MOST_VECTORS: usize = 4;

pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("f16c")
}

/// Whether it also multiplies numbers in bf16.
pub(super) fn short_products() -> bool {
    available() && is_x86_feature_detected!("avx512bf16")
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn run<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// How weights of some type are loaded.
pub(crate) trait Load: Copy {
    /// Whether they are mostly fetched from memory, not from a cache.
    const FAR: bool;

    /// The sixteen weights of a row from `at` on, widened; those that the mask leaves out are 0.
    ///
    /// # Safety
    ///
    /// The processor has AVX-512, and those that the mask asks for can be read. `at` is a multiple
    /// of sixteen where a type has several weights.
    unsafe fn load(row: *const Self, at: usize, mask: u16) -> __m512;
}

impl Load for f32 {
    const FAR: bool = false;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn load(row: *const Self, at: usize, mask: u16) -> __m512 {
        // SAFETY: as the caller promises.
        unsafe { _mm512_maskz_loadu_ps(mask, row.add(at)) }
    }
}

/// In bf16, the upper half of an `f32`.
impl Load for [u8; 2] {
    const FAR: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn load(row: *const Self, at: usize, mask: u16) -> __m512 {
        // SAFETY: as the caller promises.
        let bits = unsafe { _mm256_maskz_loadu_epi16(mask, row.add(at).cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

/// Rows are whole blocks, so there is nothing to leave out.
impl Load for Q8Block {
    const FAR: bool = true;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn load(row: *const Self, at: usize, _: u16) -> __m512 {
        // SAFETY: as the caller promises, the block can be read; its bytes from the third on are
        // two times sixteen weights, of which `at` says which.
        let (scale, quants) = unsafe {
            let block = row.add(at / Self::COUNT).cast::<u8>();
            let scale = block.cast::<u16>().read_unaligned();
            let quants = _mm_loadu_si128(block.add(2 + at % Self::COUNT).cast());
            (scale, quants)
        };
        let scale = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(scale)));
        let quants = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(quants));
        _mm512_mul_ps(quants, _mm512_broadcastss_ps(scale))
    }
}

/// See [`super::widen`], which has checked all sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn widen<W: Weight>(all: &[W], out: &mut [f32]) {
    for (index, out) in out.chunks_mut(LANES).enumerate() {
        let mask = mask(out.len());
        // SAFETY: there are as many weights as places, and the mask ends with them.
        unsafe {
            let weights = W::load(all.as_ptr(), index * LANES, mask);
            _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, weights);
        }
    }
}

/// The lanes of `count` numbers, at most all of them.
fn mask(count: usize) -> u16 {
    ((1u32 << count.min(LANES)) - 1) as u16
}

/// Numbers that are multiplied with each other, some at a time.
pub(crate) trait Number: Copy {
    /// How many one step takes.
    const STEP: usize;
    /// Whether that takes only what every processor with AVX-512 has.
    const COMMON: bool;
    type Vector: Copy;

    /// The next numbers; what is beyond `left` is 0.
    ///
    /// # Safety
    ///
    /// The processor has what it takes, and there are `left` numbers.
    unsafe fn vector(from: *const Self, left: usize) -> Self::Vector;

    /// Adds the products, in lanes.
    ///
    /// # Safety
    ///
    /// The processor has what it takes.
    unsafe fn add(sum: __m512, x: Self::Vector, w: Self::Vector) -> __m512;
}

impl Number for f32 {
    const STEP: usize = LANES;
    const COMMON: bool = true;
    type Vector = __m512;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn vector(from: *const Self, left: usize) -> __m512 {
        // SAFETY: as the caller promises; the mask ends with the numbers.
        unsafe { _mm512_maskz_loadu_ps(mask(left), from) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn add(sum: __m512, x: __m512, w: __m512) -> __m512 {
        _mm512_fmadd_ps(x, w, sum)
    }
}

/// In bf16: products are exact, and added up as `f32`.
impl Number for [u8; 2] {
    const STEP: usize = 2 * LANES;
    const COMMON: bool = false;
    type Vector = __m512bh;

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn vector(from: *const Self, left: usize) -> __m512bh {
        let mask = ((1u64 << left.min(Self::STEP)) - 1) as u32;
        // SAFETY: as the caller promises, since the mask ends with the numbers; both types are 32 of
        // sixteen bits.
        unsafe {
            let bits = _mm512_maskz_loadu_epi16(mask, from.cast());
            std::mem::transmute::<__m512i, __m512bh>(bits)
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add(sum: __m512, x: __m512bh, w: __m512bh) -> __m512 {
        _mm512_dpbf16_ps(sum, x, w)
    }
}

/// Weights that can be multiplied with numbers of type `X`.
pub(crate) trait Multiply<X: Number>: Copy {
    /// The next weights of a row from `at` on, a multiple of the step; what is beyond `left` is 0.
    ///
    /// # Safety
    ///
    /// The processor has what it takes, and the row has `left` weights more.
    unsafe fn weights(row: *const Self, at: usize, left: usize) -> X::Vector;
}

/// Weights are widened.
impl<W: Load> Multiply<f32> for W {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn weights(row: *const Self, at: usize, left: usize) -> __m512 {
        // SAFETY: as the caller promises; the mask ends with the row.
        unsafe { Self::load(row, at, mask(left)) }
    }
}

impl Multiply<[u8; 2]> for [u8; 2] {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn weights(row: *const Self, at: usize, left: usize) -> __m512bh {
        // SAFETY: as the caller promises.
        unsafe { Self::vector(row.add(at), left) }
    }
}

/// A block at a time, widened, and rounded to bf16: that is nearer than a block is to what it was
/// made of.
impl Multiply<[u8; 2]> for Q8Block {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512bf16")]
    unsafe fn weights(row: *const Self, at: usize, _: usize) -> __m512bh {
        // SAFETY: as the caller promises; rows are whole blocks.
        unsafe {
            let low = Self::load(row, at, u16::MAX);
            let high = Self::load(row, at + LANES, u16::MAX);
            _mm512_cvtne2ps_pbh(high, low)
        }
    }
}

/// See [`super::shorten`], which has checked all sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512bf16")]
pub(super) fn shorten(all: &[Q8Block], out: &mut [[u8; 2]]) {
    for (block, out) in all.iter().zip(out.as_chunks_mut::<{ 2 * LANES }>().0) {
        // SAFETY: a block has 32 weights, as many as there are places of sixteen bits.
        unsafe {
            let weights = <Q8Block as Multiply<[u8; 2]>>::weights(block, 0, 2 * LANES);
            let bits = std::mem::transmute::<__m512bh, __m512i>(weights);
            _mm512_storeu_epi16(out.as_mut_ptr().cast(), bits);
        }
    }
}

/// See [`super::project`], which has checked all sizes and asked for [`available`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
pub(super) fn project<X: Weight + Number, W: Weight + Multiply<X>>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    first: usize,
    out: &mut [&mut [f32]],
) {
    rows(main, more, first, out);
}

/// The same with [`short_products`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c,avx512bf16")]
pub(super) fn project_short<X: Weight + Number, W: Weight + Multiply<X>>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    first: usize,
    out: &mut [&mut [f32]],
) {
    rows(main, more, first, out);
}

/// All rows, some at a time. This and what it calls is always inlined, into functions that say what
/// the processor has.
#[inline(always)]
fn rows<X: Weight + Number, W: Weight + Multiply<X>>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    first: usize,
    mut out: &mut [&mut [f32]],
) {
    let mut done = 0;
    while !out.is_empty() {
        let count = match out.len() {
            6.. => 6,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        let (now, later) = out.split_at_mut(count);
        match count {
            6 => columns::<X, W, 6, 4>(main, more, done, first, now),
            4 => columns::<X, W, 4, 4>(main, more, done, first, now),
            2 => columns::<X, W, 2, 8>(main, more, done, first, now),
            _ => columns::<X, W, 1, 4>(main, more, done, first, now),
        }
        done += count;
        out = later;
    }
}

/// `ROWS` rows from `row` on against all columns, `COLS` at a time.
#[inline(always)]
fn columns<X: Weight + Number, W: Weight + Multiply<X>, const ROWS: usize, const COLS: usize>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    row: usize,
    first: usize,
    out: &mut [&mut [f32]],
) {
    let count = main.columns();
    let mut col = 0;
    while col + COLS <= count {
        tile::<X, W, ROWS, COLS>(main, more, row, col, first + col, out);
        col += COLS;
    }
    while col < count {
        tile::<X, W, ROWS, 1>(main, more, row, col, first + col, out);
        col += 1;
    }
}

#[inline(always)]
fn tile<X: Weight + Number, W: Weight + Multiply<X>, const ROWS: usize, const COLS: usize>(
    main: Factors<'_, X, W>,
    more: Factors<'_, f32, f32>,
    row: usize,
    col: usize,
    place: usize,
    out: &mut [&mut [f32]],
) {
    // SAFETY: the processor has AVX-512, or nothing here would run; masks have as many lanes as
    // there are places.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); COLS]; ROWS];
        add_products(&mut sums, main, row, col);
        if !main.rest.is_empty() {
            let rest = Factors {
                x: main.rest,
                ..main
            };
            add_products(&mut sums, rest, row, col);
        }
        if more.inner > 0 {
            add_products(&mut sums, more, row, col);
        }
        for (out, sums) in out.iter_mut().zip(&sums) {
            let out = &mut out[place..place + COLS];
            for (out, sums) in out.chunks_mut(4).zip(sums.chunks(4)) {
                let mut four = [_mm512_setzero_ps(); 4];
                four[..sums.len()].copy_from_slice(sums);
                let total = add_lanes(four);
                _mm_mask_storeu_ps(out.as_mut_ptr(), mask(out.len()) as u8, total);
            }
        }
    }
}

#[inline(always)]
fn add_products<
    X: Weight + Number,
    W: Weight + Multiply<X>,
    const ROWS: usize,
    const COLS: usize,
>(
    sums: &mut [[__m512; COLS]; ROWS],
    factors: Factors<'_, X, W>,
    row: usize,
    col: usize,
) {
    let inner = factors.inner;
    let blocks = inner / W::COUNT;
    let x = &factors.x[row * inner..(row + ROWS) * inner];
    let w = &factors.w[col * blocks..(col + COLS) * blocks];
    let whole = inner - inner % X::STEP;
    for at in (0..whole).step_by(X::STEP) {
        add_step(sums, x, w, inner, at, X::STEP);
    }
    if whole < inner {
        add_step(sums, x, w, inner, whole, inner - whole);
    }
}

/// The products of one step from `at` on, of which `left` numbers are left.
#[inline(always)]
fn add_step<X: Weight + Number, W: Weight + Multiply<X>, const ROWS: usize, const COLS: usize>(
    sums: &mut [[__m512; COLS]; ROWS],
    x: &[X],
    w: &[W],
    inner: usize,
    at: usize,
    left: usize,
) {
    let blocks = inner / W::COUNT;
    debug_assert!(x.len() == ROWS * inner && w.len() == COLS * blocks);
    // SAFETY: the processor has what it takes, or nothing here would run; the slices have all
    // `ROWS` and `COLS` of their rows, and those have `left` numbers more.
    unsafe {
        let weights: [X::Vector; COLS] = std::array::from_fn(|col| {
            let row = w.as_ptr().add(col * blocks);
            if W::FAR && COLS > 1 {
                // Rows are too short for the processor to see that the next tile's come next; one
                // row after the other it sees. An address beyond the last is never touched.
                let next = row.wrapping_add(COLS * blocks + at / W::COUNT);
                _mm_prefetch::<_MM_HINT_T0>(next.cast());
            }
            W::weights(row, at, left)
        });
        for (row, sums) in sums.iter_mut().enumerate() {
            let x = X::vector(x.as_ptr().add(row * inner + at), left);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = X::add(*sum, x, weights);
            }
        }
    }
}

/// The sums of four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_lanes(sums: [__m512; 4]) -> __m128 {
    let [a, b, c, d] = sums.map(|sum| {
        _mm256_add_ps(
            _mm512_castps512_ps256(sum),
            _mm512_extractf32x8_ps::<1>(sum),
        )
    });
    let all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all))
}

/// See [`super::add_rows`], which has checked all sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn add_rows<W: Load>(
    weights: View<'_>,
    rows: &[W],
    stride: usize,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let mut done = 0;
    while done < weights.rows {
        let some = View {
            data: &weights.data[done * weights.row_stride..],
            ..weights
        };
        let out = &mut out[done * out_stride..];
        done += match weights.rows - done {
            4.. => add_some::<W, 4>(some, rows, stride, width, out, out_stride),
            2.. => add_some::<W, 2>(some, rows, stride, width, out, out_stride),
            _ => add_some::<W, 1>(some, rows, stride, width, out, out_stride),
        };
    }
}

/// The first `ROWS` rows of [`add_rows`], two vectors at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn add_some<W: Load, const ROWS: usize>(
    weights: View<'_>,
    rows: &[W],
    stride: usize,
    width: usize,
    out: &mut [f32],
    out_stride: usize,
) -> usize {
    for start in (0..width).step_by(2 * LANES) {
        let left = width - start;
        let masks = [mask(left), mask(left.saturating_sub(LANES))];
        // SAFETY: every place is one of `ROWS` rows of the result, of the columns of the weights
        // and of the right side's rows, all of which are inside their slices; masks end with the
        // width.
        unsafe {
            let place = |row: usize, vector: usize| row * out_stride + start + vector * LANES;
            let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
            for (row, sums) in sums.iter_mut().enumerate() {
                for (vector, sum) in sums.iter_mut().enumerate() {
                    let out = out.as_ptr().wrapping_add(place(row, vector));
                    *sum = _mm512_maskz_loadu_ps(masks[vector], out);
                }
            }
            for index in 0..weights.cols {
                let from = rows.as_ptr().add(index * stride);
                let values = [
                    W::load(from, start, masks[0]),
                    W::load(from, width.min(start + LANES), masks[1]),
                ];
                for (row, sums) in sums.iter_mut().enumerate() {
                    let at = row * weights.row_stride + index * weights.col_stride;
                    let weight = _mm512_set1_ps(*weights.data.as_ptr().add(at));
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = _mm512_fmadd_ps(weight, values, *sum);
                    }
                }
            }
            for (row, sums) in sums.into_iter().enumerate() {
                for (vector, sum) in sums.into_iter().enumerate() {
                    let out = out.as_mut_ptr().wrapping_add(place(row, vector));
                    _mm512_mask_storeu_ps(out, masks[vector], sum);
                }
            }
        }
    }
    ROWS
}

/// See [`super::accumulate`], which has checked all sizes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn accumulate<W: Load>(
    alpha: f32,
    a: View<'_>,
    b: &[W],
    stride: usize,
    out: &mut [&mut [f32]],
) {
    let width = out[0].len();
    let mut packed = [[0.0; LANES]; MOST_VECTORS * DEPTH];
    for start in (0..a.cols).step_by(DEPTH) {
        let depth = DEPTH.min(a.cols - start);
        let left = View {
            data: &a.data[start * a.col_stride..],
            cols: depth,
            ..a
        };
        let mut col = 0;
        while col < width {
            let right = &b[start * stride + col..];
            let vectors = vectors_of(width - col);
            let place = col..width.min(col + vectors * LANES);
            let packed = &mut packed[..vectors * depth];
            col = place.end;
            match vectors {
                1 => stripe::<W, 1, 12>(alpha, left, right, stride, packed, place, out),
                2 => stripe::<W, 2, 12>(alpha, left, right, stride, packed, place, out),
                3 => stripe::<W, 3, 8>(alpha, left, right, stride, packed, place, out),
                _ => stripe::<W, 4, 6>(alpha, left, right, stride, packed, place, out),
            }
        }
    }
}

/// How many vectors side by side come next, so that few lanes are idle at the end.
fn vectors_of(width: usize) -> usize {
    match width.div_ceil(LANES) {
        few @ ..=MOST_VECTORS => few,
        7 | 8 => 4,
        _ => 3,
    }
}

/// Some columns of [`accumulate`], `ROWS` rows at a time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn stripe<W: Load, const VECTORS: usize, const ROWS: usize>(
    alpha: f32,
    a: View<'_>,
    b: &[W],
    stride: usize,
    packed: &mut [[f32; LANES]],
    place: Range<usize>,
    out: &mut [&mut [f32]],
) {
    pack::<W, VECTORS>(b, stride, place.len(), packed);
    let (mut rows, mut done) = (out, 0);
    while !rows.is_empty() {
        let count = match rows.len() {
            many if many >= ROWS => ROWS,
            4.. => 4,
            _ => 1,
        };
        let (now, later) = rows.split_at_mut(count);
        let a = View {
            data: &a.data[done * a.row_stride..],
            ..a
        };
        match count {
            1 => outer::<VECTORS, 1>(alpha, a, packed, place.clone(), now),
            4 => outer::<VECTORS, 4>(alpha, a, packed, place.clone(), now),
            _ => outer::<VECTORS, ROWS>(alpha, a, packed, place.clone(), now),
        }
        done += count;
        rows = later;
    }
}

/// Copies `width` columns of rows that start `stride` apart, widened; what is missing becomes 0.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack<W: Load, const VECTORS: usize>(
    b: &[W],
    stride: usize,
    width: usize,
    packed: &mut [[f32; LANES]],
) {
    for (index, packed) in packed.chunks_exact_mut(VECTORS).enumerate() {
        let row = &b[index * stride..index * stride + width];
        for (vector, packed) in packed.iter_mut().enumerate() {
            let start = (vector * LANES).min(width);
            // SAFETY: the mask ends with the row, and the place has exactly sixteen numbers.
            unsafe {
                let weights = W::load(row.as_ptr(), start, mask(width - start));
                _mm512_storeu_ps(packed.as_mut_ptr(), weights);
            }
        }
    }
}

/// Adds the products of `ROWS` rows of `a` with packed rows at a place in the result.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn outer<const VECTORS: usize, const ROWS: usize>(
    alpha: f32,
    a: View<'_>,
    packed: &[[f32; LANES]],
    place: Range<usize>,
    out: &mut [&mut [f32]],
) {
    let last = (ROWS - 1) * a.row_stride + (packed.len() / VECTORS - 1) * a.col_stride;
    assert!(last < a.data.len(), "left matrix exceeds its slice");
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    for (index, packed) in packed.chunks_exact(VECTORS).enumerate() {
        let mut vectors = [_mm512_setzero_ps(); VECTORS];
        for (vector, packed) in vectors.iter_mut().zip(packed) {
            // SAFETY: the pointer comes from an array of exactly sixteen numbers.
            *vector = unsafe { _mm512_loadu_ps(packed.as_ptr()) };
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: both numbers are at most those of the assert above.
            let a = unsafe {
                *a.data
                    .as_ptr()
                    .add(row * a.row_stride + index * a.col_stride)
            };
            let a = _mm512_set1_ps(a);
            for (sum, vector) in sums.iter_mut().zip(vectors) {
                *sum = _mm512_fmadd_ps(a, vector, *sum);
            }
        }
    }
    let alpha = _mm512_set1_ps(alpha);
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out[place.clone()].chunks_mut(LANES).zip(sums) {
            let mask = mask(out.len());
            // SAFETY: the mask has as many lanes as there are places.
            unsafe {
                let total = _mm512_fmadd_ps(alpha, sum, f32::load(out.as_ptr(), 0, mask));
                _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, total);
            }
        }
    }
}
