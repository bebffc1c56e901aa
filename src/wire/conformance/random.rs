//! Random values of every kind that crosses the wire, from a seed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fastrand::Rng;
use serde_json::{Map, Value, json};

use crate::types::telemetry::{Batch, Event, EventKind, Severity, duration};
use crate::types::*;
use crate::wire::forward_backward::OwnedForwardBackwardRequest;
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

pub(super) fn text(rng: &mut Rng) -> String {
    const LETTERS: [char; 14] = [
        'a', 'Z', '0', ' ', ':', '/', '"', '\\', '\n', '\u{1}', 'é', '漢', '😀', '\u{2028}',
    ];
    (0..rng.usize(1..12))
        .map(|_| rng.choice(LETTERS).unwrap())
        .collect()
}

fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| make(rng))
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

fn number(rng: &mut Rng) -> f64 {
    let list = [
        0.0,
        -0.0,
        1.0,
        1e-12,
        1e22,
        -1e300,
        5e-324,
        rng.f64(),
        rng.f64() * 1e9,
    ];
    rng.choice(list).unwrap()
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
        1 => DimuonParams::new(rng.f64())
            .and_then(|params| params.with_beta1(rng.f64()))
            .and_then(|params| params.with_grad_clip_norm(number(rng)))
            .unwrap()
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

// ---------------------------------------------------------------- training and results

fn token(rng: &mut Rng) -> i32 {
    let list = [0, 1, rng.i32(0..200_000), i32::MAX];
    rng.choice(list).unwrap()
}

fn tokens(rng: &mut Rng) -> Vec<i32> {
    (0..rng.usize(0..9)).map(|_| token(rng)).collect()
}

fn single(rng: &mut Rng) -> f32 {
    const ODD: [f32; 8] = [
        0.0,
        -0.0,
        1.0,
        1e-45,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    if rng.bool() {
        rng.f32()
    } else {
        rng.choice(ODD).unwrap()
    }
}

fn values(rng: &mut Rng, integers: bool, finite: bool, count: usize) -> TensorValues {
    if integers {
        let one = |rng: &mut Rng| rng.choice([0, -1, i64::MAX, i64::MIN, 7]).unwrap();
        (0..count).map(|_| one(rng)).collect::<Vec<i64>>().into()
    } else if finite {
        (0..count).map(|_| rng.f32()).collect::<Vec<f32>>().into()
    } else {
        (0..count).map(|_| single(rng)).collect::<Vec<f32>>().into()
    }
}

/// A matrix, dense or sparse.
fn matrix(rng: &mut Rng, integers: bool, finite: bool) -> TensorData {
    let (rows, columns) = (rng.usize(1..4), rng.usize(1..4));
    if rng.bool() {
        let values = values(rng, integers, finite, rows * columns);
        return TensorData::from_parts(values, Some(vec![rows, columns]), None).unwrap();
    }
    let (mut crow, mut col) = (vec![0], Vec::new());
    for _ in 0..rows {
        col.extend((0..columns as i64).filter(|_| rng.bool()));
        crow.push(col.len() as i64);
    }
    let values = values(rng, integers, finite, col.len());
    TensorData::sparse_csr(values, crow, col, [rows, columns]).unwrap()
}

fn tensor(rng: &mut Rng, finite: bool) -> TensorData {
    let integers = rng.bool();
    match rng.u32(0..3) {
        0 => matrix(rng, integers, finite),
        1 => {
            let length = rng.usize(0..9);
            TensorData::from(values(rng, integers, finite, length)).without_shape()
        }
        _ => {
            let length = rng.usize(0..9);
            values(rng, integers, finite, length).into()
        }
    }
}

fn model_input(rng: &mut Rng, pointers: bool) -> ModelInput {
    let chunk = |rng: &mut Rng| {
        let format = rng.choice([ImageFormat::Png, ImageFormat::Jpeg]).unwrap();
        let bytes: Vec<u8> = (0..rng.usize(0..9)).map(|_| rng.u8(..)).collect();
        let chunk = match rng.u32(0..if pointers { 6 } else { 5 }) {
            0..3 => return Chunk::tokens(tokens(rng)),
            3 => Chunk::image(bytes, format),
            4 => return Chunk::dmel(vec![3, 2, rng.u8(0..128), 8]).unwrap(),
            _ => Chunk::image_asset(text(rng), format),
        };
        match maybe(rng, |rng| rng.u32(0..1000)) {
            Some(count) => chunk.with_expected_tokens(count),
            None => chunk,
        }
    };
    let chunks: Vec<_> = (0..rng.usize(0..4)).map(|_| chunk(rng)).collect();
    ModelInput::from_chunks(chunks)
}

fn spans(rng: &mut Rng, length: usize) -> Vec<ProvenanceSpan> {
    let length = length as i64;
    let cut = rng.i64(0..=length);
    vec![
        ProvenanceSpan::prompt(text(rng), rng.i64(0..1 << 40), cut).unwrap(),
        ProvenanceSpan::sampled(text(rng), 0, length - cut).unwrap(),
    ]
}

fn datum(rng: &mut Rng, finite: bool) -> Datum {
    let input = model_input(rng, false);
    let mut datum = Datum::new(&input);
    for _ in 0..rng.usize(0..3) {
        datum = datum.with(text(rng), tensor(rng, finite));
    }
    let targets = tokens(rng);
    let count = targets.len();
    datum = datum.with_target_tokens(targets);
    match input.length() {
        Ok(length) if !finite && rng.bool() => datum
            .with_provenance(spans(rng, length), spans(rng, count))
            .unwrap(),
        _ => datum,
    }
}

const LOSSES: [LossFn; 8] = [
    LossFn::CrossEntropy,
    LossFn::ImportanceSampling,
    LossFn::Ppo,
    LossFn::Cispo,
    LossFn::Dro,
    LossFn::Gspo,
    LossFn::StableReinforce,
    LossFn::Custom,
];

/// A training request. A `finite` one fits the JSON dialect too.
pub(super) fn request(rng: &mut Rng, finite: bool) -> OwnedForwardBackwardRequest {
    let value = |rng: &mut Rng| match rng.bool() {
        true => LossConfigValue::Number(number(rng)),
        false => LossConfigValue::Text(text(rng)),
    };
    OwnedForwardBackwardRequest {
        model_id: text(rng),
        seq_id: maybe(rng, |rng| rng.choice([1, 77, i32::MAX as u64]).unwrap()),
        data: (0..rng.usize(0..4)).map(|_| datum(rng, finite)).collect(),
        loss_fn: rng.choice(LOSSES).unwrap().to_string(),
        loss_fn_config: (0..rng.usize(0..3))
            .map(|_| (text(rng), value(rng)))
            .collect(),
        forward_only: rng.bool(),
    }
}

/// A result of training, whose datums all have the same fields but not the same layouts.
pub(super) fn output(rng: &mut Rng, finite: bool) -> ForwardBackwardOutput {
    let names: Vec<String> = (0..rng.usize(0..3)).map(|_| text(rng)).collect();
    let field = |rng: &mut Rng| {
        let integers = rng.bool();
        let mut shape = vec![rng.usize(0..4)];
        shape.extend((0..rng.usize(0..3)).map(|_| rng.usize(1..3)));
        let values = values(rng, integers, finite, shape.iter().product());
        TensorData::from_parts(values, Some(shape), None).unwrap()
    };
    let outputs = (0..rng.usize(0..4))
        .map(|_| {
            names
                .iter()
                .map(|name| (name.clone(), field(rng)))
                .collect()
        })
        .collect();
    let metrics = (0..rng.usize(0..3))
        .map(|_| (text(rng), number(rng)))
        .collect();
    ForwardBackwardOutput::new("TorchLossReturn", outputs, metrics)
}

fn topk(rng: &mut Rng) -> TopkLogprobs {
    let row = |rng: &mut Rng| {
        maybe(rng, |rng| {
            (0..rng.usize(1..4))
                .map(|_| (token(rng), rng.f32()))
                .collect()
        })
    };
    let rows: Vec<_> = (0..rng.usize(1..4)).map(|_| row(rng)).collect();
    TopkLogprobs::from_lists(&rows)
}

/// A result of sampling, as a server might send it.
pub(super) fn sample(rng: &mut Rng, finite: bool) -> SampleResponse {
    let sequence = |rng: &mut Rng| {
        let tokens = tokens(rng);
        let reason = rng.choice([StopReason::Stop, StopReason::Length]).unwrap();
        // An empty list reads as none in protobuf, so none are generated.
        let logprobs =
            (!tokens.is_empty() && rng.bool()).then(|| tokens.iter().map(|_| -rng.f32()).collect());
        let mut sequence = SampledSequence::new(reason, tokens);
        sequence.logprobs = logprobs;
        sequence.topk_logprobs = maybe(rng, topk);
        sequence
    };
    let mut response = SampleResponse::new((0..rng.usize(0..4)).map(|_| sequence(rng)).collect());
    response.prompt_logprobs = maybe(rng, |rng| {
        let rest = rng.usize(0..4);
        let rest: Vec<_> = (0..rest).map(|_| maybe(rng, |rng| -rng.f32())).collect();
        std::iter::once(None).chain(rest).collect()
    });
    response.topk_prompt_logprobs = maybe(rng, |rng| {
        let mut lists = topk(rng).to_lists();
        lists[0] = None;
        TopkLogprobs::from_lists(&lists)
    });
    response.target_prompt_logprobs = maybe(rng, |rng| matrix(rng, false, finite));
    response.prompt_alt_tokens = maybe(rng, |rng| PromptAltTokens {
        tokens: matrix(rng, true, finite),
        logprobs: matrix(rng, false, finite),
    });
    response.prompt_cache_hit_tokens = rng.i64(0..1000);
    response
}
