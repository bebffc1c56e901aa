//! The form in which the service takes a loss to run it itself.

mod call;
mod export;
mod names;
mod parse;

use serde::{Deserialize, Serialize};

pub(super) use names::metric_key;

use super::objective::Objective;
use crate::error::Result;
use crate::types::{CustomLossGraph, CustomLossInput, Datum};

/// A per-datum loss as the service takes it: named inputs and a graph of PyTorch operations.
///
/// [`Objective::to_graph`] makes one, [`LossGraph::to_objective`] reads one back. The service
/// computes in `f32` what [`CustomLoss::evaluate`](super::CustomLoss::evaluate) computes in
/// `f64`.
///
/// ```
/// use tinker::loss::{CustomLoss, Objective, input, logprobs};
/// use tinker::{Datum, ModelInput, TensorData};
///
/// let data = [Datum::new(ModelInput::from_ints(vec![1, 2]))
///     .with_target_tokens(vec![2, 3])
///     .with_weights(vec![0.0, 1.0])];
/// let loss = Objective::new(-(logprobs() * input("weights")).sum());
///
/// let graph = loss.to_graph(&data)?;
/// assert_eq!(graph.inputs.len(), 2);
///
/// let logprobs = [TensorData::from(vec![-1.0f32, -2.0])];
/// assert_eq!(graph.to_objective()?.evaluate(&data, &logprobs)?.loss, 2.0);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossGraph {
    /// The loss's name, for people.
    pub name: String,
    /// The tensors the graph reads, `logprobs` first, with their ranks.
    pub inputs: Vec<CustomLossInput>,
    /// The operations, in execution order.
    pub graph: CustomLossGraph,
}

impl LossGraph {
    /// The formula this graph stands for.
    ///
    /// A graph from elsewhere is not trusted: its size, and the memory its evaluation may
    /// take, are bounded, and only operations an [`Expr`](super::Expr) has are understood,
    /// under the names that PyTorch's tracer gives them.
    ///
    /// # Errors
    ///
    /// If the graph breaks the service's rules or needs an operation that is not understood;
    /// the error names the node.
    pub fn to_objective(&self) -> Result<Objective> {
        parse::parse(self)
    }
}

impl Objective {
    /// The form in which the service takes this loss, for data like `data`.
    ///
    /// The ranks of the inputs are read off the data, which must agree on them.
    ///
    /// # Errors
    ///
    /// If the service could not run it: an input is missing in the data or named in a way a
    /// graph cannot (`logprobs` is taken, and names are lower case), a metric is misnamed, or
    /// the loss or a metric is a mere constant. Such a loss still runs on this side.
    pub fn to_graph(&self, data: &[Datum]) -> Result<LossGraph> {
        export::export(self, data)
    }
}
