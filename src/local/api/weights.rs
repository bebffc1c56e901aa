//! Checkpoints: saving and loading them, and what they are made of.

use super::training::{check_optimizer, new_model, offer};
use super::{Answer, Call, future};
use crate::local::http::{Refusal, Reply};
use crate::local::state::queue::Work;
use crate::local::work::training;
use crate::types::{CheckpointKind, OptimizerConfig, TinkerPath, WeightsInfo};
use crate::wire::request::{
    LoadWeightsRequest, SaveWeightsExternalRequest, SaveWeightsForSamplerRequest,
    SaveWeightsRequest, WeightsInfoRequest,
};
use crate::wire::route;

pub(super) fn save(call: &Call) -> Answer {
    let wanted: SaveWeightsRequest<'_> = call.json()?;
    let work = Work::Save {
        kind: CheckpointKind::Training,
        name: wanted.path.map(|name| name.into_owned()),
        overwrite: wanted.overwrite,
        ttl_seconds: wanted.ttl_seconds,
        user_metadata: wanted.user_metadata.map(|metadata| metadata.into_owned()),
    };
    let endpoint = route::SAVE_WEIGHTS.template;
    submit(call, &wanted.model_id, wanted.seq_id, endpoint, work)
}

pub(super) fn save_for_sampler(call: &Call) -> Answer {
    let wanted: SaveWeightsForSamplerRequest<'_> = call.json()?;
    let work = match (wanted.path, wanted.sampling_session_seq_id) {
        (Some(name), None) => Work::Save {
            kind: CheckpointKind::Sampler,
            name: Some(name.into_owned()),
            // The request has no word for it, and a sampler's weights are a snapshot anyway.
            overwrite: true,
            ttl_seconds: wanted.ttl_seconds,
            user_metadata: wanted.user_metadata.map(|metadata| metadata.into_owned()),
        },
        (None, Some(sampling_session_seq_id)) => Work::Snapshot {
            sampling_session_seq_id,
        },
        _ => {
            let detail = "either path or sampling_session_seq_id is required";
            return Err(Refusal::unprocessable(detail));
        }
    };
    let endpoint = route::SAVE_WEIGHTS_FOR_SAMPLER.template;
    submit(call, &wanted.model_id, wanted.seq_id, endpoint, work)
}

pub(super) fn save_external(call: &Call) -> Answer {
    let wanted: SaveWeightsExternalRequest<'_> = call.json()?;
    if wanted.age_encryption_recipients.is_some() {
        return Err(Refusal::bad("this server does not encrypt weights"));
    }
    let work = Work::Save {
        kind: CheckpointKind::External,
        name: Some(wanted.path.into_owned()),
        overwrite: true,
        ttl_seconds: wanted.ttl_seconds,
        user_metadata: None,
    };
    let endpoint = route::SAVE_WEIGHTS_EXTERNAL.template;
    submit(call, &wanted.model_id, wanted.seq_id, endpoint, work)
}

/// Into an existing model, or as the beginning of a new one.
pub(super) fn load(call: &Call) -> Answer {
    let wanted: LoadWeightsRequest<'_> = call.json()?;
    let path: TinkerPath = wanted.path.parse()?;
    let optimizer = wanted.optimizer;
    let endpoint = route::LOAD_WEIGHTS.template;
    if let Some(config) = &wanted.optimizer_config {
        check_optimizer(config)?;
    }
    match (wanted.model_id, wanted.session_id, wanted.model_seq_id) {
        (Some(model_id), None, None) => {
            let work = Work::Load { path, optimizer };
            submit(call, &model_id, wanted.seq_id, endpoint, work)
        }
        (None, Some(session_id), Some(number)) => {
            let checkpoint = call.checkpoint(&path)?;
            if let Some(name) = &wanted.base_model {
                let made_on = offer(call, &checkpoint.base_model)?;
                // One model may have several names.
                if offer(call, name)?.fingerprint != made_on.fingerprint {
                    let detail = format!("{path} was made on {}, not on {name}", made_on.name);
                    return Err(Refusal::bad(detail));
                }
            }
            let (base_model, lora) = (checkpoint.base_model, checkpoint.lora);
            let work = Work::CreateFrom {
                path,
                optimizer,
                user_metadata: wanted.user_metadata.map(|metadata| metadata.into_owned()),
            };
            new_model(call, &session_id, number, &base_model, lora, endpoint, work)
        }
        _ => Err(Refusal::unprocessable(
            "either model_id, or session_id and model_seq_id, are required",
        )),
    }
}

pub(super) fn info(call: &Call) -> Answer {
    let wanted: WeightsInfoRequest<'_> = call.json()?;
    let path: TinkerPath = wanted.tinker_path.parse()?;
    let checkpoint = call.checkpoint(&path)?;
    Ok(Reply::json(&WeightsInfo {
        base_model: checkpoint.base_model,
        optimizer_config: OptimizerConfig::AdamW,
        is_lora: true,
        lora_rank: Some(checkpoint.lora.rank),
        train_unembed: Some(checkpoint.lora.train_unembed),
        train_mlp: Some(checkpoint.lora.train_mlp),
        train_attn: Some(checkpoint.lora.train_attn),
    }))
}

fn submit(
    call: &Call,
    model_id: &str,
    number: Option<u64>,
    endpoint: &'static str,
    work: Work,
) -> Answer {
    let model = call.model(model_id)?;
    call.touch(&model.session_id)?;
    let request_id = training::submit(call.work(), &model, number, endpoint, work)?;
    Ok(future(request_id, Some(model.id.clone())))
}
