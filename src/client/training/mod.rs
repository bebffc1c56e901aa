//! `TrainingClient`: one model's ordered queue.

mod custom;
mod load;
mod save;

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::error::Result;
use crate::runtime::pending::Pending;
use crate::runtime::session::Session;
use crate::runtime::training::{ChunkOutput, Pass, Queue};
use crate::types::{
    Datum, ForwardBackwardOutput, Loss, ModelId, OptimStepResponse, OptimizerParams, console,
};

pub use load::Load;
pub use save::{Export, Save};

/// One model in training.
///
/// Every operation returns at once with a [`Pending`]; a worker thread submits operations in the
/// order of the calls, from however many threads they come, and each result is awaited
/// separately. So submit `forward_backward` and `optim_step` together and join them afterwards:
/// that takes one cycle of the service instead of three.
///
/// A failed operation never loses the queue: later ones still run. If a request's fate stays
/// unknown after the last retry, the client is broken: everything pending and later fails at
/// once with [`Broken`](crate::Error::Broken), because the service would hold back whatever follows; create a
/// new client from the last checkpoint.
///
/// `Clone + Send + Sync` around one `Arc`. When the last clone and the last [`Pending`] are gone,
/// what is still queued is sent for at most [`close_timeout`](crate::config::Config), then given
/// up with a warning.
#[derive(Clone)]
pub struct TrainingClient {
    queue: Arc<Queue>,
    session: Arc<Session>,
}

impl TrainingClient {
    pub(super) fn new(queue: Arc<Queue>, session: Arc<Session>) -> Self {
        Self { queue, session }
    }

    /// Waits on behalf of a blocking call.
    pub(super) fn wait<T: Send + 'static>(&self, pending: Pending<T>) -> Result<T> {
        self.session.wait(pending)
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Computes the loss and its gradients, which accumulate until [`optim_step`](Self::optim_step).
    ///
    /// The data is shared, not copied; it is encoded and sent in chunks by other threads.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient, data: Vec<tinker::Datum>) -> tinker::Result<()> {
    /// use tinker::LossFn;
    ///
    /// let step = training.forward_backward(&data, LossFn::CrossEntropy)?;
    /// let clipped = training.forward_backward(&data, LossFn::Ppo.with("clip_low_threshold", 0.8))?;
    /// println!("{:?}", step.join()?.metrics);
    /// # clipped.join()?; Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::Error::Invalid) for empty data; [`Broken`](crate::Error::Broken) and [`Closed`](crate::Error::Closed) if nothing can
    /// be submitted any more. What is wrong with the data itself is found by the worker, before
    /// anything of the call is sent, and comes with the join.
    pub fn forward_backward(
        &self,
        data: &[Datum],
        loss: impl Into<Loss>,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        self.queue.forward(data, loss.into(), Pass::Backward)
    }

    /// Computes the loss only; the model's gradients stay as they are.
    ///
    /// # Errors
    ///
    /// As [`forward_backward`](Self::forward_backward).
    pub fn forward(
        &self,
        data: &[Datum],
        loss: impl Into<Loss>,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        self.queue.forward(data, loss.into(), Pass::Forward)
    }

    /// Like [`forward_backward`](Self::forward_backward), with the results chunk by chunk as they
    /// arrive: nothing is held back until the last one.
    ///
    /// # Errors
    ///
    /// As [`forward_backward`](Self::forward_backward).
    pub fn forward_backward_chunks(
        &self,
        data: &[Datum],
        loss: impl Into<Loss>,
    ) -> Result<ChunkOutputs> {
        Ok(ChunkOutputs {
            results: self.queue.chunks(data, loss.into())?,
            _queue: self.queue.clone(),
        })
    }

    /// Applies the accumulated gradients.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::Error::Invalid) for parameters out of range; [`Broken`](crate::Error::Broken) and [`Closed`](crate::Error::Closed).
    #[doc(alias = "OptimStepRequest")]
    pub fn optim_step(
        &self,
        params: impl Into<OptimizerParams>,
    ) -> Result<Pending<OptimStepResponse>> {
        self.queue.optim(params.into())
    }

    /// Submits [`forward_backward`](Self::forward_backward) and [`optim_step`](Self::optim_step)
    /// together, with no operation of another thread between them. The second is not sent if the
    /// first could not be submitted.
    ///
    /// ```no_run
    /// # fn example(training: tinker::TrainingClient, data: Vec<tinker::Datum>) -> tinker::Result<()> {
    /// use tinker::{AdamParams, LossFn};
    ///
    /// let (step, optim) = training
    ///     .train_step(&data, LossFn::CrossEntropy, AdamParams::learning_rate(1e-4))?
    ///     .join()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As its two halves.
    pub fn train_step(
        &self,
        data: &[Datum],
        loss: impl Into<Loss>,
        params: impl Into<OptimizerParams>,
    ) -> Result<TrainStep> {
        let (forward_backward, optim_step) = self.queue.step(data, loss.into(), params.into())?;
        Ok(TrainStep {
            forward_backward,
            optim_step,
        })
    }

    /// The model's id, which is also its training run's.
    pub fn model_id(&self) -> &ModelId {
        self.queue.model_id()
    }

    /// Where the console shows the run.
    pub fn console_url(&self) -> String {
        console::training_run_url(self.model_id())
    }
}

impl fmt::Debug for TrainingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainingClient")
            .field("model_id", &self.model_id())
            .finish_non_exhaustive()
    }
}

/// The two halves of a training step, both under way.
#[derive(Debug)]
#[must_use = "a dropped handle loses the result; call `join`"]
pub struct TrainStep {
    /// The gradients.
    pub forward_backward: Pending<ForwardBackwardOutput>,
    /// Their application.
    pub optim_step: Pending<OptimStepResponse>,
}

impl TrainStep {
    /// Waits for both.
    ///
    /// # Errors
    ///
    /// The first half's error, if it has one, else the second's.
    pub fn join(self) -> Result<(ForwardBackwardOutput, OptimStepResponse)> {
        let (first, second) = (self.forward_backward.join(), self.optim_step.join());
        Ok((first?, second?))
    }
}

/// The results of a call chunk by chunk, in the order in which they arrive. A chunk that failed
/// is an item; others may follow it.
pub struct ChunkOutputs {
    results: Receiver<Result<ChunkOutput>>,
    _queue: Arc<Queue>,
}

impl Iterator for ChunkOutputs {
    type Item = Result<ChunkOutput>;

    fn next(&mut self) -> Option<Self::Item> {
        self.results.recv().ok()
    }
}

impl fmt::Debug for ChunkOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkOutputs").finish_non_exhaustive()
    }
}
