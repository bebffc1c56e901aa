//! AdamW, step for step as PyTorch computes it.

use rayon::prelude::*;

use super::gemm::vectorised;
use crate::error::{Error, Result};

/// Parameters that one task handles: fixed, so that sums do not depend on the number of threads.
const PIECE: usize = 1 << 16;

/// Settings of one step; the defaults are the service's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdamParams {
    pub(crate) learning_rate: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    /// Decoupled: parameters shrink by `learning_rate * weight_decay`, whatever the gradient.
    pub(crate) weight_decay: f64,
    /// The gradient is scaled down to this norm; 0 means never.
    pub(crate) grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

/// Moments of the gradient; empty before the first step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AdamState {
    pub(crate) step: u64,
    pub(crate) mean: Vec<f32>,
    pub(crate) square: Vec<f32>,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StepMetrics {
    /// Norm of the gradient before clipping.
    pub(crate) grad_norm: f64,
    /// Norm of the change of the parameters.
    pub(crate) update_norm: f64,
    /// Steps taken so far, this one included.
    pub(crate) step: u64,
}

impl AdamParams {
    /// Refuses settings that would ruin the adapter.
    ///
    /// # Errors
    ///
    /// Names the setting.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |field: &str, problem: &str| Err(Error::invalid(field, problem));
        let settings = [
            ("learning_rate", self.learning_rate),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
        ];
        for (field, value) in settings {
            if !value.is_finite() || value < 0.0 {
                return refuse(field, "must be finite and at least 0");
            }
        }
        for (field, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&value) {
                return refuse(field, "must be at least 0 and less than 1");
            }
        }
        if !self.grad_clip_norm.is_finite() {
            return refuse("grad_clip_norm", "must be finite");
        }
        Ok(())
    }
}

impl AdamState {
    /// Moves `weights` one step along `gradient`, which is clipped in place if asked; call it on a
    /// thread of the base's pool.
    ///
    /// # Errors
    ///
    /// If a setting or the gradient is not usable; nothing is changed then.
    pub(crate) fn step(
        &mut self,
        weights: &mut [f32],
        gradient: &mut [f32],
        params: &AdamParams,
    ) -> Result<StepMetrics> {
        params.check()?;
        let grad_norm = norm(gradient);
        if !grad_norm.is_finite() {
            return Err(Error::invalid(
                "gradient",
                "is not finite; the step was not taken",
            ));
        }
        if params.grad_clip_norm > 0.0 {
            let factor = (params.grad_clip_norm / (grad_norm + 1e-6)).min(1.0) as f32;
            gradient.iter_mut().for_each(|g| *g *= factor);
        }
        self.mean.resize(gradient.len(), 0.0);
        self.square.resize(gradient.len(), 0.0);
        self.step += 1;
        let update = update(self, weights, gradient, params);
        Ok(StepMetrics {
            grad_norm,
            update_norm: update.sqrt(),
            step: self.step,
        })
    }
}

/// Moves the parameters; gives the squared norm of the change.
fn update(
    state: &mut AdamState,
    weights: &mut [f32],
    gradient: &[f32],
    params: &AdamParams,
) -> f64 {
    let steps = i32::try_from(state.step).unwrap_or(i32::MAX);
    let step_size = (params.learning_rate / (1.0 - params.beta1.powi(steps))) as f32;
    let root = (1.0 - params.beta2.powi(steps)).sqrt() as f32;
    let keep = (1.0 - params.learning_rate * params.weight_decay) as f32;
    let (blend, beta2) = ((1.0 - params.beta1) as f32, params.beta2 as f32);
    let (fresh, eps) = ((1.0 - params.beta2) as f32, params.eps as f32);
    let moments = state.mean.par_chunks_mut(PIECE);
    let moments = moments.zip(state.square.par_chunks_mut(PIECE));
    let pieces = weights
        .par_chunks_mut(PIECE)
        .zip(gradient.par_chunks(PIECE))
        .zip(moments);
    let moved: Vec<f64> = pieces
        .map(|((weights, gradient), (mean, square))| {
            vectorised(|| {
                let mut moved = 0.0;
                let moments = mean.iter_mut().zip(square);
                for ((weight, g), (mean, square)) in weights.iter_mut().zip(gradient).zip(moments) {
                    let before = *weight;
                    *weight *= keep;
                    *mean += (g - *mean) * blend;
                    *square = *square * beta2 + fresh * g * g;
                    *weight -= step_size * (*mean / (square.sqrt() / root + eps));
                    let change = f64::from(*weight - before);
                    moved += change * change;
                }
                moved
            })
        })
        .collect();
    moved.iter().sum()
}

fn norm(values: &[f32]) -> f64 {
    let square = |value: &f32| f64::from(*value).powi(2);
    let pieces = values.par_chunks(PIECE);
    let sums: Vec<f64> = pieces.map(|piece| piece.iter().map(square).sum()).collect();
    sums.iter().sum::<f64>().sqrt()
}
