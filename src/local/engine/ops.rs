//! The element-wise parts of a decoder: norms, rotary positions, activations, softmax.

use rayon::prelude::*;

use super::family::Activation;
use super::gemm::{dot, vectorised};
use super::rope::Rotary;

/// From this many numbers on, rows are spread over threads.
const PARALLEL_FROM: usize = 1 << 17;

/// Numbers that one task handles.
const PIECE: usize = 1 << 15;

/// Numbers for one task, so that every thread gets as many: whole rows of `width`.
fn piece_of(numbers: usize, width: usize) -> usize {
    let tasks = numbers
        .div_ceil(PIECE)
        .next_multiple_of(rayon::current_num_threads());
    numbers.div_ceil(tasks).next_multiple_of(width)
}

/// Runs `work` over pieces of both slices, cut alike and at whole rows of `width`.
///
/// Each row is worked on alone, so the cut does not show in the result.
pub(crate) fn by_rows<T: Send>(
    width: usize,
    from: &[f32],
    to: &mut [T],
    work: impl Fn(&[f32], &mut [T]) + Sync,
) {
    if to.len() < PARALLEL_FROM || rayon::current_num_threads() == 1 {
        return work(from, to);
    }
    let piece = piece_of(to.len(), width);
    from.par_chunks(piece)
        .zip(to.par_chunks_mut(piece))
        .for_each(|(from, to)| work(from, to));
}

/// `eˣ` within two units of the last place, written so that loops over it vectorise.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.0);
    // Adding 1.5 * 2²³ rounds to a whole number and leaves it in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let k = shifted - 12_582_912.0;
    let r = x - k * 0.693_359_4 + k * 2.121_944_4e-4;
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    p = p * r * r + r + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

impl Activation {
    /// What the gate goes through.
    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + exp(-x)),
            Self::GeluTanh => 0.5 * x * (1.0 + gelu_tanh(x)),
        }
    }

    /// `activation(gate) * up`, into `out`.
    pub(crate) fn gate(self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        let pieces = gate.par_chunks(PIECE).zip(up.par_chunks(PIECE));
        let work = |gate: &[f32], up: &[f32], out: &mut [f32]| {
            vectorised(|| {
                for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = self.apply(*gate) * up;
                }
            });
        };
        if out.len() < PARALLEL_FROM {
            return work(gate, up, out);
        }
        pieces
            .zip(out.par_chunks_mut(PIECE))
            .for_each(|((gate, up), out)| work(gate, up, out));
    }

    /// Turns the gradient of [`gate`](Self::gate), in `dgate`, into those of gate and up.
    pub(crate) fn gate_back(self, gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        if dgate.len() < PARALLEL_FROM {
            return self.gate_back_piece(gate, up, dgate, dup);
        }
        let forward = gate.par_chunks(PIECE).zip(up.par_chunks(PIECE));
        let back = dgate.par_chunks_mut(PIECE).zip(dup.par_chunks_mut(PIECE));
        forward
            .zip(back)
            .for_each(|((gate, up), (dgate, dup))| self.gate_back_piece(gate, up, dgate, dup));
    }

    fn gate_back_piece(self, gate: &[f32], up: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let rows = gate.iter().zip(up).zip(dgate).zip(dup);
        vectorised(|| {
            for (((gate, up), dgate), dup) in rows {
                let (value, slope) = self.with_slope(*gate);
                *dup = *dgate * value;
                *dgate *= up * slope;
            }
        });
    }

    /// What the gate goes through, and its derivative.
    #[inline(always)]
    fn with_slope(self, gate: f32) -> (f32, f32) {
        match self {
            Self::Silu => {
                let sigmoid = 1.0 / (1.0 + exp(-gate));
                (gate * sigmoid, sigmoid * (1.0 + gate * (1.0 - sigmoid)))
            }
            Self::GeluTanh => {
                let tanh = gelu_tanh(gate);
                let inner = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * gate * gate);
                let slope = 0.5 * (1.0 + tanh) + 0.5 * gate * (1.0 - tanh * tanh) * inner;
                (0.5 * gate * (1.0 + tanh), slope)
            }
        }
    }
}

/// `√(2/π)`.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// The hyperbolic tangent inside GELU's approximation.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * GELU_SCALE * (x + GELU_CUBE * x * x * x)) + 1.0)
}

/// Root-mean-square normalisation of rows as wide as `weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    by_rows(width, x, out, |x, out| {
        vectorised(|| {
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                let scale = inverse_rms(x, eps);
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = x * scale * weight;
                }
            }
        });
    });
}

/// Adds the gradient of [`rms_norm`] to `dx` and, if wanted, the weight's to `dweight`.
pub(crate) fn rms_norm_back(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
    dweight: Option<&mut [f32]>,
) {
    if dweight.is_some() || dx.len() < PARALLEL_FROM {
        return vectorised(|| rms_norm_back_piece(x, weight, eps, dy, dx, dweight));
    }
    let piece = piece_of(dx.len(), weight.len());
    x.par_chunks(piece)
        .zip(dy.par_chunks(piece))
        .zip(dx.par_chunks_mut(piece))
        .for_each(|((x, dy), dx)| {
            vectorised(|| rms_norm_back_piece(x, weight, eps, dy, dx, None));
        });
}

#[inline(always)]
fn rms_norm_back_piece(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
    mut dweight: Option<&mut [f32]>,
) {
    let width = weight.len();
    let rows = x.chunks_exact(width).zip(dy.chunks_exact(width));
    for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(width)) {
        let scale = inverse_rms(x, eps);
        let shared = dot3(x, dy, weight) * scale * scale * scale / width as f32;
        for (((dx, x), dy), weight) in dx.iter_mut().zip(x).zip(dy).zip(weight) {
            *dx += scale * dy * weight - x * shared;
        }
        if let Some(dweight) = dweight.as_deref_mut() {
            for ((dweight, x), dy) in dweight.iter_mut().zip(x).zip(dy) {
                *dweight += dy * x * scale;
            }
        }
    }
}

/// `Σ abc`, in lanes so that it vectorises.
#[inline(always)]
fn dot3(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let (a_lanes, a_tail) = a.as_chunks::<16>();
    let (b_lanes, b_tail) = b.as_chunks::<16>();
    let (c_lanes, c_tail) = c.as_chunks::<16>();
    let mut sums = [0.0f32; 16];
    for ((a, b), c) in a_lanes.iter().zip(b_lanes).zip(c_lanes) {
        for (((sum, a), b), c) in sums.iter_mut().zip(a).zip(b).zip(c) {
            *sum += a * b * c;
        }
    }
    let tail = a_tail.iter().zip(b_tail).zip(c_tail);
    sums.iter().sum::<f32>() + tail.map(|((a, b), c)| a * b * c).sum::<f32>()
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// Cosines and sines of rotary positions, `[rows, pairs]` each.
#[derive(Debug)]
pub(crate) struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// Rotated pairs of channels in a head.
    pairs: usize,
}

impl Rotation {
    /// The rotations of the given positions.
    pub(crate) fn new(rotary: &Rotary, positions: impl Iterator<Item = usize>) -> Self {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for frequency in &rotary.frequencies {
                let (s, c) = f64::from(position as f32 * frequency).sin_cos();
                cos.push(c as f32 * rotary.factor);
                sin.push(s as f32 * rotary.factor);
            }
        }
        let pairs = rotary.frequencies.len();
        Self { cos, sin, pairs }
    }

    /// Rotates every head of every row in place; `dim` is a head's width.
    pub(crate) fn apply(&self, x: &mut [f32], heads: usize, dim: usize) {
        self.rotate(x, heads, dim, 1.0);
    }

    /// The gradient of [`apply`](Self::apply): the opposite rotation.
    pub(crate) fn undo(&self, x: &mut [f32], heads: usize, dim: usize) {
        self.rotate(x, heads, dim, -1.0);
    }

    fn rotate(&self, x: &mut [f32], heads: usize, dim: usize, sign: f32) {
        let (half, width) = (self.pairs, heads * dim);
        let rows = piece_of(x.len(), width) / width;
        let work = |((x, cos), sin): ((&mut [f32], &[f32]), &[f32])| {
            let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
            vectorised(|| {
                for (row, tables) in x.chunks_exact_mut(width).zip(tables) {
                    for head in row.chunks_exact_mut(dim) {
                        rotate_head(&mut head[..2 * half], tables, sign);
                    }
                }
            });
        };
        if x.len() < PARALLEL_FROM {
            return work(((x, &self.cos), &self.sin));
        }
        x.par_chunks_mut(rows * width)
            .zip(self.cos.par_chunks(rows * half))
            .zip(self.sin.par_chunks(rows * half))
            .for_each(work);
    }
}

#[inline(always)]
fn rotate_head(head: &mut [f32], (cos, sin): (&[f32], &[f32]), sign: f32) {
    let (low, high) = head.split_at_mut(head.len() / 2);
    for (((low, high), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (a, b, sin) = (*low, *high, sin * sign);
        *low = a * cos - b * sin;
        *high = b * cos + a * sin;
    }
}

/// Turns scores into probabilities in place.
pub(crate) fn softmax(scores: &mut [f32]) {
    vectorised(|| {
        let peak = largest(scores);
        for score in scores.iter_mut() {
            *score = exp(*score - peak);
        }
        let scale = 1.0 / sum(scores);
        for score in scores {
            *score *= scale;
        }
    });
}

/// `ln Σ eˣ`; blocks are added in `f64`, because with a large vocabulary small terms count.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    const BLOCK: usize = 256;
    vectorised(|| {
        let peak = largest(logits);
        let mut total = 0.0;
        for logits in logits.chunks(BLOCK) {
            let mut block = [0.0; BLOCK];
            for (out, logit) in block.iter_mut().zip(logits) {
                *out = exp(logit - peak);
            }
            total += f64::from(sum(&block[..logits.len()]));
        }
        peak + total.ln() as f32
    })
}

/// The largest number, found in lanes so that it vectorises.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let (lanes, tail) = values.as_chunks::<16>();
    let mut best = [f32::NEG_INFINITY; 16];
    for values in lanes {
        for (best, value) in best.iter_mut().zip(values) {
            *best = if *value > *best { *value } else { *best };
        }
    }
    best.iter()
        .chain(tail)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

/// The sum, in lanes so that it vectorises.
#[inline(always)]
pub(crate) fn sum(values: &[f32]) -> f32 {
    let (lanes, tail) = values.as_chunks::<16>();
    let mut sums = [0.0f32; 16];
    for values in lanes {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value;
        }
    }
    sums.iter().sum::<f32>() + tail.iter().sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate() {
        for step in -8700..=8700 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 3e-7, "exp({x}) is off by {error}");
        }
        assert!(exp(-1000.0) < 1.3e-38);
    }

    #[test]
    fn softmax_sums_to_one_whatever_the_peak() {
        let mut scores = [1000.0, 999.0, -1000.0];
        softmax(&mut scores);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!((scores[0] - 0.731_058_6).abs() < 1e-6);
    }
}
