use super::permits::Load;
use super::*;
use crate::runtime::stop::Stop;

const LIMITS: Limits = Limits {
    posts: 4,
    narrow_posts: 1,
    flights: Some(6),
    all_flights: 7,
    few_posts: false,
    bytes: 100,
};

fn dispatcher(limits: Limits) -> (Dispatcher<u32>, u64, Clock, Arc<Backoff>) {
    let (clock, backoff) = (Clock::recorded(), Arc::new(Backoff::default()));
    let dispatcher = Dispatcher::new(clock.clone(), backoff.clone(), limits);
    let lane = dispatcher.add_lane();
    (dispatcher, lane, clock, backoff)
}

/// The jobs that may go out now, with their permits.
fn started(dispatcher: &Dispatcher<u32>) -> Vec<Started<u32>> {
    std::iter::from_fn(|| dispatcher.try_next()).collect()
}

fn jobs(started: &[Started<u32>]) -> Vec<u32> {
    started.iter().map(|(job, ..)| *job).collect()
}

#[test]
fn decisions_for_the_only_sampler() {
    #[track_caller]
    fn check(used: (usize, usize, i64), flight: bool, recent: bool, expected: Decision) {
        let (posts, flights, bytes) = used;
        let load = Load { posts, bytes };
        let used = Used {
            fresh: load,
            flights,
            ..Used::default()
        };
        let own = Own { load, flights };
        let limits = Limits {
            all_flights: 5,
            ..LIMITS
        };
        let decided = decide(&limits, 5, &used, &own, flight, recent);
        assert_eq!(decided, expected);
    }
    check((0, 0, 0), false, false, Decision::Start);
    check((3, 4, 100), false, false, Decision::Start);
    check((3, 5, 100), false, false, Decision::Full);
    check((3, 5, 100), true, false, Decision::Start);
    check((4, 0, 0), false, false, Decision::NoPost);
    check((0, 0, 101), false, false, Decision::NoPost);
    check((0, 6, 0), false, false, Decision::NoFlight);
    check((0, 6, 0), true, false, Decision::Start);
    check((1, 1, 0), false, true, Decision::NoPost);
}

#[test]
fn beyond_what_starts_at_once_flights_grow_slowly() {
    let limits = Limits {
        flights: Some(100),
        all_flights: 100,
        ..LIMITS
    };
    let used = Used {
        flights: 20,
        ..Used::default()
    };
    let own = Own {
        flights: 20,
        ..Own::default()
    };
    let check = |ramp| decide(&limits, ramp, &used, &own, false, false);
    assert_eq!((check(20), check(21)), (Decision::Ramp, Decision::Start));
}

#[test]
fn where_waiting_costs_no_thread_submissions_grow_slowly() {
    let limits = Limits {
        posts: 400,
        flights: None,
        all_flights: 400,
        ..LIMITS
    };
    let load = Load {
        posts: 20,
        bytes: 0,
    };
    let used = Used {
        fresh: load,
        ..Used::default()
    };
    let check = |ramp, posts| {
        let own = Own {
            load: Load { posts, bytes: 0 },
            flights: 0,
        };
        decide(&limits, ramp, &used, &own, false, false)
    };
    assert_eq!(check(20, 20), Decision::Ramp);
    assert_eq!(check(21, 20), Decision::Start);
    assert_eq!(
        check(20, SHARE - 1),
        Decision::Start,
        "every sampler's share"
    );
    assert_eq!(limits.under_way(&used), 20);
}

#[test]
fn a_client_may_allow_fewer_in_flight_than_the_service_and_never_more() {
    let (dispatcher, lane, ..) = dispatcher(LIMITS);
    dispatcher.limit_lane(lane, Some(2));
    (0..5).for_each(|job| dispatcher.push(lane, job, 1));
    let first = started(&dispatcher);
    assert_eq!(jobs(&first), [0, 1]);
    drop(first);
    dispatcher.limit_lane(lane, None);
    assert_eq!(jobs(&started(&dispatcher)), [2, 3, 4]);
    for (most, expected) in [(None, 6), (Some(2), 2), (Some(100), 6)] {
        assert_eq!(LIMITS.for_lane(most).flights, Some(expected));
    }
    let polled = Limits {
        flights: None,
        ..LIMITS
    };
    assert_eq!(polled.for_lane(Some(2)).flights, None);
}

#[test]
fn jobs_come_in_order_and_permits_bound_them() {
    let (dispatcher, lane, ..) = dispatcher(LIMITS);
    for job in 0..5 {
        dispatcher.push(lane, job, 1);
    }
    let mut held: Vec<_> = (0..4).map(|_| dispatcher.next().unwrap()).collect();
    assert_eq!(jobs(&held), [0, 1, 2, 3]);
    assert_eq!(dispatcher.waiting(lane), 1);
    let waiter = std::thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.next().unwrap().0
    });
    held.truncate(3);
    assert_eq!(waiter.join().unwrap(), 4);
}

#[test]
fn samplers_take_turns_and_one_that_stalls_leaves_the_others_their_share() {
    let (dispatcher, stalled, ..) = dispatcher(LIMITS);
    let (one, two) = (dispatcher.add_lane(), dispatcher.add_lane());
    for job in 0..9 {
        dispatcher.push(stalled, job, 1);
    }
    let held = started(&dispatcher);
    assert_eq!(jobs(&held), [0, 1, 2, 3]);
    for job in 0..3 {
        dispatcher.push(one, 10 + job, 1);
        dispatcher.push(two, 20 + job, 1);
    }
    assert_eq!(jobs(&started(&dispatcher)), [10, 20, 11, 21, 12, 22]);
    assert_eq!(dispatcher.waiting(stalled), 5);
    drop(held);
    assert_eq!(jobs(&started(&dispatcher)), [4, 5, 6, 7]);
}

#[test]
fn a_returning_job_that_holds_the_last_flight_wakes_who_waits_for_one() {
    let (dispatcher, lane, clock, _) = dispatcher(Limits {
        flights: Some(1),
        ..LIMITS
    });
    dispatcher.push(lane, 1, 1);
    dispatcher.push(lane, 2, 1);
    let (job, post, flight) = dispatcher.next().unwrap();
    drop(post);
    let waiter = std::thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.next().unwrap().0
    });
    // It waits for the flight that the first job brings back.
    while !lock(&dispatcher.0.state).wanted.flight {
        std::thread::yield_now();
    }
    dispatcher.push_later(lane, job, 1, flight, Duration::from_secs(3));
    assert_eq!(waiter.join().unwrap(), 1);
    assert_eq!(clock.pauses(), [Duration::from_secs(3)]);
}

#[test]
fn silent_submissions_hold_no_permit_but_never_more_than_double_the_load() {
    let (dispatcher, lane, clock, _) = dispatcher(Limits {
        flights: None,
        ..LIMITS
    });
    for job in 0..20 {
        dispatcher.push(lane, job, 1);
    }
    let silent = started(&dispatcher);
    assert_eq!(silent.len(), 4);
    // A generation may have begun just before; after the second they are old for certain.
    let stop = Stop::default();
    clock.pause(&stop, SILENT);
    assert!(dispatcher.try_next().is_none());
    clock.pause(&stop, SILENT);
    let next = started(&dispatcher);
    assert_eq!((next.len(), dispatcher.silent()), (4, 4));
    for _ in 0..4 {
        clock.pause(&stop, SILENT);
        assert!(dispatcher.try_next().is_none(), "eight are on the wire");
    }
    drop(silent);
    assert_eq!(started(&dispatcher).len(), 4);
    drop(next);
}

#[test]
fn silent_bytes_never_double_the_load_either() {
    let (dispatcher, lane, clock, _) = dispatcher(Limits {
        posts: 100,
        flights: None,
        ..LIMITS
    });
    for job in 0..20 {
        dispatcher.push(lane, job, 60);
    }
    let stop = Stop::default();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.extend(started(&dispatcher));
        clock.pause(&stop, SILENT);
    }
    // The last one in may overdraw a budget of bytes.
    assert_eq!(held.len(), 4);
}

#[test]
fn a_backoff_holds_everything_then_narrows() {
    let (dispatcher, lane, clock, backoff) = dispatcher(LIMITS);
    backoff.extend(clock.now() + Duration::from_secs(5));
    dispatcher.push(lane, 1, 10);
    let (job, post, _flight) = dispatcher.next().unwrap();
    assert_eq!(job, 1);
    assert_eq!(clock.pauses(), [Duration::from_secs(5)]);
    assert_eq!(post.bytes, 200);
}

#[test]
fn later_jobs_wait_for_their_time_and_the_front_goes_first() {
    let (dispatcher, lane, clock, _) = dispatcher(LIMITS);
    dispatcher.push_later(lane, 9, 1, None, Duration::from_secs(3));
    dispatcher.push_later(lane, 8, 1, None, Duration::from_secs(1));
    dispatcher.push(lane, 1, 1);
    dispatcher.push_front(lane, 0, 1, None);
    let order: Vec<u32> = (0..4).map(|_| dispatcher.next().unwrap().0).collect();
    assert_eq!(order, [0, 1, 8, 9]);
    assert_eq!(
        clock.pauses(),
        [Duration::from_secs(1), Duration::from_secs(2)]
    );
}

#[test]
fn jobs_that_nobody_wants_leave_the_queue() {
    let (dispatcher, lane, ..) = dispatcher(LIMITS);
    for job in 0..10 {
        dispatcher.push(lane, job, 1);
    }
    dispatcher.push_later(lane, 11, 1, None, Duration::from_secs(1));
    for _ in 0..6 {
        dispatcher.give_up(lane, |job| *job % 2 == 1);
    }
    assert_eq!(dispatcher.waiting(lane), 5);
    assert_eq!(jobs(&started(&dispatcher)), [0, 2, 4, 6]);
}

#[test]
fn closing_counts_what_is_given_up_and_ends_the_wait() {
    let (dispatcher, lane, ..) = dispatcher(Limits { posts: 0, ..LIMITS });
    dispatcher.push(lane, 1, 1);
    let waiter = std::thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.next().is_none()
    });
    assert_eq!(dispatcher.close(), 1);
    assert!(waiter.join().unwrap());
    // One that was there, and one that comes too late.
    for lane in [lane, dispatcher.add_lane()] {
        dispatcher.push(lane, 2, 1);
        assert_eq!(dispatcher.waiting(lane), 0);
    }
}
