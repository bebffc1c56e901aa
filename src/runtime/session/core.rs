//! What a session's threads share.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::telemetry::Telemetry;
use crate::config::Config;
use crate::runtime::calls::Link;
use crate::runtime::futures::Results;
use crate::runtime::sampling::Sampling;
use crate::runtime::threads::Background;
use crate::runtime::training::Training;
use crate::sync::lock;
use crate::types::{ClientConfig, DynamicConfig};

/// The parts of a session. Threads hold this, never the [`Session`](super::Session) that owns and
/// joins them.
pub(crate) struct Core {
    pub(crate) link: Arc<Link>,
    pub(crate) config: Arc<Config>,
    pub(crate) client_config: Arc<ClientConfig>,
    pub(crate) dynamic: Arc<Mutex<DynamicConfig>>,
    pub(crate) session_id: String,
    pub(crate) training: Arc<Training>,
    pub(crate) sampling: Arc<Sampling>,
    pub(super) results: Arc<Results>,
    pub(super) telemetry: Telemetry,
    pub(super) background: Arc<Background>,
    /// When the service last took a heartbeat.
    beaten: Mutex<Option<Instant>>,
}

impl Core {
    pub(super) fn new(
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
        let (config, client_config) = (Arc::new(config), Arc::new(client_config));
        let dynamic = Arc::new(Mutex::new(dynamic));
        let background = Arc::new(Background::new(link.stop().clone()));
        let told = telemetry.clone();
        let results = Arc::new(Results::new(
            link.clone(),
            config.clone(),
            client_config.clone(),
            move |failure| told.operation_failed(failure),
        ));
        let training = Training::new(results.clone(), background.clone());
        let sampling = Sampling::new(results.clone(), background.clone(), dynamic.clone());
        Self {
            training: Arc::new(training),
            sampling: Arc::new(sampling),
            link,
            config,
            client_config,
            dynamic,
            session_id,
            results,
            telemetry,
            background,
            beaten: Mutex::default(),
        }
    }

    /// Notes that the service has taken a heartbeat.
    pub(super) fn beaten(&self, now: Instant) {
        *lock(&self.beaten) = Some(now);
    }

    pub(super) fn since_heartbeat(&self, now: Instant) -> Option<Duration> {
        let last = *lock(&self.beaten);
        last.map(|last| now.saturating_duration_since(last))
    }

    /// Tries again to start threads that the system refused.
    pub(super) fn rescue(&self) {
        self.results.crew.rescue();
        self.training.rescue();
        self.sampling.rescue();
    }

    /// Wakes and ends everything that runs for the session, and waits for it, except for the
    /// thread that called this, should it be one of them.
    pub(super) fn shut_down(&self) {
        self.link.stop().set();
        self.telemetry.wake();
        self.link.transport().stop();
        self.sampling.shut_down();
        self.training.shut_down();
        self.results.shut_down();
        self.background.join();
    }
}
