//! The operations of a model: the ordered queue, sequence numbers, chunks and their results.

mod buffers;
mod chunks;
mod dialect;
mod gather;
mod losses;
mod queue;
mod room;
mod sequence;

pub(crate) use self::chunks::{Call, Forward};
pub use self::gather::ChunkOutput;
pub(crate) use self::gather::{ChunkSender, Gather};
pub(crate) use self::queue::{Gate, Operation, Queue, Single};
pub(crate) use self::room::Training;
