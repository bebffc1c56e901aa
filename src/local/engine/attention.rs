//! Causal attention with grouped heads over packed sequences.

use std::ops::Range;

use rayon::prelude::*;

use super::config::Config;
use super::gemm::{DEPTH, View, accumulate, dot, vectorised};
use super::linear::add;
use super::ops::softmax;
use super::scratch::Scratch;

/// Query rows handled at a time, so that scores never take more than `BLOCK * length` numbers.
const BLOCK: usize = 64;

/// Into how many parts the queries of a long sequence are cut, so that threads can share them.
const PARTS: usize = 4;

/// From this many products of a query with a key on, parts are spread over threads.
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

    /// Query heads that share one key and value head.
    fn group(self) -> usize {
        self.heads / self.kv_heads
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

/// Consecutive queries of one sequence, which come after all the keys but their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stretch {
    /// The row of the first key.
    pub(crate) keys: usize,
    /// Keys before the first query.
    pub(crate) past: usize,
    /// Queries.
    pub(crate) len: usize,
}

impl Stretch {
    /// Whole sequences, of which these are the first row and length.
    pub(crate) fn whole(spans: &[(usize, usize)]) -> Vec<Self> {
        let whole = |&(keys, len)| Self { keys, past: 0, len };
        spans.iter().map(whole).collect()
    }

    /// Cuts the queries into parts that look at about as many keys each.
    fn cut(&self) -> impl Iterator<Item = Range<usize>> {
        let parts = (self.len / (2 * BLOCK)).clamp(1, PARTS);
        let (past, all) = (self.past as f64, (self.past + self.len) as f64);
        let end = move |part: usize| {
            let share = part as f64 / parts as f64;
            let seen = (past * past + share * (all * all - past * past)).sqrt();
            ((seen - past) as usize).next_multiple_of(BLOCK)
        };
        let len = self.len;
        (0..parts).map(move |part| end(part).min(len)..end(part + 1).min(len))
    }
}

/// Cuts the keys of a sequence into runs whose values are added up before they are added to those of
/// other runs, as [`accumulate`] does in [`forward`].
pub(crate) fn runs(keys: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let all = keys.start / DEPTH..keys.end.div_ceil(DEPTH);
    all.map(move |run| keys.start.max(run * DEPTH)..keys.end.min((run + 1) * DEPTH))
}

/// Each sequence attends to its own past. The stretches' queries are the rows of `q`, in order.
pub(crate) fn forward(
    config: &Config,
    window: Option<usize>,
    stretches: &[Stretch],
    heads: Heads<'_>,
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let shape = Shape::new(config, window);
    let parts = parts(shape, stretches);
    let out = pieces(shape, &parts, out);
    let turned_keys = turned(heads.k, shape.kv_width(), scratch);
    let work = |scratch: &mut Scratch, (part, mut out): (&Part, Vec<&mut [f32]>)| {
        for block in part.blocks(shape) {
            let scores = block.probabilities(shape, heads, &turned_keys, scratch);
            let weights = View::new(&scores, block.rows.len(), block.keys);
            let mut out = block.own(shape, &mut out);
            out.iter_mut().for_each(|row| row.fill(0.0));
            let values = &heads.v[block.kv(shape)..];
            accumulate(1.0, weights, values, shape.kv_width(), &mut out);
            scratch.give(scores);
        }
    };
    let tasks: Vec<_> = parts.iter().zip(out).collect();
    match worth_spreading(shape, stretches) {
        false => tasks.into_iter().for_each(|task| work(scratch, task)),
        true => tasks
            .into_par_iter()
            .for_each_init(Scratch::default, |scratch, task| work(scratch, task)),
    }
    scratch.give(turned_keys);
}

/// The gradients of [`forward`]: probabilities are computed again rather than kept.
pub(crate) fn backward(
    config: &Config,
    window: Option<usize>,
    stretches: &[Stretch],
    heads: Heads<'_>,
    dout: &[f32],
    gradients: HeadGradients<'_>,
    scratch: &mut Scratch,
) {
    let shape = Shape::new(config, window);
    let parts = parts(shape, stretches);
    let dq = pieces(shape, &parts, gradients.q);
    let turned_keys = turned(heads.k, shape.kv_width(), scratch);
    let turned_values = turned(heads.v, shape.kv_width(), scratch);
    let back = Back {
        shape,
        heads,
        turned_keys: &turned_keys,
        turned_values: &turned_values,
        dout,
    };
    let tasks: Vec<_> = parts.iter().zip(dq).collect();
    let spread = worth_spreading(shape, stretches);
    let results: Vec<[Vec<f32>; 2]> = match spread {
        false => tasks
            .into_iter()
            .map(|(part, dq)| back.part(part, dq, scratch))
            .collect(),
        true => tasks
            .into_par_iter()
            .map_init(Scratch::default, |scratch, (part, dq)| {
                back.part(part, dq, scratch)
            })
            .collect(),
    };
    let width = shape.kv_width();
    for (part, [dk, dv]) in parts.iter().zip(results) {
        let place = part.kv_head * shape.dim;
        let rows = |all, own: &[f32]| add_columns(all, width, part.keys, place, own, shape.dim);
        rows(&mut *gradients.k, &dk);
        rows(&mut *gradients.v, &dv);
        // Those of other threads came from elsewhere.
        if !spread {
            scratch.give(dk);
            scratch.give(dv);
        }
    }
    scratch.give(turned_keys);
    scratch.give(turned_values);
}

/// What every part of a gradient reads.
struct Back<'a> {
    shape: Shape,
    heads: Heads<'a>,
    turned_keys: &'a [f32],
    turned_values: &'a [f32],
    dout: &'a [f32],
}

impl Back<'_> {
    /// Fills in the gradients of a part's queries; gives those of the keys and values they see.
    fn part(&self, part: &Part, mut dq: Vec<&mut [f32]>, scratch: &mut Scratch) -> [Vec<f32>; 2] {
        let (shape, dim) = (self.shape, self.shape.dim);
        let seen = (part.past + part.rows.end) * dim;
        let (mut dk, mut dv) = (scratch.zeros(seen), scratch.zeros(seen));
        for block in part.blocks(shape) {
            let (rows, keys) = (block.rows.len(), block.keys);
            let mut own = block.own(shape, &mut dq);
            let seen = (block.first_key - part.keys) * dim..;
            let p = block.probabilities(shape, self.heads, self.turned_keys, scratch);
            let mut dp = scratch.zeros(rows * keys);
            let place = block.q(shape);
            let dout = View::strided(&self.dout[place..], rows, dim, shape.q_width());
            let (values, stride) = block.turned(shape, self.turned_values);
            accumulate(1.0, dout, values, stride, &mut rows_of(&mut dp, keys));
            let weights = View::new(&p, rows, keys).transposed();
            let width = shape.q_width();
            let mut dv = rows_of(&mut dv[seen.clone()], dim);
            accumulate(1.0, weights, &self.dout[place..], width, &mut dv[..keys]);
            vectorised(|| {
                for (p, dp) in p.chunks_exact(keys).zip(dp.chunks_exact_mut(keys)) {
                    let mean = dot(p, dp);
                    for (p, dp) in p.iter().zip(dp) {
                        *dp = p * (*dp - mean);
                    }
                }
            });
            let scores = View::new(&dp, rows, keys);
            own.iter_mut().for_each(|row| row.fill(0.0));
            let keys_side = &self.heads.k[block.kv(shape)..];
            accumulate(shape.scale, scores, keys_side, shape.kv_width(), &mut own);
            let mut dk = rows_of(&mut dk[seen], dim);
            let queries = &self.heads.q[place..];
            let scores = scores.transposed();
            accumulate(shape.scale, scores, queries, width, &mut dk[..keys]);
            scratch.give(p);
            scratch.give(dp);
        }
        [dk, dv]
    }
}

fn worth_spreading(shape: Shape, stretches: &[Stretch]) -> bool {
    let products = |stretch: &Stretch| stretch.len * (stretch.past + stretch.len) / 2;
    let products: usize = stretches.iter().map(products).sum();
    products * shape.heads >= PARALLEL_FROM && rayon::current_num_threads() > 1
}

/// Some queries of one sequence and of the heads that share a key and value head.
///
/// How a sequence is cut depends on its length alone, so no number depends on the threads.
struct Part {
    kv_head: usize,
    /// The row of the sequence's first query, and of its first key.
    queries: usize,
    keys: usize,
    past: usize,
    /// Which of the sequence's queries.
    rows: Range<usize>,
}

fn parts(shape: Shape, stretches: &[Stretch]) -> Vec<Part> {
    let mut parts = Vec::new();
    for kv_head in 0..shape.kv_heads {
        let mut queries = 0;
        for stretch in stretches {
            parts.extend(stretch.cut().map(|rows| Part {
                kv_head,
                queries,
                keys: stretch.keys,
                past: stretch.past,
                rows,
            }));
            queries += stretch.len;
        }
    }
    parts
}

impl Part {
    fn blocks(&self, shape: Shape) -> impl Iterator<Item = Block> {
        (0..shape.group()).flat_map(move |head| {
            self.rows.clone().step_by(BLOCK).map(move |first| {
                let last = self.rows.end.min(first + BLOCK);
                // Keys that even the first query no longer sees, in whole runs.
                let forgotten = (self.past + first + 1).saturating_sub(shape.window);
                let forgotten = forgotten / DEPTH * DEPTH;
                Block {
                    kv_head: self.kv_head,
                    head,
                    rows: first - self.rows.start..last - self.rows.start,
                    first_query: self.queries + first,
                    first_key: self.keys + forgotten,
                    keys: self.past + last - forgotten,
                    before: self.past + first - forgotten,
                }
            })
        })
    }
}

/// Some query rows of one head, and the keys they may see.
struct Block {
    kv_head: usize,
    /// Which of those that share the keys.
    head: usize,
    /// Which of the part's queries.
    rows: Range<usize>,
    first_query: usize,
    first_key: usize,
    keys: usize,
    /// Keys before the first query.
    before: usize,
}

impl Block {
    /// Where the first query is in `q`.
    fn q(&self, shape: Shape) -> usize {
        let head = self.kv_head * shape.group() + self.head;
        self.first_query * shape.q_width() + head * shape.dim
    }

    /// Where the first key is in `k` and its value in `v`.
    fn kv(&self, shape: Shape) -> usize {
        self.first_key * shape.kv_width() + self.kv_head * shape.dim
    }

    /// The first key's place in [`turned`] keys, and how far its numbers are apart.
    fn turned<'a>(&self, shape: Shape, turned: &'a [f32]) -> (&'a [f32], usize) {
        let all = turned.len() / shape.kv_width();
        let start = self.kv_head * shape.dim * all + self.first_key;
        (&turned[start..], all)
    }

    /// Its own head in the rows of a part.
    fn own<'a>(&self, shape: Shape, rows: &'a mut [&mut [f32]]) -> Vec<&'a mut [f32]> {
        let columns = self.head * shape.dim..(self.head + 1) * shape.dim;
        let rows = rows[self.rows.clone()].iter_mut();
        rows.map(|row| &mut row[columns.clone()]).collect()
    }

    fn probabilities(
        &self,
        shape: Shape,
        heads: Heads<'_>,
        turned_keys: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let rows = self.rows.len();
        let mut out = scratch.zeros(rows * self.keys);
        let queries = &heads.q[self.q(shape)..];
        let queries = View::strided(queries, rows, shape.dim, shape.q_width());
        let (keys, stride) = self.turned(shape, turned_keys);
        let mut scores = rows_of(&mut out, self.keys);
        accumulate(shape.scale, queries, keys, stride, &mut scores);
        for (row, scores) in scores.iter_mut().enumerate() {
            let (past, future) = scores.split_at_mut(self.before + row + 1);
            let (forgotten, seen) = past.split_at_mut(past.len().saturating_sub(shape.window));
            softmax(seen);
            forgotten.fill(0.0);
            future.fill(0.0);
        }
        out
    }
}

/// Cuts the rows of all heads into what each part writes.
fn pieces<'a>(shape: Shape, parts: &[Part], rows: &'a mut [f32]) -> Vec<Vec<&'a mut [f32]>> {
    let count = rows.len() / shape.q_width();
    let mut columns: Vec<Vec<&mut [f32]>> = Vec::new();
    columns.resize_with(shape.kv_heads, || Vec::with_capacity(count));
    for row in rows.chunks_exact_mut(shape.q_width()) {
        let pieces = row.chunks_exact_mut(shape.group() * shape.dim);
        columns
            .iter_mut()
            .zip(pieces)
            .for_each(|(column, piece)| column.push(piece));
    }
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut own = |part: &Part| {
        let column = &mut columns[part.kv_head];
        column.take(part.rows.len()).collect()
    };
    parts.iter().map(&mut own).collect()
}

fn rows_of(matrix: &mut [f32], width: usize) -> Vec<&mut [f32]> {
    matrix.chunks_exact_mut(width).collect()
}

/// Rows as columns.
fn turned(rows: &[f32], width: usize, scratch: &mut Scratch) -> Vec<f32> {
    const COLUMNS: usize = 16;
    let count = rows.len() / width;
    let mut out = scratch.take(rows.len());
    let turn = |(index, out): (usize, &mut [f32])| {
        let first = index * COLUMNS;
        for (place, row) in rows.chunks_exact(width).enumerate() {
            let columns = out.chunks_exact_mut(count).zip(&row[first..]);
            columns.for_each(|(out, value)| out[place] = *value);
        }
    };
    match rows.len() < PARALLEL_FROM {
        true => out.chunks_mut(COLUMNS * count).enumerate().for_each(turn),
        false => out
            .par_chunks_mut(COLUMNS * count)
            .enumerate()
            .for_each(turn),
    }
    out
}

/// Adds dense rows to some columns of wider ones, from a row on.
fn add_columns(
    rows: &mut [f32],
    width: usize,
    first: usize,
    column: usize,
    own: &[f32],
    dim: usize,
) {
    let rows = rows[first * width..].chunks_exact_mut(width);
    for (row, own) in rows.zip(own.chunks_exact(dim)) {
        add(&mut row[column..column + dim], own);
    }
}
