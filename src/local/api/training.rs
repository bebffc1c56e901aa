//! Models: creating them, passes over data, steps of the optimiser.

use std::sync::Arc;

use serde_json::json;

use super::{Answer, future, json};
use crate::local::api::service::Service;
use crate::local::http::{Refusal, Reply, Request};
use crate::local::state::futures::Outcome;
use crate::local::state::models::{Job, Model};
use crate::local::work::convert;
use crate::local::work::jobs::{self, Work};
use crate::loss::LossGraph;
use crate::types::{LoraConfig, Loss, LossFn, ModelData, ModelInfo, OptimizerConfig};
use crate::wire::compress;
use crate::wire::dialect::decode_request;
use crate::wire::request::{
    CreateCustomLossRequest, CreateModelRequest, GetInfoRequest, OptimStepRequest,
    UnloadModelRequest,
};
use crate::wire::route;

pub(in crate::local) fn create_model(service: &Arc<Service>, request: &Request) -> Answer {
    let wanted: CreateModelRequest<'_> = json(request)?;
    check_base_model(service, &wanted.base_model)?;
    check_optimizer(&wanted.optimizer_config)?;
    let lora = wanted
        .lora_config
        .ok_or_else(|| Refusal::bad("this server trains adapters only: lora_config is required"))?;
    let work = Work::Create {
        user_metadata: wanted.user_metadata.map(|metadata| metadata.into_owned()),
    };
    new_model(
        service,
        &wanted.session_id,
        wanted.model_seq_id,
        lora.into_owned(),
        route::CREATE_MODEL.template,
        work,
    )
}

/// Creates a session's model of this number, or finds the one that was created before.
pub(super) fn new_model(
    service: &Arc<Service>,
    session_id: &str,
    number: u64,
    lora: LoraConfig,
    endpoint: &'static str,
    work: Work,
) -> Answer {
    jobs::spec(&lora)
        .check(service.base.config())
        .map_err(|error| Refusal::bad(error.to_string()))?;
    let id = format!("{session_id}:train:{number}");
    let request_id = format!("{id}:0");
    let is_new = service.sessions.with_active(session_id, |session| {
        session.models.insert(number, id.clone()).is_none()
    })?;
    if is_new {
        service.futures.open(&request_id, None, None);
        let base_model = service.base_model.clone();
        let model = Model::new(id.clone(), session_id.to_owned(), base_model, lora);
        let model = Arc::new(model);
        service.models.add(model.clone());
        let job = Job {
            request_id: request_id.clone(),
            endpoint,
            work,
        };
        model.begin(service, job);
    }
    Ok(future(request_id, Some(id)))
}

pub(super) fn check_base_model(service: &Service, name: &str) -> Result<(), Refusal> {
    if name == service.base_model {
        return Ok(());
    }
    let offered = &service.base_model;
    Err(Refusal::bad(format!(
        "base model {name} is not served here; this server has {offered}"
    )))
}

pub(super) fn check_optimizer(config: &OptimizerConfig) -> Result<(), Refusal> {
    if *config == OptimizerConfig::AdamW {
        return Ok(());
    }
    Err(Refusal::bad(convert::ADAM_ONLY))
}

pub(in crate::local) fn get_info(service: &Service, request: &Request) -> Answer {
    let wanted: GetInfoRequest<'_> = json(request)?;
    let model = service.models.get(&wanted.model_id)?;
    let name = Some(model.base_model.clone());
    let arch = service.base.config().family.name;
    Ok(Reply::json(&ModelInfo {
        model_id: model.id.as_str().into(),
        model_data: ModelData {
            arch: Some(arch.to_owned()),
            model_name: name.clone(),
            tokenizer_id: Some(service.tokenizer.display().to_string()),
        },
        optimizer_config: OptimizerConfig::AdamW,
        is_lora: Some(true),
        lora_rank: Some(model.lora.rank),
        model_name: name,
    }))
}

pub(in crate::local) fn unload(service: &Arc<Service>, request: &Request) -> Answer {
    let wanted: UnloadModelRequest<'_> = json(request)?;
    let model = service.models.get(&wanted.model_id)?;
    let endpoint = route::UNLOAD_MODEL.template;
    let request_id = model.submit(service, None, endpoint, Work::Unload)?;
    Ok(future(request_id, Some(model.id.clone())))
}

/// Takes in a loss. The result is there at once, but clients expect a future.
pub(in crate::local) fn create_custom_loss(service: &Service, request: &Request) -> Answer {
    let wanted: CreateCustomLossRequest<'_> = json(request)?;
    let graph = LossGraph {
        name: wanted.name.into_owned(),
        inputs: wanted.inputs.into_owned(),
        graph: wanted.graph.into_owned(),
    };
    service.sessions.touch(&wanted.session_id)?;
    let number = wanted.custom_loss_seq_id;
    let loss_id = service.losses.add(&wanted.session_id, number, &graph)?;
    let endpoint = route::CREATE_CUSTOM_LOSS.template;
    let request_id = format!("{}:{endpoint}:{number}", wanted.session_id);
    if service.futures.open(&request_id, None, None) {
        let reply = json!({"loss_id": loss_id, "type": endpoint});
        service.finish(endpoint, &request_id, Outcome::json(&reply));
    }
    Ok(future(request_id, None))
}

/// `forward_backward` and `forward`, in either dialect.
pub(in crate::local) fn pass(
    service: &Arc<Service>,
    endpoint: &'static str,
    request: &Request,
) -> Answer {
    let body = match request.header("content-encoding") {
        None | Some("identity") => request.body.to_vec(),
        Some(compress::ENCODING) => compress::decompress(&request.body, service.max_request_bytes)?,
        Some(other) => {
            let detail = format!("content encoding {other} is not understood");
            return Err(Refusal::unprocessable(detail));
        }
    };
    let wanted = decode_request(request.header("content-type"), body)?;
    let model = service.models.get(&wanted.model_id)?;
    service.sessions.touch(&model.session_id)?;
    let work = Work::Pass {
        data: wanted.data,
        loss: Loss {
            function: LossFn::from(wanted.loss_fn),
            config: wanted.loss_fn_config,
        },
        forward_only: wanted.forward_only,
    };
    let request_id = model.submit(service, wanted.seq_id, endpoint, work)?;
    Ok(future(request_id, Some(model.id.clone())))
}

pub(in crate::local) fn optim_step(service: &Arc<Service>, request: &Request) -> Answer {
    let wanted: OptimStepRequest<'_> = json(request)?;
    let params = wanted
        .params()
        .ok_or_else(|| Refusal::unprocessable("adam_params or optimizer_params is required"))?;
    let model = service.models.get(&wanted.model_id)?;
    service.sessions.touch(&model.session_id)?;
    let endpoint = route::OPTIM_STEP.template;
    let request_id = model.submit(service, wanted.seq_id, endpoint, Work::Step(params))?;
    Ok(future(request_id, Some(model.id.clone())))
}
