//! Custom losses: formulas over logprobs with reverse-mode gradients.
//!
//! A custom loss is a scalar computed from the log probabilities a model gives the target
//! tokens of a batch, and from whatever the datums carry in their loss inputs. Write it as a
//! formula; gradients follow.
//!
//! ```
//! use tinker::loss::{CustomLoss, input, logprobs};
//! use tinker::{Datum, ModelInput, TensorData};
//!
//! // Maximise the advantage-weighted likelihood, but stay close to a reference model.
//! let drift = logprobs() - input("reference");
//! let loss = (0.25 * drift.pow(2.0) - logprobs() * input("advantages"))
//!     .sum()
//!     .with_metric("drift:mean", drift.abs().mean());
//!
//! let datum = Datum::new(ModelInput::from_ints(vec![1, 2]))
//!     .with_target_tokens(vec![2, 3])
//!     .with("advantages", vec![1.0f32, -1.0])
//!     .with("reference", vec![-1.0f32, -2.0]);
//! let value = loss.evaluate(&[datum], &[TensorData::from(vec![-1.0f32, -1.0])])?;
//! assert_eq!(value.loss, 0.25);
//! assert_eq!(value.gradients, [[-1.0, 1.5]]);
//! assert_eq!(value.metrics["custom/drift:mean"], 0.5);
//! # Ok::<(), tinker::Error>(())
//! ```
//!
//! There are three ways to write one, all accepted by `forward_backward_custom`:
//!
//! | form | the loss of a batch is | can run on the service |
//! |---|---|---|
//! | an [`Expr`], or an [`Objective`] with metrics | the sum of one formula over the datums | yes |
//! | [`batch`] | one formula that may combine any datums | no |
//! | [`from_fn`] | whatever a closure computes, gradients included | no |
//!
//! Common formulas are ready-made in [`formulas`], and short enough to copy and change.

mod arith;
mod array;
mod backward;
mod custom;
mod expr;
pub mod formulas;
mod graph;
mod handle;
mod kernel;
mod objective;
mod program;
mod surrogate;

pub(crate) use custom::check_finite;
pub use custom::{CustomLoss, FromFn, LossValue, from_fn};
pub use expr::{Expr, input, logprobs};
pub use graph::LossGraph;
pub use handle::LossHandle;
pub use objective::{Batch, DatumVars, Objective, batch};
pub(crate) use surrogate::{backward_data, finish_metrics, forward_data};
