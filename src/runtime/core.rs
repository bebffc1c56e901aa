//! What a session's threads share.
//!
//! Threads hold a [`Core`], never the [`Session`](crate::runtime::session::Session) that owns and joins
//! them.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::config::{Config, Dialect, QueueObserver};
use crate::error::{Context, Error, Result};
use crate::runtime::calls::{Effort, Link};
use crate::runtime::pending::Status;
use crate::runtime::sampling::{Dispatcher, Job, POLLED_POSTS};
use crate::runtime::session::Telemetry;
use crate::runtime::threads::{Bytes, BytesGuard, Cpu, Crew, STACK};
use crate::runtime::training::Buffers;
use crate::sync::lock;
use crate::transport::{Body, Request};
use crate::types::{ClientConfig, DynamicConfig, QueueStatus, QueueUpdate};
use crate::wire::request::{CancelFutureRequest, to_json};
use crate::wire::route::CANCEL_FUTURE;

/// How often the state of one operation's queue is logged.
const QUEUE_LOG: Duration = Duration::from_secs(60);

/// How many cancellations are on the wire at once.
const CANCELLERS: usize = 4;

pub(crate) struct Core {
    pub(crate) link: Arc<Link>,
    pub(crate) config: Config,
    pub(crate) client_config: ClientConfig,
    pub(crate) dynamic: Mutex<DynamicConfig>,
    pub(crate) session_id: String,
    /// Threads that wait for everything but samples.
    pub(crate) crew: Crew,
    /// Threads that submit samples, and wait for them unless a poller does.
    pub(crate) couriers: Crew,
    /// Threads that fetch the samples a poller has announced.
    pub(crate) fetchers: Crew,
    pub(crate) cpu: Cpu,
    pub(crate) telemetry: Telemetry,
    /// Bytes of training requests on the wire.
    pub(crate) dispatch: Bytes,
    pub(crate) buffers: Buffers,
    /// Bytes of results being fetched.
    responses: Bytes,
    pub(crate) models: AtomicU64,
    pub(crate) samplers: AtomicU64,
    pub(crate) losses: AtomicU64,
    /// Custom losses by their graph.
    uploaded: Mutex<HashMap<String, String>>,
    json: AtomicU8,
    cancels: Mutex<Cancels>,
    observer_failed: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    wakers: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    /// Samples waiting to be sent; started with the first one.
    pub(crate) samples: OnceLock<Dispatcher<Box<Job>>>,
}

/// Samples nobody wants any more.
#[derive(Default)]
struct Cancels {
    queue: VecDeque<String>,
    senders: usize,
}

/// Which form of `forward_backward` the server understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// Protobuf, as far as is known.
    Unknown = 0,
    Proto = 1,
    Json = 2,
}

impl Core {
    pub(crate) fn new(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
        session_id: String,
    ) -> Self {
        let telemetry = match config.telemetry {
            true => Telemetry::new(&session_id),
            false => Telemetry::off(),
        };
        let spoken = match config.dialect {
            Dialect::Json => Spoken::Json,
            Dialect::Proto => Spoken::Proto,
            _ => Spoken::Unknown,
        };
        // Apart, so that a flood of samples never holds up a training result.
        let crew = Crew::new("tinker-wait", config.max_waiting_threads);
        let couriers = Crew::new("tinker-sample", config.max_waiting_threads);
        let fetchers = Crew::new("tinker-fetch", POLLED_POSTS.min(config.max_waiting_threads));
        Self {
            crew,
            couriers,
            fetchers,
            cpu: Cpu::default(),
            dispatch: Bytes::new(client_config.fwdbwd_dispatch_bytes_semaphore_size),
            buffers: Buffers::default(),
            responses: Bytes::new(client_config.inflight_response_bytes_semaphore_size),
            models: AtomicU64::new(0),
            samplers: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            uploaded: Mutex::default(),
            json: AtomicU8::new(spoken as u8),
            cancels: Mutex::default(),
            observer_failed: AtomicBool::new(false),
            threads: Mutex::default(),
            wakers: Mutex::default(),
            samples: OnceLock::new(),
            dynamic: Mutex::new(dynamic),
            link,
            config,
            client_config,
            session_id,
            telemetry,
        }
    }

    /// Starts a thread that is joined when the session ends.
    pub(crate) fn spawn(
        core: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Core) + Send + 'static,
    ) -> Result<()> {
        let mine = core.clone();
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(move || run(&mine))
            .map_err(|error| {
                Error::Internal(Context::caused(
                    format!("cannot start thread {name}"),
                    error,
                ))
            })?;
        let mut threads = lock(&core.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(handle);
        Ok(())
    }

    /// Runs `wake` when the session stops, to wake a thread that waits for something else.
    pub(crate) fn on_stop(&self, wake: impl FnOnce() + Send + 'static) {
        lock(&self.wakers).push(Box::new(wake));
    }

    /// Wakes and ends everything that runs for the session, and waits for it, except for the
    /// thread that called this, should it be one of them.
    pub(crate) fn shut_down(&self) {
        self.link.stop().set();
        self.telemetry.wake();
        self.link.transport().stop();
        if let Some(samples) = self.samples.get() {
            samples.close();
        }
        for wake in lock(&self.wakers).drain(..) {
            wake();
        }
        self.couriers.close();
        self.fetchers.close();
        self.crew.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for handle in threads {
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                log::error!("a background thread had panicked");
            }
        }
    }

    /// How long failures in a row are borne before they surface.
    pub(crate) fn patience(&self) -> Duration {
        self.config.patience
    }

    /// Room for a result; `None` when the client stops.
    pub(crate) fn reserve_response(&self, size: u64) -> Option<BytesGuard> {
        self.responses.take(size, self.link.stop())
    }

    pub(crate) fn spoken(&self) -> Spoken {
        match self.json.load(Ordering::Relaxed) {
            1 => Spoken::Proto,
            2 => Spoken::Json,
            _ => Spoken::Unknown,
        }
    }

    /// Remembers what the server understood.
    pub(crate) fn learned(&self, spoken: Spoken) {
        if self.json.swap(spoken as u8, Ordering::Relaxed) != spoken as u8 && spoken == Spoken::Json
        {
            log::info!("the server does not take protobuf: going on in JSON");
        }
    }

    /// The id of a custom loss this session has uploaded.
    pub(crate) fn known_loss(&self, graph: &str) -> Option<String> {
        lock(&self.uploaded).get(graph).cloned()
    }

    pub(crate) fn learn_loss(&self, graph: String, loss_id: String) {
        lock(&self.uploaded).insert(graph, loss_id);
    }

    /// Notes what the service says about an operation's queue: for its handle, the log and the
    /// user's observer.
    pub(crate) fn queued(&self, status: &Status, queue: QueueStatus) {
        if status.queued(queue.clone(), QUEUE_LOG) {
            let reason = queue.reason.as_deref().unwrap_or("no reason given");
            let (operation, age) = (status.operation(), status.age().as_secs());
            log::warn!(
                "{operation} has been waiting for {age} s: {} ({reason})",
                queue.state
            );
        }
        if let Some(observer) = &self.config.queue_observer {
            self.observe(observer, status, queue);
        }
    }

    /// Runs the user's observer; a panic in it is logged once and the thread lives on.
    fn observe(&self, observer: &QueueObserver, status: &Status, queue: QueueStatus) {
        let update = QueueUpdate::new(status.operation(), status.request_id(), status.age(), queue);
        let run = catch_unwind(AssertUnwindSafe(|| observer.call(&update)));
        if run.is_err() && !self.observer_failed.swap(true, Ordering::Relaxed) {
            log::error!("the queue observer panicked; the operation goes on");
        }
    }

    /// Tells the service that nobody wants a sample any more, in the background, where it listens.
    pub(crate) fn cancel(self: &Arc<Self>, request_id: String) {
        if !lock(&self.dynamic).sample_cancel_enabled || self.link.stop().is_set() {
            return;
        }
        let mut cancels = lock(&self.cancels);
        cancels.queue.push_back(request_id);
        if cancels.senders == CANCELLERS {
            return;
        }
        cancels.senders += 1;
        drop(cancels);
        let core = self.clone();
        self.crew.run(move || {
            while let Some(id) = core.next_cancel() {
                core.send_cancel(&id);
            }
        });
    }

    /// The next one to send. Leaving and looking happen under one lock, so none is left behind.
    fn next_cancel(&self) -> Option<String> {
        let mut cancels = lock(&self.cancels);
        let next = match self.link.stop().is_set() {
            true => None,
            false => cancels.queue.pop_front(),
        };
        if next.is_none() {
            cancels.senders -= 1;
        }
        next
    }

    fn send_cancel(&self, request_id: &str) {
        let sent = to_json(&CancelFutureRequest {
            request_id: request_id.into(),
        })
        .and_then(|body| {
            let request = Request::to(&CANCEL_FUTURE, CANCEL_FUTURE.fixed_path())
                .with_body(Body::Json(&body));
            let deadline = Instant::now() + Duration::from_secs(30);
            let effort = Effort::from(&CANCEL_FUTURE).until(Some(deadline));
            self.link.call_raw(request, effort)
        });
        if let Err(error) = sent {
            log::debug!("a sample could not be cancelled: {error}");
        }
    }
}
