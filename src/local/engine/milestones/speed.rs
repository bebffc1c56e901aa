//! Tokens per second; `benches/training_speed.py` compares training with PyTorch's.

use std::sync::Arc;
use std::time::Instant;

use super::long;
use crate::local::engine::batch::sample_all;
use crate::local::engine::builtin;
use crate::local::engine::lora::{Adapter, LoraSpec};
use crate::local::engine::loss::Loss;
use crate::local::engine::model::Base;
use crate::local::engine::optim::AdamParams;
use crate::local::engine::pretrain::tasks;
use crate::local::engine::rng::Rng;
use crate::local::engine::sample::SampleRequest;
use crate::local::engine::train::{Datum, Trainer};

/// Everything is done once; the long form repeats it for some seconds and prints the figures.
#[test]
fn speed() {
    let threads = std::env::var("THREADS").map_or(2, |threads| threads.parse().unwrap());
    let base = Base::builtin(threads).unwrap();
    let mut rng = Rng::new(1);
    let data: Vec<Datum> = (0..64)
        .map(|_| {
            let tokens: Vec<u32> = (0..65).map(|_| rng.below(256) as u32).collect();
            tasks::datum(&tokens[..1], &tokens[1..], 0.0)
        })
        .collect();
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    measure("training", 64 * 64, || {
        let output = trainer.forward_backward(&data, &Loss::CrossEntropy);
        trainer.optim_step(&AdamParams::default()).unwrap();
        let data = output.unwrap().data;
        data.iter().map(|datum| datum.logprobs.len()).sum()
    });
    let adapter = trainer.adapter();
    measure("sampling 1", length(), || grow(&base, &adapter, 1, 1));
    measure("sampling 16", 16 * length(), || {
        grow(&base, &adapter, 1, 16)
    });
    measure("sampling 16 requests", 16 * length(), || {
        grow(&base, &adapter, 16, 1)
    });
}

/// Tokens of each sample.
fn length() -> usize {
    if long() { 256 } else { 16 }
}

/// Samples so many tokens for each sequence, and counts them.
fn grow(base: &Base, adapter: &Arc<Adapter>, requests: usize, samples: usize) -> usize {
    let requests: Vec<SampleRequest> = (0..requests)
        .map(|_| {
            let mut request = SampleRequest::new(builtin::encode("reverse something"), length());
            request.num_samples = samples;
            request
        })
        .collect();
    let outputs = sample_all(base, Some(adapter), &requests);
    let sequences = outputs.iter().flat_map(|output| &output.sequences);
    sequences.map(|sequence| sequence.tokens.len()).sum()
}

/// Does `work`, which must give so many tokens, and in the long form repeats it for some seconds
/// and prints its tokens per second: by the clock, and per second of processor time, which a busy
/// machine does not distort.
pub(super) fn measure(name: &str, expected: usize, mut work: impl FnMut() -> usize) {
    assert_eq!(work(), expected);
    if !long() {
        return;
    }
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut tokens = 0;
    while started.elapsed().as_secs() < 4 {
        tokens += work();
    }
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let tokens = tokens as f64;
    println!(
        "{name}: {:.0} tokens/s, {:.0} per processor second",
        tokens / wall,
        tokens / cpu
    );
}

/// Processor time of this process, where the system tells (Linux), else 0.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}
