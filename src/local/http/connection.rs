//! One connection: let a request in, read its body, answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Response;
use hyper::body::Incoming;
use hyper::header::CONTENT_LENGTH;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::body::{Room, drain};
use super::patience::Patient;
use super::seats::{Seat, Sent};
use super::{
    App, Dropped, Exchange, Front, GRACE, JSON, Refusal, Reply, ReplyBody, Request, guard,
};

/// A connection with no request under way is closed after this long.
const IDLE: Duration = Duration::from_secs(120);
/// How long a client may take to agree on encryption.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What every connection uses.
pub(super) struct Shared<A> {
    app: Arc<A>,
    front: Front,
    room: Room,
}

impl<A: App> Shared<A> {
    pub(super) fn new(app: Arc<A>, front: Front) -> Self {
        Self {
            app,
            room: Room::new(front.limits),
            front,
        }
    }

    pub(super) fn stop(&self) {
        self.app.stop();
    }
}

/// Serves one connection until either side ends it.
pub(super) async fn accept(
    stream: TcpStream,
    seat: Seat,
    shared: Arc<Shared<impl App>>,
    stopped: watch::Receiver<bool>,
) {
    // Small answers to long polls must not wait for more bytes.
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = shared.front.tls.clone() else {
        return run(stream, seat, shared, stopped).await;
    };
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => run(stream, seat, shared, stopped).await,
        Ok(Err(error)) => log::debug!("local server: no encryption: {error}"),
        Err(_) => {}
    }
}

/// Serves requests on whatever carries them.
pub(super) async fn run(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    seat: Seat,
    shared: Arc<Shared<impl App>>,
    mut stopped: watch::Receiver<bool>,
) {
    let stream = Patient::new(stream, shared.front.limits.body_patience);
    let seat = Arc::new(seat);
    let sitting = seat.clone();
    let service = service_fn(move |request| {
        let (shared, busy) = (shared.clone(), sitting.busy());
        async move {
            let response = shared.answer(request).await?;
            Ok::<_, Dropped>(response.map(|body| Sent { body, _busy: busy }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = stopped.changed() => None,
        () = seat.asked_to_leave() => None,
    };
    if ended.is_none() {
        connection.as_mut().graceful_shutdown();
        let waited = tokio::time::timeout(GRACE, connection.as_mut()).await;
        ended = waited.ok();
    }
    // A request that began as its connection was asked to leave is answered all the same.
    if ended.is_none() && seat.is_busy() && !*stopped.borrow() {
        ended = tokio::select! {
            ended = connection => Some(ended),
            _ = stopped.changed() => None,
        };
    }
    if let Some(Err(error)) = ended {
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
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let request = Request {
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            method: head.method,
            headers: head.headers,
            body: Bytes::new(),
        };
        let (method, path) = (request.method.clone(), request.path.clone());
        let scheme = self.front.scheme();
        let (origin, reply) = match self.front.guard.check(&request, scheme) {
            Err(refusal) => (None, self.refuse(&path, refusal, body)),
            Ok(Some(origin)) if guard::is_preflight(&request) => {
                (Some(origin), guard::preflight(&request))
            }
            Ok(origin) => (origin, self.let_in(request, body).await?),
        };
        self.app.done(&Exchange {
            method: &method,
            path: &path,
            status: reply.status,
            elapsed: started.elapsed(),
        });
        let reply = match origin {
            Some(origin) => guard::allow(reply, &origin),
            None => reply,
        };
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        Ok(response)
    }

    /// Asks who it is, then reads the body, then answers.
    async fn let_in(&self, mut request: Request, mut body: Incoming) -> Result<Reply, Dropped> {
        let path = request.path.clone();
        let length = request
            .header(CONTENT_LENGTH.as_str())
            .and_then(|value| value.parse::<usize>().ok());
        let ticket = match self.app.admit(&request) {
            Ok(ticket) => self.room.read(&mut body, length).await.map(|bytes| {
                request.body = bytes;
                ticket
            }),
            Err(refusal) => Err(refusal),
        };
        if let Some(recorder) = &self.front.recorder {
            recorder.record(&request);
        }
        match ticket {
            Ok(ticket) => self.app.clone().answer(ticket, request).await,
            Err(refusal) => Ok(self.refuse(&path, refusal, body)),
        }
    }

    fn refuse(&self, path: &str, refusal: Refusal, body: Incoming) -> Reply {
        tokio::spawn(drain(body, self.front.limits.body_patience));
        self.app.refuse(path, refusal)
    }
}
