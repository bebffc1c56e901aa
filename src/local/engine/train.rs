//! Training: losses over packed examples, gradients into an adapter, steps of the optimiser.

use std::sync::Arc;

use rayon::prelude::*;

use super::head::{self, Scores, Targets};
use super::lora::{Adapter, LoraSpec, Merged};
use super::loss::{Loss, Terms};
use super::memory;
use super::model::{Base, Net, Weights};
use super::optim::{AdamParams, AdamState, StepMetrics};
use super::pass::{self, Gradients, LayerPass, Packed, Saved};
use super::scratch::Scratch;
use crate::error::{Error, Result};

/// One example: tokens in, targets to score, and what the loss needs to know about them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Datum {
    pub(crate) tokens: Vec<u32>,
    /// What each position should predict: `width` targets per token, row-major.
    pub(crate) targets: Vec<u32>,
    /// Targets per position; 1 except for distillation.
    pub(crate) width: usize,
    pub(crate) inputs: LossInputs,
}

/// A datum's `loss_fn_inputs`, one number per target; empty means not given.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LossInputs {
    pub(crate) weights: Vec<f32>,
    /// Log-probabilities under the policy that sampled the tokens.
    pub(crate) logprobs: Vec<f32>,
    pub(crate) advantages: Vec<f32>,
    pub(crate) clip_low_threshold: Vec<f32>,
    pub(crate) clip_high_threshold: Vec<f32>,
    pub(crate) sequence_ratio_mask: Vec<f32>,
}

/// What a pass says about one datum, one number per target.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DatumOutput {
    pub(crate) logprobs: Vec<f32>,
    pub(crate) elementwise_loss: Vec<f32>,
}

/// What a pass says about all data.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct LossOutput {
    pub(crate) data: Vec<DatumOutput>,
    /// Sum over all tokens: the metric `loss:sum`.
    pub(crate) loss: f64,
}

/// A model in training: its adapter, the gradients gathered so far and the optimiser's state.
#[derive(Debug, Clone)]
pub(crate) struct Trainer {
    base: Base,
    pub(super) adapter: Arc<Adapter>,
    pub(super) gradient: Vec<f32>,
    pub(super) adam: AdamState,
}

impl Base {
    /// About how much memory training an adapter takes: parameters, gradients, the optimiser's two
    /// means, a snapshot, and the merged weights of a small model.
    pub(crate) fn training_bytes(&self, spec: &LoraSpec) -> usize {
        let weights = self.weights().len();
        let merged = if weights <= Merged::LIMIT { weights } else { 0 };
        size_of::<f32>() * (5 * spec.params(self.config()) + merged)
    }
}

impl Trainer {
    /// About how much memory a pass over data takes, with gradients or without.
    pub(crate) fn pass_bytes(&self, data: &[Datum], backward: bool) -> usize {
        let config = self.base.config();
        let lengths = || data.iter().map(|datum| datum.tokens.len());
        let (total, longest) = (lengths().sum::<usize>(), lengths().max().unwrap_or(0));
        let weights = self.base.weights().len();
        let small = weights <= Merged::LIMIT;
        let groups = self.base.threads() * if small { 4 } else { 1 };
        let rows = total.min(groups * longest.max(GROUP_ROWS));
        let (width, mlp) = (config.width, config.mlp);
        let layer = 6 * width + 3 * config.q_width() + 3 * config.kv_width() + 2 * mlp;
        let layers = if backward { config.layers.len() } else { 1 };
        let gradients = match (backward, small) {
            (false, _) => 0,
            (true, true) => groups * weights,
            (true, false) => groups * self.adapter.params().len(),
        };
        size_of::<f32>() * (rows * layer * layers + gradients)
    }

    /// A fresh adapter on a base.
    ///
    /// # Errors
    ///
    /// If the rank or the selection cannot be trained; see [`LoraSpec::check`].
    pub(crate) fn new(base: &Base, spec: LoraSpec) -> Result<Self> {
        Ok(Self::from_adapter(base, Adapter::new(spec, base.config())?))
    }

    /// Goes on from an adapter, with a fresh optimiser.
    pub(crate) fn from_adapter(base: &Base, adapter: Adapter) -> Self {
        Self {
            base: base.clone(),
            gradient: Vec::new(),
            adam: AdamState::default(),
            adapter: Arc::new(adapter),
        }
    }

    /// How many steps the optimiser has taken.
    pub(crate) fn steps(&self) -> u64 {
        self.adam.step
    }

    /// The base this trains on.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// The adapter as it is now; later steps leave this snapshot alone.
    pub(crate) fn adapter(&self) -> Arc<Adapter> {
        self.adapter.clone()
    }

    /// Losses and log-probabilities only.
    ///
    /// # Errors
    ///
    /// If a datum does not suit the model or the loss; see [`check`].
    pub(crate) fn forward(&self, data: &[Datum], loss: &Loss) -> Result<LossOutput> {
        forward(&self.base, Some(&self.adapter), data, loss)
    }

    /// Losses, and their gradients added to those gathered since the last step.
    ///
    /// # Errors
    ///
    /// If a datum does not suit the model or the loss; nothing is added then.
    pub(crate) fn forward_backward(&mut self, data: &[Datum], loss: &Loss) -> Result<LossOutput> {
        check(&self.base, data, loss)?;
        self.gradient.resize(self.adapter.params().len(), 0.0);
        let (base, adapter, gradient) = (&self.base, &self.adapter, &mut self.gradient);
        Ok(base.run(|| {
            let net = Net::new(base.weights(), Some(adapter));
            let fresh = || adapter.slots(base.config(), net.is_unmerged());
            let (output, total) = run(base, net, data, loss, Some(&fresh));
            if let Some(mut total) = total {
                adapter.collect(&mut total, gradient);
            }
            output
        }))
    }

    /// Moves the adapter along the gathered gradients and forgets them.
    ///
    /// Without gradients since the last step, theirs count as 0: momentum and weight decay still act.
    ///
    /// # Errors
    ///
    /// If the gradients are not finite: they are dropped and the adapter stays as it is. If the
    /// settings would make a step that is not: everything stays as it is, the gradients too.
    pub(crate) fn optim_step(&mut self, params: &AdamParams) -> Result<StepMetrics> {
        let mut gradient = std::mem::take(&mut self.gradient);
        gradient.resize(self.adapter.params().len(), 0.0);
        let adapter = Arc::make_mut(&mut self.adapter);
        let (adam, base) = (&mut self.adam, &self.base);
        let metrics = base.run(|| adam.step(adapter.params_mut(), &gradient, params));
        // What is no number would spoil every later step.
        if metrics.is_ok() || gradient.iter().any(|g| !g.is_finite()) {
            gradient.clear();
        }
        self.gradient = gradient;
        metrics
    }
}

/// Losses and log-probabilities of a base, or of a base with an adapter.
///
/// # Errors
///
/// If a datum does not suit the model or the loss; see [`check`].
pub(crate) fn forward(
    base: &Base,
    adapter: Option<&Adapter>,
    data: &[Datum],
    loss: &Loss,
) -> Result<LossOutput> {
    check(base, data, loss)?;
    Ok(base.run(|| run(base, Net::new(base.weights(), adapter), data, loss, None).0))
}

/// Refuses data that would not fit the model or the loss, naming the datum.
///
/// # Errors
///
/// For empty or overlong data, tokens outside the vocabulary, and inputs that are missing, have
/// another length than the targets, or are not finite.
pub(crate) fn check(base: &Base, data: &[Datum], loss: &Loss) -> Result<()> {
    if data.is_empty() {
        return Err(Error::invalid("data", "must not be empty"));
    }
    for (index, datum) in data.iter().enumerate() {
        check_datum(base, datum, loss).map_err(|error| error.within(&format!("data[{index}]")))?;
    }
    Ok(())
}

fn check_datum(base: &Base, datum: &Datum, loss: &Loss) -> Result<()> {
    let (len, limit) = (datum.tokens.len(), base.config().max_positions);
    if len == 0 || len > limit {
        let problem = format!("must have between 1 and {limit} tokens, got {len}");
        return Err(Error::invalid("model_input", problem));
    }
    if datum.width == 0 || datum.targets.len() != len * datum.width {
        let problem = format!("has {} targets for {len} input tokens", datum.targets.len());
        return Err(Error::invalid("loss_fn_inputs.target_tokens", problem));
    }
    base.config().check_tokens("model_input", &datum.tokens)?;
    base.config()
        .check_tokens("loss_fn_inputs.target_tokens", &datum.targets)?;
    loss.check(datum)
}

/// Rows packed together, at most (a longer sequence travels alone).
const GROUP_ROWS: usize = 512;

/// Runs all data in groups spread over the pool, and adds up in group order: the result does
/// not depend on the number of threads.
pub(crate) fn run(
    base: &Base,
    net: Net<'_>,
    data: &[Datum],
    loss: &Loss,
    fresh: Option<&(dyn Fn() -> Gradients + Sync)>,
) -> (LossOutput, Option<Gradients>) {
    run_within(base, net, data, loss, fresh, memory::activations())
}

/// The same with room for so many numbers between forward and backward.
pub(super) fn run_within(
    base: &Base,
    net: Net<'_>,
    data: &[Datum],
    loss: &Loss,
    fresh: Option<&(dyn Fn() -> Gradients + Sync)>,
    room: usize,
) -> (LossOutput, Option<Gradients>) {
    let groups = group(data, net.is_unmerged());
    // A large model's passes are spread over threads themselves, and take memory.
    let wave = match net.is_unmerged() {
        true => 1,
        false => 4 * base.threads(),
    };
    let mut output = LossOutput::default();
    let mut total: Option<Gradients> = None;
    for groups in groups.chunks(wave) {
        let results: Vec<_> = groups
            .par_iter()
            .map(|group| {
                let mut gradients = fresh.map(|fresh| fresh());
                let outputs = base.with_scratch(|scratch| {
                    pass(&net, group, loss, gradients.as_mut(), room, scratch)
                });
                (outputs, gradients)
            })
            .collect();
        for (outputs, gradients) in results {
            output.data.extend(outputs);
            match (&mut total, gradients) {
                (Some(total), Some(gradients)) => total.add(&gradients),
                (None, gradients) => total = gradients,
                _ => {}
            }
        }
    }
    output.loss = output
        .data
        .iter()
        .flat_map(|datum| &datum.elementwise_loss)
        .map(|value| f64::from(*value))
        .sum();
    (output, total)
}

/// Cuts data into consecutive groups, the same way on every machine: enough of them to spread
/// over threads or, for a large model, whose products are spread themselves, as few as possible.
fn group(data: &[Datum], large: bool) -> Vec<&[Datum]> {
    let total: usize = data.iter().map(|datum| datum.tokens.len()).sum();
    let target = match large {
        true => GROUP_ROWS,
        false => (total / 8).clamp(64, GROUP_ROWS),
    };
    cut(data, target)
}

/// Cuts data into consecutive groups of at most so many rows; a longer datum is one of its own.
fn cut(data: &[Datum], target: usize) -> Vec<&[Datum]> {
    let mut groups = Vec::new();
    let (mut start, mut rows) = (0, 0);
    for (index, datum) in data.iter().enumerate() {
        let same_width = data[start].width == datum.width;
        if index > start && (rows + datum.tokens.len() > target || !same_width) {
            groups.push(&data[start..index]);
            (start, rows) = (index, 0);
        }
        rows += datum.tokens.len();
    }
    groups.push(&data[start..]);
    groups
}

/// One group forward and, if gradients are wanted, backward.
fn pass(
    net: &Net<'_>,
    group: &[Datum],
    loss: &Loss,
    gradients: Option<&mut Gradients>,
    room: usize,
    scratch: &mut Scratch,
) -> Vec<DatumOutput> {
    let config = &net.weights.config;
    let packed = Packed::new(net.weights, group.iter().map(|datum| &datum.tokens[..]));
    let layers = config.layers.len();
    // Beyond that layers are computed again on the way back; the numbers are the same.
    let keep = packed.rows() * layers * Saved::per_row(config) <= room;
    let at = |layer| LayerPass {
        net,
        layer,
        packed: &packed,
    };
    let mut trail = Vec::new();
    let mut x = pass::embed(net.weights, &packed.tokens, scratch);
    for layer in 0..layers {
        let input = (gradients.is_some() && !keep).then(|| scratch.copy(&x));
        let (output, saved) = at(layer).forward(x, scratch);
        match (&gradients, input) {
            (Some(_), Some(input)) => {
                saved.recycle(scratch);
                trail.push(Step::Again(input));
            }
            (Some(_), None) => trail.push(Step::Kept(Box::new(saved))),
            (None, _) => saved.recycle(scratch),
        }
        x = output;
    }

    let normed = head::norm(net, &x, scratch);
    let mut dnormed = gradients.is_some().then(|| scratch.zeros(x.len()));
    let mut gradients = gradients;
    let mut outputs = Vec::new();
    let (mut first, width) = (0, config.width);
    for data in cut(group, head::rows_at_once(config.vocab)) {
        let tokens: Vec<u32> = data
            .iter()
            .flat_map(|datum| &datum.targets)
            .copied()
            .collect();
        let targets = Targets {
            tokens: &tokens,
            width: group[0].width,
        };
        let rows = first..first + tokens.len() / targets.width * width;
        first = rows.end;
        let normed = &normed[rows.clone()];
        let mut scores = Scores::new(net, normed, targets, gradients.is_some(), scratch);
        let (some, dlogp) = evaluate(data, loss, &scores.logp);
        outputs.extend(some);
        if let (Some(gradients), Some(dnormed)) = (&mut gradients, &mut dnormed) {
            scores.backward(net, &dlogp, gradients, &mut dnormed[rows], scratch);
        }
        scores.recycle(scratch);
    }
    if let (Some(gradients), Some(dnormed)) = (gradients, dnormed) {
        let mut dx = head::norm_back(net, &x, &dnormed, gradients, scratch);
        scratch.give(dnormed);
        for (layer, step) in trail.into_iter().enumerate().rev() {
            let saved = match step {
                Step::Kept(saved) => *saved,
                Step::Again(input) => {
                    let (output, saved) = at(layer).forward(input, scratch);
                    scratch.give(output);
                    saved
                }
            };
            let below = layer > 0 || gradients.rest.is_some();
            at(layer).backward(saved, &mut dx, gradients, below, scratch);
        }
        embed_back(net.weights, &packed.tokens, &dx, gradients);
        scratch.give(dx);
    }
    scratch.give(x);
    scratch.give(normed);
    outputs
}

/// A layer on the way back: what it computed, or what to compute it from again.
enum Step {
    Kept(Box<Saved>),
    Again(Vec<f32>),
}

fn evaluate(group: &[Datum], loss: &Loss, logp: &[f32]) -> (Vec<DatumOutput>, Vec<f32>) {
    let mut dlogp = Vec::with_capacity(logp.len());
    let mut rest = logp;
    let outputs = group
        .iter()
        .map(|datum| {
            let logprobs;
            (logprobs, rest) = rest.split_at(datum.targets.len());
            let Terms {
                elementwise,
                gradient,
            } = loss.evaluate(datum, logprobs);
            dlogp.extend(gradient);
            DatumOutput {
                logprobs: logprobs.to_vec(),
                elementwise_loss: elementwise,
            }
        })
        .collect();
    (outputs, dlogp)
}

fn embed_back(weights: &Weights, tokens: &[u32], dx: &[f32], gradients: &mut Gradients) {
    let Some(rest) = &mut gradients.rest else {
        return;
    };
    let (width, scale) = (weights.config.width, weights.config.embed_scale());
    for (token, dx) in tokens.iter().zip(dx.chunks_exact(width)) {
        let start = *token as usize * width;
        let embed = &mut rest.embed[start..start + width];
        for (embed, dx) in embed.iter_mut().zip(dx) {
            *embed += scale * dx;
        }
    }
}
