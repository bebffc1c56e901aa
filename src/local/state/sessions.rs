//! Sessions: opened by a client, kept alive by its heartbeat, ended by finish or by silence.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::StateError;
use crate::sync::lock;
use crate::types::{SessionStatus, Timestamp, TinkerPath};

/// Who owns what was made without a key.
pub(in crate::local) const LOCAL: &str = "local";

pub(super) fn local() -> String {
    LOCAL.to_owned()
}

/// What is known about a session; also what survives a restart.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::local) struct Session {
    pub(in crate::local) id: String,
    pub(in crate::local) created_at: Timestamp,
    #[serde(default = "local")]
    pub(in crate::local) owner: String,
    #[serde(default)]
    pub(in crate::local) tags: Vec<String>,
    #[serde(default)]
    pub(in crate::local) user_metadata: Map<String, Value>,
    #[serde(default)]
    pub(in crate::local) project_id: Option<String>,
    #[serde(default)]
    pub(in crate::local) display_name: Option<String>,
    pub(in crate::local) status: SessionStatus,
    /// Models by their number in the session.
    #[serde(default)]
    pub(in crate::local) models: BTreeMap<u64, String>,
    /// Sampling sessions by theirs.
    #[serde(default)]
    pub(in crate::local) samplers: BTreeMap<u64, String>,
    /// What those sample from that can be made again.
    #[serde(default)]
    pub(in crate::local) origins: BTreeMap<u64, Origin>,
}

impl Session {
    /// How many samplers can be made again, the latest: every step of a run may make one.
    const ORIGINS: usize = 1000;

    pub(super) fn add_sampler(&mut self, number: u64, id: String, origin: Option<Origin>) {
        self.samplers.insert(number, id);
        self.origins.extend(origin.map(|origin| (number, origin)));
        while self.origins.len() > Self::ORIGINS {
            self.origins.pop_first();
        }
    }
}

/// What a sampler samples from, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::local) struct Origin {
    pub(in crate::local) base_model: String,
    #[serde(default)]
    pub(in crate::local) model_path: Option<TinkerPath>,
    /// The file of the path's weights, for a path may get others.
    #[serde(default)]
    pub(in crate::local) file: Option<String>,
}

/// What became of a session of an earlier process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::local) enum Earlier {
    /// It was alive when that process ended.
    Interrupted,
    /// Its client has ended it.
    Finished,
    /// Its client fell silent, or nobody remembers.
    Gone,
}

#[derive(Debug)]
pub(in crate::local) struct Sessions {
    timeout: Duration,
    all: Mutex<BTreeMap<String, Live>>,
}

#[derive(Debug)]
struct Live {
    session: Session,
    last_seen: Instant,
    /// Whether an earlier process left it alive.
    interrupted: bool,
}

impl Live {
    fn revive(&mut self) {
        self.session.status = SessionStatus::Active;
        self.last_seen = Instant::now();
    }
}

impl Sessions {
    /// Starts with the sessions of an earlier process; those still active then are over, unless
    /// they are [taken up again](Self::revive).
    pub(in crate::local) fn new(timeout: Duration, earlier: Vec<Session>) -> Self {
        let now = Instant::now();
        let all = earlier
            .into_iter()
            .map(|mut session| {
                let interrupted = session.status == SessionStatus::Active;
                if interrupted {
                    session.status = SessionStatus::Cancelled {
                        detail: Some("the server was restarted".into()),
                    };
                }
                let live = Live {
                    session,
                    last_seen: now,
                    interrupted,
                };
                (live.session.id.clone(), live)
            })
            .collect();
        Self {
            timeout,
            all: Mutex::new(all),
        }
    }

    pub(in crate::local) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(in crate::local) fn add(&self, session: Session) {
        let live = Live {
            last_seen: Instant::now(),
            session,
            interrupted: false,
        };
        lock(&self.all).insert(live.session.id.clone(), live);
    }

    /// What became of a session that an earlier process knew.
    pub(in crate::local) fn earlier(&self, id: &str) -> Earlier {
        match lock(&self.all).get(id) {
            Some(live) if live.interrupted => Earlier::Interrupted,
            Some(live) => match live.session.status {
                SessionStatus::ClientFinished { .. } => Earlier::Finished,
                _ => Earlier::Gone,
            },
            None => Earlier::Gone,
        }
    }

    /// Takes up a session that was interrupted: its client has as long to come back as after any
    /// heartbeat. It has this model again.
    pub(in crate::local) fn revive(&self, id: &str, model: &str) {
        if let Some(live) = lock(&self.all).get_mut(id).filter(|live| live.interrupted) {
            live.revive();
            let number = model.rsplit(':').next().and_then(|text| text.parse().ok());
            if let Some(number) = number {
                live.session.models.insert(number, model.to_owned());
            }
        }
    }

    /// Takes up the sessions that were interrupted and have samplers that can be made again.
    pub(super) fn revive_samplers(&self) -> Vec<Session> {
        let mut all = lock(&self.all);
        let sample = |live: &&mut Live| live.interrupted && !live.session.origins.is_empty();
        let revived = all.values_mut().filter(sample).map(|live| {
            live.revive();
            live.session.clone()
        });
        revived.collect()
    }

    /// Notes a sign of life.
    pub(in crate::local) fn touch(&self, id: &str) -> Result<(), StateError> {
        self.with_active(id, |_| ())
    }

    /// Works on an active session, which counts as a sign of life; 410 once it has ended.
    pub(in crate::local) fn with_active<T>(
        &self,
        id: &str,
        work: impl FnOnce(&mut Session) -> T,
    ) -> Result<T, StateError> {
        let mut all = lock(&self.all);
        let live = all.get_mut(id).ok_or_else(|| unknown(id))?;
        if live.session.status != SessionStatus::Active {
            return Err(StateError::Ended(format!("session {id} has ended")));
        }
        live.last_seen = Instant::now();
        Ok(work(&mut live.session))
    }

    /// Ends a session; the first reason stays. Gives back the session if this ended it.
    pub(in crate::local) fn finish(
        &self,
        id: &str,
        status: SessionStatus,
    ) -> Result<Option<Session>, StateError> {
        let mut all = lock(&self.all);
        let live = all.get_mut(id).ok_or_else(|| unknown(id))?;
        if live.session.status != SessionStatus::Active {
            return Ok(None);
        }
        live.session.status = status;
        Ok(Some(live.session.clone()))
    }

    /// Ends the sessions that have been silent too long, and gives them back.
    pub(in crate::local) fn expire(&self, now: Instant) -> Vec<Session> {
        let mut all = lock(&self.all);
        let silent = all.values_mut().filter(|live| {
            live.session.status == SessionStatus::Active
                && now.saturating_duration_since(live.last_seen) > self.timeout
        });
        silent
            .map(|live| {
                live.session.status = SessionStatus::Cancelled {
                    detail: Some("the heartbeat stopped".into()),
                };
                live.session.clone()
            })
            .collect()
    }

    pub(in crate::local) fn get(&self, id: &str) -> Result<Session, StateError> {
        let all = lock(&self.all);
        let live = all.get(id).ok_or_else(|| unknown(id))?;
        Ok(live.session.clone())
    }

    /// Changes the record of a session, ended or not.
    pub(in crate::local) fn edit(
        &self,
        id: &str,
        change: impl FnOnce(&mut Session),
    ) -> Result<Session, StateError> {
        let mut all = lock(&self.all);
        let live = all.get_mut(id).ok_or_else(|| unknown(id))?;
        change(&mut live.session);
        Ok(live.session.clone())
    }

    /// Who owns a session.
    pub(in crate::local) fn owner(&self, id: &str) -> Option<String> {
        let all = lock(&self.all);
        all.get(id).map(|live| live.session.owner.clone())
    }

    /// How many are alive.
    pub(in crate::local) fn active(&self) -> usize {
        let all = lock(&self.all);
        let active = |live: &&Live| live.session.status == SessionStatus::Active;
        all.values().filter(active).count()
    }

    /// Forgets ended sessions that are older than `since` or not among the latest `count`.
    pub(in crate::local) fn prune(&self, since: Timestamp, count: usize) -> Vec<String> {
        let ended = |session: &Session| session.status != SessionStatus::Active;
        let list = self.list().into_iter().enumerate();
        let over = list.filter(|(place, one)| *place >= count || one.created_at < since);
        let over: Vec<String> = over
            .filter(|(_, session)| ended(session))
            .map(|(_, session)| session.id)
            .collect();
        let mut all = lock(&self.all);
        for id in &over {
            all.remove(id);
        }
        over
    }

    /// Every session, newest first.
    pub(in crate::local) fn list(&self) -> Vec<Session> {
        let mut list: Vec<Session> = lock(&self.all)
            .values()
            .map(|live| live.session.clone())
            .collect();
        list.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        list
    }
}

fn unknown(id: &str) -> StateError {
    StateError::Missing(format!("no such session: {id}"))
}

/// An active session with nothing in it.
#[cfg(test)]
pub(in crate::local) fn session(id: &str) -> Session {
    Session {
        id: id.into(),
        created_at: Timestamp::UNIX_EPOCH,
        owner: local(),
        tags: Vec::new(),
        user_metadata: Map::new(),
        project_id: None,
        display_name: None,
        status: SessionStatus::Active,
        models: BTreeMap::new(),
        samplers: BTreeMap::new(),
        origins: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_ends_a_session_and_the_first_end_counts() {
        let sessions = Sessions::new(Duration::from_secs(60), Vec::new());
        sessions.add(session("a"));
        sessions.add(session("b"));
        let finished = SessionStatus::ClientFinished {
            reason: crate::types::FinishReason::Success,
            detail: None,
        };
        assert!(sessions.finish("a", finished.clone()).unwrap().is_some());
        let errored = SessionStatus::Cancelled { detail: None };
        assert!(sessions.finish("a", errored).unwrap().is_none());
        assert!(sessions.expire(Instant::now()).is_empty());
        let expired = sessions.expire(Instant::now() + Duration::from_secs(61));
        assert_eq!(expired.len(), 1);
        assert_eq!(sessions.get("a").unwrap().status, finished);
        assert!(matches!(sessions.touch("b"), Err(StateError::Ended(_))));
        assert!(matches!(sessions.touch("c"), Err(StateError::Missing(_))));
    }
}
