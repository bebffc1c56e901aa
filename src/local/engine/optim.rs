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
    /// Moves `weights` one step along `gradient`; call it on a thread of the base's pool.
    ///
    /// # Errors
    ///
    /// If a setting or the gradient is not usable, or the step would leave a weight or a moment
    /// that is no number; nothing is changed then.
    pub(crate) fn step(
        &mut self,
        weights: &mut [f32],
        gradient: &[f32],
        params: &AdamParams,
    ) -> Result<StepMetrics> {
        params.check()?;
        let grad_norm = norm(gradient);
        if !grad_norm.is_finite() {
            return Err(Error::invalid(
                "gradient",
                "is not finite; the step was not taken, and the gradient is dropped",
            ));
        }
        self.mean.resize(gradient.len(), 0.0);
        self.square.resize(gradient.len(), 0.0);
        let adam = Adam::new(self.step + 1, params, grad_norm);
        let update_norm = adam.look(self, weights, gradient).sqrt();
        if !update_norm.is_finite() {
            if self.step == 0 {
                *self = Self::default();
            }
            let problem = "would make a step that is not finite, such as 0 / 0 with an eps of 0; it \
                was not taken, and the gradient waits for one that can be";
            return Err(Error::invalid("adam_params", problem));
        }
        adam.take(self, weights, gradient);
        self.step += 1;
        Ok(StepMetrics {
            grad_norm,
            update_norm,
            step: self.step,
        })
    }
}

/// The numbers of one step.
#[derive(Debug, Clone, Copy)]
struct Adam {
    /// What the gradient is multiplied by, so that its norm stays within the limit.
    clip: f32,
    step_size: f32,
    root: f32,
    keep: f32,
    blend: f32,
    beta2: f32,
    fresh: f32,
    eps: f32,
}

impl Adam {
    fn new(step: u64, params: &AdamParams, grad_norm: f64) -> Self {
        let steps = i32::try_from(step).unwrap_or(i32::MAX);
        Self {
            clip: match params.grad_clip_norm > 0.0 {
                true => (params.grad_clip_norm / (grad_norm + 1e-6)).min(1.0) as f32,
                false => 1.0,
            },
            step_size: (params.learning_rate / (1.0 - params.beta1.powi(steps))) as f32,
            root: (1.0 - params.beta2.powi(steps)).sqrt() as f32,
            keep: (1.0 - params.learning_rate * params.weight_decay) as f32,
            blend: (1.0 - params.beta1) as f32,
            beta2: params.beta2 as f32,
            fresh: (1.0 - params.beta2) as f32,
            eps: params.eps as f32,
        }
    }

    /// A parameter and its moments after the step.
    #[inline(always)]
    fn next(self, weight: f32, g: f32, mean: f32, square: f32) -> (f32, f32, f32) {
        let g = g * self.clip;
        let mean = mean + (g - mean) * self.blend;
        let square = square * self.beta2 + self.fresh * g * g;
        let change = self.step_size * (mean / (square.sqrt() / self.root + self.eps));
        (weight * self.keep - change, mean, square)
    }

    /// The squared norm of the change that the step would make; no number, if anything that it
    /// leaves behind would be none.
    fn look(self, state: &AdamState, weights: &[f32], gradient: &[f32]) -> f64 {
        let moments = state.mean.par_chunks(PIECE);
        let moments = moments.zip(state.square.par_chunks(PIECE));
        let pieces = weights.par_chunks(PIECE).zip(gradient.par_chunks(PIECE));
        let moved: Vec<f64> = pieces
            .zip(moments)
            .map(|((weights, gradient), (mean, square))| {
                vectorised(|| {
                    let mut moved = 0.0;
                    let moments = mean.iter().zip(square);
                    for ((weight, g), (mean, square)) in weights.iter().zip(gradient).zip(moments) {
                        let (next, mean, square) = self.next(*weight, *g, *mean, *square);
                        let change = f64::from(next - *weight);
                        // Nothing, unless a moment is infinite.
                        let flaw = f64::from((mean + square) * 0.0);
                        moved += change * change + flaw;
                    }
                    moved
                })
            })
            .collect();
        moved.iter().sum()
    }

    fn take(self, state: &mut AdamState, weights: &mut [f32], gradient: &[f32]) {
        let moments = state.mean.par_chunks_mut(PIECE);
        let moments = moments.zip(state.square.par_chunks_mut(PIECE));
        let pieces = weights
            .par_chunks_mut(PIECE)
            .zip(gradient.par_chunks(PIECE));
        let pieces = pieces.zip(moments);
        pieces.for_each(|((weights, gradient), (mean, square))| {
            vectorised(|| {
                let moments = mean.iter_mut().zip(square);
                for ((weight, g), (mean, square)) in weights.iter_mut().zip(gradient).zip(moments) {
                    (*weight, *mean, *square) = self.next(*weight, *g, *mean, *square);
                }
            });
        });
    }
}

fn norm(values: &[f32]) -> f64 {
    let square = |value: &f32| f64::from(*value).powi(2);
    let pieces = values.par_chunks(PIECE);
    let sums: Vec<f64> = pieces.map(|piece| piece.iter().map(square).sum()).collect();
    sums.iter().sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gradient: [f32; 2], params: AdamParams) {
        let (mut state, mut weights) = (AdamState::default(), vec![1.0, -1.0]);
        let good = AdamParams::default();
        for step in 0..2 {
            let before = (state.clone(), weights.clone());
            let refused = state.step(&mut weights, &gradient, &params);
            let problem = refused.unwrap_err().to_string();
            assert!(problem.contains("was not taken"), "{problem}");
            assert_eq!((state.clone(), weights.clone()), before, "step {step}");
            let taken = state.step(&mut weights, &[0.5, 0.0], &good).unwrap();
            assert_eq!(taken.step, step + 1);
        }
    }

    /// Whatever makes a step that leaves no numbers behind, it is not taken.
    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let params = AdamParams::default();
        check([0.5, 0.0], AdamParams { eps: 0.0, ..params });
        let far = AdamParams {
            learning_rate: 1e38,
            ..params
        };
        check([0.5, 0.1], far);
        check([1e30, 0.1], params);
        check([f32::NAN, 0.1], params);
    }

    #[test]
    fn an_eps_of_0_is_fine_where_nothing_is_0() {
        let (mut state, mut weights) = (AdamState::default(), vec![1.0, -1.0]);
        let params = AdamParams {
            eps: 0.0,
            ..AdamParams::default()
        };
        let taken = state.step(&mut weights, &[0.5, -0.5], &params).unwrap();
        assert!(taken.update_norm > 0.0);
    }
}
