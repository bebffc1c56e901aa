//! The thread that samples: requests join the engine's batch as they come.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::error::{Context, Error, Result};
use crate::local::engine::{Base, Batch, Listener, SampleRequest};
use crate::local::state::adapters::{Adapters, Slot};
use crate::sync::lock;

/// How long sampling keeps the engine's threads before training may have a turn.
const TURN: Duration = Duration::from_millis(20);

/// Requests that wait in the batch itself, with their adapters in memory.
const AHEAD: usize = 16;

/// One request with whoever waits for it.
struct Entry {
    adapter: Option<Arc<Slot>>,
    request: SampleRequest,
    listener: Box<dyn Listener>,
}

/// A named thread that owns the batch. Closing it drops what is under way and joins.
pub(super) struct SamplingThread {
    /// `None` once closed.
    inbox: Mutex<Option<Sender<Entry>>>,
    closing: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SamplingThread {
    /// Samples on a base, with so many bytes for keys and values.
    pub(super) fn start(base: &Base, adapters: Arc<Adapters>, memory: usize) -> Result<Self> {
        let (sender, inbox) = crossbeam_channel::unbounded();
        let closing = Arc::new(AtomicBool::new(false));
        let (base, closes) = (base.clone(), closing.clone());
        let thread = std::thread::Builder::new()
            .name("tinker-local-sample".into())
            .spawn(move || work(&base, &adapters, memory, &inbox, &closes))
            .map_err(|error| Error::Internal(Context::caused("no thread", error)))?;
        Ok(Self {
            inbox: Mutex::new(Some(sender)),
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
        let inbox = lock(&self.inbox);
        if let Some(inbox) = &*inbox {
            // The thread may have ended meanwhile: the same as closed.
            let _ = inbox.send(Entry {
                adapter,
                request,
                listener,
            });
        }
    }

    /// Ends the thread after the round it is at.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        let inbox = lock(&self.inbox).take();
        drop(inbox);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for SamplingThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplingThread").finish_non_exhaustive()
    }
}

fn work(
    base: &Base,
    adapters: &Adapters,
    memory: usize,
    inbox: &Receiver<Entry>,
    closing: &AtomicBool,
) {
    let mut batch = Batch::new(base, memory);
    let mut waiting = VecDeque::new();
    while !closing.load(Ordering::Relaxed) {
        if batch.is_idle() && waiting.is_empty() {
            match inbox.recv() {
                Ok(entry) => waiting.push_back(entry),
                Err(_) => return,
            }
        }
        let turn = || {
            let started = Instant::now();
            feed(&mut batch, adapters, &mut waiting);
            while !batch.is_idle() && started.elapsed() < TURN {
                batch.round();
                waiting.extend(inbox.try_iter());
                feed(&mut batch, adapters, &mut waiting);
            }
        };
        if catch_unwind(AssertUnwindSafe(|| base.run(turn))).is_err() {
            // Who waited for it is told when the listeners are dropped.
            log::error!("local server: sampling panicked");
            batch = Batch::new(base, memory);
        }
    }
}

/// Hands requests to the batch, but no more adapters than it can use soon.
fn feed(batch: &mut Batch<'static>, adapters: &Adapters, waiting: &mut VecDeque<Entry>) {
    while batch.waiting() < AHEAD
        && let Some(entry) = waiting.pop_front()
    {
        let adapter = entry.adapter.map(|slot| adapters.take(&slot)).transpose();
        let added = adapter.and_then(|adapter| batch.add(adapter, entry.request, entry.listener));
        if let Err(error) = added {
            log::error!("local server: a request cannot be sampled: {error}");
        }
    }
}
