//! Answers that arrive bit by bit: bytes as they come, or server-sent events.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};

use super::call::RawCall;
use super::service::ServiceClient;
use crate::error::{Context, Error, Result};
use crate::runtime::calls::Head;
use crate::wire::sse::{Event, SseReader};

/// The answer to a [`RawCall`] while it arrives. Reading blocks until there is more; memory is
/// constant.
pub struct RawStream {
    head: Head,
    body: Box<dyn Read + Send>,
}

impl RawStream {
    /// The status: 2xx.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// A header's value by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The stream as server-sent events.
    pub fn events(self) -> Events {
        Events {
            body: Some(self.body),
            reader: SseReader::default(),
            ready: VecDeque::new(),
        }
    }
}

impl Read for RawStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.body.read(buffer)
    }
}

impl fmt::Debug for RawStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawStream")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// The events of a stream, as they arrive. A stream that breaks is an error, after which the
/// iterator ends; an event that it cut off is not given.
pub struct Events {
    body: Option<Box<dyn Read + Send>>,
    reader: SseReader,
    ready: VecDeque<Event>,
}

impl Events {
    fn fill(&mut self) -> Result<()> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        let mut buffer = [0; 8 << 10];
        let count = loop {
            match body.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let count = count.map_err(|error| {
            Error::Connection(Context::caused("the stream of events broke", error))
        })?;
        if count == 0 {
            self.body = None;
        }
        let mut events = Vec::new();
        let read = self.reader.push(&buffer[..count], &mut events);
        self.ready.extend(events);
        read.map_err(|_| Error::Reply(Context::new("an event without an end")))
    }
}

impl Iterator for Events {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            self.body.as_ref()?;
            if let Err(error) = self.fill() {
                self.body = None;
                return Some(Err(error));
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("ready", &self.ready.len())
            .field("open", &self.body.is_some())
            .finish()
    }
}

impl ServiceClient {
    /// Makes a call, once, and hands out its answer while it arrives.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::local()?;
    /// use serde_json::json;
    /// use tinker::client::RawCall;
    ///
    /// let call = RawCall::post("oai/api/v1/chat/completions").at_root().with_json(&json!({
    ///     "model": "tinker-local/tiny", "stream": true, "max_tokens": 4,
    ///     "messages": [{"role": "user", "content": "Hi"}],
    /// }))?;
    /// for event in service.call_stream(&call)?.events() {
    ///     println!("{}", event?.data);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Status`] for an answer of 400 and above, and whatever else befalls requests.
    pub fn call_stream(&self, call: &RawCall) -> Result<RawStream> {
        let parts = call.parts();
        let (head, body) = self.link()?.stream(call.request(&parts)?)?;
        Ok(RawStream { head, body })
    }
}
