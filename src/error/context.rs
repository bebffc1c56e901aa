//! What is known about the request behind an error.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Error;

/// What is known about the request behind an error.
#[non_exhaustive]
#[derive(Clone, Default)]
pub struct Context {
    /// What happened, in one clause.
    pub message: String,
    /// The request it happened to, such as `POST optim_step`.
    pub request: Option<String>,
    /// The id the service gave the request.
    pub request_id: Option<String>,
    /// The HTTP status, if an answer came.
    pub status: Option<u16>,
    /// Who is at fault, if the service said so.
    pub category: Option<ErrorCategory>,
    /// The answer's body: parsed JSON, or its text as a JSON string.
    pub body: Option<serde_json::Value>,
    /// How long the service asked to wait.
    pub retry_after: Option<Duration>,
    /// Whether the request took effect on the service.
    pub effect: Effect,
    /// Whether the same request may be made again without harm, whatever its effect: a sample, a
    /// forward pass, a question.
    pub idempotent: bool,
    /// Whether the operation goes on: only the wait for it ended, and its handle can be joined
    /// again.
    pub under_way: bool,
    /// The cause below this layer.
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Context {
    /// The source, where it is an error of this crate.
    pub(super) fn cause(&self) -> Option<&Error> {
        let source: &(dyn StdError + 'static) = &**self.source.as_ref()?;
        source.downcast_ref()
    }

    /// A context with a message only; set the other fields with struct update or directly.
    pub(crate) fn new(message: impl Into<String>) -> Box<Self> {
        Box::new(Self {
            message: message.into(),
            ..Self::default()
        })
    }

    /// A context with a message and its cause.
    pub(crate) fn caused(
        message: impl Into<String>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Box<Self> {
        Box::new(Self {
            message: message.into(),
            source: Some(Arc::new(source)),
            ..Self::default()
        })
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Context");
        out.field("message", &self.message);
        let mut text = |name, value: &Option<String>| {
            if let Some(value) = value {
                out.field(name, value);
            }
        };
        text("request", &self.request);
        text("request_id", &self.request_id);
        if let Some(status) = self.status {
            out.field("status", &status);
        }
        if let Some(category) = self.category {
            out.field("category", &category);
        }
        if let Some(body) = &self.body {
            out.field("body", &format_args!("{body}"));
        }
        if let Some(wait) = self.retry_after {
            out.field("retry_after", &wait);
        }
        if self.effect != Effect::None {
            out.field("effect", &self.effect);
        }
        if let Some(source) = &self.source {
            out.field("source", &format_args!("{source}"));
        }
        out.finish()
    }
}

/// Whether a request that failed took effect on the service.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Effect {
    /// It never left, was refused before it counted, or ran and changed nothing.
    #[default]
    None,
    /// It was sent, and nothing says whether it counted.
    Unknown,
    /// The service has it: it ran, runs, or will run.
    Accepted,
}

impl Effect {
    /// What is known of two attempts at one request, or of two parts of one call.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Accepted, _) | (_, Self::Accepted) => Self::Accepted,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::None, Self::None) => Self::None,
        }
    }
}

/// Who the service holds responsible for a failed request.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ErrorCategory {
    /// The service did not say, or used a word this version does not know.
    #[default]
    Unknown,
    /// The service failed; the same request may succeed later.
    Server,
    /// The request itself is wrong.
    User,
}

impl ErrorCategory {
    /// Reads the wire's spelling in any case; anything unknown is [`Unknown`](Self::Unknown).
    pub fn parse(text: &str) -> Self {
        if text.eq_ignore_ascii_case("server") {
            Self::Server
        } else if text.eq_ignore_ascii_case("user") {
            Self::User
        } else {
            Self::Unknown
        }
    }

    /// The wire's spelling: lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Server => "server",
            Self::User => "user",
        }
    }
}

impl fmt::Display for ErrorCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_of_attempts_add_up() {
        use Effect::{Accepted, None, Unknown};
        assert_eq!(None.and(None), None);
        assert_eq!(None.and(Unknown), Unknown);
        assert_eq!(Accepted.and(Unknown), Accepted);
        assert_eq!(Unknown.and(Accepted), Accepted);
    }

    #[test]
    fn category_accepts_any_case() {
        for (text, expected) in [
            ("user", ErrorCategory::User),
            ("User", ErrorCategory::User),
            ("SERVER", ErrorCategory::Server),
            ("other", ErrorCategory::Unknown),
        ] {
            assert_eq!(ErrorCategory::parse(text), expected);
        }
    }
}
