//! Health, tokens, sessions, telemetry.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Answer, json as body};
use crate::local::http::{Reply, Request};
use crate::local::service::Service;
use crate::local::sessions::{Session, Status};
use crate::wire::reply::{
    AuthTokenReply, CreateSessionReply, SessionHeartbeatReply, TelemetryReply,
};

pub(in crate::local) fn healthz() -> Answer {
    Ok(Reply::json(&json!({"status": "ok"})))
}

pub(in crate::local) fn token(service: &Service) -> Answer {
    let jwt = service.auth.issue()?;
    Ok(Reply::json(&AuthTokenReply { jwt }))
}

#[derive(Deserialize)]
struct CreateSession {
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    user_metadata: Option<Map<String, Value>>,
    #[serde(default)]
    project_id: Option<String>,
    #[serde(default)]
    display_name: Option<String>,
}

pub(in crate::local) fn create(service: &Service, request: &Request) -> Answer {
    let wanted: CreateSession = body(request)?;
    let session = Session {
        id: uuid::Uuid::new_v4().to_string(),
        created_at: Timestamp::now(),
        tags: wanted.tags,
        user_metadata: wanted.user_metadata.unwrap_or_default(),
        project_id: wanted.project_id,
        display_name: wanted.display_name,
        status: Status::Active,
        models: BTreeMap::new(),
        samplers: BTreeMap::new(),
    };
    let session_id = session.id.clone();
    service.sessions.add(session);
    Ok(Reply::json(&CreateSessionReply {
        session_id,
        ..CreateSessionReply::default()
    }))
}

#[derive(Deserialize)]
struct Heartbeat {
    session_id: String,
}

pub(in crate::local) fn heartbeat(service: &Service, request: &Request) -> Answer {
    let Heartbeat { session_id } = body(request)?;
    service.sessions.touch(&session_id)?;
    Ok(Reply::json(&SessionHeartbeatReply::default()))
}

#[derive(Deserialize)]
struct Finish {
    reason: Value,
    #[serde(default)]
    detail: Option<String>,
}

pub(in crate::local) fn finish(service: &Service, id: &str, request: &Request) -> Answer {
    let Finish { reason, detail } = body(request)?;
    service
        .sessions
        .finish(id, Status::ClientFinished { reason, detail })?;
    Ok(Reply::empty())
}

pub(in crate::local) fn telemetry(request: &Request) -> Answer {
    let batch: Value = body(request)?;
    log::trace!("local server: telemetry {batch}");
    Ok(Reply::json(&TelemetryReply {
        status: "accepted".into(),
    }))
}
