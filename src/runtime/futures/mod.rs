//! A result until it is here: the pure machine, its loop, and the poller of many at once.

mod machine;
mod poller;
mod results;
mod trouble;
mod watch;

pub(crate) use self::poller::Poller;
pub(crate) use self::results::{Failure, Results};
pub(crate) use self::watch::{Accepted, Decode, Outcome, Watch};
