//! What goes out and what comes back.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use ureq::http::HeaderMap;

use crate::config::{Secret, Timeout};
use crate::error::{Effect, Meaning};
use crate::types::url::Url;
use crate::wire::route::{Method, Pool, Route};

/// One attempt at one request. Everything it borrows can be sent again, so a retry loop builds it
/// once and changes only [`retry_count`](Self::retry_count).
#[derive(Debug, Clone)]
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    /// Below the base URL and beginning with `/`, or a whole URL.
    pub(crate) path: Cow<'a, str>,
    /// Encoded, without the question mark; may be empty.
    pub(crate) query: Cow<'a, str>,
    /// How errors and logs name it: `POST optim_step`.
    pub(crate) label: Cow<'a, str>,
    pub(crate) pool: Pool,
    pub(crate) body: Body<'a>,
    pub(crate) auth: Auth<'a>,
    /// In place of `application/json`.
    pub(crate) accept: Option<&'a str>,
    /// Headers of this call; they win over the defaults and the client's overrides.
    pub(crate) headers: Vec<(&'a str, Cow<'a, str>)>,
    /// The same for every attempt; one is made up when a request that changes something has none.
    pub(crate) idempotency_key: Option<&'a str>,
    /// How many attempts of the HTTP layer came before this one.
    pub(crate) retry_count: u32,
    /// How long to wait for the next bytes; the client's limit (60 s) by default.
    pub(crate) read_timeout: Timeout,
    /// How long to wait for a connection; the client's limit (5 s) by default.
    pub(crate) connect_timeout: Timeout,
    /// How long all of it may take, from connecting to the end of the answer and with every
    /// redirect on the way; no limit by default.
    pub(crate) whole_timeout: Option<Duration>,
    /// Not the service's: it sees no header of the service's, and an answer that points to
    /// another host is handed out instead of followed.
    pub(crate) foreign: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: Method, path: impl Into<Cow<'a, str>>, pool: Pool) -> Self {
        let path = path.into();
        let label = label_of(method, &path);
        Self::labelled(label, method, path, pool)
    }

    fn labelled(label: String, method: Method, path: Cow<'a, str>, pool: Pool) -> Self {
        Self {
            method,
            label: label.into(),
            path,
            query: Cow::Borrowed(""),
            pool,
            body: Body::Empty,
            auth: Auth::None,
            accept: None,
            headers: Vec::new(),
            idempotency_key: None,
            retry_count: 0,
            read_timeout: Timeout::Default,
            connect_timeout: Timeout::Default,
            whole_timeout: None,
            foreign: false,
        }
    }

    /// A request to an endpoint, with its pool, name, timeout and `x-sdk-*` headers; `path` is
    /// what [`Route::path`] made of its template.
    pub(crate) fn to(route: &Route, path: impl Into<Cow<'a, str>>) -> Self {
        let mut request = Self::labelled(route.label(), route.method, path.into(), route.pool);
        // A route that waits as long as any other follows the client's setting.
        if route.timeout != super::READ_TIMEOUT {
            request.read_timeout = Timeout::After(route.timeout);
        }
        if let Some(method) = route.sdk_method {
            request = request
                .with_header("x-sdk-version", super::PROTOCOL_VERSION)
                .with_header("x-sdk-method", method);
        }
        request
    }

    #[must_use]
    pub(crate) fn with_body(mut self, body: Body<'a>) -> Self {
        self.body = body;
        self
    }

    #[must_use]
    pub(crate) fn with_query(mut self, query: impl Into<Cow<'a, str>>) -> Self {
        self.query = query.into();
        self
    }

    #[must_use]
    pub(crate) fn with_accept(mut self, types: &'a str) -> Self {
        self.accept = Some(types);
        self
    }

    #[must_use]
    pub(crate) fn with_header(mut self, name: &'a str, value: impl Into<Cow<'a, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// For a host that is no Tinker service: only the headers such a host understands.
    #[must_use]
    #[cfg(feature = "text")]
    pub(crate) fn foreign(mut self) -> Self {
        self.foreign = true;
        self
    }

    #[must_use]
    pub(crate) fn with_idempotency_key(mut self, key: &'a str) -> Self {
        self.idempotency_key = Some(key);
        self
    }

    #[must_use]
    pub(crate) fn with_read_timeout(mut self, limit: impl Into<Timeout>) -> Self {
        self.read_timeout = limit.into();
        self
    }
}

/// A signed URL must not be shown, so whole URLs are named by their host only.
fn label_of(method: Method, path: &str) -> String {
    let shown = match Url::split(path) {
        Some(url) => url.address(),
        None => path
            .strip_prefix(crate::wire::route::API_PREFIX)
            .unwrap_or(path)
            .split('?')
            .next()
            .unwrap_or_default(),
    };
    format!("{} {shown}", method.as_str())
}

/// A body that can be sent more than once.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    Empty,
    Json(&'a [u8]),
    /// A protobuf message; `zstd` says that the bytes are already compressed.
    Proto {
        bytes: &'a [u8],
        zstd: bool,
    },
    /// Anything else.
    Raw {
        content_type: &'a str,
        source: Source<'a>,
    },
    /// Some bytes of a file, read as they are sent.
    #[cfg(feature = "text")]
    Slice {
        path: &'a Path,
        from: u64,
        length: u64,
    },
    /// `multipart/form-data`.
    Multipart(&'a [Part<'a>]),
}

/// Where a raw body or a part comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    /// Read as it is sent, never as a whole.
    File(&'a Path),
}

/// One part of a form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) file_name: Option<&'a str>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) source: Source<'a>,
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Json(bytes) => write!(f, "Json({} bytes)", bytes.len()),
            Self::Proto { bytes, zstd } => {
                write!(f, "Proto({} bytes, zstd: {zstd})", bytes.len())
            }
            Self::Raw {
                content_type,
                source,
            } => write!(f, "Raw({content_type}, {source:?})"),
            #[cfg(feature = "text")]
            Self::Slice { length, .. } => write!(f, "Slice({length} bytes)"),
            Self::Multipart(parts) => write!(f, "Multipart({} parts)", parts.len()),
        }
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::File(_) => f.write_str("a file"),
        }
    }
}

/// What goes into `X-API-Key`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Auth<'a> {
    None,
    /// The raw credential or the token exchanged for it.
    Key(&'a Secret),
}

/// Status and headers of an answer.
#[derive(Clone, Default)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(super) headers: HeaderMap,
    /// Whether the request had been taken, and was sent on to this answer.
    pub(super) taken: bool,
}

impl Head {
    /// A head for tests of what reads one.
    #[cfg(test)]
    pub(crate) fn of(status: u16, headers: &[(&str, &str)]) -> Self {
        let pair = |(name, value): &(&str, &str)| {
            let name: ureq::http::HeaderName = name.parse().expect("a header's name");
            (name, value.parse().expect("a header's value"))
        };
        Self {
            status,
            headers: headers.iter().map(pair).collect(),
            taken: false,
        }
    }

    /// A header's value by its name in any case; `None` if absent or not text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether the request counted. Where an answer is not to be had says nothing about a request
    /// that was taken before.
    pub(crate) fn effect(&self) -> Effect {
        match Meaning::of_status(self.status).effect() {
            Effect::None if self.taken => Effect::Unknown,
            effect => effect,
        }
    }

    /// Whether only the end of the connection ends the body.
    pub(super) fn is_unframed(&self) -> bool {
        !self.headers.contains_key("content-length")
            && !self.headers.contains_key("transfer-encoding")
    }

    /// The media type without its parameters: `application/x-protobuf`.
    pub(crate) fn content_type(&self) -> &str {
        let value = self.header("content-type").unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim()
    }
}

/// `Debug` shows no header: some carry signed URLs.
impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Head")
            .field("status", &self.status)
            .field("content_type", &self.content_type())
            .finish()
    }
}

/// A whole answer.
#[derive(Clone, Default)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub(crate) fn is_success(&self) -> bool {
        self.head.is_success()
    }

    pub(crate) fn content_type(&self) -> &str {
        self.head.content_type()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("head", &self.head)
            .field("body", &format_args!("{} bytes", self.body.len()))
            .finish()
    }
}
