//! The operations of a model: the ordered queue, sequence numbers, chunks and their results.

mod attach;
mod backlog;
mod buffers;
mod chunks;
mod dialect;
mod gather;
mod limit;
mod losses;
mod lost;
mod post;
mod queue;
mod room;
mod sequence;
mod single;
mod submit;

pub use self::attach::Attachable;
pub use self::gather::ChunkOutput;
pub(crate) use self::queue::Queue;
pub(crate) use self::room::Training;
pub(crate) use self::submit::Pass;
