//! No usable answer: why, and what to make of it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::error::{Context, Error};

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
    /// No connection: refused, unreachable, or the proxy declined.
    Connect,
    /// The two sides could not agree on encryption, or the certificate is not trusted.
    Tls,
    /// A limit in time passed; `sent` says whether the server may have taken the request.
    Timeout { sent: bool },
    /// The connection broke before the answer began.
    Dropped,
    /// The answer ended early.
    Truncated,
    /// Something that is not HTTP came back.
    Malformed,
    /// A 400 without a body: a proxy on the way declined, not the service.
    Rejected,
    /// A redirect that may not be followed.
    Redirect,
    /// The request itself cannot be sent: a bad header or URL, or a file that cannot be read.
    Request,
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

    /// Whether another attempt may end better.
    pub(crate) fn is_retryable(&self) -> bool {
        match self.kind {
            FaultKind::Resolve
            | FaultKind::Connect
            | FaultKind::Timeout { .. }
            | FaultKind::Dropped
            | FaultKind::Truncated
            | FaultKind::Malformed
            | FaultKind::Rejected => true,
            FaultKind::Tls | FaultKind::Redirect | FaultKind::Request | FaultKind::Stopped => false,
        }
    }

    /// Whether nobody was found who could answer.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Resolve | FaultKind::Connect | FaultKind::Timeout { sent: false }
        )
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self.kind, FaultKind::Timeout { .. })
    }

    /// Whether the server may have taken the request although no answer came.
    pub(crate) fn may_have_arrived(&self) -> bool {
        match self.kind {
            FaultKind::Timeout { sent } => sent,
            FaultKind::Dropped | FaultKind::Truncated | FaultKind::Malformed => true,
            // A stopped client may have been waiting for the answer.
            FaultKind::Stopped => true,
            _ => false,
        }
    }

    /// The error a caller sees, naming the request.
    pub(crate) fn to_error(&self, request: &str) -> Error {
        let context = Box::new(Context {
            message: self.message.clone(),
            request: Some(request.to_owned()),
            source: self.source.clone(),
            ..Context::default()
        });
        match self.kind {
            FaultKind::Timeout { .. } => Error::Timeout(context),
            FaultKind::Stopped => Error::Closed(context),
            // Trying again changes nothing: the URL, the certificates or the request have to.
            FaultKind::Tls | FaultKind::Redirect | FaultKind::Request => Error::Config(context),
            _ => Error::Connection(context),
        }
    }

    /// Reads ureq's error; `phase` tells a broken body from a missing answer.
    pub(super) fn from_ureq(error: ureq::Error, phase: Phase) -> Self {
        use ureq::Error as E;
        let kind = match &error {
            E::Timeout(limit) => match limit {
                ureq::Timeout::Resolve | ureq::Timeout::Connect => {
                    FaultKind::Timeout { sent: false }
                }
                _ => FaultKind::Timeout { sent: true },
            },
            E::HostNotFound => FaultKind::Resolve,
            E::Other(cause) if cause.is::<LookupFailed>() => FaultKind::Resolve,
            E::ConnectionFailed | E::ConnectProxyFailed(_) => FaultKind::Connect,
            E::Tls(_) | E::Rustls(_) | E::Pem(_) | E::TlsRequired => FaultKind::Tls,
            E::Io(cause) => io_kind(cause, phase),
            E::Protocol(_) | E::LargeResponseHeader(..) | E::BodyStalled => FaultKind::Malformed,
            E::Http(_) | E::BadUri(_) | E::InvalidProxyUrl | E::BodyExceedsLimit(_) => {
                FaultKind::Request
            }
            _ => FaultKind::Dropped,
        };
        let message = match kind {
            FaultKind::Resolve => "the host name could not be resolved; check the base URL",
            FaultKind::Connect => "no connection; check the base URL, the network and the proxy",
            FaultKind::Tls => {
                "no secure connection; if the certificate is a private one, \
                 add it with `with_root_certificates`"
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
            E::BadUri(_) => Self::new(kind, "the request's URL is malformed"),
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
    Head,
    Body,
}

fn io_kind(error: &io::Error, phase: Phase) -> FaultKind {
    use io::ErrorKind as K;
    match error.kind() {
        K::ConnectionRefused | K::HostUnreachable | K::NetworkUnreachable | K::AddrNotAvailable => {
            FaultKind::Connect
        }
        K::TimedOut | K::WouldBlock => FaultKind::Timeout { sent: true },
        // rustls reports a failed handshake or record as invalid data.
        K::InvalidData => FaultKind::Tls,
        _ if phase == Phase::Body => FaultKind::Truncated,
        _ => FaultKind::Dropped,
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
