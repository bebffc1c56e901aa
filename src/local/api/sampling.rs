//! Sampling sessions and samples.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::training::offer;
use super::{Answer, Call, SAMPLER};
use crate::local::http::{Refusal, Reply};
use crate::local::state::samplers::{Resting, Sampler};
use crate::local::state::sessions::Origin;
use crate::local::work::samples;
use crate::local::work::{convert, jobs};
use crate::types::{CheckpointKind, SamplerInfo, TinkerPath};
use crate::wire::reply::{CreateSamplingSessionReply, FutureReply, JoinSamplingSessionReply};
use crate::wire::request::{
    AsampleRequest, CreateSamplingSessionRequest, JoinSamplingSessionRequest,
};

/// Clients of one sampling session number their requests from this multiple of their own number.
const CLONE_STRIDE: u64 = 1_000_000_000;

pub(super) fn create(call: &Call) -> Answer {
    let wanted: CreateSamplingSessionRequest<'_> = call.json()?;
    let number = wanted.sampling_session_seq_id;
    let id = format!("{}{SAMPLER}{number}", wanted.session_id);
    call.touch(&wanted.session_id)?;
    if call.sampler(&id).is_err() {
        let path = wanted.model_path.as_deref().map(str::parse);
        let file = path.and_then(|path| weights_file(call, &path.ok()?));
        let sampler = new_sampler(
            call,
            id.clone(),
            wanted.session_id.into_owned(),
            wanted.base_model.as_deref(),
            wanted.model_path.as_deref(),
        )?;
        let origin = Origin {
            base_model: sampler.base_model.clone(),
            model_path: sampler.model_path.clone(),
            file,
        };
        call.state().add_sampler(number, sampler, Some(origin));
    }
    Ok(Reply::json(&CreateSamplingSessionReply {
        sampling_session_id: id,
        ..CreateSamplingSessionReply::default()
    }))
}

/// The file that a checkpoint's weights are in now.
fn weights_file(call: &Call, path: &TinkerPath) -> Option<String> {
    Some(call.state().catalogue.checkpoint(path)?.file)
}

/// Makes a sampler of an earlier process again, of the weights it had or not at all.
pub(super) fn wake(call: &Call, id: &str) -> Result<Arc<Sampler>, Refusal> {
    let samplers = &call.state().samplers;
    let Some(Resting { session_id, origin }) = samplers.resting(id) else {
        return Ok(samplers.get(id)?);
    };
    let path = origin.model_path.as_ref();
    if path.and_then(|path| weights_file(call, path)) != origin.file {
        let detail = format!("no such sampling session: {id}: its weights are gone");
        return Err(Refusal::missing(detail));
    }
    let path = path.map(TinkerPath::to_string);
    let base_model = Some(origin.base_model.as_str());
    let sampler = new_sampler(call, id.to_owned(), session_id, base_model, path.as_deref())?;
    samplers.add(sampler.again());
    Ok(samplers.get(id)?)
}

/// A sampler of the base, or of a checkpoint.
pub(super) fn new_sampler(
    call: &Call,
    id: String,
    session_id: String,
    base_model: Option<&str>,
    model_path: Option<&str>,
) -> Result<Sampler, Refusal> {
    if let Some(name) = base_model {
        offer(call, name)?;
    }
    let (name, path, adapter) = match (model_path, base_model) {
        (Some(path), _) => {
            let path: TinkerPath = path
                .parse()
                .map_err(|error: crate::Error| Refusal::bad(error.to_string()))?;
            let name = call.checkpoint(&path)?.base_model;
            if path.kind() == CheckpointKind::External {
                return Err(Refusal::bad("external weights are for other programs"));
            }
            let adapter = call.work().adapter(&path)?;
            (name, Some(path), Some(adapter))
        }
        (None, Some(name)) => (name.to_owned(), None, None),
        (None, None) => {
            let detail = "either base_model or model_path is required";
            return Err(Refusal::unprocessable(detail));
        }
    };
    let of = (session_id, call.user.to_string());
    Ok(Sampler::new(id, of, name, path, adapter))
}

pub(super) fn join(call: &Call) -> Answer {
    let wanted: JoinSamplingSessionRequest<'_> = call.json()?;
    let sampler = call.sampler(&wanted.sampling_session_id)?;
    Ok(Reply::json(&JoinSamplingSessionReply {
        client_counter: sampler.join(),
        ..JoinSamplingSessionReply::default()
    }))
}

pub(super) fn sampler(call: &Call) -> Answer {
    let sampler = call.sampler(call.segment(0))?;
    let tokenizer = &offer(call, &sampler.base_model)?.tokenizer;
    Ok(Reply::json(&SamplerInfo {
        sampler_id: sampler.id.as_str().into(),
        base_model: sampler.base_model.clone(),
        model_path: sampler.model_path.as_ref().map(TinkerPath::to_string),
        tokenizer_id: Some(tokenizer.display().to_string()),
    }))
}

/// Accepts a sample. The same number of the same session is the same sample.
pub(super) fn sample(call: &Call) -> Answer {
    let wanted: AsampleRequest<'_> = call.json()?;
    let (sampler, request_id, channel) = match (&wanted.sampling_session_id, wanted.seq_id) {
        (Some(id), number) => {
            let sampler = call.sampler(id)?;
            call.touch(&sampler.session_id)?;
            match number {
                Some(number) => {
                    let request_id = format!("{id}:{number}");
                    let channel = (sampler.id.clone(), number / CLONE_STRIDE);
                    (sampler, request_id, Some(channel))
                }
                None => (sampler, uuid::Uuid::new_v4().to_string(), None),
            }
        }
        (None, _) => {
            let id = uuid::Uuid::new_v4().to_string();
            let sampler = new_sampler(
                call,
                id.clone(),
                String::new(),
                wanted.base_model.as_deref(),
                wanted.model_path.as_deref(),
            )?;
            (Arc::new(sampler), id, None)
        }
    };
    // Checked before anything is made of its numbers.
    let config = &offer(call, &sampler.base_model)?.config;
    let request = convert::sample_request(&wanted, config)
        .and_then(|request| request.check(config).map(|()| request));
    let count = request.as_ref().map_or(0, |request| request.num_samples);
    let sequence_ids = (0..count).map(|index| format!("{request_id}:{index}"));
    let reply = Reply::json(&FutureReply {
        request_id: request_id.clone(),
        model_id: None,
        sample_sequence_ids: Some(sequence_ids.collect()),
    });
    if call.state().futures.is_open(&request_id) {
        return Ok(reply);
    }
    if call.state().samplers.pending() >= call.service.options.max_pending_samples {
        return Err(Refusal::busy("too many samples are waiting"));
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    let opened =
        call.state()
            .futures
            .open(&request_id, &call.user, channel, Some(cancelled.clone()));
    if opened {
        match request {
            Ok(request) => samples::submit(call.work(), sampler, request_id, request, cancelled),
            Err(error) => {
                let outcome = jobs::refusal(&error);
                call.state().finish("asample", &request_id, outcome);
            }
        }
    }
    Ok(reply)
}
