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
