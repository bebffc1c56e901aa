//! Health, tokens, sessions, telemetry.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Call};
use crate::local::http::Reply;
use crate::local::state::now;
use crate::local::state::sessions::Session;
use crate::local::work::library::Offer;
use crate::types::{FinishReason, ServerCapabilities, SessionStatus, SupportedModel};
use crate::wire::reply::{
    AuthTokenReply, CreateSessionReply, SessionHeartbeatReply, TelemetryReply,
};
use crate::wire::request::{CreateSessionRequest, SessionHeartbeatRequest};

pub(super) fn healthz(_: &Call) -> Answer {
    Ok(Reply::json(&json!({"status": "ok"})))
}

pub(super) fn client_config(call: &Call) -> Answer {
    Ok(Reply::json(call.service.flags.client()))
}

pub(super) fn dynamic_config(call: &Call) -> Answer {
    Ok(Reply::json(call.service.flags.dynamic()))
}

pub(super) fn token(call: &Call) -> Answer {
    let jwt = call.service.auth.issue(&call.user)?;
    Ok(Reply::json(&AuthTokenReply { jwt }))
}

pub(super) fn create(call: &Call) -> Answer {
    let wanted: CreateSessionRequest<'_> = call.json()?;
    let session = Session {
        id: uuid::Uuid::new_v4().to_string(),
        created_at: now(),
        owner: call.user.to_string(),
        tags: wanted.tags.into_owned(),
        user_metadata: wanted.user_metadata.into_owned(),
        project_id: wanted.project_id.map(|id| id.into_owned()),
        display_name: wanted.display_name.map(|name| name.into_owned()),
        status: SessionStatus::Active,
        models: BTreeMap::new(),
        samplers: BTreeMap::new(),
        origins: BTreeMap::new(),
    };
    let session_id = session.id.clone();
    call.state().catalogue.keep_session(&session)?;
    call.state().sessions.add(session);
    Ok(Reply::json(&CreateSessionReply {
        session_id,
        ..CreateSessionReply::default()
    }))
}

pub(super) fn heartbeat(call: &Call) -> Answer {
    let wanted: SessionHeartbeatRequest<'_> = call.json()?;
    call.touch(&wanted.session_id)?;
    Ok(Reply::json(&SessionHeartbeatReply::default()))
}

/// How a client ended its session; the first end counts.
#[derive(Deserialize)]
struct Finish {
    reason: Reason,
    #[serde(default)]
    detail: Option<String>,
}

#[derive(Deserialize)]
struct Reason {
    r#type: FinishReason,
}

pub(super) fn finish(call: &Call) -> Answer {
    let Finish { reason, detail } = call.json()?;
    let status = SessionStatus::ClientFinished {
        reason: reason.r#type,
        detail,
    };
    call.own_session(call.segment(0))?;
    if let Some(session) = call.state().sessions.finish(call.segment(0), status)? {
        call.state().end_session(&session);
    }
    Ok(Reply::empty())
}

pub(super) fn capabilities(call: &Call) -> Answer {
    Ok(Reply::json(&ServerCapabilities {
        supported_models: call.work().library.offers().iter().map(supported).collect(),
    }))
}

fn supported(offer: &Offer) -> SupportedModel {
    SupportedModel {
        model_name: Some(offer.name.clone()),
        max_context_length: Some(offer.config.max_positions as u64),
        trainable: Some(true),
        sampleable: Some(true),
    }
}

pub(super) fn telemetry(call: &Call) -> Answer {
    let batch: Value = call.json()?;
    log::trace!("local server: telemetry {batch}");
    Ok(Reply::json(&TelemetryReply {
        status: "accepted".into(),
    }))
}
