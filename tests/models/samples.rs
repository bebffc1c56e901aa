//! The dispatcher: permits and jobs between whoever submits, one dispatcher and the couriers.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::dispatch::{Dispatcher, Limits};
use crate::sync::{Mutex, lock};

fn dispatcher(flights: usize) -> Dispatcher<u32> {
    let limits = Limits {
        posts: 2,
        narrow_posts: 1,
        bytes: 100,
        flights: Some(flights),
        all_flights: 2,
        few_posts: false,
    };
    Dispatcher::new(Clock::recorded(), Arc::new(Backoff::default()), limits)
}

/// Hands out `count` jobs, each to a courier that then takes what it can get itself.
fn run(dispatcher: &Dispatcher<u32>, count: usize) -> Vec<u32> {
    let done = Arc::new(Mutex::new(Vec::new()));
    let mut couriers = Vec::new();
    while lock(&done).len() < count {
        let Some((job, post, flight)) = dispatcher.next() else {
            break;
        };
        let (dispatcher, done) = (dispatcher.clone(), done.clone());
        couriers.push(thread::spawn(move || {
            let mut next = Some((job, post, flight));
            while let Some((job, post, flight)) = next {
                drop(post);
                lock(&done).push(job);
                drop(flight);
                next = dispatcher.try_next();
            }
            if lock(&done).len() == count {
                dispatcher.close();
            }
        }));
    }
    for courier in couriers {
        courier.join().expect("a courier ends");
    }
    let mut done = lock(&done).clone();
    done.sort_unstable();
    done
}

pub(crate) fn permits_are_handed_on() {
    let dispatcher = dispatcher(1);
    let lane = dispatcher.add_lane();
    let submitter = thread::spawn({
        let dispatcher = dispatcher.clone();
        move || (0..4).for_each(|job| dispatcher.push(lane, job, 60))
    });
    assert_eq!(run(&dispatcher, 4), [0, 1, 2, 3]);
    submitter.join().expect("it ends");
}

/// The only flight comes back with its job while another job waits for one.
pub(crate) fn a_returning_flight_wakes() {
    let dispatcher = dispatcher(1);
    let lane = dispatcher.add_lane();
    dispatcher.push(lane, 0, 1);
    dispatcher.push(lane, 1, 1);
    let (job, post, flight) = dispatcher.next().expect("it is there");
    let courier = thread::spawn({
        let dispatcher = dispatcher.clone();
        move || {
            drop(post);
            dispatcher.push_later(lane, job, 1, flight, Duration::from_secs(1));
        }
    });
    assert_eq!(run(&dispatcher, 2), [0, 1]);
    courier.join().expect("it ends");
}

/// A sampler that comes while the dispatcher waits, before or after a stalled one.
pub(crate) fn a_new_sampler_wakes() {
    let dispatcher = dispatcher(1);
    let stalled = dispatcher.add_lane();
    dispatcher.push(stalled, 0, 1);
    dispatcher.push(stalled, 1, 1);
    let held = dispatcher.next().expect("it is there");
    let submitter = thread::spawn({
        let dispatcher = dispatcher.clone();
        move || {
            let lane = dispatcher.add_lane();
            dispatcher.push(lane, 2, 1);
        }
    });
    let (job, ..) = dispatcher.next().expect("the new sampler's");
    assert_eq!(job, 2);
    drop(held);
    submitter.join().expect("it ends");
}

pub(crate) fn closing_ends_the_wait() {
    let dispatcher = dispatcher(1);
    let lane = dispatcher.add_lane();
    let submitter = thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.push(lane, 0, 1)
    });
    let closer = thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.close()
    });
    while dispatcher.next().is_some() {}
    submitter.join().expect("it ends");
    closer.join().expect("it ends");
}
