//! `y = x Wᵀ` and its gradients, with and without LoRA, for any weight storage.

use super::gemm::{FEW_ROWS, Rows, View, dots, product, vectorised};
use super::matrix::Matrix;
use super::ops::by_rows;
use super::panels::{self, Product, Rounding};

/// From this many weights on, one product is spread over threads; smaller models are spread
/// over sequences instead.
const PARALLEL_FROM: usize = 1 << 18;

/// One projection of the network: a frozen weight and, maybe, its low-rank correction and bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linear<'a> {
    pub(crate) weight: &'a Matrix,
    pub(crate) lora: Option<Lora<'a>>,
    pub(crate) bias: Option<&'a [f32]>,
    /// Whether the model is large: whatever its own size, its rows are treated as those of the
    /// other projections are.
    pub(crate) large: bool,
    pub(crate) rounding: Rounding,
}

/// The products of the same `n` rows with several matrices, into a list each.
pub(crate) fn forward_all<const COUNT: usize>(
    linears: [Linear<'_>; COUNT],
    x: &[f32],
    n: usize,
    rows: Rows,
    mut out: [&mut [f32]; COUNT],
) {
    if linears.iter().any(|linear| linear.small().is_some()) {
        let each = linears.iter().zip(&mut out);
        return each.for_each(|(linear, y)| linear.multiply(x, n, rows, y));
    }
    let products = linears.iter().zip(&mut out);
    let products = products.map(|(linear, y)| linear.product(y)).collect();
    panels::forward(products, x, n, rows, Rounding::Half);
    for (linear, y) in linears.iter().zip(out) {
        linear.add_bias(y);
    }
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
        self.multiply(x, n, Rows::Together, y);
    }

    /// As [`forward`](Self::forward), but no row's result depends on how many there are, to the
    /// last bit: a sequence must not notice which others are decoded with it.
    pub(crate) fn forward_each(&self, x: &[f32], n: usize, y: &mut [f32]) {
        self.multiply(x, n, Rows::Alone, y);
    }

    pub(crate) fn multiply(&self, x: &[f32], n: usize, rows: Rows, y: &mut [f32]) {
        let x = &x[..n * self.weight.cols()];
        match self.small() {
            Some(weight) => self.multiply_small(weight, x, n, rows, y),
            None => panels::forward(vec![self.product(y)], x, n, rows, self.rounding),
        }
        self.add_bias(y);
    }

    fn product<'b>(&'b self, y: &'b mut [f32]) -> Product<'b> {
        Product {
            w: self.weight,
            lora: self.lora,
            y,
        }
    }

    fn add_bias(&self, y: &mut [f32]) {
        if let Some(bias) = self.bias {
            y.chunks_exact_mut(bias.len()).for_each(|y| add(y, bias));
        }
    }

    /// The weights, if there are so few that a thread does the whole product.
    fn small(&self) -> Option<&[f32]> {
        let few = !self.large && self.weight.len() < PARALLEL_FROM;
        self.weight.as_f32().filter(|_| few)
    }

    fn multiply_small(&self, weight: &[f32], x: &[f32], n: usize, rows: Rows, y: &mut [f32]) {
        let (inputs, outputs) = (self.weight.cols(), self.weight.rows());
        let each = rows == Rows::Alone;
        if each || n <= FEW_ROWS {
            dots(x, inputs, weight, inputs, y, outputs);
        } else {
            let weight = View::new(weight, outputs, inputs).transposed();
            product(1.0, View::new(x, n, inputs), weight, 0.0, y, outputs);
        }
        let Some(lora) = self.lora else {
            return;
        };
        if each {
            let mut hidden = vec![0.0; n * lora.rank];
            dots(x, inputs, lora.a, inputs, &mut hidden, lora.rank);
            let mut correction = vec![0.0; n * outputs];
            dots(
                &hidden,
                lora.rank,
                lora.b,
                lora.rank,
                &mut correction,
                outputs,
            );
            for (y, correction) in y.iter_mut().zip(correction) {
                *y += lora.scale * correction;
            }
        } else {
            let hidden = lora.hidden(x, n, inputs);
            let hidden = View::new(&hidden, n, lora.rank);
            let b = View::new(lora.b, outputs, lora.rank).transposed();
            product(lora.scale, hidden, b, 1.0, y, outputs);
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
        if let Slot::Dense(gradient) = slot {
            product(1.0, dy_view.transposed(), x_view, 1.0, gradient, inputs);
        }
        let Some(weight) = self.small() else {
            return panels::backward(self.weight, self.lora, x, dy, n, dx, slot);
        };
        let lora = self.lora.map(|lora| {
            let mut back = vec![0.0; n * lora.rank];
            let b = View::new(lora.b, outputs, lora.rank);
            product(lora.scale, dy_view, b, 0.0, &mut back, lora.rank);
            (lora, back)
        });
        if let (Slot::Lora { a, b }, Some((lora, back))) = (slot, &lora) {
            let hidden = lora.hidden(x, n, inputs);
            let (hidden, back) = (
                View::new(&hidden, n, lora.rank),
                View::new(back, n, lora.rank),
            );
            product(lora.scale, dy_view.transposed(), hidden, 1.0, b, lora.rank);
            product(1.0, back.transposed(), x_view, 1.0, a, inputs);
        }
        if let Some(dx) = dx {
            product(
                1.0,
                dy_view,
                View::new(weight, outputs, inputs),
                1.0,
                dx,
                inputs,
            );
            if let Some((lora, back)) = &lora {
                let a = View::new(lora.a, lora.rank, inputs);
                product(1.0, View::new(back, n, lora.rank), a, 1.0, dx, inputs);
            }
        }
    }
}

impl Lora<'_> {
    /// `x Aᵀ`.
    fn hidden(&self, x: &[f32], n: usize, inputs: usize) -> Vec<f32> {
        let mut out = vec![0.0; n * self.rank];
        let a = View::new(self.a, self.rank, inputs).transposed();
        product(1.0, View::new(x, n, inputs), a, 0.0, &mut out, self.rank);
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

/// `mine += theirs`.
pub(crate) fn add(mine: &mut [f32], theirs: &[f32]) {
    by_rows(1, theirs, mine, |theirs, mine| {
        vectorised(|| {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        });
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
            for (lora, large) in [(None, false), (Some(lora), false), (Some(lora), true)] {
                let linear = Linear {
                    weight: &weight,
                    lora,
                    bias: None,
                    large,
                    rounding: Rounding::Half,
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
