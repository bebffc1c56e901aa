//! Tokens per second; `benches/training_speed.py` compares training with PyTorch's.

use std::sync::Arc;
use std::time::Instant;

use crate::drive::sample_all;
use crate::local::engine::inside::Rng;
use crate::local::engine::{
    AdamParams, Adapter, Base, Datum, LoraSpec, Loss, SampleRequest, Trainer, builtin,
};
use crate::tasks;

/// Everything is done once; the long form repeats it for some seconds and prints the figures.
pub(crate) fn speed(long: bool) {
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
    let length = if long { 256 } else { 16 };
    measure(long, "training", 64 * 64, || {
        let output = trainer.forward_backward(&data, &Loss::CrossEntropy);
        trainer.optim_step(&AdamParams::default()).unwrap();
        let data = output.unwrap().data;
        data.iter().map(|datum| datum.logprobs.len()).sum()
    });
    let adapter = trainer.adapter();
    let grow = |requests, samples| grow(&base, &adapter, length, requests, samples);
    measure(long, "sampling 1", length, || grow(1, 1));
    measure(long, "sampling 16", 16 * length, || grow(1, 16));
    measure(long, "sampling 16 requests", 16 * length, || grow(16, 1));
}

/// Samples so many tokens for each sequence, and counts them.
fn grow(
    base: &Base,
    adapter: &Arc<Adapter>,
    length: usize,
    requests: usize,
    samples: usize,
) -> usize {
    let requests: Vec<SampleRequest> = (0..requests)
        .map(|_| {
            let mut request = SampleRequest::new(builtin::encode("reverse something"), length);
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
pub(crate) fn measure(long: bool, name: &str, expected: usize, mut work: impl FnMut() -> usize) {
    assert_eq!(work(), expected);
    if !long {
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
