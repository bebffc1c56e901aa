//! What a handler answers: a reply, or a refusal that becomes one.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;

use super::stream::Chunks;

pub(in crate::local) const JSON: &str = "application/json";
pub(in crate::local) use crate::wire::reply::PROTOBUF;

/// The answer to one request.
#[derive(Debug)]
pub(in crate::local) struct Reply {
    pub(in crate::local) status: StatusCode,
    pub(in crate::local) headers: HeaderMap,
    pub(in crate::local) body: ReplyBody,
}

impl Reply {
    pub(in crate::local) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self {
            status: StatusCode::OK,
            headers,
            body: ReplyBody::Full(Some(body.into())),
        }
    }

    /// A JSON body; the value is one of ours, so encoding it cannot fail but for a bug.
    pub(in crate::local) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(JSON, body),
            Err(error) => {
                Refusal::internal(format!("the answer cannot be encoded: {error}")).into()
            }
        }
    }

    /// An empty JSON object, for answers nobody reads.
    pub(in crate::local) fn empty() -> Self {
        Self::new(JSON, "{}")
    }

    /// A body that is produced while it is sent.
    pub(in crate::local) fn stream(content_type: &'static str, chunks: Chunks) -> Self {
        Self {
            body: ReplyBody::Stream(chunks),
            ..Self::new(content_type, Bytes::new())
        }
    }

    #[must_use]
    pub(in crate::local) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    #[must_use]
    pub(in crate::local) fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }
}

/// How refusals look.
#[derive(Serialize)]
struct Detail<'a> {
    detail: &'a str,
}

/// A request that is turned down: a status and the `detail` the service's clients look for.
///
/// Every refusal has a body: clients take an empty 400 for a proxy's and repeat it.
#[derive(Debug)]
pub(in crate::local) struct Refusal {
    pub(in crate::local) status: StatusCode,
    pub(in crate::local) detail: String,
}

impl Refusal {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
        }
    }

    /// 400: understood, and wrong.
    pub(in crate::local) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 401: no credential, or not a known one.
    pub(in crate::local) fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// 403: known, and not for you.
    pub(in crate::local) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// 408: too slow.
    pub(in crate::local) fn timeout(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    /// 404: no such thing.
    pub(in crate::local) fn missing(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// 409: taken. Clients repeat it, so it is only for what may change.
    pub(in crate::local) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 410: it was here once.
    pub(in crate::local) fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, detail)
    }

    /// 413: more bytes than the server takes.
    pub(in crate::local) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// 422: the body does not have the expected shape.
    pub(in crate::local) fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// 429: come back later.
    pub(in crate::local) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }

    /// 500: our fault.
    pub(in crate::local) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let reply = Self::json(&Detail {
            detail: &refusal.detail,
        })
        .with_status(refusal.status);
        if refusal.status == StatusCode::TOO_MANY_REQUESTS {
            reply.with_header(HeaderName::from_static("retry-after-ms"), "250")
        } else {
            reply
        }
    }
}

/// The bytes of an answer.
#[derive(Debug)]
pub(in crate::local) enum ReplyBody {
    Full(Option<Bytes>),
    Stream(Chunks),
    /// Sends what it has, then breaks the connection.
    Cut(Cut),
}

/// The stages of a body that breaks off.
#[derive(Debug)]
pub(in crate::local) enum Cut {
    Send(Bytes),
    /// One idle turn, in which the bytes sent so far are flushed.
    Flush,
    Break,
}

/// The connection is to be closed without (the rest of) an answer.
#[derive(Debug)]
pub(in crate::local) struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Dropped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Dropped>>> {
        match &mut *self {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(chunks) => chunks
                .poll(cx)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
            Self::Cut(stage) => match std::mem::replace(stage, Cut::Break) {
                Cut::Send(bytes) => {
                    *stage = Cut::Flush;
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
                Cut::Flush => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Cut::Break => Poll::Ready(Some(Err(Dropped))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Stream(_) | Self::Cut(_) => SizeHint::default(),
        }
    }
}
