//! Sampling requests on their way through the running batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Workshop, convert, jobs};
use crate::error::Error;
use crate::local::engine::{self, Listener};
use crate::local::state;
use crate::local::state::futures::Outcome;
use crate::local::state::ledger::Kind;
use crate::local::state::samplers::Sampler;
use crate::types::Timestamp;
use crate::wire::sample::encode_sample;

/// Queues one sampling request that was checked.
pub(in crate::local) fn submit(
    work: &Arc<Workshop>,
    sampler: Arc<Sampler>,
    request_id: String,
    request: engine::SampleRequest,
    cancelled: Arc<AtomicBool>,
) {
    work.state.samplers.begin();
    let target = sampler.clone();
    let sample = Sample {
        work: work.clone(),
        sampler,
        request_id,
        cancelled,
        start: state::now(),
        ended: AtomicBool::new(false),
    };
    work.sample(&target, request, Box::new(sample));
}

/// A sampling request on its way. Dropped before its end, it has failed.
struct Sample {
    work: Arc<Workshop>,
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
        self.work
            .state
            .trace(session, sampler, "asample", &self.request_id, self.start);
        self.work.state.finish("asample", &self.request_id, outcome);
    }
}

impl Listener for Sample {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.work.vocabulary(&self.sampler).decode(tokens)
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn finish(&self, request: &engine::SampleRequest, output: engine::SampleOutput) {
        count(&self.work, &self.sampler, request, &output);
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

    fn fail(&self, reason: &Error) {
        self.end(jobs::refusal(reason));
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.work.state.samplers.end();
        if !*self.ended.get_mut() {
            let failed = Outcome::failed("the engine failed");
            self.work.state.futures.finish(&self.request_id, failed);
        }
    }
}

/// Writes the tokens that were read and sampled into the ledger.
pub(in crate::local) fn count(
    work: &Workshop,
    sampler: &Sampler,
    request: &engine::SampleRequest,
    output: &engine::SampleOutput,
) {
    let sampled: usize = output.sequences.iter().map(|one| one.tokens.len()).sum();
    for (kind, tokens) in [
        (Kind::Prefill, request.prompt.len()),
        (Kind::Sample, sampled),
    ] {
        let of = (sampler.owner.as_str(), sampler.session_id.as_str());
        let ledger = &work.state.ledger;
        ledger.count(state::now(), of, &sampler.base_model, kind, tokens as u64);
    }
}
