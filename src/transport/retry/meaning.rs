//! The one reading of an answer: what a status, or the lack of one, means to whoever asked.

use super::super::fault::{Fault, FaultKind};
use super::super::request::Response;
use crate::error::Effect;

/// What one attempt brought, as far as any loop has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Meaning {
    /// A success.
    Success,
    /// The service, or our own limit, ended the wait for an answer (408, a read that timed out).
    Pending,
    /// The service is there and asks for patience (429).
    Busy,
    /// Payment is due (402).
    Unpaid,
    /// Something else has that name or number (409).
    Conflict,
    /// The service does not know it (404), or no longer (410).
    Gone,
    /// The server does not offer this at all (405, 501).
    Unsupported,
    /// Credentials that the service (401, 403) or a proxy (407) does not accept.
    Forbidden,
    /// The request is wrong (400), or something on the way garbled it.
    BadRequest,
    /// The request was read and refused for good: any other answer that is no success.
    Refused,
    /// The service failed (5xx).
    Failing,
    /// Nothing left this machine, or a stranger on the way turned it back.
    Unreached,
    /// The connection broke, or what came back is not an answer.
    BrokenOff,
    /// Trying again changes nothing: a URL, a certificate, a file, a redirect.
    Hopeless,
    /// This client was stopped.
    Stopped,
}

impl Meaning {
    pub(crate) fn of(outcome: &Result<Response, Fault>) -> Self {
        match outcome {
            Ok(response) => Self::of_status(response.status()),
            Err(fault) => Self::of_fault(fault.kind),
        }
    }

    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            200..300 => Self::Success,
            400 => Self::BadRequest,
            401 | 403 | 407 => Self::Forbidden,
            402 => Self::Unpaid,
            404 | 410 => Self::Gone,
            405 | 501 => Self::Unsupported,
            408 => Self::Pending,
            409 => Self::Conflict,
            429 => Self::Busy,
            500.. => Self::Failing,
            _ => Self::Refused,
        }
    }

    pub(crate) fn of_fault(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Resolve
            | FaultKind::Refused
            | FaultKind::Connect
            | FaultKind::NoDescriptor
            | FaultKind::Rejected
            | FaultKind::Timeout { sent: false } => Self::Unreached,
            FaultKind::Timeout { sent: true } => Self::Pending,
            FaultKind::Dropped | FaultKind::Truncated | FaultKind::Malformed => Self::BrokenOff,
            FaultKind::ProxyAuth => Self::Forbidden,
            FaultKind::Tls | FaultKind::Redirect | FaultKind::Request | FaultKind::File => {
                Self::Hopeless
            }
            FaultKind::Stopped => Self::Stopped,
        }
    }

    /// Whether the same request may fare better later.
    pub(crate) fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Busy
                | Self::Conflict
                | Self::Failing
                | Self::Unreached
                | Self::BrokenOff
        )
    }

    /// Whether this attempt counted. A service that failed may have done the work first; one that
    /// refused has not.
    pub(crate) fn effect(self) -> Effect {
        match self {
            Self::Success => Effect::Accepted,
            Self::Pending
            | Self::Failing
            | Self::BrokenOff
            // A stopped client may have been waiting for the answer.
            | Self::Stopped => Effect::Unknown,
            Self::Busy
            | Self::Unpaid
            | Self::Conflict
            | Self::Gone
            | Self::Unsupported
            | Self::Forbidden
            | Self::BadRequest
            | Self::Refused
            | Self::Unreached
            | Self::Hopeless => Effect::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Meaning::*;
    use super::*;

    /// Every status and every fault: what it means, whether it passes, whether it counted.
    #[test]
    fn answers_and_faults_have_one_meaning() {
        const NONE: Effect = Effect::None;
        const UNKNOWN: Effect = Effect::Unknown;
        #[track_caller]
        fn check(found: Meaning, expected: Meaning, passing: bool, effect: Effect) {
            assert_eq!(found, expected);
            assert_eq!(found.is_passing(), passing, "{found:?}");
            assert_eq!(found.effect(), effect, "{found:?}");
        }
        let rows: [(&[u16], Meaning, bool, Effect); 12] = [
            (&[200, 201, 204], Success, false, Effect::Accepted),
            (
                &[301, 307, 304, 413, 415, 422, 425, 451],
                Refused,
                false,
                NONE,
            ),
            (&[400], BadRequest, false, NONE),
            (&[401, 403, 407], Forbidden, false, NONE),
            (&[402], Unpaid, false, NONE),
            (&[404, 410], Gone, false, NONE),
            (&[405, 501], Unsupported, false, NONE),
            (&[408], Pending, true, UNKNOWN),
            (&[409], Conflict, true, NONE),
            (&[429], Busy, true, NONE),
            (&[500, 502, 503, 504], Failing, true, UNKNOWN),
            (&[529, 599, 999], Failing, true, UNKNOWN),
        ];
        for (statuses, expected, passing, effect) in rows {
            for status in statuses {
                check(Meaning::of_status(*status), expected, passing, effect);
            }
        }
        use FaultKind as F;
        for (kind, expected, passing, effect) in [
            (F::Resolve, Unreached, true, NONE),
            (F::Refused, Unreached, true, NONE),
            (F::Connect, Unreached, true, NONE),
            (F::NoDescriptor, Unreached, true, NONE),
            (F::Rejected, Unreached, true, NONE),
            (F::Timeout { sent: false }, Unreached, true, NONE),
            (F::Timeout { sent: true }, Pending, true, UNKNOWN),
            (F::Dropped, BrokenOff, true, UNKNOWN),
            (F::Truncated, BrokenOff, true, UNKNOWN),
            (F::Malformed, BrokenOff, true, UNKNOWN),
            (F::ProxyAuth, Forbidden, false, NONE),
            (F::Tls, Hopeless, false, NONE),
            (F::Redirect, Hopeless, false, NONE),
            (F::Request, Hopeless, false, NONE),
            (F::File, Hopeless, false, NONE),
            (F::Stopped, Stopped, false, UNKNOWN),
        ] {
            check(Meaning::of_fault(kind), expected, passing, effect);
        }
    }
}
