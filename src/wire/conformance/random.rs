//! Random requests of every kind that is written as JSON, from a seed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::values::{matrix, maybe, model_input, number, text, tokens};
use crate::types::telemetry::{Batch, Event, EventKind, Severity, duration};
use crate::types::*;
use crate::wire::request::*;

/// A body, and the Python model that must accept it.
pub(super) type Generate = fn(&mut Rng) -> (&'static str, Vec<u8>);

/// One generator per kind of JSON request.
pub(super) const REQUESTS: [Generate; 19] = [
    client_config,
    create_session,
    heartbeat,
    create_model,
    get_info,
    optim_step,
    save_weights,
    save_weights_for_sampler,
    save_weights_external,
    load_weights,
    create_sampling_session,
    join_sampling_session,
    asample,
    retrieve_future,
    retrieve_futures,
    copy_weights,
    custom_loss,
    search,
    telemetry,
];

fn body(kind: &'static str, request: &impl serde::Serialize) -> (&'static str, Vec<u8>) {
    (kind, to_json(request).unwrap())
}

fn word<'a>(rng: &mut Rng) -> Option<Cow<'a, str>> {
    maybe(rng, text).map(Cow::Owned)
}

fn texts(rng: &mut Rng) -> Vec<String> {
    (0..rng.usize(0..4)).map(|_| text(rng)).collect()
}

fn labels(rng: &mut Rng) -> BTreeMap<String, String> {
    (0..rng.usize(0..4))
        .map(|_| (text(rng), text(rng)))
        .collect()
}

fn json_value(rng: &mut Rng, depth: u32) -> Value {
    match rng.u32(0..if depth == 0 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(..)),
        3 => json!(number(rng)),
        4 => json!(text(rng)),
        5 => (0..rng.usize(0..3))
            .map(|_| json_value(rng, depth - 1))
            .collect(),
        _ => Value::Object(notes(rng, depth - 1)),
    }
}

fn notes(rng: &mut Rng, depth: u32) -> Map<String, Value> {
    (0..rng.usize(0..3))
        .map(|_| (text(rng), json_value(rng, depth)))
        .collect()
}

fn metadata<'a>(rng: &mut Rng) -> Option<Cow<'a, Map<String, Value>>> {
    maybe(rng, |rng| Cow::Owned(notes(rng, 2)))
}

fn count(rng: &mut Rng) -> u64 {
    let list = [0, 1, rng.u64(0..100_000), 1 << 40];
    rng.choice(list).unwrap()
}

fn client_config(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let sdk_version = text(rng).into();
    body("ClientConfigRequest", &ClientConfigRequest { sdk_version })
}

fn create_session(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = CreateSessionRequest {
        tags: texts(rng).into(),
        user_metadata: Cow::Owned(notes(rng, 2)),
        sdk_version: text(rng).into(),
        project_id: word(rng),
        display_name: word(rng),
    };
    body("CreateSessionRequest", &request)
}

fn heartbeat(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let session_id = text(rng).into();
    body(
        "SessionHeartbeatRequest",
        &SessionHeartbeatRequest { session_id },
    )
}

fn lora_config(rng: &mut Rng) -> LoraConfig {
    let config = LoraConfig::rank(rng.u32(1..256))
        .with_train_unembed(rng.bool())
        .with_train_mlp(rng.bool())
        .with_train_attn(rng.bool());
    match maybe(rng, |rng| rng.i64(..)) {
        Some(seed) => config.with_seed(seed),
        None => config,
    }
}

fn optimizer_config(rng: &mut Rng) -> OptimizerConfig {
    let other = OptimizerFamily::new("lion")
        .with("beta", number(rng))
        .with("x", text(rng));
    let list = [
        OptimizerConfig::AdamW,
        OptimizerConfig::Dimuon,
        OptimizerConfig::Other(other),
    ];
    rng.choice(list).unwrap()
}

fn create_model(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = CreateModelRequest {
        session_id: text(rng).into(),
        model_seq_id: count(rng),
        base_model: text(rng).into(),
        user_metadata: metadata(rng),
        lora_config: maybe(rng, lora_config).map(Cow::Owned),
        optimizer_config: Cow::Owned(optimizer_config(rng)),
    };
    body("CreateModelRequest", &request)
}

fn get_info(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let model_id = text(rng).into();
    body("GetInfoRequest", &GetInfoRequest { model_id })
}

fn optim_step(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let params = match rng.u32(0..3) {
        0 => AdamParams::default()
            .with_learning_rate(number(rng))
            .with_betas(number(rng), number(rng))
            .with_eps(number(rng))
            .with_weight_decay(number(rng))
            .with_grad_clip_norm(number(rng))
            .into(),
        1 => DimuonParams::learning_rate(rng.f64())
            .with_beta1(rng.f64())
            .with_grad_clip_norm(number(rng))
            .into(),
        _ => {
            OptimizerParams::Other(OptimizerFamily::new("lion").with("learning_rate", number(rng)))
        }
    };
    let seq_id = maybe(rng, count);
    body(
        "OptimStepRequest",
        &OptimStepRequest::new(text(rng), seq_id, &params),
    )
}

fn save_weights(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = SaveWeightsRequest {
        model_id: text(rng).into(),
        path: word(rng),
        seq_id: maybe(rng, count),
        ttl_seconds: maybe(rng, count),
        overwrite: rng.bool(),
        user_metadata: maybe(rng, |rng| Cow::Owned(labels(rng))),
    };
    body("SaveWeightsRequest", &request)
}

fn save_weights_for_sampler(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = SaveWeightsForSamplerRequest {
        model_id: text(rng).into(),
        path: word(rng),
        sampling_session_seq_id: maybe(rng, count),
        seq_id: maybe(rng, count),
        ttl_seconds: maybe(rng, count),
        user_metadata: maybe(rng, |rng| Cow::Owned(labels(rng))),
    };
    body("SaveWeightsForSamplerRequest", &request)
}

fn save_weights_external(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = SaveWeightsExternalRequest {
        model_id: text(rng).into(),
        path: text(rng).into(),
        seq_id: maybe(rng, count),
        ttl_seconds: maybe(rng, count),
        age_encryption_recipients: maybe(rng, |rng| texts(rng).into()),
    };
    body("SaveWeightsExternalRequest", &request)
}

fn load_weights(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let mut request = if rng.bool() {
        LoadWeightsRequest::into_model(text(rng), count(rng), text(rng), rng.bool())
    } else {
        LoadWeightsRequest::new_model(text(rng), count(rng), text(rng), rng.bool())
    };
    request.base_model = word(rng);
    request.user_metadata = metadata(rng);
    request.optimizer_config = maybe(rng, |rng| Cow::Owned(optimizer_config(rng)));
    request.weights_access_token = word(rng);
    body("LoadWeightsRequest", &request)
}

fn create_sampling_session(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = CreateSamplingSessionRequest {
        session_id: text(rng).into(),
        sampling_session_seq_id: count(rng),
        base_model: word(rng),
        model_path: word(rng),
    };
    body("CreateSamplingSessionRequest", &request)
}

fn join_sampling_session(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let sampling_session_id = text(rng).into();
    let request = JoinSamplingSessionRequest {
        sampling_session_id,
    };
    body("JoinSamplingSessionRequest", &request)
}

fn stop(rng: &mut Rng) -> Stop {
    match rng.u32(0..4) {
        0 => Stop::Text(text(rng)),
        1 => Stop::Texts(texts(rng)),
        2 => Stop::Tokens(tokens(rng)),
        _ => Stop::never(),
    }
}

fn asample(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let mut params = SamplingParams::default()
        .with_temperature(rng.f64())
        .with_top_k(rng.i64(-1..100))
        .with_top_p(rng.f64());
    params.max_tokens = maybe(rng, |rng| rng.u32(1..10_000));
    params.seed = maybe(rng, |rng| rng.i64(..));
    params.stop = maybe(rng, stop);
    let mut options = SampleOptions::from(params)
        .with_num_samples(rng.u32(1..100))
        .with_prompt_logprobs(rng.bool())
        .with_topk_prompt_logprobs(rng.u32(0..20))
        .with_topk_sample_logprobs(rng.u32(0..20))
        .with_prompt_alt_tokens(rng.u32(0..20));
    options.prompt_logprobs_last_n = maybe(rng, |rng| rng.u32(1..9));
    options.target_prompt_logprobs = maybe(rng, |rng| matrix(rng, true, false));
    let prompt = model_input(rng, true);
    let id = text(rng);
    let request =
        AsampleRequest::new(id, count(rng), &prompt, &options).with_stability_info(rng.bool());
    body("SampleRequest", &request)
}

fn retrieve_future(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = RetrieveFutureRequest {
        request_id: text(rng).into(),
        allow_metadata_only: rng.bool(),
    };
    body("FutureRetrieveRequest", &request)
}

fn retrieve_futures(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = RetrieveFuturesRequest {
        target: FuturesTarget {
            sampling_session_id: text(rng).into(),
            cloned_sampler_id: count(rng),
        },
        prev_cursor: count(rng),
        timeout: maybe(rng, number),
        retrieved_request_ids: texts(rng).into(),
    };
    body("FuturesRetrieveRequest", &request)
}

fn copy_weights(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let request = CopyWeightsRequest {
        source_path: text(rng).into(),
        destination_project_id: word(rng),
        session_id: word(rng),
        model_seq_id: maybe(rng, count),
        ttl_seconds: maybe(rng, count),
    };
    body("CopyWeightsRequest", &request)
}

fn custom_loss(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    const OPS: [CustomLossOp; 6] = [
        CustomLossOp::Placeholder,
        CustomLossOp::GetAttr,
        CustomLossOp::CallFunction,
        CustomLossOp::CallMethod,
        CustomLossOp::CallModule,
        CustomLossOp::Output,
    ];
    let node = |rng: &mut Rng| CustomLossNode {
        op: rng.choice(OPS).unwrap(),
        name: text(rng),
        target: text(rng),
        args: (0..rng.usize(0..3)).map(|_| json_value(rng, 2)).collect(),
        kwargs: notes(rng, 2),
    };
    let nodes = (0..rng.usize(0..4)).map(|_| node(rng)).collect();
    let inputs: Vec<_> = (0..rng.usize(0..3))
        .map(|index| CustomLossInput::new(format!("input_{index}"), rng.u8(0..3)).unwrap())
        .collect();
    let request = CreateCustomLossRequest {
        session_id: text(rng).into(),
        custom_loss_seq_id: count(rng),
        name: text(rng).into(),
        inputs: inputs.into(),
        graph: Cow::Owned(CustomLossGraph::new(nodes)),
    };
    body("CreateCustomLossRequest", &request)
}

fn timestamp(rng: &mut Rng) -> Timestamp {
    let micros = rng.i64(0..4_000_000_000) * 1_000_000;
    Timestamp::from_microsecond(micros + rng.choice([0, 1, 678_900]).unwrap()).unwrap()
}

fn search(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    const REASONS: [FinishReason; 3] = [
        FinishReason::Success,
        FinishReason::Errored,
        FinishReason::Interrupted,
    ];
    let mut search = SessionSearch::default().with_limit(rng.u32(1..=200));
    search.session_id = maybe(rng, text).map(Into::into);
    search.project_ids = maybe(rng, texts);
    search.user_metadata = labels(rng);
    search.display_name = maybe(rng, text);
    search.owner = match rng.u32(0..3) {
        0 => SearchOwner::Own,
        1 => SearchOwner::Accessible,
        _ => SearchOwner::User {
            owner_urns: (0..rng.usize(1..=10)).map(|_| text(rng)).collect(),
        },
    };
    search.statuses = maybe(rng, |rng| {
        let reasons = maybe(rng, |rng| vec![rng.choice(REASONS).unwrap()]);
        let list = [
            StatusQuery::Active,
            StatusQuery::Cancelled,
            StatusQuery::Failed,
            StatusQuery::ClientFinished { reasons },
        ];
        vec![rng.choice(list).unwrap()]
    });
    search.cursor = maybe(rng, |rng| SessionSearchCursor {
        last_created_at: timestamp(rng),
        last_session_id: text(rng).into(),
    });
    search.validate().unwrap();
    body("SessionSearchRequest", &search)
}

fn telemetry(rng: &mut Rng) -> (&'static str, Vec<u8>) {
    let event = |rng: &mut Rng| Event {
        event_id: text(rng),
        event_session_index: count(rng),
        severity: rng
            .choice([
                Severity::Debug,
                Severity::Warning,
                Severity::Error,
                Severity::Critical,
            ])
            .unwrap(),
        timestamp: timestamp(rng),
        kind: match rng.u32(0..4) {
            0 => EventKind::SessionStart,
            1 => EventKind::SessionEnd {
                duration: duration(std::time::Duration::from_millis(rng.u64(0..1 << 40))),
            },
            2 => EventKind::UnhandledException {
                error_type: text(rng),
                error_message: text(rng),
                traceback: maybe(rng, text),
            },
            _ => EventKind::GenericEvent {
                event_name: text(rng),
                event_data: notes(rng, 2),
            },
        },
    };
    let batch = Batch {
        events: (0..rng.usize(0..4)).map(|_| event(rng)).collect(),
        platform: text(rng),
        sdk_version: text(rng),
        session_id: text(rng),
        process_uuid: text(rng),
    };
    body("TelemetrySendRequest", &batch)
}
