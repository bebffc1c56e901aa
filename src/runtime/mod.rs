//! Everything that lives longer than a call: threads, queues, futures.

pub(crate) mod clock;
pub(crate) mod stop;

pub(crate) mod pending;

pub(crate) mod threads;

pub(crate) mod calls;

pub(crate) mod futures;

pub(crate) mod training;

pub(crate) mod sampling;

pub(crate) mod session;

pub(crate) mod core;
