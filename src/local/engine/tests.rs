//! The engine against itself: finite differences, determinism, resuming, sampling.

mod agreement;

use std::sync::Arc;

use super::batch::sample;
use super::config::{Bias, Config, LayerKind};
use super::family::{FAMILIES, Family, Windows};
use super::lora::{Adapter, LoraSpec};
use super::model::{Net, Weights};
use super::rng::Rng;
use super::rope::{Rope, Scaling};
use super::train::{self, LossInputs, forward};
use super::*;

/// A small model of a family, with everything the family can do.
fn config(family: &'static Family) -> Config {
    let kind = |layer: usize| LayerKind {
        rope: (layer > 0 || family.windows != Windows::WithoutRope).then_some(0),
        window: (layer == 0 && family.windows != Windows::Never).then_some(3),
    };
    let scaling = match family.name {
        "llama" => Scaling::Llama3 {
            factor: 8.0,
            low_frequency: 1.0,
            high_frequency: 4.0,
            original_positions: 32.0,
        },
        _ => Scaling::None,
    };
    Config {
        family,
        vocab: 40,
        width: 16,
        layers: (0..2).map(kind).collect(),
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        rotary_dim: if family.fused { 4 } else { 6 },
        mlp: 24,
        activation: family.defaults.activation,
        bias: Bias {
            qkv: family.qkv_bias,
            ..Bias::default()
        },
        query_scale: 6f32.sqrt().recip(),
        tied_head: family.name != "llama",
        ropes: vec![Rope {
            theta: 10_000.0,
            scaling,
        }],
        ..Config::tiny()
    }
}

fn qwen3() -> &'static Family {
    Family::named("qwen3").unwrap()
}

fn base(family: &'static Family, threads: usize) -> Base {
    Base::new(Weights::random(config(family), 3), threads).unwrap()
}

/// Data with every input any loss wants.
fn data(vocab: usize, lengths: &[usize]) -> Vec<Datum> {
    let mut rng = Rng::new(11);
    let mut floats = |len: usize, low: f64, high: f64| -> Vec<f32> {
        (0..len)
            .map(|_| (low + rng.unit() * (high - low)) as f32)
            .collect()
    };
    let mut tokens = Rng::new(5);
    let mut ids =
        |len: usize| -> Vec<u32> { (0..len).map(|_| tokens.below(vocab) as u32).collect() };
    lengths
        .iter()
        .map(|&len| Datum {
            tokens: ids(len),
            targets: ids(len),
            width: 1,
            inputs: LossInputs {
                weights: floats(len, 0.0, 2.0),
                logprobs: floats(len, -4.2, -3.2),
                advantages: floats(len, -1.0, 1.0),
                ..LossInputs::default()
            },
        })
        .collect()
}

/// An adapter with something in `B`, so that every gradient matters.
fn warm(base: &Base, spec: LoraSpec) -> Adapter {
    let mut adapter = Adapter::new(spec, base.config()).unwrap();
    let mut rng = Rng::new(9);
    for value in adapter.params_mut() {
        *value += rng.normal() * 0.05;
    }
    adapter
}

fn losses() -> Vec<Loss> {
    [
        "cross_entropy",
        "importance_sampling",
        "ppo",
        "cispo",
        "dro",
        "gspo",
    ]
    .map(|name| Loss::parse(name, []).unwrap())
    .to_vec()
}

#[test]
fn gradients_match_finite_differences() {
    for family in &FAMILIES {
        let base = base(family, 1);
        let data = data(40, &[5, 1, 9]);
        let adapter = warm(&base, LoraSpec::new(3, 1));
        let mut trainer = Trainer::from_adapter(&base, adapter.clone());
        trainer
            .forward_backward(&data, &Loss::CrossEntropy)
            .unwrap();
        let gradient = trainer.gradient.clone();
        let loss = |params: &[f32]| {
            let mut moved = adapter.clone();
            moved.params_mut().copy_from_slice(params);
            train::forward(&base, Some(&moved), &data, &Loss::CrossEntropy)
                .unwrap()
                .loss
        };
        let mut rng = Rng::new(2);
        let step = 0.005f32;
        for _ in 0..20 {
            // A random direction sees every parameter at once, and single precision suffices.
            let direction: Vec<f32> = gradient.iter().map(|_| rng.normal() * 0.02).collect();
            let shifted = |sign: f32| -> Vec<f32> {
                let pairs = adapter.params().iter().zip(&direction);
                pairs.map(|(p, d)| p + sign * step * d).collect()
            };
            let numeric = (loss(&shifted(1.0)) - loss(&shifted(-1.0))) / (2.0 * f64::from(step));
            let exact: f64 = gradient
                .iter()
                .zip(&direction)
                .map(|(g, d)| f64::from(g * d))
                .sum();
            assert!(
                (numeric - exact).abs() < 2e-3 * exact.abs().max(1.0),
                "{numeric} {exact}"
            );
        }
    }
}

#[test]
fn losses_match_finite_differences() {
    let weighted = data(40, &[12]).remove(0);
    let mut plain = weighted.clone();
    plain.inputs.weights.clear();
    let logp: Vec<f32> = plain.inputs.logprobs.iter().map(|l| l + 0.07).collect();
    for loss in losses() {
        // One ratio for the whole sequence: weights of tokens are refused.
        let datum = match loss {
            Loss::Gspo(_) => &plain,
            _ => &weighted,
        };
        let exact = loss.evaluate(datum, &logp).gradient;
        let total = |logp: &[f32]| -> f64 {
            loss.evaluate(datum, logp)
                .elementwise
                .iter()
                .map(|x| f64::from(*x))
                .sum()
        };
        // CISPO's factor is held constant by definition, so its value does not show it.
        if matches!(loss, Loss::Cispo(_)) {
            continue;
        }
        for index in 0..logp.len() {
            let mut moved = logp.clone();
            moved[index] += 1e-2;
            let above = total(&moved);
            moved[index] -= 2e-2;
            let numeric = (above - total(&moved)) / 2e-2;
            assert!(
                (numeric - f64::from(exact[index])).abs() < 2e-3,
                "{loss:?} {numeric} {}",
                exact[index]
            );
        }
    }
}

#[test]
fn merged_and_unmerged_passes_agree() {
    for family in &FAMILIES {
        let base = base(family, 1);
        let data = data(40, &[7, 3]);
        let adapter = warm(&base, LoraSpec::new(4, 8));
        let gradient = |net: Net<'_>| {
            let fresh = || adapter.slots(base.config(), net.is_unmerged());
            let loss = Loss::ImportanceSampling;
            let (output, total) = base.run(|| train::run(&base, net, &data, &loss, Some(&fresh)));
            let mut gradient = vec![0.0; adapter.params().len()];
            adapter.collect(&mut total.unwrap(), &mut gradient);
            (output.loss, gradient)
        };
        let (loss, merged) = gradient(Net::new(base.weights(), Some(&adapter)));
        let (other_loss, unmerged) = gradient(Net::unmerged(base.weights(), &adapter));
        assert!((loss - other_loss).abs() < 1e-5 * loss.abs());
        let norm = merged.iter().map(|g| g * g).sum::<f32>().sqrt();
        let difference: f32 = merged
            .iter()
            .zip(&unmerged)
            .map(|(a, b)| (a - b).powi(2))
            .sum();
        assert!(
            difference.sqrt() < 1e-5 * norm,
            "{} of {norm}",
            difference.sqrt()
        );
    }
}

#[test]
fn results_do_not_depend_on_threads_or_packing() {
    let data = data(40, &[70, 3, 64, 20, 130, 1, 8, 90]);
    let train = |threads: usize| {
        let base = base(qwen3(), threads);
        let mut trainer = Trainer::new(&base, LoraSpec::new(4, 1)).unwrap();
        trainer.optim_step(&AdamParams::default()).unwrap();
        let output = trainer
            .forward_backward(&data, &Loss::CrossEntropy)
            .unwrap();
        (output, trainer.gradient)
    };
    let one = train(1);
    assert_eq!(one, train(3));
    let base = base(qwen3(), 1);
    for (datum, together) in data.iter().zip(&one.0.data) {
        let alone = forward(
            &base,
            None,
            std::slice::from_ref(datum),
            &Loss::CrossEntropy,
        )
        .unwrap();
        for (a, b) in alone.data[0].logprobs.iter().zip(&together.logprobs) {
            assert!((a - b).abs() < 1e-5);
        }
    }
}

#[test]
fn gradients_gather_across_calls_and_a_restored_trainer_goes_on_exactly() {
    let base = base(qwen3(), 2);
    let data = data(40, &[10, 12]);
    let adam = AdamParams {
        learning_rate: 1e-2,
        grad_clip_norm: 1.0,
        weight_decay: 0.1,
        ..AdamParams::default()
    };
    let mut trainer = Trainer::new(&base, LoraSpec::new(2, 4)).unwrap();
    let step = |trainer: &mut Trainer| {
        for datum in &data {
            trainer
                .forward_backward(std::slice::from_ref(datum), &Loss::CrossEntropy)
                .unwrap();
        }
        trainer.optim_step(&adam).unwrap();
        trainer.forward(&data, &Loss::CrossEntropy).unwrap()
    };
    let first = step(&mut trainer);
    let saved = trainer.save().unwrap();
    let mut resumed = Trainer::restore(&base, &saved, Restore::WithOptimizer).unwrap();
    let mut fresh = Trainer::restore(&base, &saved, Restore::Weights).unwrap();
    assert_eq!(first, resumed.forward(&data, &Loss::CrossEntropy).unwrap());
    let second = step(&mut trainer);
    assert_eq!(second, step(&mut resumed));
    assert_ne!(second, step(&mut fresh));
    assert!(second.loss < first.loss);
    assert!(trainer.save().unwrap() == resumed.save().unwrap());
    assert!(Trainer::restore(&base, &saved[..saved.len() - 1], Restore::Weights).is_err());
}

#[test]
fn samples_agree_with_the_training_pass() {
    for family in &FAMILIES {
        let base = base(family, 2);
        let adapter = Arc::new(warm(&base, LoraSpec::new(4, 8)));
        let mut request = SampleRequest::new(vec![1, 2, 3, 4], 6);
        request.num_samples = 11;
        request.seed = Some(7);
        request.prompt_logprobs = true;
        let output = sample(&base, Some(&adapter), &request).unwrap();
        assert_eq!(output, sample(&base, Some(&adapter), &request).unwrap());
        assert_eq!(output.sequences.len(), 11);
        for sequence in &output.sequences {
            let full: Vec<u32> = request
                .prompt
                .iter()
                .chain(&sequence.tokens)
                .copied()
                .collect();
            let datum = Datum {
                tokens: full[..9].to_vec(),
                targets: full[1..].to_vec(),
                width: 1,
                inputs: LossInputs {
                    weights: vec![1.0; 9],
                    ..LossInputs::default()
                },
            };
            let scored = forward(&base, Some(&adapter), &[datum], &Loss::CrossEntropy).unwrap();
            let prompt = output.prompt_logprobs.as_ref().unwrap()[1..]
                .iter()
                .map(|l| l.unwrap());
            let expected = prompt.chain(sequence.logprobs.iter().copied());
            for (scored, expected) in scored.data[0].logprobs.iter().zip(expected) {
                assert!((scored - expected).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn sampling_stops_where_told_and_reports_what_was_asked() {
    let base = base(qwen3(), 1);
    let mut request = SampleRequest::new(vec![1, 2, 3], 20);
    request.temperature = 0.0;
    let greedy = sample(&base, None, &request).unwrap();
    let tokens = &greedy.sequences[0].tokens;
    assert_eq!(
        (tokens.len(), greedy.sequences[0].stop_reason),
        (20, StopReason::Length)
    );

    request.stop.tokens = vec![tokens[4]];
    let first = tokens.iter().position(|token| *token == tokens[4]).unwrap();
    let stopped = sample(&base, None, &request).unwrap();
    assert_eq!(stopped.sequences[0].tokens, tokens[..=first]);
    assert_eq!(stopped.sequences[0].stop_reason, StopReason::Stop);

    request.stop = Stop {
        strings: vec![String::from_utf8(builtin::decode(&tokens[2..5])).unwrap()],
        ..Stop::default()
    };
    let stopped = sample(&base, None, &request).unwrap();
    assert_eq!(stopped.sequences[0].tokens, tokens[..5]);

    request.stop = Stop::default();
    request.topk_sample_logprobs = 2;
    request.topk_prompt_logprobs = 3;
    request.prompt_logprobs = true;
    request.prompt_logprobs_last_n = Some(1);
    request.prompt_alt_tokens = 2;
    request.target_prompt_logprobs = Some(PromptTargets {
        tokens: vec![2, -1, 3, 5],
        width: 2,
    });
    let full = sample(&base, None, &request).unwrap();
    let best = &full.sequences[0].topk[0];
    assert_eq!(
        (best.len(), best[0]),
        (2, (tokens[0], full.sequences[0].logprobs[0]))
    );
    let logprobs = full.prompt_logprobs.unwrap();
    assert_eq!(logprobs[..2], [None, None]);
    let targets = full.target_prompt_logprobs.unwrap();
    assert_eq!((targets[1], Some(targets[2])), (0.0, logprobs[2]));
    let topk = full.topk_prompt_logprobs.unwrap();
    assert_eq!(
        (topk[1].is_none(), topk[2].as_ref().unwrap().len()),
        (true, 3)
    );
    assert_eq!(full.prompt_alt_tokens.unwrap().len(), 4);
}

#[test]
fn wrong_input_is_refused_by_name() {
    let base = base(qwen3(), 1);
    #[track_caller]
    fn check(base: &Base, change: impl Fn(&mut Datum), loss: &str, expected: &str) {
        let mut data = data(40, &[4]);
        change(&mut data[0]);
        let loss = Loss::parse(loss, []).unwrap();
        let error = train::check(base, &data, &loss).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    check(
        &base,
        |datum| datum.tokens[2] = 40,
        "ppo",
        "data[0].model_input[2]: token 40",
    );
    check(
        &base,
        |datum| datum.targets.truncate(3),
        "ppo",
        "has 3 targets for 4",
    );
    check(
        &base,
        |datum| datum.inputs.weights.clear(),
        "cross_entropy",
        "loss_fn_inputs.weights: is missing",
    );
    check(
        &base,
        |datum| datum.inputs.advantages[1] = f32::NAN,
        "ppo",
        "advantages[1]: must be finite",
    );
    check(
        &base,
        |datum| datum.inputs.logprobs.push(0.0),
        "dro",
        "has 5 values for 4 targets",
    );
    assert!(Loss::parse("stable_reinforce", []).is_err());
    assert!(Loss::parse("ppo", [("beta", 1.0)]).is_err());
    assert!(LoraSpec::new(17, 0).check(base.config()).is_err());
}
