//! The HTTP layer: one thread, one single-threaded runtime, many connections.

mod body;
mod connection;
mod descriptors;
mod guard;
mod patience;
mod query;
mod record;
mod reply;
mod seats;
mod stream;
mod tls;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{HeaderMap, Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

pub(super) use guard::Guard;
pub(super) use query::query;
pub use record::RecordedRequest;
pub(super) use record::Recorder;
pub(super) use reply::{Cut, Dropped, JSON, PROTOBUF, Refusal, Reply, ReplyBody};
pub(super) use stream::{Pieces, stream};
pub(super) use tls::Identity;

use descriptors::Share;
use seats::Seats;

use crate::error::{Context, Error, Result};

/// How long open requests may take to end once the server stops.
const GRACE: Duration = Duration::from_secs(3);

/// A request, read whole but where it says otherwise.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Request {
    /// The text of a header; one that is not text counts as absent.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// What the connections serve.
pub(super) trait App: Send + Sync + 'static {
    /// What a request turned out to be before its body was read.
    type Ticket: Send;

    /// Looks at a request whose body has not been read: who asks, and for what.
    fn admit(&self, request: &Request) -> Result<Self::Ticket, Refusal>;

    /// Answers a request that was let in.
    fn answer(
        self: Arc<Self>,
        ticket: Self::Ticket,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Dropped>> + Send;

    /// How a refusal looks to whoever asked for this path.
    fn refuse(&self, _path: &str, refusal: Refusal) -> Reply {
        refusal.into()
    }

    /// Hears of a request that was answered, well or badly.
    fn done(&self, exchange: &Exchange<'_>);

    /// Answers whoever waits: the server stops.
    fn stop(&self);
}

/// A request and what became of it.
#[derive(Debug)]
pub(super) struct Exchange<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) status: StatusCode,
    /// Until the answer began.
    pub(super) elapsed: Duration,
}

/// How connections are met.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) limits: Limits,
    pub(super) guard: Guard,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) recorder: Option<Arc<Recorder>>,
}

impl Front {
    pub(super) fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }
}

/// What a flood may take before it is turned away.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of one request's body.
    pub(super) request_bytes: usize,
    /// Connections at once.
    pub(super) connections: usize,
    /// How long some progress of a body may take, a request's or an answer's.
    pub(super) body_patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_bytes: 64 << 20,
            connections: 4096,
            body_patience: Duration::from_secs(30),
        }
    }
}

/// A socket that listens on an address.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| {
            let message = format!("cannot listen on {address}");
            Error::Config(Context::caused(message, error))
        })
}

/// What runs the connections, on one thread, and a few more for what blocks.
pub(super) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_name("tinker-local-blocking")
        .max_blocking_threads(4)
        .build()
        .map_err(|error| Error::Internal(Context::caused("no runtime", error)))
}

/// The thread that serves. Dropping it stops and joins.
#[derive(Debug)]
pub(super) struct HttpThread {
    pub(super) address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl HttpThread {
    pub(super) fn start(
        listener: TcpListener,
        runtime: Runtime,
        app: Arc<impl App>,
        front: Front,
    ) -> Result<Self> {
        let address = listener
            .local_addr()
            .map_err(|error| Error::Config(Context::caused("no local address", error)))?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("tinker-local-http".into())
            .spawn(move || {
                let limits = front.limits;
                let shared = Arc::new(connection::Shared::new(app, front));
                runtime.block_on(serve(listener, shared, limits, stopped));
                runtime.shutdown_timeout(GRACE);
            })
            .map_err(|error| Error::Internal(Context::caused("no thread", error)))?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        // The thread may be gone already if it panicked; there is nobody left to tell.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves one connection, whatever carries it, until it ends.
pub(super) async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    app: Arc<impl App>,
    front: Front,
) {
    let (_stop, stopped) = watch::channel(false);
    let seat = Seats::new(1).take().expect("nobody sits there yet");
    let shared = Arc::new(connection::Shared::new(app, front));
    connection::run(stream, seat, shared, stopped).await;
}

/// Accepts until told to stop, then waits a little for what is open.
async fn serve(
    listener: TcpListener,
    shared: Arc<connection::Shared<impl App>>,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("local server cannot listen: {error}"),
    };
    let share = Share::of_process(limits.connections);
    let seats = Seats::new(share.seats);
    let overflow = Arc::new(Semaphore::new(share.overflow));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // Out of file descriptors, or a peer that left at once: pause, so that others finish.
            Err(error) => {
                log::warn!("local server cannot accept a connection: {error}");
                if crate::descriptors::are_used_up(&error) {
                    seats.make_room(Instant::now());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let seat = match seats.take() {
            Some(seat) => Some(seat),
            None if seats.make_room(Instant::now()) => None,
            None => {
                // Past this many more, closing is the only answer that costs nothing.
                if let Ok(slot) = overflow.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        connection::turn_away(stream).await;
                        drop(slot);
                    });
                }
                continue;
            }
        };
        let (seats, shared, stopped) = (seats.clone(), shared.clone(), stopped.clone());
        tokio::spawn(async move {
            let seat = match seat {
                Some(seat) => Some(seat),
                // Whoever was asked to leave may have half a request to end.
                None => tokio::time::timeout(GRACE + GRACE, seats.wait())
                    .await
                    .ok()
                    .flatten(),
            };
            match seat {
                Some(seat) => connection::accept(stream, seat, shared, stopped).await,
                None => connection::turn_away(stream).await,
            }
        });
    }
    drop(listener);
    shared.stop();
    let _ = tokio::time::timeout(GRACE, seats.emptied()).await;
}
