//! The head: from hidden states to log-probabilities, some rows at a time.
//!
//! A long sequence's logits over a large vocabulary would take gigabytes at once, so they exist
//! only for as many rows as fit in a few dozen megabytes.

use super::model::Net;
use super::ops::{log_sum_exp, rms_norm, rms_norm_back};
use super::pass::Gradients;
use super::scratch::Scratch;

/// Logits held at a time: enough rows that fetching the head's weights does not cost more than
/// the products.
const CHUNK: usize = 16 << 20;

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

/// Log-probabilities of every row's targets.
pub(crate) fn log_probabilities(
    net: &Net<'_>,
    normed: &[f32],
    targets: Targets<'_>,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let rows = normed.len() / net.weights.config.width;
    let mut out = vec![0.0; rows * targets.width];
    for_rows(net, normed, 0..rows, scratch, |row, logits| {
        let total = log_sum_exp(logits);
        let range = row * targets.width..(row + 1) * targets.width;
        for (out, token) in out[range.clone()].iter_mut().zip(&targets.tokens[range]) {
            *out = logits[*token as usize] - total;
        }
    });
    out
}

/// From `dL/dlogp` to the gradient of the last layer's output.
///
/// Rows whose gradient is 0 (a prompt's, usually) cost nothing: the others are gathered first.
pub(crate) fn backward(
    net: &Net<'_>,
    x: &[f32],
    normed: &[f32],
    targets: Targets<'_>,
    dlogp: &[f32],
    gradients: &mut Gradients,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let config = &net.weights.config;
    let (width, vocab, k) = (config.width, config.vocab, targets.width);
    let rows: Vec<usize> = dlogp
        .chunks_exact(k)
        .enumerate()
        .filter(|(_, row)| row.iter().any(|g| *g != 0.0))
        .map(|(row, _)| row)
        .collect();
    let mut dnormed = scratch.zeros(x.len());
    let head = net.head();
    for rows in rows.chunks(rows_at_once(vocab)) {
        let n = rows.len();
        let mut hidden = scratch.take(n * width);
        for (row, hidden) in rows.iter().zip(hidden.chunks_exact_mut(width)) {
            hidden.copy_from_slice(&normed[row * width..(row + 1) * width]);
        }
        let mut logits = scratch.take(n * vocab);
        head.forward(&hidden, n, &mut logits);
        for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocab)) {
            let range = row * k..(row + 1) * k;
            logits_gradient(logits, &targets.tokens[range.clone()], &dlogp[range]);
        }
        let mut dhidden = scratch.zeros(n * width);
        head.backward(&hidden, &logits, n, Some(&mut dhidden), &mut gradients.head);
        for (row, dhidden) in rows.iter().zip(dhidden.chunks_exact(width)) {
            dnormed[row * width..(row + 1) * width].copy_from_slice(dhidden);
        }
        for buffer in [hidden, logits, dhidden] {
            scratch.give(buffer);
        }
    }
    let mut dx = scratch.zeros(x.len());
    let dweight = gradients.rest.as_mut().map(|rest| &mut rest.norm[..]);
    rms_norm_back(
        x,
        &net.weights.norm,
        config.norm_eps,
        &dnormed,
        &mut dx,
        dweight,
    );
    scratch.give(dnormed);
    dx
}

/// Turns logits into their gradient in place: `Σ gₖ (onehotₖ − softmax)`.
fn logits_gradient(logits: &mut [f32], targets: &[u32], dlogp: &[f32]) {
    let total = log_sum_exp(logits);
    let sum: f32 = dlogp.iter().sum();
    for logit in logits.iter_mut() {
        *logit = -sum * super::ops::exp(*logit - total);
    }
    for (token, g) in targets.iter().zip(dlogp) {
        logits[*token as usize] += g;
    }
}

fn rows_at_once(vocab: usize) -> usize {
    (CHUNK / vocab).clamp(8, 512)
}
