//! Health, tokens, sessions, telemetry.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, json as body};
use crate::local::api::service::Service;
use crate::local::http::{Reply, Request};
use crate::local::state::sessions::Session;
use crate::local::work::jobs;
use crate::types::{FinishReason, ServerCapabilities, SessionStatus, SupportedModel};
use crate::wire::reply::{
    AuthTokenReply, CreateSessionReply, SessionHeartbeatReply, TelemetryReply,
};
use crate::wire::request::{CreateSessionRequest, SessionHeartbeatRequest};

pub(in crate::local) fn healthz() -> Answer {
    Ok(Reply::json(&json!({"status": "ok"})))
}

pub(in crate::local) fn token(service: &Service) -> Answer {
    let jwt = service.auth.issue()?;
    Ok(Reply::json(&AuthTokenReply { jwt }))
}

pub(in crate::local) fn create(service: &Service, request: &Request) -> Answer {
    let wanted: CreateSessionRequest<'_> = body(request)?;
    let session = Session {
        id: uuid::Uuid::new_v4().to_string(),
        created_at: jobs::now(),
        tags: wanted.tags.into_owned(),
        user_metadata: wanted.user_metadata.into_owned(),
        project_id: wanted.project_id.map(|id| id.into_owned()),
        display_name: wanted.display_name.map(|name| name.into_owned()),
        status: SessionStatus::Active,
        models: BTreeMap::new(),
        samplers: BTreeMap::new(),
    };
    let session_id = session.id.clone();
    service.catalogue.keep_session(&session)?;
    service.sessions.add(session);
    Ok(Reply::json(&CreateSessionReply {
        session_id,
        ..CreateSessionReply::default()
    }))
}

pub(in crate::local) fn heartbeat(service: &Service, request: &Request) -> Answer {
    let wanted: SessionHeartbeatRequest<'_> = body(request)?;
    service.sessions.touch(&wanted.session_id)?;
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

pub(in crate::local) fn finish(service: &Service, id: &str, request: &Request) -> Answer {
    let Finish { reason, detail } = body(request)?;
    let status = SessionStatus::ClientFinished {
        reason: reason.r#type,
        detail,
    };
    if let Some(session) = service.sessions.finish(id, status)? {
        service.end_session(&session);
    }
    Ok(Reply::empty())
}

pub(in crate::local) fn capabilities(service: &Service) -> Answer {
    Ok(Reply::json(&ServerCapabilities {
        supported_models: vec![SupportedModel {
            model_name: Some(service.base_model.clone()),
            max_context_length: Some(service.base.config().max_positions as u64),
            trainable: Some(true),
            sampleable: Some(true),
        }],
    }))
}

pub(in crate::local) fn telemetry(request: &Request) -> Answer {
    let batch: Value = body(request)?;
    log::trace!("local server: telemetry {batch}");
    Ok(Reply::json(&TelemetryReply {
        status: "accepted".into(),
    }))
}
