//! One token at a time: keys and values of the past are kept, only the newest row is computed.

use super::config::Config;
use super::gemm::{dots, weighted_sum};
use super::linear::add;
use super::model::{Net, Projection};
use super::ops::{Rotation, rms_norm, silu, softmax};
use super::pass;
use super::scratch::Scratch;

/// The widest head this engine runs.
pub(crate) const MAX_HEAD: usize = 512;

/// Keys and values of every layer, one row per position.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Cache {
    /// Adds the keys and values of the next layer.
    pub(crate) fn push_layer(&mut self, keys: Vec<f32>, values: Vec<f32>) {
        self.layers.push((keys, values));
    }
}

/// Sequences that share a prompt's cache and each have their own after it.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    net: Net<'a>,
    prompt: &'a Cache,
    own: Vec<Cache>,
    position: usize,
    scores: Vec<f32>,
}

impl<'a> Decoder<'a> {
    /// Sequences that go on after the prompt.
    pub(crate) fn new(net: Net<'a>, prompt: &'a Cache, sequences: usize) -> Self {
        let config = &net.weights.config;
        let empty = || Cache {
            layers: vec![<(Vec<f32>, Vec<f32>)>::default(); config.layers],
        };
        Self {
            position: prompt.layers[0].0.len() / config.kv_width(),
            own: (0..sequences).map(|_| empty()).collect(),
            scores: Vec::new(),
            net,
            prompt,
        }
    }

    /// Feeds one token to each of the chosen sequences and gives the logits after them.
    ///
    /// Every sequence that is fed at all must be fed at every step: they share a position.
    pub(crate) fn step(
        &mut self,
        live: &[usize],
        tokens: &[u32],
        scratch: &mut Scratch,
    ) -> Vec<f32> {
        let net = self.net;
        let config = &net.weights.config;
        let n = live.len();
        let rotation = Rotation::new(&net.weights.frequencies, std::iter::once(self.position));
        let mut x = pass::embed(net.weights, tokens, scratch);
        for layer in 0..config.layers {
            self.attend(layer, live, &mut x, &rotation, scratch);
            think(net, layer, n, &mut x, scratch);
        }
        self.position += 1;
        let mut normed = scratch.take(x.len());
        rms_norm(&x, &net.weights.norm, config.norm_eps, &mut normed);
        let mut logits = scratch.take(n * config.vocab);
        net.head().forward(&normed, n, &mut logits);
        scratch.give(x);
        scratch.give(normed);
        logits
    }

    fn attend(
        &mut self,
        layer: usize,
        live: &[usize],
        x: &mut [f32],
        rotation: &Rotation,
        scratch: &mut Scratch,
    ) {
        let net = self.net;
        let (config, weights) = (&net.weights.config, &net.weights.layers[layer]);
        let (n, half) = (live.len(), config.head_dim / 2);
        let mut normed = scratch.take(x.len());
        rms_norm(x, &weights.attention_norm, config.norm_eps, &mut normed);
        let mut q = project(net, layer, Projection::Q, &normed, n, scratch);
        let mut k = project(net, layer, Projection::K, &normed, n, scratch);
        let v = project(net, layer, Projection::V, &normed, n, scratch);
        if let Some(norms) = &weights.head_norms {
            let (raw_q, raw_k) = (scratch.copy(&q), scratch.copy(&k));
            rms_norm(&raw_q, &norms.q, config.norm_eps, &mut q);
            rms_norm(&raw_k, &norms.k, config.norm_eps, &mut k);
            scratch.give(raw_q);
            scratch.give(raw_k);
        }
        for row in q.chunks_exact_mut(config.q_width()) {
            rotation.apply(row, config.heads, half);
        }
        for row in k.chunks_exact_mut(config.kv_width()) {
            rotation.apply(row, config.kv_heads, half);
        }

        let mut attended = scratch.take(n * config.q_width());
        let prompt = &self.prompt.layers[layer];
        let new_rows = k
            .chunks_exact(config.kv_width())
            .zip(v.chunks_exact(config.kv_width()));
        let heads = q
            .chunks_exact(config.q_width())
            .zip(attended.chunks_exact_mut(config.q_width()));
        for ((sequence, (k, v)), (q, out)) in live.iter().zip(new_rows).zip(heads) {
            let own = &mut self.own[*sequence].layers[layer];
            own.0.extend_from_slice(k);
            own.1.extend_from_slice(v);
            look_back(config, q, [prompt, own], &mut self.scores, out);
        }
        let mut out = project(net, layer, Projection::O, &attended, n, scratch);
        add(x, &out);
        out.clear();
        for buffer in [normed, q, k, v, attended, out] {
            scratch.give(buffer);
        }
    }
}

/// One row's attention over two stretches of the past.
fn look_back(
    config: &Config,
    q: &[f32],
    past: [&(Vec<f32>, Vec<f32>); 2],
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (dim, width) = (config.head_dim, config.kv_width());
    let scale = (dim as f32).sqrt().recip();
    let group = config.heads / config.kv_heads;
    let [near, far] = past.map(|(keys, _)| keys.len() / width);
    let total = near + far;
    scores.resize(group * total, 0.0);
    // The heads of a group share their keys and values.
    let groups = q
        .chunks_exact(group * dim)
        .zip(out.chunks_exact_mut(group * dim));
    for (index, (q, out)) in groups.enumerate() {
        let start = index * dim;
        let mut first = 0;
        for (keys, _) in past {
            dots(q, dim, &keys[start..], width, &mut scores[first..], total);
            first = near;
        }
        for (scores, out) in scores
            .chunks_exact_mut(total)
            .zip(out.chunks_exact_mut(dim))
        {
            scores.iter_mut().for_each(|score| *score *= scale);
            softmax(scores);
            let (near, far) = scores.split_at(near);
            weighted_sum(near, &past[0].1[start..], width, out);
            let mut rest = [0.0; MAX_HEAD];
            let rest = &mut rest[..dim];
            weighted_sum(far, &past[1].1[start..], width, rest);
            add(out, rest);
        }
    }
}

/// The MLP of one layer, added to `x`.
fn think(net: Net<'_>, layer: usize, n: usize, x: &mut [f32], scratch: &mut Scratch) {
    let (config, weights) = (&net.weights.config, &net.weights.layers[layer]);
    let mut normed = scratch.take(x.len());
    rms_norm(x, &weights.mlp_norm, config.norm_eps, &mut normed);
    let mut gate = project(net, layer, Projection::Gate, &normed, n, scratch);
    let up = project(net, layer, Projection::Up, &normed, n, scratch);
    for (gate, up) in gate.iter_mut().zip(&up) {
        *gate = silu(*gate) * up;
    }
    let out = project(net, layer, Projection::Down, &gate, n, scratch);
    add(x, &out);
    for buffer in [normed, gate, up, out] {
        scratch.give(buffer);
    }
}

fn project(
    net: Net<'_>,
    layer: usize,
    projection: Projection,
    x: &[f32],
    n: usize,
    scratch: &mut Scratch,
) -> Vec<f32> {
    let linear = net.projection(layer, projection);
    let mut y = scratch.take(n * linear.weight.rows());
    linear.forward(x, n, &mut y);
    y
}
