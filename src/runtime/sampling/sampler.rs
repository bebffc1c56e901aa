//! A sampler: a sampling session of the service and this process's place in it.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::backoff::Backoff;
use super::job::Job;
use super::progress::Progress;
use super::room::Sampling;
use crate::error::{Context, Effect, Error, Result};
use crate::runtime::calls::Link;
use crate::runtime::futures::Poller;
use crate::runtime::opened::Opened;
use crate::runtime::pending::{OnDrop, Pending, Status, promise};
use crate::runtime::threads::Cpu;
use crate::sync::lock;
use crate::transport::retry::Backoff as Delays;
use crate::types::{ModelInput, RetryConfig, SampleOptions, SampleResponse, SamplingSessionId};
use crate::wire::reply::JoinSamplingSessionReply;
use crate::wire::request::{JoinSamplingSessionRequest, to_json};
use crate::wire::route::JOIN_SAMPLING_SESSION;

/// Numbers of one clone of a sampler; the next clone's begin above them.
const CLONE_NUMBERS: u64 = 1_000_000_000;

/// What one client asks for with every sample.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    /// Whether a failed sample is repeated.
    pub(crate) retries: bool,
    pub(crate) record_stability_info: bool,
    pub(crate) retry: RetryConfig,
}

impl Settings {
    /// The waits before a sample is submitted again.
    pub(super) fn delays(&self) -> Delays {
        let RetryConfig {
            retry_delay_base: base,
            retry_delay_max: max,
            jitter_factor: jitter,
            ..
        } = self.retry;
        Delays::between(base, max, jitter)
    }
}

/// One sampler: a sampling session of the service and this process's place in it.
pub(crate) struct Sampler {
    pub(super) room: Arc<Sampling>,
    pub(crate) sampling_session_id: SamplingSessionId,
    /// Cloned from another client's sampler, so its numbers begin elsewhere.
    is_clone: bool,
    clone_id: Opened<u64>,
    next: AtomicU64,
    /// Its queue in the dispatcher, from the first sample on.
    pub(super) lane: OnceLock<u64>,
    /// What the latest sample was submitted with.
    latest: Mutex<Option<Settings>>,
    poller: OnceLock<Poller>,
    pub(crate) progress: Progress,
    pub(super) backoff: Arc<Backoff>,
}

impl Sampler {
    /// The pool for work of the processor.
    pub(crate) fn cpu(&self) -> &Cpu {
        &self.room.results.cpu
    }

    pub(crate) fn new(
        room: Arc<Sampling>,
        sampling_session_id: SamplingSessionId,
        is_clone: bool,
    ) -> Arc<Self> {
        let link = &room.results.link;
        let now = link.clock().now();
        let backoff = Backoff::shared(link.transport().base_url(), &link.identity());
        Arc::new(Self {
            room,
            sampling_session_id,
            is_clone,
            clone_id: Opened::default(),
            next: AtomicU64::new(0),
            lane: OnceLock::new(),
            latest: Mutex::new(None),
            poller: OnceLock::new(),
            progress: Progress::new(now),
            backoff,
        })
    }

    /// Queues a sample. Never waits for the network.
    pub(crate) fn submit(
        self: &Arc<Self>,
        keep: Arc<dyn Any + Send + Sync>,
        prompt: ModelInput,
        options: SampleOptions,
        settings: Settings,
    ) -> Result<Pending<SampleResponse>> {
        self.room.results.check_open()?;
        options.validate()?;
        self.check_room()?;
        let status = Status::new("sample");
        let (promise, pending) = promise(status.clone(), OnDrop::Cancels, keep);
        let promise = promise.counted(&self.room.results.outstanding, &status);
        let bytes = prompt.sampling_byte_estimate() as u64;
        let job = Box::new(Job {
            ticket: self.progress.begin(self.now()),
            sampler: self.clone(),
            prompt,
            options,
            status,
            promise,
            bytes,
            settings,
            number: None,
            attempts: 0,
            refusals: 0,
            refused_since: None,
            effect: Effect::None,
        });
        let dispatcher = self.room.dispatcher(&self.backoff)?;
        let lane = *self.lane.get_or_init(|| dispatcher.add_lane());
        let most = settings.retry.max_connections;
        let before = lock(&self.latest).replace(settings);
        if before.and_then(|before| before.retry.max_connections) != most {
            dispatcher.limit_lane(lane, most);
        }
        let queue = dispatcher.clone();
        job.status
            .on_cancel(move || queue.give_up(lane, |job| job.status.is_cancelled()));
        dispatcher.push(lane, job, bytes);
        Ok(pending)
    }

    /// Refuses a sample while too many wait.
    fn check_room(&self) -> Result<()> {
        let (waiting, most) = (
            self.room.waiting(),
            self.room.results.config.max_queued_samples,
        );
        if waiting < most {
            return Ok(());
        }
        let message = format!(
            "{waiting} samples wait to be sent, which is as many as may \
             (`Config::with_max_queued_samples`); join some first, or use sample_batch"
        );
        Err(Error::NotSent(Context::new(message)).for_request("sample"))
    }

    pub(super) fn now(&self) -> Instant {
        self.room.results.link.clock().now()
    }

    pub(super) fn link(&self) -> &Link {
        &self.room.results.link
    }

    /// Samples that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        match (self.room.dispatcher.peek(), self.lane.get()) {
            (Some(dispatcher), Some(lane)) => dispatcher.waiting(*lane),
            _ => 0,
        }
    }

    /// Looks after samples that wait without a thread: says how they are getting on, and gives
    /// the error of a run that gets nowhere.
    fn tend(&self) -> Option<Error> {
        self.progress.log(self.now(), || self.waiting());
        let settings = (*lock(&self.latest))?;
        self.stuck(&settings)
    }

    /// The next request number. The first one of a clone may ask the service where to begin.
    pub(super) fn number(&self) -> Result<u64> {
        let clone_id = self.clone_id()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        clone_id
            .checked_mul(CLONE_NUMBERS)
            .and_then(|first| first.checked_add(number))
            .ok_or_else(|| {
                let message = format!("{clone_id} is too large a number for a clone of a sampler");
                Error::Reply(Context::new(message)).for_request("join_sampling_session")
            })
    }

    fn clone_id(&self) -> Result<u64> {
        if !self.is_clone {
            return Ok(0);
        }
        // Others need the answer before they can go on, and share it.
        self.clone_id.get(|| {
            if !self.room.results.client_config.sample_join_sampling_session {
                return Ok(fastrand::u64(1..CLONE_NUMBERS));
            }
            let body = to_json(&JoinSamplingSessionRequest {
                sampling_session_id: self.sampling_session_id.as_str().into(),
            })?;
            let reply: JoinSamplingSessionReply =
                self.link().json(&JOIN_SAMPLING_SESSION, &body)?;
            Ok(reply.client_counter)
        })
    }

    pub(super) fn poller(self: &Arc<Self>) -> Result<Option<&Poller>> {
        if !self.room.results.client_config.sample_use_retrieve_futures {
            return Ok(None);
        }
        if self.poller.get().is_none() {
            let id = self.clone_id()?;
            let started = {
                let sampler = Arc::downgrade(self);
                let tend = move || sampler.upgrade()?.tend();
                self.room
                    .start_poller(&self.sampling_session_id, id, Box::new(tend))?
            };
            if let Err(second) = self.poller.set(started) {
                second.close();
            }
        }
        Ok(self.poller.get())
    }

    /// The error of a run that gets nowhere.
    pub(super) fn stuck(&self, settings: &Settings) -> Option<Error> {
        let results = &self.room.results;
        let usual = results.config.stuck_after;
        let limit = settings.retry.progress_timeout.unwrap_or(usual);
        let detects = results.client_config.sample_enable_stuck_detection
            && settings.retry.enable_stuck_detection;
        let idle = self.progress.since_success(self.now());
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
        if let (Some(dispatcher), Some(lane)) = (self.room.dispatcher.peek(), self.lane.get()) {
            dispatcher.remove_lane(*lane);
        }
    }
}
