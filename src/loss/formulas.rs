//! Common losses and regularisers in the vocabulary of [`Expr`].
//!
//! Each is a line or two; copy one and change it where yours differs. The functions that
//! return one number per token are marked so: multiply by a mask and reduce with
//! [`Expr::sum`] or [`Expr::mean`].
//!
//! ```
//! use tinker::loss::formulas::{kl_k3, ppo_clip};
//! use tinker::loss::{input, logprobs};
//!
//! let drift = kl_k3(&logprobs(), &input("reference"));
//! let policy = ppo_clip(&logprobs(), &input("old_logprobs"), &input("advantages"), 0.8, 1.2);
//! let loss = (policy + 0.01 * &drift).sum().with_metric("kl:mean", drift.mean());
//! # let _ = loss;
//! ```
//!
//! Regularisers are one more term of a loss:
//!
//! ```
//! use tinker::loss::formulas::{entropy, kl_k2, l1, l2};
//! use tinker::loss::{Expr, input, logprobs};
//!
//! let loss: Expr = -(logprobs() * input("weights")).sum();
//! let drift = logprobs() - input("reference");
//!
//! let with_l1 = &loss + 0.01 * l1(&drift);
//! let with_l2 = &loss + 0.01 * l2(&drift);
//! let with_kl = &loss + 0.01 * kl_k2(&logprobs(), &input("reference")).sum();
//! let exploring = &loss - 0.01 * entropy(&logprobs()).sum();
//! # let _ = (with_l1, with_l2, with_kl, exploring);
//! ```

use super::expr::Expr;

/// The sum of absolute values: a pull towards 0 of constant strength.
pub fn l1(x: &Expr) -> Expr {
    x.abs().sum()
}

/// The sum of squares: a pull towards 0 that grows with the distance.
pub fn l2(x: &Expr) -> Expr {
    x.pow(2.0).sum()
}

/// What each token adds to the entropy, `-p log p`; per token.
///
/// Only tokens whose logprobs are known count. With the `K` best candidates of each position
/// as `[T, K]` target tokens, `entropy(&logprobs()).sum_axis(-1)` is nearly the entropy of
/// each position; subtract it from the loss to keep the model exploring.
pub fn entropy(logprobs: &Expr) -> Expr {
    -(logprobs.exp() * logprobs)
}

/// The plain estimate of the KL divergence from a reference, `log p - log q`; per token.
///
/// Unbiased for tokens sampled from `p`, but noisy, and negative for some tokens. Its gradient
/// is the same whatever `q` is: put it into the advantages, not into the loss.
pub fn kl_k1(logprobs: &Expr, reference: &Expr) -> Expr {
    logprobs - reference
}

/// Half the squared log ratio; per token.
///
/// Never negative and with little noise; a biased value whose gradient, for tokens sampled
/// from `p`, is that of the KL divergence.
pub fn kl_k2(logprobs: &Expr, reference: &Expr) -> Expr {
    0.5 * (logprobs - reference).pow(2.0)
}

/// `q/p - 1 - log(q/p)`; per token. Never negative, unbiased in value, and with little noise.
pub fn kl_k3(logprobs: &Expr, reference: &Expr) -> Expr {
    let log_ratio = reference - logprobs;
    log_ratio.exp() - log_ratio - 1.0
}

/// Proximal policy optimisation: the probability ratio times the advantage, with nothing to
/// gain from a ratio outside `low..=high`; per token.
pub fn ppo_clip(logprobs: &Expr, old: &Expr, advantages: &Expr, low: f64, high: f64) -> Expr {
    let ratio = (logprobs - old).exp();
    -(&ratio * advantages).min(ratio.clamp(low, high) * advantages)
}

/// Clipped importance sampling: every token keeps its gradient, and the ratio, clipped to
/// `low..=high`, only weighs it; per token.
pub fn cispo(logprobs: &Expr, old: &Expr, advantages: &Expr, low: f64, high: f64) -> Expr {
    let ratio = (logprobs - old).exp();
    -(ratio.clamp(low, high).detach() * advantages * logprobs)
}

/// Direct preference optimisation of one pair, given how much more likely than under the
/// reference model each answer has become: sums of `logprobs - reference` over its tokens.
///
/// See [`batch`](super::batch) for the whole loss.
pub fn dpo(chosen: &Expr, rejected: &Expr, beta: f64) -> Expr {
    -(beta * (chosen - rejected)).log_sigmoid()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{CustomLoss, input, logprobs};
    use crate::types::{Datum, TensorData};

    /// Checks the value and the gradient for logprobs -1 and -3 and reference -2.
    #[track_caller]
    fn check(formula: impl Fn(&Expr, &Expr) -> Expr, loss: f64, gradient: [f64; 2]) {
        let data = [Datum::new(vec![0]).with("r", vec![-2.0f32, -2.0])];
        let logprobs_given = [TensorData::from(vec![-1.0f32, -3.0])];
        let expr = formula(&logprobs(), &input("r")).sum();
        let value = expr.evaluate(&data, &logprobs_given).unwrap();
        assert!((value.loss - loss).abs() < 1e-12, "{}", value.loss);
        for (got, want) in value.gradients[0].iter().zip(gradient) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} is not {want}");
        }
    }

    #[test]
    fn values_and_slopes() {
        let e = std::f64::consts::E;
        check(|x, r| l1(&(x - r)), 2.0, [1.0, -1.0]);
        check(|x, r| l2(&(x - r)), 2.0, [2.0, -2.0]);
        check(kl_k1, 0.0, [1.0, 1.0]);
        check(kl_k2, 1.0, [1.0, -1.0]);
        check(kl_k3, 1.0 / e + e - 2.0, [1.0 - 1.0 / e, 1.0 - e]);
        check(
            |x, _| entropy(x),
            1.0 / e + 3.0 / e.powi(3),
            [0.0, 2.0 / e.powi(3)],
        );
        check(
            |x, r| ppo_clip(x, r, &Expr::constant(1.0), 0.5, 2.0),
            -2.0 - 1.0 / e,
            [0.0, -1.0 / e],
        );
        check(
            |x, r| cispo(x, r, &Expr::constant(1.0), 0.5, 2.0),
            2.0 + 1.5,
            [-2.0, -0.5],
        );
        check(
            |x, r| dpo(&x.sum(), &(r.sum() * 2.0), 0.5),
            (1.0 + (-2.0f64).exp()).ln(),
            [-0.5 / (1.0 + 2.0f64.exp()), -0.5 / (1.0 + 2.0f64.exp())],
        );
    }
}
