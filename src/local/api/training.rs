//! Models: creating them, passes over data, steps of the optimiser.

use std::sync::Arc;

use super::{Answer, Call, future};
use crate::local::http::{Refusal, Reply};
use crate::local::state::futures::Outcome;
use crate::local::state::models::Model;
use crate::local::state::queue::{Job, Work};
use crate::local::work::convert;
use crate::local::work::jobs;
use crate::local::work::library::Offer;
use crate::local::work::training::{begin, submit};
use crate::loss::LossGraph;
use crate::types::{LoraConfig, Loss, LossFn, ModelData, ModelInfo, OptimizerConfig};
use crate::wire::compress;
use crate::wire::dialect::decode_request;
use crate::wire::reply::CreateCustomLossReply;
use crate::wire::request::{
    CreateCustomLossRequest, CreateModelRequest, GetInfoRequest, OptimStepRequest,
    UnloadModelRequest,
};
use crate::wire::route;

pub(super) fn create_model(call: &Call) -> Answer {
    let wanted: CreateModelRequest<'_> = call.json()?;
    offer(call, &wanted.base_model)?;
    check_optimizer(&wanted.optimizer_config)?;
    let lora = wanted
        .lora_config
        .ok_or_else(|| Refusal::bad("this server trains adapters only: lora_config is required"))?;
    let work = Work::Create {
        user_metadata: wanted.user_metadata.map(|metadata| metadata.into_owned()),
    };
    new_model(
        call,
        &wanted.session_id,
        wanted.model_seq_id,
        &wanted.base_model,
        lora.into_owned(),
        route::CREATE_MODEL.template,
        work,
    )
}

/// Creates a session's model of this number, or finds the one that was created before.
pub(super) fn new_model(
    call: &Call,
    session_id: &str,
    number: u64,
    base_model: &str,
    lora: LoraConfig,
    endpoint: &'static str,
    work: Work,
) -> Answer {
    jobs::spec(&lora)
        .check(&offer(call, base_model)?.config)
        .map_err(|error| Refusal::bad(error.to_string()))?;
    let id = format!("{session_id}:train:{number}");
    let request_id = format!("{id}:0");
    call.own_session(session_id)?;
    let is_new = call.state().sessions.with_active(session_id, |session| {
        session.models.insert(number, id.clone()).is_none()
    })?;
    if is_new {
        call.state()
            .futures
            .open(&request_id, &call.user, None, None);
        let base_model = base_model.to_owned();
        let model = Model::new(id.clone(), session_id.to_owned(), base_model, lora);
        let model = Arc::new(model);
        call.state().models.add(model.clone());
        // A session that ended meanwhile did not find it there, and will not end again.
        if let Err(ended) = call.state().sessions.touch(session_id) {
            call.state().models.remove(&id);
            call.state().futures.forget(&request_id);
            return Err(ended.into());
        }
        let job = Job {
            request_id: request_id.clone(),
            endpoint,
            is_numbered: false,
            work,
            memory: None,
        };
        begin(call.work(), &model, job);
    }
    Ok(future(request_id, Some(id)))
}

/// The model of that name, if it is served.
pub(super) fn offer<'a>(call: &'a Call, name: &str) -> Result<&'a Offer, Refusal> {
    let offer = call.work().library.offer(name);
    offer.map_err(|error| Refusal::bad(error.to_string()))
}

pub(super) fn check_optimizer(config: &OptimizerConfig) -> Result<(), Refusal> {
    if *config == OptimizerConfig::AdamW {
        return Ok(());
    }
    Err(Refusal::bad(convert::ADAM_ONLY))
}

pub(super) fn get_info(call: &Call) -> Answer {
    let wanted: GetInfoRequest<'_> = call.json()?;
    let model = call.model(&wanted.model_id)?;
    let name = Some(model.base_model.clone());
    let offer = offer(call, &model.base_model)?;
    Ok(Reply::json(&ModelInfo {
        model_id: model.id.as_str().into(),
        model_data: ModelData {
            arch: Some(offer.config.family.name.to_owned()),
            model_name: name.clone(),
            tokenizer_id: Some(offer.tokenizer.display().to_string()),
        },
        optimizer_config: OptimizerConfig::AdamW,
        is_lora: Some(true),
        lora_rank: Some(model.lora.rank),
        model_name: name,
    }))
}

pub(super) fn unload(call: &Call) -> Answer {
    let wanted: UnloadModelRequest<'_> = call.json()?;
    let model = call.model(&wanted.model_id)?;
    let endpoint = route::UNLOAD_MODEL.template;
    let request_id = submit(call.work(), &model, None, endpoint, Work::Unload)?;
    Ok(future(request_id, Some(model.id.clone())))
}

/// Takes in a loss. The result is there at once, but clients expect a future.
pub(super) fn create_custom_loss(call: &Call) -> Answer {
    let wanted: CreateCustomLossRequest<'_> = call.json()?;
    let graph = LossGraph {
        name: wanted.name.into_owned(),
        inputs: wanted.inputs.into_owned(),
        graph: wanted.graph.into_owned(),
    };
    call.touch(&wanted.session_id)?;
    let number = wanted.custom_loss_seq_id;
    let loss_id = call
        .state()
        .losses
        .add(&wanted.session_id, number, &graph)?;
    let endpoint = route::CREATE_CUSTOM_LOSS.template;
    let request_id = format!("{}:{endpoint}:{number}", wanted.session_id);
    if call
        .state()
        .futures
        .open(&request_id, &call.user, None, None)
    {
        let reply = CreateCustomLossReply {
            loss_id,
            ..CreateCustomLossReply::default()
        };
        call.state()
            .finish(endpoint, &request_id, Outcome::json(&reply));
    }
    Ok(future(request_id, None))
}

/// `forward_backward` and `forward`, in either dialect.
pub(super) fn pass(call: &Call) -> Answer {
    let body = match call.request.header("content-encoding") {
        None | Some("identity") => call.request.body.to_vec(),
        Some(compress::ENCODING) => {
            compress::decompress(&call.request.body, call.service.options.max_request_bytes)?
        }
        Some(other) => {
            let detail = format!("content encoding {other} is not understood");
            return Err(Refusal::unprocessable(detail));
        }
    };
    let wanted = decode_request(call.request.header("content-type"), body)?;
    let model = call.model(&wanted.model_id)?;
    call.touch(&model.session_id)?;
    let work = Work::Pass {
        data: wanted.data,
        loss: Loss {
            function: LossFn::from(wanted.loss_fn),
            config: wanted.loss_fn_config,
        },
        forward_only: wanted.forward_only,
    };
    let request_id = submit(call.work(), &model, wanted.seq_id, call.endpoint, work)?;
    Ok(future(request_id, Some(model.id.clone())))
}

pub(super) fn optim_step(call: &Call) -> Answer {
    let wanted: OptimStepRequest<'_> = call.json()?;
    let params = wanted
        .params()
        .ok_or_else(|| Refusal::unprocessable("adam_params or optimizer_params is required"))?;
    let model = call.model(&wanted.model_id)?;
    call.touch(&model.session_id)?;
    let endpoint = route::OPTIM_STEP.template;
    let request_id = submit(
        call.work(),
        &model,
        wanted.seq_id,
        endpoint,
        Work::Step(params),
    )?;
    Ok(future(request_id, Some(model.id.clone())))
}
