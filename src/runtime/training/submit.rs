//! What a model's queue can be asked for.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use serde::de::DeserializeOwned;

use super::chunks::{Call, Forward};
use super::gather::{ChunkOutput, ChunkSender, Gather};
use super::limit::QueuedBytes;
use super::queue::{Gate, Operation, Queue};
use super::single::Single;
use crate::error::{Error, Result};
use crate::runtime::pending::{Pending, Status};
use crate::sync::lock;
use crate::types::{
    Datum, ForwardBackwardOutput, Loss, ModelId, OptimStepResponse, OptimizerParams,
};
use crate::wire::reply::decode_json;
use crate::wire::request::{OptimStepRequest, to_json};
use crate::wire::route::{self, Route};

/// Whether a pass leaves gradients behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Backward,
}

impl Pass {
    fn operation(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "forward_backward",
        }
    }
}

/// An operation and the handle of its result.
type Prepared<T> = (Box<dyn Operation>, Pending<T>);

impl Queue {
    /// Queues a pass over data; the outputs of its chunks are folded into one.
    pub(crate) fn forward(
        self: &Arc<Self>,
        data: &[Datum],
        loss: Loss,
        pass: Pass,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        let (operation, pending) = self.prepare(data, loss, pass, &Gate::default())?;
        self.submit(vec![operation])?;
        Ok(pending)
    }

    /// Queues a backward pass whose chunks are given one by one.
    pub(crate) fn chunks(
        self: &Arc<Self>,
        data: &[Datum],
        loss: Loss,
    ) -> Result<Receiver<Result<ChunkOutput>>> {
        let status = Status::new(Pass::Backward.operation());
        let (call, room) = self.call(data, loss, Pass::Backward, status)?;
        let (sender, results) = ChunkSender::new();
        self.ends_with(sender.aborter());
        self.submit(vec![Box::new(Forward {
            call,
            gather: Gather::Each(sender),
            room,
            gate: Gate::default(),
        })])?;
        Ok(results)
    }

    /// Queues the application of the gradients.
    pub(crate) fn optim(
        self: &Arc<Self>,
        params: OptimizerParams,
    ) -> Result<Pending<OptimStepResponse>> {
        let (operation, pending) = self.prepare_optim(params, None)?;
        self.submit(vec![operation])?;
        Ok(pending)
    }

    /// Queues gradients and their application with nothing between them; the second is not sent
    /// unless the first was.
    pub(crate) fn step(
        self: &Arc<Self>,
        data: &[Datum],
        loss: Loss,
        params: OptimizerParams,
    ) -> Result<(Pending<ForwardBackwardOutput>, Pending<OptimStepResponse>)> {
        let gate = Gate::default();
        let (first, output) = self.prepare(data, loss, Pass::Backward, &gate)?;
        let (second, applied) = self.prepare_optim(params, Some(gate))?;
        self.submit(vec![first, second])?;
        Ok((output, applied))
    }

    /// Queues a JSON request, whose body is made when its number is known.
    pub(crate) fn post<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        route: &'static Route,
        body: impl FnOnce(&ModelId, u64) -> Result<Vec<u8>> + Send + 'static,
    ) -> Result<Pending<T>> {
        let (operation, pending) = self.prepare_post(route, body, None);
        self.submit(vec![operation])?;
        Ok(pending)
    }

    fn prepare(
        self: &Arc<Self>,
        data: &[Datum],
        loss: Loss,
        pass: Pass,
        gate: &Gate,
    ) -> Result<Prepared<ForwardBackwardOutput>> {
        let (status, promise, pending) = self.promise(pass.operation());
        let (call, room) = self.call(data, loss, pass, status)?;
        let operation = Box::new(Forward {
            call,
            gather: Gather::Whole(promise),
            room,
            gate: gate.clone(),
        });
        Ok((
            operation,
            pending
                .and_then(|parts| ForwardBackwardOutput::combine(parts).map_err(Error::into_reply)),
        ))
    }

    fn prepare_optim(
        self: &Arc<Self>,
        params: OptimizerParams,
        after: Option<Gate>,
    ) -> Result<Prepared<OptimStepResponse>> {
        params.validate()?;
        let body = move |model_id: &ModelId, number| {
            to_json(&OptimStepRequest::new(
                model_id.as_str(),
                Some(number),
                &params,
            ))
        };
        Ok(self.prepare_post(&route::OPTIM_STEP, body, after))
    }

    fn prepare_post<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        route: &'static Route,
        body: impl FnOnce(&ModelId, u64) -> Result<Vec<u8>> + Send + 'static,
        after: Option<Gate>,
    ) -> Prepared<T> {
        let (status, promise, pending) = self.promise(route.template);
        let model_id = self.model_id().clone();
        let operation = Box::new(Single {
            route,
            body: Box::new(move |number| body(&model_id, number.unsigned_abs().into())),
            decode: Arc::new(|_, body| decode_json(&body)),
            status,
            promise,
            after,
        });
        (operation, pending)
    }

    /// Names an input that no loss reads, once: the service ignores it without a word.
    fn note_misspelt(&self, data: &[Datum], loss: &Loss) {
        let found = |datum: &Datum| {
            let name = loss.function.misspelt(datum.loss_fn_inputs().keys());
            name.map(str::to_owned)
        };
        let Some(name) = data.iter().find_map(found) else {
            return;
        };
        let mut told = lock(&self.shared().training.misspelt);
        if told.len() < 16 && told.insert(name.clone()) {
            log::warn!(
                "loss_fn_inputs.{name} is no input of {}, which reads {}; the service may ignore it",
                loss.function,
                loss.function.inputs().join(", ")
            );
        }
    }

    fn call(
        &self,
        data: &[Datum],
        loss: Loss,
        pass: Pass,
        status: Arc<Status>,
    ) -> Result<(Arc<Call>, QueuedBytes)> {
        if data.is_empty() {
            return Err(Error::invalid("data", "must hold at least one datum"));
        }
        self.note_misspelt(data, &loss);
        let training = &self.shared().training;
        let bytes: usize = data.iter().map(Datum::byte_estimate).sum();
        let most = training.results.config.max_queued_bytes;
        let room = training.queued.take(bytes as u64, most);
        let room = room.map_err(|error| error.for_request(status.operation()))?;
        let call = Arc::new(Call {
            data: data.to_vec(),
            loss,
            forward_only: pass == Pass::Forward,
            model_id: self.model_id().to_string(),
            status,
        });
        Ok((call, room))
    }
}
