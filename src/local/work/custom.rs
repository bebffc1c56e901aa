//! Passes with the losses that a session has uploaded.

use crate::error::{Error, Result};
use crate::local::engine::{self, Trainer};
use crate::local::state::losses::Losses;
use crate::local::state::memory::Memory;
use crate::local::work::convert;
use crate::loss::CustomLoss;
use crate::types::{Datum, ForwardBackwardOutput, Loss, LossConfigValue, LossOutput, TensorData};

/// A pass with an uploaded loss; `backward` adds its gradients to the model's.
///
/// The formula is linear in its own gradient, which is what goes backward: the same as a client
/// that computes the loss itself would send.
pub(in crate::local) fn pass(
    losses: &Losses,
    memory: &Memory,
    session_id: &str,
    trainer: &mut Trainer,
    data: &[Datum],
    loss: &Loss,
    backward: bool,
) -> Result<ForwardBackwardOutput> {
    let objective = losses.get(session_id, wanted(loss)?)?;
    let mut examples = convert::targets_only(data)?;
    let _held = memory.promise("data", trainer.pass_bytes(&examples, backward))?;
    let scored = trainer.forward(&examples, &engine::Loss::CrossEntropy)?;
    let logprobs: Vec<TensorData> = data
        .iter()
        .zip(scored.data)
        .map(|(datum, output)| like_targets(datum, output.logprobs))
        .collect::<Result<_>>()?;
    let value = objective.as_ref().evaluate(data, &logprobs)?;
    if backward {
        for (index, (example, gradient)) in examples.iter_mut().zip(value.gradients).enumerate() {
            if !gradient.iter().all(|slope| slope.is_finite()) {
                let problem = format!("the gradient for data[{index}] is not finite");
                return Err(Error::invalid("loss", problem));
            }
            example.inputs.weights = gradient.into_iter().map(|slope| -slope).collect();
        }
        trainer.forward_backward(&examples, &engine::Loss::CrossEntropy)?;
    }
    let outputs = logprobs
        .into_iter()
        .map(|logprobs| LossOutput::from([("logprobs".to_owned(), logprobs)]));
    let mut metrics = value.metrics;
    metrics.insert("loss:sum".to_owned(), value.loss);
    Ok(ForwardBackwardOutput::new(
        "TorchLossReturn",
        outputs.collect(),
        metrics,
    ))
}

/// The id in the loss's settings, which must be all there is.
fn wanted(loss: &Loss) -> Result<&str> {
    let mut id = None;
    for (name, value) in &loss.config {
        match (name.as_str(), value) {
            ("loss_id", LossConfigValue::Text(text)) => id = Some(text.as_str()),
            _ => {
                let field = format!("loss_fn_config.{name}");
                let problem = "a custom loss takes its loss_id, a string, and nothing else";
                return Err(Error::invalid(field, problem));
            }
        }
    }
    id.ok_or_else(|| {
        let problem = "is missing; create_custom_loss gives one";
        Error::invalid("loss_fn_config.loss_id", problem)
    })
}

/// Log-probabilities in the shape of the datum's targets, as the graph declares them.
fn like_targets(datum: &Datum, logprobs: Vec<f32>) -> Result<TensorData> {
    let tensor = TensorData::from(logprobs);
    match datum.input("target_tokens").and_then(TensorData::shape) {
        Some(shape) => tensor.with_shape(shape.to_vec()),
        None => Ok(tensor),
    }
}
