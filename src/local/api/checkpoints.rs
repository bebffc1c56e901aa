//! What can be done with a checkpoint: publish, expire, delete, copy, download.

use std::collections::BTreeMap;

use hyper::StatusCode;
use hyper::header::{EXPIRES, LOCATION};

use super::{Answer, Call};
use crate::local::engine::PeftFiles;
use crate::local::http::{JSON, Refusal, Reply};
use crate::local::state::catalogue::Run;
use crate::local::state::downloads::{self, Link, Source};
use crate::local::state::{disk, now};
use crate::local::work::checkpoints::{checkpoint_path, expiry};
use crate::types::{CheckpointKind, ExternalWeightsUrls, TinkerPath};
use crate::wire::reply::CopyWeightsReply;
use crate::wire::request::{CopyWeightsRequest, SetTtlRequest};

const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";
const ARCHIVE: &str = "checkpoint.tar";

/// The checkpoint the path of a request names.
fn path(call: &Call) -> Result<TinkerPath, Refusal> {
    let (run, id) = (call.segment(0), call.segment(1));
    format!("{}{run}/{id}", TinkerPath::PREFIX)
        .parse()
        .map_err(|_| Refusal::missing(format!("no such checkpoint: {id}")))
}

pub(super) fn delete(call: &Call) -> Answer {
    let path = path(call)?;
    call.own_checkpoint(&path)?;
    call.state().catalogue.delete(&path)?;
    call.work().adapters.forget(&path);
    call.state().ledger.note(now(), "checkpoint_deleted", &path);
    Ok(Reply::empty())
}

pub(super) fn publish(call: &Call) -> Answer {
    set_public(call, true)
}

pub(super) fn unpublish(call: &Call) -> Answer {
    set_public(call, false)
}

/// Publishing twice is refused with a 400: a 409 would be repeated for minutes.
fn set_public(call: &Call, public: bool) -> Answer {
    let path = path(call)?;
    let (word, event) = if public {
        ("public", "checkpoint_published")
    } else {
        ("private", "checkpoint_unpublished")
    };
    if call.own_checkpoint(&path)?.public == public {
        return Err(Refusal::bad(format!("{path} is already {word}")));
    }
    call.state().catalogue.edit(&path, |c| c.public = public)?;
    call.state().ledger.note(now(), event, &path);
    Ok(Reply::empty())
}

pub(super) fn set_ttl(call: &Call) -> Answer {
    let path = path(call)?;
    call.own_checkpoint(&path)?;
    let wanted: SetTtlRequest = call.json()?;
    let expires_at = expiry(wanted.ttl_seconds).map_err(|error| Refusal::bad(error.to_string()))?;
    call.state()
        .catalogue
        .edit(&path, |checkpoint| checkpoint.expires_at = expires_at)?;
    call.state().ledger.note(now(), "checkpoint_ttl_set", &path);
    Ok(Reply::empty())
}

/// A link to one archive file.
#[cfg(feature = "chat")]
pub(super) fn archive_link(call: &Call) -> Answer {
    let url = link(call)?.to(ARCHIVE);
    Ok(Reply::json(&serde_json::json!({ "url": url })))
}

fn link(call: &Call) -> Result<Link, Refusal> {
    let path = path(call)?;
    call.checkpoint(&path)?;
    let source = Source::Checkpoint(path);
    Ok(call.state().downloads.link(&call.server(), now(), source))
}

/// One archive file, behind a redirect as in the JSON era.
pub(super) fn archive(call: &Call) -> Answer {
    let link = link(call)?;
    let expires = link.expires.strftime("%a, %d %b %Y %H:%M:%S GMT");
    Ok(Reply::empty()
        .with_status(StatusCode::FOUND)
        .with_header(LOCATION, &link.to(ARCHIVE))
        .with_header(EXPIRES, &expires.to_string()))
}

pub(super) fn external_urls(call: &Call) -> Answer {
    let path = path(call)?;
    call.checkpoint(&path)?;
    if path.kind() != CheckpointKind::External {
        return Err(Refusal::bad(format!(
            "{path} was not saved for other programs"
        )));
    }
    let source = Source::Checkpoint(path);
    let link = call.state().downloads.link(&call.server(), now(), source);
    let urls = [WEIGHTS, CONFIG].map(|file| (file.to_owned(), link.to(file)));
    Ok(Reply::json(&ExternalWeightsUrls {
        urls: BTreeMap::from(urls),
        expires: link.expires,
    }))
}

/// What a link leads to.
pub(super) fn download(call: &Call) -> Answer {
    const BINARY: &str = "application/octet-stream";
    let (token, file) = (call.segment(0), call.segment(1));
    let path = match call.state().downloads.find(token, now()) {
        Some(Source::Document(bytes)) => return Ok(Reply::new(JSON, bytes)),
        Some(Source::Checkpoint(path)) => path,
        None => return Err(Refusal::missing("the link has expired")),
    };
    let PeftFiles { config, weights } = peft(call, &path)?;
    match file {
        WEIGHTS => Ok(Reply::new(BINARY, weights)),
        CONFIG => Ok(Reply::new(JSON, config)),
        ARCHIVE => {
            let files = [(WEIGHTS, &weights[..]), (CONFIG, config.as_bytes())];
            let archive = downloads::tar(&files, now());
            Ok(Reply::new("application/x-tar", archive))
        }
        _ => Err(Refusal::missing(format!("no such file: {file}"))),
    }
}

fn peft(call: &Call, path: &TinkerPath) -> Result<PeftFiles, Refusal> {
    // The link is the credential.
    let checkpoint = call.state().catalogue.find(path)?;
    let slot = call.work().adapter(path)?;
    let adapter = call.work().adapters.take(&slot)?;
    let offer = call.work().library.offer(&checkpoint.base_model)?;
    Ok(adapter.to_peft(&checkpoint.base_model, &offer.config)?)
}

/// Copies a checkpoint into a run of its own.
///
/// Repeated attempts carry the same idempotency key, which names the run, so they find the copy.
pub(super) fn copy(call: &Call) -> Answer {
    let wanted: CopyWeightsRequest<'_> = call.json()?;
    let source: TinkerPath = wanted.source_path.parse()?;
    let mut checkpoint = call.checkpoint(&source)?;
    let (session_id, run_id) = match (wanted.session_id, wanted.model_seq_id) {
        (Some(session), Some(number)) => {
            call.touch(&session)?;
            let run_id = format!("{session}:train:{number}");
            (session.into_owned(), run_id)
        }
        _ => {
            let key = call.request.header("x-idempotency-key").map(str::to_owned);
            let key = key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
            // Keys may differ in what some disks do not tell apart, and users may have the same.
            let key = disk::checksum(format!("{}\n{key}", call.user).as_bytes());
            let session = format!("copy-{key:016x}");
            let run_id = format!("{session}:train:0");
            (session, run_id)
        }
    };
    let path = checkpoint_path(&run_id, source.kind(), source.name())?;
    if call.state().catalogue.checkpoint(&path).is_none() {
        let (catalogue, now) = (&call.state().catalogue, now());
        // What is refused leaves nothing behind.
        let expires_at =
            expiry(wanted.ttl_seconds).map_err(|error| Refusal::bad(error.to_string()))?;
        let weights = catalogue.weights(&source)?;
        match catalogue.run(&run_id) {
            // The numbers of keys are no secrets, and can be made to order.
            Ok(run) if run.owner != *call.user => {
                return Err(Refusal::bad("the idempotency key is somebody else's"));
            }
            Ok(_) => {}
            Err(_) => catalogue.add_run(Run {
                id: run_id,
                session_id,
                owner: call.user.to_string(),
                base_model: checkpoint.base_model.clone(),
                lora: checkpoint.lora.clone(),
                created_at: now,
                last_request_time: now,
                corrupted: false,
                user_metadata: None,
            })?,
        }
        checkpoint.path = path.clone();
        checkpoint.owner = call.user.to_string();
        checkpoint.time = now;
        checkpoint.public = false;
        checkpoint.expires_at = expires_at;
        checkpoint.project_id = wanted.destination_project_id.map(|id| id.into_owned());
        catalogue.add_checkpoint(checkpoint, &weights)?;
        call.state().ledger.note(now, "checkpoint_copied", &path);
    }
    Ok(Reply::json(&CopyWeightsReply {
        tinker_path: path.to_string(),
    }))
}
