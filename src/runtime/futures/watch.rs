//! The thin loop around [`Machine`]: polls one future until it has an outcome.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::machine::{Answer, Machine, Verdict};
use super::results::{Failure, Results};
use super::trouble::Trouble;
use crate::config::Timeout;
use crate::error::{Context, Effect, Error, Meaning, Result};
use crate::runtime::pending::Status;
use crate::runtime::threads::{BytesGuard, Crew};
use crate::transport::{Body, Request, Response};
use crate::types::QueueStatus;
use crate::wire::reply::{RESULT_TYPES, RetrieveReply};
use crate::wire::request::{RetrieveFutureRequest, to_json};
use crate::wire::route::RETRIEVE_FUTURE;

/// How long a poll may hold its thread while other futures wait for one.
const SHARED_POLL: Duration = Duration::from_secs(5);

/// A request the service has accepted.
pub(crate) struct Accepted {
    pub(crate) request_id: String,
    /// What `X-Tinker-Request-Type` says: `OptimStep`.
    pub(crate) request_type: &'static str,
    /// Whether its result comes as protobuf.
    pub(crate) binary: bool,
    /// How long the service took to accept it.
    pub(crate) roundtrip: Duration,
}

impl Accepted {
    /// Whether the same request may be made again without harm.
    fn is_idempotent(&self) -> bool {
        matches!(
            self.request_type,
            "Sample" | "Forward" | "CreateModel" | "CreateCustomLoss" | "UnloadModel"
        )
    }
}

/// How a future ended.
pub(crate) enum Outcome<T> {
    Ready(T),
    Failed(Error),
    /// The service lost it: a sample may be submitted again.
    Lost(Error),
}

/// Reads a result: its content type and body.
pub(crate) type Decode<T> = Arc<dyn Fn(Option<&str>, Vec<u8>) -> Result<T> + Send + Sync>;

/// One future being polled.
pub(crate) struct Watch<T> {
    results: Arc<Results>,
    accepted: Accepted,
    status: Arc<Status>,
    decode: Decode<T>,
    done: Box<dyn FnOnce(Outcome<T>) + Send>,
    patience: Option<Duration>,
    machine: Machine,
    reserved: Option<BytesGuard>,
    announced: Option<u64>,
    started: Instant,
    crew: Crew,
    give_up: Box<dyn Fn() -> Option<Error> + Send>,
    /// Whether the request is submitted again after a failure that may pass.
    repeated: bool,
}

impl<T: Send + 'static> Watch<T> {
    pub(crate) fn new(
        results: Arc<Results>,
        accepted: Accepted,
        status: Arc<Status>,
        decode: Decode<T>,
        done: impl FnOnce(Outcome<T>) + Send + 'static,
    ) -> Self {
        // The service has it whatever our polls do.
        let patience = results.config.result_patience;
        Self {
            crew: results.crew.clone(),
            results,
            accepted,
            status,
            decode,
            done: Box::new(done),
            patience,
            machine: Machine::new(patience),
            reserved: None,
            announced: None,
            started: Instant::now(),
            give_up: Box::new(|| None),
            repeated: false,
        }
    }

    /// Bears polls that fail for this long instead of for ever.
    pub(crate) fn bearing(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self.machine = Machine::new(patience);
        self
    }

    /// Starts at the payload, if a poller announced its size.
    pub(crate) fn finished_with(mut self, size: u64) -> Self {
        if size > 0 {
            self.machine = Machine::fetching(self.patience);
            self.announced = Some(size);
        }
        self
    }

    /// Waits on threads of this crew instead of the session's.
    pub(crate) fn on(mut self, crew: Crew) -> Self {
        self.crew = crew;
        self
    }

    /// Says that a failure that may pass is not the end of it, so nobody is told of one.
    pub(crate) fn repeated(mut self, repeated: bool) -> Self {
        self.repeated = repeated;
        self
    }

    /// Asks between polls whether to go on.
    pub(crate) fn giving_up(mut self, ask: impl Fn() -> Option<Error> + Send + 'static) -> Self {
        self.give_up = Box::new(ask);
        self
    }

    /// Ends the wait without a poll. Whatever ends it, the service has the request.
    pub(crate) fn fail(self, error: Error) {
        let error = self.name(error);
        (self.done)(Outcome::Failed(error));
    }

    /// Polls on a thread of the crew.
    pub(crate) fn start(self) {
        let crew = self.crew.clone();
        crew.run(move || self.run());
    }

    /// Polls on this thread, which must be one that may wait.
    pub(crate) fn run(mut self) {
        if let Some(size) = self.announced.take() {
            self = match self.reserve(size) {
                Some(watch) => watch,
                None => return,
            };
        }
        loop {
            let answer = match self.poll() {
                Polled::Ready(value) => {
                    drop(self.reserved.take());
                    return (self.done)(Outcome::Ready(value));
                }
                Polled::Answer(answer) => answer,
            };
            let now = self.results.link.clock().now();
            let reason = match &answer {
                Answer::Trouble(Trouble { error, .. }) | Answer::Damaged(error) => {
                    error.to_string()
                }
                _ => String::new(),
            };
            let verdict = self.machine.next(answer, now, fastrand::f64());
            self.status.polled(self.machine.failing_since(), reason);
            match verdict {
                Verdict::Poll => {}
                Verdict::Wait(delay) => {
                    self.results
                        .link
                        .clock()
                        .pause(self.results.link.stop(), delay);
                }
                Verdict::Fetch(size) => match self.reserve(size) {
                    Some(watch) => self = watch,
                    None => return,
                },
                Verdict::Fail(error) => {
                    let error = self.name(error);
                    self.report(&error);
                    return (self.done)(Outcome::Failed(error));
                }
                Verdict::Lost(error) => {
                    let error = self.name(error);
                    return (self.done)(Outcome::Lost(error));
                }
            }
            if self.status.is_cancelled() {
                return self.fail(cancelled());
            }
            if let Some(error) = (self.give_up)() {
                return self.fail(error);
            }
            // Whoever holds bytes keeps the thread: others wait for those bytes.
            if self.reserved.is_none() && self.crew.is_crowded() {
                return self.start();
            }
        }
    }

    /// Takes room for the result. If there is none, the watch leaves this thread to others and
    /// goes on, before all of them, once there is.
    fn reserve(mut self, size: u64) -> Option<Self> {
        let bytes = self.results.bytes.clone();
        if let Some(room) = bytes.try_take(size) {
            self.reserved = Some(room);
            return Some(self);
        }
        bytes.take_later(size, move |room| {
            if room.is_none() {
                let message = "the client was closed before its result was fetched";
                return self.fail(Error::Closed(Context::new(message)));
            }
            self.reserved = room;
            let crew = self.crew.clone();
            crew.run_first(move || self.run());
        });
        None
    }

    fn name(&self, error: Error) -> Error {
        let effect = match &error {
            // It ran, and what failed has changed nothing.
            Error::Failed(_) => Effect::None,
            _ => Effect::Accepted,
        };
        let error = error
            .for_request(self.status.operation())
            .with_request_id(&self.accepted.request_id)
            .with_effect(effect);
        match self.accepted.is_idempotent() {
            true => error.for_idempotent(),
            false => error,
        }
    }

    fn report(&self, error: &Error) {
        let passing = self.repeated && error.is_retryable();
        if passing || matches!(error, Error::Closed(_) | Error::Cancelled(_)) {
            return;
        }
        self.results.failed(&Failure {
            error,
            request_id: &self.accepted.request_id,
            request_type: self.accepted.request_type,
            iteration: self.machine.iteration().saturating_sub(1),
            elapsed: self.started.elapsed(),
        });
    }

    fn poll(&self) -> Polled<T> {
        let response = match self.ask() {
            Ok(response) => response,
            Err(answer) => return Polled::Answer(answer),
        };
        match Meaning::of_status(response.status()) {
            Meaning::Success => self.read(response),
            Meaning::Pending => {
                let note = RetrieveReply::pending_note(&response.body);
                let clears = note.is_some();
                Polled::Answer(self.pending(note, clears))
            }
            _ => {
                let (link, label) = (&self.results.link, RETRIEVE_FUTURE.label());
                Polled::Answer(Answer::Trouble(Trouble::refused(link, &response, &label)))
            }
        }
    }

    fn ask(&self) -> Result<Response, Answer> {
        let body = to_json(&RetrieveFutureRequest {
            request_id: self.accepted.request_id.as_str().into(),
            allow_metadata_only: self.machine.allows_metadata_only(),
        })
        .map_err(Answer::Failed)?;
        let iteration = self.machine.iteration();
        let mut request = Request::to(&RETRIEVE_FUTURE, RETRIEVE_FUTURE.fixed_path())
            .with_body(Body::Json(&body))
            .with_header("X-Tinker-Request-Iteration", iteration.to_string())
            .with_header("X-Tinker-Request-Type", self.accepted.request_type)
            .with_header("X-Stainless-Raw-Response", "raw");
        if iteration == 0 {
            let seconds = self.accepted.roundtrip.as_secs_f64().to_string();
            request = request.with_header("X-Tinker-Create-Promise-Roundtrip-Time", seconds);
        }
        if self.accepted.binary {
            request = request.with_accept(RESULT_TYPES);
        }
        let limit = match self.crew.is_crowded() {
            true => SHARED_POLL,
            false => self.results.config.poll_timeout,
        };
        request.read_timeout = Timeout::After(limit);
        self.results.link.attempt(request).map_err(|failed| {
            Answer::Trouble(Trouble::unanswered(failed, &RETRIEVE_FUTURE.label()))
        })
    }

    fn read(&self, response: Response) -> Polled<T> {
        let content_type = response.header("content-type").map(str::to_owned);
        Polled::Answer(
            match RetrieveReply::classify(content_type.as_deref(), response.body) {
                Ok(RetrieveReply::Payload(body)) => {
                    let (decode, size) = (self.decode.clone(), body.len());
                    let work = move || decode(content_type.as_deref(), body);
                    match self.results.cpu.run(size, work) {
                        Ok(value) => return Polled::Ready(value),
                        Err(error) => Answer::Damaged(self.damaged(error)),
                    }
                }
                Ok(RetrieveReply::MetadataOnly { size }) => Answer::MetadataOnly(size),
                Ok(RetrieveReply::Failed { message, category }) => {
                    // The service's words may echo what it was sent.
                    let message = self.results.link.transport().redact(&message);
                    let mut context = Context::new(message);
                    context.category = Some(category);
                    Answer::Failed(Error::Failed(context))
                }
                Ok(pending @ RetrieveReply::Pending { .. }) => self.pending(Some(pending), false),
                Err(error) => Answer::Damaged(self.damaged(error)),
            },
        )
    }

    /// What is wrong with a result is the reply's fault, not an argument's.
    fn damaged(&self, error: Error) -> Error {
        self.results
            .link
            .transport()
            .redact_error(error.into_reply())
    }

    fn pending(&self, note: Option<RetrieveReply>, clears: bool) -> Answer {
        let queue = note.and_then(queue_status);
        if let Some(queue) = queue {
            self.results.queued(&self.status, queue);
        }
        Answer::Pending { clears }
    }
}

enum Polled<T> {
    Ready(T),
    Answer(Answer),
}

fn queue_status(reply: RetrieveReply) -> Option<QueueStatus> {
    match reply {
        RetrieveReply::Pending {
            queue_state,
            reason,
        } if queue_state.is_some() || reason.is_some() => {
            let state = queue_state.unwrap_or_else(|| "unknown".into());
            Some(QueueStatus::new(state, reason))
        }
        _ => None,
    }
}

fn cancelled() -> Error {
    Error::Cancelled(Context::new("its handle was dropped"))
}
