//! The head: from hidden states to log-probabilities, some rows at a time.
//!
//! A long sequence's logits over a large vocabulary would take gigabytes at once, so they exist
//! only for as many rows as fit in a few dozen megabytes.

use rayon::prelude::*;

use super::gemm::vectorised;
use super::model::Net;
use super::ops::{exp, log_sum_exp, rms_norm, rms_norm_back};
use super::pass::Gradients;
use super::scratch::Scratch;

/// Logits held at a time: enough rows that fetching the head's weights does not cost more than
/// the products.
const CHUNK: usize = 32 << 20;

/// Calls `each` with every chosen row's number (counting from 0 in `rows`) and its logits.
pub(crate) fn for_rows(
    net: &Net<'_>,
    normed: &[f32],
    rows: std::ops::Range<usize>,
    scratch: &mut Scratch,
    mut each: impl FnMut(usize, &mut [f32]),
) {
    let (width, vocab) = (net.weights.config.width, net.weights.config.vocab);
    let step = rows_at_once(vocab);
    let head = net.head();
    for start in rows.clone().step_by(step) {
        let n = step.min(rows.end - start);
        let mut logits = scratch.take(n * vocab);
        head.forward(&normed[start * width..(start + n) * width], n, &mut logits);
        for (offset, row) in logits.chunks_exact_mut(vocab).enumerate() {
            each(start + offset, row);
        }
        scratch.give(logits);
    }
}

/// The final norm, which every use of the head starts from.
pub(crate) fn norm(net: &Net<'_>, x: &[f32], scratch: &mut Scratch) -> Vec<f32> {
    let mut normed = scratch.take(x.len());
    rms_norm(
        x,
        &net.weights.norm,
        net.weights.config.norm_eps,
        &mut normed,
    );
    normed
}

/// Which tokens each row scores: `width` targets per row, row-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Targets<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) width: usize,
}

/// The log-probabilities of every row's targets and, if they fit, the logits they come from.
#[derive(Debug)]
pub(crate) struct Scores<'a> {
    normed: &'a [f32],
    targets: Targets<'a>,
    pub(crate) logp: Vec<f32>,
    /// `ln Σ eˣ` of every row's logits.
    totals: Vec<f32>,
    logits: Option<Vec<f32>>,
}

impl<'a> Scores<'a> {
    /// Scores rows; with `keep` their logits are kept for [`backward`](Self::backward), which
    /// computes them again otherwise.
    pub(crate) fn new(
        net: &Net<'_>,
        normed: &'a [f32],
        targets: Targets<'a>,
        keep: bool,
        scratch: &mut Scratch,
    ) -> Self {
        let (width, vocab) = (net.weights.config.width, net.weights.config.vocab);
        let (rows, step) = (normed.len() / width, rows_at_once(vocab));
        let mut scores = Self {
            normed,
            targets,
            logp: vec![0.0; rows * targets.width],
            totals: vec![0.0; rows],
            logits: None,
        };
        let out = scores.logp.chunks_mut(step * targets.width);
        let out = out.zip(scores.totals.chunks_mut(step));
        let tokens = targets.tokens.chunks(step * targets.width);
        for ((normed, tokens), (logp, totals)) in normed.chunks(step * width).zip(tokens).zip(out) {
            let mut logits = scratch.take(totals.len() * vocab);
            net.head().forward(normed, totals.len(), &mut logits);
            logits
                .par_chunks_exact(vocab)
                .zip(tokens.par_chunks_exact(targets.width))
                .zip(logp.par_chunks_exact_mut(targets.width).zip(totals))
                .for_each(|((logits, tokens), (logp, total))| {
                    *total = log_sum_exp(logits);
                    for (logp, token) in logp.iter_mut().zip(tokens) {
                        *logp = logits[*token as usize] - *total;
                    }
                });
            match keep && rows <= step {
                true => scores.logits = Some(logits),
                false => scratch.give(logits),
            }
        }
        scores
    }

    /// From `dL/dlogp` to the gradient of the rows, into `dnormed`, which is 0.
    ///
    /// Rows whose gradient is 0 (a prompt's, usually) cost nothing: the others are gathered first.
    pub(crate) fn backward(
        &mut self,
        net: &Net<'_>,
        dlogp: &[f32],
        gradients: &mut Gradients,
        dnormed: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (width, vocab) = (net.weights.config.width, net.weights.config.vocab);
        let (normed, targets, k) = (self.normed, self.targets, self.targets.width);
        let rows: Vec<usize> = dlogp
            .chunks_exact(k)
            .enumerate()
            .filter(|(_, row)| row.iter().any(|g| *g != 0.0))
            .map(|(row, _)| row)
            .collect();
        let head = net.head();
        for rows in rows.chunks(rows_at_once(vocab)) {
            let n = rows.len();
            let mut hidden = scratch.take(n * width);
            gather(normed, width, rows, &mut hidden);
            let mut logits = match self.logits.take() {
                Some(mut logits) => {
                    for (place, row) in rows.iter().enumerate() {
                        logits.copy_within(row * vocab..(row + 1) * vocab, place * vocab);
                    }
                    logits.truncate(n * vocab);
                    logits
                }
                None => {
                    let mut logits = scratch.take(n * vocab);
                    head.forward(&hidden, n, &mut logits);
                    logits
                }
            };
            rows.par_iter()
                .zip(logits.par_chunks_exact_mut(vocab))
                .for_each(|(row, logits)| {
                    let range = row * k..(row + 1) * k;
                    let (tokens, dlogp) = (&targets.tokens[range.clone()], &dlogp[range]);
                    logits_gradient(logits, self.totals[*row], tokens, dlogp);
                });
            let mut dhidden = scratch.zeros(n * width);
            head.backward(&hidden, &logits, n, Some(&mut dhidden), &mut gradients.head);
            for (row, dhidden) in rows.iter().zip(dhidden.chunks_exact(width)) {
                dnormed[row * width..(row + 1) * width].copy_from_slice(dhidden);
            }
            for buffer in [hidden, logits, dhidden] {
                scratch.give(buffer);
            }
        }
    }

    /// Gives the logits back.
    pub(crate) fn recycle(self, scratch: &mut Scratch) {
        self.logits
            .into_iter()
            .for_each(|logits| scratch.give(logits));
    }
}

/// Copies some rows.
fn gather(from: &[f32], width: usize, rows: &[usize], out: &mut [f32]) {
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&from[row * width..(row + 1) * width]);
    }
}

/// The gradient of [`norm`]: that of the last layer's output.
pub(crate) fn norm_back(
    net: &Net<'_>,
    x: &[f32],
    dnormed: &[f32],
    gradients: &mut Gradients,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let mut dx = scratch.zeros(x.len());
    let dweight = gradients.rest.as_mut().map(|rest| &mut rest.norm[..]);
    let (norm, eps) = (&net.weights.norm, net.weights.config.norm_eps);
    rms_norm_back(x, norm, eps, dnormed, &mut dx, dweight);
    dx
}

/// Turns logits into their gradient in place: `Σ gₖ (onehotₖ − softmax)`.
fn logits_gradient(logits: &mut [f32], total: f32, targets: &[u32], dlogp: &[f32]) {
    let sum: f32 = dlogp.iter().sum();
    vectorised(|| {
        for logit in logits.iter_mut() {
            *logit = -sum * exp(*logit - total);
        }
    });
    for (token, g) in targets.iter().zip(dlogp) {
        logits[*token as usize] += g;
    }
}

/// Rows whose logits exist at a time.
pub(crate) fn rows_at_once(vocab: usize) -> usize {
    (CHUNK / vocab).clamp(8, 512)
}
