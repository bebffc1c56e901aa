//! Attempts at one request to the hub, repeated while trouble may pass.

use std::io::Read;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::transport::Fault;
use crate::transport::retry::Backoff;

/// How often in a row an attempt may fail without bringing anything.
const RETRIES: u32 = 5;
/// How long an error's body or a list of files may be.
const MAX_TEXT: u64 = 64 << 20;

/// Why an attempt brought nothing.
pub(super) enum Trouble {
    Final(Error),
    NoSuchFile {
        commit: Option<String>,
        error: Error,
    },
    /// Worth another attempt, after a wait if the server asked for one.
    Passing(Error, Option<Duration>),
}

impl Trouble {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::Final(error) | Self::Passing(error, _) | Self::NoSuchFile { error, .. } => error,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Repeats an attempt while trouble may pass. What it moved counts as progress: only attempts
/// that move nothing use up patience.
pub(super) fn patiently<T>(
    what: &str,
    mut attempt: impl FnMut(&mut u64) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let mut tries = 0;
    loop {
        let mut moved = 0;
        let (error, wish) = match attempt(&mut moved) {
            Err(Trouble::Passing(error, wish)) => (error, wish),
            done => return done,
        };
        tries = if moved > 0 { 0 } else { tries + 1 };
        if tries > RETRIES {
            return Err(Trouble::Final(error));
        }
        let delay = match moved {
            0 => wish.unwrap_or_else(|| Backoff::HTTP.delay(tries - 1, fastrand::f64())),
            _ => Duration::ZERO,
        };
        log::debug!("going on with {what} in {delay:?}: {error}");
        std::thread::sleep(delay);
    }
}

/// A request that brought no answer.
pub(super) fn passing(fault: &Fault, label: &str) -> Trouble {
    let error = fault.to_error(label);
    match fault.meaning().is_passing() {
        true => Trouble::Passing(error, None),
        false => Trouble::Final(error),
    }
}

pub(super) fn read_text(body: impl Read, url: &str) -> Result<Vec<u8>, Trouble> {
    let mut text = Vec::new();
    let read = body.take(MAX_TEXT).read_to_end(&mut text);
    let host = url.split('?').next().unwrap_or_default();
    read.map(|_| text).map_err(|error| {
        let message = format!("the answer of {host} broke off");
        Trouble::Passing(Error::Connection(Context::caused(message, error)), None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::FaultKind;

    #[test]
    fn only_what_may_pass_is_tried_again() {
        for (kind, again) in [
            (FaultKind::Refused, true),
            (FaultKind::Dropped, true),
            (FaultKind::Timeout { sent: true }, true),
            (FaultKind::Tls, false),
            (FaultKind::Redirect, false),
            (FaultKind::Misled, false),
            (FaultKind::ProxyAuth, false),
            (FaultKind::Stopped, false),
        ] {
            let trouble = passing(&Fault::new(kind, "no answer"), "GET file");
            assert_eq!(matches!(trouble, Trouble::Passing(..)), again, "{kind:?}");
        }
    }
}
