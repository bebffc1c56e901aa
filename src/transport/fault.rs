//! No usable answer: why, and what to make of it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::retry::Meaning;
use crate::descriptors::are_used_up;
use crate::error::{Context, Effect, Error};

/// One attempt that ended without an answer.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FaultKind {
    /// The host name has no address.
    Resolve,
    /// Nobody listens there.
    Refused,
    /// No connection: unreachable, or the proxy declined.
    Connect,
    /// This process may not open another socket.
    NoDescriptor,
    /// The proxy wants credentials, or others.
    ProxyAuth,
    /// The two sides could not agree on encryption, or the certificate is not trusted; nothing of
    /// the request had been sent.
    Tls,
    /// A limit in time passed; `sent` says whether the server may have taken the request.
    Timeout { sent: bool },
    /// The connection broke before the answer began.
    Dropped,
    /// The answer ended early.
    Truncated,
    /// Something that is not HTTP came back.
    Malformed,
    /// Somebody on the way declined, not the service: a 400 without a body.
    Rejected,
    /// A redirect that may not be followed.
    Redirect,
    /// The service took the request and named a place for its answer that cannot be used.
    Misled,
    /// The request itself cannot be sent: a bad header or URL.
    Request,
    /// A file on this machine that cannot be read or written.
    File,
    /// The client stopped.
    Stopped,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(super) fn caused(
        kind: FaultKind,
        message: impl Into<String>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind,
            message: message.into(),
            source: Some(Arc::new(source)),
        }
    }

    /// What it means to whoever made the attempt.
    pub(crate) fn meaning(&self) -> Meaning {
        Meaning::of_fault(self.kind)
    }

    /// Whether nobody was found who could answer.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.kind != FaultKind::Rejected && self.meaning() == Meaning::Unreached
    }

    /// Whether that is the kind of unreachable that seldom mends itself: nobody of that name,
    /// nobody at that address.
    pub(crate) fn is_wrong_address(&self) -> bool {
        matches!(self.kind, FaultKind::Resolve | FaultKind::Refused)
    }

    /// The same fault of a service that has answered before: what would be final at the first
    /// attempt, a certificate or a redirect, is then an outage like any other.
    pub(super) fn of_known_service(mut self) -> Self {
        self.kind = match self.kind {
            FaultKind::Tls => FaultKind::Connect,
            FaultKind::Redirect => FaultKind::Rejected,
            FaultKind::Misled => FaultKind::Dropped,
            other => other,
        };
        self
    }

    /// The same fault of a request that had been taken, on the way to its answer: what was never
    /// sent now says nothing about what was sent then.
    pub(super) fn of_taken_request(mut self) -> Self {
        self.kind = match self.kind {
            FaultKind::Timeout { .. } => FaultKind::Timeout { sent: true },
            _ if self.meaning() == Meaning::Unreached => FaultKind::Dropped,
            _ if self.meaning().effect() == Effect::None => FaultKind::Misled,
            other => other,
        };
        self
    }

    /// The error a caller sees, naming the request.
    pub(crate) fn to_error(&self, request: &str) -> Error {
        let context = Box::new(Context {
            message: self.message.clone(),
            request: Some(request.to_owned()),
            source: self.source.clone(),
            effect: self.meaning().effect(),
            ..Context::default()
        });
        match self.kind {
            FaultKind::Timeout { .. } => Error::Timeout(context),
            FaultKind::Stopped => Error::Closed(context),
            FaultKind::File => Error::Io(context),
            // Trying again changes nothing: the URL, the certificates or the request have to.
            FaultKind::Tls
            | FaultKind::Redirect
            | FaultKind::Misled
            | FaultKind::Request
            | FaultKind::ProxyAuth => Error::Config(context),
            _ => Error::Connection(context),
        }
    }

    /// Reads ureq's error; `phase` tells a broken body from a missing answer, and both from a
    /// connection that was never made.
    pub(super) fn from_ureq(error: ureq::Error, phase: Phase) -> Self {
        let (error, phase) = match unconnected(error) {
            Ok(inner) => (inner, Phase::Connect),
            Err(error) => (error, phase),
        };
        let kind = kind_of(&error, phase);
        let message = match kind {
            FaultKind::Resolve => "the host name could not be resolved; check the base URL",
            FaultKind::Refused => "nobody listens there; check the base URL",
            FaultKind::Connect => "no connection; check the base URL, the network and the proxy",
            FaultKind::NoDescriptor => {
                "no connection: too many files and sockets are open; raise the limit (`ulimit -n`)"
            }
            FaultKind::ProxyAuth => "the proxy wants credentials (407); put them into its URL",
            FaultKind::Tls => {
                "no secure connection; if the certificate is a private one, \
                 add it with `with_root_certificates` or SSL_CERT_FILE"
            }
            FaultKind::Timeout { sent: false } => "connecting took too long",
            FaultKind::Timeout { sent: true } => "the answer did not come in time",
            FaultKind::Truncated => "the answer ended early",
            FaultKind::Malformed => "the answer is not HTTP",
            FaultKind::Request => "the request cannot be sent",
            _ => "the connection broke",
        };
        // `BadUri` quotes the URL, which may be signed.
        match error {
            ureq::Error::BadUri(_) => Self::new(kind, "the request's URL is malformed"),
            other => Self::caused(kind, message, other),
        }
    }

    pub(super) fn from_io(error: io::Error, phase: Phase) -> Self {
        Self::from_ureq(ureq::Error::from(error), phase)
    }
}

/// How far the attempt had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Connect,
    Head,
    Body,
}

fn kind_of(error: &ureq::Error, phase: Phase) -> FaultKind {
    use ureq::Error as E;
    let sent = phase != Phase::Connect;
    match error {
        E::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            FaultKind::Timeout { sent: false }
        }
        E::Timeout(_) => FaultKind::Timeout { sent },
        E::HostNotFound => FaultKind::Resolve,
        E::Other(cause) if cause.is::<LookupFailed>() => FaultKind::Resolve,
        E::ConnectProxyFailed(reason) if reason.contains("407") => FaultKind::ProxyAuth,
        E::ConnectionFailed | E::ConnectProxyFailed(_) => FaultKind::Connect,
        E::TlsRequired | E::Pem(_) => FaultKind::Tls,
        E::Tls(_) | E::Rustls(_) if !sent => FaultKind::Tls,
        E::Io(cause) => io_kind(cause, phase),
        E::Http(_) | E::BadUri(_) | E::InvalidProxyUrl | E::BodyExceedsLimit(_) => {
            FaultKind::Request
        }
        _ if !sent => FaultKind::Connect,
        E::Protocol(_) | E::LargeResponseHeader(..) | E::BodyStalled => FaultKind::Malformed,
        _ => FaultKind::Dropped,
    }
}

fn io_kind(error: &io::Error, phase: Phase) -> FaultKind {
    use io::ErrorKind as K;
    match (phase, error.kind()) {
        (_, K::TimedOut | K::WouldBlock) => FaultKind::Timeout {
            sent: phase != Phase::Connect,
        },
        // What the system says of hosts and networks may also befall a connection in use; only
        // before there is one does it mean that nothing was sent.
        (Phase::Head, _) => FaultKind::Dropped,
        (Phase::Body, _) => FaultKind::Truncated,
        (Phase::Connect, K::ConnectionRefused) => FaultKind::Refused,
        // rustls reports a failed handshake as invalid data.
        (Phase::Connect, K::InvalidData) => FaultKind::Tls,
        (Phase::Connect, _) if are_used_up(error) => FaultKind::NoDescriptor,
        (Phase::Connect, _) => FaultKind::Connect,
    }
}

/// An error before there was a connection, so nothing of the request was sent.
#[derive(Debug)]
pub(super) struct Unconnected(pub(super) ureq::Error);

impl fmt::Display for Unconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Unconnected {}

/// What lies below [`Unconnected`], of which a proxy's tunnel adds a second layer.
fn unconnected(error: ureq::Error) -> Result<ureq::Error, ureq::Error> {
    match error {
        ureq::Error::Other(cause) => match cause.downcast::<Unconnected>() {
            Ok(inner) => Ok(unconnected(inner.0).unwrap_or_else(|inner| inner)),
            Err(cause) => Err(ureq::Error::Other(cause)),
        },
        other => Err(other),
    }
}

/// The system's resolver declined; kept apart from other input and output errors.
#[derive(Debug)]
pub(super) struct LookupFailed(pub(super) String);

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for LookupFailed {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the system says, by how far the attempt had come: only what was never sent has had no
    /// effect.
    #[test]
    fn an_error_of_the_system_means_no_effect_only_before_there_is_a_connection() {
        use FaultKind::{Connect, Dropped, NoDescriptor, Refused, Tls, Truncated};
        use io::ErrorKind as K;
        const LATE: FaultKind = FaultKind::Timeout { sent: true };
        let rows = [
            (K::ConnectionRefused, [Refused, Dropped, Truncated]),
            (K::HostUnreachable, [Connect, Dropped, Truncated]),
            (K::NetworkUnreachable, [Connect, Dropped, Truncated]),
            (K::NetworkDown, [Connect, Dropped, Truncated]),
            (K::AddrNotAvailable, [Connect, Dropped, Truncated]),
            (K::ConnectionReset, [Connect, Dropped, Truncated]),
            (K::InvalidData, [Tls, Dropped, Truncated]),
            (
                K::TimedOut,
                [FaultKind::Timeout { sent: false }, LATE, LATE],
            ),
        ];
        let phases = [Phase::Connect, Phase::Head, Phase::Body];
        for (kind, expected) in rows {
            for (phase, expected) in phases.into_iter().zip(expected) {
                let fault = Fault::from_io(kind.into(), phase);
                assert_eq!(fault.kind, expected, "{kind:?} in {phase:?}");
                let may_count = fault.meaning().effect() != crate::error::Effect::None;
                assert_eq!(may_count, phase != Phase::Connect, "{kind:?} in {phase:?}");
            }
        }
        let full = |phase| Fault::from_io(io::Error::from_raw_os_error(24), phase).kind;
        assert_eq!(phases.map(full), [NoDescriptor, Dropped, Truncated]);
    }
}
