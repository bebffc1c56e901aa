//! Server-sent events: what changed, as long as somebody listens.

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::local::http::{self, Reply};

/// How often things are looked at.
const EVERY: Duration = Duration::from_millis(500);

/// One event, as it is sent.
#[derive(Debug)]
pub(in crate::local) struct Event(String);

impl Event {
    /// An event of this kind; the value is one of ours, so encoding it cannot fail but for a bug.
    pub(in crate::local) fn of(kind: &str, value: &impl Serialize) -> Self {
        let data = serde_json::to_string(value).unwrap_or_else(|_| "null".into());
        Self(format!("event: {kind}\ndata: {data}\n\n"))
    }

    pub(in crate::local) fn into_bytes(self) -> bytes::Bytes {
        self.0.into()
    }
}

/// Looks again and again, and sends what it sees, until the page is closed or the server stops.
/// The first event says that the first look was taken: what the page reads from then on is at
/// least as new, and what changes later is told.
pub(in crate::local) fn stream(
    mut look: impl FnMut() -> Vec<Event> + Send + 'static,
    stopping: impl Future<Output = ()> + Send + 'static,
) -> Reply {
    let (sender, chunks) = http::stream();
    tokio::spawn(async move {
        tokio::pin!(stopping);
        let mut open = vec![Event::of("open", &())];
        loop {
            // A page that does not read is told later what changed meanwhile, once.
            if !sender.is_behind() {
                // Files are read: not on the thread of the connections.
                let looked = tokio::task::spawn_blocking(move || {
                    let events = look();
                    (look, events)
                });
                let Ok((again, events)) = looked.await else {
                    return;
                };
                look = again;
                for event in open.drain(..).chain(events) {
                    if !sender.send(event.into_bytes()) {
                        return;
                    }
                }
            }
            tokio::select! {
                () = sender.closed() => return,
                () = &mut stopping => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    });
    Reply::stream("text/event-stream", chunks)
}
