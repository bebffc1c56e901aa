//! At most so many connections at once; whoever has long said nothing makes room for others.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::sync::lock;

/// A connection that never said anything may be asked to leave after this long.
const SILENT: Duration = Duration::from_secs(1);
/// One whose requests were all answered, after this long: clients keep such connections to use
/// them again.
const RESTING: Duration = Duration::from_secs(5);

/// All seats there are.
pub(super) struct Seats {
    free: Arc<Semaphore>,
    count: usize,
    idle: Mutex<Idle>,
}

/// The connections with no request under way, by when they may be asked to leave.
#[derive(Default)]
struct Idle {
    by_time: BTreeMap<(Instant, u64), Arc<Notify>>,
    next: u64,
}

impl Seats {
    pub(super) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(count)),
            count,
            idle: Mutex::default(),
        })
    }

    /// A seat, if one is free.
    pub(super) fn take(self: &Arc<Self>) -> Option<Seat> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        Some(self.seat(permit))
    }

    /// A seat, once whoever was asked to leave has left.
    pub(super) async fn wait(self: &Arc<Self>) -> Option<Seat> {
        let permit = self.free.clone().acquire_owned().await.ok()?;
        Some(self.seat(permit))
    }

    fn seat(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Seat {
        let leave = Arc::new(Notify::new());
        Seat {
            place: Mutex::new(Some(self.rest(SILENT, &leave))),
            seats: Arc::clone(self),
            leave,
            _permit: permit,
        }
    }

    /// Asks the connection that has been idle for longest to leave; false if none has been for
    /// long enough.
    pub(super) fn make_room(&self, now: Instant) -> bool {
        let mut idle = lock(&self.idle);
        let Some(first) = idle.by_time.first_entry() else {
            return false;
        };
        if first.key().0 > now {
            return false;
        }
        first.remove().notify_one();
        true
    }

    /// Waits until everyone has left.
    pub(super) async fn emptied(&self) {
        let all = u32::try_from(self.count).unwrap_or(u32::MAX);
        let _ = self.free.acquire_many(all).await;
    }

    fn rest(&self, patience: Duration, leave: &Arc<Notify>) -> (Instant, u64) {
        let mut idle = lock(&self.idle);
        idle.next += 1;
        let place = (Instant::now() + patience, idle.next);
        idle.by_time.insert(place, Arc::clone(leave));
        place
    }
}

/// One connection's seat, free again when it is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    leave: Arc<Notify>,
    /// Among the idle; `None` while a request is under way.
    place: Mutex<Option<(Instant, u64)>>,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    /// Ends when the connection is asked to make room.
    pub(super) async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }

    /// A request has begun; it ends when what is returned is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.stand_up();
        Busy(Arc::clone(self))
    }

    pub(super) fn is_busy(&self) -> bool {
        lock(&self.place).is_none()
    }

    fn stand_up(&self) {
        if let Some(place) = lock(&self.place).take() {
            lock(&self.seats.idle).by_time.remove(&place);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.stand_up();
    }
}

/// A request under way.
pub(super) struct Busy(Arc<Seat>);

impl Drop for Busy {
    fn drop(&mut self) {
        let place = self.0.seats.rest(RESTING, &self.0.leave);
        *lock(&self.0.place) = Some(place);
    }
}

/// The body of an answer, whose request is under way until it has been sent.
pub(super) struct Sent<B> {
    pub(super) body: B,
    pub(super) _busy: Busy,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    fn asked(seat: &Seat) -> bool {
        let mut waiting = std::pin::pin!(seat.asked_to_leave());
        let mut context = Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn who_has_been_idle_for_longest_makes_room() {
        let seats = Seats::new(3);
        let [first, second, third] =
            std::array::from_fn(|_| Arc::new(seats.take().expect("a free seat")));
        assert!(seats.take().is_none());
        assert!(!seats.make_room(Instant::now()), "all have just come");

        let request = first.busy();
        assert!(seats.make_room(later(2)), "the second never said anything");
        assert!(asked(&second) && !asked(&first) && !asked(&third));
        drop(request);
        assert!(seats.make_room(later(2)));
        assert!(asked(&third));
        assert!(!seats.make_room(later(2)), "the first may rest");
        assert!(seats.make_room(later(60)));
        assert!(asked(&first));
        assert!(!seats.make_room(later(60)), "nobody is asked twice");
        drop(second);
        assert!(seats.take().is_some());
    }

    #[test]
    fn a_request_under_way_is_left_alone() {
        let seats = Seats::new(1);
        let seat = Arc::new(seats.take().expect("a free seat"));
        let request = seat.busy();
        assert!(!seats.make_room(later(600)));
        drop(seat);
        assert!(seats.take().is_none(), "its answer is still being sent");
        drop(request);
        assert!(!seats.make_room(later(600)), "nobody is there");
        assert!(seats.take().is_some());
    }
}
