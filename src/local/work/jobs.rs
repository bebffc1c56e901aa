//! How each piece of a model's work is done.

use serde::Serialize;
use serde_json::{Map, Value};

use super::checkpoints::{checkpoint_path, restore, save};
use super::{Workshop, convert, custom};
use crate::error::{Error, Result};
use crate::local::engine::{LoraSpec, Trainer};
use crate::local::state::catalogue::Run;
use crate::local::state::futures::Outcome;
use crate::local::state::ledger::Kind;
use crate::local::state::models::Model;
use crate::local::state::now;
use crate::local::state::queue::Work;
use crate::local::state::samplers::Sampler;
use crate::sync::lock;
use crate::types::{
    Datum, LoadWeightsResponse, LoraConfig, Loss, LossFn, OptimStepResponse,
    SaveWeightsForSamplerResponse, TinkerPath,
};
use crate::wire::output::encode_forward_backward_output;
use crate::wire::reply::{CreateModelReply, Tagged, UnloadModelReply};

/// Does one piece of work. Whatever is refused leaves the model as it was.
pub(in crate::local) fn run(
    workshop: &Workshop,
    model: &Model,
    trainer: &mut Option<Trainer>,
    work: Work,
) -> Outcome {
    let outcome = match work {
        Work::Create { user_metadata } => create(workshop, model, trainer, user_metadata),
        Work::CreateFrom {
            path,
            optimizer,
            user_metadata,
        } => create_from(workshop, model, trainer, &path, optimizer, user_metadata),
        Work::Unload => {
            *trainer = None;
            *lock(&model.memory) = None;
            // What waits for lower numbers waits in vain.
            for request_id in workshop.state.end_model(&model.id) {
                let outcome = Outcome::refused("the model was unloaded");
                workshop.state.futures.finish(&request_id, outcome);
            }
            if let Err(error) = workshop.state.saved.remove(&model.id) {
                log::warn!("local server: {error}");
            }
            let model_id = model.id.clone();
            Ok(reply("unload_model", UnloadModelReply { model_id }))
        }
        work => match trainer {
            None => Err(Error::invalid(
                "model_id",
                "this model could not be created, or its engine failed: restore it from a checkpoint",
            )),
            Some(trainer) => train(workshop, model, trainer, work),
        },
    };
    outcome.unwrap_or_else(|error| refusal(&error))
}

/// A refused value is the caller's fault, everything else ours. What failed for want of something
/// that may be there later says so itself.
///
/// What went wrong with a file is told without its name, which is for whoever runs the server.
pub(in crate::local) fn refusal(error: &Error) -> Outcome {
    match error {
        Error::Invalid(_) => return Outcome::refused(error.to_string()),
        Error::Failed(context) => return Outcome::failed(&*context.message),
        _ => {}
    }
    let cause = std::error::Error::source(error);
    log::error!("local server: {error}: {cause:?}");
    match cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()) {
        Some(io) => Outcome::failed(format!(
            "the server's disk failed it ({}), and nothing was changed; whoever runs the server \
             finds more in its log",
            io.kind()
        )),
        None => Outcome::failed("the server failed; its log says why"),
    }
}

/// A result with the `type` that clients of the JSON era look for.
pub(super) fn reply(tag: &'static str, value: impl Serialize) -> Outcome {
    Outcome::json(&Tagged { tag, value })
}

fn train(workshop: &Workshop, model: &Model, trainer: &mut Trainer, work: Work) -> Result<Outcome> {
    match work {
        Work::Pass {
            data,
            loss,
            forward_only,
        } => pass(workshop, model, trainer, &data, &loss, forward_only),
        Work::Step(params) => {
            let params = convert::adam(&params)?;
            params.check()?;
            let metrics = trainer.optim_step(&params)?;
            let metrics = [
                ("grad_norm:mean", metrics.grad_norm),
                ("update_norm:mean", metrics.update_norm),
                ("step:max", metrics.step as f64),
            ];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
            let answer = OptimStepResponse {
                metrics: Some(metrics.into()),
            };
            Ok(reply("optim_step", answer))
        }
        Work::Load { path, optimizer } => {
            // Checked here and not by the handler: a number that is refused would be missed.
            let owner = workshop.owner_of(model);
            let checkpoint = workshop.state.catalogue.checkpoint(&path);
            if checkpoint.is_some_and(|one| one.owner != owner && !one.public) {
                let problem = format!("no such checkpoint: {path}");
                return Err(Error::invalid("path", problem));
            }
            let loaded = restore(workshop, &path, optimizer)?;
            let (mine, theirs) = (trainer.adapter(), loaded.adapter());
            let same = trainer.base().fingerprint() == loaded.base().fingerprint();
            if !same || !mine.spec().has_shape_of(theirs.spec()) {
                let problem = format!("{path} holds an adapter of another shape than this model's");
                return Err(Error::invalid("path", problem));
            }
            *trainer = loaded;
            Ok(loaded_reply(model, &path))
        }
        Work::Snapshot {
            sampling_session_seq_id,
        } => {
            let id = format!("{}:sample:{sampling_session_seq_id}", model.session_id);
            let sampler = Sampler::new(
                id.clone(),
                (model.session_id.clone(), workshop.owner_of(model)),
                model.base_model.clone(),
                None,
                Some(workshop.adapters.keep(trainer.base(), trainer.adapter())),
            );
            let state = &workshop.state;
            state.add_sampler(sampling_session_seq_id, sampler, None);
            let saved = SaveWeightsForSamplerResponse {
                path: None,
                sampling_session_id: Some(id.into()),
            };
            Ok(reply("save_weights_for_sampler", saved))
        }
        Work::Save {
            kind,
            name,
            overwrite,
            ttl_seconds,
            user_metadata,
        } => {
            let name = name.unwrap_or_else(|| {
                format!(
                    "{:06}",
                    workshop.state.catalogue.next_number(&model.id, kind)
                )
            });
            let path = checkpoint_path(&model.id, kind, &name)?;
            if !overwrite && workshop.state.catalogue.checkpoint(&path).is_some() {
                let problem = format!("{path} exists; save with overwrite to replace it");
                return Err(Error::invalid("path", problem));
            }
            save(workshop, model, trainer, path, ttl_seconds, user_metadata)
        }
        Work::Create { .. } | Work::CreateFrom { .. } | Work::Unload => {
            Err(Error::invalid("request", "the model exists already"))
        }
    }
}

fn create(
    workshop: &Workshop,
    model: &Model,
    trainer: &mut Option<Trainer>,
    user_metadata: Option<Map<String, Value>>,
) -> Result<Outcome> {
    let spec = spec(&model.lora);
    let base = workshop.library.base(&model.base_model)?;
    spec.check(base.config())?;
    let bytes = base.training_bytes(&spec);
    let promise = workshop.memory.promise("lora_config.rank", bytes)?;
    let made = Trainer::new(&base, spec)?;
    add_run(workshop, model, user_metadata)?;
    *trainer = Some(made);
    *lock(&model.memory) = Some(promise);
    Ok(Outcome::json(&CreateModelReply {
        model_id: model.id.clone(),
        ..CreateModelReply::default()
    }))
}

fn create_from(
    workshop: &Workshop,
    model: &Model,
    trainer: &mut Option<Trainer>,
    path: &TinkerPath,
    optimizer: bool,
    user_metadata: Option<Map<String, Value>>,
) -> Result<Outcome> {
    let base = workshop.library.base(&model.base_model)?;
    let bytes = base.training_bytes(&spec(&model.lora));
    let promise = workshop.memory.promise("path", bytes)?;
    let made = restore(workshop, path, optimizer)?;
    add_run(workshop, model, user_metadata)?;
    *trainer = Some(made);
    *lock(&model.memory) = Some(promise);
    Ok(loaded_reply(model, path))
}

fn loaded_reply(model: &Model, path: &TinkerPath) -> Outcome {
    let loaded = LoadWeightsResponse {
        path: Some(path.to_string()),
        model_id: Some(model.id.as_str().into()),
    };
    reply("load_weights", loaded)
}

fn add_run(
    workshop: &Workshop,
    model: &Model,
    user_metadata: Option<Map<String, Value>>,
) -> Result<()> {
    let now = now();
    workshop.state.catalogue.add_run(Run {
        id: model.id.clone(),
        session_id: model.session_id.clone(),
        owner: workshop.owner_of(model),
        base_model: model.base_model.clone(),
        lora: model.lora.clone(),
        created_at: now,
        last_request_time: now,
        corrupted: false,
        user_metadata,
    })
}

/// The adapter a request asks for. Without a seed every model starts from the same numbers.
pub(in crate::local) fn spec(lora: &LoraConfig) -> LoraSpec {
    LoraSpec {
        rank: lora.rank as usize,
        seed: lora.seed.unwrap_or(0).cast_unsigned(),
        attn: lora.train_attn,
        mlp: lora.train_mlp,
        unembed: lora.train_unembed,
    }
}

fn pass(
    workshop: &Workshop,
    model: &Model,
    trainer: &mut Trainer,
    data: &[Datum],
    loss: &Loss,
    forward_only: bool,
) -> Result<Outcome> {
    let session_id = &model.session_id;
    convert::check_size(data)?;
    let tokens = data
        .iter()
        .map(|datum| datum.model_input().length().unwrap_or_default() as u64);
    let output = if loss.function == LossFn::Custom {
        custom::pass(
            &workshop.state.losses,
            &workshop.memory,
            session_id,
            trainer,
            data,
            loss,
            !forward_only,
        )?
    } else {
        let (loss, data) = (convert::loss(loss)?, convert::data(data)?);
        let bytes = trainer.pass_bytes(&data, !forward_only);
        let _held = workshop.memory.promise("data", bytes)?;
        let output = if forward_only {
            trainer.forward(&data, &loss)?
        } else {
            trainer.forward_backward(&data, &loss)?
        };
        convert::output(&data, output)
    };
    let (ledger, base_model) = (&workshop.state.ledger, &model.base_model);
    let of = (&*workshop.owner_of(model), session_id.as_str());
    ledger.count(now(), of, base_model, Kind::Training, tokens.sum());
    let mut bytes = Vec::new();
    encode_forward_backward_output(&output, &mut bytes)?;
    Ok(Outcome::Training(bytes.into()))
}
