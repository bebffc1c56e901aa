//! The one error type, shaped by what a caller does next.
//!
//! # What to do about an error
//!
//! An error says what went wrong (its variant), and whether the request behind it took effect on
//! the service ([`Error::effect`]). What to do follows from both ([`Error::remedy`]): a training
//! operation that the service has, or may have, must not be submitted again, or a gradient counts
//! twice. An *idempotent* request ([`Context::idempotent`]: a sample, a forward pass, a listing) may
//! always be repeated. [`Error::is_retryable`] is true where the remedy is [`Remedy::Resubmit`].
//!
//! | error | effect | remedy |
//! |---|---|---|
//! | `Invalid`, `Callback` | none | `FixInput` |
//! | `Config`, `Credentials`, `Io`, `Closed` | any | `FixSetup` |
//! | `Status` 401, 402, 403, 407 | any | `FixSetup` |
//! | `Status` 408, 429, 5xx but 501; `Connection`; `Timeout` | none, or idempotent | `Resubmit` |
//! | the same | unknown | `RestoreFromCheckpoint` |
//! | the same | accepted | `Wait` |
//! | any other `Status` | none, or idempotent | `FixInput` |
//! | the same | unknown | `RestoreFromCheckpoint` |
//! | the same | accepted | `Wait` |
//! | `Failed` by the user's fault | none, or idempotent | `FixInput` |
//! | `Failed` otherwise | none, or idempotent | `Resubmit` |
//! | `Failed` in part of a call whose rest went through | unknown, accepted | `RestoreFromCheckpoint` |
//! | `Lost` | none, or idempotent | `Resubmit` |
//! | the same | unknown, accepted | `RestoreFromCheckpoint` |
//! | `Broken` | any | `RestoreFromCheckpoint` |
//! | `NotSent` | none | that of the failure it names as its source |
//! | `Cancelled` | any | `Nothing` |
//! | `Reply`, `Internal` | any | `Report` |

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
    /// The service no longer knows what it had accepted: a request, or the session.
    Lost(Box<Context>),
    /// A training client that accepts nothing more: its place in the model's sequence is unknown,
    /// or the service has forgotten the model.
    Broken(Box<Context>),
    /// The client was closed.
    Closed(Box<Context>),
    /// The operation was cancelled by whoever asked for it.
    Cancelled(Box<Context>),
    /// The operation was never sent, because one it depends on failed: its source.
    NotSent(Box<Context>),
    /// A file on this machine could not be read or written.
    Io(Box<Context>),
    /// A function of the caller's own failed or panicked: a loss, an observer, a source of data.
    Callback(Box<Context>),
    /// A bug or an exhausted resource on this side, such as a thread that could not be started.
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
    /// Whether the request took effect on the service.
    pub effect: Effect,
    /// Whether the same request may be made again without harm, whatever its effect: a sample, a
    /// forward pass, a question.
    pub idempotent: bool,
    /// The cause below this layer.
    pub source: Option<Arc<dyn StdError + Send + Sync>>,
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

/// What to do about an error.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// The request is wrong: change the data or the arguments.
    FixInput,
    /// The set-up is wrong: change the credential, the URL, the account or the disk.
    FixSetup,
    /// A repeat does no harm: submit the same operation again.
    Resubmit,
    /// The service has it: wait on, or take it up again by its request id
    /// ([`TrainingClient::attach`](crate::TrainingClient::attach)). Submitting it again would
    /// make it count twice.
    Wait,
    /// The model's state is uncertain: create a new client from the last checkpoint.
    RestoreFromCheckpoint,
    /// It is what was asked for.
    Nothing,
    /// Neither side can mend it: report it with the request id.
    Report,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FixInput => "fix the input",
            Self::FixSetup => "fix the credentials or the set-up",
            Self::Resubmit => "submit it again",
            Self::Wait => "wait for it, or take it up again by its request id",
            Self::RestoreFromCheckpoint => "restore from a checkpoint",
            Self::Nothing => "nothing",
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
            | Self::Cancelled(context)
            | Self::NotSent(context)
            | Self::Io(context)
            | Self::Callback(context)
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
            | Self::Cancelled(context)
            | Self::NotSent(context)
            | Self::Io(context)
            | Self::Callback(context)
            | Self::Internal(context) => Some(context),
        }
    }

    /// Whether the request behind this error took effect on the service.
    pub fn effect(&self) -> Effect {
        self.context()
            .map_or(Effect::None, |context| context.effect)
    }

    /// Whether the same operation, submitted again as it is, does no harm and may succeed.
    pub fn is_retryable(&self) -> bool {
        self.remedy() == Remedy::Resubmit
    }

    /// Whether the fault lies in what the caller sent: a refused value, a 4xx other than 408,
    /// or a failure the service puts down to the user.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::Invalid(_) | Self::Callback(_) => true,
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

    /// What to do about it: see the [table](self#what-to-do-about-an-error).
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Invalid(_) | Self::Callback(_) => Remedy::FixInput,
            Self::Config(_) | Self::Credentials(_) | Self::Io(_) | Self::Closed(_) => {
                Remedy::FixSetup
            }
            Self::Broken(_) => Remedy::RestoreFromCheckpoint,
            Self::Cancelled(_) => Remedy::Nothing,
            Self::Reply(_) | Self::Internal(_) => Remedy::Report,
            Self::NotSent(context) => context.cause().map_or(Remedy::Resubmit, Self::remedy),
            Self::Status(context) => match context.status {
                Some(401..=403 | 407) => Remedy::FixSetup,
                Some(408 | 429 | 500 | 502..) => context.unless_counted(Remedy::Resubmit),
                _ => context.unless_counted(Remedy::FixInput),
            },
            Self::Connection(context) | Self::Timeout(context) => {
                context.unless_counted(Remedy::Resubmit)
            }
            Self::Failed(context) | Self::Lost(context) if context.counted() => {
                Remedy::RestoreFromCheckpoint
            }
            Self::Failed(context) if context.category == Some(ErrorCategory::User) => {
                Remedy::FixInput
            }
            Self::Failed(_) | Self::Lost(_) => Remedy::Resubmit,
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

    /// The same of a reply: what the service sent is never the caller's argument.
    #[must_use]
    pub(crate) fn into_reply(self) -> Self {
        match self {
            Self::Invalid(_) => Self::Reply(Context::new(self.to_string())),
            other => other,
        }
    }

    /// Says whether the request took effect.
    #[must_use]
    pub(crate) fn with_effect(mut self, effect: Effect) -> Self {
        if let Some(context) = self.context_mut() {
            context.effect = effect;
        }
        self
    }

    /// Says that the same request may be made again without harm.
    #[must_use]
    pub(crate) fn for_idempotent(mut self) -> Self {
        if let Some(context) = self.context_mut() {
            context.idempotent = true;
        }
        self
    }
}

impl Context {
    /// Whether a repeat could count twice.
    fn counted(&self) -> bool {
        !self.idempotent && self.effect != Effect::None
    }

    /// `remedy` where a repeat does no harm, else what the effect asks for.
    fn unless_counted(&self, remedy: Remedy) -> Remedy {
        match self.effect {
            _ if !self.counted() => remedy,
            Effect::Accepted => Remedy::Wait,
            _ => Remedy::RestoreFromCheckpoint,
        }
    }

    /// The source, where it is an error of this crate.
    fn cause(&self) -> Option<&Error> {
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
            Self::Lost(_) => "lost by the service",
            Self::Broken(_) => "training client is broken, restore from a checkpoint",
            Self::Closed(_) => "client is closed",
            Self::Cancelled(_) => "cancelled",
            Self::NotSent(_) => "not sent",
            Self::Io(_) => "file error",
            Self::Callback(_) => "your function failed",
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
        match context.effect {
            Effect::None => {}
            Effect::Unknown => details.push("may have taken effect".to_owned()),
            Effect::Accepted => details.push("accepted by the service".to_owned()),
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
            Self::Cancelled(_) => "Cancelled",
            Self::NotSent(_) => "NotSent",
            Self::Io(_) => "Io",
            Self::Callback(_) => "Callback",
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
        if self.effect != Effect::None {
            out.field("effect", &self.effect);
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

    /// The table of the module's documentation, row by row.
    #[test]
    fn remedies_follow_kind_and_effect() {
        use Effect::{Accepted, None as Nothing, Unknown};
        use Remedy::{
            FixInput, FixSetup, Report, RestoreFromCheckpoint as Restore, Resubmit, Wait,
        };
        type Kind = fn(Box<Context>) -> Error;
        /// With no effect, an unknown one, and accepted; then the same of an idempotent request.
        #[track_caller]
        fn check(kind: Kind, context: &Context, expected: [Remedy; 3], idempotent: Remedy) {
            for (effect, expected) in [Nothing, Unknown, Accepted].into_iter().zip(expected) {
                for (is_idempotent, expected) in [(false, expected), (true, idempotent)] {
                    let mut context = context.clone();
                    (context.effect, context.idempotent) = (effect, is_idempotent);
                    let error = kind(Box::new(context));
                    assert_eq!(error.remedy(), expected, "{error:?}");
                    assert_eq!(error.is_retryable(), expected == Resubmit, "{error:?}");
                    assert_eq!(error.effect(), effect);
                }
            }
        }
        let plain = Context::default();
        let status = |status| Context {
            status: Some(status),
            ..Context::default()
        };
        let blame = |category| Context {
            category: Some(category),
            ..Context::default()
        };
        assert_eq!(Error::invalid("x", "y").remedy(), FixInput);
        check(Error::Callback, &plain, [FixInput; 3], FixInput);
        for kind in [Error::Config, Error::Credentials, Error::Io, Error::Closed] {
            check(kind, &plain, [FixSetup; 3], FixSetup);
        }
        for code in [401, 402, 403, 407] {
            check(Error::Status, &status(code), [FixSetup; 3], FixSetup);
        }
        let passing = [Resubmit, Restore, Wait];
        for code in [408, 429, 500, 502, 503, 504, 529] {
            check(Error::Status, &status(code), passing, Resubmit);
        }
        check(Error::Connection, &plain, passing, Resubmit);
        check(Error::Timeout, &plain, passing, Resubmit);
        for code in [400, 404, 405, 409, 410, 413, 415, 422, 425, 501] {
            let expected = [FixInput, Restore, Wait];
            check(Error::Status, &status(code), expected, FixInput);
        }
        let user = blame(ErrorCategory::User);
        check(Error::Failed, &user, [FixInput, Restore, Restore], FixInput);
        for category in [ErrorCategory::Server, ErrorCategory::Unknown] {
            let expected = [Resubmit, Restore, Restore];
            check(Error::Failed, &blame(category), expected, Resubmit);
        }
        check(Error::Lost, &plain, [Resubmit, Restore, Restore], Resubmit);
        check(Error::Broken, &plain, [Restore; 3], Restore);
        check(
            Error::Cancelled,
            &plain,
            [Remedy::Nothing; 3],
            Remedy::Nothing,
        );
        check(Error::Reply, &plain, [Report; 3], Report);
        check(Error::Internal, &plain, [Report; 3], Report);
        let first_half = Error::invalid("data", "is empty");
        let not_sent = Error::NotSent(Context::caused("", first_half));
        assert_eq!(not_sent.remedy(), FixInput);
    }

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
