//! A session: open, keep alive, report, close.

mod close;
mod core;
mod counters;
mod heartbeat;
mod host;
mod make;
mod metrics;
mod open;
mod telemetry;
mod upkeep;

use std::sync::Arc;

use serde::de::DeserializeOwned;

use self::core::Core;
use self::counters::Counters;
use crate::error::Result;
use crate::loss::LossGraph;
use crate::runtime::calls::is_unknown;
use crate::runtime::deadline::Deadline;
use crate::runtime::pending::Pending;
use crate::runtime::process::Process;
use crate::runtime::sampling::Sampler;
use crate::runtime::training::{Attachable, Queue};
use crate::types::{ModelId, SamplingSessionId};
use crate::wire::route::Route;

pub(crate) use self::host::Host;
use self::upkeep::fetch_dynamic;

/// The owner of everything that runs for a session. Clients and handles share it; the last one
/// to go closes it.
pub(crate) struct Session {
    pub(crate) core: Arc<Core>,
    pub(crate) counters: Arc<Counters>,
    /// Opened by this client. One that only joined it must not end it.
    is_owner: bool,
    process: Process,
}

impl Session {
    /// An error once the session was closed, or has ended without being asked to.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.core.results.check_open()
    }

    /// Waits for the result of a training request that was accepted before.
    pub(crate) fn attach<T: Attachable>(self: &Arc<Self>, request_id: &str) -> Result<Pending<T>> {
        self.core.training.attach(self.clone(), request_id)
    }

    /// Asks the service whether it still knows the session.
    pub(crate) fn ask_whether_lost(&self) -> bool {
        if let Err(error) = heartbeat::beat(&self.core)
            && is_unknown(&error)
        {
            self.core.results.lose(&self.core.session_id, &error);
        }
        self.core.results.is_lost()
    }

    /// The number of the next model.
    pub(crate) fn next_model(&self) -> u64 {
        self.counters.next_model()
    }

    /// The number of the next sampling session.
    pub(crate) fn next_sampler(&self) -> u64 {
        self.counters.next_sampler()
    }

    /// Calls an endpoint that answers with a future and starts to wait for its JSON result.
    pub(crate) fn run<T: DeserializeOwned + Send + 'static>(
        self: &Arc<Self>,
        route: &'static Route,
        body: &[u8],
    ) -> Result<Pending<T>> {
        let keep = self.clone();
        self.core.training.run(keep, route, body)
    }

    /// The deadline of a blocking call that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::begin(self.core.config.call_deadline, self.core.link.clock())
    }

    /// Waits for a result on behalf of a blocking call, for as long as that may take.
    pub(crate) fn wait<T: Send + 'static>(&self, pending: Pending<T>) -> Result<T> {
        let _deadline = self.deadline();
        pending.join_in_call()
    }

    /// Starts the queue of a model whose next request has number `next`.
    pub(crate) fn start_queue(
        self: &Arc<Self>,
        model_id: ModelId,
        next: i32,
    ) -> Result<Arc<Queue>> {
        Queue::start(&self.core.training, self.clone(), model_id, next)
    }

    /// The service's id for a loss, which this uploads if need be.
    pub(crate) fn upload_loss(self: &Arc<Self>, graph: &LossGraph) -> Result<String> {
        let core = &self.core;
        core.training
            .upload_loss(self.clone(), &core.session_id, graph)
    }

    /// This process's place in a sampling session of the service.
    pub(crate) fn sampler(
        &self,
        sampling_session_id: SamplingSessionId,
        is_clone: bool,
    ) -> Arc<Sampler> {
        let room = self.core.sampling.clone();
        Sampler::new(room, sampling_session_id, is_clone)
    }
}
