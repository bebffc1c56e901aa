//! Results that the service has lost, and models that it has forgotten.

use std::time::Duration;

use super::queue::Shared;
use crate::error::{Error, Result};
use crate::runtime::calls::{Effort, is_unknown};
use crate::runtime::futures::Outcome;
use crate::transport::{Body, Request};
use crate::wire::request::{GetInfoRequest, to_json};
use crate::wire::route::GET_INFO;

/// How long the question whether a model still exists may take.
const ASKING: Duration = Duration::from_secs(30);

/// The result of a request outside a model's queue.
pub(super) fn plain_result<T>(outcome: Outcome<T>) -> Result<T> {
    match outcome {
        Outcome::Ready(value) => Ok(value),
        Outcome::Failed(error) | Outcome::Lost(error) => Err(error),
    }
}

impl Shared {
    /// The result of an operation of this model. One that the service lost cannot simply be
    /// repeated: the model may have changed or not.
    pub(super) fn result<T>(&self, outcome: Outcome<T>) -> Result<T> {
        match outcome {
            Outcome::Lost(error) => Err(self.lost(error)),
            other => plain_result(other),
        }
    }

    /// What an operation ends with that was refused: as [`lost`](Self::lost) if the service does
    /// not know something.
    pub(super) fn refused(&self, error: Error) -> Error {
        match is_unknown(&error) {
            true => self.lost(error),
            false => error,
        }
    }

    /// What an operation ends with whose result the service lost. Asks whether the service still
    /// knows the model: one that was restarted empty does not, and then nothing of what is pending
    /// can ever end.
    fn lost(&self, error: Error) -> Error {
        if let Some(broken) = self.broken() {
            return broken;
        }
        if !self.is_forgotten() {
            return error;
        }
        let model = &self.model_id;
        let message =
            format!("the service no longer knows {model}; it may have been restarted without it");
        self.break_down(message, &error)
    }

    fn is_forgotten(&self) -> bool {
        let link = &self.training.results.link;
        let asked = to_json(&GetInfoRequest {
            model_id: self.model_id.as_str().into(),
        })
        .and_then(|body| {
            let request =
                Request::to(&GET_INFO, GET_INFO.fixed_path()).with_body(Body::Json(&body));
            let effort = Effort::from(&GET_INFO).until(link.deadline(ASKING));
            link.call_raw(request, effort)
        });
        asked.is_err_and(|error| is_unknown(&error))
    }
}
