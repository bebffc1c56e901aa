//! Results: one by one, many at once, or not wanted any more.

use serde_json::json;

use super::{Answer, Call};
use crate::error::ErrorCategory;
use crate::local::http::{JSON, PROTOBUF, Refusal, Reply};
use crate::local::state::futures::{Look, Outcome};
use crate::local::work::saving;
use crate::wire::dialect::encode_sample_json;
use crate::wire::output::decode_forward_backward_proto;
use crate::wire::reply::{CompletionsReply, is_protobuf};
use crate::wire::request::{
    CancelFutureRequest, RetrieveFutureRequest, RetrieveFuturesRequest, to_json,
};
use crate::wire::sample::decode_sample_proto;

/// Waits for one result, as long as a poll is held.
pub(super) async fn retrieve(call: Call) -> Answer {
    let wanted: RetrieveFutureRequest<'_> = call.json()?;
    let id = wanted.request_id.as_ref();
    let options = &call.service.options;
    let until = tokio::time::Instant::now() + options.long_poll;
    let look = tokio::select! {
        look = call.state().futures.wait(id, &call.user, until) => look,
        () = call.state().stopping() => call.state().futures.look(id, &call.user),
    };
    let outcome = match look {
        Look::Done(outcome) => outcome,
        Look::Pending { paused } => return Ok(pending(id, paused)),
        // Clients take a 404 for their own mistake and a 410 for a promise that was lost.
        Look::Unknown => return Err(lost(&call, id).await),
    };
    let size = outcome.size();
    if wanted.allow_metadata_only && size > options.metadata_only_above {
        return Ok(Reply::json(&json!({
            "status": "complete_metadata",
            "request_id": id,
            "response_payload_size": size,
        })));
    }
    call.state().futures.sent(id);
    render(&call, outcome)
}

/// What to say of a request that nobody knows. Whoever asks for one that a model in training came
/// back without knows of work that the model does not: the two must not go on together.
async fn lost(call: &Call, id: &str) -> Refusal {
    let asked = id.rsplit_once(':').and_then(|(model, number)| {
        let number = number.parse().ok()?;
        let model = call.model(model).ok()?;
        saving::is_ahead(&model, number).then_some(model)
    });
    if let Some(model) = asked {
        let work = call.work().clone();
        // What the model has learnt goes to disk.
        let _ = tokio::task::spawn_blocking(move || saving::lay_down(&work, &model)).await;
    }
    Refusal::gone(format!("no such request: {id}"))
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
fn render(call: &Call, outcome: Outcome) -> Answer {
    let accepts_protobuf = is_protobuf(call.request.header("accept"));
    match outcome {
        Outcome::Failed { message, category } => Ok(Reply::json(&json!({
            "error": message,
            "category": category.as_str(),
        }))),
        Outcome::Json(bytes) => Ok(Reply::new(JSON, bytes)),
        Outcome::Training(bytes) | Outcome::Sample(bytes) if accepts_protobuf => {
            Ok(Reply::new(PROTOBUF, bytes))
        }
        Outcome::Training(bytes) => {
            let output = decode_forward_backward_proto(bytes.to_vec())?;
            Ok(in_json(to_json(&output)))
        }
        Outcome::Sample(bytes) => {
            let response = decode_sample_proto(bytes.to_vec())?;
            Ok(in_json(encode_sample_json(&response)))
        }
    }
}

/// A result, or why JSON cannot say it: it has no infinity. The request has run, so that is its
/// result, and asking again would not help.
fn in_json(encoded: crate::Result<Vec<u8>>) -> Reply {
    match encoded {
        Ok(bytes) => Reply::new(JSON, bytes),
        Err(error) => Reply::json(&json!({
            "error": format!("it was done, but JSON cannot say the result: {error}"),
            "category": ErrorCategory::User.as_str(),
        })),
    }
}

/// Waits for the next completions of one sampler's client.
pub(super) async fn retrieve_many(call: Call) -> Answer {
    let wanted: RetrieveFuturesRequest<'_> = call.json()?;
    let futures = &call.state().futures;
    futures.acknowledge(&wanted.retrieved_request_ids, &call.user);
    call.own_sampler(&wanted.target.sampling_session_id)?;
    let options = &call.service.options;
    let asked = wanted
        .timeout
        .and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok());
    let hold = asked.map_or(options.long_poll, |asked| asked.min(options.long_poll));
    let until = tokio::time::Instant::now() + hold;
    let channel = (
        wanted.target.sampling_session_id.into_owned(),
        wanted.target.cloned_sampler_id,
    );
    let (completions, cursor) = tokio::select! {
        found = futures.completions(&channel, wanted.prev_cursor, until) => found,
        () = call.state().stopping() => (Vec::new(), wanted.prev_cursor),
    };
    Ok(Reply::json(&CompletionsReply {
        completions,
        cursor,
    }))
}

pub(super) fn cancel(call: &Call) -> Answer {
    let wanted: CancelFutureRequest<'_> = call.json()?;
    call.state().futures.cancel(&wanted.request_id, &call.user);
    Ok(Reply::empty())
}
