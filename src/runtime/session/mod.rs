//! A session: open, keep alive, report, close.

mod life;
mod opened;
mod telemetry;

pub(crate) use self::life::{Backlog, Session, fetch_dynamic};
pub(crate) use self::opened::Opened;
pub(crate) use self::telemetry::{Failure, Telemetry};
