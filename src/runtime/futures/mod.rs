//! A result until it is here: the pure machine, its loop, and the poller of many at once.

mod machine;
mod poller;
mod watch;

pub(crate) use self::poller::Poller;
pub(crate) use self::watch::{Accepted, Decode, Outcome, Watch};
