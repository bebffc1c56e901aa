//! Training with a loss of the user's own.

use super::TrainingClient;
use crate::error::{Context, Error, Result};
use crate::loss::{self, CustomLoss, LossGraph};
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
    /// let ratio = (logprobs() - input("logprobs")).exp();
    /// let loss = -(ratio * input("advantages")).sum();
    /// let step = training.forward_backward_custom(&data, loss)?;
    /// # step.join()?; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`forward_backward`](Self::forward_backward), whatever the forward pass says, and what
    /// the loss itself returns.
    #[doc(alias = "LossHandle")]
    pub fn forward_backward_custom(
        &self,
        data: &[Datum],
        loss: impl CustomLoss,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        if let (true, Some(objective)) = (self.runs_losses(), loss.as_objective()) {
            match objective.to_graph(data) {
                Ok(graph) => return self.forward_backward_graph(data, &graph),
                Err(error) => log::debug!("computing the custom loss on this side: {error}"),
            }
        }
        let forward = self
            .forward(&loss::forward_data(data)?, LossFn::CrossEntropy)?
            .join()?;
        let logprobs = (0..data.len())
            .map(|index| shaped_logprobs(&forward, data, index))
            .collect::<Result<Vec<_>>>()?;
        let value = loss.evaluate(data, &logprobs)?;
        let data = loss::backward_data(data, &logprobs, &value.gradients)?;
        let pending = self.forward_backward(&data, LossFn::CrossEntropy)?;
        Ok(pending.and_then(|mut output| {
            loss::finish_metrics(&mut output.metrics, value)?;
            Ok(output)
        }))
    }

    fn runs_losses(&self) -> bool {
        self.session.core.client_config.custom_loss_server_side
    }

    /// Has the service run a formula. Each distinct graph is uploaded once per session.
    fn forward_backward_graph(
        &self,
        data: &[Datum],
        graph: &LossGraph,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        let loss_id = self.session.upload_loss(graph)?;
        self.forward_backward(data, LossFn::Custom.with("loss_id", loss_id))
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
        Some(shape) if logprobs.csr().is_none() => logprobs.clone().with_shape(shape),
        _ => Ok(logprobs.clone()),
    }
}
