//! What a model's queue is made of.

use std::collections::{BTreeMap, VecDeque};

use crossbeam_channel::Sender;
use serde_json::{Map, Value};

use super::memory::Promise;
use super::sequence::Sequence;
use crate::types::{CheckpointKind, Datum, Loss, OptimizerParams, TinkerPath};

/// What a datum takes beside its numbers.
const DATUM: usize = 512;

/// The requests of one model, in order.
#[derive(Debug, Default)]
pub(in crate::local) struct Queue {
    pub(in crate::local) sequence: Sequence<Job>,
    pub(in crate::local) ready: VecDeque<Job>,
    /// Whether a task is at work on this queue.
    pub(in crate::local) running: bool,
    /// Whether the model is to be saved before its next request.
    pub(in crate::local) save_due: bool,
    /// The server stops: the model is saved after its last request, and this is dropped.
    pub(in crate::local) farewell: Option<Sender<()>>,
    /// Whether the model is gone: nothing more is taken in.
    pub(in crate::local) ended: bool,
}

impl Queue {
    /// Whether there is anything to do.
    pub(in crate::local) fn is_idle(&self) -> bool {
        self.ready.is_empty() && !self.save_due && self.farewell.is_none()
    }

    /// How many requests wait.
    pub(in crate::local) fn len(&self) -> usize {
        self.ready.len() + self.sequence.held()
    }
}

/// A request that was accepted.
#[derive(Debug)]
pub(in crate::local) struct Job {
    pub(in crate::local) request_id: String,
    /// The endpoint it came by, which latencies are set for.
    pub(in crate::local) endpoint: &'static str,
    /// Whether it has a number of its own.
    pub(in crate::local) is_numbered: bool,
    pub(in crate::local) work: Work,
    /// The memory it takes while it waits; none where everything else waits for it.
    pub(in crate::local) memory: Option<[Promise; 2]>,
}

/// One piece of work for a model.
#[derive(Debug)]
pub(in crate::local) enum Work {
    Create {
        user_metadata: Option<Map<String, Value>>,
    },
    /// Creates the model from a checkpoint.
    CreateFrom {
        path: TinkerPath,
        optimizer: bool,
        user_metadata: Option<Map<String, Value>>,
    },
    Pass {
        data: Vec<Datum>,
        loss: Loss,
        forward_only: bool,
    },
    Step(OptimizerParams),
    Save {
        kind: CheckpointKind,
        name: Option<String>,
        overwrite: bool,
        ttl_seconds: Option<u64>,
        user_metadata: Option<BTreeMap<String, String>>,
    },
    /// Makes a sampling session of the weights as they are.
    Snapshot {
        sampling_session_seq_id: u64,
    },
    Load {
        path: TinkerPath,
        optimizer: bool,
    },
    Unload,
}

impl Work {
    /// About how much memory it takes while it waits.
    pub(in crate::local) fn bytes(&self) -> usize {
        match self {
            Self::Pass { data, .. } => {
                let bytes = data.iter().map(|datum| datum.byte_estimate() + DATUM);
                bytes.sum()
            }
            Self::Save {
                user_metadata: Some(metadata),
                ..
            } => metadata
                .iter()
                .map(|(key, text)| key.len() + text.len())
                .sum(),
            _ => 0,
        }
    }

    /// What tells two requests with the same number apart.
    ///
    /// Coarse on purpose: a repeated submission may encode its maps in another order, and a
    /// repeated snapshot draws a new number for its sampling session.
    pub(in crate::local) fn signature(&self) -> String {
        match self {
            Self::Pass {
                data,
                loss,
                forward_only,
            } => {
                let tokens: usize = data.iter().map(|datum| datum.byte_estimate()).sum();
                let loss = loss.function.as_str();
                format!("pass {forward_only} {loss} {} {tokens}", data.len())
            }
            Self::Step(params) => format!("step {params:?}"),
            Self::Save { kind, name, .. } => format!("save {kind} {name:?}"),
            Self::Snapshot { .. } => "snapshot".into(),
            Self::Load { path, optimizer } => format!("load {path} {optimizer}"),
            Self::Create { .. } | Self::CreateFrom { .. } => "create".into(),
            Self::Unload => "unload".into(),
        }
    }
}
