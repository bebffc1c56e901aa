//! The results of accepted requests, from acceptance until somebody has fetched them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Notify;

use crate::error::ErrorCategory;
use crate::sync::lock;
use crate::wire::reply::Completion;

/// A result that was sent once is kept this long, in case the reply was lost on its way.
const KEEP_SENT: Duration = Duration::from_secs(120);
/// Of those, this many at most: whoever missed one asks again soon.
const KEEP_SENT_COUNT: usize = 8192;
/// A result nobody asked for is kept this long.
const KEEP_UNSENT: Duration = Duration::from_secs(3600);
/// When results kept exceed this many bytes, the oldest go: first those sent, then any.
const KEEP_BYTES: usize = 1 << 30;

/// How a request ended.
#[derive(Debug, Clone)]
pub(in crate::local) enum Outcome {
    /// A JSON object, encoded.
    Json(Bytes),
    /// An encoded `ForwardBackwardOutput`.
    Training(Bytes),
    /// An encoded `SampleResponse`.
    Sample(Bytes),
    Failed {
        message: String,
        category: ErrorCategory,
    },
}

impl Outcome {
    pub(in crate::local) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => Self::Json(bytes.into()),
            Err(error) => Self::failed(format!("the result cannot be encoded: {error}")),
        }
    }

    /// The caller's fault.
    pub(in crate::local) fn refused(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            category: ErrorCategory::User,
        }
    }

    /// Our fault.
    pub(in crate::local) fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            category: ErrorCategory::Server,
        }
    }

    pub(in crate::local) fn size(&self) -> usize {
        match self {
            Self::Json(bytes) | Self::Training(bytes) | Self::Sample(bytes) => bytes.len(),
            Self::Failed { message, .. } => message.len(),
        }
    }
}

/// What one look at a future shows.
#[derive(Debug)]
pub(in crate::local) enum Look {
    Done(Outcome),
    /// Still pending; the reason is for people.
    Pending {
        paused: Option<String>,
    },
    /// Never accepted, or dropped long ago.
    Unknown,
}

/// Who is told about completions as they happen: a sampling session and one of its clones.
pub(in crate::local) type Channel = (String, u64);

#[derive(Debug, Default)]
pub(in crate::local) struct Futures {
    shelf: Mutex<Shelf>,
    /// Told when a channel has its first completion.
    opened: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    channels: HashMap<Channel, Log>,
    /// Finished requests in the order they finished, for dropping the oldest.
    finished: VecDeque<String>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    /// Who asked. To others it does not exist: ids are no secrets.
    owner: String,
    state: State,
    channel: Option<Channel>,
    /// How to stop the work, where that is possible.
    cancelled: Option<Arc<AtomicBool>>,
    changed: Arc<Notify>,
}

#[derive(Debug)]
enum State {
    Pending {
        paused: Option<String>,
    },
    Finished {
        outcome: Outcome,
        at: Instant,
        sent: Option<Instant>,
    },
}

/// Completions of one channel that its client has not seen for certain.
#[derive(Debug, Default)]
struct Log {
    /// How many were dropped from the front: the cursor of the first one kept.
    start: u64,
    kept: VecDeque<Completion>,
    /// Whether a client has ever asked; others fetch their results one by one.
    is_polled: bool,
    /// Whether its client has a cursor of this log; before, one is of an earlier process's.
    is_read: bool,
    changed: Arc<Notify>,
}

impl Futures {
    /// Registers an accepted request. False if it was registered before: a repeated submission.
    pub(in crate::local) fn open(
        &self,
        id: &str,
        owner: &str,
        channel: Option<Channel>,
        cancelled: Option<Arc<AtomicBool>>,
    ) -> bool {
        let mut shelf = lock(&self.shelf);
        if shelf.entries.contains_key(id) {
            return false;
        }
        let entry = Entry {
            owner: owner.to_owned(),
            state: State::Pending { paused: None },
            channel,
            cancelled,
            changed: Arc::default(),
        };
        shelf.entries.insert(id.to_owned(), entry);
        true
    }

    pub(in crate::local) fn is_open(&self, id: &str) -> bool {
        lock(&self.shelf).entries.contains_key(id)
    }

    /// Says why a pending request does not move, or that it does again.
    pub(in crate::local) fn pause(&self, id: &str, reason: Option<String>) {
        if let Some(Entry {
            state: State::Pending { paused },
            ..
        }) = lock(&self.shelf).entries.get_mut(id)
        {
            *paused = reason;
        }
    }

    /// Files the result and wakes whoever waits. The first result wins.
    pub(in crate::local) fn finish(&self, id: &str, outcome: Outcome) {
        let mut shelf = lock(&self.shelf);
        let Some(entry) = shelf.entries.get_mut(id) else {
            return;
        };
        if matches!(entry.state, State::Finished { .. }) {
            return;
        }
        let completion = match &outcome {
            Outcome::Failed { .. } => Completion::Failed {
                request_id: id.to_owned(),
            },
            _ => Completion::Finished {
                request_id: id.to_owned(),
                response_payload_uncompressed_size: Some(outcome.size() as u64),
            },
        };
        let size = outcome.size();
        entry.state = State::Finished {
            outcome,
            at: Instant::now(),
            sent: None,
        };
        entry.changed.notify_waiters();
        let channel = entry.channel.clone();
        shelf.bytes += size;
        shelf.finished.push_back(id.to_owned());
        if let Some(channel) = channel {
            let log = shelf.channels.entry(channel).or_default();
            log.kept.push_back(completion);
            log.changed.notify_waiters();
            self.opened.notify_waiters();
        }
    }

    /// Forgets a request that will never have a result, and tells whoever waits.
    pub(in crate::local) fn forget(&self, id: &str) {
        if let Some(entry) = lock(&self.shelf).entries.remove(id) {
            entry.changed.notify_waiters();
        }
    }

    /// Stops the work of a pending request, where that is possible.
    pub(in crate::local) fn cancel(&self, id: &str, owner: &str) {
        let flag = match lock(&self.shelf).of(id, owner) {
            Some(Entry {
                state: State::Pending { .. },
                cancelled: Some(flag),
                ..
            }) => flag.clone(),
            _ => return,
        };
        flag.store(true, Ordering::Relaxed);
        self.finish(id, Outcome::refused("cancelled by the client"));
    }

    /// Stops all work that can be stopped, so that the server can end.
    pub(in crate::local) fn cancel_all(&self) {
        for entry in lock(&self.shelf).entries.values() {
            if let Some(flag) = &entry.cancelled {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Waits until the request has finished or the time is up.
    pub(in crate::local) async fn wait(
        &self,
        id: &str,
        owner: &str,
        until: tokio::time::Instant,
    ) -> Look {
        loop {
            let changed = match lock(&self.shelf).of(id, owner) {
                None => return Look::Unknown,
                Some(entry) => entry.changed.clone(),
            };
            let notified = changed.notified();
            tokio::pin!(notified);
            // Enlisted before looking, so that a result filed in between is not missed.
            notified.as_mut().enable();
            match self.look(id, owner) {
                Look::Pending { .. } => {}
                look => return look,
            }
            if tokio::time::timeout_at(until, notified).await.is_err() {
                return self.look(id, owner);
            }
        }
    }

    /// What is known about a request now.
    pub(in crate::local) fn look(&self, id: &str, owner: &str) -> Look {
        match lock(&self.shelf).of(id, owner).map(|entry| &entry.state) {
            None => Look::Unknown,
            Some(State::Pending { paused }) => Look::Pending {
                paused: paused.clone(),
            },
            Some(State::Finished { outcome, .. }) => Look::Done(outcome.clone()),
        }
    }

    /// Marks a result as on its way to the client.
    pub(in crate::local) fn sent(&self, id: &str) {
        if let Some(Entry {
            state: State::Finished { sent, .. },
            ..
        }) = lock(&self.shelf).entries.get_mut(id)
        {
            sent.get_or_insert_with(Instant::now);
        }
    }

    /// Drops results of its own that a client says it has.
    pub(in crate::local) fn acknowledge(&self, ids: &[String], owner: &str) {
        let mut shelf = lock(&self.shelf);
        for id in ids {
            if shelf.of(id, owner).is_some() {
                shelf.remove(id);
            }
        }
    }

    /// The completions of a channel after a cursor, waiting for the first until the time is up.
    ///
    /// Asking makes no channel, only a completion does: anybody may ask for anything.
    pub(in crate::local) async fn completions(
        &self,
        channel: &Channel,
        cursor: u64,
        until: tokio::time::Instant,
    ) -> (Vec<Completion>, u64) {
        loop {
            let changed = self.log(channel, |log| log.changed.clone());
            let changed = changed.unwrap_or_else(|| self.opened.clone());
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let told = self.log(channel, |log| log.after(cursor));
            let (found, next) = told.unwrap_or((Vec::new(), cursor));
            if !found.is_empty() || tokio::time::timeout_at(until, notified).await.is_err() {
                return (found, next);
            }
        }
    }

    /// How many results are kept, and their bytes.
    pub(in crate::local) fn kept(&self) -> (usize, usize) {
        let shelf = lock(&self.shelf);
        (shelf.finished.len(), shelf.bytes)
    }

    /// Drops what nobody will ask for any more.
    pub(in crate::local) fn sweep(&self, now: Instant) {
        let mut shelf = lock(&self.shelf);
        let mut sent = 0;
        let is_over = |id: &&String| {
            sent += usize::from(shelf.was_sent(id));
            shelf.is_expired(id, now) || (shelf.was_sent(id) && sent > KEEP_SENT_COUNT)
        };
        let newest_first = shelf.finished.iter().rev();
        let expired: Vec<String> = newest_first.filter(is_over).cloned().collect();
        for id in &expired {
            shelf.remove(id);
        }
        let Shelf {
            entries,
            finished,
            channels,
            ..
        } = &mut *shelf;
        finished.retain(|id| entries.contains_key(id));
        channels.retain(|_, log| {
            log.drop_front(|id| !entries.contains_key(id));
            log.is_polled || !log.kept.is_empty()
        });
        while shelf.bytes > KEEP_BYTES {
            let Some(id) = shelf.oldest() else { break };
            shelf.remove(&id);
            shelf.finished.retain(|kept| *kept != id);
        }
    }

    /// Forgets the channels of a sampling session that has ended.
    pub(in crate::local) fn forget_channels(&self, sampling_session: &str) {
        lock(&self.shelf)
            .channels
            .retain(|(session, _), _| session != sampling_session);
    }

    /// What a client that polls reads of its channel, if there is one.
    fn log<T>(&self, channel: &Channel, read: impl FnOnce(&mut Log) -> T) -> Option<T> {
        let mut shelf = lock(&self.shelf);
        let log = shelf.channels.get_mut(channel)?;
        log.is_polled = true;
        Some(read(log))
    }
}

impl Shelf {
    /// A request, as far as it exists for whoever asks.
    fn of(&self, id: &str, owner: &str) -> Option<&Entry> {
        self.entries.get(id).filter(|entry| entry.owner == owner)
    }

    fn remove(&mut self, id: &str) {
        if let Some(Entry {
            state: State::Finished { outcome, .. },
            ..
        }) = self.entries.get(id)
        {
            self.bytes -= outcome.size();
            self.entries.remove(id);
        }
    }

    fn was_sent(&self, id: &str) -> bool {
        matches!(
            self.entries.get(id).map(|entry| &entry.state),
            Some(State::Finished { sent: Some(_), .. })
        )
    }

    fn is_expired(&self, id: &str, now: Instant) -> bool {
        match self.entries.get(id).map(|entry| &entry.state) {
            Some(State::Finished { at, sent, .. }) => match sent {
                Some(sent) => now.duration_since(*sent) > KEEP_SENT,
                None => now.duration_since(*at) > KEEP_UNSENT,
            },
            Some(State::Pending { .. }) => false,
            None => true,
        }
    }

    /// The result to give up first: the oldest that was sent, or else the oldest.
    fn oldest(&self) -> Option<String> {
        let oldest = self.finished.iter().find(|id| self.was_sent(id));
        oldest.or_else(|| self.finished.front()).cloned()
    }
}

impl Log {
    /// Drops what nobody can ask for any more, from the front.
    fn drop_front(&mut self, is_gone: impl Fn(&str) -> bool) {
        while self
            .kept
            .front()
            .is_some_and(|first| is_gone(first.request_id()))
        {
            self.kept.pop_front();
            self.start += 1;
        }
    }

    /// Everything from the cursor on. What lies before it the client has seen, so it goes.
    fn after(&mut self, cursor: u64) -> (Vec<Completion>, u64) {
        if !std::mem::replace(&mut self.is_read, true) {
            self.start = self.start.max(cursor);
        }
        while self.start < cursor && self.kept.pop_front().is_some() {
            self.start += 1;
        }
        // Anybody may claim to have read anything.
        let next = self.start.saturating_add(self.kept.len() as u64);
        (self.kept.iter().cloned().collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: &str = "ann";

    fn done(text: &'static str) -> Outcome {
        Outcome::Json(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn the_same_request_opens_once_and_the_first_result_stays() {
        let futures = Futures::default();
        assert!(futures.open("r", ANN, None, None));
        assert!(!futures.open("r", ANN, None, None));
        futures.finish("r", done("{}"));
        futures.finish("r", Outcome::failed("late"));
        assert!(matches!(
            futures.look("r", ANN),
            Look::Done(Outcome::Json(_))
        ));
        assert!(matches!(futures.look("other", ANN), Look::Unknown));
    }

    #[test]
    fn results_can_be_fetched_again_until_they_expire() {
        let futures = Futures::default();
        for id in ["sent", "unsent", "pending"] {
            futures.open(id, ANN, None, None);
        }
        futures.finish("sent", done("{}"));
        futures.finish("unsent", done("{}"));
        futures.sent("sent");
        let soon = Instant::now() + KEEP_SENT / 2;
        futures.sweep(soon);
        assert!(matches!(futures.look("sent", ANN), Look::Done(_)));
        futures.sweep(Instant::now() + KEEP_SENT * 2);
        assert!(matches!(futures.look("sent", ANN), Look::Unknown));
        assert!(matches!(futures.look("unsent", ANN), Look::Done(_)));
        futures.sweep(Instant::now() + KEEP_UNSENT * 2);
        assert!(matches!(futures.look("unsent", ANN), Look::Unknown));
        assert!(matches!(futures.look("pending", ANN), Look::Pending { .. }));
    }

    #[test]
    fn of_results_that_were_sent_the_latest_stay() {
        let futures = Futures::default();
        let total = KEEP_SENT_COUNT + 10;
        for number in 0..total {
            let id = number.to_string();
            futures.open(&id, ANN, None, None);
            futures.finish(&id, done("{}"));
            if number > 0 {
                futures.sent(&id);
            }
        }
        futures.sweep(Instant::now());
        let is_there =
            |number: usize| matches!(futures.look(&number.to_string(), ANN), Look::Done(_));
        assert!(is_there(0), "nobody has asked for it yet");
        assert!(!is_there(9) && is_there(10) && is_there(total - 1));
        assert_eq!(futures.kept().0, KEEP_SENT_COUNT + 1);
    }

    #[test]
    fn completions_repeat_until_the_cursor_moves() {
        let futures = Futures::default();
        let channel = ("s".to_owned(), 0);
        for id in ["a", "b"] {
            futures.open(id, ANN, Some(channel.clone()), None);
        }
        futures.finish("a", done("{}"));
        let seen = |cursor| futures.log(&channel, |log| log.after(cursor)).unwrap();
        assert_eq!((seen(0).0.len(), seen(0).1), (1, 1));
        futures.finish("b", Outcome::refused("bad"));
        assert_eq!((seen(0).0.len(), seen(0).1), (2, 2));
        assert_eq!((seen(1).0.len(), seen(1).1), (1, 2));
        assert_eq!((seen(2).0.len(), seen(2).1), (0, 2));
        futures.acknowledge(&["a".into()], "bob");
        assert!(matches!(futures.look("a", ANN), Look::Done(_)));
        futures.acknowledge(&["a".into()], ANN);
        assert!(matches!(futures.look("a", ANN), Look::Unknown));
    }

    /// A client that polled an earlier process goes on with its cursor, and misses nothing.
    #[test]
    fn a_cursor_from_before_a_restart_skips_nothing() {
        let futures = Futures::default();
        let channel = ("s".to_owned(), 0);
        for id in ["a", "b"] {
            futures.open(id, ANN, Some(channel.clone()), None);
            futures.finish(id, done("{}"));
        }
        let seen = |cursor| futures.log(&channel, |log| log.after(cursor)).unwrap();
        assert_eq!((seen(57).0.len(), seen(57).1), (2, 59));
        assert_eq!((seen(59).0.len(), seen(59).1), (0, 59));
        let other = ("t".to_owned(), 0);
        futures.open("c", ANN, Some(other.clone()), None);
        futures.finish("c", done("{}"));
        let far = futures.log(&other, |log| log.after(u64::MAX)).unwrap();
        assert_eq!((far.0.len(), far.1), (1, u64::MAX));
    }

    /// A sampler whose client fetches results one by one has nobody who reads its completions.
    #[test]
    fn completions_that_nobody_asks_for_go_with_their_results() {
        let futures = Futures::default();
        let channel = ("s".to_owned(), 0);
        for number in 0..100 {
            let id = number.to_string();
            futures.open(&id, ANN, Some(channel.clone()), None);
            futures.finish(&id, done("{}"));
            futures.sent(&id);
        }
        assert_eq!(lock(&futures.shelf).channels[&channel].kept.len(), 100);
        futures.sweep(Instant::now() + KEEP_SENT * 2);
        assert!(lock(&futures.shelf).channels.is_empty());
    }

    #[test]
    fn to_others_a_request_does_not_exist() {
        let futures = Futures::default();
        let flag = Arc::new(AtomicBool::new(false));
        futures.open("r", ANN, None, Some(flag.clone()));
        futures.cancel("r", "bob");
        assert!(!flag.load(Ordering::Relaxed));
        assert!(matches!(futures.look("r", "bob"), Look::Unknown));
        assert!(matches!(futures.look("r", ANN), Look::Pending { .. }));
        futures.cancel("r", ANN);
        assert!(flag.load(Ordering::Relaxed));
    }

    /// Before the first sample, for a session that never was, after its end: nothing stays.
    #[tokio::test]
    async fn a_poll_makes_no_channel() {
        let futures = Futures::default();
        let channel = ("s".to_owned(), 0);
        let now = tokio::time::Instant::now();
        assert_eq!(futures.completions(&channel, 7, now).await.1, 7);
        assert!(lock(&futures.shelf).channels.is_empty());
        futures.open("r", ANN, Some(channel.clone()), None);
        let until = now + Duration::from_secs(600);
        let (told, ()) = tokio::join!(futures.completions(&channel, 0, until), async {
            futures.finish("r", done("{}"));
        });
        assert_eq!((told.0.len(), told.1), (1, 1));
        // Its client polls, so where it has got to is not forgotten.
        futures.acknowledge(&["r".into()], ANN);
        futures.sweep(Instant::now());
        assert_eq!(lock(&futures.shelf).channels.len(), 1);
        futures.forget_channels("s");
        assert_eq!(futures.completions(&channel, 1, now).await.1, 1);
        assert!(lock(&futures.shelf).channels.is_empty());
    }
}
