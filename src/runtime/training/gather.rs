//! Where the results of a call's chunks go: all together, or one by one.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::limit::QueuedBytes;
use crate::error::{Error, Result};
use crate::runtime::pending::{Aborter, Promise};
use crate::sync::lock;
use crate::types::ForwardBackwardOutput;

/// Where the chunks' results go.
pub(crate) enum Gather {
    Whole(Promise<Vec<ForwardBackwardOutput>>),
    Each(ChunkSender),
}

/// The working end of a call whose chunks are taken one by one. The other end closes when this
/// one is dropped, or when someone ends the call early.
pub(crate) struct ChunkSender(Arc<Mutex<Option<Sender<Result<ChunkOutput>>>>>);

impl ChunkSender {
    pub(crate) fn new() -> (Self, Receiver<Result<ChunkOutput>>) {
        let (sender, results) = unbounded();
        (Self(Arc::new(Mutex::new(Some(sender)))), results)
    }

    fn send(&self, result: Result<ChunkOutput>) {
        if let Some(sender) = &*lock(&self.0) {
            // Whoever takes the chunks may have gone.
            let _ = sender.send(result);
        }
    }

    /// A way for someone else to end the call early. Returns whether it was still open.
    pub(crate) fn aborter(&self) -> Aborter {
        let slot = Arc::downgrade(&self.0);
        Box::new(move |error| {
            let Some(slot) = slot.upgrade() else {
                return false;
            };
            let mut sender = lock(&slot);
            let open = sender.is_some();
            if let Some(error) = error
                && let Some(sender) = sender.take()
            {
                let _ = sender.send(Err(error));
            }
            open
        })
    }
}

/// The result of one chunk of a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ChunkOutput {
    /// Which of the call's data these are.
    pub range: Range<usize>,
    /// How many chunks the call has.
    pub chunks: usize,
    /// Their outputs.
    pub output: ForwardBackwardOutput,
}

/// Collects the results of a call's chunks.
pub(super) struct Gathered {
    chunks: usize,
    state: Mutex<State>,
}

struct State {
    gather: Option<Gather>,
    /// Given back before the result can be seen: whoever has joined it may submit the next call.
    room: Option<QueuedBytes>,
    outputs: Vec<Option<ForwardBackwardOutput>>,
    left: usize,
}

impl Gathered {
    pub(super) fn new(gather: Gather, room: QueuedBytes, chunks: usize) -> Arc<Self> {
        Arc::new(Self {
            chunks,
            state: Mutex::new(State {
                gather: Some(gather),
                room: Some(room),
                outputs: vec![None; chunks],
                left: chunks,
            }),
        })
    }

    pub(super) fn put(&self, index: usize, range: Range<usize>, output: ForwardBackwardOutput) {
        let mut state = lock(&self.state);
        state.left -= 1;
        match &state.gather {
            Some(Gather::Each(sender)) => {
                sender.send(Ok(ChunkOutput {
                    range,
                    chunks: self.chunks,
                    output,
                }));
            }
            Some(Gather::Whole(_)) => state.outputs[index] = Some(output),
            None => return,
        }
        if state.left > 0 {
            return;
        }
        let outputs = std::mem::take(&mut state.outputs);
        let gather = state.gather.take();
        state.room = None;
        drop(state);
        if let Some(Gather::Whole(promise)) = gather {
            promise.resolve(Ok(outputs.into_iter().flatten().collect()));
        }
    }

    pub(super) fn fail(&self, error: Error) {
        let mut state = lock(&self.state);
        match &state.gather {
            // Other chunks may still arrive; each failure is an item of its own.
            Some(Gather::Each(sender)) => sender.send(Err(error)),
            _ => {
                let gather = state.gather.take();
                state.room = None;
                drop(state);
                if let Some(Gather::Whole(promise)) = gather {
                    promise.resolve(Err(error));
                }
            }
        }
    }
}
