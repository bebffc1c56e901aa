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
//! | `Timeout` of a wait, while the operation goes on | any | `Wait`, or `Resubmit` if idempotent |
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

mod context;
mod display;
mod meaning;
mod remedy;

use std::error::Error as StdError;
use std::time::Duration;

pub use self::context::{Context, Effect, ErrorCategory};
pub(crate) use self::meaning::Meaning;
pub use self::remedy::Remedy;

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
    /// The service accepted the request, ran it, and reports that it failed; or part of a call
    /// was refused here when the service already had the rest.
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
    /// A function of the caller's own failed or panicked: a loss, an observer, a source of data, an
    /// environment, a reward.
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

/// The context that every variant but one has, borrowed as the error is.
macro_rules! context_of {
    ($error:expr) => {
        match $error {
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
    };
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

    /// What that status means.
    pub(crate) fn meaning(&self) -> Option<Meaning> {
        self.status().map(Meaning::of_status)
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
        context_of!(self)
    }

    pub(crate) fn context_mut(&mut self) -> Option<&mut Context> {
        context_of!(self)
    }

    /// Whether the request behind this error took effect on the service.
    pub fn effect(&self) -> Effect {
        self.context()
            .map_or(Effect::None, |context| context.effect)
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

    /// The same in part of a call whose rest went through: a refused value is then a failure that
    /// has had an effect.
    #[must_use]
    pub(crate) fn of_a_part(self) -> Self {
        match self {
            Self::Invalid(_) => {
                let mut context = Context::caused(self.to_string(), self);
                context.category = Some(ErrorCategory::User);
                Self::Failed(context)
            }
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
}
