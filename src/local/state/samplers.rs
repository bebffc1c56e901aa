//! Sampling sessions: what they sample from.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::StateError;
use super::adapters::Slot;
use super::futures::Futures;
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

    /// The number of one more client.
    pub(in crate::local) fn join(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }
}

/// The sampling sessions alive now.
#[derive(Debug, Default)]
pub(in crate::local) struct Samplers {
    live: Mutex<HashMap<String, Arc<Sampler>>>,
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
        lock(&self.live).insert(sampler.id.clone(), Arc::new(sampler));
    }

    /// Ends a session's samplers; samples under way are finished.
    pub(in crate::local) fn remove_session(&self, session_id: &str, futures: &Futures) {
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
