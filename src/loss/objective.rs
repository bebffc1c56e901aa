//! [`Objective`]: a loss formula with its metrics, for each datum or for a whole batch.

use std::collections::BTreeMap;
use std::fmt;

use super::array::Array;
use super::custom::{CustomLoss, LossValue};
use super::expr::{Expr, TensorName, Variable};
use super::graph::metric_key;
use super::program::Program;
use crate::error::{Error, Result};
use crate::types::{CustomLossInput, Datum, TensorData, TensorValues};

/// A loss formula together with figures to report.
///
/// As a [`CustomLoss`] it is evaluated for each datum and the losses are added up. An [`Expr`]
/// without metrics can be used directly; [`Expr::with_metric`] makes it an objective.
#[derive(Debug, Clone)]
pub struct Objective {
    pub(super) name: String,
    pub(super) loss: Expr,
    pub(super) metrics: Vec<(String, Expr)>,
    /// What the inputs must look like, where a graph has declared it.
    pub(super) inputs: Option<Vec<CustomLossInput>>,
    /// How many numbers one evaluation may hold.
    pub(super) budget: usize,
}

impl Objective {
    /// A loss without metrics.
    pub fn new(loss: impl Into<Expr>) -> Self {
        Self {
            name: "loss".into(),
            loss: loss.into(),
            metrics: Vec::new(),
            inputs: None,
            budget: usize::MAX,
        }
    }

    /// Names the loss for the service's records. Default: `loss`.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Reports a scalar along with the loss.
    ///
    /// For a loss per datum, `name` ends in `:sum` or `:mean`, which says how the datums'
    /// values combine, and is reported as `custom/<name>` wherever the loss is computed; use
    /// lower-case letters, digits and `_./-`. For a [`batch`], any name is reported as it is.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: impl Into<Expr>) -> Self {
        self.metrics.push((name.into(), value.into()));
        self
    }

    /// The loss and the metrics in execution order, with the steps that hold them.
    fn compile(&self) -> Compiled {
        let metrics = self.metrics.iter().map(|(_, value)| value);
        let (program, roots) = Program::new(std::iter::once(&self.loss).chain(metrics));
        Compiled { program, roots }
    }
}

impl Expr {
    /// Reports a scalar along with this loss; see [`Objective::with_metric`].
    pub fn with_metric(self, name: impl Into<String>, value: impl Into<Expr>) -> Objective {
        Objective::new(self).with_metric(name, value)
    }
}

impl From<Expr> for Objective {
    fn from(loss: Expr) -> Self {
        Self::new(loss)
    }
}

impl CustomLoss for Expr {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        Objective::new(self).evaluate(data, logprobs)
    }

    fn as_objective(&self) -> Option<Objective> {
        Some(Objective::new(self))
    }
}

impl CustomLoss for &Expr {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        Objective::new(self).evaluate(data, logprobs)
    }

    fn as_objective(&self) -> Option<Objective> {
        Some(Objective::new(*self))
    }
}

impl CustomLoss for &Objective {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        check_lengths(data, logprobs)?;
        let keys: Vec<String> = self
            .metrics
            .iter()
            .map(|(name, _)| metric_key(name))
            .collect::<Result<_>>()?;
        let compiled = self.compile();
        let mut total = LossValue::new(0.0, Vec::with_capacity(data.len()));
        for (index, (datum, logprobs)) in data.iter().zip(logprobs).enumerate() {
            let within = |error: Error| error.within(&format!("data[{index}]"));
            let bind = |variable: &Variable| match variable.datum {
                None => self.tensor(&variable.tensor, datum, logprobs),
                Some(_) => Err(Error::invalid(
                    "loss",
                    "names one datum of a batch; give it to `loss::batch` instead",
                )),
            };
            let run = compiled.run(bind, self.budget).map_err(within)?;
            total.loss += run.loss;
            let gradient = run
                .gradients
                .into_iter()
                .next()
                .map(|(_, gradient)| gradient);
            total
                .gradients
                .push(gradient.ok_or_else(no_gradient).map_err(within)?);
            for (key, value) in keys.iter().zip(run.metrics) {
                *total.metrics.entry(key.clone()).or_default() += value;
            }
        }
        for (key, value) in &mut total.metrics {
            if key.ends_with(":mean") {
                *value /= data.len() as f64;
            }
        }
        Ok(total)
    }

    fn as_objective(&self) -> Option<Objective> {
        Some((*self).clone())
    }
}

impl CustomLoss for Objective {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        (&self).evaluate(data, logprobs)
    }

    fn as_objective(&self) -> Option<Objective> {
        Some(self.clone())
    }
}

impl Objective {
    fn tensor(&self, name: &TensorName, datum: &Datum, logprobs: &TensorData) -> Result<Array> {
        let array = read_tensor(name, datum, logprobs)?;
        let name = match name {
            TensorName::Logprobs => "logprobs",
            TensorName::Input(name) => name,
        };
        let declared = self
            .inputs
            .iter()
            .flatten()
            .find(|input| input.name() == name);
        match declared {
            Some(input) if array.shape.len() != usize::from(input.rank()) => Err(Error::invalid(
                format!("loss_fn_inputs.{name}"),
                format!(
                    "has rank {}, but the loss declares rank {}",
                    array.shape.len(),
                    input.rank()
                ),
            )),
            _ => Ok(array),
        }
    }
}

/// A loss over a whole batch, whose formula may combine any of its datums.
///
/// The closure gets one [`DatumVars`] per datum and returns an [`Expr`] or an [`Objective`].
/// Every datum's logprobs must take part. Such a loss always runs on this side.
///
/// Direct preference optimisation, with each chosen answer followed by its rejected one:
///
/// ```
/// use tinker::loss::{CustomLoss, DatumVars, Expr, batch};
/// use tinker::{Datum, ModelInput, TensorData};
///
/// let beta = 0.1;
/// let dpo = batch(|data| {
///     let gain = |d: &DatumVars| ((d.logprobs() - d.input("reference")) * d.input("weights")).sum();
///     let pairs = data.chunks_exact(2);
///     let count = pairs.len() as f64;
///     let margins: Vec<Expr> = pairs.map(|pair| beta * (gain(&pair[0]) - gain(&pair[1]))).collect();
///     let loss: Expr = margins.iter().map(|margin| -margin.log_sigmoid()).sum();
///     let wins: Expr = margins.iter().map(|margin| margin.gt(0.0)).sum();
///     (loss / count).with_metric("accuracy", wins / count)
/// });
///
/// let datum = || {
///     Datum::new(ModelInput::from_ints(vec![1, 2]))
///         .with_target_tokens(vec![2, 3])
///         .with_weights(vec![0.0, 1.0])
///         .with("reference", vec![-1.0f32, -1.0])
/// };
/// let logprobs = [TensorData::from(vec![-1.0f32, -0.5]), TensorData::from(vec![-1.0f32, -3.0])];
/// let value = dpo.evaluate(&[datum(), datum()], &logprobs)?;
/// assert!((value.loss - 0.575).abs() < 1e-3);
/// assert_eq!(value.metrics["accuracy"], 1.0);
/// assert_eq!(value.gradients[0][1], -value.gradients[1][1]);
/// # Ok::<(), tinker::Error>(())
/// ```
pub fn batch<F, O>(formula: F) -> Batch<F>
where
    F: FnOnce(&[DatumVars]) -> O,
    O: Into<Objective>,
{
    Batch { formula }
}

/// A loss over a whole batch; see [`batch`].
pub struct Batch<F> {
    formula: F,
}

impl<F> fmt::Debug for Batch<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

/// One datum of a [`batch`], as a source of formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatumVars {
    index: usize,
}

impl DatumVars {
    /// The datum's place in the batch.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The log probabilities of this datum's target tokens.
    pub fn logprobs(&self) -> Expr {
        Expr::variable(Some(self.index), TensorName::Logprobs)
    }

    /// The tensor this datum carries under `name` in its loss inputs.
    pub fn input(&self, name: &str) -> Expr {
        Expr::variable(Some(self.index), TensorName::Input(name.into()))
    }
}

impl<F, O> CustomLoss for Batch<F>
where
    F: FnOnce(&[DatumVars]) -> O,
    O: Into<Objective>,
{
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        check_lengths(data, logprobs)?;
        let vars: Vec<DatumVars> = (0..data.len()).map(|index| DatumVars { index }).collect();
        let objective: Objective = (self.formula)(&vars).into();
        let bind = |variable: &Variable| {
            let index = variable
                .datum
                .filter(|&index| index < data.len())
                .ok_or_else(|| {
                    Error::invalid(
                        "loss",
                        "does not say whose logprobs or input it means; take them from the \
                         datums given to the closure",
                    )
                })?;
            read_tensor(&variable.tensor, &data[index], &logprobs[index])
                .map_err(|error| error.within(&format!("data[{index}]")))
        };
        let run = objective.compile().run(bind, objective.budget)?;
        let mut found: BTreeMap<usize, Vec<f32>> = run
            .gradients
            .into_iter()
            .filter_map(|(datum, gradient)| Some((datum?, gradient)))
            .collect();
        let gradients = (0..data.len())
            .map(|index| {
                found
                    .remove(&index)
                    .ok_or_else(|| no_gradient().within(&format!("data[{index}]")))
            })
            .collect::<Result<_>>()?;
        let names = objective.metrics.iter().map(|(name, _)| name.clone());
        Ok(LossValue {
            loss: run.loss,
            gradients,
            metrics: names.zip(run.metrics).collect(),
        })
    }
}

struct Compiled {
    program: Program,
    /// The loss, then the metrics.
    roots: Vec<usize>,
}

/// One evaluation: gradients by datum, metrics in the objective's order.
struct Run {
    loss: f64,
    gradients: Vec<(Option<usize>, Vec<f32>)>,
    metrics: Vec<f64>,
}

impl Compiled {
    fn run(&self, bind: impl FnMut(&Variable) -> Result<Array>, budget: usize) -> Result<Run> {
        let values = self.program.forward(bind, budget)?;
        let loss = &values[self.roots[0]];
        if !loss.shape.is_empty() {
            return Err(Error::invalid(
                "loss",
                format!("has shape {:?}; reduce it with sum() or mean()", loss.shape),
            ));
        }
        let metrics = self.roots[1..]
            .iter()
            .map(|&root| {
                values[root].item().ok_or_else(|| {
                    Error::invalid(
                        "metric",
                        format!(
                            "has shape {:?}; reduce it with sum() or mean()",
                            values[root].shape
                        ),
                    )
                })
            })
            .collect::<Result<_>>()?;
        let gradients = self
            .program
            .backward(&values, self.roots[0])?
            .into_iter()
            .map(|(variable, gradient)| {
                let gradient = gradient.into_iter().map(|slope| slope as f32).collect();
                (variable.datum, gradient)
            })
            .collect();
        Ok(Run {
            loss: loss.data[0],
            gradients,
            metrics,
        })
    }
}

fn read_tensor(name: &TensorName, datum: &Datum, logprobs: &TensorData) -> Result<Array> {
    match name {
        TensorName::Logprobs => read(logprobs).map_err(|error| error.within("logprobs")),
        TensorName::Input(name) => {
            let field = format!("loss_fn_inputs.{name}");
            match datum.input(name) {
                Some(tensor) => read(tensor).map_err(|error| error.within(&field)),
                None => Err(Error::invalid(field, "is missing; the loss reads it")),
            }
        }
    }
}

fn read(tensor: &TensorData) -> Result<Array> {
    let dense = tensor.to_dense(0)?;
    let data: Vec<f64> = match dense.values() {
        TensorValues::F32(values) => values.iter().map(|&value| f64::from(value)).collect(),
        TensorValues::I64(values) => values.iter().map(|&value| value as f64).collect(),
    };
    let shape = dense
        .shape()
        .map_or_else(|| vec![data.len()], <[usize]>::to_vec);
    Ok(Array::new(shape, data))
}

fn check_lengths(data: &[Datum], logprobs: &[TensorData]) -> Result<()> {
    if data.len() == logprobs.len() {
        return Ok(());
    }
    Err(Error::invalid(
        "logprobs",
        format!(
            "needs one tensor for each of the {} datums, got {}",
            data.len(),
            logprobs.len()
        ),
    ))
}

fn no_gradient() -> Error {
    Error::invalid(
        "loss",
        "does not depend on these logprobs, so there is nothing to learn from the datum",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{input, logprobs};

    fn batch_of(inputs: &[f32]) -> (Vec<Datum>, Vec<TensorData>) {
        let data = inputs
            .iter()
            .map(|&a| Datum::new(vec![0]).with("a", vec![a]));
        let logprobs = inputs.iter().map(|_| TensorData::from(vec![-2.0f32, -1.0]));
        (data.collect(), logprobs.collect())
    }

    #[test]
    fn losses_add_up_and_metrics_follow_their_suffix() {
        let (data, x) = batch_of(&[1.0, 2.0, 6.0]);
        let value = (logprobs() * input("a"))
            .sum()
            .with_metric("a:sum", input("a").sum())
            .with_metric("custom/a:mean", input("a").sum())
            .evaluate(&data, &x)
            .unwrap();
        assert_eq!(value.loss, -27.0);
        assert_eq!(value.gradients, [[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]]);
        let expected = [
            ("custom/a:mean".to_owned(), 3.0),
            ("custom/a:sum".to_owned(), 9.0),
        ];
        assert_eq!(value.metrics, expected.into());
    }

    #[test]
    fn what_does_not_fit_is_named() {
        #[track_caller]
        fn check(loss: impl CustomLoss, expected: &str) {
            let (data, x) = batch_of(&[1.0, 2.0]);
            let error = loss.evaluate(&data, &x).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let x = logprobs;
        check(x(), "invalid data[0].loss: has shape [2]");
        check(
            input("a").sum(),
            "data[0].loss: does not depend on these logprobs",
        );
        check(x().detach().sum(), "does not depend on these logprobs");
        check(
            (x() + input("b")).sum(),
            "data[0].loss_fn_inputs.b: is missing",
        );
        check(x().sum_axis(1).sum(), "does not have axis 1");
        check(x().sum().with_metric("k", x().sum()), "must be up to 64");
        check(
            x().sum().with_metric("k:sum", x()),
            "data[0].metric: has shape",
        );
        check(
            batch(|data| data[0].logprobs().sum()),
            "data[1].loss: does not depend",
        );
        check(batch(|_| x().sum()), "does not say whose logprobs");
        check(
            batch(|data| data[0].input("b").sum()),
            "data[0].loss_fn_inputs.b: is missing",
        );
        let mut leaked = None;
        let (data, tensors) = batch_of(&[1.0]);
        let kept = batch(|data| {
            leaked = Some(data[0].logprobs());
            data[0].logprobs().sum()
        });
        kept.evaluate(&data, &tensors).unwrap();
        check(leaked.unwrap().sum(), "names one datum of a batch");
    }

    #[test]
    fn every_datum_needs_its_logprobs() {
        let (data, _) = batch_of(&[1.0]);
        let error = logprobs().sum().evaluate(&data, &[]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("one tensor for each of the 1 datums, got 0")
        );
    }
}
