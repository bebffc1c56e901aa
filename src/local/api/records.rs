//! Lists: training runs, checkpoints.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Answer, page};
use crate::local::api::service::Service;
use crate::local::http::{Reply, Request};
use crate::local::state::catalogue::{Checkpoint, Run};
use crate::types::{self, CheckpointKind, CheckpointPage, TrainingRun, TrainingRunPage};

/// Who owns everything here.
pub(super) const OWNER: &str = "local";

pub(in crate::local) fn runs(service: &Service, request: &Request) -> Answer {
    let mut runs = service.catalogue.runs();
    if let Some(project) = crate::local::api::routes::query(&request.query, "project_id") {
        runs.retain(|run| service.project_of(&run.session_id).as_ref() == Some(&project));
    }
    let (runs, cursor) = page(request, runs, 20)?;
    Ok(Reply::json(&TrainingRunPage {
        training_runs: runs.into_iter().map(|run| describe(service, run)).collect(),
        cursor,
    }))
}

pub(in crate::local) fn run(service: &Service, id: &str) -> Answer {
    let run = service.catalogue.run(id)?;
    Ok(Reply::json(&describe(service, run)))
}

fn describe(service: &Service, run: Run) -> TrainingRun {
    let last = |kind| {
        let checkpoint = service.catalogue.last_checkpoint(&run.id, kind);
        checkpoint.map(checkpoint_record)
    };
    TrainingRun {
        last_checkpoint: last(CheckpointKind::Training),
        last_sampler_checkpoint: last(CheckpointKind::Sampler),
        training_run_id: run.id.as_str().into(),
        base_model: run.base_model,
        model_owner: OWNER.to_owned(),
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

pub(in crate::local) fn run_checkpoints(service: &Service, id: &str) -> Answer {
    service.catalogue.run(id)?;
    let list = service.catalogue.checkpoints(Some(id));
    Ok(Reply::json(&CheckpointPage {
        checkpoints: list.into_iter().map(checkpoint_record).collect(),
        cursor: None,
    }))
}

pub(in crate::local) fn checkpoints(service: &Service, request: &Request) -> Answer {
    let list = service.catalogue.checkpoints(None);
    let (list, cursor) = page(request, list, 100)?;
    Ok(Reply::json(&CheckpointPage {
        checkpoints: list.into_iter().map(checkpoint_record).collect(),
        cursor: Some(cursor),
    }))
}
