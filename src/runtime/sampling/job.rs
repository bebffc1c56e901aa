//! A sample's life: submitted, awaited, and submitted again where the protocol asks.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::dispatch::{Dispatcher, Flight, Post};
use super::progress::Ticket;
use super::sampler::{Sampler, Settings};
use crate::error::{Effect, Error, Result};
use crate::runtime::calls::AttemptError;
use crate::runtime::futures::{Accepted, Outcome, Poller, Watch};
use crate::runtime::pending::{Promise, Status};
use crate::transport::retry::{Backoff, Meaning, error_from_response, wish};
use crate::transport::{Body, Request, Response};
use crate::types::{ClientEvent, ModelInput, SampleOptions, SampleResponse};
use crate::wire::dialect::{align_prompt, decode_sample};
use crate::wire::reply::{FutureReply, decode_json};
use crate::wire::request::{AsampleRequest, to_json_sized};
use crate::wire::route::ASAMPLE;

/// Estimates up to this size back off briefly after a 429, larger ones longer.
const SMALL: u64 = 131_072;

/// One sample on its way.
pub(crate) struct Job {
    pub(super) sampler: Arc<Sampler>,
    pub(super) prompt: ModelInput,
    pub(super) options: SampleOptions,
    pub(super) status: Arc<Status>,
    pub(super) promise: Promise<SampleResponse>,
    pub(super) ticket: Ticket,
    pub(super) bytes: u64,
    pub(super) settings: Settings,
    /// Its number in the sampling session; kept while it is unknown whether the service has it.
    pub(super) number: Option<u64>,
    /// Submissions that were lost or failed after they had been accepted.
    pub(super) attempts: u32,
    /// Submissions in a row that the service did not take.
    pub(super) refusals: u32,
    pub(super) refused_since: Option<Instant>,
    /// What is known of the submissions that were given up.
    pub(super) effect: Effect,
}

/// What became of a submission.
enum Submitted {
    Accepted(FutureReply),
    /// Everyone is to hold back, then send the same number again.
    Backoff(Duration),
    /// Send the same number again after a while.
    Again(Error),
    Fatal(Error),
}

impl Job {
    /// Submits the sample and waits for its result; runs on a thread that may wait.
    pub(crate) fn go(mut self: Box<Self>, post: Post, flight: Option<Flight>) {
        if self.status.is_cancelled() {
            return;
        }
        let submitted = self.submit();
        drop(post);
        match submitted {
            Submitted::Accepted(reply) => {
                self.refusals = 0;
                self.refused_since = None;
                self.await_result(reply, flight);
            }
            Submitted::Backoff(delay) => {
                let (sampler, bytes) = (self.sampler.clone(), self.bytes);
                if let Some(error) = sampler.stuck(&self.settings) {
                    return self.fail(error);
                }
                sampler.backoff.extend(sampler.now() + delay);
                sampler.link().tell(&ClientEvent::Backoff { delay });
                self.requeue(|samples, lane, job| samples.push_front(lane, job, bytes, flight));
            }
            Submitted::Again(error) => self.again(error, flight),
            Submitted::Fatal(error) => self.fail(error),
        }
    }

    fn submit(&mut self) -> Submitted {
        let link = self.sampler.room.results.link.clone();
        let body = match self.encode() {
            Ok(body) => body,
            Err(error) => return Submitted::Fatal(error),
        };
        let request = Request::to(&ASAMPLE, ASAMPLE.fixed_path())
            .with_body(Body::Json(&body))
            .with_header("X-Tinker-Sampling-Backpressure", "1");
        self.status.sending();
        match link.attempt(request) {
            Ok(response) if response.is_success() => match decode_json(&response.body) {
                Ok(reply) => Submitted::Accepted(reply),
                // It was taken, under an id that cannot be read.
                Err(error) => {
                    let error = error.with_effect(Effect::Unknown);
                    Submitted::Again(error.for_request(&ASAMPLE.label()))
                }
            },
            Ok(response) => self.refused(&response),
            Err(failed) => unanswered(failed),
        }
    }

    /// Numbers and encodes the sample, on the pool if it is large.
    fn encode(&mut self) -> Result<Vec<u8>> {
        let number = match self.number {
            Some(number) => number,
            None => self.sampler.number()?,
        };
        self.number = Some(number);
        let sampler = self.sampler.clone();
        let record = self.settings.record_stability_info;
        let (prompt, options) = (self.prompt.clone(), self.options.clone());
        // The estimate is for the prompt's numbers; the rest is some 400 bytes.
        let (bytes, capacity) = (self.bytes as usize, self.bytes as usize + 512);
        self.sampler.room.results.cpu.run(bytes, move || {
            let session = sampler.sampling_session_id.as_str();
            let request = AsampleRequest::new(session, number, &prompt, &options);
            to_json_sized(&request.with_stability_info(record), capacity)
        })
    }

    fn refused(&self, response: &Response) -> Submitted {
        let error = error_from_response(response, &ASAMPLE.label(), SystemTime::now());
        let paused = || self.sampler.room.results.link.billing_pause();
        match Meaning::of_status(response.status()) {
            Meaning::Busy => Submitted::Backoff(wish(&error).unwrap_or(self.backoff())),
            Meaning::Unpaid if paused() => Submitted::Backoff(self.backoff()),
            meaning if meaning.is_passing() => Submitted::Again(error),
            _ => Submitted::Fatal(error),
        }
    }

    fn backoff(&self) -> Duration {
        match self.bytes <= SMALL {
            true => Duration::from_secs(1),
            false => Duration::from_secs(5),
        }
    }

    /// The submission may or may not have arrived: the same number again, so that it counts once.
    fn again(mut self: Box<Self>, error: Error, flight: Option<Flight>) {
        self.effect = self.effect.and(error.effect());
        let now = self.sampler.now();
        let since = *self.refused_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.sampler.room.results.patience() {
            self.refused_since = None;
            self.refusals = 0;
            return self.retry(error, flight);
        }
        if let Some(stuck) = self.sampler.stuck(&self.settings) {
            return self.fail(stuck);
        }
        let delay = Backoff::OUTAGE.delay(self.refusals, fastrand::f64());
        self.refusals += 1;
        self.sampler
            .link()
            .retrying(&ASAMPLE.label(), delay, &error);
        self.sampler.progress.retried();
        let bytes = self.bytes;
        self.requeue(|samples, lane, job| samples.push_later(lane, job, bytes, flight, delay));
    }

    fn await_result(mut self: Box<Self>, reply: FutureReply, flight: Option<Flight>) {
        let id = reply.request_id;
        self.status.accepted(&id);
        let (cancels, status) = (self.sampler.room.cancels.clone(), self.status.clone());
        let cancelled = id.clone();
        status.on_cancel(move || cancels.send(cancelled));
        let poller = match self.sampler.poller() {
            Ok(poller) => poller.cloned(),
            Err(error) => return self.fail(error),
        };
        self.number = None;
        let sequences = reply.sample_sequence_ids;
        let Some(poller) = poller else {
            return self.watch(id, sequences, flight, None).run();
        };
        let (waited, fetching) = (id.clone(), poller.clone());
        // The watch is made once the sample has ended: thousands may wait here.
        poller.wait(
            &waited,
            Box::new(move |ended| {
                let watch = self.watch(id, sequences, flight, Some(fetching));
                match ended {
                    Ok(size) => watch.finished_with(size).start(),
                    Err(error) => watch.fail(error),
                }
            }),
        );
        // Not before it waits: what is cancelled already is let go of here.
        status.on_cancel(move || poller.forget(&waited));
    }

    /// Fetches the result of the accepted request `id`, and tells the poller when that is done.
    fn watch(
        self: Box<Self>,
        id: String,
        sequences: Option<Vec<String>>,
        flight: Option<Flight>,
        poller: Option<Poller>,
    ) -> Watch<SampleResponse> {
        let room = self.sampler.room.clone();
        let repeated = self.settings.retries;
        let crew = match poller {
            None => room.couriers.clone(),
            Some(_) => room.fetchers.clone(),
        };
        let accepted = Accepted {
            request_id: id.clone(),
            request_type: "Sample",
            binary: true,
            roundtrip: Duration::ZERO,
        };
        let tokens = self.prompt.length().ok();
        let decode = move |content_type: Option<&str>, body| {
            let mut response = decode_sample(content_type, body, sequences.as_deref())?;
            if let Some(tokens) = tokens {
                align_prompt(&mut response, tokens);
            }
            Ok(response)
        };
        let (status, sampler) = (self.status.clone(), self.sampler.clone());
        let settings = self.settings;
        let done = move |outcome| {
            if let Some(poller) = poller {
                poller.fetched(&id);
            }
            self.finish(outcome, flight);
        };
        Watch::new(
            room.results.clone(),
            accepted,
            status,
            Arc::new(decode),
            done,
        )
        .bearing(Some(room.results.patience()))
        .repeated(repeated)
        .giving_up(move || sampler.stuck(&settings))
        .on(crew)
    }

    fn finish(self: Box<Self>, outcome: Outcome<SampleResponse>, flight: Option<Flight>) {
        match outcome {
            Outcome::Ready(response) => match self.options.check_response(&response) {
                Ok(()) => self.succeed(response),
                Err(error) => self.fail(error),
            },
            Outcome::Lost(error) => self.retry(error, flight),
            Outcome::Failed(error) if heals(&error) => self.retry(error, flight),
            Outcome::Failed(error) => self.fail(error),
        }
    }

    fn succeed(self, response: SampleResponse) {
        let tokens = response.sequences.iter().map(|s| s.tokens.len()).sum();
        let now = self.sampler.now();
        self.sampler.progress.succeeded(tokens, now);
        self.sampler.progress.log(now, || self.sampler.waiting());
        drop(self.ticket);
        self.promise.resolve(Ok(response));
    }

    /// Submits the sample again, as a new request.
    fn retry(mut self: Box<Self>, error: Error, flight: Option<Flight>) {
        self.effect = self.effect.and(error.effect());
        if self.status.is_cancelled() || matches!(error, Error::Closed(_)) || !self.settings.retries
        {
            return self.fail(error);
        }
        if let Some(stuck) = self.sampler.stuck(&self.settings) {
            return self.fail(stuck);
        }
        let delay = self.settings.delays().delay(self.attempts, fastrand::f64());
        log::debug!("submitting a sample again in {delay:?}: {error}");
        self.sampler.link().retrying("sample", delay, &error);
        self.attempts += 1;
        self.number = None;
        self.sampler.progress.retried();
        let bytes = self.bytes;
        self.requeue(|samples, lane, job| samples.push_later(lane, job, bytes, flight, delay));
    }

    fn requeue(self: Box<Self>, push: impl FnOnce(&Dispatcher<Box<Job>>, u64, Box<Self>)) {
        let sampler = self.sampler.clone();
        let dispatcher = sampler.room.dispatcher.peek();
        if let (Some(dispatcher), Some(lane)) = (dispatcher, sampler.lane.get()) {
            push(&dispatcher, *lane, self);
        }
    }

    fn fail(self, error: Error) {
        self.sampler.progress.failed();
        drop(self.ticket);
        let effect = self.effect.and(error.effect());
        let error = error.for_request("sample").with_effect(effect);
        let error = error.for_idempotent();
        self.promise.resolve(Err(error));
    }
}

/// Whether a sample that failed like this may succeed as a new request.
fn heals(error: &Error) -> bool {
    match error {
        Error::Connection(_) | Error::Timeout(_) => true,
        Error::Status(_) => error.meaning() == Some(Meaning::Failing),
        _ => false,
    }
}

fn unanswered(failed: AttemptError) -> Submitted {
    let (meaning, error) = failed.read(&ASAMPLE.label());
    match meaning.is_passing() {
        true => Submitted::Again(error),
        false => Submitted::Fatal(error),
    }
}
