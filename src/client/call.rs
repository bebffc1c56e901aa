//! The low-level call, for endpoints that have no method yet.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::service::ServiceClient;
use crate::config::Timeout;
use crate::error::{Error, Result};
use crate::runtime::calls::{Body, Effort, Part, Request, Response, Source};
use crate::wire::query;
use crate::wire::reply::decode_json;
use crate::wire::request::to_json;
use crate::wire::route::{API_PREFIX, Method, Pool};

/// A request to an endpoint that has no method yet, with the credentials, retries and errors of
/// every other.
///
/// ```no_run
/// # fn main() -> tinker::Result<()> {
/// # let service = tinker::ServiceClient::from_env()?;
/// use tinker::client::RawCall;
///
/// let runs: serde_json::Value = service.call(&RawCall::get("training_runs").with_query("limit", "5"))?;
/// # Ok(()) }
/// ```
#[doc(alias = "RequestOptions")]
#[derive(Clone)]
pub struct RawCall {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: CallBody,
    timeout: Timeout,
    retries: bool,
    prefix: &'static str,
}

/// `Debug` shows no header's or parameter's value: some are secrets.
impl fmt::Debug for RawCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| -> Vec<String> {
            pairs.iter().map(|(name, _)| name.clone()).collect()
        };
        f.debug_struct("RawCall")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("query", &names(&self.query))
            .field("headers", &names(&self.headers))
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}

/// What a [`RawCall`] sends.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum CallBody {
    /// Nothing.
    #[default]
    Empty,
    /// JSON, already written.
    Json(Vec<u8>),
    /// Bytes of any type.
    Raw {
        /// Their media type.
        content_type: String,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A file, read as it is sent.
    File {
        /// Its media type.
        content_type: String,
        /// Where it is.
        path: PathBuf,
    },
    /// A form with files, as `multipart/form-data`: names and where the files are.
    Form(Vec<(String, PathBuf)>),
}

impl fmt::Debug for CallBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Json(bytes) => write!(f, "Json({} bytes)", bytes.len()),
            Self::Raw { bytes, .. } => write!(f, "Raw({} bytes)", bytes.len()),
            Self::File { path, .. } => write!(f, "File({})", path.display()),
            Self::Form(parts) => write!(f, "Form({} parts)", parts.len()),
        }
    }
}

/// A successful answer as it came.
#[derive(Debug, Clone)]
pub struct RawAnswer(Response);

impl RawAnswer {
    /// The status: 2xx.
    pub fn status(&self) -> u16 {
        self.0.status()
    }

    /// A header's value by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.header(name)
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.0.body
    }

    /// The body as a value.
    ///
    /// # Errors
    ///
    /// [`Error::Reply`] if it is not JSON of that shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        decode_json(&self.0.body)
    }
}

impl RawCall {
    /// A GET of a path below `/api/v1/`.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::Get, path.into())
    }

    /// A POST to a path below `/api/v1/`.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::Post, path.into())
    }

    /// A PUT to a path below `/api/v1/`.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::Put, path.into())
    }

    /// A DELETE of a path below `/api/v1/`.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::Delete, path.into())
    }

    fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            headers: Vec::new(),
            body: CallBody::Empty,
            timeout: Timeout::Default,
            retries: true,
            prefix: API_PREFIX,
        }
    }

    /// Takes the path from the server's root instead of from `/api/v1/`: some servers offer
    /// other protocols beside Tinker's, with the same credentials.
    #[must_use]
    pub fn at_root(mut self) -> Self {
        self.prefix = "/";
        self
    }

    /// Adds a parameter to the query.
    #[must_use]
    pub fn with_query(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends a value as JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a value that JSON cannot hold.
    pub fn with_json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self> {
        self.body = CallBody::Json(to_json(value)?);
        Ok(self)
    }

    /// Sends anything else.
    #[must_use]
    pub fn with_body(mut self, body: CallBody) -> Self {
        self.body = body;
        self
    }

    /// How long the answer may take. Default: the client's.
    #[must_use]
    pub fn with_timeout(mut self, limit: impl Into<Timeout>) -> Self {
        self.timeout = limit.into();
        self
    }

    /// Sends it once, whatever happens.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retries = false;
        self
    }
}

impl ServiceClient {
    /// Makes a call and reads its JSON answer.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] for an answer of 400 and above, and whatever else befalls requests.
    pub fn call<T: DeserializeOwned>(&self, call: &RawCall) -> Result<T> {
        self.call_raw(call)?.json()
    }

    /// Makes a call and returns its answer as it came.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_raw(&self, call: &RawCall) -> Result<RawAnswer> {
        let parts = call.parts();
        let request = call.request(&parts)?;
        let effort = match call.retries {
            true => Effort {
                retries: 10,
                outer: true,
                ..Effort::ONCE
            },
            false => Effort::ONCE,
        };
        // Nobody but the caller knows what another POST would do.
        let effort = match call.method {
            Method::Get => effort,
            _ => effort.counting(),
        };
        Ok(RawAnswer(self.link()?.call_raw(request, effort)?))
    }
}

impl RawCall {
    /// The files of a form.
    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        match &self.body {
            CallBody::Form(parts) => parts.iter().map(part).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn request<'a>(&'a self, parts: &'a [Part<'a>]) -> Result<Request<'a>> {
        let path = self.path.trim_start_matches('/');
        if path.is_empty() || path.contains("://") || path.contains(['?', '#']) {
            let problem = "must be a path below /api/v1/, without a query";
            return Err(Error::invalid("path", problem));
        }
        let query: Vec<_> = self
            .query
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().into()))
            .collect();
        let mut request = Request::new(self.method, format!("{}{path}", self.prefix), Pool::Rest)
            .with_query(query::encode(&query))
            .with_body(self.body.as_sent(parts));
        request.read_timeout = self.timeout;
        for (name, value) in &self.headers {
            request = request.with_header(name, value.as_str());
        }
        Ok(request)
    }
}

impl CallBody {
    fn as_sent<'a>(&'a self, parts: &'a [Part<'a>]) -> Body<'a> {
        match self {
            Self::Empty => Body::Empty,
            Self::Json(bytes) => Body::Json(bytes),
            Self::Raw {
                content_type,
                bytes,
            } => Body::Raw {
                content_type,
                source: Source::Bytes(bytes),
            },
            Self::File { content_type, path } => Body::Raw {
                content_type,
                source: Source::File(path),
            },
            Self::Form(_) => Body::Multipart(parts),
        }
    }
}

fn part<'a>((name, path): &'a (String, PathBuf)) -> Part<'a> {
    Part {
        name,
        file_name: path.file_name().and_then(|name| name.to_str()),
        content_type: None,
        source: Source::File(path),
    }
}
