//! Refusals in the shapes that OpenAI's and Anthropic's clients read.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::local::http::{Refusal, Reply};

/// A request that is turned down, and which of its fields is to blame.
#[derive(Debug)]
pub(in crate::local) struct Fault {
    pub(super) status: StatusCode,
    pub(super) message: String,
    param: Option<String>,
    code: Option<&'static str>,
}

impl Fault {
    /// A field that is wrong.
    pub(super) fn bad(param: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: format!("{param}: {problem}"),
            param: Some(param.to_owned()),
            code: Some("invalid_value"),
        }
    }

    /// A field, or a value of one, that this server cannot honour and will not ignore.
    pub(super) fn unsupported(param: &str, problem: impl std::fmt::Display) -> Self {
        Self {
            code: Some("unsupported_parameter"),
            ..Self::bad(param, problem)
        }
    }

    fn openai(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"message": self.message, "type": kind, "param": self.param, "code": self.code})
    }

    fn anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": kind, "message": self.message})
    }

    /// The body of the answer, in the shape of the endpoint of this path.
    pub(super) fn body(&self, path: &str) -> Value {
        match is_anthropic(path) {
            true => json!({"type": "error", "error": self.anthropic()}),
            false => json!({"error": self.openai()}),
        }
    }

    /// The answer, likewise.
    pub(in crate::local) fn reply(&self, path: &str) -> Reply {
        let reply = Reply::json(&self.body(path)).with_status(self.status);
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => reply.with_header(hyper::header::RETRY_AFTER, "1"),
            _ => reply,
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        // What OpenAI calls a bad request, others call unprocessable.
        let status = match refusal.status {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            other => other,
        };
        Self {
            status,
            message: refusal.detail,
            param: None,
            code: (status == StatusCode::NOT_FOUND).then_some("not_found"),
        }
    }
}

impl From<crate::Error> for Fault {
    fn from(error: crate::Error) -> Self {
        match &error {
            crate::Error::Invalid(invalid) => Self::bad(invalid.field(), invalid.problem()),
            _ => Refusal::from(error).into(),
        }
    }
}

/// Whether a path belongs to clients that expect these shapes.
pub(in crate::local) fn is_ours(path: &str) -> bool {
    super::PREFIXES
        .iter()
        .any(|prefix| path.starts_with(prefix))
}

fn is_anthropic(path: &str) -> bool {
    path.trim_end_matches('/').ends_with("/messages")
}
