//! The pieces of an answer on their way to a client, no more of them than it may be behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::reply::Dropped;

/// How many bytes a client may be behind. Whoever makes the pieces waits for nobody, so one that
/// does not read is given up.
const MOST: usize = 16 << 20;
/// How many bytes may wait before it makes no sense to add what can be told later.
#[cfg(any(test, feature = "chat"))]
const BEHIND: usize = 256 << 10;

/// Where the pieces go in.
#[derive(Debug)]
pub(in crate::local) struct Pieces {
    sender: mpsc::UnboundedSender<Bytes>,
    shared: Arc<Shared>,
}

/// Where they come out.
#[derive(Debug)]
pub(in crate::local) struct Chunks {
    receiver: mpsc::UnboundedReceiver<Bytes>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    /// Whether a piece is missing because the client was too far behind.
    lost: AtomicBool,
}

/// A new stream.
pub(in crate::local) fn stream() -> (Pieces, Chunks) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::<Shared>::default();
    let pieces = Pieces {
        sender,
        shared: shared.clone(),
    };
    (pieces, Chunks { receiver, shared })
}

impl Pieces {
    /// Sends a piece; false if nobody listens any more, or too long ago.
    pub(in crate::local) fn send(&self, piece: impl Into<Bytes>) -> bool {
        let piece = piece.into();
        let Shared { waiting, lost } = &*self.shared;
        if lost.load(Ordering::Relaxed) {
            return false;
        }
        if waiting.fetch_add(piece.len(), Ordering::Relaxed) + piece.len() > MOST {
            lost.store(true, Ordering::Relaxed);
            return false;
        }
        self.sender.send(piece).is_ok()
    }

    /// Whether the client has not read what it was told before.
    #[cfg(any(test, feature = "chat"))]
    pub(in crate::local) fn is_behind(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > BEHIND
    }

    /// Ends when nobody listens any more.
    #[cfg(feature = "chat")]
    pub(in crate::local) async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl Chunks {
    /// The next piece. A stream with a piece missing breaks off; it does not end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Dropped>>> {
        self.receiver.poll_recv(cx).map(|piece| match piece {
            Some(piece) => {
                self.shared
                    .waiting
                    .fetch_sub(piece.len(), Ordering::Relaxed);
                Some(Ok(piece))
            }
            None => {
                let lost = self.shared.lost.load(Ordering::Relaxed);
                lost.then_some(Err(Dropped))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(chunks: &mut Chunks) -> Poll<Option<Result<Bytes, Dropped>>> {
        chunks.poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn whoever_does_not_read_is_given_up() {
        let (pieces, mut chunks) = stream();
        let piece = Bytes::from(vec![0; MOST / 4]);
        for _ in 0..10 {
            assert!(pieces.send(piece.clone()), "it is read");
            assert!(pieces.is_behind());
            assert!(matches!(next(&mut chunks), Poll::Ready(Some(Ok(_)))));
            assert!(!pieces.is_behind() && next(&mut chunks).is_pending());
        }
        for number in 0..6 {
            assert_eq!(pieces.send(piece.clone()), number < 4);
        }
        assert!(!pieces.send("small"), "a piece is missing");
        drop(pieces);
        for _ in 0..4 {
            assert!(matches!(next(&mut chunks), Poll::Ready(Some(Ok(_)))));
        }
        assert!(matches!(next(&mut chunks), Poll::Ready(Some(Err(_)))));
    }

    #[test]
    fn a_stream_that_was_read_ends() {
        let (pieces, mut chunks) = stream();
        assert!(pieces.send("all"));
        drop(pieces);
        assert!(matches!(next(&mut chunks), Poll::Ready(Some(Ok(_)))));
        assert!(matches!(next(&mut chunks), Poll::Ready(None)));
        let (pieces, chunks) = stream();
        drop(chunks);
        assert!(!pieces.send("nobody is there"));
    }
}
