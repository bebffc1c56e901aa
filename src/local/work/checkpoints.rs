//! Saving and restoring models in training.

use std::collections::BTreeMap;

use super::Workshop;
use super::jobs::reply;
use crate::error::{Error, Result};
use crate::local::engine::{Adapter, Restore, Trainer};
use crate::local::state::catalogue::Checkpoint;
use crate::local::state::futures::Outcome;
use crate::local::state::ledger::Kind;
use crate::local::state::models::Model;
use crate::local::state::{disk, now};
use crate::types::{
    CHECKPOINT_TTL, CheckpointKind, SaveWeightsExternalResponse, SaveWeightsForSamplerResponse,
    SaveWeightsResponse, Timestamp, TinkerPath,
};

/// The longest name of a checkpoint.
const NAME: usize = 128;

/// The path of a new checkpoint, if it can be called that.
pub(in crate::local) fn checkpoint_path(
    run: &str,
    kind: CheckpointKind,
    name: &str,
) -> Result<TinkerPath> {
    if name.is_empty() || name.len() > NAME || name.chars().any(|c| c == '/' || c.is_control()) {
        let problem = format!("must be 1 to {NAME} bytes without `/`, got {name:?}");
        return Err(Error::invalid("path", problem));
    }
    if !disk::fits(name) {
        let problem = format!("{name:?} is too long for a file: use fewer or plainer characters");
        return Err(Error::invalid("path", problem));
    }
    TinkerPath::new(run, kind, name)
}

/// When a checkpoint with this life expires.
pub(in crate::local) fn expiry(ttl_seconds: Option<u64>) -> Result<Option<Timestamp>> {
    let Some(ttl) = ttl_seconds else {
        return Ok(None);
    };
    let expires = CHECKPOINT_TTL.contains(&ttl).then(|| {
        let seconds = now().as_second().saturating_add_unsigned(ttl);
        Timestamp::from_second(seconds).ok()
    });
    expires.flatten().map(Some).ok_or_else(|| {
        let (shortest, longest) = (CHECKPOINT_TTL.start(), CHECKPOINT_TTL.end());
        let problem = format!("must be from {shortest} to {longest}, got {ttl}");
        Error::invalid("ttl_seconds", problem)
    })
}

pub(super) fn save(
    workshop: &Workshop,
    model: &Model,
    trainer: &Trainer,
    path: TinkerPath,
    ttl_seconds: Option<u64>,
    user_metadata: Option<BTreeMap<String, String>>,
) -> Result<Outcome> {
    let expires_at = expiry(ttl_seconds)?;
    let kind = path.kind();
    let weights = match kind {
        CheckpointKind::Training => trainer.save()?,
        // Samplers and other programs have no use for the optimiser.
        CheckpointKind::Sampler | CheckpointKind::External => {
            let adapter = Adapter::clone(&trainer.adapter());
            Trainer::from_adapter(trainer.base(), adapter).save()?
        }
    };
    let size_bytes = weights.len() as u64;
    let checkpoint = Checkpoint {
        path: path.clone(),
        owner: workshop.owner_of(model),
        base_model: model.base_model.clone(),
        lora: model.lora.clone(),
        fingerprint: Some(trainer.base().fingerprint()),
        time: now(),
        file: String::new(),
        size_bytes,
        checksum: 0,
        replaces: None,
        public: false,
        expires_at,
        user_metadata,
        project_id: workshop.state.project_of(&model.session_id),
    };
    workshop
        .state
        .catalogue
        .add_checkpoint(checkpoint, &weights)?;
    workshop.adapters.forget(&path);
    let ledger = &workshop.state.ledger;
    let of = (&*workshop.owner_of(model), model.session_id.as_str());
    ledger.count(now(), of, &model.base_model, Kind::Checkpoint, 1);
    ledger.note(now(), "checkpoint_saved", &path);
    let path = path.to_string();
    Ok(match kind {
        CheckpointKind::Training => reply("save_weights", SaveWeightsResponse { path }),
        CheckpointKind::Sampler => {
            let saved = SaveWeightsForSamplerResponse {
                path: Some(path),
                sampling_session_id: None,
            };
            reply("save_weights_for_sampler", saved)
        }
        CheckpointKind::External => {
            let saved = SaveWeightsExternalResponse {
                path: Some(path),
                size_bytes: Some(size_bytes),
            };
            reply("save_weights_external", saved)
        }
    })
}

/// A checkpoint that must be there.
pub(super) fn find(workshop: &Workshop, path: &TinkerPath) -> Result<Checkpoint> {
    let missing = || Error::invalid("path", format!("no such checkpoint: {path}"));
    workshop
        .state
        .catalogue
        .checkpoint(path)
        .ok_or_else(missing)
}

/// Reads a checkpoint back; one that turns out damaged is set aside.
pub(in crate::local) fn restore(
    workshop: &Workshop,
    path: &TinkerPath,
    optimizer: bool,
) -> Result<Trainer> {
    let checkpoint = find(workshop, path)?;
    if optimizer && path.kind() != CheckpointKind::Training {
        let problem = format!("{path} holds no optimiser");
        return Err(Error::invalid("path", problem));
    }
    let name = &checkpoint.base_model;
    let Ok(offer) = workshop.library.offer(name) else {
        let problem = format!("{path} belongs to {name}");
        return Err(Error::invalid("path", problem));
    };
    if checkpoint
        .fingerprint
        .is_some_and(|made_on| made_on != offer.fingerprint)
    {
        let problem = format!("{path} was made on another model that is called {name} too");
        return Err(Error::invalid("path", problem));
    }
    let what = if optimizer {
        Restore::WithOptimizer
    } else {
        Restore::Weights
    };
    let bytes = workshop.state.catalogue.weights(path)?;
    // The bytes are what was written, so what does not suit is another model's, and stays.
    let base = workshop.library.base(name)?;
    Trainer::restore(&base, &bytes, what)
        .map_err(|error| Error::invalid("path", format!("{path} cannot be used: {error}")))
}
