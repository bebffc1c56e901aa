//! Everything that lives longer than a call: threads, queues, futures.

pub(crate) mod clock;
pub(crate) mod core;
pub(crate) mod cpu;
pub(crate) mod crew;
pub(crate) mod dispatch;
pub(crate) mod download;
pub(crate) mod forward;
pub(crate) mod future;
pub(crate) mod gather;
pub(crate) mod limits;
pub(crate) mod link;
pub(crate) mod opened;
pub(crate) mod pending;
pub(crate) mod poller;
pub(crate) mod progress;
pub(crate) mod queue;
pub(crate) mod sampling;
pub(crate) mod sequence;
pub(crate) mod session;
pub(crate) mod telemetry;
pub(crate) mod watch;
