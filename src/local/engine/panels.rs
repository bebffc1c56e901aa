//! The products of large models, cut into panels of columns that threads share out.
//!
//! How they are cut does not show in the result.

use std::ops::Range;

use rayon::prelude::*;

use super::gemm::{Factors, Rows, View, accumulate, project};
use super::linear::{Lora, Slot};
use super::matrix::Matrix;

/// Outputs that one task of a product handles.
const PANEL: usize = 64;

/// Columns that a task of a gradient handles are a multiple of this.
const COLUMNS: usize = 48;

/// Rows that one task of a low-rank product handles.
const ROWS: usize = 48;

/// Up to this many rows bf16 weights are widened in registers, again for some rows at a time; with
/// more it pays to widen them once.
const FUSED_ROWS: usize = 32;

/// Weight rows widened at a time for few rows: as many as stay in the nearest cache.
const AT_HAND: usize = 8;

/// Weight rows widened at a time on the way back.
const DEPTH: usize = 1024;

/// Products smaller than this are not worth waking another thread.
const PARALLEL_FROM: usize = 1 << 19;

/// `y = x Wᵀ`, with the low-rank correction.
pub(crate) fn forward(
    w: &Matrix,
    lora: Option<Lora<'_>>,
    x: &[f32],
    n: usize,
    rows: Rows,
    y: &mut [f32],
) {
    let hidden = lora.map_or_else(Vec::new, |lora| hidden(lora, x, n, rows));
    let panel = |scratch: &mut Vec<f32>, (index, mut out): (usize, Vec<&mut [f32]>)| {
        let first = index * PANEL;
        let outputs = first..first + out[0].len();
        let more = |outputs: &Range<usize>| match lora {
            None => Factors::NONE,
            Some(lora) => Factors {
                x: &hidden,
                w: &lora.b[outputs.start * lora.rank..outputs.end * lora.rank],
                inner: lora.rank,
            },
        };
        let inner = w.cols();
        if let (Some(data), true) = (w.as_bf16(), n <= FUSED_ROWS) {
            let w = &data[outputs.start * inner..outputs.end * inner];
            return project(Factors { x, w, inner }, more(&outputs), rows, 0, &mut out);
        }
        let step = if n <= FUSED_ROWS { AT_HAND } else { PANEL };
        for start in outputs.clone().step_by(step) {
            let some = start..outputs.end.min(start + step);
            let w = block(w, some.clone(), 0..inner, scratch);
            let main = Factors { x, w, inner };
            project(main, more(&some), rows, start - first, &mut out);
        }
    };
    let panels = cut(y, w.rows(), PANEL).into_iter().enumerate();
    match n * w.len() < PARALLEL_FROM {
        true => panels.for_each(|task| panel(&mut Vec::new(), task)),
        false => {
            let panels: Vec<_> = panels.collect();
            panels.into_par_iter().for_each_init(Vec::new, panel);
        }
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
            Factors { x, w, inner },
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

/// Columns for one task, so that threads that are done early can take another.
fn columns_of(width: usize) -> usize {
    let tasks = 2 * rayon::current_num_threads();
    width.div_ceil(tasks).next_multiple_of(COLUMNS)
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
    w.read_block(rows, cols, scratch);
    scratch
}
