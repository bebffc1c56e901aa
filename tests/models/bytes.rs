//! The byte budget and the watches that share few threads: who holds bytes never waits for a
//! thread, who waits for bytes never holds one.

use std::collections::VecDeque;
use std::sync::Arc;

use shuttle::thread;

use crate::budget::{Bytes, BytesGuard};
use crate::sync::{Condvar, Mutex, lock, wait};

type Job = Box<dyn FnOnce(&Arc<Pool>) + Send>;

/// Few threads and a queue, as the crew has them.
#[derive(Default)]
struct Pool {
    queue: Mutex<(VecDeque<Job>, usize)>,
    changed: Condvar,
}

impl Pool {
    fn run(&self, job: Job, first: bool) {
        let mut queue = lock(&self.queue);
        match first {
            true => queue.0.push_front(job),
            false => queue.0.push_back(job),
        }
        drop(queue);
        self.changed.notify_one();
    }

    /// Works until this many watches have ended.
    fn work(self: &Arc<Self>, watches: usize) {
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                if queue.1 == watches {
                    return;
                }
                match queue.0.pop_front() {
                    Some(job) => break job,
                    None => queue = wait(&self.changed, queue),
                }
            };
            drop(queue);
            job(self);
        }
    }

    fn is_crowded(&self) -> bool {
        !lock(&self.queue).0.is_empty()
    }

    fn ended(&self) {
        lock(&self.queue).1 += 1;
        self.changed.notify_all();
    }
}

/// A watch as the library's: poll, reserve, fetch; it gives its thread away between steps if
/// others wait for one, unless it holds bytes.
fn watch(pool: &Arc<Pool>, bytes: &Bytes) {
    let Some(room) = bytes.try_take(5) else {
        let pool = pool.clone();
        return bytes.take_later(5, move |room| {
            pool.run(Box::new(move |pool| fetch(pool, room)), true);
        });
    };
    fetch(pool, Some(room));
}

fn fetch(pool: &Arc<Pool>, room: Option<BytesGuard>) {
    assert!(room.is_some(), "nobody closes the budget");
    thread::yield_now();
    drop(room);
    pool.ended();
}

pub(crate) fn watches_on_one_thread_end() {
    const WATCHES: usize = 4;
    let (pool, bytes) = (Arc::new(Pool::default()), Bytes::new(4));
    for _ in 0..WATCHES {
        let bytes = bytes.clone();
        let poll = move |pool: &Arc<Pool>| match pool.is_crowded() {
            true => pool.run(Box::new(move |pool| watch(pool, &bytes)), false),
            false => watch(pool, &bytes),
        };
        pool.run(Box::new(poll), false);
    }
    let second = thread::spawn({
        let pool = pool.clone();
        move || pool.work(WATCHES)
    });
    pool.work(WATCHES);
    second.join().expect("it ends");
    assert!(bytes.try_take(1).is_some(), "all bytes came back");
}

/// Each of those who wait is told once, with bytes or without.
pub(crate) fn closing_tells_everyone() {
    let bytes = Bytes::new(0);
    let held = bytes.take(1);
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let bytes = bytes.clone();
            thread::spawn(move || drop(bytes.take(1)))
        })
        .collect();
    let closer = thread::spawn({
        let bytes = bytes.clone();
        move || bytes.close()
    });
    drop(held);
    for waiter in waiters {
        waiter.join().expect("it ends");
    }
    closer.join().expect("it ends");
}
