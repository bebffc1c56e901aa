//! What the lack of an answer means to whoever asked.

use super::super::fault::{Fault, FaultKind};
use super::super::request::Response;
use crate::error::Meaning;

impl Meaning {
    pub(crate) fn of(outcome: &Result<Response, Fault>) -> Self {
        match outcome {
            Ok(response) => Self::of_status(response.status()),
            Err(fault) => Self::of_fault(fault.kind),
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
            FaultKind::Misled => Self::Misled,
            FaultKind::Stopped => Self::Stopped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Effect;
    use crate::error::Meaning::*;

    /// Every fault: what it means, whether it passes, whether it counted.
    #[test]
    fn faults_have_one_meaning() {
        const NONE: Effect = Effect::None;
        const UNKNOWN: Effect = Effect::Unknown;
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
            (F::Misled, Misled, false, UNKNOWN),
            (F::Request, Hopeless, false, NONE),
            (F::File, Hopeless, false, NONE),
            (F::Stopped, Stopped, false, UNKNOWN),
        ] {
            let found = Meaning::of_fault(kind);
            assert_eq!(found, expected, "{kind:?}");
            assert_eq!(found.is_passing(), passing, "{kind:?}");
            assert_eq!(found.effect(), effect, "{kind:?}");
        }
    }
}
