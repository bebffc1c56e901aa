//! One connection: let a request in, read its body, answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use super::{App, Dropped, GRACE, JSON, Limits, Recorder, Refusal, Reply, ReplyBody, Request};

/// A connection with no request under way is closed after this long.
const IDLE: Duration = Duration::from_secs(120);
/// A body of which nothing arrives for this long is given up.
const BODY: Duration = Duration::from_secs(60);
/// Bodies of several requests wait in memory at once; this many of the largest allowed.
const LARGEST_AT_ONCE: usize = 8;

/// What every connection uses.
pub(super) struct Shared<A> {
    app: Arc<A>,
    recorder: Option<Arc<Recorder>>,
    limits: Limits,
    /// Room for bodies in memory, in units of 1 KiB.
    room: Semaphore,
}

impl<A: App> Shared<A> {
    pub(super) fn new(app: Arc<A>, recorder: Option<Arc<Recorder>>, limits: Limits) -> Self {
        let room = Semaphore::new(units(limits.request_bytes) as usize * LARGEST_AT_ONCE);
        Self {
            app,
            recorder,
            limits,
            room,
        }
    }

    pub(super) fn stop(&self) {
        self.app.stop();
    }
}

/// Serves one connection until either side ends it.
pub(super) async fn run(
    stream: TcpStream,
    shared: Arc<Shared<impl App>>,
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

impl<A: App> Shared<A> {
    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
    ) -> Result<Response<ReplyBody>, Dropped> {
        let (head, body) = request.into_parts();
        let mut request = Request {
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            method: head.method,
            headers: head.headers,
            body: Bytes::new(),
        };
        let method = request.method.clone();
        // What follows in a link to a file is a credential.
        let shown = request.path.split_inclusive("/download/").next();
        let path = shown.unwrap_or_default().to_owned();
        let reply = match self.read(&mut request, body).await {
            Ok(ticket) => self.app.clone().answer(ticket, request).await?,
            // The rest of the body is not worth reading.
            Err(refusal) => Reply::from(refusal).with_header(CONNECTION, "close"),
        };
        log::debug!("local server: {method} {path} -> {}", reply.status.as_u16());
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        Ok(response)
    }

    /// Lets the request in and reads its body.
    async fn read(&self, request: &mut Request, body: Incoming) -> Result<A::Ticket, Refusal> {
        let ticket = self.app.admit(request);
        if ticket.is_ok() {
            request.body = self.read_body(request, body).await?;
        }
        if let Some(recorder) = &self.recorder {
            recorder.record(request);
        }
        ticket
    }

    /// Reads a body within the limits.
    async fn read_body(&self, request: &Request, body: Incoming) -> Result<Bytes, Refusal> {
        let limit = self.limits.request_bytes;
        let too_large = || Refusal::too_large(format!("a request may have {limit} bytes at most"));
        let length = request
            .header(CONTENT_LENGTH.as_str())
            .and_then(|value| value.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        if length == Some(0) {
            return Ok(Bytes::new());
        }
        let room = self.room.acquire_many(units(length.unwrap_or(limit))).await;
        let collected = tokio::time::timeout(BODY, Limited::new(body, limit).collect()).await;
        drop(room);
        match collected {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => Err(Refusal::bad(format!("the body ended early: {error}"))),
            Err(_) => Err(Refusal::bad("the body did not arrive in time")),
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX / 16)
}
