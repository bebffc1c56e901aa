//! Sampling sessions: what they sample from, and the work they hand to the crew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Result;
use crate::local::api::service::Service;
use crate::local::engine::{self, Adapter, Listener};
use crate::local::http::Refusal;
use crate::local::state::futures::{Futures, Outcome};
use crate::local::state::ledger::Kind;
use crate::local::work::convert;
use crate::local::work::jobs;
use crate::types::{Timestamp, TinkerPath};
use crate::wire::sample::encode_sample;

/// A sampling session.
#[derive(Debug)]
pub(in crate::local) struct Sampler {
    pub(in crate::local) id: String,
    pub(in crate::local) session_id: String,
    pub(in crate::local) base_model: String,
    pub(in crate::local) model_path: Option<TinkerPath>,
    /// The weights as they were when the session began; `None` samples from the base.
    pub(in crate::local) adapter: Option<Arc<Adapter>>,
    /// How many clients share the session, the first one included.
    clients: AtomicU64,
}

impl Sampler {
    pub(in crate::local) fn new(
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
    pub(in crate::local) fn join(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }
}

/// The sampling sessions alive now.
#[derive(Debug, Default)]
pub(in crate::local) struct Samplers {
    live: Mutex<HashMap<String, Arc<Sampler>>>,
    /// Adapters read from checkpoints, as long as somebody uses them.
    loaded: Mutex<HashMap<TinkerPath, Weak<Adapter>>>,
    pending: AtomicUsize,
}

impl Samplers {
    pub(in crate::local) fn get(&self, id: &str) -> Result<Arc<Sampler>, Refusal> {
        self.lock()
            .get(id)
            .cloned()
            .ok_or_else(|| Refusal::missing(format!("no such sampling session: {id}")))
    }

    pub(in crate::local) fn add(&self, sampler: Sampler) {
        self.lock().insert(sampler.id.clone(), Arc::new(sampler));
    }

    /// Ends a session's samplers; samples under way are finished.
    pub(in crate::local) fn remove_session(&self, session_id: &str, futures: &Futures) {
        self.lock().retain(|id, sampler| {
            let over = sampler.session_id == session_id;
            if over {
                futures.forget_channels(id);
            }
            !over
        });
    }

    pub(in crate::local) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// The adapter of a checkpoint, shared by all who sample from it.
    pub(in crate::local) fn load(
        &self,
        service: &Service,
        path: &TinkerPath,
    ) -> Result<Arc<Adapter>> {
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
    pub(in crate::local) fn forget(&self, path: &TinkerPath) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Sampler>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues one sampling request.
pub(in crate::local) fn submit(
    service: &Arc<Service>,
    sampler: Arc<Sampler>,
    request_id: String,
    request: engine::SampleRequest,
    cancelled: Arc<AtomicBool>,
) {
    service.samplers.pending.fetch_add(1, Ordering::Relaxed);
    let adapter = sampler.adapter.clone();
    let sample = Sample {
        service: service.clone(),
        sampler,
        request_id,
        cancelled,
        start: jobs::now(),
        ended: AtomicBool::new(false),
    };
    match request.check(&service.base) {
        Ok(()) => service.sampling.submit(adapter, request, Box::new(sample)),
        Err(error) => sample.end(jobs::refusal(&error)),
    }
}

/// A sampling request on its way. Dropped before its end, it has failed.
struct Sample {
    service: Arc<Service>,
    sampler: Arc<Sampler>,
    request_id: String,
    cancelled: Arc<AtomicBool>,
    start: Timestamp,
    ended: AtomicBool,
}

impl Sample {
    fn end(&self, outcome: Outcome) {
        self.ended.store(true, Ordering::Relaxed);
        let (session, sampler) = (&self.sampler.session_id, &self.sampler.id);
        self.service
            .trace(session, sampler, "asample", &self.request_id, self.start);
        self.service.finish("asample", &self.request_id, outcome);
    }
}

impl Listener for Sample {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.service.vocabulary.decode(tokens)
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn finish(&self, request: &engine::SampleRequest, output: engine::SampleOutput) {
        count(&self.service, &self.sampler, request, &output);
        let outcome = match convert::sample_response(request, output) {
            Ok(response) => {
                let mut bytes = Vec::new();
                encode_sample(&response, &mut bytes);
                Outcome::Sample(bytes.into())
            }
            Err(error) => jobs::refusal(&error),
        };
        self.end(outcome);
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.service
            .samplers
            .pending
            .fetch_sub(1, Ordering::Relaxed);
        if !*self.ended.get_mut() {
            let failed = Outcome::failed("the engine failed");
            self.service.futures.finish(&self.request_id, failed);
        }
    }
}

/// Writes the tokens that were read and sampled into the ledger.
pub(in crate::local) fn count(
    service: &Service,
    sampler: &Sampler,
    request: &engine::SampleRequest,
    output: &engine::SampleOutput,
) {
    let sampled: usize = output.sequences.iter().map(|one| one.tokens.len()).sum();
    for (kind, tokens) in [
        (Kind::Prefill, request.prompt.len()),
        (Kind::Sample, sampled),
    ] {
        let session = &sampler.session_id;
        service
            .ledger
            .count(jobs::now(), session, kind, tokens as u64);
    }
}
