//! One forward (and backward) pass of the decoder over packed sequences.

use super::attention::{self, HeadGradients, Heads, Stretch};
use super::config::{Config, LayerKind};
use super::linear::{Slot, add};
use super::lora::Target;
use super::model::{Net, Projection, Weights};
use super::ops::{Rotation, rms_norm, rms_norm_back};
use super::pages::Precision;
use super::scratch::Scratch;

/// Sequences laid end to end: rows are tokens, and nothing is padded.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) tokens: Vec<u32>,
    /// First row and length of each sequence.
    pub(crate) spans: Vec<(usize, usize)>,
    rotations: Rotations,
}

/// The rotations of some rows, one for each kind of rotary positions the model has.
#[derive(Debug)]
pub(crate) struct Rotations(Vec<Rotation>);

impl Rotations {
    /// The rotations of rows at these positions.
    pub(crate) fn new(weights: &Weights, positions: impl Iterator<Item = usize> + Clone) -> Self {
        let rotation = |rotary| Rotation::new(rotary, positions.clone());
        Self(weights.rotaries.iter().map(rotation).collect())
    }

    /// The one a layer uses, if it rotates at all.
    pub(crate) fn of(&self, kind: LayerKind) -> Option<&Rotation> {
        kind.rope.map(|index| &self.0[index])
    }
}

impl Packed {
    /// Packs sequences, each starting at position 0.
    pub(crate) fn new<'a>(weights: &Weights, sequences: impl Iterator<Item = &'a [u32]>) -> Self {
        let (mut tokens, mut spans) = (Vec::new(), Vec::new());
        for sequence in sequences {
            spans.push((tokens.len(), sequence.len()));
            tokens.extend_from_slice(sequence);
        }
        let positions = spans.iter().flat_map(|(_, len)| 0..*len);
        let rotations = Rotations::new(weights, positions);
        Self {
            tokens,
            spans,
            rotations,
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }
}

/// What a layer computed on its way forward, as its gradient needs it.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    input: Vec<f32>,
    attention_in: Vec<f32>,
    raw_q: Vec<f32>,
    raw_k: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// What attention gave, where a norm follows.
    attention_out: Vec<f32>,
    middle: Vec<f32>,
    mlp_in: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What the MLP gave, where a norm follows.
    mlp_out: Vec<f32>,
}

impl Saved {
    /// Gives every buffer back.
    pub(crate) fn recycle(self, scratch: &mut Scratch) {
        let Self {
            input,
            attention_in,
            raw_q,
            raw_k,
            q,
            k,
            v,
            attended,
            attention_out,
            middle,
            mlp_in,
            gate,
            up,
            mlp_out,
        } = self;
        for buffer in [
            input,
            attention_in,
            raw_q,
            raw_k,
            q,
            k,
            v,
            attended,
            attention_out,
            middle,
            mlp_in,
            gate,
            up,
            mlp_out,
        ] {
            scratch.give(buffer);
        }
    }

    /// Numbers kept per row of a layer, to decide whether keeping them is affordable.
    pub(crate) fn per_row(config: &Config) -> usize {
        let after = if config.family.after_norms { 2 } else { 0 };
        let raw = usize::from(config.family.head_norms);
        (4 + after) * config.width
            + (2 + raw) * config.q_width()
            + (2 + raw) * config.kv_width()
            + 2 * config.mlp
    }
}

/// The gradients of one pass.
#[derive(Debug)]
pub(crate) struct Gradients {
    pub(crate) layers: Vec<[Slot; 7]>,
    pub(crate) head: Slot,
    /// Norms and embedding, when the whole model is trained.
    pub(crate) rest: Option<Box<Rest>>,
}

/// Gradients of what adapters never touch.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    pub(crate) embed: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) layers: Vec<RestLayer>,
}

/// Gradients of one layer's norms.
#[derive(Debug, Clone)]
pub(crate) struct RestLayer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
}

impl Gradients {
    /// Slots for a model of which nothing is trained.
    pub(crate) fn frozen(config: &Config) -> Self {
        Self {
            layers: vec![[const { Slot::Frozen }; 7]; config.layers.len()],
            head: Slot::Frozen,
            rest: None,
        }
    }

    /// The slot of one matrix.
    pub(crate) fn slot(&mut self, target: Target) -> &mut Slot {
        match target {
            Target::Layer(layer, projection) => &mut self.layers[layer][projection as usize],
            Target::Head => &mut self.head,
        }
    }

    /// Adds the gradients of another pass.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self
            .layers
            .iter_mut()
            .flatten()
            .zip(other.layers.iter().flatten())
        {
            mine.add(theirs);
        }
        self.head.add(&other.head);
        if let (Some(mine), Some(theirs)) = (&mut self.rest, &other.rest) {
            add(&mut mine.embed, &theirs.embed);
            add(&mut mine.norm, &theirs.norm);
            for (mine, theirs) in mine.layers.iter_mut().zip(&theirs.layers) {
                add(&mut mine.attention_norm, &theirs.attention_norm);
                add(&mut mine.mlp_norm, &theirs.mlp_norm);
                add(&mut mine.q_norm, &theirs.q_norm);
                add(&mut mine.k_norm, &theirs.k_norm);
            }
        }
    }
}

/// The embeddings of packed tokens.
pub(crate) fn embed(weights: &Weights, tokens: &[u32], scratch: &mut Scratch) -> Vec<f32> {
    let width = weights.config.width;
    let mut x = scratch.take(tokens.len() * width);
    for (token, row) in tokens.iter().zip(x.chunks_exact_mut(width)) {
        weights.embed.read_row(*token as usize, row);
    }
    let scale = weights.config.embed_scale();
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
    x
}

/// One layer about to run over packed rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPass<'a> {
    pub(crate) net: &'a Net<'a>,
    pub(crate) layer: usize,
    pub(crate) packed: &'a Packed,
}

impl LayerPass<'_> {
    /// Takes the layer's input; gives its output and what its gradient needs.
    pub(crate) fn forward(&self, input: Vec<f32>, scratch: &mut Scratch) -> (Vec<f32>, Saved) {
        let Self { net, layer, packed } = *self;
        let config = &net.weights.config;
        let weights = &net.weights.layers[layer];
        let (n, width, dim) = (packed.rows(), config.width, config.head_dim);
        let kind = config.layers[layer];
        let linear = |projection, x: &[f32], scratch: &mut Scratch| {
            let linear = net.projection(layer, projection);
            let mut y = scratch.take(n * linear.weight.rows());
            linear.forward(x, n, &mut y);
            y
        };

        let mut attention_in = scratch.take(n * width);
        rms_norm(
            &input,
            &weights.attention_norm,
            config.norm_eps,
            &mut attention_in,
        );
        let raw_q = linear(Projection::Q, &attention_in, scratch);
        let raw_k = linear(Projection::K, &attention_in, scratch);
        let mut v = linear(Projection::V, &attention_in, scratch);
        // What comes before a norm is kept for its gradient; without one there is nothing to keep.
        let (raw_q, mut q, raw_k, mut k) = match &weights.head_norms {
            None => (Vec::new(), raw_q, Vec::new(), raw_k),
            Some(norms) => {
                let mut q = scratch.take(raw_q.len());
                let mut k = scratch.take(raw_k.len());
                rms_norm(&raw_q, &norms.q, config.norm_eps, &mut q);
                rms_norm(&raw_k, &norms.k, config.norm_eps, &mut k);
                (raw_q, q, raw_k, k)
            }
        };
        if let Some(rotation) = packed.rotations.of(kind) {
            rotation.apply(&mut q, config.heads, dim);
            rotation.apply(&mut k, config.kv_heads, dim);
        }
        // As samplers keep them; gradients pass as if nothing had been rounded.
        let precision = Precision::of(net.weights);
        precision.round(&mut k);
        precision.round(&mut v);

        let mut attended = scratch.take(n * config.q_width());
        let heads = Heads {
            q: &q,
            k: &k,
            v: &v,
        };
        attention::forward(
            config,
            kind.window,
            &Stretch::whole(&packed.spans),
            heads,
            &mut attended,
            scratch,
        );
        let after = weights.after_norms.as_ref();
        let norm = |out: Vec<f32>, norm: Option<&[f32]>, scratch: &mut Scratch| {
            let Some(norm) = norm else {
                return (Vec::new(), out);
            };
            let mut normed = scratch.take(out.len());
            rms_norm(&out, norm, config.norm_eps, &mut normed);
            (out, normed)
        };
        let out = linear(Projection::O, &attended, scratch);
        let (attention_out, mut middle) =
            norm(out, after.map(|after| &after.attention[..]), scratch);
        add(&mut middle, &input);

        let mut mlp_in = scratch.take(n * width);
        rms_norm(&middle, &weights.mlp_norm, config.norm_eps, &mut mlp_in);
        let gate = linear(Projection::Gate, &mlp_in, scratch);
        let up = linear(Projection::Up, &mlp_in, scratch);
        let mut active = scratch.take(gate.len());
        config.activation.gate(&gate, &up, &mut active);
        let out = linear(Projection::Down, &active, scratch);
        scratch.give(active);
        let (mlp_out, mut output) = norm(out, after.map(|after| &after.mlp[..]), scratch);
        add(&mut output, &middle);
        let saved = Saved {
            input,
            attention_in,
            raw_q,
            raw_k,
            q,
            k,
            v,
            attended,
            attention_out,
            middle,
            mlp_in,
            gate,
            up,
            mlp_out,
        };
        (output, saved)
    }

    /// Turns the gradient of the layer's output into that of its input, in place.
    ///
    /// `below` says whether anything below the layer wants that gradient.
    pub(crate) fn backward(
        &self,
        saved: Saved,
        gradient: &mut [f32],
        gradients: &mut Gradients,
        below: bool,
        scratch: &mut Scratch,
    ) {
        let Self { net, layer, packed } = *self;
        let config = &net.weights.config;
        let weights = &net.weights.layers[layer];
        let (n, dim, eps) = (packed.rows(), config.head_dim, config.norm_eps);
        let kind = config.layers[layer];
        let after = weights.after_norms.as_ref();
        let slots = &mut gradients.layers[layer];
        let mut rest = gradients.rest.as_mut().map(|rest| &mut rest.layers[layer]);
        let mut back = |projection: Projection, x: &[f32], dy: &[f32], dx: Option<&mut [f32]>| {
            net.projection(layer, projection).backward(
                x,
                dy,
                n,
                dx,
                &mut slots[projection as usize],
            );
        };

        // The gradient of what was added to the stream, before the norm it went through.
        let before = |out: &[f32], norm: &[f32], gradient: &[f32], scratch: &mut Scratch| {
            let mut dout = scratch.zeros(out.len());
            rms_norm_back(out, norm, eps, gradient, &mut dout, None);
            dout
        };

        let mut dgate = scratch.zeros(n * config.mlp);
        let mut active = scratch.take(saved.gate.len());
        config.activation.gate(&saved.gate, &saved.up, &mut active);
        let dout = after.map(|after| before(&saved.mlp_out, &after.mlp, gradient, scratch));
        back(
            Projection::Down,
            &active,
            dout.as_deref().unwrap_or(gradient),
            Some(&mut dgate),
        );
        let mut dup = active;
        config
            .activation
            .gate_back(&saved.gate, &saved.up, &mut dgate, &mut dup);
        let mut dmlp = scratch.zeros(n * config.width);
        back(Projection::Gate, &saved.mlp_in, &dgate, Some(&mut dmlp));
        back(Projection::Up, &saved.mlp_in, &dup, Some(&mut dmlp));
        let dweight = rest.as_mut().map(|rest| &mut rest.mlp_norm[..]);
        rms_norm_back(
            &saved.middle,
            &weights.mlp_norm,
            eps,
            &dmlp,
            gradient,
            dweight,
        );

        let mut dattended = scratch.zeros(n * config.q_width());
        scratch.give(dout.unwrap_or_default());
        let dout =
            after.map(|after| before(&saved.attention_out, &after.attention, gradient, scratch));
        back(
            Projection::O,
            &saved.attended,
            dout.as_deref().unwrap_or(gradient),
            Some(&mut dattended),
        );
        scratch.give(dout.unwrap_or_default());
        let mut dq = scratch.take(n * config.q_width());
        let mut dk = scratch.zeros(n * config.kv_width());
        let mut dv = scratch.zeros(n * config.kv_width());
        let heads = Heads {
            q: &saved.q,
            k: &saved.k,
            v: &saved.v,
        };
        let head_gradients = HeadGradients {
            q: &mut dq,
            k: &mut dk,
            v: &mut dv,
        };
        attention::backward(
            config,
            kind.window,
            &Stretch::whole(&packed.spans),
            heads,
            &dattended,
            head_gradients,
            scratch,
        );
        if let Some(rotation) = packed.rotations.of(kind) {
            rotation.undo(&mut dq, config.heads, dim);
            rotation.undo(&mut dk, config.kv_heads, dim);
        }
        if let Some(norms) = &weights.head_norms {
            let (mut raw_dq, mut raw_dk) = (scratch.zeros(dq.len()), scratch.zeros(dk.len()));
            let dweight = rest.as_mut().map(|rest| &mut rest.q_norm[..]);
            rms_norm_back(&saved.raw_q, &norms.q, eps, &dq, &mut raw_dq, dweight);
            let dweight = rest.as_mut().map(|rest| &mut rest.k_norm[..]);
            rms_norm_back(&saved.raw_k, &norms.k, eps, &dk, &mut raw_dk, dweight);
            scratch.give(std::mem::replace(&mut dq, raw_dq));
            scratch.give(std::mem::replace(&mut dk, raw_dk));
        }

        let mut dinput = dmlp;
        dinput.fill(0.0);
        for (projection, dy) in [
            (Projection::Q, &dq),
            (Projection::K, &dk),
            (Projection::V, &dv),
        ] {
            back(
                projection,
                &saved.attention_in,
                dy,
                below.then_some(&mut dinput[..]),
            );
        }
        if below {
            let dweight = rest.as_mut().map(|rest| &mut rest.attention_norm[..]);
            rms_norm_back(
                &saved.input,
                &weights.attention_norm,
                eps,
                &dinput,
                gradient,
                dweight,
            );
        }
        for buffer in [dgate, dup, dattended, dq, dk, dv, dinput] {
            scratch.give(buffer);
        }
        saved.recycle(scratch);
    }
}
