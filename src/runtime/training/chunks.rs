//! `forward` and `forward_backward`: chunks of one call, encoded and sent side by side.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Instant, SystemTime};

use crossbeam_channel::unbounded;

use super::dialect::Form;
use super::gather::{Gather, Gathered};
use super::queue::{Gate, Operation, Worker, classify, training_result};
use super::room::Training;
use super::sequence::Sent;
use crate::error::{Context, Error, Result, is_retryable_status};
use crate::runtime::calls::{AttemptError, Unaccepted};
use crate::runtime::futures::{Accepted, Watch};
use crate::runtime::pending::Status;
use crate::transport::retry::error_from_response;
use crate::transport::{Body, Request, Response};
use crate::types::{Datum, DatumRange, Loss, chunk_ranges};
use crate::wire::dialect::{decode_forward_backward, encode_forward_backward_json, json_route};
use crate::wire::forward_backward::{ForwardBackwardRequest, encode_forward_backward};
use crate::wire::reply::{FutureReply, decode_json};
use crate::wire::route::FORWARD_BACKWARD;

/// Chunks of one call that are on their way at once.
const LANES: usize = 8;

/// One call.
pub(crate) struct Forward {
    pub(crate) call: Arc<Call>,
    pub(crate) gather: Gather,
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
        let training = worker.shared.training.clone();
        let prepared = self.prepare(&training).and_then(|ranges| {
            let numbers = worker.numbers(ranges.len())?;
            Ok((ranges, numbers))
        });
        let (ranges, numbers) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.fail(error),
        };
        let sending = Arc::new(Sending {
            gather: Gathered::new(self.gather, ranges.len()),
            training,
            call: self.call,
            ranges,
            first: numbers.start,
        });
        let (sent, failure) = sending.send_all();
        let filler = sent.iter().position(|sent| *sent == Sent::Accepted);
        let settled = worker.settle(&sent, failure.as_ref(), |number| {
            sending.fill(filler.unwrap_or(0), number)
        });
        match (settled, failure) {
            (Ok(()), None) => self.gate.open(),
            (Ok(()), Some(error)) => sending.gather.fail(error),
            (Err(broken), _) => sending.gather.fail(broken),
        }
    }

    fn fail(self: Box<Self>, error: Error) {
        let error = error.for_request(self.call.status.operation());
        Gathered::new(self.gather, 1).fail(error);
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
        let (call, spoken) = (self.call.clone(), training.spoken.form());
        training.results.cpu.run(bytes, move || {
            // What JSON cannot hold is noticed when it is written; protobuf must not fail then.
            match spoken {
                Form::Json => Ok(()),
                _ => call.request(0..call.data.len(), None).validate(),
            }
        })?;
        Ok(ranges)
    }
}

impl Call {
    fn request(&self, range: Range<usize>, number: Option<i32>) -> ForwardBackwardRequest<'_> {
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
struct Sending {
    training: Arc<Training>,
    call: Arc<Call>,
    ranges: Vec<DatumRange>,
    first: i32,
    gather: Arc<Gathered>,
}

impl Sending {
    /// Sends every chunk: side by side with the first one last, or one by one. What became of
    /// each, and the first failure.
    fn send_all(self: &Arc<Self>) -> (Vec<Sent>, Option<Error>) {
        let count = self.ranges.len();
        if count == 1 || !self.training.results.client_config.parallel_fwdbwd_chunks {
            return self.send_in_order();
        }
        let mut results: Vec<Option<Result<(), Unaccepted>>> = Vec::new();
        results.resize_with(count, || None);
        let (done, finished) = unbounded();
        let next = Arc::new(AtomicUsize::new(1));
        for _ in 0..LANES.min(count - 1) {
            let (sending, next, done) = (self.clone(), next.clone(), done.clone());
            self.training.submitters.run(move || {
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
                Err(Unaccepted {
                    error: Error::Internal(Context::new("a thread ended while it sent a chunk")),
                    arrived: true,
                })
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

    fn judge(
        &self,
        results: impl IntoIterator<Item = Result<(), Unaccepted>>,
    ) -> (Vec<Sent>, Option<Error>) {
        let mut failure = None;
        let sent = results
            .into_iter()
            .enumerate()
            .map(|(index, result)| match result {
                Ok(()) => Sent::Accepted,
                Err(refused) => {
                    let sent = classify(&refused);
                    failure.get_or_insert_with(|| self.name(index, refused.error));
                    sent
                }
            })
            .collect();
        (sent, failure)
    }

    /// Says which data an error is about, and what may have happened to the rest.
    fn name(&self, index: usize, error: Error) -> Error {
        let mut error = error.for_request(self.call.status.operation());
        let (count, range) = (self.ranges.len(), &self.ranges[index].range);
        if count > 1 {
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
    fn send(self: &Arc<Self>, index: usize) -> Result<(), Unaccepted> {
        let number = self.number(index);
        let started = Instant::now();
        let range = self.ranges[index].range.clone();
        let reply = self.post(&self.call, range.clone(), self.ranges[index].bytes, number)?;
        if self.ranges.len() == 1 {
            self.call.status.accepted(&reply.request_id);
        }
        let accepted = Accepted {
            request_id: reply.request_id,
            request_type: self.call.request_type(),
            binary: true,
            roundtrip: started.elapsed(),
        };
        let mine = self.clone();
        let (results, status) = (self.training.results.clone(), self.call.status.clone());
        let decode = Arc::new(decode_forward_backward);
        Watch::new(
            results,
            accepted,
            status,
            decode,
            move |outcome| match training_result(outcome) {
                Ok(output) => mine.gather.put(index, range, output),
                Err(error) => mine.gather.fail(mine.name(index, error)),
            },
        )
        .start();
        Ok(())
    }

    fn number(&self, index: usize) -> i32 {
        // `Worker::numbers` has checked that they all fit.
        self.first + i32::try_from(index).expect("there are fewer chunks than numbers")
    }

    /// Uses up a number with a pass that changes nothing, over one datum that was accepted.
    fn fill(&self, accepted: usize, number: i32) -> Result<(), Unaccepted> {
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

    fn post(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<FutureReply, Unaccepted> {
        let unsent = |error| Unaccepted {
            error,
            arrived: false,
        };
        let training = &self.training;
        let link = &training.results.link;
        let closed = || unsent(Error::Closed(Context::new("closed while a chunk waited")));
        let _budget = training
            .budget
            .take(bytes as u64, link.stop())
            .ok_or_else(closed)?;
        if training.spoken.form() == Form::Json {
            return self.post_json(call, range, bytes, number);
        }
        let body = self
            .encode(call, range.clone(), bytes, number)
            .map_err(unsent)?;
        let request =
            Request::to(&FORWARD_BACKWARD, FORWARD_BACKWARD.fixed_path()).with_body(Body::Proto {
                bytes: &body.bytes,
                zstd: body.zstd,
            });
        let mut arrived = false;
        if training.spoken.form() == Form::Unknown {
            match link.attempt(request.clone()) {
                Ok(response) if response.is_success() => {
                    if let Ok(reply) = decode_json(&response.body) {
                        training.spoken.learned(Form::Proto);
                        training.buffers.give(body.bytes);
                        return Ok(reply);
                    }
                    arrived = true;
                }
                Ok(response) if is_not_understood(&response) => {
                    training.buffers.give(body.bytes);
                    let reply = self.post_json(call, range, bytes, number)?;
                    training.spoken.learned(Form::Json);
                    return Ok(reply);
                }
                // An unpaid bill is waited for below.
                Ok(response)
                    if response.status() != 402 && !is_retryable_status(response.status()) =>
                {
                    let label = FORWARD_BACKWARD.label();
                    let error = error_from_response(&response, &label, SystemTime::now());
                    return Err(unsent(error));
                }
                Ok(response) => arrived = response.status() >= 500,
                Err(AttemptError::Fault(fault)) => arrived = fault.may_have_arrived(),
                Err(AttemptError::Credentials(error)) => return Err(unsent(error)),
            }
        }
        let sent = link.submit(request, (&FORWARD_BACKWARD).into());
        training.buffers.give(body.bytes);
        match sent {
            Ok(reply) => {
                training.spoken.learned(Form::Proto);
                Ok(reply)
            }
            Err(refused) => Err(Unaccepted {
                arrived: arrived || refused.arrived,
                ..refused
            }),
        }
    }

    fn post_json(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<FutureReply, Unaccepted> {
        let encoding = call.clone();
        let encoded = self.training.results.cpu.run(bytes, move || {
            let request = encoding.request(range, Some(number));
            Ok((
                json_route(&request),
                encode_forward_backward_json(&request)?,
            ))
        });
        let (route, body) = encoded.map_err(|error| Unaccepted {
            error,
            arrived: false,
        })?;
        let request = Request::to(&route, route.fixed_path()).with_body(Body::Json(&body));
        self.training.results.link.submit(request, (&route).into())
    }

    /// Encodes a chunk on the pool, into a buffer that is used again.
    fn encode(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<Encoded> {
        let call = call.clone();
        let mut buffer = self.training.buffers.take();
        let compress = self.training.results.client_config.proto_compress_fwdbwd;
        self.training.results.cpu.run(bytes, move || {
            encode_forward_backward(&call.request(range, Some(number)), &mut buffer)?;
            finish_encoding(buffer, compress)
        })
    }
}

struct Encoded {
    bytes: Vec<u8>,
    zstd: bool,
}

#[cfg(feature = "zstd")]
fn finish_encoding(buffer: Vec<u8>, compress: bool) -> Result<Encoded> {
    if !compress {
        return Ok(Encoded {
            bytes: buffer,
            zstd: false,
        });
    }
    let mut bytes = Vec::new();
    crate::wire::compress::compress(&buffer, &mut bytes)?;
    Ok(Encoded { bytes, zstd: true })
}

/// Compression is the service's wish, not its condition.
#[cfg(not(feature = "zstd"))]
fn finish_encoding(buffer: Vec<u8>, _compress: bool) -> Result<Encoded> {
    Ok(Encoded {
        bytes: buffer,
        zstd: false,
    })
}

/// Whether an answer to the first protobuf body says that the server speaks only JSON.
fn is_not_understood(response: &Response) -> bool {
    let text = || String::from_utf8_lossy(&response.body).to_ascii_lowercase();
    match response.status() {
        415 | 422 => true,
        400 => {
            let error = error_from_response(response, "", SystemTime::now());
            let detail = error.to_string().to_ascii_lowercase();
            ["json", "decode", "parse", "utf-8"]
                .iter()
                .any(|word| detail.contains(word))
        }
        // A server whose framework stumbled over the body before any of its own code ran.
        500 => response.content_type() == "text/plain" && text().contains("internal server error"),
        _ => false,
    }
}
