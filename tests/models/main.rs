//! The three hardest hand-overs between threads, run by a model checker: it takes the place of the
//! scheduler, tries a few thousand orders of events, and reports a deadlock or a broken assertion
//! with the schedule that leads to it.
//!
//! What runs is the library's own code: its files, with the checker's locks behind `crate::sync`.
//! So this crate has a `main` of its own, and the unit tests inside those files stay out.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "files of the library, used in part"
)]

mod sync {
    use std::time::Duration;

    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

    const WHOLE: &str = "no thread of a model panics and goes on";

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect(WHOLE)
    }

    pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        changed.wait(guard).expect(WHOLE)
    }

    pub(crate) fn wait_for<'a, T>(
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        changed.wait_timeout(guard, limit).expect(WHOLE).0
    }

    pub(crate) fn wait_while<'a, T>(
        changed: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match limit {
            None => changed.wait_while(guard, condition).expect(WHOLE),
            Some(limit) => {
                let waited = changed.wait_timeout_while(guard, limit, condition);
                waited.expect(WHOLE).0
            }
        }
    }
}

#[path = "../../src/runtime/training/backlog.rs"]
mod backlog;
#[path = "../../src/runtime/sampling/backoff.rs"]
mod backoff;
#[path = "../../src/runtime/threads/budget.rs"]
mod budget;
#[path = "../../src/runtime/clock.rs"]
mod clock;
#[path = "../../src/runtime/sampling/dispatch/mod.rs"]
mod dispatch;
#[path = "../../src/runtime/stop.rs"]
mod stop;

mod runtime {
    pub(crate) use crate::{clock, stop};
}

mod bytes;
mod close;
mod samples;

/// Schedules tried for each model; `TINKER_TEST_LONG=1` tries a hundred times as many.
fn schedules() -> usize {
    match std::env::var_os("TINKER_TEST_LONG") {
        Some(_) => 200_000,
        None => 2_000,
    }
}

fn check(name: &str, model: fn()) {
    // Half of the schedules are random, half switch threads at few places, which finds what needs
    // one unlucky moment.
    shuttle::check_random(model, schedules() / 2);
    shuttle::check_pct(model, schedules() / 2, 3);
    #[allow(clippy::print_stdout, reason = "a test harness says what it ran")]
    {
        println!("model {name} ... ok");
    }
}

fn main() {
    check(
        "samples::permits_are_handed_on",
        samples::permits_are_handed_on,
    );
    check(
        "samples::a_returning_flight_wakes",
        samples::a_returning_flight_wakes,
    );
    check("samples::a_new_sampler_wakes", samples::a_new_sampler_wakes);
    check(
        "samples::closing_ends_the_wait",
        samples::closing_ends_the_wait,
    );
    check(
        "bytes::watches_on_one_thread_end",
        bytes::watches_on_one_thread_end,
    );
    check(
        "bytes::closing_tells_everyone",
        bytes::closing_tells_everyone,
    );
    check(
        "close::everything_is_sent_once",
        close::everything_is_sent_once,
    );
    check(
        "close::nothing_is_lost_by_halting",
        close::nothing_is_lost_by_halting,
    );
}
