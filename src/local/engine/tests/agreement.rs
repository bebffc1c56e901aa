//! What is computed in two ways comes out the same: by sampler and trainer at half precision, and with
//! activations kept or computed again.

use super::*;
use crate::local::engine::lora::Merged;
use crate::local::engine::mapping::Mapping;
use crate::local::engine::matrix::{Matrix, Order};
use crate::local::engine::quant::Dtype;

/// The matrix as a file in bf16 would have it.
fn halved(matrix: &Matrix) -> Matrix {
    let numbers = matrix.to_f32();
    let bytes = numbers
        .into_iter()
        .flat_map(|number| half::bf16::from_f32(number).to_le_bytes());
    let bytes: &'static [u8] = bytes.collect::<Vec<u8>>().leak();
    let section = Mapping::embedded(bytes).section(0..bytes.len());
    let (rows, cols) = (matrix.rows(), matrix.cols());
    Matrix::mapped(rows, cols, section, Dtype::Bf16, Order::Plain)
}

/// A model of a family in bf16, large enough that adapters are not merged into it.
fn large(family: &'static Family) -> Base {
    let mut weights = large_single(family);
    weights.embed = halved(&weights.embed);
    weights.head = weights.head.as_ref().map(halved);
    for layer in &mut weights.layers {
        layer.projections = layer.projections.each_ref().map(halved);
    }
    Base::new(weights, 2).unwrap()
}

/// The same in `f32`.
fn large_single(family: &'static Family) -> Weights {
    let kind = |layer: usize| LayerKind {
        rope: Some(0),
        window: (layer % 2 == 1 && family.windows != Windows::Never).then_some(40),
    };
    let config = Config {
        vocab: 16_384,
        width: 256,
        layers: (0..4).map(kind).collect(),
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        rotary_dim: 32,
        mlp: 1536,
        query_scale: 32f32.sqrt().recip(),
        ..config(family)
    };
    let weights = Weights::random(config, 3);
    assert!(weights.len() > Merged::LIMIT, "{}", weights.len());
    weights
}

/// Whether the processor has the vectors that products of large models are written for.
fn same_order() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[test]
fn sampler_and_trainer_agree_at_bf16() {
    let models = [
        ("builtin", Base::builtin(2).unwrap()),
        ("qwen3", large(qwen3())),
        ("llama", large(Family::named("llama").unwrap())),
        ("mistral", large(Family::named("mistral").unwrap())),
        ("in f32", Base::new(large_single(qwen3()), 2).unwrap()),
    ];
    for (name, base) in models {
        let (vocab, small) = (base.config().vocab, base.weights().len() <= Merged::LIMIT);
        let length = if small { 70 } else { 300 };
        let adapter = Arc::new(warm(&base, LoraSpec::new(8, 8)));
        let mut rng = Rng::new(2);
        let prompt: Vec<u32> = (0..length).map(|_| rng.below(vocab) as u32).collect();
        let mut request = SampleRequest::new(prompt.clone(), 24);
        (request.num_samples, request.seed) = (3, Some(7));
        request.prompt_logprobs = true;
        let output = sample(&base, Some(&adapter), &request).unwrap();
        for sequence in &output.sequences {
            let tokens = [&prompt[..], &sequence.tokens].concat();
            let count = tokens.len() - 1;
            let datum = Datum {
                tokens: tokens[..count].to_vec(),
                targets: tokens[1..].to_vec(),
                width: 1,
                inputs: LossInputs {
                    weights: vec![1.0; count],
                    ..LossInputs::default()
                },
            };
            let scored = forward(&base, Some(&adapter), &[datum], &Loss::CrossEntropy).unwrap();
            let (before, scored) = scored.data[0].logprobs.split_at(prompt.len() - 1);
            let read = output.prompt_logprobs.as_ref().unwrap();
            let read: Vec<f32> = read.iter().flatten().copied().collect();
            assert_eq!(scored.len(), sequence.logprobs.len());
            // With the widest vectors a large model's numbers are added up in the same order.
            if !small && same_order() {
                assert!(scored == sequence.logprobs && before == read, "{name}");
            }
            for (trained, sampled) in scored.iter().zip(&sequence.logprobs) {
                let difference = (trained - sampled).abs();
                assert!(difference < 1e-3, "{name}: {trained} and {sampled}");
            }
        }
    }
}

/// Where there is no room for activations, layers are computed again on the way back.
#[test]
fn gradients_are_the_same_with_activations_kept_or_computed_again() {
    for family in &FAMILIES {
        let base = base(family, 2);
        let data = data(40, &[70, 3, 64, 20]);
        let adapter = warm(&base, LoraSpec::new(4, 8));
        for unmerged in [false, true] {
            let gradient = |room: usize| {
                let net = match unmerged {
                    true => Net::unmerged(base.weights(), &adapter),
                    false => Net::new(base.weights(), Some(&adapter)),
                };
                let fresh = || adapter.slots(base.config(), unmerged);
                let loss = Loss::CrossEntropy;
                let (output, total) =
                    base.run(|| train::run_within(&base, net, &data, &loss, Some(&fresh), room));
                let mut gradient = vec![0.0; adapter.params().len()];
                adapter.collect(&mut total.unwrap(), &mut gradient);
                (output, gradient)
            };
            let kept = gradient(usize::MAX);
            assert!(kept.1.iter().any(|one| *one != 0.0));
            assert!(kept == gradient(0), "{} {unmerged}", family.name);
        }
    }
}
