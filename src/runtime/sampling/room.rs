//! What the samplers of a session share: the dispatcher, its threads, cancellations, pollers.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::cancel::Cancels;
use super::dispatch::{Dispatcher, Limits};
use super::job::Job;
use crate::error::Result;
use crate::runtime::futures::{Poller, Results};
use crate::runtime::threads::{Background, Crew};
use crate::sync::lock;
use crate::types::DynamicConfig;

/// Submissions on the wire at once, and shortly after a backoff.
const POSTS: usize = 400;
const NARROW_POSTS: usize = 10;

/// The same when a poller does the waiting, and how many results are then fetched at once: fewer
/// than a hundred threads in all.
const POLLED_POSTS: usize = 44;

/// The sampling side of a session.
pub(crate) struct Sampling {
    pub(super) results: Arc<Results>,
    background: Arc<Background>,
    /// Threads that submit samples, and wait for them unless a poller does.
    pub(super) couriers: Crew,
    /// Threads that fetch the samples a poller has announced.
    pub(super) fetchers: Crew,
    pub(super) cancels: Arc<Cancels>,
    /// Samples waiting to be sent; started with the first one.
    pub(super) dispatcher: OnceLock<Dispatcher<Box<Job>>>,
    pollers: Mutex<Vec<Poller>>,
}

impl Sampling {
    pub(crate) fn new(
        results: Arc<Results>,
        background: Arc<Background>,
        dynamic: Arc<Mutex<DynamicConfig>>,
    ) -> Self {
        let threads = results.config.max_waiting_threads;
        Self {
            couriers: Crew::new("tinker-sample", threads),
            fetchers: Crew::new("tinker-fetch", POLLED_POSTS.min(threads)),
            cancels: Arc::new(Cancels::new(
                results.link.clone(),
                results.crew.clone(),
                dynamic,
            )),
            dispatcher: OnceLock::new(),
            pollers: Mutex::default(),
            results,
            background,
        }
    }

    /// Samples that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.dispatcher.get().map_or(0, Dispatcher::waiting)
    }

    pub(super) fn start_poller(&self, sampling_session_id: &str, clone_id: u64) -> Result<Poller> {
        let poller = Poller::start(
            &self.results,
            &self.background,
            sampling_session_id,
            clone_id,
        )?;
        let mut pollers = lock(&self.pollers);
        pollers.retain(|known| !known.is_closed());
        pollers.push(poller.clone());
        Ok(poller)
    }

    /// The session's dispatcher; starts it with the first sample.
    pub(super) fn dispatcher(&self, backoff: &Arc<Backoff>) -> Result<&Dispatcher<Box<Job>>> {
        if let Some(dispatcher) = self.dispatcher.get() {
            return Ok(dispatcher);
        }
        let made = Dispatcher::new(
            self.results.link.clock().clone(),
            backoff.clone(),
            self.limits(),
        );
        if self.dispatcher.set(made.clone()).is_ok()
            && let Err(error) = self.start(&made)
        {
            // What nobody would send is refused rather than kept.
            made.close();
            return Err(error);
        }
        Ok(self.dispatcher.get().expect("it was just set"))
    }

    fn limits(&self) -> Limits {
        let config = &self.results.client_config;
        let polled = config.sample_use_retrieve_futures;
        Limits {
            posts: match polled {
                true => POLLED_POSTS,
                false => POSTS,
            },
            narrow_posts: NARROW_POSTS,
            flights: (!polled).then_some(config.sample_max_concurrent_requests),
            bytes: config.sample_dispatch_bytes_semaphore_size,
        }
    }

    fn start(&self, queue: &Dispatcher<Box<Job>>) -> Result<()> {
        let most = self.results.config.max_waiting_threads;
        let threads = match self.results.client_config.sample_use_retrieve_futures {
            true => POLLED_POSTS,
            false => most,
        };
        let (queue, couriers) = (queue.clone(), self.couriers.clone());
        self.background.spawn("tinker-dispatch", move || {
            while let Some((job, post, flight)) = queue.next() {
                let queue = queue.clone();
                // A thread for every submission that counts, and for those that do not any more.
                couriers.allow(most.min(threads + queue.silent()));
                couriers.run(move || {
                    job.go(post, flight);
                    while let Some((job, post, flight)) = queue.try_next() {
                        job.go(post, flight);
                    }
                });
            }
        })
    }

    /// Threads that submit and fetch samples.
    pub(crate) fn threads(&self) -> usize {
        self.couriers.threads() + self.fetchers.threads()
    }

    /// How long samples are held back.
    pub(crate) fn backoff(&self, now: Instant) -> Option<Duration> {
        let link = &self.results.link;
        Backoff::shared(link.transport().base_url(), &link.identity()).remaining(now)
    }

    /// Ends the dispatcher, the pollers and their threads.
    pub(crate) fn shut_down(&self) {
        if let Some(dispatcher) = self.dispatcher.get() {
            dispatcher.close();
        }
        for poller in lock(&self.pollers).drain(..) {
            poller.close();
        }
        self.couriers.close();
        self.fetchers.close();
    }
}
