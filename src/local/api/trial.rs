//! A connection without a socket: bytes in, an answer out, for fuzzers of the HTTP front.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::table;
use crate::error::{Error, Result};
use crate::local::http::{
    self, App, Dropped, Exchange, Front, Guard, Limits, Refusal, Reply, Request, query,
};

/// A front that has not ended by then hangs: nothing it does here has to wait.
const HANG: Duration = Duration::from_secs(120);
/// Bytes of a request's body.
const LARGEST: usize = 4096;
/// An answer names what was asked for, escaped, but says little more.
const WORDY: usize = 64;

/// Serves a connection on which these bytes arrive, so many at a time, and then no more.
///
/// # Errors
///
/// [`Error::Invalid`] if the first request was not understood or not let in.
///
/// # Panics
///
/// If the front hangs, says what is no HTTP, or says far more than it was told.
pub(crate) fn converse(bytes: &[u8], piece: usize) -> Result<()> {
    let mut wire = Wire {
        input: bytes,
        piece: piece.max(1),
        idle: 0,
        output: Vec::new(),
    };
    let front = Front {
        limits: Limits {
            request_bytes: LARGEST,
            ..Limits::default()
        },
        guard: Guard::default(),
        tls: None,
        recorder: None,
    };
    let ended = http::runtime()?.block_on(async {
        let serving = http::converse(&mut wire, Arc::new(Echo), front);
        tokio::time::timeout(HANG, serving).await
    });
    assert!(ended.is_ok(), "the front hangs");
    let said = wire.output;
    assert!(said.len() <= WORDY * (bytes.len() + WORDY), "a long answer");
    if said.is_empty() {
        return Err(Error::invalid("request", "no answer"));
    }
    let status = said.strip_prefix(b"HTTP/1.1 ");
    let status = status.or_else(|| said.strip_prefix(b"HTTP/1.0 "));
    let status = status.and_then(|rest| rest.split_first_chunk::<3>());
    match status.expect("an answer begins with its status").0 {
        [b'2', ..] => Ok(()),
        code => {
            let code = String::from_utf8_lossy(code);
            Err(Error::invalid("request", format!("answered with {code}")))
        }
    }
}

/// Finds endpoints as the server does, and answers with what it was told.
struct Echo;

impl App for Echo {
    type Ticket = Vec<String>;

    fn admit(&self, request: &Request) -> Result<Vec<String>, Refusal> {
        table::find(&request.method, &request.path).map(|(_, segments)| segments)
    }

    async fn answer(
        self: Arc<Self>,
        segments: Vec<String>,
        request: Request,
    ) -> Result<Reply, Dropped> {
        match request.method.as_str() {
            "DELETE" => Err(Dropped),
            "PUT" => {
                let (sender, chunks) = http::stream();
                sender.send(request.body);
                Ok(Reply::stream(http::JSON, chunks))
            }
            _ => {
                let limit = query(&request.query, "limit");
                let body = request.body.len();
                Ok(Reply::json(&(segments, limit, body)))
            }
        }
    }

    fn done(&self, exchange: &Exchange<'_>) {
        debug_assert!(exchange.status.as_u16() >= 200, "{exchange:?}");
    }

    fn stop(&self) {}
}

/// The other side of the connection.
struct Wire<'a> {
    input: &'a [u8],
    piece: usize,
    /// How often more was asked for in vain since something was said.
    idle: u32,
    output: Vec<u8>,
}

impl Wire<'_> {
    /// A front that asks this often and says nothing has nothing to say any more.
    const PATIENCE: u32 = 64;
}

impl AsyncRead for Wire<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.piece.min(into.remaining()).min(self.input.len());
        if count == 0 && self.idle < Self::PATIENCE {
            // Whoever hangs up at once may get no answer.
            self.idle += 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (now, later) = self.input.split_at(count);
        into.put_slice(now);
        self.input = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.idle = 0;
        self.output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
