//! The products of large models, cut into panels of columns that threads share out.
//!
//! How they are cut does not show in the result.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::gemm::{
    Factors, Multiply, Number, Rows, View, Weight, accumulate, project, short_products, shorten,
    vectorised, widen,
};
use super::linear::{Lora, Slot};
use super::matrix::Matrix;
use super::ops::by_rows;
use super::quant::to_bf16;

/// Outputs that one task of a product handles, at most.
const PANEL: usize = 64;

/// Columns that a task of a gradient handles are a multiple of this.
const COLUMNS: usize = 48;

/// Rows that one task of a low-rank product handles.
const ROWS: usize = 48;

/// Up to this many rows weights are widened in registers, again for some rows at a time; with
/// more it pays to widen them once.
const FUSED_ROWS: usize = 32;

/// The same for blocks of Q8_0, which are more work to widen.
const FUSED_BLOCK_ROWS: usize = 4;

/// Weight rows used at a time for few rows: as many as stay in the nearest cache.
const AT_HAND: usize = 8;

/// Weight rows widened at a time on the way back.
const DEPTH: usize = 1024;

/// Products smaller than this are not worth waking another thread.
const PARALLEL_FROM: usize = 1 << 17;

/// A matrix, its low-rank correction, and where its product with the rows goes.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    pub(crate) w: &'a Matrix,
    pub(crate) lora: Option<Lora<'a>>,
    pub(crate) y: &'a mut [f32],
}

/// How near to `f32` the rows of a product stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Within bf16, where that is faster.
    Half,
    /// Within twice its digits, for the head: logits are large, so that what is rounded off them
    /// shows in probabilities.
    Twice,
}

/// `y = x Wᵀ`, with the low-rank correction, for several matrices: their products are shared out
/// together, because waking a thread may take longer than one of them.
pub(crate) fn forward(
    products: Vec<Product<'_>>,
    x: &[f32],
    n: usize,
    rows: Rows,
    rounding: Rounding,
) {
    let weights: usize = products.iter().map(|one| one.w.len()).sum();
    let left = Left::new(x, products.iter().map(|one| one.w), rounding);
    let mut panels = Vec::new();
    for Product { w, lora, y } in products {
        let hidden = lora.map_or_else(Vec::new, |lora| hidden(lora, x, n, rows));
        let more = Arc::new((lora, hidden));
        let (inner, width) = (w.cols(), panel_of(w.rows(), n));
        for (index, out) in cut(y, w.rows(), width).into_iter().enumerate() {
            let (first, more) = (index * width, more.clone());
            panels.push(Panel {
                w,
                more,
                left: &left,
                inner,
                first,
                rows,
                out,
            });
        }
    }
    match n * weights < PARALLEL_FROM {
        true => panels
            .iter_mut()
            .for_each(|panel| panel.run(&mut Widened::default())),
        false => {
            // So that each thread gets a part of every matrix.
            panels.sort_by_key(|panel| panel.first);
            let least = panels.len() / rayon::current_num_threads();
            let least = if n <= FUSED_ROWS { least.max(1) } else { 1 };
            let panels = panels.into_par_iter().with_min_len(least);
            panels.for_each_init(Widened::default, |scratch, mut panel| panel.run(scratch));
        }
    }
}

/// The rows of a product.
struct Left<'a> {
    single: &'a [f32],
    /// The same in bf16, for weights that suit it, or nothing. Products of bf16 are exact and
    /// added up in `f32`; it is the rows that are rounded, and those of samplers and trainers alike,
    /// so that they agree.
    half: Vec<[u8; 2]>,
    /// What was rounded off, in bf16, or nothing.
    rest: Vec<[u8; 2]>,
}

impl<'a> Left<'a> {
    fn new<'b>(
        x: &'a [f32],
        mut matrices: impl Iterator<Item = &'b Matrix>,
        rounding: Rounding,
    ) -> Self {
        let short = short_products() && matrices.any(Matrix::suits_bf16);
        let twice = short && rounding == Rounding::Twice;
        let rest = |x: f32| to_bf16(x - f32::from_bits(u32::from(to_bf16(x)) << 16));
        Self {
            single: x,
            half: if short {
                halves(x, to_bf16)
            } else {
                Vec::new()
            },
            rest: if twice { halves(x, rest) } else { Vec::new() },
        }
    }
}

/// What becomes of numbers in bf16.
fn halves(x: &[f32], number: impl Fn(f32) -> u16 + Sync) -> Vec<[u8; 2]> {
    let mut out = vec![[0; 2]; x.len()];
    by_rows(1, x, &mut out, |x, out| {
        vectorised(|| {
            for (out, x) in out.iter_mut().zip(x) {
                *out = number(*x).to_le_bytes();
            }
        });
    });
    out
}

/// Weights in the form that they are multiplied in: room to be used again.
#[derive(Default)]
struct Widened {
    single: Vec<f32>,
    half: Vec<[u8; 2]>,
}

/// Some outputs of a product.
struct Panel<'a> {
    w: &'a Matrix,
    /// The low-rank correction, and the rows after its first half.
    more: Arc<(Option<Lora<'a>>, Vec<f32>)>,
    left: &'a Left<'a>,
    inner: usize,
    first: usize,
    rows: Rows,
    out: Vec<&'a mut [f32]>,
}

impl Panel<'_> {
    fn run(&mut self, scratch: &mut Widened) {
        let (w, n, inner) = (self.w, self.out.len(), self.inner);
        let outputs = self.first..self.first + self.out[0].len();
        let Left { single, half, rest } = self.left;
        let short = !half.is_empty() && w.suits_bf16();
        let (bf16, q8_0) = (w.as_bf16(), w.as_q8_0());
        let step = if n <= FUSED_ROWS { AT_HAND } else { PANEL };
        for start in outputs.clone().step_by(step) {
            let some = start..outputs.end.min(start + step);
            match (bf16, q8_0) {
                (Some(data), _) if short => {
                    self.multiply([half, rest], rows_in(data, &some, inner), some);
                }
                (_, Some(data)) if short && n <= FUSED_BLOCK_ROWS => {
                    self.multiply([half, rest], rows_in(data, &some, inner), some);
                }
                (_, Some(data)) if short => {
                    scratch.half.resize(some.len() * inner, [0; 2]);
                    shorten(rows_in(data, &some, inner), &mut scratch.half);
                    self.multiply([half, rest], &scratch.half, some);
                }
                (Some(data), _) if n <= FUSED_ROWS => {
                    self.multiply([single, &[]], rows_in(data, &some, inner), some);
                }
                (_, Some(data)) if n <= FUSED_BLOCK_ROWS => {
                    self.multiply([single, &[]], rows_in(data, &some, inner), some);
                }
                _ => {
                    let widened = block(w, some.clone(), 0..inner, &mut scratch.single);
                    self.multiply([single, &[]], widened, some);
                }
            }
        }
    }

    /// The products with some of its weights.
    fn multiply<X: Weight + Number, W: Weight + Multiply<X>>(
        &mut self,
        [x, rest]: [&[X]; 2],
        w: &[W],
        outputs: Range<usize>,
    ) {
        let inner = self.inner;
        let more = match &*self.more {
            (None, _) => Factors::NONE,
            (Some(lora), hidden) => Factors {
                x: hidden,
                rest: &[],
                w: &lora.b[outputs.start * lora.rank..outputs.end * lora.rank],
                inner: lora.rank,
            },
        };
        let place = outputs.start - self.first;
        project(
            Factors { x, rest, w, inner },
            more,
            self.rows,
            place,
            &mut self.out,
        );
    }
}

/// Adds the gradients of [`forward`] to `slot` and `dy W` to `dx`, if wanted.
pub(crate) fn backward(
    w: &Matrix,
    lora: Option<Lora<'_>>,
    x: &[f32],
    dy: &[f32],
    n: usize,
    dx: Option<&mut [f32]>,
    slot: &mut Slot,
) {
    let (inputs, outputs) = (w.cols(), w.rows());
    let lora = lora.map(|lora| {
        let mut back = vec![0.0; n * lora.rank];
        let rows = dy
            .par_chunks(ROWS * outputs)
            .zip(back.par_chunks_mut(ROWS * lora.rank));
        rows.for_each(|(dy, back)| {
            let dy = View::new(dy, dy.len() / outputs, outputs);
            accumulate(
                lora.scale,
                dy,
                lora.b,
                lora.rank,
                &mut rows_of(back, lora.rank),
            );
        });
        (lora, back)
    });
    if let (Slot::Lora { a, b }, Some((lora, back))) = (slot, &lora) {
        lora_gradients(*lora, x, dy, n, back, a, b);
    }
    let Some(dx) = dx else {
        return;
    };
    by_columns(dx, inputs, |cols, out| {
        let dy_view = View::new(dy, n, outputs);
        if let Some(data) = w.as_bf16() {
            accumulate(1.0, dy_view, &data[cols.start..], inputs, out);
        } else if let Some(data) = w.as_f32() {
            accumulate(1.0, dy_view, &data[cols.start..], inputs, out);
        } else {
            let mut scratch = Vec::new();
            for start in (0..outputs).step_by(DEPTH) {
                let rows = start..outputs.min(start + DEPTH);
                let dy = View::strided(&dy[start..], n, rows.len(), outputs);
                let block = block(w, rows, cols.clone(), &mut scratch);
                accumulate(1.0, dy, block, cols.len(), out);
            }
        }
        if let Some((lora, back)) = &lora {
            let back = View::new(back, n, lora.rank);
            accumulate(1.0, back, &lora.a[cols.start..], inputs, out);
        }
    });
}

/// Adds the gradients of `A` and `B`; `back` is the gradient of `x Aᵀ`.
fn lora_gradients(
    lora: Lora<'_>,
    x: &[f32],
    dy: &[f32],
    n: usize,
    back: &[f32],
    a: &mut [f32],
    b: &mut [f32],
) {
    let (rank, inputs, outputs) = (lora.rank, a.len() / lora.rank, b.len() / lora.rank);
    by_columns(a, inputs, |cols, out| {
        let back = View::new(back, n, rank).transposed();
        accumulate(1.0, back, &x[cols.start..], inputs, out);
    });
    let hidden = hidden(lora, &x[..n * inputs], n, Rows::Together);
    let some = columns_of(outputs);
    let tasks = b.par_chunks_mut(some * rank).enumerate();
    // The other way round, so that what came back is read along its rows.
    tasks.for_each(|(index, b)| {
        let width = b.len() / rank;
        let mut turned = vec![0.0; b.len()];
        let hidden = View::new(&hidden, n, rank).transposed();
        let dy = &dy[index * some..];
        accumulate(1.0, hidden, dy, outputs, &mut rows_of(&mut turned, width));
        for (index, turned) in turned.chunks_exact(width).enumerate() {
            let b = b[index..].iter_mut().step_by(rank);
            b.zip(turned).for_each(|(b, value)| *b += value);
        }
    });
}

/// `x Aᵀ`, scaled.
fn hidden(lora: Lora<'_>, x: &[f32], n: usize, rows: Rows) -> Vec<f32> {
    let (rank, inner) = (lora.rank, lora.a.len() / lora.rank);
    let mut out = vec![0.0; n * rank];
    let work = |(x, out): (&[f32], &mut [f32])| {
        let w = lora.a;
        let mut rows_out = rows_of(out, rank);
        project(
            Factors {
                x,
                rest: &[],
                w,
                inner,
            },
            Factors::NONE,
            rows,
            0,
            &mut rows_out,
        );
        out.iter_mut().for_each(|value| *value *= lora.scale);
    };
    match n * lora.a.len() < PARALLEL_FROM {
        true => work((x, &mut out)),
        false => {
            let out = out.par_chunks_mut(ROWS * rank);
            x.par_chunks(ROWS * inner).zip(out).for_each(work);
        }
    }
    out
}

/// The rows of a dense matrix.
fn rows_of(matrix: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    matrix.chunks_exact_mut(width).collect()
}

/// Cuts a dense matrix into panels of at most `some` columns, each a list of pieces of rows.
fn cut(matrix: &mut [f32], width: usize, some: usize) -> Vec<Vec<&mut [f32]>> {
    let rows = matrix.len() / width;
    let panel = || Vec::with_capacity(rows);
    let mut panels: Vec<Vec<&mut [f32]>> = (0..width.div_ceil(some)).map(|_| panel()).collect();
    for row in matrix.chunks_exact_mut(width) {
        for (panel, piece) in panels.iter_mut().zip(row.chunks_mut(some)) {
            panel.push(piece);
        }
    }
    panels
}

/// Runs `work` over some columns of a matrix at a time.
fn by_columns(
    matrix: &mut [f32],
    width: usize,
    work: impl Fn(Range<usize>, &mut [&mut [f32]]) + Sync,
) {
    let some = columns_of(width);
    let tasks = cut(matrix, width, some);
    tasks
        .into_par_iter()
        .enumerate()
        .for_each(|(index, mut out)| {
            let first = index * some;
            work(first..first + out[0].len(), &mut out);
        });
}

/// Outputs for one task, so that every thread gets as many: one task each for few rows, whose time
/// goes into fetching weights, else so few outputs that their weights stay at hand.
fn panel_of(outputs: usize, n: usize) -> usize {
    let threads = rayon::current_num_threads();
    if n <= FUSED_ROWS {
        return outputs.div_ceil(threads).next_multiple_of(8);
    }
    let least = outputs.div_ceil(PANEL).next_multiple_of(threads);
    let even = (least..=2 * least)
        .step_by(threads)
        .find(|tasks| outputs.is_multiple_of(4 * tasks));
    outputs.div_ceil(even.unwrap_or(least)).next_multiple_of(4)
}

/// Columns for one task, so that threads that are done early can take another.
fn columns_of(width: usize) -> usize {
    let tasks = 2 * rayon::current_num_threads();
    width.div_ceil(tasks).next_multiple_of(COLUMNS)
}

/// Some rows of a matrix.
fn rows_in<'a, W: Weight>(data: &'a [W], rows: &Range<usize>, inner: usize) -> &'a [W] {
    let row = inner / W::COUNT;
    &data[rows.start * row..rows.end * row]
}

/// A dense block of weights, borrowed where the storage allows and widened otherwise.
fn block<'a>(
    w: &'a Matrix,
    rows: Range<usize>,
    cols: Range<usize>,
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    if let (Some(data), true) = (w.as_f32(), cols.len() == w.cols()) {
        return &data[rows.start * w.cols()..rows.end * w.cols()];
    }
    scratch.resize(rows.len() * cols.len(), 0.0);
    match w.as_q8_0().filter(|_| cols.len() == w.cols()) {
        Some(data) => widen(rows_in(data, &rows, w.cols()), scratch),
        None => w.read_block(rows, cols, scratch),
    }
    scratch
}
