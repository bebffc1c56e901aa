//! The threads that do the work the server accepts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use crate::error::{Context, Error, Result};
use crate::sync::lock;

type Task = Box<dyn FnOnce() + Send>;

/// A few named threads that take tasks in turn. Closing it drops what has not begun and joins.
#[derive(Debug)]
pub(super) struct Crew {
    /// `None` once closed.
    sender: Mutex<Option<Sender<Task>>>,
    waiting: Receiver<Task>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Crew {
    pub(super) fn new(name: &str, size: usize) -> Result<Self> {
        let (sender, waiting) = crossbeam_channel::unbounded::<Task>();
        let threads = (0..size)
            .map(|index| {
                let tasks = waiting.clone();
                std::thread::Builder::new()
                    .name(format!("{name}-{index}"))
                    .spawn(move || work(&tasks))
                    .map_err(|error| Error::Internal(Context::caused("no thread", error)))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            sender: Mutex::new(Some(sender)),
            waiting,
            threads: Mutex::new(threads),
        })
    }

    /// Hands a task over; a closed crew drops it.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let sender = lock(&self.sender);
        if let Some(sender) = &*sender {
            // The crew holds a receiver, so the channel is open.
            let _ = sender.send(Box::new(task));
        }
    }

    /// Ends the threads after the tasks they are at.
    pub(super) fn close(&self) {
        let sender = lock(&self.sender).take();
        drop(sender);
        // Unstarted tasks go, so that the threads find the channel empty and closed.
        while self.waiting.try_recv().is_ok() {}
        let mut threads = lock(&self.threads);
        for thread in threads.drain(..) {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
    }
}

fn work(tasks: &Receiver<Task>) {
    for task in tasks {
        guarded(task);
    }
}

/// Does something that others do not end with, should it panic.
pub(in crate::local) fn guarded(task: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(task)).is_err() {
        log::error!("local server: a task panicked");
    }
}
