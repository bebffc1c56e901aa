//! What can be done with a checkpoint: publish, expire, delete, copy, download.

use std::collections::BTreeMap;

use hyper::StatusCode;
use hyper::header::{EXPIRES, LOCATION};

use super::{Answer, json};
use crate::local::api::service::Service;
use crate::local::engine::PeftFiles;
use crate::local::http::{JSON, Refusal, Reply, Request};
use crate::local::state::catalogue::Run;
use crate::local::state::downloads::{self, Source};
use crate::local::work::jobs::{self, checkpoint_path, expiry};
use crate::types::{CheckpointKind, ExternalWeightsUrls, TinkerPath};
use crate::wire::reply::CopyWeightsReply;
use crate::wire::request::{CopyWeightsRequest, SetTtlRequest};

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";
const ARCHIVE: &str = "checkpoint.tar";

/// The checkpoint a path of the API names.
fn path(run: &str, id: &str) -> Result<TinkerPath, Refusal> {
    format!("{}{run}/{id}", TinkerPath::PREFIX)
        .parse()
        .map_err(|_| Refusal::missing(format!("no such checkpoint: {id}")))
}

pub(in crate::local) fn delete(service: &Service, run: &str, id: &str) -> Answer {
    let path = path(run, id)?;
    service.catalogue.delete(&path)?;
    service.samplers.forget(&path);
    service
        .ledger
        .note(jobs::now(), "checkpoint_deleted", &path);
    Ok(Reply::empty())
}

/// Publishing twice is refused with a 400: a 409 would be repeated for minutes.
pub(in crate::local) fn publish(service: &Service, run: &str, id: &str, public: bool) -> Answer {
    let path = path(run, id)?;
    let (word, event) = if public {
        ("public", "checkpoint_published")
    } else {
        ("private", "checkpoint_unpublished")
    };
    if service.catalogue.find(&path)?.public == public {
        return Err(Refusal::bad(format!("{path} is already {word}")));
    }
    service.catalogue.edit(&path, |c| c.public = public)?;
    service.ledger.note(jobs::now(), event, &path);
    Ok(Reply::empty())
}

pub(in crate::local) fn set_ttl(
    service: &Service,
    run: &str,
    id: &str,
    request: &Request,
) -> Answer {
    let path = path(run, id)?;
    let wanted: SetTtlRequest = json(request)?;
    let expires_at = expiry(wanted.ttl_seconds).map_err(|error| Refusal::bad(error.to_string()))?;
    service
        .catalogue
        .edit(&path, |checkpoint| checkpoint.expires_at = expires_at)?;
    service
        .ledger
        .note(jobs::now(), "checkpoint_ttl_set", &path);
    Ok(Reply::empty())
}

/// One archive file, behind a redirect as in the JSON era.
pub(in crate::local) fn archive(
    service: &Service,
    run: &str,
    id: &str,
    request: &Request,
) -> Answer {
    let path = path(run, id)?;
    service.catalogue.find(&path)?;
    let source = Source::Checkpoint(path);
    let link = service.downloads.link(request, jobs::now(), source);
    let expires = link.expires.strftime("%a, %d %b %Y %H:%M:%S GMT");
    Ok(Reply::empty()
        .with_status(StatusCode::FOUND)
        .with_header(LOCATION, &link.to(ARCHIVE))
        .with_header(EXPIRES, &expires.to_string()))
}

pub(in crate::local) fn external_urls(
    service: &Service,
    run: &str,
    id: &str,
    request: &Request,
) -> Answer {
    let path = path(run, id)?;
    service.catalogue.find(&path)?;
    if path.kind() != CheckpointKind::External {
        return Err(Refusal::bad(format!(
            "{path} was not saved for other programs"
        )));
    }
    let source = Source::Checkpoint(path);
    let link = service.downloads.link(request, jobs::now(), source);
    let urls = [WEIGHTS, CONFIG].map(|file| (file.to_owned(), link.to(file)));
    Ok(Reply::json(&ExternalWeightsUrls {
        urls: BTreeMap::from(urls),
        expires: link.expires,
    }))
}

/// What a link leads to.
pub(in crate::local) fn download(service: &Service, token: &str, file: &str) -> Answer {
    const BINARY: &str = "application/octet-stream";
    let path = match service.downloads.find(token, jobs::now())? {
        Source::Document(bytes) => return Ok(Reply::new(JSON, bytes)),
        Source::Checkpoint(path) => path,
    };
    let PeftFiles { config, weights } = peft(service, &path)?;
    match file {
        WEIGHTS => Ok(Reply::new(BINARY, weights)),
        CONFIG => Ok(Reply::new(JSON, config)),
        ARCHIVE => {
            let files = [(WEIGHTS, &weights[..]), (CONFIG, config.as_bytes())];
            let archive = downloads::tar(&files, jobs::now());
            Ok(Reply::new("application/x-tar", archive))
        }
        _ => Err(Refusal::missing(format!("no such file: {file}"))),
    }
}

fn peft(service: &Service, path: &TinkerPath) -> Result<PeftFiles, Refusal> {
    let checkpoint = service.catalogue.find(path)?;
    let adapter = service.samplers.load(service, path)?;
    Ok(adapter.to_peft(&checkpoint.base_model)?)
}

/// Copies a checkpoint into a run of its own.
///
/// Repeated attempts carry the same idempotency key, which names the run, so they find the copy.
pub(in crate::local) fn copy(service: &Service, request: &Request) -> Answer {
    let wanted: CopyWeightsRequest<'_> = json(request)?;
    let source: TinkerPath = wanted.source_path.parse()?;
    let mut checkpoint = service.catalogue.find(&source)?;
    let (session_id, run_id) = match (wanted.session_id, wanted.model_seq_id) {
        (Some(session), Some(number)) => {
            service.sessions.touch(&session)?;
            let run_id = format!("{session}:train:{number}");
            (session.into_owned(), run_id)
        }
        _ => {
            let key = request.header("x-idempotency-key").map(str::to_owned);
            let key = key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            let session = format!("copy-{key}");
            let run_id = format!("{session}:train:0");
            (session, run_id)
        }
    };
    let path = checkpoint_path(&run_id, source.kind(), source.name())?;
    if service.catalogue.checkpoint(&path).is_none() {
        let now = jobs::now();
        service.catalogue.add_run(Run {
            id: run_id,
            session_id,
            base_model: checkpoint.base_model.clone(),
            lora: checkpoint.lora.clone(),
            created_at: now,
            last_request_time: now,
            corrupted: false,
            user_metadata: None,
        })?;
        let weights = service.catalogue.weights(&source)?;
        checkpoint.path = path.clone();
        checkpoint.time = now;
        checkpoint.public = false;
        checkpoint.expires_at =
            expiry(wanted.ttl_seconds).map_err(|error| Refusal::bad(error.to_string()))?;
        checkpoint.project_id = wanted.destination_project_id.map(|id| id.into_owned());
        service.catalogue.add_checkpoint(checkpoint, &weights)?;
        service.ledger.note(now, "checkpoint_copied", &path);
    }
    Ok(Reply::json(&CopyWeightsReply {
        tinker_path: path.to_string(),
    }))
}
