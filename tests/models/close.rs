//! The end of a model's queue: callers, the worker and whoever closes.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::backlog::{Backlog, Next};

/// Sends until there is nothing more; what was sent and what was given up.
fn work(backlog: &Backlog<u32>) -> (Vec<u32>, Vec<u32>) {
    let (mut sent, mut given_up) = (Vec::new(), Vec::new());
    while let Some(next) = backlog.next() {
        match next {
            Next::Send(operation) => sent.push(operation),
            Next::GiveUp(operation) => given_up.push(operation),
        }
        backlog.done();
    }
    (sent, given_up)
}

/// Two callers submit pairs while a third waits for the end and closes.
pub(crate) fn everything_is_sent_once() {
    let backlog = Arc::new(Backlog::default());
    let worker = thread::spawn({
        let backlog = backlog.clone();
        move || work(&backlog)
    });
    let callers = [0, 10].map(|first| {
        let backlog = backlog.clone();
        thread::spawn(move || backlog.push(vec![first, first + 1]).is_ok())
    });
    for caller in callers {
        assert!(caller.join().expect("it ends"));
    }
    backlog.close();
    backlog.drain(Duration::from_secs(1));
    assert_eq!(backlog.abandon(), 0);
    let (sent, given_up) = worker.join().expect("it ends");
    assert!(given_up.is_empty());
    assert!(sent == [0, 1, 10, 11] || sent == [10, 11, 0, 1], "{sent:?}");
}

/// What was taken is sent or given up, and what was refused is neither.
pub(crate) fn nothing_is_lost_by_halting() {
    let backlog = Arc::new(Backlog::default());
    let worker = thread::spawn({
        let backlog = backlog.clone();
        move || work(&backlog)
    });
    let caller = thread::spawn({
        let backlog = backlog.clone();
        move || [0, 10].map(|first| backlog.push(vec![first, first + 1]).is_ok())
    });
    backlog.abandon();
    backlog.halt();
    let taken = caller.join().expect("it ends");
    let (mut all, given_up) = worker.join().expect("it ends");
    all.extend(given_up);
    let expected = [0, 10].into_iter().zip(taken).filter(|(_, taken)| *taken);
    let expected: Vec<u32> = expected.flat_map(|(first, _)| [first, first + 1]).collect();
    assert_eq!(all, expected);
}
