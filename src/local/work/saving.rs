//! Models in training that outlive the process: saved now and then and at the end, and taken up
//! again at the start.
//!
//! A model that was saved after its client's last request goes on where it was. One that had gone
//! on since cannot: its client knows of requests that the saved state does not. That state becomes
//! a checkpoint of the run, and the client is told to restore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checkpoints::{self, checkpoint_path};
use super::crew::guarded;
use super::{Workshop, training};
use crate::error::Result;
use crate::local::engine::{Restore, Trainer};
use crate::local::state::futures::{Look, Outcome};
use crate::local::state::models::{Model, OnDisk};
use crate::local::state::saved::{Found, SavedModel};
use crate::local::state::sequence::Sequence;
use crate::local::state::sessions::Earlier;
use crate::sync::lock;
use crate::types::CheckpointKind;

/// How long accepted requests may take to be worked off when the server stops.
const FAREWELL: Duration = Duration::from_secs(20);
/// How many bytes of results are saved with a model; the latest come first.
const RESULT_BYTES: usize = 64 << 20;
/// How many results are looked for.
const RESULTS: u64 = 4096;
/// How long a checkpoint made of a saved state lives.
const KEPT_SECONDS: u64 = 7 * 24 * 3600;

/// What becomes of a saved state at the start.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// The model is in training again.
    GoesOn,
    /// It is the past of a model that had gone on.
    BecomesCheckpoint,
    /// Its session has ended.
    Removed,
    /// It is another model's, which may be served again one day.
    Stays,
}

fn fate(same_base: bool, session: Earlier, is_behind: bool) -> Fate {
    match (same_base, session, is_behind) {
        (_, Earlier::Finished, _) => Fate::Removed,
        (false, ..) => Fate::Stays,
        (true, Earlier::Interrupted, false) => Fate::GoesOn,
        (true, Earlier::Interrupted, true) | (true, Earlier::Gone, _) => Fate::BecomesCheckpoint,
    }
}

/// Takes up what an earlier process has left.
pub(super) fn restore_all(workshop: &Workshop) {
    let saved = &workshop.state.saved;
    for file in saved.files() {
        let restored = match saved.read(&file) {
            Ok(found) => restore(workshop, found).map_err(|error| error.to_string()),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = restored {
            let problem = format!("{} cannot be used and stays: {problem}", file.display());
            workshop.state.catalogue.note_problem(problem);
        }
    }
}

fn restore(workshop: &Workshop, found: Found) -> Result<()> {
    let SavedModel { id, session_id, .. } = &found.model;
    let offer = workshop.library.offer(&found.model.base_model);
    let same_base = offer.is_ok_and(|offer| offer.fingerprint == found.model.fingerprint);
    match fate(
        same_base,
        workshop.state.sessions.earlier(session_id),
        found.is_behind,
    ) {
        Fate::GoesOn => go_on(workshop, found),
        Fate::BecomesCheckpoint => to_checkpoint(workshop, &found),
        Fate::Removed => workshop.state.saved.remove(id),
        Fate::Stays => {
            log::info!(
                "local server: {id} was trained on {}",
                found.model.base_model
            );
            Ok(())
        }
    }
}

fn go_on(workshop: &Workshop, found: Found) -> Result<()> {
    let state = &workshop.state;
    let base = workshop.library.base(&found.model.base_model)?;
    let bytes = base.training_bytes(&super::jobs::spec(&found.model.lora));
    let Ok(promise) = workshop.memory.promise("lora_config.rank", bytes) else {
        log::warn!(
            "local server: no memory for {}, which becomes a checkpoint",
            found.model.id
        );
        return to_checkpoint(workshop, &found);
    };
    let trainer = Trainer::restore(&base, &found.trainer, Restore::Everything)?;
    let mut model = model_of(&found.model);
    model.came_back = true;
    *lock(&model.on_disk) = OnDisk {
        generation: found.model.generation,
        is_behind: false,
        at: Instant::now(),
    };
    *lock(&model.trainer) = Some(trainer);
    *lock(&model.memory) = Some(promise);
    lock(&model.queue).sequence = Sequence::from(found.model.next);
    let owner = workshop.owner_of(&model);
    for (number, outcome) in found.results {
        let request_id = format!("{}:{number}", model.id);
        state.futures.open(&request_id, &owner, None, None);
        state.futures.finish(&request_id, outcome);
    }
    for (number, graph) in &found.model.losses {
        if let Err(error) = state.losses.add(&model.session_id, *number, graph) {
            log::warn!(
                "local server: loss {number} of {}: {error}",
                model.session_id
            );
        }
    }
    state.sessions.revive(&model.session_id, &model.id);
    log::info!(
        "local server: {} goes on after request {}",
        model.id,
        found.model.next - 1
    );
    state.models.add(Arc::new(model));
    Ok(())
}

/// Makes a checkpoint of a saved state, unless nothing was learnt yet, and forgets the state.
fn to_checkpoint(workshop: &Workshop, found: &Found) -> Result<()> {
    let base = workshop.library.base(&found.model.base_model)?;
    let trainer = Trainer::restore(&base, &found.trainer, Restore::WithOptimizer)?;
    if trainer.steps() > 0 {
        let model = model_of(&found.model);
        let name = format!("autosave-{:06}", found.model.next - 1);
        let path = checkpoint_path(&model.id, CheckpointKind::Training, &name)?;
        log::warn!(
            "local server: the saved state of {} is now {path}",
            model.id
        );
        checkpoints::save(workshop, &model, &trainer, path, Some(KEPT_SECONDS), None)?;
    }
    workshop.state.saved.remove(&found.model.id)
}

fn model_of(saved: &SavedModel) -> Model {
    let SavedModel {
        id,
        session_id,
        base_model,
        lora,
        ..
    } = saved.clone();
    Model::new(id, session_id, base_model, lora)
}

/// Says on disk that what is there is old, before a request makes it so.
pub(super) fn begin_request(workshop: &Workshop, model: &Model) {
    // Only whoever runs the queue's front changes this, so that no lock is held while it writes.
    let generation = {
        let mut on_disk = lock(&model.on_disk);
        if std::mem::replace(&mut on_disk.is_behind, true) || on_disk.generation == 0 {
            return;
        }
        on_disk.generation
    };
    let saved = &workshop.state.saved;
    if let Err(error) = saved.mark(&model.id, generation) {
        log::error!(
            "local server: {error}; {} is not kept until that works again",
            model.id
        );
        // Removing works on a full disk, and what is not there cannot be taken for the model.
        if let Err(error) = saved.remove(&model.id) {
            log::error!("local server: {error}");
        }
    }
}

/// Has every model saved that was not for too long.
pub(in crate::local) fn save_due(workshop: &Arc<Workshop>) {
    let Some(every) = workshop.options.save_every else {
        return;
    };
    for model in workshop.state.models.all() {
        let due = {
            let on_disk = lock(&model.on_disk);
            on_disk.is_behind && on_disk.at.elapsed() >= every
        };
        if due {
            training::wish(workshop, &model, |queue| queue.save_due = true);
        }
    }
}

/// Saves a model between two of its requests.
pub(super) fn save(workshop: &Workshop, model: &Model) {
    let state = &workshop.state;
    let OnDisk {
        generation,
        is_behind,
        ..
    } = *lock(&model.on_disk);
    // A session that ended meanwhile has no more use for it.
    let is_alive = || state.models.get(&model.id).is_ok();
    if workshop.options.save_every.is_none() || !is_behind || !is_alive() {
        return;
    }
    let Some(trainer) = lock(&model.trainer).as_ref().map(Trainer::save_everything) else {
        return;
    };
    let saved = snapshot(workshop, model, generation + 1);
    let results = results(workshop, model, saved.next);
    let written = trainer.and_then(|trainer| state.saved.write(saved, trainer, &results));
    let mut on_disk = lock(&model.on_disk);
    on_disk.at = Instant::now();
    match written {
        Ok(()) => (on_disk.generation, on_disk.is_behind) = (generation + 1, false),
        Err(error) => log::warn!("local server: {} was not saved: {error}", model.id),
    }
    drop(on_disk);
    if !is_alive() {
        let _ = state.saved.remove(&model.id);
    }
}

fn snapshot(workshop: &Workshop, model: &Model, generation: u64) -> SavedModel {
    // What is ready but has not run comes again from the client.
    let next = {
        let queue = lock(&model.queue);
        let waiting = queue.ready.iter().filter(|job| job.is_numbered).count();
        queue.sequence.next() - waiting as u64
    };
    let offer = workshop.library.offer(&model.base_model);
    SavedModel {
        id: model.id.clone(),
        session_id: model.session_id.clone(),
        base_model: model.base_model.clone(),
        fingerprint: offer.map_or(0, |offer| offer.fingerprint),
        lora: model.lora.clone(),
        generation,
        next,
        losses: workshop.state.losses.uploaded(&model.session_id),
    }
}

/// The results that a client may still ask for, the latest first.
fn results(workshop: &Workshop, model: &Model, next: u64) -> Vec<(u64, Outcome)> {
    let mut bytes = 0;
    let (futures, owner) = (&workshop.state.futures, workshop.owner_of(model));
    let numbers = (next.saturating_sub(RESULTS)..next).rev();
    let kept = numbers.filter_map(|number| {
        match futures.look(&format!("{}:{number}", model.id), &owner) {
            Look::Done(outcome) => Some((number, outcome)),
            _ => None,
        }
    });
    kept.take_while(|(_, outcome)| {
        bytes += outcome.size();
        bytes <= RESULT_BYTES
    })
    .collect()
}

/// Works off what was accepted, as long as that takes no longer than a farewell may, and saves
/// every model. A request that is left out is told when its client asks for its result.
pub(super) fn farewell(workshop: &Arc<Workshop>) {
    if workshop.options.save_every.is_none() {
        return workshop.trainers.close();
    }
    let until = Instant::now() + FAREWELL;
    let (sender, done) = crossbeam_channel::bounded(0);
    let models = workshop.state.models.all();
    for model in &models {
        training::wish(workshop, model, |queue| {
            queue.farewell = Some(sender.clone())
        });
    }
    drop(sender);
    // Nothing is ever sent: the channel closes when the last model has been saved.
    let _ = done.recv_deadline(until);
    workshop.trainers.close();
    for model in &models {
        guarded(|| save(workshop, model));
    }
}

/// Keeps what a model has learnt, as a checkpoint, and forgets the model: its client is not coming
/// back, or knows more than the model does.
pub(in crate::local) fn lay_down(workshop: &Arc<Workshop>, model: &Arc<Model>) {
    training::while_idle(workshop, model, || save(workshop, model));
    let state = &workshop.state;
    let found = state.saved.get(&model.id);
    if let Some(Err(error)) = found.map(|found| to_checkpoint(workshop, &found)) {
        log::warn!("local server: {} stays as it was saved: {error}", model.id);
    }
    for request_id in state.end_model(&model.id) {
        state.futures.forget(&request_id);
    }
}

/// Whether somebody who asks for the result of this number knows more than the model does: it
/// came back without a request that was accepted.
pub(in crate::local) fn is_ahead(model: &Model, number: u64) -> bool {
    model.came_back && number >= lock(&model.queue).sequence.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_its_client_left_as_it_is_goes_on() {
        use Earlier::{Finished, Gone, Interrupted};
        for (same_base, session, is_behind, expected) in [
            (true, Interrupted, false, Fate::GoesOn),
            (true, Interrupted, true, Fate::BecomesCheckpoint),
            (true, Gone, false, Fate::BecomesCheckpoint),
            (true, Finished, false, Fate::Removed),
            (false, Finished, true, Fate::Removed),
            (false, Interrupted, false, Fate::Stays),
            (false, Gone, true, Fate::Stays),
        ] {
            assert_eq!(fate(same_base, session, is_behind), expected);
        }
    }
}
