//! Random values of training and sampling, from a seed.

use fastrand::Rng;

use crate::types::*;
use crate::wire::forward_backward::OwnedForwardBackwardRequest;

pub(super) fn text(rng: &mut Rng) -> String {
    const LETTERS: [char; 14] = [
        'a', 'Z', '0', ' ', ':', '/', '"', '\\', '\n', '\u{1}', 'é', '漢', '😀', '\u{2028}',
    ];
    (0..rng.usize(1..12))
        .map(|_| rng.choice(LETTERS).unwrap())
        .collect()
}

pub(super) fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| make(rng))
}

pub(super) fn number(rng: &mut Rng) -> f64 {
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

fn token(rng: &mut Rng) -> i32 {
    let list = [0, 1, rng.i32(0..200_000), i32::MAX];
    rng.choice(list).unwrap()
}

pub(super) fn tokens(rng: &mut Rng) -> Vec<i32> {
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
pub(super) fn matrix(rng: &mut Rng, integers: bool, finite: bool) -> TensorData {
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

pub(super) fn model_input(rng: &mut Rng, pointers: bool) -> ModelInput {
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
