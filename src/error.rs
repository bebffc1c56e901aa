//! The one error type, shaped by what a caller does next.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, one variant per thing a caller might do about it.
///
/// Cloning is cheap enough to wake many waiters with one failure. Prefer the predicates
/// ([`is_retryable`](Error::is_retryable), [`status`](Error::status), [`remedy`](Error::remedy))
/// to matching: new variants may be added.
///
/// ```
/// use tinker::{Error, error::Remedy};
///
/// let error = Error::invalid("temperature", "must be finite and at least 0, got -1");
/// assert_eq!(error.to_string(), "invalid temperature: must be finite and at least 0, got -1");
/// assert_eq!(error.remedy(), Remedy::FixInput);
/// assert!(error.is_user_error() && !error.is_retryable());
/// ```
#[doc(alias("TinkerError", "APIError"))]
#[non_exhaustive]
#[derive(Clone)]
pub enum Error {
    /// A value was refused before anything was sent.
    Invalid(Box<Invalid>),
    /// The configuration cannot be used: a URL, a proxy, a certificate, a file.
    Config(Box<Context>),
    /// No credential, or one that cannot be used.
    Credentials(Box<Context>),
    /// The service answered with an error status.
    #[doc(alias("APIStatusError", "BadRequestError", "AuthenticationError"))]
    #[doc(alias("BillingError", "PermissionDeniedError", "NotFoundError"))]
    #[doc(alias("ConflictError", "UnprocessableEntityError"))]
    #[doc(alias("RateLimitError", "InternalServerError"))]
    Status(Box<Context>),
    /// No usable answer: connecting, sending or receiving failed.
    #[doc(alias = "APIConnectionError")]
    Connection(Box<Context>),
    /// A deadline passed. The operation may still complete on the service.
    #[doc(alias = "APITimeoutError")]
    Timeout(Box<Context>),
    /// A success whose body does not have the expected shape.
    #[doc(alias = "APIResponseValidationError")]
    Reply(Box<Context>),
    /// The service accepted the request, ran it, and reports that it failed.
    #[doc(alias = "RequestFailedError")]
    Failed(Box<Context>),
    /// The service no longer knows the request it had accepted.
    Lost(Box<Context>),
    /// A training client whose place in the model's sequence is unknown; it accepts nothing more.
    Broken(Box<Context>),
    /// The client was closed.
    Closed(Box<Context>),
    /// A bug or an exhausted resource on this side: a panic in a callback, a thread that could
    /// not be started, a file that could not be written.
    Internal(Box<Context>),
}

/// Which value was refused, and what is allowed instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    field: String,
    problem: String,
}

impl Invalid {
    /// The field or argument that was refused, with its path: `data[3].loss_fn_inputs.weights`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it and what is allowed.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

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
    /// The cause below this layer.
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
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

/// What to do about an error.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The request is wrong: change the data or the arguments.
    FixInput,
    /// The set-up is wrong: change the credential, the URL or the account.
    FixSetup,
    /// Nothing was lost: submit the same operation again.
    Resubmit,
    /// The model's state is uncertain: create a new client from the last checkpoint.
    RestoreFromCheckpoint,
    /// Neither side can mend it: report it with the request id.
    Report,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FixInput => "fix the input",
            Self::FixSetup => "fix the credentials or configuration",
            Self::Resubmit => "submit it again",
            Self::RestoreFromCheckpoint => "restore from a checkpoint",
            Self::Report => "report it with the request id",
        })
    }
}

impl Error {
    /// A value refused before sending: names the field and says what is allowed.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid(Box::new(Invalid {
            field: field.into(),
            problem: problem.into(),
        }))
    }

    /// Puts a path before the field of an [`Invalid`](Self::Invalid) error; others pass through.
    ///
    /// ```
    /// let inner = tinker::Error::invalid("shape", "does not match 3 values");
    /// assert_eq!(inner.within("data[2].weights").to_string(),
    ///            "invalid data[2].weights.shape: does not match 3 values");
    /// ```
    #[must_use]
    pub fn within(self, path: &str) -> Self {
        match self {
            Self::Invalid(mut invalid) => {
                invalid.field = format!("{path}.{}", invalid.field);
                Self::Invalid(invalid)
            }
            other => other,
        }
    }

    /// The HTTP status of the answer behind this error.
    pub fn status(&self) -> Option<u16> {
        self.context()?.status
    }

    /// The service's id for the request behind this error.
    pub fn request_id(&self) -> Option<&str> {
        self.context()?.request_id.as_deref()
    }

    /// Who the service holds responsible, if it said.
    pub fn category(&self) -> Option<ErrorCategory> {
        self.context()?.category
    }

    /// The body of the answer: parsed JSON, or its text as a JSON string.
    pub fn body(&self) -> Option<&serde_json::Value> {
        self.context()?.body.as_ref()
    }

    /// How long the service asked to wait before trying again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.context()?.retry_after
    }

    /// What is known about the request; `None` for [`Invalid`](Self::Invalid).
    pub fn context(&self) -> Option<&Context> {
        match self {
            Self::Invalid(_) => None,
            Self::Config(context)
            | Self::Credentials(context)
            | Self::Status(context)
            | Self::Connection(context)
            | Self::Timeout(context)
            | Self::Reply(context)
            | Self::Failed(context)
            | Self::Lost(context)
            | Self::Broken(context)
            | Self::Closed(context)
            | Self::Internal(context) => Some(context),
        }
    }

    pub(crate) fn context_mut(&mut self) -> Option<&mut Context> {
        match self {
            Self::Invalid(_) => None,
            Self::Config(context)
            | Self::Credentials(context)
            | Self::Status(context)
            | Self::Connection(context)
            | Self::Timeout(context)
            | Self::Reply(context)
            | Self::Failed(context)
            | Self::Lost(context)
            | Self::Broken(context)
            | Self::Closed(context)
            | Self::Internal(context) => Some(context),
        }
    }

    /// Whether the same operation, submitted again as it is, may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection(_) | Self::Timeout(_) | Self::Lost(_) => true,
            Self::Status(context) => context.status.is_some_and(is_retryable_status),
            Self::Failed(context) => context.category != Some(ErrorCategory::User),
            _ => false,
        }
    }

    /// Whether the fault lies in what the caller sent: a refused value, a 4xx other than 408,
    /// or a failure the service puts down to the user.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Failed(context) => context.category == Some(ErrorCategory::User),
            _ => self
                .status()
                .is_some_and(|status| (400..500).contains(&status) && status != 408),
        }
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout(_))
    }

    /// What to do about it.
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Invalid(_) => Remedy::FixInput,
            Self::Config(_) | Self::Credentials(_) | Self::Closed(_) => Remedy::FixSetup,
            Self::Broken(_) => Remedy::RestoreFromCheckpoint,
            Self::Status(context) => match context.status {
                Some(401..=403) => Remedy::FixSetup,
                Some(status) if is_retryable_status(status) => Remedy::Resubmit,
                _ => Remedy::FixInput,
            },
            Self::Connection(_) | Self::Timeout(_) | Self::Lost(_) => Remedy::Resubmit,
            Self::Failed(context) => match context.category {
                Some(ErrorCategory::User) => Remedy::FixInput,
                _ => Remedy::Resubmit,
            },
            Self::Reply(_) | Self::Internal(_) => Remedy::Report,
        }
    }

    /// Names the request, unless an inner layer already did.
    #[must_use]
    pub(crate) fn for_request(mut self, request: &str) -> Self {
        if let Some(context) = self.context_mut() {
            context.request.get_or_insert_with(|| request.to_owned());
        }
        self
    }

    /// Adds the service's request id, unless an inner layer already did.
    #[must_use]
    pub(crate) fn with_request_id(mut self, id: &str) -> Self {
        if let Some(context) = self.context_mut() {
            context.request_id.get_or_insert_with(|| id.to_owned());
        }
        self
    }
}

/// The statuses every layer takes as passing: 408, 409, 429 and 5xx.
pub(crate) fn is_retryable_status(status: u16) -> bool {
    matches!(status, 408 | 409 | 429) || status >= 500
}

impl Context {
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match self {
            Self::Invalid(invalid) => {
                return write!(f, "invalid {}: {}", invalid.field, invalid.problem);
            }
            Self::Config(_) => "configuration",
            Self::Credentials(_) => "credentials",
            Self::Status(_) => "service answered with an error",
            Self::Connection(_) => "no usable answer",
            Self::Timeout(_) => "deadline passed",
            Self::Reply(_) => "unexpected answer",
            Self::Failed(_) => "request failed",
            Self::Lost(_) => "request lost by the service",
            Self::Broken(_) => "training client is broken, restore from a checkpoint",
            Self::Closed(_) => "client is closed",
            Self::Internal(_) => "internal error",
        };
        let context = self.context().expect("every other variant has a context");
        f.write_str(label)?;
        if !context.message.is_empty() {
            write!(f, ": {}", context.message)?;
        }
        let mut details = Vec::new();
        if let Some(status) = context.status {
            details.push(format!("status {status}"));
        }
        if let Some(request) = &context.request {
            details.push(request.clone());
        }
        if let Some(id) = &context.request_id {
            details.push(format!("request {id}"));
        }
        if let Some(category) = context.category {
            details.push(format!("category {category}"));
        }
        if !details.is_empty() {
            write!(f, " ({})", details.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Invalid(invalid) => return fmt::Debug::fmt(invalid, f),
            Self::Config(_) => "Config",
            Self::Credentials(_) => "Credentials",
            Self::Status(_) => "Status",
            Self::Connection(_) => "Connection",
            Self::Timeout(_) => "Timeout",
            Self::Reply(_) => "Reply",
            Self::Failed(_) => "Failed",
            Self::Lost(_) => "Lost",
            Self::Broken(_) => "Broken",
            Self::Closed(_) => "Closed",
            Self::Internal(_) => "Internal",
        };
        f.debug_tuple(name).field(&self.context()).finish()
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
        if let Some(source) = &self.source {
            out.field("source", &format_args!("{source}"));
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.context()?.source.as_ref()?;
        Some(&**source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_small_cloneable_and_shareable() {
        fn check<T: Clone + Send + Sync + 'static>() {}
        check::<Error>();
        assert!(size_of::<Error>() <= 16);
    }

    #[test]
    fn display_names_request_status_and_id() {
        let error = Error::Status(Box::new(Context {
            message: "no such model".into(),
            request: Some("POST get_info".into()),
            request_id: Some("r7".into()),
            status: Some(404),
            ..Context::default()
        }));
        assert_eq!(
            error.to_string(),
            "service answered with an error: no such model (status 404, POST get_info, request r7)"
        );
    }

    #[test]
    fn remedies_follow_status_and_category() {
        #[track_caller]
        fn check(error: Error, expected: Remedy, retryable: bool) {
            assert_eq!(error.remedy(), expected, "{error}");
            assert_eq!(error.is_retryable(), retryable, "{error}");
        }
        let status = |status| {
            Error::Status(Box::new(Context {
                status: Some(status),
                ..Context::default()
            }))
        };
        let failed = |category| {
            Error::Failed(Box::new(Context {
                category: Some(category),
                ..Context::default()
            }))
        };
        check(status(400), Remedy::FixInput, false);
        check(status(401), Remedy::FixSetup, false);
        check(status(402), Remedy::FixSetup, false);
        check(status(409), Remedy::Resubmit, true);
        check(status(422), Remedy::FixInput, false);
        check(status(429), Remedy::Resubmit, true);
        check(status(503), Remedy::Resubmit, true);
        check(failed(ErrorCategory::User), Remedy::FixInput, false);
        check(failed(ErrorCategory::Server), Remedy::Resubmit, true);
        check(Error::Lost(Context::new("gone")), Remedy::Resubmit, true);
        check(
            Error::Broken(Context::new("seq 4 unknown")),
            Remedy::RestoreFromCheckpoint,
            false,
        );
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
