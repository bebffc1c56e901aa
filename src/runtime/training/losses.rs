//! Losses that the service runs: each graph is uploaded once per session.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::room::Training;
use crate::error::Result;
use crate::loss::LossGraph;
use crate::sync::lock;
use crate::wire::reply::CreateCustomLossReply;
use crate::wire::request::{CreateCustomLossRequest, to_json};
use crate::wire::route;

/// Graphs that are remembered; a program that makes new ones all the time uploads old ones again.
const KEPT: usize = 64;

/// What a session has uploaded.
#[derive(Debug, Default)]
pub(super) struct Losses {
    next: AtomicU64,
    /// Graphs and the ids the service gave them, the latest last.
    uploaded: Mutex<VecDeque<(String, String)>>,
}

impl Losses {
    fn known(&self, graph: &str) -> Option<String> {
        let uploaded = lock(&self.uploaded);
        let found = uploaded.iter().find(|(known, _)| known == graph)?;
        Some(found.1.clone())
    }

    fn learned(&self, graph: String, id: String) {
        let mut uploaded = lock(&self.uploaded);
        if uploaded.len() == KEPT {
            uploaded.pop_front();
        }
        uploaded.push_back((graph, id));
    }
}

impl Training {
    /// The service's id for a loss, which this uploads if need be.
    pub(crate) fn upload_loss(
        &self,
        keep: Arc<dyn Any + Send + Sync>,
        session_id: &str,
        graph: &LossGraph,
    ) -> Result<String> {
        let key = String::from_utf8_lossy(&to_json(graph)?).into_owned();
        if let Some(id) = self.losses.known(&key) {
            return Ok(id);
        }
        let body = to_json(&CreateCustomLossRequest {
            session_id: session_id.into(),
            custom_loss_seq_id: self.losses.next.fetch_add(1, Ordering::Relaxed),
            name: graph.name.as_str().into(),
            inputs: graph.inputs.as_slice().into(),
            graph: std::borrow::Cow::Borrowed(&graph.graph),
        })?;
        let route = &route::CREATE_CUSTOM_LOSS;
        let pending = self.run::<CreateCustomLossReply>(keep, route, &body)?;
        let reply = pending.join_in_call()?;
        self.losses.learned(key, reply.loss_id.clone());
        Ok(reply.loss_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_graphs_are_forgotten() {
        let losses = Losses::default();
        for index in 0..=KEPT {
            losses.learned(format!("graph {index}"), format!("loss {index}"));
        }
        assert_eq!(losses.known("graph 0"), None);
        assert_eq!(losses.known("graph 1").as_deref(), Some("loss 1"));
        assert_eq!(lock(&losses.uploaded).len(), KEPT);
    }
}
