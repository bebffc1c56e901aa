//! Sampling sessions: what they sample from, and the work they hand to the crew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::convert;
use super::engine::{self, Adapter, Hooks};
use super::futures::{Futures, Outcome};
use super::http::Refusal;
use super::jobs;
use super::ledger::Kind;
use super::service::Service;
use crate::error::Result;
use crate::types::TinkerPath;
use crate::wire::sample::encode_sample;

/// A sampling session.
#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) id: String,
    pub(super) session_id: String,
    pub(super) base_model: String,
    pub(super) model_path: Option<TinkerPath>,
    /// The weights as they were when the session began; `None` samples from the base.
    pub(super) adapter: Option<Arc<Adapter>>,
    /// How many clients share the session, the first one included.
    clients: AtomicU64,
}

impl Sampler {
    pub(super) fn new(
        id: String,
        session_id: String,
        base_model: String,
        model_path: Option<TinkerPath>,
        adapter: Option<Arc<Adapter>>,
    ) -> Self {
        Self {
            id,
            session_id,
            base_model,
            model_path,
            adapter,
            clients: AtomicU64::new(1),
        }
    }

    /// The number of one more client.
    pub(super) fn join(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }
}

/// The sampling sessions alive now.
#[derive(Debug, Default)]
pub(super) struct Samplers {
    live: Mutex<HashMap<String, Arc<Sampler>>>,
    /// Adapters read from checkpoints, as long as somebody uses them.
    loaded: Mutex<HashMap<TinkerPath, Weak<Adapter>>>,
    pending: AtomicUsize,
}

impl Samplers {
    pub(super) fn get(&self, id: &str) -> Result<Arc<Sampler>, Refusal> {
        self.lock()
            .get(id)
            .cloned()
            .ok_or_else(|| Refusal::missing(format!("no such sampling session: {id}")))
    }

    pub(super) fn add(&self, sampler: Sampler) {
        self.lock().insert(sampler.id.clone(), Arc::new(sampler));
    }

    /// Ends a session's samplers; samples under way are finished.
    pub(super) fn remove_session(&self, session_id: &str, futures: &Futures) {
        self.lock().retain(|id, sampler| {
            let over = sampler.session_id == session_id;
            if over {
                futures.forget_channels(id);
            }
            !over
        });
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// The adapter of a checkpoint, shared by all who sample from it.
    pub(super) fn load(&self, service: &Service, path: &TinkerPath) -> Result<Arc<Adapter>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(adapter) = loaded.get(path).and_then(Weak::upgrade) {
            return Ok(adapter);
        }
        let adapter = jobs::restore(service, path, false)?.adapter();
        loaded.retain(|_, adapter| adapter.strong_count() > 0);
        loaded.insert(path.clone(), Arc::downgrade(&adapter));
        Ok(adapter)
    }

    /// Forgets what was read from a checkpoint that has changed.
    pub(super) fn forget(&self, path: &TinkerPath) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Sampler>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues one sampling request.
pub(super) fn submit(
    service: &Arc<Service>,
    sampler: Arc<Sampler>,
    request_id: String,
    request: engine::SampleRequest,
    cancelled: Arc<AtomicBool>,
) {
    service.samplers.pending.fetch_add(1, Ordering::Relaxed);
    let crew = service.clone();
    let service = service.clone();
    crew.sample_crew.run(move || {
        // Released when the work ends, also by a panic.
        let _slot = Slot(&service.samplers.pending);
        if cancelled.load(Ordering::Relaxed) {
            return;
        }
        let unfinished = Unfinished(&service.futures, &request_id);
        let start = jobs::now();
        let outcome = run(&service, &sampler, &request, &cancelled)
            .unwrap_or_else(|error| jobs::refusal(&error));
        service.trace(
            &sampler.session_id,
            &sampler.id,
            "asample",
            &request_id,
            start,
        );
        service.finish("asample", &request_id, outcome);
        std::mem::forget(unfinished);
    });
}

struct Slot<'a>(&'a AtomicUsize);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Fails the request if the work panics before its result is filed.
struct Unfinished<'a>(&'a Futures, &'a str);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.finish(self.1, Outcome::failed("the engine failed"));
    }
}

fn run(
    service: &Service,
    sampler: &Sampler,
    request: &engine::SampleRequest,
    cancelled: &AtomicBool,
) -> Result<Outcome> {
    let decode = |tokens: &[u32]| service.vocabulary.decode(tokens);
    let hooks = Hooks {
        decode: Some(&decode),
        on_token: None,
        cancel: Some(cancelled),
    };
    let output = engine::sample(&service.base, sampler.adapter.as_deref(), request, hooks)?;
    let sampled: usize = output.sequences.iter().map(|one| one.tokens.len()).sum();
    let count = |kind, tokens: usize| {
        let session = &sampler.session_id;
        service
            .ledger
            .count(jobs::now(), session, kind, tokens as u64);
    };
    count(Kind::Prefill, request.prompt.len());
    count(Kind::Sample, sampled);
    let mut bytes = Vec::new();
    encode_sample(&convert::sample_response(request, output)?, &mut bytes);
    Ok(Outcome::Sample(bytes.into()))
}
