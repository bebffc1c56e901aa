//! Faults as they are served: the right answer late, broken, or not at all.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue};

use super::fault::FaultKind;
use super::service::Service;
use super::table::Endpoint;
use super::{Call, dispatch};
use crate::local::http::{Cut, Dropped, JSON, Reply, ReplyBody};

/// Answers with the fault that is due, if one is.
pub(super) async fn answer(
    service: &Arc<Service>,
    endpoint: &'static Endpoint,
    call: Call,
) -> Result<Reply, Dropped> {
    let fault = match endpoint.can_fail() {
        true => service.strike(endpoint.template),
        false => None,
    };
    match fault {
        None => Ok(dispatch(endpoint, call).await),
        Some(FaultKind::Status {
            status,
            headers,
            body,
        }) => Ok(faulty_status(status, headers, body)),
        Some(FaultKind::Slow { millis }) => {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok(dispatch(endpoint, call).await)
        }
        Some(FaultKind::Stalled) => {
            service.state.stopping().await;
            Err(Dropped)
        }
        Some(FaultKind::DroppedBefore) => Err(Dropped),
        Some(FaultKind::DroppedAfter) => {
            dispatch(endpoint, call).await;
            Err(Dropped)
        }
        Some(FaultKind::Truncated) => Ok(truncate(dispatch(endpoint, call).await)),
        Some(FaultKind::Malformed) => Ok(damage(dispatch(endpoint, call).await)),
    }
}

fn faulty_status(status: u16, headers: Vec<(String, String)>, body: Option<String>) -> Reply {
    let body = body.unwrap_or_else(|| format!(r#"{{"detail":"injected fault {status}"}}"#));
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut reply = Reply::new(JSON, body).with_status(status);
    for (name, value) in headers {
        let name = HeaderName::try_from(name);
        let value = HeaderValue::try_from(value);
        if let (Ok(name), Ok(value)) = (name, value) {
            reply.headers.insert(name, value);
        }
    }
    reply
}

/// Announces the whole body and sends half of it.
fn truncate(mut reply: Reply) -> Reply {
    if let ReplyBody::Full(Some(bytes)) = &reply.body {
        let half = bytes.slice(..bytes.len() / 2);
        let whole = bytes.len().to_string();
        reply = reply.with_header(CONTENT_LENGTH, &whole);
        reply.body = ReplyBody::Cut(Cut::Send(half));
    }
    reply
}

/// Half a message, complete as far as HTTP can tell.
fn damage(mut reply: Reply) -> Reply {
    if let ReplyBody::Full(Some(bytes)) = &reply.body {
        let mut damaged = bytes[..bytes.len() / 2].to_vec();
        damaged.extend_from_slice(b"\xff{");
        reply.body = ReplyBody::Full(Some(damaged.into()));
    }
    reply
}
