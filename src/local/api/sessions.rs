//! Sessions as records: lists, search, projects, traces.

use serde_json::json;

use super::records::texts;
use super::{Answer, Call};
use crate::local::http::{Refusal, Reply};
use crate::local::state::downloads::Source;
use crate::local::state::now;
use crate::local::state::sessions::Session;
use crate::types::{
    SearchOwner, SessionDetails, SessionSearch, SessionSearchCursor, SessionSearchPage,
    SessionStatus, SessionSummary, StatusQuery, TraceExport, TraceExportStatus,
};
use crate::wire::request::AssignProjectRequest;

/// The project of sessions that were given none.
const DEFAULT_PROJECT: &str = "default";

pub(super) fn list(call: &Call) -> Answer {
    let mut sessions = call.state().sessions.list();
    sessions.retain(|session| session.owner == *call.user);
    let (sessions, _) = call.page(sessions, 20)?;
    let ids: Vec<String> = sessions.into_iter().map(|session| session.id).collect();
    Ok(Reply::json(&json!({ "sessions": ids })))
}

pub(super) fn get(call: &Call) -> Answer {
    let id = call.segment(0);
    call.own_session(id)?;
    let session = call.state().sessions.get(id)?;
    Ok(Reply::json(&SessionDetails {
        training_run_ids: runs(call, id).into_iter().map(Into::into).collect(),
        sampler_ids: session.samplers.into_values().map(Into::into).collect(),
        user_metadata: Some(texts(session.user_metadata)),
        display_name: session.display_name,
    }))
}

pub(super) fn assign_project(call: &Call) -> Answer {
    let wanted: AssignProjectRequest<'_> = call.json()?;
    call.own_session(call.segment(0))?;
    call.state().sessions.edit(call.segment(0), |session| {
        session.project_id = Some(wanted.project_id.into_owned());
    })?;
    call.state().keep_session(call.segment(0))?;
    Ok(Reply::empty())
}

/// The trace is made when it is asked for, so it is always ready.
pub(super) fn trace(call: &Call) -> Answer {
    let id = call.segment(0);
    call.own_session(id)?;
    call.state().sessions.get(id)?;
    let trace = serde_json::to_vec(&call.state().traces.export(id))
        .map_err(|error| Refusal::internal(format!("the trace cannot be written: {error}")))?;
    let source = Source::Document(trace.into());
    let link = call.state().downloads.link(&call.server(), now(), source);
    Ok(Reply::json(&TraceExport {
        status: TraceExportStatus::Ready,
        url: Some(link.to("trace.pftrace")),
        error: None,
    }))
}

pub(super) fn search(call: &Call) -> Answer {
    let search: SessionSearch = call.json()?;
    search.validate()?;
    let mut found = call.state().sessions.list();
    found.retain(|session| matches(&call.user, session, &search));
    let more = found.len() > search.limit as usize;
    found.truncate(search.limit as usize);
    let next_cursor = found
        .last()
        .filter(|_| more)
        .map(|last| SessionSearchCursor {
            last_created_at: last.created_at,
            last_session_id: last.id.as_str().into(),
        });
    Ok(Reply::json(&SessionSearchPage {
        sessions: found
            .into_iter()
            .map(|session| summary(call, session))
            .collect(),
        next_cursor,
    }))
}

fn matches(user: &str, session: &Session, search: &SessionSearch) -> bool {
    let mine = match &search.owner {
        SearchOwner::Own | SearchOwner::Accessible => true,
        SearchOwner::User { owner_urns } => owner_urns.iter().any(|owner| owner == user),
    };
    let name = session.display_name.as_deref().unwrap_or_default();
    let words = search.display_name.as_deref().unwrap_or_default();
    let after = search.cursor.as_ref().is_none_or(|cursor| {
        let last = (cursor.last_created_at, &*cursor.last_session_id);
        (session.created_at, session.id.as_str()) < last
    });
    mine && after
        && session.owner == user
        && search
            .session_id
            .as_ref()
            .is_none_or(|id| **id == session.id)
        && name.to_lowercase().contains(&words.to_lowercase())
        && search.project_ids.as_ref().is_none_or(|projects| {
            projects
                .iter()
                .any(|project| project == project_of(session))
        })
        && search.user_metadata.iter().all(|(key, value)| {
            session
                .user_metadata
                .get(key)
                .and_then(|have| have.as_str())
                == Some(value)
        })
        && search.statuses.as_ref().is_none_or(|statuses| {
            statuses
                .iter()
                .any(|status| has_status(&session.status, status))
        })
}

fn has_status(status: &SessionStatus, wanted: &StatusQuery) -> bool {
    match (status, wanted) {
        (SessionStatus::Active, StatusQuery::Active)
        | (SessionStatus::Cancelled { .. }, StatusQuery::Cancelled)
        | (SessionStatus::Failed { .. }, StatusQuery::Failed) => true,
        (SessionStatus::ClientFinished { reason, .. }, StatusQuery::ClientFinished { reasons }) => {
            reasons
                .as_ref()
                .is_none_or(|reasons| reasons.contains(reason))
        }
        _ => false,
    }
}

/// The training runs of a session, in the order they were created.
fn runs(call: &Call, session_id: &str) -> Vec<String> {
    let mut runs = call.state().catalogue.runs();
    runs.retain(|run| run.session_id == session_id);
    runs.sort_by_key(|run| run.created_at);
    runs.into_iter().map(|run| run.id).collect()
}

fn project_of(session: &Session) -> &str {
    session.project_id.as_deref().unwrap_or(DEFAULT_PROJECT)
}

fn summary(call: &Call, session: Session) -> SessionSummary {
    let checkpoints: Vec<_> = runs(call, &session.id)
        .iter()
        .flat_map(|run| call.state().catalogue.checkpoints(Some(run)))
        .collect();
    SessionSummary {
        session_id: session.id.as_str().into(),
        created_at: session.created_at,
        owner: call.user.to_string(),
        project_id: project_of(&session).to_owned(),
        checkpoints_count: checkpoints.len() as u64,
        checkpoint_storage_bytes: Some(checkpoints.iter().map(|c| c.size_bytes).sum()),
        status: Some(session.status),
        display_name: session.display_name,
        user_metadata: Some(texts(session.user_metadata)),
    }
}
