//! Going on from remembered keys and values: prompts piece by piece, samples token by token.
//!
//! Whoever calls has made room in the tables for the rows that are added.

use rayon::prelude::*;

use super::attention::{self, Heads, Stretch};
use super::config::Config;
use super::gemm::{Rows, View};
use super::linear::{add, forward_all};
use super::model::{Net, Projection};
use super::ops::{rms_norm, softmax};
use super::pages::{PAGE, Table};
use super::pass::{self, Rotations};
use super::scratch::Scratch;

/// The widest head this engine runs.
pub(crate) const MAX_HEAD: usize = 512;

/// From this many remembered numbers on, sequences look back on several threads.
const PARALLEL_FROM: usize = 1 << 18;

/// Tokens to read, and what came before them.
#[derive(Debug)]
pub(crate) struct Unread<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) table: &'a mut Table,
}

/// Reads on, several prompts at once: the last layer's output for each of the tokens, whose keys
/// and values are added.
///
/// For large models a row does not depend on the others, to the last bit.
pub(crate) fn read(net: &Net<'_>, prompts: &mut [Unread<'_>], scratch: &mut Scratch) -> Vec<f32> {
    let config = &net.weights.config;
    let (mut stretches, mut rows) = (Vec::new(), 0);
    for Unread { tokens, table } in prompts.iter() {
        let (past, len) = (table.rows(), tokens.len());
        stretches.push(Stretch {
            keys: rows,
            past,
            len,
        });
        rows += past + len;
    }
    let positions = stretches
        .iter()
        .flat_map(|one| one.past..one.past + one.len);
    let step = Step {
        net,
        rotations: Rotations::new(net.weights, positions),
        rows: Rows::Together,
    };
    let width = config.kv_width();
    let mut keys = scratch.take(rows * width);
    let mut values = scratch.take(rows * width);
    let tokens: Vec<u32> = prompts.iter().flat_map(|one| one.tokens).copied().collect();
    let mut x = pass::embed(net.weights, &tokens, scratch);
    for (layer, kind) in config.layers.iter().enumerate() {
        step.layer(layer, &mut x, scratch, |[q, mut k, mut v], out, scratch| {
            for (one, stretch) in prompts.iter_mut().zip(&stretches) {
                let (own_k, own_v);
                (own_k, k) = k.split_at(stretch.len * width);
                (own_v, v) = v.split_at(stretch.len * width);
                one.table.put(layer, own_k, own_v);
                let rows = stretch.past + stretch.len;
                let place = stretch.keys * width..(stretch.keys + rows) * width;
                let (keys, values) = (&mut keys[place.clone()], &mut values[place]);
                one.table.gather(layer, rows, keys, values);
            }
            let heads = Heads {
                q,
                k: &keys,
                v: &values,
            };
            attention::forward(config, kind.window, &stretches, heads, out, scratch);
        });
    }
    for one in prompts {
        one.table.advance(one.tokens.len());
    }
    scratch.give(keys);
    scratch.give(values);
    x
}

/// The newest token of one sequence, and what came before it.
#[derive(Debug)]
pub(crate) struct Newest<'a> {
    pub(crate) token: u32,
    pub(crate) table: &'a mut Table,
}

/// Feeds one token to each sequence and gives the logits after them, row by row.
///
/// A row does not depend on the others, to the last bit.
pub(crate) fn grow(net: &Net<'_>, sequences: &mut [Newest<'_>], scratch: &mut Scratch) -> Vec<f32> {
    let config = &net.weights.config;
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let positions = sequences.iter().map(|one| one.table.rows());
    let step = Step {
        net,
        rotations: Rotations::new(net.weights, positions),
        rows: Rows::Alone,
    };
    let tokens: Vec<u32> = sequences.iter().map(|one| one.token).collect();
    let mut x = pass::embed(net.weights, &tokens, scratch);
    for (layer, kind) in config.layers.iter().enumerate() {
        step.layer(layer, &mut x, scratch, |[q, k, v], out, scratch| {
            let remembered: usize = sequences.iter().map(|one| one.table.rows()).sum();
            let add_and_look = |scores: &mut Vec<f32>,
                                one: &mut Newest<'_>,
                                [q, k, v]: [&[f32]; 3],
                                out: &mut [f32]| {
                one.table.put(layer, k, v);
                look_back(config, kind.window, layer, q, one.table, scores, out);
            };
            if remembered * q_width < PARALLEL_FROM {
                let mut scores = scratch.take(0);
                let new = k.chunks_exact(kv_width).zip(v.chunks_exact(kv_width));
                let heads = q.chunks_exact(q_width).zip(out.chunks_exact_mut(q_width));
                for ((one, (k, v)), (q, out)) in sequences.iter_mut().zip(new).zip(heads) {
                    add_and_look(&mut scores, one, [q, k, v], out);
                }
                scratch.give(scores);
                return;
            }
            let new = k
                .par_chunks_exact(kv_width)
                .zip(v.par_chunks_exact(kv_width));
            let heads = q
                .par_chunks_exact(q_width)
                .zip(out.par_chunks_exact_mut(q_width));
            let all = sequences.par_iter_mut().zip(new).zip(heads);
            all.for_each_init(Vec::new, |scores, ((one, (k, v)), (q, out))| {
                add_and_look(scores, one, [q, k, v], out);
            });
        });
    }
    for one in sequences.iter_mut() {
        one.table.advance(1);
    }
    let mut normed = scratch.take(x.len());
    rms_norm(&x, &net.weights.norm, config.norm_eps, &mut normed);
    let mut logits = scratch.take(tokens.len() * config.vocab);
    net.head().forward_each(&normed, tokens.len(), &mut logits);
    scratch.give(x);
    scratch.give(normed);
    logits
}

/// Rows on their way through the layers.
struct Step<'a> {
    net: &'a Net<'a>,
    rotations: Rotations,
    /// How projections treat rows.
    rows: Rows,
}

impl Step<'_> {
    /// One layer, added to `x`. `attend` takes queries, keys and values and fills in what they see.
    fn layer(
        &self,
        layer: usize,
        x: &mut [f32],
        scratch: &mut Scratch,
        attend: impl FnOnce([&[f32]; 3], &mut [f32], &mut Scratch),
    ) {
        let (config, weights) = (&self.net.weights.config, &self.net.weights.layers[layer]);
        let dim = config.head_dim;
        let mut normed = scratch.take(x.len());
        rms_norm(x, &weights.attention_norm, config.norm_eps, &mut normed);
        let qkv = [Projection::Q, Projection::K, Projection::V];
        let [mut q, mut k, v] = self.project(layer, qkv, &normed, scratch);
        if let Some(norms) = &weights.head_norms {
            let (raw_q, raw_k) = (scratch.copy(&q), scratch.copy(&k));
            rms_norm(&raw_q, &norms.q, config.norm_eps, &mut q);
            rms_norm(&raw_k, &norms.k, config.norm_eps, &mut k);
            scratch.give(raw_q);
            scratch.give(raw_k);
        }
        if let Some(rotation) = self.rotations.of(config.layers[layer]) {
            rotation.apply(&mut q, config.heads, dim);
            rotation.apply(&mut k, config.kv_heads, dim);
        }
        let mut attended = scratch.take(q.len());
        attend([&q, &k, &v], &mut attended, scratch);
        let [out] = self.project(layer, [Projection::O], &attended, scratch);
        let after = weights.after_norms.as_ref();
        self.add(x, &out, after.map(|after| &after.attention[..]), scratch);

        rms_norm(x, &weights.mlp_norm, config.norm_eps, &mut normed);
        let both = [Projection::Gate, Projection::Up];
        let [gate, up] = self.project(layer, both, &normed, scratch);
        let mut active = scratch.take(gate.len());
        config.activation.gate(&gate, &up, &mut active);
        let [down] = self.project(layer, [Projection::Down], &active, scratch);
        self.add(x, &down, after.map(|after| &after.mlp[..]), scratch);
        for buffer in [normed, q, k, v, attended, out, gate, up, active, down] {
            scratch.give(buffer);
        }
    }

    /// Adds what attention or MLP gave, through its norm where there is one.
    fn add(&self, x: &mut [f32], out: &[f32], norm: Option<&[f32]>, scratch: &mut Scratch) {
        let Some(norm) = norm else {
            return add(x, out);
        };
        let mut normed = scratch.take(out.len());
        rms_norm(out, norm, self.net.weights.config.norm_eps, &mut normed);
        add(x, &normed);
        scratch.give(normed);
    }

    /// Several projections of the same rows.
    fn project<const COUNT: usize>(
        &self,
        layer: usize,
        projections: [Projection; COUNT],
        x: &[f32],
        scratch: &mut Scratch,
    ) -> [Vec<f32>; COUNT] {
        let linears = projections.map(|projection| self.net.projection(layer, projection));
        let n = x.len() / linears[0].weight.cols();
        let mut out = linears.map(|linear| scratch.take(n * linear.weight.rows()));
        forward_all(linears, x, n, self.rows, out.each_mut().map(|y| &mut y[..]));
        out
    }
}

/// The attention of a table's next row, which this layer has already, over all rows before it.
///
/// Every number is added up in the order of [`attention::forward`] (for heads of up to 256 numbers),
/// so that a token gets the same, to the last bit, whether it was sampled or is trained on.
fn look_back(
    config: &Config,
    window: Option<usize>,
    layer: usize,
    q: &[f32],
    table: &Table,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let dim = config.head_dim;
    let group = config.heads / config.kv_heads;
    let rows = table.rows() + 1;
    let seen = rows.saturating_sub(window.unwrap_or(usize::MAX))..rows;
    let first = seen.start / PAGE * PAGE;
    let width = rows.next_multiple_of(PAGE) - first;
    scores.resize(group * (width + dim), 0.0);
    let (scores, sums) = scores.split_at_mut(group * width);
    // The heads of a group share their keys and values.
    let groups = q
        .chunks_exact(group * dim)
        .zip(out.chunks_exact_mut(group * dim));
    for (index, (q, out)) in groups.enumerate() {
        let queries = View::new(q, group, dim);
        scores.fill(0.0);
        for page in table.stretches(layer, seen.clone()) {
            let scores = &mut scores[page.first() - first..];
            page.add_scores(queries, index * dim, scores, width);
        }
        for scores in scores.chunks_exact_mut(width) {
            let scores = &mut scores[seen.start - first..rows - first];
            scores
                .iter_mut()
                .for_each(|score| *score *= config.query_scale);
            softmax(scores);
        }
        out.fill(0.0);
        for part in attention::runs(seen.clone()) {
            sums.fill(0.0);
            for page in table.stretches(layer, part) {
                let rows = page.rows();
                let weights = &scores[page.first() + rows.start - first..];
                let weights = View::strided(weights, group, rows.len(), width);
                page.add_values(weights, index * dim, dim, sums);
            }
            add(out, sums);
        }
    }
}
