//! `forward` and `forward_backward`: chunks of one call, encoded and sent side by side.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam_channel::unbounded;

use super::dialect::Spoken;
use super::gather::{Gather, Gathered};
use super::limit::QueuedBytes;
use super::queue::{Gate, Operation, Shared, Worker};
use super::room::Training;
use super::sequence::{Conflict, Sent, classify};
use crate::error::{Context, Effect, Error, Result};
use crate::runtime::futures::{Accepted, Watch};
use crate::runtime::pending::Status;
use crate::types::{Datum, DatumRange, Loss, chunk_ranges};
use crate::wire::dialect::{decode_forward_backward, validate_json};
use crate::wire::forward_backward::ForwardBackwardRequest;

/// Chunks of one call that are on their way at once.
const LANES: usize = 8;

/// One call.
pub(crate) struct Forward {
    pub(crate) call: Arc<Call>,
    pub(crate) gather: Gather,
    /// Its share of what may be queued.
    pub(super) room: QueuedBytes,
    /// Opened once every chunk was submitted.
    pub(crate) gate: Gate,
}

/// What every chunk of a call shares.
pub(crate) struct Call {
    pub(crate) data: Vec<Datum>,
    pub(crate) loss: Loss,
    pub(crate) forward_only: bool,
    pub(crate) model_id: String,
    pub(crate) status: Arc<Status>,
}

impl Operation for Forward {
    fn run(self: Box<Self>, worker: &mut Worker) {
        let shared = worker.shared.clone();
        let prepared = self.prepare(&shared.training).and_then(|ranges| {
            let numbers = worker.numbers(ranges.len())?;
            Ok((ranges, numbers))
        });
        let (ranges, numbers) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.fail(error),
        };
        let sending = Arc::new(Sending {
            gather: Gathered::new(self.gather, self.room, ranges.len()),
            shared: shared.clone(),
            call: self.call,
            ranges,
            first: numbers.start,
        });
        let (sent, failure) = sending.send_all();
        let filler = sent.iter().position(|sent| *sent == Sent::Accepted);
        let settled = worker.settle(&sent, failure.as_ref(), |number| {
            sending.fill(filler.unwrap_or(0), number)
        });
        let error = match (settled, failure) {
            (Ok(()), None) => return self.gate.open(),
            (Ok(()), Some(error)) => shared.refused(error),
            (Err(broken), _) => broken,
        };
        self.gate.shut(&error);
        sending.gather.fail(error);
    }

    fn fail(self: Box<Self>, error: Error) {
        let error = error.for_request(self.call.status.operation());
        self.gate.shut(&error);
        Gathered::new(self.gather, self.room, 1).fail(error);
    }
}

impl Forward {
    /// Checks every chunk before any is sent or numbered.
    fn prepare(&self, training: &Training) -> Result<Vec<DatumRange>> {
        let config = &training.results.client_config;
        let ranges = chunk_ranges(
            &self.call.data,
            config.fwdbwd_max_chunk_len,
            config.fwdbwd_max_chunk_bytes_count,
        );
        let bytes = ranges.iter().map(|range| range.bytes).sum();
        let (call, spoken) = (self.call.clone(), training.dialect.spoken());
        training.results.cpu.run(bytes, move || match spoken {
            Spoken::Json => validate_json(&call.whole()),
            _ => call.whole().validate(),
        })?;
        Ok(ranges)
    }
}

impl Call {
    /// All of it as one request, to be looked at rather than sent.
    pub(super) fn whole(&self) -> ForwardBackwardRequest<'_> {
        self.request(0..self.data.len(), None)
    }

    pub(super) fn request(
        &self,
        range: Range<usize>,
        number: Option<i32>,
    ) -> ForwardBackwardRequest<'_> {
        ForwardBackwardRequest {
            model_id: &self.model_id,
            seq_id: number.map(|number| number.unsigned_abs().into()),
            data: &self.data[range],
            loss_fn: self.loss.function.as_str(),
            loss_fn_config: (!self.loss.config.is_empty()).then_some(&self.loss.config),
            forward_only: self.forward_only,
        }
    }

    fn request_type(&self) -> &'static str {
        match self.forward_only {
            true => "Forward",
            false => "ForwardBackward",
        }
    }
}

/// A call being sent.
pub(super) struct Sending {
    shared: Arc<Shared>,
    call: Arc<Call>,
    ranges: Vec<DatumRange>,
    first: i32,
    gather: Arc<Gathered>,
}

impl Sending {
    pub(super) fn training(&self) -> &Training {
        &self.shared.training
    }

    /// Sends every chunk: side by side with the first one last, or one by one. What became of
    /// each, and the first failure.
    fn send_all(self: &Arc<Self>) -> (Vec<Sent>, Option<Error>) {
        let count = self.ranges.len();
        if count == 1 || !self.training().results.client_config.parallel_fwdbwd_chunks {
            return self.send_in_order();
        }
        let mut results: Vec<Option<Result<()>>> = Vec::new();
        results.resize_with(count, || None);
        let (done, finished) = unbounded();
        let next = Arc::new(AtomicUsize::new(1));
        for _ in 0..LANES.min(count - 1) {
            let (sending, next, done) = (self.clone(), next.clone(), done.clone());
            self.training().submitters.run(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= sending.ranges.len() {
                        return;
                    }
                    let result = sending.send(index);
                    // The worker waits for every lane, so it is there.
                    let _ = done.send((index, result));
                }
            });
        }
        drop(done);
        for (index, result) in finished {
            results[index] = Some(result);
        }
        // The service holds the others until it has the first, so a failure among them still
        // needs the first to complete the sequence.
        results[0] = Some(self.send(0));
        self.judge(results.into_iter().map(|result| {
            result.unwrap_or_else(|| {
                let message = "a thread ended while it sent a chunk";
                Err(Error::Internal(Context::new(message)).with_effect(Effect::Unknown))
            })
        }))
    }

    /// Stops at the first failure: what was not sent takes no number.
    fn send_in_order(self: &Arc<Self>) -> (Vec<Sent>, Option<Error>) {
        let mut results = Vec::new();
        for index in 0..self.ranges.len() {
            results.push(self.send(index));
            if results.last().is_some_and(Result::is_err) {
                break;
            }
        }
        self.judge(results)
    }

    fn judge(&self, results: impl IntoIterator<Item = Result<()>>) -> (Vec<Sent>, Option<Error>) {
        let mut failure = None;
        let sent: Vec<Sent> = results
            .into_iter()
            .enumerate()
            .map(|(index, result)| match result {
                Ok(()) => Sent::Accepted,
                Err(error) => {
                    let sent = classify(&error, Conflict::Number);
                    let error = match sent {
                        // Taken, but nobody knows by whom.
                        Sent::Accepted => error.with_effect(Effect::Unknown),
                        _ => error,
                    };
                    failure.get_or_insert((index, error));
                    sent
                }
            })
            .collect();
        let others = sent.contains(&Sent::Accepted);
        let failure = failure.map(|(index, error)| self.name(index, error, others));
        (sent, failure)
    }

    /// Says which data an error is about, and what happened to the `others` of its call, if the
    /// service has any of them.
    fn name(&self, index: usize, error: Error, others: bool) -> Error {
        let mut error = error.for_request(self.call.status.operation());
        let (count, range) = (self.ranges.len(), &self.ranges[index].range);
        if count > 1 {
            error = match (self.call.forward_only, others) {
                (true, _) => error.for_idempotent(),
                // Submitted again, what was accepted would count twice.
                (false, true) => {
                    let error = error.of_a_part().for_request(self.call.status.operation());
                    let effect = error.effect().and(Effect::Unknown);
                    error.with_effect(effect)
                }
                (false, false) => error,
            };
            let warning = match self.call.forward_only {
                true => "",
                false => "; gradients of other chunks may already be accumulated",
            };
            if let Some(context) = error.context_mut() {
                context.message = format!(
                    "{} in data[{}..{}], chunk {} of {count}{warning}",
                    context.message,
                    range.start,
                    range.end,
                    index + 1
                );
            }
        }
        error
    }

    /// Sends one chunk and starts to wait for its result.
    fn send(self: &Arc<Self>, index: usize) -> Result<()> {
        let number = self.number(index);
        let started = Instant::now();
        self.call.status.sending();
        let range = self.ranges[index].range.clone();
        let reply = self.post(&self.call, range.clone(), self.ranges[index].bytes, number)?;
        self.call.status.part_accepted(&reply.request_id);
        let accepted = Accepted {
            request_id: reply.request_id,
            request_type: self.call.request_type(),
            binary: true,
            roundtrip: started.elapsed(),
        };
        let mine = self.clone();
        let results = self.training().results.clone();
        let status = self.call.status.clone();
        let decode = Arc::new(decode_forward_backward);
        Watch::new(results, accepted, status, decode, move |outcome| match mine
            .shared
            .result(outcome)
        {
            Ok(output) => mine.gather.put(index, range, output),
            Err(error) => mine.gather.fail(mine.name(index, error, true)),
        })
        .start();
        Ok(())
    }

    fn number(&self, index: usize) -> i32 {
        // `Worker::numbers` has checked that they all fit.
        self.first + i32::try_from(index).expect("there are fewer chunks than numbers")
    }

    /// Uses up a number with a pass that changes nothing, over one datum that was accepted.
    fn fill(&self, accepted: usize, number: i32) -> Result<()> {
        let datum = self.call.data[self.ranges[accepted].range.start].clone();
        let bytes = datum.byte_estimate();
        let filler = Arc::new(Call {
            data: vec![datum],
            loss: self.call.loss.clone(),
            forward_only: true,
            model_id: self.call.model_id.clone(),
            status: self.call.status.clone(),
        });
        self.post(&filler, 0..1, bytes, number).map(drop)
    }
}
