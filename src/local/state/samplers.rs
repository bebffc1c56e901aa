//! Sampling sessions: what they sample from.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::StateError;
use super::adapters::Slot;
use super::futures::Futures;
use super::sessions::{Origin, Session};
use crate::sync::lock;
use crate::types::TinkerPath;

/// A sampling session.
#[derive(Debug)]
pub(in crate::local) struct Sampler {
    pub(in crate::local) id: String,
    pub(in crate::local) session_id: String,
    /// Whoever made it, and uses what it uses.
    pub(in crate::local) owner: String,
    pub(in crate::local) base_model: String,
    pub(in crate::local) model_path: Option<TinkerPath>,
    /// The weights as they were when the session began; `None` samples from the base.
    pub(in crate::local) adapter: Option<Arc<Slot>>,
    /// How many clients share the session, the first one included.
    clients: AtomicU64,
}

impl Sampler {
    pub(in crate::local) fn new(
        id: String,
        (session_id, owner): (String, String),
        base_model: String,
        model_path: Option<TinkerPath>,
        adapter: Option<Arc<Slot>>,
    ) -> Self {
        Self {
            id,
            session_id,
            owner,
            base_model,
            model_path,
            adapter,
            clients: AtomicU64::new(1),
        }
    }

    /// The same for a sampler of an earlier process: others may have joined it then, and nobody
    /// knows their numbers.
    pub(in crate::local) fn again(mut self) -> Self {
        *self.clients.get_mut() = fastrand::u64(1 << 20..1 << 30);
        self
    }

    /// The number of one more client.
    pub(in crate::local) fn join(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }
}

/// A sampling session of an earlier process, which is made again when it is asked for.
#[derive(Debug, Clone)]
pub(in crate::local) struct Resting {
    pub(in crate::local) session_id: String,
    pub(in crate::local) origin: Origin,
}

/// The sampling sessions alive now.
#[derive(Debug, Default)]
pub(in crate::local) struct Samplers {
    live: Mutex<HashMap<String, Arc<Sampler>>>,
    /// Those of an earlier process that nobody has asked for yet.
    resting: Mutex<HashMap<String, Resting>>,
    pending: AtomicUsize,
}

impl Samplers {
    pub(in crate::local) fn get(&self, id: &str) -> Result<Arc<Sampler>, StateError> {
        lock(&self.live)
            .get(id)
            .cloned()
            .ok_or_else(|| StateError::Missing(format!("no such sampling session: {id}")))
    }

    pub(in crate::local) fn add(&self, sampler: Sampler) {
        lock(&self.resting).remove(&sampler.id);
        lock(&self.live).insert(sampler.id.clone(), Arc::new(sampler));
    }

    /// Makes the samplers of an earlier process known.
    pub(super) fn rest(&self, session: &Session) {
        let known = session.origins.iter().filter_map(|(number, origin)| {
            let resting = Resting {
                session_id: session.id.clone(),
                origin: origin.clone(),
            };
            Some((session.samplers.get(number)?.clone(), resting))
        });
        lock(&self.resting).extend(known);
    }

    pub(in crate::local) fn resting(&self, id: &str) -> Option<Resting> {
        lock(&self.resting).get(id).cloned()
    }

    /// Whether any sampler may have to be made again.
    pub(in crate::local) fn any_rests(&self) -> bool {
        !lock(&self.resting).is_empty()
    }

    /// The session a sampler belongs to, alive or resting.
    pub(in crate::local) fn session_of(&self, id: &str) -> Option<String> {
        let live = self.get(id).map(|sampler| sampler.session_id.clone());
        live.ok().or_else(|| Some(self.resting(id)?.session_id))
    }

    /// Ends a session's samplers; samples under way are finished.
    pub(in crate::local) fn remove_session(&self, session_id: &str, futures: &Futures) {
        lock(&self.resting).retain(|_, resting| resting.session_id != session_id);
        lock(&self.live).retain(|id, sampler| {
            let over = sampler.session_id == session_id;
            if over {
                futures.forget_channels(id);
            }
            !over
        });
    }

    pub(in crate::local) fn len(&self) -> usize {
        lock(&self.live).len()
    }

    /// How many samples are under way.
    pub(in crate::local) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Counts a sample as under way.
    pub(in crate::local) fn begin(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a sample as done.
    pub(in crate::local) fn end(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
