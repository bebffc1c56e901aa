//! Taking up what was submitted before.

use super::service::ServiceClient;
use super::training::TrainingClient;
use crate::error::Result;
use crate::runtime::pending::Pending;
use crate::runtime::training::Attachable;

impl TrainingClient {
    /// Takes up an operation of this model again by the id of its request
    /// ([`Pending::request_id`], or that of an [`Error`](crate::Error)), to wait for a result whose
    /// handle is gone. Nothing is submitted.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient) -> tinker::Result<()> {
    /// use tinker::{OptimStepResponse, Pending};
    ///
    /// let optim: Pending<OptimStepResponse> = training.attach("a1b2c3")?;
    /// optim.join()?;
    /// # Ok(()) }
    /// ```
    ///
    /// A large `forward_backward` has a request for each of its chunks
    /// ([`Pending::request_ids`]): take up each of them.
    ///
    /// # Errors
    ///
    /// As the operation itself; [`Error::Lost`](crate::Error::Lost) at the join if the service
    /// does not know the id.
    pub fn attach<T: Attachable>(&self, request_id: impl AsRef<str>) -> Result<Pending<T>> {
        self.queue().attach(request_id.as_ref())
    }
}

impl ServiceClient {
    /// As [`TrainingClient::attach`], for a request of a model that this program does not train
    /// any more: after a crash, with an id from the log of the program before.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn attach<T: Attachable>(&self, request_id: impl AsRef<str>) -> Result<Pending<T>> {
        self.session()?.attach(request_id.as_ref())
    }
}
