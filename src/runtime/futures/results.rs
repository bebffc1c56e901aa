//! What every wait for a result shares.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::{Config, QueueObserver};
use crate::error::{Context, Effect, Error, Result};
use crate::runtime::calls::Link;
use crate::runtime::pending::{Outstanding, Status};
use crate::runtime::stop::Stop;
use crate::runtime::threads::{Bytes, Cpu, Crew};
use crate::types::{ClientConfig, ClientEvent, QueueStatus, QueueUpdate};

/// How often the state of one operation's queue is logged.
const QUEUE_LOG: Duration = Duration::from_secs(60);

/// Told of every operation that failed for good.
type Report = Box<dyn Fn(&Failure<'_>) + Send + Sync>;

/// Where results come from and what waiting for them may use; one per session.
pub(crate) struct Results {
    pub(crate) link: Arc<Link>,
    pub(crate) config: Arc<Config>,
    pub(crate) client_config: Arc<ClientConfig>,
    /// Threads that wait for everything but samples.
    pub(crate) crew: Crew,
    pub(crate) cpu: Cpu,
    /// Bytes of results being fetched.
    pub(super) bytes: Bytes,
    pub(crate) outstanding: Outstanding,
    report: Report,
    observer_failed: AtomicBool,
    /// Set once the session takes nothing more.
    closing: Stop,
    /// Why the service has ended the session.
    lost: OnceLock<Error>,
}

/// An operation that failed for good.
pub(crate) struct Failure<'a> {
    pub(crate) error: &'a Error,
    pub(crate) request_id: &'a str,
    pub(crate) request_type: &'a str,
    pub(crate) iteration: u32,
    pub(crate) elapsed: Duration,
}

impl Results {
    pub(crate) fn new(
        link: Arc<Link>,
        config: Arc<Config>,
        client_config: Arc<ClientConfig>,
        report: impl Fn(&Failure<'_>) + Send + Sync + 'static,
    ) -> Self {
        let sockets = link.transport().sockets();
        let threads = config.max_waiting_threads.min(sockets.waits);
        Self {
            crew: Crew::new("tinker-wait", threads),
            cpu: Cpu::default(),
            bytes: Bytes::new(client_config.inflight_response_bytes_semaphore_size),
            outstanding: Outstanding::default(),
            report: Box::new(report),
            observer_failed: AtomicBool::new(false),
            closing: Stop::default(),
            lost: OnceLock::new(),
            link,
            config,
            client_config,
        }
    }

    /// An error once the session was closed, or the service has ended it.
    pub(crate) fn check_open(&self) -> Result<()> {
        match (self.closing.is_set(), self.lost.get()) {
            (true, _) => Err(Error::Closed(Context::new("create a new client"))),
            (false, Some(lost)) => {
                let message = lost.context().map_or("", |context| &context.message);
                Err(Error::NotSent(Context::caused(message, lost.clone())))
            }
            (false, None) => Ok(()),
        }
    }

    /// Whether the service has ended the session.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Notes that the service has ended the session, or forgotten it: nothing more can be done
    /// in it.
    pub(crate) fn lose(&self, session_id: &str, cause: &Error) {
        if self.is_lost() {
            return;
        }
        let message = format!(
            "session {session_id} has ended; make a new client, and go on from a checkpoint"
        );
        let context = Context::caused(message, cause.clone());
        let error = Error::Lost(context).with_effect(Effect::Accepted);
        // Before the state changes: whoever sees that finds the cause in the log.
        log::error!("{error}: {cause}");
        if self.lost.set(error.clone()).is_ok() {
            self.link.tell(&ClientEvent::SessionLost {
                session_id: session_id.into(),
                error,
            });
        }
    }

    /// Takes nothing more. False if that was so already.
    pub(crate) fn begin_closing(&self) -> bool {
        self.closing.set_first()
    }

    /// Ends the waits and their threads.
    pub(crate) fn shut_down(&self) {
        self.bytes.close();
        self.crew.close();
    }

    /// How long failures in a row are borne before they surface.
    pub(crate) fn patience(&self) -> Duration {
        self.config.patience
    }

    pub(super) fn failed(&self, failure: &Failure<'_>) {
        (self.report)(failure);
    }

    /// Notes what the service says about an operation's queue: for its handle, the log and the
    /// user's observer.
    pub(super) fn queued(&self, status: &Status, queue: QueueStatus) {
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
}
