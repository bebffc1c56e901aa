use super::usage::Load;
use super::*;

const LIMITS: Limits = Limits {
    posts: 4,
    narrow_posts: 1,
    flights: Some(6),
    bytes: 100,
};

fn dispatcher(limits: Limits) -> (Dispatcher<u32>, Clock, Arc<Backoff>) {
    let (clock, backoff) = (Clock::recorded(), Arc::new(Backoff::default()));
    let dispatcher = Dispatcher::new(clock.clone(), backoff.clone(), limits);
    (dispatcher, clock, backoff)
}

#[test]
fn decisions() {
    #[track_caller]
    fn check(used: (usize, usize, i64), flight: bool, recent: bool, expected: Decision) {
        let (posts, flights, bytes) = used;
        let used = Used {
            fresh: Load { posts, bytes },
            flights,
            ..Used::default()
        };
        assert_eq!(decide(&LIMITS, 5, &used, flight, None, recent), expected);
    }
    check((0, 0, 0), false, false, Decision::Start);
    check((3, 4, 100), false, false, Decision::Start);
    check((3, 5, 100), false, false, Decision::Ramp);
    check((3, 5, 100), true, false, Decision::Start);
    check((4, 0, 0), false, false, Decision::Wait(Wanted::Post));
    check((0, 0, 101), false, false, Decision::Wait(Wanted::Post));
    check((0, 6, 0), false, false, Decision::Wait(Wanted::Flight));
    check((0, 6, 0), true, false, Decision::Start);
    check((1, 1, 0), false, true, Decision::Wait(Wanted::Post));
    let hold = Some(Duration::from_secs(2));
    assert_eq!(
        decide(&LIMITS, 5, &Used::default(), false, hold, true),
        Decision::WaitFor(Duration::from_secs(2))
    );
}

#[test]
fn jobs_come_in_order_and_permits_bound_them() {
    let (dispatcher, ..) = dispatcher(LIMITS);
    for job in 0..5 {
        dispatcher.push(job, 1);
    }
    let mut held: Vec<_> = (0..4).map(|_| dispatcher.next().unwrap()).collect();
    let jobs: Vec<u32> = held.iter().map(|(job, ..)| *job).collect();
    assert_eq!(jobs, [0, 1, 2, 3]);
    assert_eq!(dispatcher.waiting(), 1);
    let waiter = std::thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.next().unwrap().0
    });
    held.truncate(3);
    assert_eq!(waiter.join().unwrap(), 4);
}

#[test]
fn silent_submissions_do_not_hold_every_permit() {
    let (dispatcher, clock, _) = dispatcher(LIMITS);
    for job in 0..12 {
        dispatcher.push(job, 1);
    }
    let jobs = |dispatcher: &Dispatcher<u32>| {
        let started = std::iter::from_fn(|| dispatcher.try_next());
        started
            .map(|(job, post, _)| (job, post))
            .collect::<Vec<_>>()
    };
    let silent = jobs(&dispatcher);
    assert_eq!(silent.len(), 4);
    // A generation may have begun just before; after the second they are old for certain.
    let stop = crate::runtime::stop::Stop::default();
    clock.pause(&stop, SILENT);
    assert!(dispatcher.try_next().is_none());
    clock.pause(&stop, SILENT);
    let next = jobs(&dispatcher);
    assert_eq!((next.len(), dispatcher.silent()), (4, 4));
    // Late answers to the silent ones make no more room than there is.
    drop(silent);
    assert_eq!(dispatcher.silent(), 0);
    assert!(dispatcher.try_next().is_none());
    drop(next);
    assert_eq!(jobs(&dispatcher).len(), 4);
}

#[test]
fn a_backoff_holds_everything_then_narrows() {
    let (dispatcher, clock, backoff) = dispatcher(LIMITS);
    backoff.extend(clock.now() + Duration::from_secs(5));
    dispatcher.push(1, 10);
    let (job, post, _flight) = dispatcher.next().unwrap();
    assert_eq!(job, 1);
    assert_eq!(clock.pauses(), [Duration::from_secs(5)]);
    assert_eq!(post.bytes, 200);
}

#[test]
fn later_jobs_wait_for_their_time_and_the_front_goes_first() {
    let (dispatcher, clock, _) = dispatcher(LIMITS);
    dispatcher.push_later(9, 1, None, Duration::from_secs(3));
    dispatcher.push_later(8, 1, None, Duration::from_secs(1));
    dispatcher.push(1, 1);
    dispatcher.push_front(0, 1, None);
    let order: Vec<u32> = (0..4).map(|_| dispatcher.next().unwrap().0).collect();
    assert_eq!(order, [0, 1, 8, 9]);
    assert_eq!(
        clock.pauses(),
        [Duration::from_secs(1), Duration::from_secs(2)]
    );
}

#[test]
fn closing_counts_what_is_given_up_and_ends_the_wait() {
    let (dispatcher, ..) = dispatcher(Limits { posts: 0, ..LIMITS });
    dispatcher.push(1, 1);
    let waiter = std::thread::spawn({
        let dispatcher = dispatcher.clone();
        move || dispatcher.next().is_none()
    });
    assert_eq!(dispatcher.close(), 1);
    assert!(waiter.join().unwrap());
    dispatcher.push(2, 1);
    assert_eq!(dispatcher.waiting(), 0);
}
