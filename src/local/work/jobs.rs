//! What a model's queue is made of, and how each piece of work is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::local::api::service::Service;
use crate::local::engine::{Adapter, LoraSpec, Restore, Trainer};
use crate::local::state::catalogue::{Checkpoint, Run};
use crate::local::state::futures::Outcome;
use crate::local::state::ledger::Kind;
use crate::local::state::models::Model;
use crate::local::state::samplers::Sampler;
use crate::local::work::convert;
use crate::local::work::losses;
use crate::types::{
    CheckpointKind, Datum, LoraConfig, Loss, LossFn, OptimizerParams, Timestamp, TinkerPath,
};
use crate::wire::output::encode_forward_backward_output;

/// The shortest and the longest life a checkpoint can be given.
const TTL: std::ops::RangeInclusive<u64> = 3600..=10 * 366 * 24 * 3600;
/// The longest name of a checkpoint.
const NAME: usize = 128;

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

/// The time now, as precise as the service writes it.
pub(in crate::local) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// Does one piece of work. Whatever is refused leaves the model as it was.
pub(in crate::local) fn run(
    service: &Arc<Service>,
    model: &Model,
    trainer: &mut Option<Trainer>,
    work: Work,
) -> Outcome {
    let outcome = match work {
        Work::Create { user_metadata } => create(service, model, trainer, user_metadata),
        Work::CreateFrom {
            path,
            optimizer,
            user_metadata,
        } => create_from(service, model, trainer, &path, optimizer, user_metadata),
        Work::Unload => {
            *trainer = None;
            service.models.remove(&model.id);
            Ok(Outcome::json(
                &json!({"model_id": model.id, "type": "unload_model"}),
            ))
        }
        work => match trainer {
            None => Err(Error::invalid(
                "model_id",
                "this model could not be created, or its engine failed: restore it from a checkpoint",
            )),
            Some(trainer) => train(service, model, trainer, work),
        },
    };
    outcome.unwrap_or_else(|error| refusal(&error))
}

/// A refused value is the caller's fault, everything else ours.
pub(in crate::local) fn refusal(error: &Error) -> Outcome {
    match error {
        Error::Invalid(_) => Outcome::refused(error.to_string()),
        _ => {
            log::error!("local server: {error}");
            Outcome::failed(error.to_string())
        }
    }
}

fn train(
    service: &Arc<Service>,
    model: &Model,
    trainer: &mut Trainer,
    work: Work,
) -> Result<Outcome> {
    match work {
        Work::Pass {
            data,
            loss,
            forward_only,
        } => pass(service, model, trainer, &data, &loss, forward_only),
        Work::Step(params) => {
            let params = convert::adam(&params)?;
            params.check()?;
            let metrics = trainer.optim_step(&params)?;
            Ok(Outcome::json(&json!({
                "metrics": {
                    "grad_norm:mean": metrics.grad_norm,
                    "update_norm:mean": metrics.update_norm,
                    "step:max": metrics.step,
                },
                "type": "optim_step",
            })))
        }
        Work::Load { path, optimizer } => {
            let loaded = restore(service, &path, optimizer)?;
            let (mine, theirs) = (trainer.adapter(), loaded.adapter());
            if mine.params().len() != theirs.params().len() {
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
                model.session_id.clone(),
                model.base_model.clone(),
                None,
                Some(trainer.adapter()),
            );
            service.add_sampler(sampling_session_seq_id, sampler);
            let kind = "save_weights_for_sampler";
            Ok(Outcome::json(
                &json!({"sampling_session_id": id, "type": kind}),
            ))
        }
        Work::Save {
            kind,
            name,
            overwrite,
            ttl_seconds,
            user_metadata,
        } => {
            let name = name.unwrap_or_else(|| {
                format!("{:06}", service.catalogue.next_number(&model.id, kind))
            });
            let path = checkpoint_path(&model.id, kind, &name)?;
            if !overwrite && service.catalogue.checkpoint(&path).is_some() {
                let problem = format!("{path} exists; save with overwrite to replace it");
                return Err(Error::invalid("path", problem));
            }
            save(service, model, trainer, path, ttl_seconds, user_metadata)
        }
        Work::Create { .. } | Work::CreateFrom { .. } | Work::Unload => {
            Err(Error::invalid("request", "the model exists already"))
        }
    }
}

fn create(
    service: &Service,
    model: &Model,
    trainer: &mut Option<Trainer>,
    user_metadata: Option<Map<String, Value>>,
) -> Result<Outcome> {
    *trainer = Some(Trainer::new(&service.base, spec(&model.lora))?);
    add_run(service, model, user_metadata)?;
    Ok(Outcome::json(
        &json!({"model_id": model.id, "type": "create_model"}),
    ))
}

fn create_from(
    service: &Service,
    model: &Model,
    trainer: &mut Option<Trainer>,
    path: &TinkerPath,
    optimizer: bool,
    user_metadata: Option<Map<String, Value>>,
) -> Result<Outcome> {
    *trainer = Some(restore(service, path, optimizer)?);
    add_run(service, model, user_metadata)?;
    Ok(loaded_reply(model, path))
}

fn loaded_reply(model: &Model, path: &TinkerPath) -> Outcome {
    Outcome::json(&json!({"path": path, "model_id": model.id, "type": "load_weights"}))
}

fn add_run(
    service: &Service,
    model: &Model,
    user_metadata: Option<Map<String, Value>>,
) -> Result<()> {
    let now = now();
    service.catalogue.add_run(Run {
        id: model.id.clone(),
        session_id: model.session_id.clone(),
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
    service: &Service,
    model: &Model,
    trainer: &mut Trainer,
    data: &[Datum],
    loss: &Loss,
    forward_only: bool,
) -> Result<Outcome> {
    let session_id = &model.session_id;
    let tokens = data
        .iter()
        .map(|datum| datum.model_input().length().unwrap_or_default() as u64);
    let output = if loss.function == LossFn::Custom {
        losses::pass(
            &service.losses,
            session_id,
            trainer,
            data,
            loss,
            !forward_only,
        )?
    } else {
        let (loss, data) = (convert::loss(loss)?, convert::data(data)?);
        let output = if forward_only {
            trainer.forward(&data, &loss)?
        } else {
            trainer.forward_backward(&data, &loss)?
        };
        convert::output(&data, output)
    };
    service
        .ledger
        .count(now(), session_id, Kind::Training, tokens.sum());
    let mut bytes = Vec::new();
    encode_forward_backward_output(&output, &mut bytes)?;
    Ok(Outcome::Training(bytes.into()))
}

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
    TinkerPath::new(run, kind, name)
}

/// When a checkpoint with this life expires.
pub(in crate::local) fn expiry(ttl_seconds: Option<u64>) -> Result<Option<Timestamp>> {
    let Some(ttl) = ttl_seconds else {
        return Ok(None);
    };
    let expires = TTL.contains(&ttl).then(|| {
        let seconds = now().as_second().saturating_add_unsigned(ttl);
        Timestamp::from_second(seconds).ok()
    });
    expires.flatten().map(Some).ok_or_else(|| {
        let (shortest, longest) = (TTL.start(), TTL.end());
        let problem = format!("must be from {shortest} to {longest}, got {ttl}");
        Error::invalid("ttl_seconds", problem)
    })
}

fn save(
    service: &Service,
    model: &Model,
    trainer: &Trainer,
    path: TinkerPath,
    ttl_seconds: Option<u64>,
    user_metadata: Option<BTreeMap<String, String>>,
) -> Result<Outcome> {
    let expires_at = expiry(ttl_seconds)?;
    let weights = match path.kind() {
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
        base_model: model.base_model.clone(),
        lora: model.lora.clone(),
        time: now(),
        file: String::new(),
        size_bytes,
        checksum: 0,
        replaces: None,
        public: false,
        expires_at,
        user_metadata,
        project_id: service.project_of(&model.session_id),
    };
    service.catalogue.add_checkpoint(checkpoint, &weights)?;
    service.samplers.forget(&path);
    service
        .ledger
        .count(now(), &model.session_id, Kind::Checkpoint, 1);
    service.ledger.note(now(), "checkpoint_saved", &path);
    Ok(match path.kind() {
        CheckpointKind::Training => Outcome::json(&json!({"path": path, "type": "save_weights"})),
        CheckpointKind::Sampler => {
            Outcome::json(&json!({"path": path, "type": "save_weights_for_sampler"}))
        }
        CheckpointKind::External => Outcome::json(
            &json!({"path": path, "size_bytes": size_bytes, "type": "save_weights_external"}),
        ),
    })
}

/// Reads a checkpoint back; one that turns out damaged is set aside.
pub(in crate::local) fn restore(
    service: &Service,
    path: &TinkerPath,
    optimizer: bool,
) -> Result<Trainer> {
    let missing = || Error::invalid("path", format!("no such checkpoint: {path}"));
    let checkpoint = service.catalogue.checkpoint(path).ok_or_else(missing)?;
    if optimizer && path.kind() != CheckpointKind::Training {
        let problem = format!("{path} holds no optimiser");
        return Err(Error::invalid("path", problem));
    }
    if checkpoint.base_model != service.base_model {
        let problem = format!("{path} belongs to {}", checkpoint.base_model);
        return Err(Error::invalid("path", problem));
    }
    let what = if optimizer {
        Restore::WithOptimizer
    } else {
        Restore::Weights
    };
    let bytes = service.catalogue.weights(path)?;
    Trainer::restore(&service.base, &bytes, what).map_err(|error| {
        let catalogue = &service.catalogue;
        let problem = catalogue.report_damage(&checkpoint, &error.to_string());
        Error::invalid("path", problem)
    })
}
