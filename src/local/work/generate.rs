//! Samples of several prompts side by side, heard token by token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Workshop;
use super::samples::count;
use crate::error::Error;
use crate::local::engine::{self, Listener, SampleOutput, SampledSequence, StopReason};
use crate::local::state::samplers::Sampler;

/// Whoever hears of prompts being continued; dropped before the end if that fails.
pub(in crate::local) trait Hearer: Send + Sync {
    /// A sample of a prompt has one more token, the last one; false if nobody listens any more.
    fn token(&self, prompt: usize, sample: usize, so_far: &SampledSequence) -> bool;

    /// Everything about a prompt. Called once for each, last.
    fn done(&self, prompt: usize, output: SampleOutput);

    /// There will be nothing more, for this reason.
    fn fail(&self, _reason: Error) {}
}

/// Samples all prompts; the requests were checked.
pub(in crate::local) fn generate(
    workshop: &Arc<Workshop>,
    sampler: &Arc<Sampler>,
    requests: Vec<engine::SampleRequest>,
    hearer: Arc<dyn Hearer>,
) {
    let deserted = Arc::new(AtomicBool::new(false));
    for (prompt, request) in requests.into_iter().enumerate() {
        workshop.state.samplers.begin();
        let part = Part {
            workshop: workshop.clone(),
            sampler: sampler.clone(),
            hearer: hearer.clone(),
            deserted: deserted.clone(),
            prompt,
        };
        workshop.sample(sampler, request, Box::new(part));
    }
}

/// One prompt and its samples.
struct Part {
    workshop: Arc<Workshop>,
    sampler: Arc<Sampler>,
    hearer: Arc<dyn Hearer>,
    deserted: Arc<AtomicBool>,
    prompt: usize,
}

impl Listener for Part {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        self.workshop.vocabulary(&self.sampler).decode(tokens)
    }

    fn token(&self, sample: usize, so_far: &SampledSequence) {
        if !self.hearer.token(self.prompt, sample, so_far) {
            self.deserted.store(true, Ordering::Relaxed);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.deserted.load(Ordering::Relaxed) || self.workshop.state.is_stopping()
    }

    fn finish(&self, request: &engine::SampleRequest, output: SampleOutput) {
        count(&self.workshop, &self.sampler, request, &output);
        // What was broken off, because nobody listens or the server stops, is no answer.
        let is_whole = |one: &SampledSequence| {
            one.stop_reason == StopReason::Stop || one.tokens.len() >= request.max_tokens
        };
        if output.sequences.iter().all(is_whole) {
            self.hearer.done(self.prompt, output);
        }
    }

    fn fail(&self, reason: &Error) {
        self.hearer.fail(reason.clone());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.workshop.state.samplers.end();
    }
}
