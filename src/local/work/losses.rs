//! Custom losses: graphs that a session's clients have uploaded, and passes that use them.
//!
//! A graph is data, not code: it becomes a formula of operations this crate knows, or it is
//! refused by the name of the first one it does not. Like models, losses live as long as their
//! session and not across a restart, which ends sessions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::local::engine::{self, Trainer};
use crate::local::http::Refusal;
use crate::local::work::convert;
use crate::loss::{CustomLoss, LossGraph, Objective};
use crate::types::{Datum, ForwardBackwardOutput, Loss, LossConfigValue, LossOutput, TensorData};

/// How many distinct losses a session may have.
const LIMIT: usize = 1000;

/// The losses of every session alive.
#[derive(Debug, Default)]
pub(in crate::local) struct Losses {
    sessions: Mutex<HashMap<String, Uploaded>>,
}

#[derive(Debug, Default)]
struct Uploaded {
    /// Each distinct graph, as it was sent, and its formula.
    losses: Vec<(String, Arc<Objective>)>,
    /// Places in that list by the number the client gave.
    numbers: BTreeMap<u64, usize>,
}

impl Losses {
    /// Makes a loss known and gives its id; a graph the session has already keeps its id.
    pub(in crate::local) fn add(
        &self,
        session_id: &str,
        number: u64,
        graph: &LossGraph,
    ) -> Result<String, Refusal> {
        let bad = |problem: String| Refusal::bad(problem);
        let objective = graph
            .to_objective()
            .map_err(|error| bad(format!("this server cannot run the loss: {error}")))?;
        let key = serde_json::to_string(&(&graph.inputs, &graph.graph))
            .map_err(|error| Refusal::internal(error.to_string()))?;
        let mut sessions = self.lock();
        let session = sessions.entry(session_id.to_owned()).or_default();
        let known = session.losses.iter().position(|(other, _)| *other == key);
        if let Some(earlier) = session.numbers.get(&number)
            && known != Some(*earlier)
        {
            return Err(bad(format!("loss {number} of this session is another one")));
        }
        let place = match known {
            Some(place) => place,
            None if session.losses.len() >= LIMIT => {
                return Err(bad(format!("a session may have {LIMIT} losses at most")));
            }
            None => {
                session.losses.push((key, Arc::new(objective)));
                session.losses.len() - 1
            }
        };
        session.numbers.insert(number, place);
        Ok(loss_id(session_id, place))
    }

    /// Forgets what a session uploaded.
    pub(in crate::local) fn remove_session(&self, session_id: &str) {
        self.lock().remove(session_id);
    }

    fn get(&self, session_id: &str, id: &str) -> Result<Arc<Objective>> {
        let sessions = self.lock();
        let losses = sessions.get(session_id).map(|session| &session.losses);
        let mut losses = losses.into_iter().flatten().enumerate();
        losses
            .find(|(place, _)| loss_id(session_id, *place) == id)
            .map(|(_, (_, objective))| objective.clone())
            .ok_or_else(|| {
                let problem = format!("this session has uploaded no loss {id:?}");
                Error::invalid("loss_fn_config.loss_id", problem)
            })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Uploaded>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn loss_id(session_id: &str, place: usize) -> String {
    format!("{session_id}:loss:{place}")
}

/// A pass with an uploaded loss; `backward` adds its gradients to the model's.
///
/// The formula is linear in its own gradient, which is what goes backward: the same as a client
/// that computes the loss itself would send.
pub(in crate::local) fn pass(
    losses: &Losses,
    session_id: &str,
    trainer: &mut Trainer,
    data: &[Datum],
    loss: &Loss,
    backward: bool,
) -> Result<ForwardBackwardOutput> {
    let objective = losses.get(session_id, wanted(loss)?)?;
    let mut examples = convert::targets_only(data)?;
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
