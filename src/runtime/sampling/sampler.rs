//! A sample's life: queued, submitted, awaited, and submitted again where the protocol asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use super::backoff::Backoff;
use super::dispatch::{Dispatcher, Flight, Limits, Post};
use super::progress::{Progress, Ticket};
use crate::error::{Context, Error, Result, is_retryable_status};
use crate::runtime::calls::AttemptError;
use crate::runtime::core::Core;
use crate::runtime::futures::{Accepted, Outcome, Poller, Watch};
use crate::runtime::pending::{OnDrop, Pending, Promise, Status, promise};
use crate::runtime::session::Session;
use crate::sync::lock;
use crate::transport::retry::{doubling_delay, error_from_response, sampling_delay};
use crate::transport::{Body, Fault, Request, Response};
use crate::types::{ModelInput, SampleOptions, SampleResponse};
use crate::wire::dialect::decode_sample;
use crate::wire::reply::{FutureReply, JoinSamplingSessionReply, decode_json};
use crate::wire::request::{AsampleRequest, JoinSamplingSessionRequest, to_json, to_json_sized};
use crate::wire::route::{ASAMPLE, JOIN_SAMPLING_SESSION};

/// Submissions on the wire at once, and shortly after a backoff.
const POSTS: usize = 400;
const NARROW_POSTS: usize = 10;

/// The same when a poller does the waiting, and how many results are then fetched at once: fewer
/// than a hundred threads in all.
pub(crate) const POLLED_POSTS: usize = 44;

/// Numbers of one clone of a sampler; the next clone's begin above them.
const CLONE_NUMBERS: u64 = 1_000_000_000;

/// Estimates up to this size back off briefly after a 429, larger ones longer.
const SMALL: u64 = 131_072;

/// One sampler: a sampling session of the service and this process's place in it.
pub(crate) struct Sampler {
    pub(crate) core: Arc<Core>,
    pub(crate) sampling_session_id: String,
    pub(crate) record_stability_info: bool,
    /// Cloned from another client's sampler, so its numbers begin elsewhere.
    is_clone: bool,
    clone_id: Mutex<Option<u64>>,
    next: AtomicU64,
    poller: OnceLock<Poller>,
    pub(crate) progress: Progress,
    backoff: Arc<Backoff>,
}

impl Sampler {
    pub(crate) fn new(
        core: Arc<Core>,
        sampling_session_id: String,
        record_stability_info: bool,
        is_clone: bool,
    ) -> Arc<Self> {
        let now = core.link.clock().now();
        let backoff = Backoff::shared(core.link.transport().base_url(), &core.link.identity());
        Arc::new(Self {
            core,
            sampling_session_id,
            record_stability_info,
            is_clone,
            clone_id: Mutex::new((!is_clone).then_some(0)),
            next: AtomicU64::new(0),
            poller: OnceLock::new(),
            progress: Progress::new(now),
            backoff,
        })
    }

    /// Queues a sample. Never waits for the network.
    pub(crate) fn submit(
        self: &Arc<Self>,
        session: &Arc<Session>,
        keep: Arc<dyn std::any::Any + Send + Sync>,
        prompt: ModelInput,
        options: SampleOptions,
        retries: bool,
    ) -> Result<Pending<SampleResponse>> {
        session.check_open()?;
        options.validate()?;
        let status = Status::new("sample");
        let (promise, pending) = promise(status.clone(), OnDrop::Cancels, keep);
        let bytes = prompt.sampling_byte_estimate() as u64;
        let job = Box::new(Job {
            ticket: self.progress.begin(self.core.link.clock().now()),
            sampler: self.clone(),
            prompt,
            options,
            status,
            promise,
            bytes,
            retries,
            number: None,
            attempts: 0,
            refusals: 0,
            refused_since: None,
        });
        dispatcher(&self.core, &self.backoff)?.push(job, bytes);
        Ok(pending)
    }

    /// Samples that wait to be sent, of all samplers of the session.
    pub(crate) fn waiting(&self) -> usize {
        self.core.samples.get().map_or(0, Dispatcher::waiting)
    }

    /// The next request number. The first one of a clone may ask the service where to begin.
    fn number(&self) -> Result<u64> {
        Ok(self.clone_id()? * CLONE_NUMBERS + self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn clone_id(&self) -> Result<u64> {
        // Held across the request on purpose: others need its answer before they can go on.
        let mut clone_id = lock(&self.clone_id);
        if let Some(id) = *clone_id {
            return Ok(id);
        }
        debug_assert!(self.is_clone);
        let id = if self.core.client_config.sample_join_sampling_session {
            let body = to_json(&JoinSamplingSessionRequest {
                sampling_session_id: self.sampling_session_id.as_str().into(),
            })?;
            let reply: JoinSamplingSessionReply =
                self.core.link.json(&JOIN_SAMPLING_SESSION, &body)?;
            reply.client_counter
        } else {
            fastrand::u64(1..CLONE_NUMBERS)
        };
        *clone_id = Some(id);
        Ok(id)
    }

    fn poller(&self) -> Result<Option<&Poller>> {
        if !self.core.client_config.sample_use_retrieve_futures {
            return Ok(None);
        }
        if self.poller.get().is_none() {
            let id = self.clone_id()?;
            let started = Poller::start(&self.core, &self.sampling_session_id, id)?;
            if let Err(second) = self.poller.set(started) {
                second.close();
            }
        }
        Ok(self.poller.get())
    }

    /// The error of a run that gets nowhere.
    fn stuck(&self) -> Option<Error> {
        let limit = self.core.config.stuck_after;
        let detects = self.core.client_config.sample_enable_stuck_detection;
        let idle = self.progress.since_success(self.core.link.clock().now());
        (detects && idle >= limit).then(|| {
            let message = format!("no sample has succeeded for {} s", idle.as_secs());
            Error::Connection(Context::new(message)).for_request("sample")
        })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        if let Some(poller) = self.poller.get() {
            poller.close();
        }
    }
}

/// The session's dispatcher; starts it with the first sample.
fn dispatcher<'a>(core: &'a Arc<Core>, backoff: &Arc<Backoff>) -> Result<&'a Dispatcher<Box<Job>>> {
    if let Some(dispatcher) = core.samples.get() {
        return Ok(dispatcher);
    }
    let config = &core.client_config;
    let limits = Limits {
        posts: match config.sample_use_retrieve_futures {
            true => POLLED_POSTS,
            false => POSTS,
        },
        narrow_posts: NARROW_POSTS,
        flights: (!config.sample_use_retrieve_futures)
            .then_some(config.sample_max_concurrent_requests),
        bytes: config.sample_dispatch_bytes_semaphore_size,
    };
    let made = Dispatcher::new(core.link.clock().clone(), backoff.clone(), limits);
    if core.samples.set(made.clone()).is_ok() {
        let queue = made.clone();
        let threads = match config.sample_use_retrieve_futures {
            true => POLLED_POSTS,
            false => core.config.max_waiting_threads,
        };
        let started = Core::spawn(core, "tinker-dispatch", move |core| {
            while let Some((job, post, flight)) = queue.next() {
                let queue = queue.clone();
                // A thread for every submission that counts, and for those that do not any more.
                let most = core.config.max_waiting_threads;
                core.couriers.allow(most.min(threads + queue.silent()));
                core.couriers.run(move || {
                    job.go(post, flight);
                    while let Some((job, post, flight)) = queue.try_next() {
                        job.go(post, flight);
                    }
                });
            }
        });
        if started.is_err() {
            // What nobody would send is refused rather than kept.
            made.close();
        }
        started?;
    }
    Ok(core.samples.get().expect("it was just set"))
}

/// One sample on its way.
pub(crate) struct Job {
    sampler: Arc<Sampler>,
    prompt: ModelInput,
    options: SampleOptions,
    status: Arc<Status>,
    promise: Promise<SampleResponse>,
    ticket: Ticket,
    bytes: u64,
    retries: bool,
    /// Its number in the sampling session; kept while it is unknown whether the service has it.
    number: Option<u64>,
    /// Submissions that were lost or failed after they had been accepted.
    attempts: u32,
    /// Submissions in a row that the service did not take.
    refusals: u32,
    refused_since: Option<Instant>,
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
                if let Some(error) = sampler.stuck() {
                    return self.fail(error);
                }
                sampler
                    .backoff
                    .extend(sampler.core.link.clock().now() + delay);
                self.requeue(|samples, job| samples.push_front(job, bytes, flight));
            }
            Submitted::Again(error) => self.again(error, flight),
            Submitted::Fatal(error) => self.fail(error),
        }
    }

    fn submit(&mut self) -> Submitted {
        let core = self.sampler.core.clone();
        let body = match self.encode() {
            Ok(body) => body,
            Err(error) => return Submitted::Fatal(error),
        };
        let request = Request::to(&ASAMPLE, ASAMPLE.fixed_path())
            .with_body(Body::Json(&body))
            .with_header("X-Tinker-Sampling-Backpressure", "1");
        match core.link.attempt(request) {
            Ok(response) if response.is_success() => match decode_json(&response.body) {
                Ok(reply) => Submitted::Accepted(reply),
                Err(error) => Submitted::Again(error.for_request(&ASAMPLE.label())),
            },
            Ok(response) => self.refused(&response),
            Err(AttemptError::Credentials(error)) => Submitted::Fatal(error),
            Err(AttemptError::Fault(fault)) => unanswered(&fault),
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
        let (prompt, options) = (self.prompt.clone(), self.options.clone());
        // The estimate is for the prompt's numbers; the rest is some 400 bytes.
        let (bytes, capacity) = (self.bytes as usize, self.bytes as usize + 512);
        self.sampler.core.cpu.run(bytes, move || {
            let session = sampler.sampling_session_id.as_str();
            let request = AsampleRequest::new(session, number, &prompt, &options);
            to_json_sized(
                &request.with_stability_info(sampler.record_stability_info),
                capacity,
            )
        })
    }

    fn refused(&self, response: &Response) -> Submitted {
        let error = error_from_response(response, &ASAMPLE.label(), SystemTime::now());
        let paused = || self.sampler.core.link.billing_pause();
        match response.status() {
            429 => Submitted::Backoff(error.retry_after().unwrap_or(self.backoff())),
            402 if paused() => Submitted::Backoff(self.backoff()),
            status if is_retryable_status(status) => Submitted::Again(error),
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
        let now = self.sampler.core.link.clock().now();
        let since = *self.refused_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.sampler.core.patience() {
            self.refused_since = None;
            self.refusals = 0;
            return self.retry(error, flight);
        }
        if let Some(stuck) = self.sampler.stuck() {
            return self.fail(stuck);
        }
        let delay = doubling_delay(self.refusals).mul_f64(1.0 - 0.25 * fastrand::f64());
        self.refusals += 1;
        self.sampler.progress.retried();
        let bytes = self.bytes;
        self.requeue(|samples, job| samples.push_later(job, bytes, flight, delay));
    }

    fn await_result(mut self: Box<Self>, reply: FutureReply, flight: Option<Flight>) {
        let id = reply.request_id;
        self.status.accepted(&id);
        let (canceller, cancelled) = (self.sampler.core.clone(), id.clone());
        self.status.on_cancel(move || canceller.cancel(cancelled));
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
    }

    /// Fetches the result of the accepted request `id`, and tells the poller when that is done.
    fn watch(
        self: Box<Self>,
        id: String,
        sequences: Option<Vec<String>>,
        flight: Option<Flight>,
        poller: Option<Poller>,
    ) -> Watch<SampleResponse> {
        let core = self.sampler.core.clone();
        let crew = match poller {
            None => core.couriers.clone(),
            Some(_) => core.fetchers.clone(),
        };
        let accepted = Accepted {
            request_id: id.clone(),
            request_type: "Sample",
            binary: true,
            roundtrip: Duration::ZERO,
        };
        let decode = move |content_type: Option<&str>, body| {
            decode_sample(content_type, body, sequences.as_deref())
        };
        let (status, sampler) = (self.status.clone(), self.sampler.clone());
        let done = move |outcome| {
            if let Some(poller) = poller {
                poller.fetched(&id);
            }
            self.finish(outcome, flight);
        };
        Watch::new(core, accepted, status, Arc::new(decode), done)
            .giving_up(move || sampler.stuck())
            .on(crew)
    }

    fn finish(self: Box<Self>, outcome: Outcome<SampleResponse>, flight: Option<Flight>) {
        match outcome {
            Outcome::Ready(response) => match self.options.check_response(&response) {
                Ok(()) => self.succeed(response),
                Err(error) => self.fail(error),
            },
            Outcome::Lost(error) => self.retry(error, flight),
            Outcome::Failed(error) => match error {
                Error::Connection(_) | Error::Timeout(_) => self.retry(error, flight),
                Error::Status(_) if error.status() >= Some(500) => self.retry(error, flight),
                _ => self.fail(error),
            },
        }
    }

    fn succeed(self, response: SampleResponse) {
        let tokens = response.sequences.iter().map(|s| s.tokens.len()).sum();
        let now = self.sampler.core.link.clock().now();
        self.sampler.progress.succeeded(tokens, now);
        self.sampler.progress.log(now, || self.sampler.waiting());
        drop(self.ticket);
        self.promise.resolve(Ok(response));
    }

    /// Submits the sample again, as a new request.
    fn retry(mut self: Box<Self>, error: Error, flight: Option<Flight>) {
        if self.status.is_cancelled() || matches!(error, Error::Closed(_)) || !self.retries {
            return self.fail(error);
        }
        if let Some(stuck) = self.sampler.stuck() {
            return self.fail(stuck);
        }
        let delay = sampling_delay(self.attempts, fastrand::f64());
        log::debug!("submitting a sample again in {delay:?}: {error}");
        self.attempts += 1;
        self.number = None;
        self.sampler.progress.retried();
        let bytes = self.bytes;
        self.requeue(|samples, job| samples.push_later(job, bytes, flight, delay));
    }

    fn requeue(self: Box<Self>, push: impl FnOnce(&Dispatcher<Box<Job>>, Box<Self>)) {
        let core = self.sampler.core.clone();
        if let Some(samples) = core.samples.get() {
            push(samples, self);
        }
    }

    fn fail(self, error: Error) {
        self.sampler.progress.failed();
        drop(self.ticket);
        self.promise.resolve(Err(error.for_request("sample")));
    }
}

fn unanswered(fault: &Fault) -> Submitted {
    let error = fault.to_error(&ASAMPLE.label());
    match fault.is_retryable() {
        true => Submitted::Again(error),
        false => Submitted::Fatal(error),
    }
}
