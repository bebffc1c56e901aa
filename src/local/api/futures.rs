//! Results: one by one, many at once, or not wanted any more.

use serde::Deserialize;
use serde_json::json;

use super::{Answer, json as body};
use crate::local::futures::{Look, Outcome};
use crate::local::http::{JSON, PROTOBUF, Refusal, Reply, Request};
use crate::local::service::Service;

#[derive(Deserialize)]
struct Retrieve {
    request_id: String,
    #[serde(default)]
    allow_metadata_only: bool,
}

/// Waits for one result, as long as a poll is held.
pub(in crate::local) async fn retrieve(service: &Service, request: &Request) -> Answer {
    let Retrieve {
        request_id: id,
        allow_metadata_only,
    } = body(request)?;
    let until = tokio::time::Instant::now() + service.long_poll;
    let look = tokio::select! {
        look = service.futures.wait(&id, until) => look,
        () = service.stopping() => service.futures.look(&id),
    };
    let outcome = match look {
        Look::Done(outcome) => outcome,
        Look::Pending { paused } => return Ok(pending(&id, paused)),
        // Clients take a 404 for their own mistake and a 410 for a promise that was lost.
        Look::Unknown => return Err(Refusal::gone(format!("no such request: {id}"))),
    };
    let size = outcome.size();
    if allow_metadata_only && size > service.metadata_only_above {
        return Ok(Reply::json(&json!({
            "status": "complete_metadata",
            "request_id": id,
            "response_payload_size": size,
        })));
    }
    service.futures.sent(&id);
    render(request, outcome)
}

fn pending(id: &str, paused: Option<String>) -> Reply {
    let state = match paused {
        Some(_) => "paused_capacity",
        None => "active",
    };
    Reply::json(&json!({
        "type": "try_again",
        "request_id": id,
        "queue_state": state,
        "queue_state_reason": paused,
    }))
}

/// Protobuf for those who accept it, JSON for the rest.
fn render(request: &Request, outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Failed { message, category } => Ok(Reply::json(&json!({
            "error": message,
            "category": category.as_str(),
        }))),
        Outcome::Json(bytes) => Ok(Reply::new(JSON, bytes)),
        Outcome::Training(bytes) | Outcome::Sample(bytes) => {
            let _ = request;
            Ok(Reply::new(PROTOBUF, bytes))
        }
    }
}

#[derive(Deserialize)]
struct RetrieveMany {
    target: Target,
    #[serde(default)]
    prev_cursor: u64,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    retrieved_request_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Target {
    sampling_session_id: String,
    #[serde(default)]
    cloned_sampler_id: u64,
}

/// Waits for the next completions of one sampler's client.
pub(in crate::local) async fn retrieve_many(service: &Service, request: &Request) -> Answer {
    let wanted: RetrieveMany = body(request)?;
    service.futures.acknowledge(&wanted.retrieved_request_ids);
    let asked = wanted
        .timeout
        .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    let hold = asked.map_or(service.long_poll, |asked| asked.min(service.long_poll));
    let until = tokio::time::Instant::now() + hold;
    let channel = (
        wanted.target.sampling_session_id,
        wanted.target.cloned_sampler_id,
    );
    let (completions, cursor) = tokio::select! {
        found = service.futures.completions(&channel, wanted.prev_cursor, until) => found,
        () = service.stopping() => (Vec::new(), wanted.prev_cursor),
    };
    Ok(Reply::json(
        &json!({ "completions": completions, "cursor": cursor }),
    ))
}

#[derive(Deserialize)]
struct Cancel {
    request_id: String,
}

pub(in crate::local) fn cancel(service: &Service, request: &Request) -> Answer {
    let Cancel { request_id } = body(request)?;
    let outcome = Outcome::refused("cancelled by the client");
    service.futures.finish(&request_id, outcome);
    Ok(Reply::empty())
}
