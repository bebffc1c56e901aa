//! Reading bodies: small ones at once, large ones when there is room, none of them for ever.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::{Limits, Refusal};

/// Bodies up to this size need no room: heartbeats do not wait for training data.
const SMALL: usize = 64 << 10;
/// How much must arrive in the time a body has for it.
const PROGRESS: usize = 16 << 10;
/// Large bodies wait in memory at once; this many of the largest allowed.
const LARGEST_AT_ONCE: usize = 8;
/// How much of a refused body is read, so that its sender gets to read the refusal.
const DRAINED: usize = 256 << 20;

/// Room for large bodies, in units of 1 KiB.
pub(super) struct Room {
    limits: Limits,
    units: Semaphore,
}

impl Room {
    pub(super) fn new(limits: Limits) -> Self {
        let units = units(limits.request_bytes) as usize * LARGEST_AT_ONCE;
        Self {
            limits,
            units: Semaphore::new(units.min(Semaphore::MAX_PERMITS)),
        }
    }

    /// Reads a body within the limits; `length` is what its sender announced.
    pub(super) async fn read(
        &self,
        body: &mut Incoming,
        length: Option<usize>,
    ) -> Result<Bytes, Refusal> {
        let limit = self.limits.request_bytes;
        let too_large = || Refusal::too_large(format!("a request may have {limit} bytes at most"));
        if length.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        let mut taken = self.take(length.unwrap_or(0)).await?;
        let mut bytes = BytesMut::with_capacity(length.unwrap_or(0).min(SMALL));
        let mut pace = Pace::new(self.limits.body_patience);
        while let Some(frame) = timeout_at(pace.until, body.frame())
            .await
            .map_err(|_| Refusal::timeout("the body did not arrive in time"))?
        {
            let frame =
                frame.map_err(|error| Refusal::bad(format!("the body ended early: {error}")))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if bytes.len() + data.len() > limit {
                return Err(too_large());
            }
            bytes.extend_from_slice(data);
            pace.add(data.len());
            // An unannounced body takes its room as it grows.
            let held = taken
                .as_ref()
                .map_or(SMALL, |held| held.num_permits() * 1024);
            if bytes.len() > held {
                let more = self.take(bytes.len().max(SMALL + 1)).await?;
                match (&mut taken, more) {
                    (Some(taken), Some(more)) => taken.merge(more),
                    (taken, more) => *taken = more,
                }
            }
        }
        Ok(bytes.freeze())
    }

    /// Waits for the room of a large body, as long as a body may be silent.
    async fn take(&self, bytes: usize) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let until = Instant::now() + self.limits.body_patience;
        match timeout_at(until, self.units.acquire_many(units(bytes))).await {
            Ok(Ok(room)) => Ok(Some(room)),
            _ => Err(Refusal::busy("too many large requests at once")),
        }
    }
}

/// Reads what is left of a refused body and drops it: closing the connection at once would take
/// the refusal away from whoever is still sending.
pub(super) async fn drain(mut body: Incoming, patience: Duration) {
    let (mut pace, mut read) = (Pace::new(patience), 0);
    while let Ok(Some(Ok(frame))) = timeout_at(pace.until, body.frame()).await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        read += length;
        pace.add(length);
        if read > DRAINED {
            return;
        }
    }
}

/// How long the next bytes may take: some progress earns more time.
struct Pace {
    patience: Duration,
    until: Instant,
    since: usize,
}

impl Pace {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            until: Instant::now() + patience,
            since: 0,
        }
    }

    fn add(&mut self, bytes: usize) {
        self.since += bytes;
        if self.since >= PROGRESS {
            self.since = 0;
            self.until = Instant::now() + self.patience;
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX / 16)
}
