//! A custom loss that was made once, to be used for many steps.

use super::custom::{CustomLoss, LossValue};
use super::graph::LossGraph;
use super::objective::Objective;
use crate::error::{Error, Result};
use crate::types::{CustomLossInput, Datum, SessionId, TensorData};

/// A loss made by [`create_custom_loss`](crate::ServiceClient::create_custom_loss), for
/// [`forward_backward_custom`](crate::TrainingClient::forward_backward_custom).
///
/// Its inputs and their ranks are fixed: data that does not have them is refused before anything
/// is sent. It belongs to the session that made it.
#[derive(Debug, Clone)]
pub struct LossHandle {
    objective: Objective,
    inputs: Vec<CustomLossInput>,
    session_id: SessionId,
    loss_id: Option<String>,
}

impl LossHandle {
    pub(crate) fn new(
        mut objective: Objective,
        graph: LossGraph,
        session_id: SessionId,
        loss_id: Option<String>,
    ) -> Self {
        objective.inputs = Some(graph.inputs.clone());
        Self {
            objective,
            inputs: graph.inputs,
            session_id,
            loss_id,
        }
    }

    /// The loss's name.
    pub fn name(&self) -> &str {
        &self.objective.name
    }

    /// What the loss reads, `logprobs` first, with their ranks.
    pub fn inputs(&self) -> &[CustomLossInput] {
        &self.inputs
    }

    /// The session whose clients can use it.
    pub fn session_id(&self) -> &SessionId {
        &self.session_id
    }

    /// The service's id for it; `None` if it is computed on this side.
    pub fn loss_id(&self) -> Option<&str> {
        self.loss_id.as_deref()
    }

    /// Refuses another session's client, and data without the inputs it reads.
    pub(crate) fn check(&self, session_id: &str, data: &[Datum]) -> Result<()> {
        if self.session_id != *session_id {
            let problem = format!(
                "was made in session {}, and only its clients can use it",
                self.session_id
            );
            return Err(Error::invalid("loss", problem));
        }
        for (index, datum) in data.iter().enumerate() {
            for input in &self.inputs {
                check_input(input, datum).map_err(|e| e.within(&format!("data[{index}]")))?;
            }
        }
        Ok(())
    }
}

/// `logprobs` have the shape of the target tokens.
fn check_input(input: &CustomLossInput, datum: &Datum) -> Result<()> {
    let key = match input.name() {
        "logprobs" => "target_tokens",
        name => name,
    };
    let refuse = |problem: String| Err(Error::invalid(format!("loss_fn_inputs.{key}"), problem));
    let Some(tensor) = datum.input(key) else {
        return refuse("is missing; the loss reads it".into());
    };
    let (rank, declared) = (tensor.shape().map_or(1, <[usize]>::len), input.rank());
    match rank == usize::from(declared) {
        true => Ok(()),
        false => refuse(format!(
            "has rank {rank}, but the loss declares rank {declared}"
        )),
    }
}

impl CustomLoss for &LossHandle {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        (&self.objective).evaluate(data, logprobs)
    }

    fn as_handle(&self) -> Option<&LossHandle> {
        Some(self)
    }
}

impl CustomLoss for LossHandle {
    fn evaluate(self, data: &[Datum], logprobs: &[TensorData]) -> Result<LossValue> {
        (&self.objective).evaluate(data, logprobs)
    }

    fn as_handle(&self) -> Option<&LossHandle> {
        Some(self)
    }
}
