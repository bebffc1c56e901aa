//! The requests a server has seen, kept for tests.

use std::fmt;
use std::sync::Mutex;

use super::Request;
use crate::sync::lock;

/// A request as it arrived, before any fault was applied to it.
#[non_exhaustive]
#[derive(Clone)]
pub struct RecordedRequest {
    /// The method, such as `POST`.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The query without its question mark; empty if there is none.
    pub query: String,
    /// The headers in order, names in lower case. Values that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The body's bytes, still compressed if they came so.
    pub body: Vec<u8>,
}

/// Headers carry credentials and bodies are long, so neither is shown.
impl fmt::Debug for RecordedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("query", &self.query)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl RecordedRequest {
    /// The first header of this name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON, if it is.
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The last part of an `/api/v1/` path: `asample`, `sessions/abc/finish`.
    pub fn endpoint(&self) -> &str {
        self.path
            .strip_prefix("/api/v1/")
            .unwrap_or_else(|| self.path.trim_start_matches('/'))
    }
}

#[derive(Debug, Default)]
pub(in crate::local) struct Recorder {
    requests: Mutex<Vec<RecordedRequest>>,
}

impl Recorder {
    pub(super) fn record(&self, request: &Request) {
        let headers = request
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
            .collect();
        lock(&self.requests).push(RecordedRequest {
            method: request.method.to_string(),
            path: request.path.clone(),
            query: request.query.clone(),
            headers,
            body: request.body.to_vec(),
        });
    }

    pub(in crate::local) fn all(&self) -> Vec<RecordedRequest> {
        lock(&self.requests).clone()
    }

    pub(in crate::local) fn clear(&self) {
        lock(&self.requests).clear();
    }
}
