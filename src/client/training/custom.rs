//! Training with a loss of the user's own.

use super::TrainingClient;
use crate::client::service::ServiceClient;
use crate::error::{Context, Error, Result};
use crate::loss::{self, CustomLoss, LossHandle, Objective};
use crate::runtime::pending::Pending;
use crate::types::{Datum, ForwardBackwardOutput, LossFn, TensorData};

impl TrainingClient {
    /// Trains with a loss of your own: see [`crate::loss`].
    ///
    /// Blocks for a forward pass, computes the loss on this thread (so it may borrow), submits
    /// the backward pass and returns its handle; a later `optim_step` is ordered after it. The
    /// reported `loss:sum` is your loss; what the service computed in its place is
    /// `surrogate_loss:sum`. Where the service can run the formula itself, it does.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient, data: Vec<tinker::Datum>) -> tinker::Result<()> {
    /// use tinker::loss::{input, logprobs};
    ///
    /// let ratio = (logprobs() - input("old_logprobs")).exp();
    /// let loss = -(ratio * input("advantages")).sum();
    /// let step = training.forward_backward_custom(&data, loss)?;
    /// # step.join()?; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward_backward`](Self::forward_backward), whatever the forward pass says, and what
    /// the loss itself returns.
    pub fn forward_backward_custom(
        &self,
        data: &[Datum],
        loss: impl CustomLoss,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        let _deadline = self.session.deadline();
        if let Some(loss_id) = self.loss_on_the_service(data, &loss)? {
            return self.forward_backward(data, LossFn::Custom.with("loss_id", loss_id));
        }
        let forward = self.forward(&loss::forward_data(data)?, LossFn::CrossEntropy)?;
        let forward = self.wait(forward)?;
        let logprobs = (0..data.len())
            .map(|index| shaped_logprobs(&forward, data, index))
            .collect::<Result<Vec<_>>>()?;
        let value = loss.evaluate(data, &logprobs)?;
        loss::check_finite(&value)?;
        let data = loss::backward_data(data, &logprobs, &value.gradients)?;
        let pending = self.forward_backward(&data, LossFn::CrossEntropy)?;
        Ok(pending.map(|mut output| {
            loss::finish_metrics(&mut output.metrics, value);
            output
        }))
    }

    /// The service's id of a loss that it is to run itself. Each distinct graph is uploaded once
    /// per session.
    fn loss_on_the_service(
        &self,
        data: &[Datum],
        loss: &impl CustomLoss,
    ) -> Result<Option<String>> {
        if let Some(handle) = loss.as_handle() {
            handle.check(&self.session.core.session_id, data)?;
            return Ok(handle.loss_id().map(str::to_owned));
        }
        if !self.session.core.client_config.custom_loss_server_side {
            return Ok(None);
        }
        match loss.as_objective().map(|loss| loss.to_graph(data)) {
            Some(Ok(graph)) => self.session.upload_loss(&graph).map(Some),
            Some(Err(error)) => {
                log::debug!("computing the custom loss on this side: {error}");
                Ok(None)
            }
            None => Ok(None),
        }
    }
}

impl ServiceClient {
    /// Makes a custom loss once, for the steps of this client's models: it is checked against
    /// data like those it will be used with and, where the service runs losses itself, uploaded.
    ///
    /// [`forward_backward_custom`](TrainingClient::forward_backward_custom) does as much by
    /// itself; a handle finds mistakes before the first step and fixes what the data must hold.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// use tinker::loss::{input, logprobs};
    /// use tinker::{Datum, LoraConfig, ServiceClient};
    ///
    /// let service = ServiceClient::local()?;
    /// let training = service.create_lora_training_client("tinker-local/tiny", LoraConfig::rank(4))?;
    /// let data = [Datum::supervised(&[72, 101], &[108])];
    /// let loss = service.create_custom_loss(-(logprobs() * input("weights")).sum(), &data)?;
    /// training.forward_backward_custom(&data, &loss)?.join()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a formula that the service could not run, such as one that reads
    /// what the data does not hold; otherwise what the service says.
    pub fn create_custom_loss(
        &self,
        loss: impl Into<Objective>,
        like: &[Datum],
    ) -> Result<LossHandle> {
        let (session, loss) = (self.session()?, loss.into());
        let graph = loss.to_graph(like)?;
        let loss_id = match session.core.client_config.custom_loss_server_side {
            true => Some(session.upload_loss(&graph)?),
            false => None,
        };
        let session_id = session.core.session_id.as_str().into();
        Ok(LossHandle::new(loss, graph, session_id, loss_id))
    }
}

/// The logprobs of one datum in the shape of its target tokens.
fn shaped_logprobs(
    output: &ForwardBackwardOutput,
    data: &[Datum],
    index: usize,
) -> Result<TensorData> {
    let missing = || {
        let message = format!("the forward pass gave no logprobs for data[{index}]");
        Error::Reply(Context::new(message))
    };
    let logprobs = output.output(index, "logprobs").ok_or_else(missing)?;
    let targets = data[index]
        .input("target_tokens")
        .and_then(TensorData::shape);
    match targets {
        Some(shape) if logprobs.csr().is_none() => {
            let shaped = logprobs.clone().with_shape(shape);
            shaped.map_err(Error::into_reply)
        }
        _ => Ok(logprobs.clone()),
    }
}
