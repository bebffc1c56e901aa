//! Causal attention with grouped heads over packed sequences.

use rayon::prelude::*;

use super::config::Config;
use super::gemm::{View, dot, product};
use super::ops::softmax;
use super::scratch::Scratch;

/// Query rows handled at a time, so that scores never take more than `BLOCK * length` numbers.
const BLOCK: usize = 64;

/// From this many products of a query with a key on, heads are spread over threads.
const PARALLEL_FROM: usize = 1 << 16;

/// How many heads there are, and how they look back.
#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    scale: f32,
    window: usize,
}

impl Shape {
    fn new(config: &Config, window: Option<usize>) -> Self {
        Self {
            heads: config.heads,
            kv_heads: config.kv_heads,
            dim: config.head_dim,
            scale: config.query_scale,
            window: window.unwrap_or(usize::MAX),
        }
    }

    /// The query heads that share one key and value head, on their own.
    fn group(self) -> Self {
        Self {
            heads: self.heads / self.kv_heads,
            kv_heads: 1,
            ..self
        }
    }

    fn q_width(self) -> usize {
        self.heads * self.dim
    }

    fn kv_width(self) -> usize {
        self.kv_heads * self.dim
    }
}

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
    let stretches: Vec<Stretch> = stretches(spans).collect();
    attend_all(Shape::new(config, window), &stretches, heads, out, scratch);
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
    attend_all(Shape::new(config, window), &[stretch], heads, out, scratch);
}

/// Attends, spreading the groups of heads over threads where that pays.
///
/// What a head computes does not depend on where, so neither does the result.
fn attend_all(
    shape: Shape,
    stretches: &[Stretch],
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    if !worth_spreading(shape, stretches) {
        return attend(shape, stretches, heads, out, scratch);
    }
    let group = shape.group();
    let results: Vec<Vec<f32>> = (0..shape.kv_heads)
        .into_par_iter()
        .map_init(Scratch::default, |scratch, index| {
            let own = Own::gather(shape, index, heads);
            let mut out = vec![0.0; own.q.len()];
            attend(group, stretches, own.heads(), &mut out, scratch);
            out
        })
        .collect();
    for (index, result) in results.iter().enumerate() {
        scatter(result, out, shape.q_width(), index, group.q_width());
    }
}

fn worth_spreading(shape: Shape, stretches: &[Stretch]) -> bool {
    let products = |stretch: &Stretch| stretch.len * (stretch.past + stretch.len) / 2;
    let products: usize = stretches.iter().map(products).sum();
    shape.kv_heads > 1
        && products * shape.heads >= PARALLEL_FROM
        && rayon::current_num_threads() > 1
}

fn attend(
    shape: Shape,
    stretches: &[Stretch],
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let q_width = shape.q_width();
    for_blocks(shape, stretches, |block| {
        let (rows, keys) = (block.rows, block.keys);
        let mut scores = scratch.take(rows * keys);
        block.probabilities(shape, heads, &mut scores);
        let values = View::strided(&heads.v[block.kv..], keys, shape.dim, shape.kv_width());
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
    let shape = Shape::new(config, window);
    let stretches: Vec<Stretch> = stretches(spans).collect();
    if !worth_spreading(shape, &stretches) {
        return attend_back(shape, &stretches, heads, dout, gradients, scratch);
    }
    let group = shape.group();
    let results: Vec<Own> = (0..shape.kv_heads)
        .into_par_iter()
        .map_init(Scratch::default, |scratch, index| {
            let own = Own::gather(shape, index, heads);
            let dout = columns(dout, shape.q_width(), index, group.q_width());
            let mut back = Own {
                q: vec![0.0; own.q.len()],
                k: vec![0.0; own.k.len()],
                v: vec![0.0; own.v.len()],
            };
            let gradients = HeadGradients {
                q: &mut back.q,
                k: &mut back.k,
                v: &mut back.v,
            };
            attend_back(group, &stretches, own.heads(), &dout, gradients, scratch);
            back
        })
        .collect();
    for (index, back) in results.iter().enumerate() {
        let (q, kv) = (shape.q_width(), shape.kv_width());
        scatter(&back.q, gradients.q, q, index, group.q_width());
        scatter(&back.k, gradients.k, kv, index, group.kv_width());
        scatter(&back.v, gradients.v, kv, index, group.kv_width());
    }
}

fn attend_back(
    shape: Shape,
    stretches: &[Stretch],
    heads: Heads<'_>,
    dout: &[f32],
    gradients: HeadGradients<'_>,
    scratch: &mut Scratch,
) {
    let (dim, q_width, kv_width) = (shape.dim, shape.q_width(), shape.kv_width());
    let scale = shape.scale;
    for_blocks(shape, stretches, |block| {
        let (rows, keys) = (block.rows, block.keys);
        let mut p = scratch.take(rows * keys);
        let mut dp = scratch.take(rows * keys);
        block.probabilities(shape, heads, &mut p);
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

/// The columns of one group of heads, in buffers of their own.
struct Own {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Own {
    fn gather(shape: Shape, index: usize, heads: Heads<'_>) -> Self {
        let group = shape.group();
        Self {
            q: columns(heads.q, shape.q_width(), index, group.q_width()),
            k: columns(heads.k, shape.kv_width(), index, group.kv_width()),
            v: columns(heads.v, shape.kv_width(), index, group.kv_width()),
        }
    }

    fn heads(&self) -> Heads<'_> {
        Heads {
            q: &self.q,
            k: &self.k,
            v: &self.v,
        }
    }
}

/// The `index`-th `part` columns of rows that are `width` wide.
fn columns(rows: &[f32], width: usize, index: usize, part: usize) -> Vec<f32> {
    let mut own = Vec::with_capacity(rows.len() / width * part);
    for row in rows.chunks_exact(width) {
        own.extend_from_slice(&row[index * part..(index + 1) * part]);
    }
    own
}

/// Puts back what [`columns`] took out.
fn scatter(own: &[f32], rows: &mut [f32], width: usize, index: usize, part: usize) {
    for (own, row) in own.chunks_exact(part).zip(rows.chunks_exact_mut(width)) {
        row[index * part..(index + 1) * part].copy_from_slice(own);
    }
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
}

impl Block {
    fn probabilities(&self, shape: Shape, heads: Heads<'_>, out: &mut [f32]) {
        let dim = shape.dim;
        let queries = View::strided(&heads.q[self.q..], self.rows, dim, shape.q_width());
        let keys = View::strided(&heads.k[self.kv..], self.keys, dim, shape.kv_width());
        let scale = shape.scale;
        product(scale, queries, keys.transposed(), 0.0, out, self.keys);
        for (row, scores) in out.chunks_exact_mut(self.keys).enumerate() {
            let (past, future) = scores.split_at_mut(self.first + row + 1);
            let (forgotten, seen) = past.split_at_mut(past.len().saturating_sub(shape.window));
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

fn for_blocks(shape: Shape, stretches: &[Stretch], mut work: impl FnMut(Block)) {
    let (dim, q_width, kv_width) = (shape.dim, shape.q_width(), shape.kv_width());
    let group = shape.heads / shape.kv_heads;
    for &Stretch { start, past, len } in stretches {
        for head in 0..shape.heads {
            for first in (0..len).step_by(BLOCK) {
                let rows = BLOCK.min(len - first);
                // Keys that even the first query no longer sees.
                let forgotten = (past + first + 1).saturating_sub(shape.window);
                work(Block {
                    q: (start + first) * q_width + head * dim,
                    kv: (start + forgotten) * kv_width + head / group * dim,
                    rows,
                    keys: past + first + rows - forgotten,
                    first: past + first - forgotten,
                });
            }
        }
    }
}
