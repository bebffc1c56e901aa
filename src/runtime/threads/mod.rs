//! Threads that wait, a pool of threads that compute, and the bytes they may hold.

mod background;
mod budget;
mod cpu;
mod crew;

pub(crate) use self::background::Background;
pub(crate) use self::budget::{Bytes, BytesGuard};
pub(crate) use self::cpu::Cpu;
pub(crate) use self::crew::Crew;
