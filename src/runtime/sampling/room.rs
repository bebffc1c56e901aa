//! What the samplers of a session share: the dispatcher, its threads, cancellations, pollers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::cancel::Cancels;
use super::dispatch::{Dispatcher, Limits, POLLED_AT_ONCE, SHARE};
use super::job::Job;
use crate::error::{Error, Result};
use crate::runtime::futures::{Poller, Results};
use crate::runtime::opened::Opened;
use crate::runtime::threads::{Background, Crew};
use crate::sync::lock;
use crate::types::DynamicConfig;

/// Submissions on the wire at once, and shortly after a backoff.
const POSTS: usize = 400;
const NARROW_POSTS: usize = 10;

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
    pub(super) dispatcher: Opened<Dispatcher<Box<Job>>>,
    pollers: Mutex<Vec<Poller>>,
}

impl Sampling {
    pub(crate) fn new(
        results: Arc<Results>,
        background: Arc<Background>,
        dynamic: Arc<Mutex<DynamicConfig>>,
    ) -> Self {
        let threads = results.config.max_waiting_threads;
        let fetches = POSTS.min(results.link.transport().sockets().fetches);
        Self {
            couriers: Crew::new("tinker-sample", threads),
            fetchers: Crew::beginning_with("tinker-fetch", POLLED_AT_ONCE, fetches.min(threads)),
            cancels: Arc::new(Cancels::new(
                results.link.clone(),
                results.crew.clone(),
                dynamic,
            )),
            dispatcher: Opened::default(),
            pollers: Mutex::default(),
            results,
            background,
        }
    }

    pub(super) fn start_poller(
        &self,
        sampling_session_id: &str,
        clone_id: u64,
        tend: Box<dyn Fn() -> Option<Error> + Send + Sync>,
    ) -> Result<Poller> {
        let poller = Poller::start(
            &self.results,
            &self.background,
            sampling_session_id,
            clone_id,
            tend,
        )?;
        let mut pollers = lock(&self.pollers);
        pollers.retain(|known| !known.is_closed());
        pollers.push(poller.clone());
        Ok(poller)
    }

    /// The session's dispatcher; starts it with the first sample. One whose thread could not be
    /// started is given to nobody, and the next sample tries again.
    pub(super) fn dispatcher(&self, backoff: &Arc<Backoff>) -> Result<Dispatcher<Box<Job>>> {
        let mut started = None;
        let shared = self.dispatcher.get(|| {
            let clock = self.results.link.clock().clone();
            let made = Dispatcher::new(clock, backoff.clone(), self.limits());
            self.start(&made)?;
            Ok(started.insert(made).clone())
        });
        // Started while the session ended: nobody else knows of its thread.
        if let (Err(_), Some(late)) = (&shared, started) {
            late.close();
        }
        shared
    }

    fn limits(&self) -> Limits {
        let config = &self.results.client_config;
        let sockets = self.results.link.transport().sockets();
        let polled = config.sample_use_retrieve_futures;
        let posts = match polled {
            true => sockets.polled_posts,
            false => sockets.posts,
        };
        Limits {
            posts: POSTS.min(posts),
            few_posts: posts < POSTS,
            narrow_posts: NARROW_POSTS,
            bytes: config.sample_dispatch_bytes_semaphore_size,
            // With none at all nothing would ever be sent.
            flights: (!polled).then_some(config.sample_max_concurrent_requests.max(1)),
            all_flights: sockets.flights,
        }
    }

    fn start(&self, queue: &Dispatcher<Box<Job>>) -> Result<()> {
        let most = self.results.config.max_waiting_threads;
        let threads = match self.results.client_config.sample_use_retrieve_futures {
            true => self.limits().posts,
            false => most,
        };
        let (queue, couriers) = (queue.clone(), self.couriers.clone());
        let limit = self.results.link.transport().sockets().limit;
        let mut told = false;
        self.background.spawn("tinker-dispatch", move || {
            while let Some((job, post, flight)) = queue.next() {
                if !told && queue.was_full() {
                    told = true;
                    warn_of_limit(limit);
                }
                let queue = queue.clone();
                // A thread for every submission that counts, for those that do not any more, and
                // for every sampler's share.
                let shares = SHARE * queue.lanes();
                let wanted = threads.saturating_add(queue.silent() + shares);
                couriers.allow(most.min(wanted));
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

    /// Samples that wait to be sent, of all samplers.
    pub(crate) fn waiting(&self) -> usize {
        let dispatcher = self.dispatcher.peek();
        dispatcher.as_ref().map_or(0, Dispatcher::all_waiting)
    }

    pub(crate) fn rescue(&self) {
        self.couriers.rescue();
        self.fetchers.rescue();
    }

    /// Ends the dispatcher, the pollers and their threads.
    pub(crate) fn shut_down(&self) {
        if let Some(dispatcher) = self.dispatcher.close() {
            dispatcher.close();
        }
        for poller in lock(&self.pollers).drain(..) {
            poller.close();
        }
        self.couriers.close();
        self.fetchers.close();
    }
}

fn warn_of_limit(limit: Option<u64>) {
    if let Some(limit) = limit {
        log::warn!(
            "this process may open {limit} files at once (`ulimit -n`), which holds samples back; \
             with a higher limit more are under way at a time"
        );
    }
}
