//! What to do about an error, from its kind and its effect.

use std::fmt;

use super::{Context, Effect, Error, ErrorCategory, Meaning};

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
    /// It is under way, or the service has it: wait on, or take it up again by its request id
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
    /// Whether the same operation, submitted again as it is, does no harm and may succeed.
    pub fn is_retryable(&self) -> bool {
        self.remedy() == Remedy::Resubmit
    }

    /// What to do about it: see the [table](crate::error#what-to-do-about-an-error).
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
            Self::Status(context) => match self.meaning() {
                Some(Meaning::Forbidden | Meaning::Unpaid) => Remedy::FixSetup,
                Some(Meaning::Pending | Meaning::Busy | Meaning::Failing) => {
                    context.unless_counted(Remedy::Resubmit)
                }
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
}

impl Context {
    /// Whether a repeat could count twice.
    fn counted(&self) -> bool {
        !self.idempotent && self.effect != Effect::None
    }

    /// `remedy` where a repeat does no harm, else what the effect asks for.
    fn unless_counted(&self, remedy: Remedy) -> Remedy {
        match self.effect {
            _ if self.under_way && !self.idempotent => Remedy::Wait,
            _ if !self.counted() => remedy,
            Effect::Accepted => Remedy::Wait,
            _ => Remedy::RestoreFromCheckpoint,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let under_way = Context {
            under_way: true,
            ..Context::default()
        };
        check(Error::Timeout, &under_way, [Wait; 3], Resubmit);
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
}
