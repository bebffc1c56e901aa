//! One connection: read a request, apply a fault if one is due, answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use super::{Cut, Dropped, GRACE, JSON, Limits, Refusal, Reply, ReplyBody, Request};
use crate::local::api::fault::FaultKind;
use crate::local::api::routes::{self, Route};
use crate::local::api::service::Service;

/// A connection with no request under way is closed after this long.
const IDLE: Duration = Duration::from_secs(120);
/// A body of which nothing arrives for this long is given up.
const BODY: Duration = Duration::from_secs(60);
/// Bodies of several requests wait in memory at once; this many of the largest allowed.
const LARGEST_AT_ONCE: usize = 8;

/// What every connection uses.
pub(super) struct Shared {
    service: Arc<Service>,
    limits: Limits,
    /// Room for bodies in memory, in units of 1 KiB.
    room: Semaphore,
}

impl Shared {
    pub(super) fn new(service: Arc<Service>, limits: Limits) -> Self {
        let room = Semaphore::new(units(limits.request_bytes) as usize * LARGEST_AT_ONCE);
        Self {
            service,
            limits,
            room,
        }
    }
}

/// Serves one connection until either side ends it.
pub(super) async fn run(
    stream: TcpStream,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    // Small answers to long polls must not wait for more bytes.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { shared.answer(request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        log::trace!("local server: connection ended: {error}");
    }
}

/// Answers a connection beyond the limit with a 503.
pub(super) async fn turn_away(stream: TcpStream) {
    let body = r#"{"detail":"too many connections"}"#;
    let reply = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {JSON}\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        // A fresh socket's buffer takes these few bytes at once.
        if stream.writable().await.is_ok() && stream.try_write(reply.as_bytes()).is_ok() {
            // Closing with the request unread would reset the connection and lose the reply.
            let mut sink = [0; 4096];
            while stream.readable().await.is_ok() {
                match stream.try_read(&mut sink) {
                    Ok(0) => break,
                    Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
                    _ => {}
                }
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(500), exchange).await;
}

impl Shared {
    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
    ) -> Result<Response<ReplyBody>, Dropped> {
        let method = request.method().clone();
        // What follows in a link to a file is a credential.
        let path = request.uri().path();
        let shown = path.split_inclusive("/download/").next().unwrap_or(path);
        let path = shown.to_owned();
        let reply = match self.read(request).await {
            Ok(request) => self.serve(request).await?,
            Err(refusal) => {
                // The rest of the body is not worth reading.
                Reply::from(refusal).with_header(CONNECTION, "close")
            }
        };
        log::debug!("local server: {method} {path} -> {}", reply.status.as_u16());
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        Ok(response)
    }

    /// Reads the whole request within the limits.
    async fn read(&self, request: hyper::Request<Incoming>) -> Result<Request, Refusal> {
        let (head, body) = request.into_parts();
        let limit = self.limits.request_bytes;
        let too_large = || Refusal::too_large(format!("a request may have {limit} bytes at most"));
        let length = head
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let body = if length == Some(0) {
            Bytes::new()
        } else {
            let room = self.room.acquire_many(units(length.unwrap_or(limit))).await;
            let collected = tokio::time::timeout(BODY, Limited::new(body, limit).collect()).await;
            drop(room);
            match collected {
                Ok(Ok(collected)) => collected.to_bytes(),
                Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                    return Err(too_large());
                }
                Ok(Err(error)) => {
                    return Err(Refusal::bad(format!("the body ended early: {error}")));
                }
                Err(_) => return Err(Refusal::bad("the body did not arrive in time")),
            }
        };
        Ok(Request {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers,
            body,
        })
    }

    /// Finds the route and answers, with the fault that is due.
    async fn serve(&self, request: Request) -> Result<Reply, Dropped> {
        let service = &self.service;
        if let Some(recorder) = service.recorder() {
            recorder.record(&request);
        }
        let found = match routes::find(&request.method, &request.path) {
            Ok(found) => found,
            Err(refusal) => return Ok(refusal.into()),
        };
        let fault = match found.route {
            // What ends a fault must not suffer from one.
            Route::AddFault | Route::ClearFaults => None,
            _ => service.strike(found.endpoint),
        };
        match fault {
            None => Ok(service.answer(found, request).await),
            Some(FaultKind::Status {
                status,
                headers,
                body,
            }) => Ok(faulty_status(status, headers, body)),
            Some(FaultKind::Slow { millis }) => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                Ok(service.answer(found, request).await)
            }
            Some(FaultKind::Stalled) => {
                service.stopping().await;
                Err(Dropped)
            }
            Some(FaultKind::DroppedBefore) => Err(Dropped),
            Some(FaultKind::DroppedAfter) => {
                service.answer(found, request).await;
                Err(Dropped)
            }
            Some(FaultKind::Truncated) => Ok(truncate(service.answer(found, request).await)),
            Some(FaultKind::Malformed) => Ok(damage(service.answer(found, request).await)),
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX / 16)
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
