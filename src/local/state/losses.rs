//! Custom losses: the graphs that a session's clients have uploaded.
//!
//! A graph is data, not code: it becomes a formula of operations this crate knows, or it is
//! refused by the name of the first one it does not. Losses live as long as their session, and come
//! back with its models after a restart.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::StateError;
use crate::error::{Error, Result};
use crate::loss::{LossGraph, Objective};
use crate::sync::lock;

/// How many distinct losses a session may have.
const LIMIT: usize = 1000;

/// The losses of every session alive.
#[derive(Debug, Default)]
pub(in crate::local) struct Losses {
    sessions: Mutex<HashMap<String, Uploaded>>,
}

#[derive(Debug, Default)]
struct Uploaded {
    /// Each distinct graph, as it was sent first, and its formula.
    losses: Vec<(LossGraph, Arc<Objective>)>,
    /// Places in that list by the number the client gave.
    numbers: BTreeMap<u64, usize>,
}

impl Losses {
    /// Makes a loss known and gives its id; a graph the session has already keeps its id.
    pub(in crate::local) fn add(
        &self,
        session_id: &str,
        number: u64,
        graph: &LossGraph,
    ) -> Result<String, StateError> {
        let bad = |problem: String| StateError::Refused(problem);
        let objective = graph
            .to_objective()
            .map_err(|error| bad(format!("this server cannot run the loss: {error}")))?;
        let mut sessions = lock(&self.sessions);
        let session = sessions.entry(session_id.to_owned()).or_default();
        let same =
            |other: &LossGraph| (&other.inputs, &other.graph) == (&graph.inputs, &graph.graph);
        let known = session.losses.iter().position(|(other, _)| same(other));
        if let Some(earlier) = session.numbers.get(&number)
            && known != Some(*earlier)
        {
            return Err(bad(format!("loss {number} of this session is another one")));
        }
        let place = match known {
            Some(place) => place,
            None if session.losses.len() >= LIMIT => {
                return Err(bad(format!("a session may have {LIMIT} losses at most")));
            }
            None => {
                session.losses.push((graph.clone(), Arc::new(objective)));
                session.losses.len() - 1
            }
        };
        session.numbers.insert(number, place);
        Ok(loss_id(session_id, place))
    }

    /// What a session uploaded, with its numbers, so that adding it again in this order gives each
    /// loss the same id.
    pub(in crate::local) fn uploaded(&self, session_id: &str) -> Vec<(u64, LossGraph)> {
        let sessions = lock(&self.sessions);
        let Some(session) = sessions.get(session_id) else {
            return Vec::new();
        };
        let numbers = session.numbers.iter();
        let mut places: Vec<(usize, u64)> =
            numbers.map(|(number, place)| (*place, *number)).collect();
        places.sort_unstable();
        let graph = |(place, number): (usize, u64)| (number, session.losses[place].0.clone());
        places.into_iter().map(graph).collect()
    }

    /// Forgets what a session uploaded.
    pub(in crate::local) fn remove_session(&self, session_id: &str) {
        lock(&self.sessions).remove(session_id);
    }

    pub(in crate::local) fn get(&self, session_id: &str, id: &str) -> Result<Arc<Objective>> {
        let sessions = lock(&self.sessions);
        let losses = sessions.get(session_id).map(|session| &session.losses);
        let mut losses = losses.into_iter().flatten().enumerate();
        losses
            .find(|(place, _)| loss_id(session_id, *place) == id)
            .map(|(_, (_, objective))| objective.clone())
            .ok_or_else(|| {
                let problem = format!("this session has uploaded no loss {id:?}");
                Error::invalid("loss_fn_config.loss_id", problem)
            })
    }
}

fn loss_id(session_id: &str, place: usize) -> String {
    format!("{session_id}:loss:{place}")
}
