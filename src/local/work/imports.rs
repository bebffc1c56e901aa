//! Adapters from elsewhere, which become checkpoints at the start.

use super::Workshop;
use super::checkpoints::checkpoint_path;
use super::library::Offer;
use crate::error::{Error, Result};
use crate::local::adapter::{self, AdapterSource};
use crate::local::engine::{Adapter, PeftFiles, Trainer, base_model};
use crate::local::state::catalogue::{Checkpoint, Run};
use crate::local::state::now;
use crate::local::state::sessions::LOCAL;
use crate::types::{CheckpointKind, LoraConfig};

/// Takes an adapter in, to be sampled from and to be trained further.
///
/// Whoever may use the server may use it. One of the same name that was taken in before is
/// replaced.
///
/// # Errors
///
/// If it cannot be read, or does not fit the model it belongs to; the message names it.
pub(super) fn take_in(workshop: &Workshop, source: &AdapterSource) -> Result<()> {
    let name = source.name();
    let field = format!("adapter {name}");
    let files = adapter::read(source.path()).map_err(|error| error.within(&field))?;
    let offer = offer_for(workshop, &files).map_err(|error| error.within(&field))?;
    let base = workshop.library.base(&offer.name)?;
    let adapter =
        Adapter::from_peft(base.config(), &files).map_err(|error| error.within(&field))?;
    let spec = adapter.spec();
    let lora = LoraConfig {
        rank: spec.rank as u32,
        seed: None,
        train_unembed: spec.unembed,
        train_mlp: spec.mlp,
        train_attn: spec.attn,
    };
    let weights = Trainer::from_adapter(&base, adapter).save()?;
    let (session_id, catalogue) = (format!("adapter-{name}"), &workshop.state.catalogue);
    let run_id = format!("{session_id}:train:0");
    let now = now();
    catalogue.add_run(Run {
        id: run_id.clone(),
        session_id,
        owner: LOCAL.to_owned(),
        base_model: offer.name.clone(),
        lora: lora.clone(),
        created_at: now,
        last_request_time: now,
        corrupted: false,
        user_metadata: None,
    })?;
    for kind in [CheckpointKind::Sampler, CheckpointKind::Training] {
        let path = checkpoint_path(&run_id, kind, name)?;
        log::info!("local server: {} is {path}", source.path().display());
        let checkpoint = Checkpoint {
            path,
            owner: LOCAL.to_owned(),
            base_model: offer.name.clone(),
            lora: lora.clone(),
            time: now,
            fingerprint: Some(offer.fingerprint),
            file: String::new(),
            size_bytes: weights.len() as u64,
            checksum: 0,
            replaces: None,
            public: true,
            expires_at: None,
            user_metadata: None,
            project_id: None,
        };
        catalogue.add_checkpoint(checkpoint, &weights)?;
    }
    Ok(())
}

/// The model it names, or else the only one there is: names differ from machine to machine.
fn offer_for<'a>(workshop: &'a Workshop, files: &PeftFiles) -> Result<&'a Offer> {
    let named = base_model(&files.config).unwrap_or_default();
    let offers = workshop.library.offers();
    let found = offers.iter().find(|offer| offer.name == named);
    match (found, offers) {
        (Some(offer), _) => Ok(offer),
        (None, [only]) => Ok(only),
        (None, _) => {
            let problem = format!("is {named:?}, which is none of the models served here");
            Err(Error::invalid("base_model_name_or_path", problem))
        }
    }
}
