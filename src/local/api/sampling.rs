//! Sampling sessions and samples.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::training::check_base_model;
use super::{Answer, json};
use crate::local::api::service::Service;
use crate::local::http::{Refusal, Reply, Request};
use crate::local::state::samplers::{self, Sampler};
use crate::local::work::convert;
use crate::types::{CheckpointKind, SamplerInfo, TinkerPath};
use crate::wire::reply::{CreateSamplingSessionReply, FutureReply, JoinSamplingSessionReply};
use crate::wire::request::{
    AsampleRequest, CreateSamplingSessionRequest, JoinSamplingSessionRequest,
};

/// Clients of one sampling session number their requests from this multiple of their own number.
const CLONE_STRIDE: u64 = 1_000_000_000;

pub(in crate::local) fn create(service: &Service, request: &Request) -> Answer {
    let wanted: CreateSamplingSessionRequest<'_> = json(request)?;
    let number = wanted.sampling_session_seq_id;
    let id = format!("{}:sample:{number}", wanted.session_id);
    service.sessions.touch(&wanted.session_id)?;
    if service.samplers.get(&id).is_err() {
        let sampler = new_sampler(
            service,
            id.clone(),
            wanted.session_id.into_owned(),
            wanted.base_model.as_deref(),
            wanted.model_path.as_deref(),
        )?;
        service.add_sampler(number, sampler);
    }
    Ok(Reply::json(&CreateSamplingSessionReply {
        sampling_session_id: id,
        ..CreateSamplingSessionReply::default()
    }))
}

/// A sampler of the base, or of a checkpoint.
pub(super) fn new_sampler(
    service: &Service,
    id: String,
    session_id: String,
    base_model: Option<&str>,
    model_path: Option<&str>,
) -> Result<Sampler, Refusal> {
    if let Some(name) = base_model {
        check_base_model(service, name)?;
    }
    let (path, adapter) = match (model_path, base_model) {
        (Some(path), _) => {
            let path: TinkerPath = path
                .parse()
                .map_err(|error: crate::Error| Refusal::bad(error.to_string()))?;
            service.catalogue.find(&path)?;
            if path.kind() == CheckpointKind::External {
                return Err(Refusal::bad("external weights are for other programs"));
            }
            let adapter = service.samplers.load(service, &path)?;
            (Some(path), Some(adapter))
        }
        (None, Some(_)) => (None, None),
        (None, None) => {
            let detail = "either base_model or model_path is required";
            return Err(Refusal::unprocessable(detail));
        }
    };
    let base_model = service.base_model.clone();
    Ok(Sampler::new(id, session_id, base_model, path, adapter))
}

pub(in crate::local) fn join(service: &Service, request: &Request) -> Answer {
    let wanted: JoinSamplingSessionRequest<'_> = json(request)?;
    let sampler = service.samplers.get(&wanted.sampling_session_id)?;
    Ok(Reply::json(&JoinSamplingSessionReply {
        client_counter: sampler.join(),
        ..JoinSamplingSessionReply::default()
    }))
}

pub(in crate::local) fn sampler(service: &Service, id: &str) -> Answer {
    let sampler = service.samplers.get(id)?;
    Ok(Reply::json(&SamplerInfo {
        sampler_id: sampler.id.as_str().into(),
        base_model: sampler.base_model.clone(),
        model_path: sampler.model_path.as_ref().map(TinkerPath::to_string),
        tokenizer_id: Some(service.tokenizer.display().to_string()),
    }))
}

/// Accepts a sample. The same number of the same session is the same sample.
pub(in crate::local) fn sample(service: &Arc<Service>, request: &Request) -> Answer {
    let wanted: AsampleRequest<'_> = json(request)?;
    let (sampler, request_id, channel) = match (&wanted.sampling_session_id, wanted.seq_id) {
        (Some(id), number) => {
            let sampler = service.samplers.get(id)?;
            service.sessions.touch(&sampler.session_id)?;
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
                service,
                id.clone(),
                String::new(),
                wanted.base_model.as_deref(),
                wanted.model_path.as_deref(),
            )?;
            (Arc::new(sampler), id, None)
        }
    };
    let count = wanted.num_samples;
    let sequence_ids = (0..count).map(|index| format!("{request_id}:{index}"));
    let reply = Reply::json(&FutureReply {
        request_id: request_id.clone(),
        model_id: None,
        sample_sequence_ids: Some(sequence_ids.collect()),
    });
    if service.futures.is_open(&request_id) {
        return Ok(reply);
    }
    if service.samplers.pending() >= service.max_pending_samples {
        return Err(Refusal::busy("too many samples are waiting"));
    }
    let cancelled = Arc::new(AtomicBool::new(false));
    let opened = service
        .futures
        .open(&request_id, channel, Some(cancelled.clone()));
    if opened {
        match convert::sample_request(&wanted, service.base.config()) {
            Ok(request) => samplers::submit(service, sampler, request_id, request, cancelled),
            Err(error) => {
                let outcome = crate::local::work::jobs::refusal(&error);
                service.finish("asample", &request_id, outcome);
            }
        }
    }
    Ok(reply)
}
