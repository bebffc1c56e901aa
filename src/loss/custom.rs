//! What every custom loss can do, and the form written by hand.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::handle::LossHandle;
use super::objective::Objective;
use crate::error::{Context, Error, Result};
use crate::types::{Datum, TensorData};

/// A loss that `forward_backward_custom` can train with.
///
/// Implemented by [`Expr`](super::Expr), [`Objective`] and [`LossHandle`], owned or borrowed, and
/// by the results of [`batch`](super::batch) and [`from_fn`].
#[doc(alias = "PerDatumLossFn")]
pub trait CustomLoss {
    /// Computes the loss of a batch, its gradients and its metrics.
    ///
    /// `logprobs` holds one tensor per datum, shaped like its target tokens.
    ///
    /// # Errors
    ///
    /// If the data does not fit the loss: an input is missing, shapes do not match, the
    /// result is not a scalar, or a datum's logprobs have no influence on it.
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue>
    where
        Self: Sized;

    /// The formula applied to each datum, if this loss is one: a service that supports it can
    /// then compute the loss itself.
    fn as_objective(&self) -> Option<Objective> {
        None
    }

    /// The loss as it was made beforehand, if it was.
    fn as_handle(&self) -> Option<&LossHandle> {
        None
    }
}

/// The value of a custom loss for one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct LossValue {
    /// The loss.
    pub loss: f64,
    /// The slope of the loss for each logprob: one list per datum, one number per logprob,
    /// row by row.
    pub gradients: Vec<Vec<f32>>,
    /// Figures to report along with the step.
    pub metrics: BTreeMap<String, f64>,
}

impl LossValue {
    /// A loss and its gradients, one list per datum, without metrics.
    pub fn new(loss: f64, gradients: Vec<Vec<f32>>) -> Self {
        Self {
            loss,
            gradients,
            metrics: BTreeMap::new(),
        }
    }

    /// Adds a figure to report.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }
}

/// A loss whose value and gradients a closure computes by hand.
///
/// The closure runs once, on the thread that asked for it, so it may borrow. Its errors may
/// be of any kind.
///
/// ```
/// use tinker::loss::{CustomLoss, LossValue, from_fn};
/// use tinker::{Datum, ModelInput, TensorData};
///
/// let scale = 2.0f32;
/// let loss = from_fn(|_data, logprobs| {
///     let mut value = LossValue::new(0.0, Vec::new());
///     for tensor in logprobs {
///         let numbers = tensor.as_f32().ok_or_else(|| anyhow::anyhow!("not floats"))?;
///         value.loss -= f64::from(scale * numbers.iter().sum::<f32>());
///         value.gradients.push(vec![-scale; numbers.len()]);
///     }
///     Ok(value)
/// });
/// let datum = Datum::new(ModelInput::from_ints(vec![1])).with_target_tokens(vec![2]);
/// let value = loss.evaluate(&[datum], &[TensorData::from(vec![-0.5f32])])?;
/// assert_eq!((value.loss, value.gradients), (1.0, vec![vec![-2.0]]));
/// # Ok::<(), tinker::Error>(())
/// ```
pub fn from_fn<F>(compute: F) -> FromFn<F>
where
    F: FnOnce(&[Datum], &[TensorData]) -> anyhow::Result<LossValue>,
{
    FromFn { compute }
}

/// A loss computed by a closure; see [`from_fn`].
pub struct FromFn<F> {
    compute: F,
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}

impl<F> CustomLoss for FromFn<F>
where
    F: FnOnce(&[Datum], &[TensorData]) -> anyhow::Result<LossValue>,
{
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        let value = (self.compute)(data, logprobs).map_err(from_callback)?;
        check_gradients(&value, logprobs)?;
        Ok(value)
    }
}

/// Our own errors pass through; any other is told in its own words.
fn from_callback(error: anyhow::Error) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::Callback(Box::new(Context {
            message: format!("the loss: {error:#}"),
            source: Some(Arc::from(error.into_boxed_dyn_error())),
            ..Context::default()
        })),
    }
}

/// Refuses a loss or a gradient that is no number, before it becomes a weight.
///
/// # Errors
///
/// [`Error::Callback`] naming which it is.
pub(crate) fn check_finite(value: &LossValue) -> Result<()> {
    let refuse = |what: String, found: f64| {
        let message = format!("{what} is {found}; a loss and its gradients must be finite");
        Err(Error::Callback(Context::new(message)))
    };
    if !value.loss.is_finite() {
        return refuse("the custom loss".into(), value.loss);
    }
    for (index, gradient) in value.gradients.iter().enumerate() {
        if let Some(place) = gradient.iter().position(|slope| !slope.is_finite()) {
            let what = format!("the gradient of the custom loss at data[{index}], token {place},");
            return refuse(what, gradient[place].into());
        }
    }
    Ok(())
}

fn check_gradients(value: &LossValue, logprobs: &[TensorData]) -> Result<()> {
    if value.gradients.len() != logprobs.len() {
        return Err(Error::invalid(
            "gradients",
            format!(
                "needs one list for each of the {} datums, got {}",
                logprobs.len(),
                value.gradients.len()
            ),
        ));
    }
    for (index, (gradient, logprobs)) in value.gradients.iter().zip(logprobs).enumerate() {
        if gradient.len() != logprobs.len() {
            return Err(Error::invalid(
                format!("gradients[{index}]"),
                format!(
                    "needs one number for each of the {} logprobs, got {}",
                    logprobs.len(),
                    gradient.len()
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn evaluate(value: anyhow::Result<LossValue>) -> Result<LossValue> {
        from_fn(|_, _| value).evaluate(&[], &[TensorData::from(vec![-1.0f32, -2.0])])
    }

    #[test]
    fn gradients_must_match_the_logprobs() {
        assert!(evaluate(Ok(LossValue::new(1.0, vec![vec![0.0, 0.0]]))).is_ok());
        let error = evaluate(Ok(LossValue::new(1.0, vec![]))).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("invalid gradients: needs one list")
        );
        let error = evaluate(Ok(LossValue::new(1.0, vec![vec![0.0]]))).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("invalid gradients[0]: needs one number")
        );
    }

    #[test]
    fn the_callers_error_survives() {
        let error = evaluate(Err(std::io::Error::other("disk").into())).unwrap_err();
        assert_eq!(error.to_string(), "your function failed: the loss: disk");
        assert_eq!(error.source().unwrap().to_string(), "disk");
        let error = evaluate(Err(Error::invalid("beta", "too large").into())).unwrap_err();
        assert_eq!(error.to_string(), "invalid beta: too large");
    }

    #[test]
    fn a_loss_that_is_no_number_is_reported_as_that() {
        let check = |loss: f64, slope: f32| {
            let value = LossValue::new(loss, vec![vec![0.0], vec![0.0, slope]]);
            check_finite(&value).map_err(|error| error.to_string())
        };
        assert_eq!(check(1.0, 0.5), Ok(()));
        let error = check(f64::NAN, 0.5).unwrap_err();
        assert!(error.contains("the custom loss is NaN"), "{error}");
        let error = check(1.0, f32::INFINITY).unwrap_err();
        assert!(error.contains("data[1], token 1, is inf"), "{error}");
    }
}
