//! `y = x Wᵀ` and its gradients, with and without LoRA, for any weight storage.

use rayon::prelude::*;

use super::gemm::{View, dots, product};
use super::matrix::Matrix;

/// From this many weights on, one product is spread over threads; smaller models are spread
/// over sequences instead.
const PARALLEL_FROM: usize = 1 << 18;

/// Outputs (or inputs, backward) that one task of a spread product handles.
const PANEL: usize = 128;

/// Up to this many rows a dot product per weight row beats the general product.
pub(crate) const FEW_ROWS: usize = 8;

/// One projection of the network: a frozen weight and, maybe, its low-rank correction and bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linear<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) lora: Option<Lora<'a>>,
    pub(crate) bias: Option<&'a [f32]>,
}

/// `scale * B A`, added to a weight: `a` is `[rank, inputs]`, `b` is `[outputs, rank]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lora<'a> {
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) rank: usize,
    pub(crate) scale: f32,
}

/// Where the gradient of one projection goes.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    /// Not trained.
    Frozen,
    /// The whole weight's gradient, `[outputs, inputs]`.
    Dense(Vec<f32>),
    /// The gradients of `a` and `b`.
    Lora { a: Vec<f32>, b: Vec<f32> },
}

impl Linear<'_> {
    /// `y = x Wᵀ` for `n` rows.
    pub(crate) fn forward(&self, x: &[f32], n: usize, y: &mut [f32]) {
        multiply(x, n, self.weight, y);
        self.add_bias(y);
        if let Some(lora) = self.lora {
            let (inputs, outputs) = (self.weight.cols(), self.weight.rows());
            let hidden = lora.hidden(x, n, inputs);
            let b = View::new(lora.b, outputs, lora.rank).transposed();
            by_rows(&hidden, lora.rank, outputs, y, |hidden, rows, y| {
                product(
                    lora.scale,
                    View::new(hidden, rows, lora.rank),
                    b,
                    1.0,
                    y,
                    outputs,
                );
            });
        }
    }

    /// As [`forward`](Self::forward), but no row's result depends on how many there are, to the
    /// last bit: a sequence must not notice which others are decoded with it.
    pub(crate) fn forward_each(&self, x: &[f32], n: usize, y: &mut [f32]) {
        multiply_few(x, n, self.weight, y);
        self.add_bias(y);
        if let Some(lora) = self.lora {
            let (inputs, outputs, rank) = (self.weight.cols(), self.weight.rows(), lora.rank);
            let mut hidden = vec![0.0; n * rank];
            dots(&x[..n * inputs], inputs, lora.a, inputs, &mut hidden, rank);
            let mut correction = vec![0.0; n * outputs];
            dots(&hidden, rank, lora.b, rank, &mut correction, outputs);
            for (y, correction) in y.iter_mut().zip(correction) {
                *y += lora.scale * correction;
            }
        }
    }

    fn add_bias(&self, y: &mut [f32]) {
        if let Some(bias) = self.bias {
            y.chunks_exact_mut(bias.len()).for_each(|y| add(y, bias));
        }
    }

    /// Adds this projection's gradients to `slot` and `dy W` to `dx`, if wanted.
    pub(crate) fn backward(
        &self,
        x: &[f32],
        dy: &[f32],
        n: usize,
        dx: Option<&mut [f32]>,
        slot: &mut Slot,
    ) {
        let (inputs, outputs) = (self.weight.cols(), self.weight.rows());
        let (x_view, dy_view) = (View::new(x, n, inputs), View::new(dy, n, outputs));
        let hidden_gradient = self.lora.map(|lora| {
            let mut out = vec![0.0; n * lora.rank];
            let b = View::new(lora.b, outputs, lora.rank);
            by_rows(dy, outputs, lora.rank, &mut out, |dy, rows, out| {
                product(
                    lora.scale,
                    View::new(dy, rows, outputs),
                    b,
                    0.0,
                    out,
                    lora.rank,
                );
            });
            out
        });
        match (slot, self.lora, &hidden_gradient) {
            (Slot::Dense(gradient), _, _) => {
                product(1.0, dy_view.transposed(), x_view, 1.0, gradient, inputs);
            }
            (Slot::Lora { a, b }, Some(lora), Some(dh)) => {
                let rank = lora.rank;
                let hidden = lora.hidden(x, n, inputs);
                let hidden = View::new(&hidden, n, rank);
                // Each task has some rows of the gradient, which are columns of what came back.
                by_columns(b, rank, n * outputs, |first, rows, b| {
                    let dy = View::strided(&dy[first..], n, rows, outputs).transposed();
                    product(lora.scale, dy, hidden, 1.0, b, rank);
                });
                by_columns(a, inputs, n * inputs, |first, rows, a| {
                    let dh = View::strided(&dh[first..], n, rows, rank).transposed();
                    product(1.0, dh, x_view, 1.0, a, inputs);
                });
            }
            _ => {}
        }
        if let Some(dx) = dx {
            multiply_back(dy, n, self.weight, dx);
            if let (Some(lora), Some(dh)) = (self.lora, &hidden_gradient) {
                let a = View::new(lora.a, lora.rank, inputs);
                by_rows(dh, lora.rank, inputs, dx, |dh, rows, dx| {
                    product(1.0, View::new(dh, rows, lora.rank), a, 1.0, dx, inputs);
                });
            }
        }
    }
}

impl Lora<'_> {
    /// `x Aᵀ`.
    fn hidden(&self, x: &[f32], n: usize, inputs: usize) -> Vec<f32> {
        let mut out = vec![0.0; n * self.rank];
        let a = View::new(self.a, self.rank, inputs).transposed();
        by_rows(
            &x[..n * inputs],
            inputs,
            self.rank,
            &mut out,
            |x, rows, out| {
                product(1.0, View::new(x, rows, inputs), a, 0.0, out, self.rank);
            },
        );
        out
    }
}

impl Slot {
    /// Adds another slot of the same kind.
    pub(crate) fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Dense(mine), Self::Dense(theirs)) => add(mine, theirs),
            (
                Self::Lora { a, b },
                Self::Lora {
                    a: other_a,
                    b: other_b,
                },
            ) => {
                add(a, other_a);
                add(b, other_b);
            }
            _ => {}
        }
    }
}

/// Rows that one task of a spread low-rank product handles.
const ROWS: usize = 64;

/// Runs `work` over some rows of both sides at a time: those of `x`, how many, those of `y`.
fn by_rows(
    x: &[f32],
    x_width: usize,
    y_width: usize,
    y: &mut [f32],
    work: impl Fn(&[f32], usize, &mut [f32]) + Sync,
) {
    let n = x.len() / x_width;
    if n * x_width.max(y_width) < PARALLEL_FROM {
        return work(x, n, y);
    }
    x.par_chunks(ROWS * x_width)
        .zip(y.par_chunks_mut(ROWS * y_width))
        .for_each(|(x, y)| work(x, x.len() / x_width, y));
}

/// Runs `work` over some rows of a gradient at a time: the first, how many, and they themselves.
fn by_columns(
    gradient: &mut [f32],
    width: usize,
    size: usize,
    work: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let rows = gradient.len() / width;
    if size < PARALLEL_FROM {
        return work(0, rows, gradient);
    }
    let some = rows
        .div_ceil(rayon::current_num_threads())
        .next_multiple_of(8);
    gradient
        .par_chunks_mut(some * width)
        .enumerate()
        .for_each(|(index, gradient)| work(index * some, gradient.len() / width, gradient));
}

/// `mine += theirs`.
pub(crate) fn add(mine: &mut [f32], theirs: &[f32]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine += theirs;
    }
}

/// `y = x Wᵀ`.
fn multiply(x: &[f32], n: usize, w: &Matrix, y: &mut [f32]) {
    let (inputs, outputs) = (w.cols(), w.rows());
    if n <= FEW_ROWS {
        return multiply_few(x, n, w, y);
    }
    if let (Some(data), true) = (w.as_f32(), w.len() < PARALLEL_FROM) {
        let w = View::new(data, outputs, inputs).transposed();
        return product(1.0, View::new(x, n, inputs), w, 0.0, y, outputs);
    }
    let mut panels = vec![0.0; n * outputs.next_multiple_of(PANEL)];
    panels.par_chunks_mut(n * PANEL).enumerate().for_each_init(
        Vec::new,
        |scratch, (index, out)| {
            let rows = index * PANEL..outputs.min((index + 1) * PANEL);
            let height = rows.len();
            let weights = block(w, rows, 0..inputs, scratch);
            let weights = View::new(weights, height, inputs).transposed();
            product(1.0, View::new(x, n, inputs), weights, 0.0, out, PANEL);
        },
    );
    gather(&panels, n, outputs, y, |y, value| *y = value);
}

/// `dx += dy W`.
fn multiply_back(dy: &[f32], n: usize, w: &Matrix, dx: &mut [f32]) {
    let (inputs, outputs) = (w.cols(), w.rows());
    let dy_view = View::new(dy, n, outputs);
    if let (Some(data), true) = (w.as_f32(), w.len() < PARALLEL_FROM) {
        let w = View::new(data, outputs, inputs);
        return product(1.0, dy_view, w, 1.0, dx, inputs);
    }
    let mut panels = vec![0.0; n * inputs.next_multiple_of(PANEL)];
    panels.par_chunks_mut(n * PANEL).enumerate().for_each_init(
        Vec::new,
        |scratch, (index, out)| {
            let cols = index * PANEL..inputs.min((index + 1) * PANEL);
            for start in (0..outputs).step_by(4 * PANEL) {
                let rows = start..outputs.min(start + 4 * PANEL);
                let height = rows.len();
                let weights = block(w, rows, cols.clone(), scratch);
                let weights = View::new(weights, height, cols.len());
                let dy = View::strided(&dy[start..], n, height, outputs);
                product(1.0, dy, weights, 1.0, out, PANEL);
            }
        },
    );
    gather(&panels, n, inputs, dx, |dx, value| *dx += value);
}

/// `y = x Wᵀ` for a handful of rows: one dot product per output.
fn multiply_few(x: &[f32], n: usize, w: &Matrix, y: &mut [f32]) {
    let (inputs, outputs) = (w.cols(), w.rows());
    if let (Some(data), true) = (w.as_f32(), w.len() < PARALLEL_FROM) {
        return dots(&x[..n * inputs], inputs, data, inputs, y, outputs);
    }
    let mut panels = vec![0.0; n * outputs.next_multiple_of(PANEL)];
    panels.par_chunks_mut(n * PANEL).enumerate().for_each_init(
        Vec::new,
        |scratch, (index, out)| {
            let rows = index * PANEL..outputs.min((index + 1) * PANEL);
            w.dots(&x[..n * inputs], rows, out, PANEL, scratch);
        },
    );
    gather(&panels, n, outputs, y, |y, value| *y = value);
}

/// A dense block of weights, borrowed where the storage allows and widened otherwise.
fn block<'a>(
    w: &'a Matrix,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    if let (Some(data), true) = (w.as_f32(), cols.len() == w.cols()) {
        return &data[rows.start * w.cols()..rows.end * w.cols()];
    }
    scratch.resize(rows.len() * cols.len(), 0.0);
    w.read_block(rows, cols, scratch);
    scratch
}

/// Brings the panels of a spread product together, row by row.
fn gather(
    panels: &[f32],
    n: usize,
    width: usize,
    out: &mut [f32],
    put: impl Fn(&mut f32, f32) + Sync,
) {
    out.par_chunks_mut(width)
        .take(n)
        .enumerate()
        .for_each(|(row, out)| {
            for (index, out) in out.chunks_mut(PANEL).enumerate() {
                let start = index * n * PANEL + row * PANEL;
                for (out, value) in out.iter_mut().zip(&panels[start..]) {
                    put(out, *value);
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::engine::rng::Rng;

    /// Rows alone and together, small and spread over threads, with and without LoRA.
    #[test]
    fn no_row_notices_the_others() {
        let mut rng = Rng::new(1);
        let mut numbers = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal()).collect() };
        for (outputs, inputs) in [(40, 24), (520, 530)] {
            let weight = Matrix::new(outputs, inputs, numbers(outputs * inputs));
            let (a, b) = (numbers(5 * inputs), numbers(outputs * 5));
            let (rank, scale) = (5, 0.7);
            let lora = Lora {
                a: &a,
                b: &b,
                rank,
                scale,
            };
            let x = numbers(21 * inputs);
            for lora in [None, Some(lora)] {
                let linear = Linear {
                    weight: &weight,
                    lora,
                    bias: None,
                };
                let mut together = vec![0.0; 21 * outputs];
                linear.forward_each(&x, 21, &mut together);
                let mut alone = vec![0.0; outputs];
                for (row, together) in together.chunks_exact(outputs).enumerate() {
                    linear.forward_each(&x[row * inputs..(row + 1) * inputs], 1, &mut alone);
                    assert!(alone == together, "row {row}");
                }
                let mut usual = vec![0.0; 21 * outputs];
                linear.forward(&x, 21, &mut usual);
                for (each, usual) in together.iter().zip(&usual) {
                    assert!((each - usual).abs() < 1e-3 * usual.abs().max(1.0));
                }
            }
        }
    }
}
