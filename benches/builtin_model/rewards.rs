//! Reinforcement: the shipped model adds carelessly, and rewards make it careful.

use std::time::Instant;

use crate::drive::sample;
use crate::local::engine::inside::{Rng, forward};
use crate::local::engine::{
    AdamParams, Adapter, Base, Datum, LoraSpec, Loss, LossInputs, SampleRequest, Trainer,
    builtin::EOS,
};
use crate::tasks::{self, Example, Style};

const PROMPTS: usize = 16;
const SAMPLES: usize = 16;

pub(crate) fn rewards_make_it_add_carefully(long: bool) {
    let base = Base::builtin(2).unwrap();
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let mut rng = Rng::new(8);
    let started = Instant::now();
    let before = expected_reward(&base, &trainer.adapter());
    assert!((0.33..0.40).contains(&before), "{before}");
    let (steps, learning_rate) = if long { (240, 1e-3) } else { (6, 5e-3) };
    for step in 1..=steps {
        let data: Vec<Datum> = (0..PROMPTS)
            .flat_map(|_| roll_out(&base, &trainer, &mut rng))
            .collect();
        trainer
            .forward_backward(&data, &Loss::ImportanceSampling)
            .unwrap();
        let adam = AdamParams {
            learning_rate,
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
        if step % 40 == 0 {
            let reward = expected_reward(&base, &trainer.adapter());
            let seconds = started.elapsed().as_secs_f32();
            println!("{step} steps, reward {reward:.2} after {seconds:.1} s");
        }
    }
    let after = expected_reward(&base, &trainer.adapter());
    println!("reward {before:.2} -> {after:.2}");
    assert!(
        after > if long { 0.86 } else { before + 0.02 },
        "{before} {after}"
    );
}

/// Some answers to one sum, each with its advantage over the others.
fn roll_out(base: &Base, trainer: &Trainer, rng: &mut Rng) -> Vec<Datum> {
    let (prompt, right) = sum(rng.below(10), rng.below(10));
    let mut request = SampleRequest::new(prompt.clone(), 4);
    request.num_samples = SAMPLES;
    request.seed = Some(rng.next());
    request.stop.tokens = vec![EOS];
    let samples = sample(base, Some(&trainer.adapter()), &request).unwrap();
    let reward = |tokens: &[u32]| f32::from(u8::from(tokens == right));
    let rewards = samples.sequences.iter().map(|one| reward(&one.tokens));
    let mean = rewards.sum::<f32>() / SAMPLES as f32;
    let pad = vec![0.0; prompt.len() - 1];
    let datum = |tokens: &[u32], logprobs: &[f32]| Datum {
        inputs: LossInputs {
            logprobs: [&pad, logprobs].concat(),
            advantages: [&pad[..], &vec![reward(tokens) - mean; tokens.len()]].concat(),
            ..LossInputs::default()
        },
        ..tasks::datum(&prompt, tokens, 0.0)
    };
    let samples = samples.sequences.iter();
    samples
        .map(|one| datum(&one.tokens, &one.logprobs))
        .collect()
}

/// The probability of a right answer, over all sums: what samples would average to.
fn expected_reward(base: &Base, adapter: &Adapter) -> f64 {
    let data: Vec<Datum> = (0..100)
        .map(|index| {
            let (prompt, right) = sum(index / 10, index % 10);
            tasks::datum(&prompt, &right, 0.0)
        })
        .collect();
    let output = forward(base, Some(adapter), &data, &Loss::CrossEntropy).unwrap();
    let losses = output.data.iter().map(|datum| {
        let loss: f32 = datum.elementwise_loss.iter().sum();
        f64::from(-loss).exp()
    });
    losses.sum::<f64>() / 100.0
}

fn sum(a: usize, b: usize) -> (Vec<u32>, Vec<u32>) {
    Example::sum(a, b, a + b).tokens(Style::Plain)
}
