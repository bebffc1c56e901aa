//! The one reading of an answer: what a status means to whoever asked.
//!
//! Statuses are judged here and nowhere else; loops, machines and remedies match meanings. Two kinds
//! of numbers stay where they are used, because they describe a body rather than an outcome: those
//! of ranges (206, 416) and of redirects.

use super::Effect;

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
    /// The service does not know it (404): it never did, has forgotten it, or has no such endpoint.
    Missing,
    /// The service knows that it is no more (410).
    Gone,
    /// The server does not offer this at all (405, 501).
    Unsupported,
    /// Credentials that the service (401, 403) or a proxy (407) does not accept.
    Forbidden,
    /// The request is wrong (400), or something on the way garbled it.
    BadRequest,
    /// The server could make nothing of the body (415, 422).
    Misread,
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
    /// The service took the request, and trying again finds its answer no better.
    Misled,
    /// This client was stopped.
    Stopped,
}

impl Meaning {
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            200..300 => Self::Success,
            400 => Self::BadRequest,
            401 | 403 | 407 => Self::Forbidden,
            402 => Self::Unpaid,
            404 => Self::Missing,
            405 | 501 => Self::Unsupported,
            408 => Self::Pending,
            409 => Self::Conflict,
            410 => Self::Gone,
            415 | 422 => Self::Misread,
            429 => Self::Busy,
            500.. => Self::Failing,
            _ => Self::Refused,
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

    /// Whether the service does not know what was asked for, or no longer.
    pub(crate) fn is_unknown(self) -> bool {
        matches!(self, Self::Missing | Self::Gone)
    }

    /// Whether this attempt counted. A service that failed may have done the work first; one that
    /// refused has not.
    pub(crate) fn effect(self) -> Effect {
        match self {
            Self::Success => Effect::Accepted,
            Self::Pending
            | Self::Failing
            | Self::BrokenOff
            | Self::Misled
            // A stopped client may have been waiting for the answer.
            | Self::Stopped => Effect::Unknown,
            Self::Busy
            | Self::Unpaid
            | Self::Conflict
            | Self::Missing
            | Self::Gone
            | Self::Unsupported
            | Self::Forbidden
            | Self::BadRequest
            | Self::Misread
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

    /// Every status: what it means, whether it passes, whether it counted.
    #[test]
    fn statuses_have_one_meaning() {
        const NONE: Effect = Effect::None;
        const UNKNOWN: Effect = Effect::Unknown;
        let rows: [(&[u16], Meaning, bool, Effect); 14] = [
            (&[200, 201, 204], Success, false, Effect::Accepted),
            (&[301, 307, 304, 413, 425, 451], Refused, false, NONE),
            (&[400], BadRequest, false, NONE),
            (&[401, 403, 407], Forbidden, false, NONE),
            (&[402], Unpaid, false, NONE),
            (&[404], Missing, false, NONE),
            (&[405, 501], Unsupported, false, NONE),
            (&[408], Pending, true, UNKNOWN),
            (&[409], Conflict, true, NONE),
            (&[410], Gone, false, NONE),
            (&[415, 422], Misread, false, NONE),
            (&[429], Busy, true, NONE),
            (&[500, 502, 503, 504], Failing, true, UNKNOWN),
            (&[529, 599, 999], Failing, true, UNKNOWN),
        ];
        for (statuses, expected, passing, effect) in rows {
            for status in statuses {
                let found = Meaning::of_status(*status);
                assert_eq!(found, expected, "{status}");
                assert_eq!(found.is_passing(), passing, "{status}");
                assert_eq!(found.effect(), effect, "{status}");
                assert_eq!(found.is_unknown(), [404, 410].contains(status), "{status}");
            }
        }
    }
}
