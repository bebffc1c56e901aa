//! Causal attention with grouped heads over packed sequences.

use super::config::Config;
use super::gemm::{View, dot, product};
use super::ops::softmax;
use super::scratch::Scratch;

/// Query rows handled at a time, so that scores never take more than `BLOCK * length` numbers.
const BLOCK: usize = 64;

/// Queries, keys and values of packed rows, heads side by side within a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
}

/// Gradients of [`Heads`]; keys and values must start at 0.
#[derive(Debug)]
pub(crate) struct HeadGradients<'a> {
    pub(crate) q: &'a mut [f32],
    pub(crate) k: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
}

/// Each sequence attends to its own past; `spans` are the first row and length of each.
pub(crate) fn forward(
    config: &Config,
    window: Option<usize>,
    spans: &[(usize, usize)],
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    attend(config, window, stretches(spans), heads, out, scratch);
}

/// One sequence goes on: there are `past` more keys and values than queries, and they come first.
pub(crate) fn forward_onto(
    config: &Config,
    window: Option<usize>,
    past: usize,
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let len = heads.q.len() / config.q_width();
    let stretch = Stretch {
        start: 0,
        past,
        len,
    };
    attend(
        config,
        window,
        std::iter::once(stretch),
        heads,
        out,
        scratch,
    );
}

fn attend(
    config: &Config,
    window: Option<usize>,
    stretches: impl Iterator<Item = Stretch>,
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let q_width = config.q_width();
    for_blocks(config, window, stretches, |block| {
        let (rows, keys) = (block.rows, block.keys);
        let mut scores = scratch.take(rows * keys);
        block.probabilities(config, heads, &mut scores);
        let values = View::strided(
            &heads.v[block.kv..],
            keys,
            config.head_dim,
            config.kv_width(),
        );
        let scores_view = View::new(&scores, rows, keys);
        product(1.0, scores_view, values, 0.0, &mut out[block.q..], q_width);
        scratch.give(scores);
    });
}

/// The gradients of [`forward`]: probabilities are computed again rather than kept.
pub(crate) fn backward(
    config: &Config,
    window: Option<usize>,
    spans: &[(usize, usize)],
    heads: Heads<'_>,
    dout: &[f32],
    gradients: HeadGradients<'_>,
    scratch: &mut Scratch,
) {
    let (dim, q_width, kv_width) = (config.head_dim, config.q_width(), config.kv_width());
    let scale = config.query_scale;
    for_blocks(config, window, stretches(spans), |block| {
        let (rows, keys) = (block.rows, block.keys);
        let mut p = scratch.take(rows * keys);
        let mut dp = scratch.take(rows * keys);
        block.probabilities(config, heads, &mut p);
        let dout = View::strided(&dout[block.q..], rows, dim, q_width);
        let values = View::strided(&heads.v[block.kv..], keys, dim, kv_width);
        product(1.0, dout, values.transposed(), 0.0, &mut dp, keys);
        let p_view = View::new(&p, rows, keys);
        product(
            1.0,
            p_view.transposed(),
            dout,
            1.0,
            &mut gradients.v[block.kv..],
            kv_width,
        );
        for (p, dp) in p.chunks_exact(keys).zip(dp.chunks_exact_mut(keys)) {
            let mean = dot(p, dp);
            for (p, dp) in p.iter().zip(dp) {
                *dp = p * (*dp - mean);
            }
        }
        let ds = View::new(&dp, rows, keys);
        let queries = View::strided(&heads.q[block.q..], rows, dim, q_width);
        let keys_view = View::strided(&heads.k[block.kv..], keys, dim, kv_width);
        product(
            scale,
            ds,
            keys_view,
            0.0,
            &mut gradients.q[block.q..],
            q_width,
        );
        product(
            scale,
            ds.transposed(),
            queries,
            1.0,
            &mut gradients.k[block.kv..],
            kv_width,
        );
        scratch.give(p);
        scratch.give(dp);
    });
}

/// Some query rows of one head of one sequence, and the keys they may see.
struct Block {
    /// First query's place in `q`.
    q: usize,
    /// First key's place in `k` and `v`.
    kv: usize,
    rows: usize,
    keys: usize,
    /// Keys before the first query.
    first: usize,
    /// Keys each query sees, its own among them.
    window: usize,
}

impl Block {
    fn probabilities(&self, config: &Config, heads: Heads<'_>, out: &mut [f32]) {
        let dim = config.head_dim;
        let queries = View::strided(&heads.q[self.q..], self.rows, dim, config.q_width());
        let keys = View::strided(&heads.k[self.kv..], self.keys, dim, config.kv_width());
        product(
            config.query_scale,
            queries,
            keys.transposed(),
            0.0,
            out,
            self.keys,
        );
        for (row, scores) in out.chunks_exact_mut(self.keys).enumerate() {
            let (past, future) = scores.split_at_mut(self.first + row + 1);
            let (forgotten, seen) = past.split_at_mut(past.len().saturating_sub(self.window));
            softmax(seen);
            forgotten.fill(0.0);
            future.fill(0.0);
        }
    }
}

/// The queries of one sequence: their first row (and the keys'), and how many keys precede them.
struct Stretch {
    start: usize,
    past: usize,
    len: usize,
}

fn stretches(spans: &[(usize, usize)]) -> impl Iterator<Item = Stretch> {
    spans.iter().map(|&(start, len)| Stretch {
        start,
        past: 0,
        len,
    })
}

fn for_blocks(
    config: &Config,
    window: Option<usize>,
    stretches: impl Iterator<Item = Stretch>,
    mut work: impl FnMut(Block),
) {
    let (dim, q_width, kv_width) = (config.head_dim, config.q_width(), config.kv_width());
    let group = config.heads / config.kv_heads;
    let window = window.unwrap_or(usize::MAX);
    for Stretch { start, past, len } in stretches {
        for head in 0..config.heads {
            for first in (0..len).step_by(BLOCK) {
                let rows = BLOCK.min(len - first);
                // Keys that even the first query no longer sees.
                let forgotten = (past + first + 1).saturating_sub(window);
                work(Block {
                    q: (start + first) * q_width + head * dim,
                    kv: (start + forgotten) * kv_width + head / group * dim,
                    rows,
                    keys: past + first + rows - forgotten,
                    first: past + first - forgotten,
                    window,
                });
            }
        }
    }
}
