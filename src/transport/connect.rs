//! Connections as ureq makes them, but a request's head and body leave in one write.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, TcpConnector, Transport,
};

use super::fault::Unconnected;

/// Makes connections. Agents that share one share its TLS configuration, and with it the sessions
/// that make a second handshake short.
///
/// Plain connections skip ureq's chain of connectors, whose frames would stay part of the stack of
/// every thread that ever connected, thousands of waiting ones among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Connections(Arc<Connectors>);

#[derive(Debug, Default)]
struct Connectors {
    plain: TcpConnector,
    any: DefaultConnector,
    open: Arc<AtomicUsize>,
}

impl Connections {
    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }
}

/// Counts a connection while it lives.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connector for Connections {
    type Out = Joined;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Joined>, Error> {
        let made = if details.needs_tls() || details.config.proxy().is_some() {
            self.0.any.connect(&of_agent(details), chained)
        } else {
            let stream = self.0.plain.connect(details, chained);
            stream.map(|made| made.map(|stream| Box::new(stream) as Box<dyn Transport>))
        };
        match made {
            Ok(inner) => Ok(inner.map(|inner| Joined {
                _counted: Some(Counted::new(&self.0.open)),
                ..Joined::new(inner)
            })),
            Err(error) => Err(Error::Other(Box::new(Unconnected(error)))),
        }
    }
}

/// The same details as if the agent alone had been configured. Every request sets its own limits,
/// and for such requests ureq makes a TLS configuration per connection, though all of ours are equal:
/// roots parsed each time, no handshake ever resumed.
fn of_agent<'a>(details: &ConnectionDetails<'a>) -> ConnectionDetails<'a> {
    ConnectionDetails {
        uri: details.uri,
        addrs: details.addrs.clone(),
        config: details.config,
        request_level: false,
        resolver: details.resolver,
        now: details.now,
        timeout: details.timeout,
        current_time: details.current_time.clone(),
        run_connector: details.run_connector.clone(),
        register_shutdown: details.register_shutdown.clone(),
    }
}

/// A connection that keeps a short piece of output back until more follows or an answer is
/// awaited.
///
/// ureq sends a head and its body apart: two calls to the system, two packets, two TLS records.
///
/// A server may answer before it has read a body, a 413 to one that is too large, and close. What
/// cannot be written then does not matter, so a failed write is kept until it turns out that there
/// is no answer either.
#[derive(Debug)]
pub(super) struct Joined {
    inner: Box<dyn Transport>,
    held: Vec<u8>,
    cut: Option<Error>,
    _counted: Option<Counted>,
}

impl Joined {
    fn new(inner: Box<dyn Transport>) -> Self {
        Self {
            inner,
            held: Vec::new(),
            cut: None,
            _counted: None,
        }
    }

    fn flush(&mut self, timeout: NextTimeout) -> Result<(), Error> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.transmit_output(0, timeout)
    }

    fn write(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.cut.is_some() {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(cause)) if is_closed(cause.kind()) => {
                self.cut = Some(Error::Io(cause));
                Ok(())
            }
            written => written,
        }
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(kind, BrokenPipe | ConnectionReset | ConnectionAborted)
}

impl Transport for Joined {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let held = std::mem::take(&mut self.held);
        let output = self.inner.buffers().output();
        if held.is_empty() && amount <= output.len() / 2 {
            self.held = output[..amount].to_vec();
            return Ok(());
        }
        // What was held goes before, and pushes what no longer fits into a second write.
        let first = usize::min(amount, output.len() - held.len());
        let rest = output[first..amount].to_vec();
        output.copy_within(..first, held.len());
        output[..held.len()].copy_from_slice(&held);
        self.write(held.len() + first, timeout)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.inner.buffers().output()[..rest.len()].copy_from_slice(&rest);
        self.write(rest.len(), timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.flush(timeout)?;
        match (self.inner.await_input(timeout), &mut self.cut) {
            (Err(_) | Ok(false), cut @ Some(_)) => Err(cut.take().expect("it was just seen")),
            (read, _) => read,
        }
    }

    fn is_open(&mut self) -> bool {
        self.held.is_empty() && self.cut.is_none() && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ureq::unversioned::transport::LazyBuffers;

    use super::*;

    /// Notes what is written, and answers nothing.
    #[derive(Debug)]
    struct Noted {
        buffers: LazyBuffers,
        writes: Arc<Mutex<Vec<String>>>,
    }

    impl Transport for Noted {
        fn buffers(&mut self) -> &mut dyn Buffers {
            &mut self.buffers
        }

        fn transmit_output(&mut self, amount: usize, _: NextTimeout) -> Result<(), Error> {
            let written = String::from_utf8(self.buffers.output()[..amount].to_vec()).unwrap();
            self.writes.lock().unwrap().push(written);
            Ok(())
        }

        fn await_input(&mut self, _: NextTimeout) -> Result<bool, Error> {
            self.writes.lock().unwrap().push("?".into());
            Ok(false)
        }

        fn is_open(&mut self) -> bool {
            true
        }
    }

    #[test]
    fn short_output_waits_for_what_follows() {
        #[track_caller]
        fn check(pieces: &[&str], expected: &[&str]) {
            let writes = Arc::default();
            let mut joined = Joined::new(Box::new(Noted {
                buffers: LazyBuffers::new(8, 8),
                writes: Arc::clone(&writes),
            }));
            for piece in pieces {
                joined.buffers().output()[..piece.len()].copy_from_slice(piece.as_bytes());
                let timeout = NextTimeout::default();
                joined.transmit_output(piece.len(), timeout).unwrap();
            }
            joined.await_input(NextTimeout::default()).unwrap();
            assert!(joined.is_open());
            assert_eq!(*writes.lock().unwrap(), expected);
        }
        check(&[], &["?"]);
        check(&["get"], &["get", "?"]);
        check(&["head", "body"], &["headbody", "?"]);
        check(&["head", "along"], &["headalon", "g", "?"]);
        check(&["head", "fullfull"], &["headfull", "full", "?"]);
        check(&["fullfull", "fullfull"], &["fullfull", "fullfull", "?"]);
        check(&["a", "b", "c"], &["ab", "c", "?"]);
        check(&["", "body"], &["body", "?"]);
    }
}
