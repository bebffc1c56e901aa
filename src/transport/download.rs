//! Signed URLs, streamed to whoever takes the bytes.

use std::io::{self, Read, Write};

use super::Transport;
use super::fault::{Fault, FaultKind, Phase};
use super::request::{Auth, Head, Request};
use crate::wire::route::{Method, Pool};

/// What a download brought.
#[derive(Debug, Clone)]
pub(crate) struct Download {
    pub(crate) head: Head,
    /// An error status' body, at most its first 64 kB.
    pub(crate) error_body: Vec<u8>,
}

/// Takes a download's bytes as they arrive.
pub(crate) trait Receiver {
    /// Hears the head of a success before its body; `false` leaves the body where it is.
    fn begin(&mut self, head: &Head) -> io::Result<bool>;

    /// Takes the next bytes.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A writer takes every body as it is.
impl<W: Write> Receiver for W {
    fn begin(&mut self, _: &Head) -> io::Result<bool> {
        Ok(true)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

/// The rest of something partly there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rest<'a> {
    /// Where it begins; 0 asks for the whole.
    pub(crate) from: u64,
    /// What the whole was marked with: the server sends all of it if that has changed.
    pub(crate) mark: Option<&'a str>,
}

impl Transport {
    /// Fetches a URL in constant memory. No key goes along: signed URLs carry their own, and
    /// another host sees nothing that belongs to the service. Whether the server sends the rest
    /// that was asked for shows in the status: 206, or 200 for the whole.
    ///
    /// # Errors
    ///
    /// A [`Fault`] when no answer came, it ended early, or the receiver failed
    /// ([`FaultKind::File`]).
    pub(crate) fn download(
        &self,
        url: &str,
        rest: Rest<'_>,
        receiver: &mut dyn Receiver,
    ) -> Result<Download, Fault> {
        let mut request = Request::new(Method::Get, url, Pool::Rest).with_accept("*/*");
        request.auth = Auth::None;
        if rest.from > 0 {
            request = request.with_header("range", format!("bytes={}-", rest.from));
            if let Some(mark) = rest.mark {
                request = request.with_header("if-range", mark);
            }
        }
        self.stream_into(&request, receiver)
    }

    /// Sends a request and hands on a success's body, in constant memory.
    ///
    /// # Errors
    ///
    /// As [`download`](Self::download).
    pub(crate) fn stream_into(
        &self,
        request: &Request<'_>,
        receiver: &mut dyn Receiver,
    ) -> Result<Download, Fault> {
        let (head, mut body) = self.stream(request)?;
        let mut error_body = Vec::new();
        if head.is_success() {
            if receiver.begin(&head).map_err(unwritten)? {
                self.copy(&mut body, receiver)?;
            }
        } else {
            body.take(64 << 10)
                .read_to_end(&mut error_body)
                .map_err(|error| self.body_fault(error))?;
            error_body = self.redact_body(&error_body);
        }
        Ok(Download { head, error_body })
    }

    fn copy(&self, body: &mut impl Read, receiver: &mut dyn Receiver) -> Result<(), Fault> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.body_fault(error)),
            };
            receiver.take(&buffer[..count]).map_err(unwritten)?;
        }
    }

    fn body_fault(&self, error: io::Error) -> Fault {
        if self.inner.agents.is_stopped(Pool::Rest) {
            return Fault::new(FaultKind::Stopped, "the client stopped");
        }
        Fault::from_io(error, Phase::Body)
    }
}

fn unwritten(error: io::Error) -> Fault {
    Fault::caused(FaultKind::File, "the download cannot be written", error)
}
