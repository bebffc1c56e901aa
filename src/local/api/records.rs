//! Lists: training runs, checkpoints.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Answer, Call};
use crate::local::http::Reply;
use crate::local::state::catalogue::{Checkpoint, Run};
use crate::types::{self, CheckpointKind, CheckpointPage, TrainingRun, TrainingRunPage};

pub(super) fn runs(call: &Call) -> Answer {
    let mut runs = call.state().catalogue.runs();
    runs.retain(|run| run.owner == *call.user);
    if let Some(project) = call.query("project_id") {
        runs.retain(|run| call.state().project_of(&run.session_id).as_ref() == Some(&project));
    }
    let (runs, cursor) = call.page(runs, 20)?;
    Ok(Reply::json(&TrainingRunPage {
        training_runs: runs.into_iter().map(|run| describe(call, run)).collect(),
        cursor,
    }))
}

pub(super) fn run(call: &Call) -> Answer {
    let run = call.run(call.segment(0))?;
    Ok(Reply::json(&describe(call, run)))
}

fn describe(call: &Call, run: Run) -> TrainingRun {
    let last = |kind| {
        let checkpoint = call.state().catalogue.last_checkpoint(&run.id, kind);
        checkpoint.map(checkpoint_record)
    };
    TrainingRun {
        last_checkpoint: last(CheckpointKind::Training),
        last_sampler_checkpoint: last(CheckpointKind::Sampler),
        training_run_id: run.id.as_str().into(),
        base_model: run.base_model,
        model_owner: call.user.to_string(),
        is_lora: true,
        corrupted: run.corrupted,
        lora_rank: Some(run.lora.rank),
        last_request_time: run.last_request_time,
        user_metadata: run.user_metadata.map(texts),
    }
}

/// Metadata as texts: whatever is not one becomes its JSON.
pub(super) fn texts(metadata: Map<String, Value>) -> BTreeMap<String, String> {
    let text = |value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    metadata
        .into_iter()
        .map(|(key, value)| (key, text(value)))
        .collect()
}

fn checkpoint_record(checkpoint: Checkpoint) -> types::Checkpoint {
    types::Checkpoint {
        checkpoint_id: checkpoint.path.checkpoint_id(),
        checkpoint_type: checkpoint.path.kind(),
        time: checkpoint.time,
        tinker_path: checkpoint.path.to_string(),
        size_bytes: Some(checkpoint.size_bytes),
        public: checkpoint.public,
        user_metadata: checkpoint.user_metadata,
        expires_at: checkpoint.expires_at,
    }
}

pub(super) fn run_checkpoints(call: &Call) -> Answer {
    let id = call.segment(0);
    call.run(id)?;
    let list = call.state().catalogue.checkpoints(Some(id));
    Ok(Reply::json(&CheckpointPage {
        checkpoints: list.into_iter().map(checkpoint_record).collect(),
        cursor: None,
    }))
}

pub(super) fn checkpoints(call: &Call) -> Answer {
    let mut list = call.state().catalogue.checkpoints(None);
    list.retain(|checkpoint| checkpoint.owner == *call.user);
    let (list, cursor) = call.page(list, 100)?;
    Ok(Reply::json(&CheckpointPage {
        checkpoints: list.into_iter().map(checkpoint_record).collect(),
        cursor: Some(cursor),
    }))
}
