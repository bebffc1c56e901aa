//! Muon: momentum whose update is made orthogonal, which suits hidden matrices.

use crate::local::engine::inside::{View, product};

/// The momentum of one matrix.
#[derive(Debug, Default)]
pub(crate) struct Muon {
    momentum: Vec<f32>,
}

impl Muon {
    /// Moves `weights`, `[rows, cols]`, one step.
    pub(crate) fn step(
        &mut self,
        weights: &mut [f32],
        gradient: &[f32],
        rows: usize,
        cols: usize,
        rate: f32,
    ) {
        const BETA: f32 = 0.95;
        self.momentum.resize(gradient.len(), 0.0);
        let mut update = Vec::with_capacity(gradient.len());
        for (momentum, g) in self.momentum.iter_mut().zip(gradient) {
            *momentum = BETA * *momentum + (1.0 - BETA) * g;
            update.push(BETA * *momentum + (1.0 - BETA) * g);
        }
        let update = orthogonal(update, rows, cols);
        let scale = rate * (rows as f32 / cols as f32).max(1.0).sqrt();
        for (weight, update) in weights.iter_mut().zip(&update) {
            *weight -= scale * update;
        }
    }
}

/// Brings all singular values near 1 by five Newton-Schulz iterations.
fn orthogonal(matrix: Vec<f32>, rows: usize, cols: usize) -> Vec<f32> {
    let norm = matrix.iter().map(|x| x * x).sum::<f32>().sqrt() + 1e-12;
    let mut x: Vec<f32> = matrix.iter().map(|x| x / norm).collect();
    // Work on the smaller Gram matrix: x xᵀ for wide matrices, xᵀ x for tall ones.
    let tall = rows > cols;
    let small = rows.min(cols);
    for _ in 0..5 {
        let view = View::new(&x, rows, cols);
        let mut gram = vec![0.0; small * small];
        if tall {
            product(1.0, view.transposed(), view, 0.0, &mut gram, small);
        } else {
            product(1.0, view, view.transposed(), 0.0, &mut gram, small);
        }
        let mut poly = gram.clone();
        let gram = View::new(&gram, small, small);
        product(2.0315, gram, gram, -4.7750, &mut poly, small);
        let poly = View::new(&poly, small, small);
        let mut next = x.clone();
        if tall {
            product(1.0, view, poly, 3.4445, &mut next, cols);
        } else {
            product(1.0, poly, view, 3.4445, &mut next, cols);
        }
        x = next;
    }
    x
}
