use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

fn pair(on_drop: OnDrop) -> (Promise<i32>, Pending<i32>, Arc<Status>) {
    let status = Status::new("test");
    let (promise, pending) = promise(status.clone(), on_drop, Arc::new(()));
    (promise, pending, status)
}

#[test]
fn joins_from_another_thread() {
    let (promise, pending, _) = pair(OnDrop::GoesOn);
    let joiner = thread::spawn(move || pending.map(|n| n + 1).join());
    promise.resolve(Ok(41));
    assert_eq!(joiner.join().unwrap().unwrap(), 42);
}

#[test]
fn none_leaves_the_handle_usable_and_some_takes_the_result() {
    let (promise, pending, status) = pair(OnDrop::Cancels);
    assert!(pending.try_join().is_none());
    assert!(pending.join_timeout(Duration::ZERO).is_none());
    assert!(!pending.is_finished() && !status.is_cancelled());
    promise.resolve(Ok(1));
    assert!(pending.is_finished());
    assert_eq!(pending.try_join().unwrap().unwrap(), 1);
    assert!(matches!(pending.try_join(), Some(Err(Error::Internal(_)))));
}

/// Whoever asks again must not take it for something that never was.
#[test]
fn a_result_that_was_taken_was_there() {
    let (promise, pending, status) = pair(OnDrop::GoesOn);
    status.accepted("R1");
    promise.resolve(Ok(1));
    pending.try_join().unwrap().unwrap();
    let error = pending.try_join().unwrap().unwrap_err();
    assert_eq!(error.effect(), Effect::Accepted);
}

#[test]
fn a_dropped_promise_is_an_error_not_a_hang() {
    let (promise, pending, _) = pair(OnDrop::GoesOn);
    drop(promise);
    assert!(matches!(pending.join(), Err(Error::Closed(_))));
    let (promise, pending, _) = pair(OnDrop::GoesOn);
    let worker = thread::spawn(move || {
        let _promise = promise;
        panic!("on purpose");
    });
    assert!(worker.join().is_err());
    assert!(matches!(pending.join(), Err(Error::Internal(_))));
}

#[test]
fn dropping_cancels_only_where_that_is_meant_and_only_before_the_result() {
    let (_promise, pending, status) = pair(OnDrop::GoesOn);
    drop(pending);
    assert!(!status.is_cancelled());

    let (_promise, pending, status) = pair(OnDrop::Cancels);
    let early = Arc::new(AtomicBool::new(false));
    let seen = early.clone();
    status.on_cancel(move || seen.store(true, Ordering::SeqCst));
    drop(pending.map(|n| n));
    assert!(status.is_cancelled() && early.load(Ordering::SeqCst));
    let late = Arc::new(AtomicBool::new(false));
    let seen = late.clone();
    status.on_cancel(move || seen.store(true, Ordering::SeqCst));
    assert!(late.load(Ordering::SeqCst));

    let (promise, pending, status) = pair(OnDrop::Cancels);
    promise.resolve(Ok(1));
    drop(pending);
    assert!(!status.is_cancelled());
}

#[test]
fn what_is_cancelled_says_how_far_it_had_come() {
    use crate::error::Effect;
    let check = |prepare: fn(&Status), effect: Effect, id: Option<&str>| {
        let (_promise, pending, status) = pair(OnDrop::Cancels);
        prepare(&status);
        assert!(pending.cancel());
        let error = pending.join().unwrap_err();
        assert!(matches!(error, Error::Cancelled(_)));
        assert_eq!((error.effect(), error.request_id()), (effect, id));
    };
    check(|_| (), Effect::None, None);
    check(Status::sending, Effect::Unknown, None);
    check(|status| status.accepted("r1"), Effect::Accepted, Some("r1"));
}

#[test]
fn completed_come_in_the_order_of_completion() {
    let (first, one, _) = pair(OnDrop::GoesOn);
    let (second, two, _) = pair(OnDrop::GoesOn);
    let (third, three, _) = pair(OnDrop::GoesOn);
    third.resolve(Ok(3));
    let mut results = as_completed([one, two, three.map(|n| n * 10)]);
    assert_eq!(results.size_hint(), (3, Some(3)));
    let mut next = || results.next().map(|(index, result)| (index, result.ok()));
    assert_eq!(next(), Some((2, Some(30))));
    second.resolve(Err(Error::invalid("x", "y")));
    assert_eq!(next(), Some((1, None)));
    first.resolve(Ok(1));
    assert_eq!(next(), Some((0, Some(1))));
    assert_eq!(next(), None);
}

#[test]
fn join_all_keeps_the_order_and_every_error() {
    let (first, one, _) = pair(OnDrop::GoesOn);
    let (second, two, _) = pair(OnDrop::GoesOn);
    second.resolve(Ok(2));
    first.resolve(Err(Error::invalid("x", "y")));
    let results = join_all([one, two]);
    assert!(results[0].is_err());
    assert_eq!(*results[1].as_ref().unwrap(), 2);
}
