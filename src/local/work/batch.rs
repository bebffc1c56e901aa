//! The thread that samples: requests join the engine's batch as they come.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::library::Library;
use crate::error::{Context, Error, Result};
use crate::local::engine::{Base, Batch, Listener, SampleRequest};
use crate::local::state::adapters::Slot;
use crate::sync::lock;

/// How long sampling keeps the engine's threads before training may have a turn.
const TURN: Duration = Duration::from_millis(20);

/// Requests that wait in the batch itself, with their adapters in memory.
const AHEAD: usize = 16;

/// One request with whoever waits for it.
pub(super) struct Entry {
    adapter: Option<Arc<Slot>>,
    request: SampleRequest,
    listener: Box<dyn Listener>,
}

/// What a sampling thread is told.
pub(super) enum Message {
    Sample(Box<Entry>),
    /// The model's memory is wanted back, once nothing is under way.
    LetGo,
}

/// A named thread that owns the batch of one model. Closing it drops what is under way and joins.
pub(super) struct SamplingThread {
    inbox: Sender<Message>,
    closing: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SamplingThread {
    /// Samples on the model of that name, with so many bytes for keys and values.
    pub(super) fn start(library: &Arc<Library>, name: &str, memory: usize) -> Result<Self> {
        let (sender, inbox) = crossbeam_channel::unbounded();
        let closing = Arc::new(AtomicBool::new(false));
        // The first and only one for this model.
        let _ = library.offer(name)?.inbox.set(sender.clone());
        let worker = Worker {
            library: library.clone(),
            name: name.to_owned(),
            memory,
            inbox,
            closing: closing.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("tinker-local-sample".into())
            .spawn(move || worker.work())
            .map_err(|error| Error::Internal(Context::caused("no thread", error)))?;
        Ok(Self {
            inbox: sender,
            closing,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands a request over; a closed thread drops it, which its listener notices.
    pub(super) fn submit(
        &self,
        adapter: Option<Arc<Slot>>,
        request: SampleRequest,
        listener: Box<dyn Listener>,
    ) {
        // The thread may have ended meanwhile: the same as closed.
        let entry = Entry {
            adapter,
            request,
            listener,
        };
        let _ = self.inbox.send(Message::Sample(Box::new(entry)));
    }

    /// Ends the thread after the round it is at.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes it up.
        let _ = self.inbox.send(Message::LetGo);
        if let Some(thread) = lock(&self.thread).take() {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for SamplingThread {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for SamplingThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplingThread").finish_non_exhaustive()
    }
}

/// What the thread works with.
struct Worker {
    library: Arc<Library>,
    name: String,
    memory: usize,
    inbox: Receiver<Message>,
    closing: Arc<AtomicBool>,
}

impl Worker {
    fn work(&self) {
        let mut waiting = VecDeque::new();
        while !self.closing.load(Ordering::Relaxed) {
            match self.inbox.recv() {
                Ok(Message::Sample(entry)) => waiting.push_back(entry),
                Ok(Message::LetGo) => continue,
                Err(_) => return,
            }
            match self.library.base(&self.name) {
                Ok(base) => self.sample(&base, &mut waiting),
                Err(error) => {
                    log::error!("local server: {} cannot be loaded: {error}", self.name);
                    waiting
                        .drain(..)
                        .for_each(|entry| entry.listener.fail(&error));
                }
            }
        }
    }

    /// Waits for something to do, with the model at hand.
    fn rest(&self) -> Option<Message> {
        let offer = self.library.offer(&self.name).ok()?;
        offer.rests.store(true, Ordering::Relaxed);
        let message = self.inbox.recv();
        offer.rests.store(false, Ordering::Relaxed);
        message.ok()
    }

    /// Samples until the model's memory is wanted back or the thread is to end.
    fn sample(&self, base: &Base, waiting: &mut VecDeque<Box<Entry>>) {
        let mut batch = Batch::new(base, self.memory);
        let mut wanted_back = false;
        while !self.closing.load(Ordering::Relaxed) {
            if batch.is_idle() && waiting.is_empty() {
                if wanted_back {
                    return;
                }
                match self.rest() {
                    Some(Message::Sample(entry)) => waiting.push_back(entry),
                    Some(Message::LetGo) | None => return,
                }
            }
            let turn = || {
                let started = Instant::now();
                self.feed(&mut batch, waiting);
                while !batch.is_idle() && started.elapsed() < TURN {
                    batch.round();
                    for message in self.inbox.try_iter() {
                        match message {
                            Message::Sample(entry) => waiting.push_back(entry),
                            Message::LetGo => wanted_back = true,
                        }
                    }
                    self.feed(&mut batch, waiting);
                }
            };
            if catch_unwind(AssertUnwindSafe(|| base.run(turn))).is_err() {
                // Who waited for it is told when the listeners are dropped.
                log::error!("local server: sampling panicked");
                batch = Batch::new(base, self.memory);
            }
        }
    }

    /// Hands requests to the batch, but no more adapters than it can use soon.
    fn feed(&self, batch: &mut Batch<'static>, waiting: &mut VecDeque<Box<Entry>>) {
        while batch.waiting() < AHEAD
            && let Some(entry) = waiting.pop_front()
        {
            let Entry {
                adapter,
                request,
                listener,
            } = *entry;
            let adapters = self.library.adapters();
            let adapter = match adapter.map(|slot| adapters.take(&slot)).transpose() {
                Ok(adapter) => adapter,
                Err(error) => {
                    listener.fail(&error);
                    continue;
                }
            };
            if let Err(error) = batch.add(adapter, request, listener) {
                log::error!("local server: a request cannot be sampled: {error}");
            }
        }
    }
}
