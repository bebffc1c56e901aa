//! Models of a server elsewhere, asked through whoever knows how to reach it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::StatusCode;

use super::upstream::{Upstream, UpstreamModel};
use super::voice::Voice;
use super::{Backend, Card, Fault};
use crate::error::{Error, Result};
use crate::local::engine::{
    Adjust, SampleOutput, SampleRequest, SampledSequence, StopReason as Ending, Usual,
};
use crate::local::http::Refusal;
use crate::local::work::generate::Hearer;
use crate::local::work::vocabulary::Vocabulary;
use crate::text::Renderer;
use crate::types::{
    ModelInput, SampleOptions, SampleRequest as Asked, SampleResponse, SamplingParams, Stop,
    StopReason, TopkLogprobs,
};

/// A server elsewhere.
pub(in crate::local) struct Remote {
    pub(in crate::local) upstream: Arc<dyn Upstream>,
    /// Samples under way.
    pub(in crate::local) pending: Arc<AtomicUsize>,
    /// How many there may be.
    pub(in crate::local) most: usize,
}

impl Backend for Remote {
    type Voice = Distant;

    fn models(&self) -> Result<Vec<Card>, Fault> {
        let card = |id| Card { id, created: 0 };
        let models = self.upstream.models().map_err(elsewhere)?;
        Ok(models.into_iter().map(card).collect())
    }

    fn open(&self, model: &str) -> Result<Arc<Distant>, Fault> {
        let model = self.upstream.open(model).map_err(elsewhere)?;
        Ok(Arc::new(Distant {
            vocabulary: Vocabulary::Tokenizer(model.tokenizer.clone()),
            renderer: Renderer::for_model(&model.base_model, &model.tokenizer).ok(),
            model,
            pending: self.pending.clone(),
            most: self.most,
        }))
    }
}

/// What went wrong elsewhere, for whoever asked here. The key is not theirs to correct.
fn elsewhere(error: Error) -> Fault {
    let mut fault = match &error {
        Error::Invalid(_) => return error.into(),
        _ => Fault::from(Refusal::internal(format!(
            "the server behind this one: {error}"
        ))),
    };
    fault.status = match error.status() {
        Some(status @ (400 | 404 | 422 | 429)) => {
            StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY)
        }
        // Asking again would not help.
        None if error.is_user_error() => StatusCode::BAD_REQUEST,
        _ if error.is_timeout() => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    fault
}

/// A model of a server elsewhere.
pub(in crate::local) struct Distant {
    model: UpstreamModel,
    vocabulary: Vocabulary,
    renderer: Option<Renderer>,
    pending: Arc<AtomicUsize>,
    most: usize,
}

impl Voice for Distant {
    fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    fn renderer(&self) -> Option<&Renderer> {
        self.renderer.as_ref()
    }

    fn ends(&self) -> Vec<u32> {
        let end = self.model.tokenizer.eos_id();
        end.into_iter().map(i32::cast_unsigned).collect()
    }

    fn usual(&self) -> Usual {
        Usual::default()
    }

    fn positions(&self) -> Option<usize> {
        self.model.context
    }

    fn check(&self, request: &SampleRequest) -> Result<(), Fault> {
        if let Some(name) = adjusted(&request.adjust) {
            let problem = "is not supported: the service behind this endpoint has no such setting";
            return Err(Fault::unsupported(name, problem));
        }
        if request.prompt.is_empty() {
            return Err(Fault::bad("prompt", "must have at least one token"));
        }
        let most = self.model.context.unwrap_or(usize::MAX);
        let wanted = request.max_tokens.min(usize::MAX - request.prompt.len());
        if request.max_tokens != usize::MAX
            && request.prompt.len() + wanted > most.saturating_add(1)
        {
            let problem = format!("prompt and answer exceed the model's {most} positions");
            return Err(Fault::bad("max_tokens", problem));
        }
        Ok(asked(request)?.options.validate()?)
    }

    fn fault(&self, error: Error) -> Fault {
        elsewhere(error)
    }

    fn sample(
        self: Arc<Self>,
        requests: Vec<SampleRequest>,
        hearer: Arc<dyn Hearer>,
    ) -> Result<(), Fault> {
        let before = self.pending.fetch_add(requests.len(), Ordering::Relaxed);
        // Each counts until its thread is done with it, also if it never got one.
        let slots: Vec<Slot> = requests
            .iter()
            .map(|_| Slot(self.pending.clone()))
            .collect();
        if before + requests.len() > self.most {
            return Err(Refusal::busy("too many samples are waiting").into());
        }
        for ((prompt, request), slot) in requests.into_iter().enumerate().zip(slots) {
            let (voice, hearer) = (self.clone(), hearer.clone());
            let work = move || {
                let slot = slot;
                voice.one(prompt, &request, &*hearer);
                drop(slot);
            };
            let named = std::thread::Builder::new().name("tinker-proxy-sample".into());
            named.spawn(work).map_err(|error| {
                log::error!("proxy: no thread for a sample: {error}");
                Fault::from(Refusal::busy("too many samples are waiting"))
            })?;
        }
        Ok(())
    }
}

/// A sample under way.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Distant {
    /// One prompt, from question to answer.
    fn one(&self, prompt: usize, request: &SampleRequest, hearer: &dyn Hearer) {
        let response = asked(request).and_then(|asked| (self.model.sample)(asked));
        let output = match response.and_then(output) {
            Ok(output) => output,
            Err(error) => {
                log::warn!("proxy: a sample failed: {error}");
                return hearer.fail(error);
            }
        };
        for (number, whole) in output.sequences.iter().enumerate() {
            let mut so_far = SampledSequence::default();
            for at in 0..whole.tokens.len() {
                so_far.tokens.push(whole.tokens[at]);
                so_far.logprobs.extend(whole.logprobs.get(at));
                so_far.topk.extend(whole.topk.get(at).cloned());
                if !hearer.token(prompt, number, &so_far) {
                    return;
                }
            }
        }
        hearer.done(prompt, output);
    }
}

/// The setting that a server elsewhere has no word for.
fn adjusted(adjust: &Adjust) -> Option<&'static str> {
    let usual = Adjust::default();
    let settings = [
        ("min_p", adjust.min_p != usual.min_p),
        ("presence_penalty", adjust.presence != usual.presence),
        ("frequency_penalty", adjust.frequency != usual.frequency),
        ("repetition_penalty", adjust.repetition != usual.repetition),
        ("logit_bias", !adjust.bias.is_empty()),
    ];
    settings.iter().find(|(_, set)| *set).map(|(name, _)| *name)
}

/// The request in the service's words.
fn asked(request: &SampleRequest) -> Result<Asked> {
    let number = |field: &str, value: usize| {
        u32::try_from(value).map_err(|_| Error::invalid(field, "is too large"))
    };
    let mut params = SamplingParams::default()
        .with_temperature(request.temperature)
        .with_top_p(request.top_p);
    if request.max_tokens != usize::MAX {
        params = params.with_max_tokens(number("max_tokens", request.max_tokens)?);
    }
    if let Some(k) = request.top_k {
        params = params.with_top_k(i64::from(number("top_k", k)?));
    }
    if let Some(seed) = request.seed {
        params = params.with_seed(seed.cast_signed());
    }
    // The service takes texts or tokens. Texts are looked for here too, so where a turn has an end
    // of its own, that is what the service is told.
    let ends = request.stop.tokens.iter().map(|token| token.cast_signed());
    params = match (request.stop.strings.is_empty(), request.stop.tokens.len()) {
        (false, 0 | 1) => params.with_stop(Stop::Texts(request.stop.strings.clone())),
        (_, 0) => params,
        _ => params.with_stop(Stop::Tokens(ends.collect())),
    };
    let mut options = SampleOptions::from(params)
        .with_num_samples(number("n", request.num_samples)?)
        .with_prompt_logprobs(request.prompt_logprobs);
    if request.topk_prompt_logprobs > 0 {
        options =
            options.with_topk_prompt_logprobs(number("logprobs", request.topk_prompt_logprobs)?);
    }
    if request.topk_sample_logprobs > 0 {
        options =
            options.with_topk_sample_logprobs(number("logprobs", request.topk_sample_logprobs)?);
    }
    let prompt = ModelInput::try_from_ints(request.prompt.clone())?;
    Ok(Asked::new(prompt, options))
}

/// The answer in the engine's words.
fn output(response: SampleResponse) -> Result<SampleOutput> {
    let lists = |topk: &TopkLogprobs| {
        let unsigned = |list: Vec<(i32, f32)>| {
            let pairs = list.into_iter();
            pairs
                .map(|(token, logprob)| (token.cast_unsigned(), logprob))
                .collect()
        };
        topk.to_lists()
            .into_iter()
            .map(|list| list.map(unsigned))
            .collect::<Vec<_>>()
    };
    let sequences = response.sequences.iter().map(|sequence| SampledSequence {
        tokens: sequence
            .tokens
            .iter()
            .map(|token| token.cast_unsigned())
            .collect(),
        logprobs: sequence.logprobs.clone().unwrap_or_default(),
        topk: sequence
            .topk_logprobs
            .as_ref()
            .map_or_else(Vec::new, |topk| {
                lists(topk)
                    .into_iter()
                    .map(Option::unwrap_or_default)
                    .collect()
            }),
        stop_reason: match sequence.stop_reason {
            StopReason::Stop => Ending::Stop,
            _ => Ending::Length,
        },
    });
    Ok(SampleOutput {
        sequences: sequences.collect(),
        prompt_logprobs: response
            .prompt_logprobs
            .as_ref()
            .map(|all| all.iter().collect()),
        topk_prompt_logprobs: response.topk_prompt_logprobs.as_ref().map(lists),
        ..SampleOutput::default()
    })
}
