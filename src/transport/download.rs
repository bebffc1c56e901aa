//! Signed URLs, streamed to a writer.

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

impl Transport {
    /// Fetches a URL into a writer, in constant memory. No key goes along: signed URLs carry
    /// their own, and another host sees nothing that belongs to the service. `from` asks for the rest of something partly there; whether the server agreed
    /// shows in the status (206, or 200 for the whole).
    ///
    /// # Errors
    ///
    /// A [`Fault`] when no answer came, it ended early, or the writer failed
    /// ([`FaultKind::Request`]).
    pub(crate) fn download(
        &self,
        url: &str,
        from: u64,
        writer: &mut dyn Write,
    ) -> Result<Download, Fault> {
        let mut request = Request::new(Method::Get, url, Pool::Rest).with_accept("*/*");
        request.auth = Auth::None;
        if from > 0 {
            request = request.with_header("range", format!("bytes={from}-"));
        }
        self.stream_into(&request, writer)
    }

    /// Sends a request and copies a success's body to a writer, in constant memory.
    ///
    /// # Errors
    ///
    /// As [`download`](Self::download).
    pub(crate) fn stream_into(
        &self,
        request: &Request<'_>,
        writer: &mut dyn Write,
    ) -> Result<Download, Fault> {
        let (head, mut body) = self.stream(request)?;
        let mut error_body = Vec::new();
        if head.is_success() {
            self.copy(&mut body, writer)?;
        } else {
            body.take(64 << 10)
                .read_to_end(&mut error_body)
                .map_err(|error| self.body_fault(error))?;
        }
        Ok(Download { head, error_body })
    }

    fn copy(&self, body: &mut impl Read, writer: &mut dyn Write) -> Result<(), Fault> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.body_fault(error)),
            };
            writer.write_all(&buffer[..count]).map_err(|error| {
                Fault::caused(FaultKind::Request, "the download cannot be written", error)
            })?;
        }
    }

    fn body_fault(&self, error: io::Error) -> Fault {
        if self.inner.agents.is_stopped(Pool::Rest) {
            return Fault::new(FaultKind::Stopped, "the client stopped");
        }
        Fault::from_io(error, Phase::Body)
    }
}
