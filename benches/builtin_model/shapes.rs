//! Tokens per second at the shapes of real models, whose weights stay in bf16 in their file.
//!
//! `benches/real_shapes.py` compares them with PyTorch's and llama.cpp's, in turns.

use std::sync::Arc;

use crate::drive::sample_all;
use crate::large::{LARGE, SMALL, peak_memory, write_model};
use crate::local::engine::inside::Rng;
use crate::local::engine::{
    AdamParams, Adapter, Base, Datum, LoraSpec, Loss, SampleRequest, Trainer,
};
use crate::speed::measure;
use crate::tasks;

/// SmolLM2-135M.
const SMOLLM2: &str = r#"{"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "intermediate_size": 1536, "rope_theta": 100000, "tie_word_embeddings": true,
    "max_position_embeddings": 8192}"#;

/// What is measured.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shapes<'a> {
    /// With Qwen3-0.6B's shape instead.
    pub(crate) large: bool,
    /// Samples from the base alone; no training.
    pub(crate) base: bool,
    /// The same from weights in Q8_0.
    pub(crate) quantised: bool,
    /// Only what has a name that begins like this.
    pub(crate) only: Option<&'a str>,
}

impl<'a> Shapes<'a> {
    pub(crate) fn parse(words: &[&'a str]) -> Self {
        let names = words.iter().filter(|word| !word.starts_with("--"));
        Self {
            large: words.contains(&"--large"),
            base: words.contains(&"--base") || words.contains(&"--q8_0"),
            quantised: words.contains(&"--q8_0"),
            only: names.copied().next(),
        }
    }
}

/// Runs the measures; the short form does everything once, at a small shape.
pub(crate) fn shapes(long: bool, options: Shapes<'_>) {
    let Shapes {
        large,
        base: base_only,
        quantised,
        only,
    } = options;
    let measure = |name: &str, expected: usize, work: &mut dyn FnMut() -> usize| {
        if only.is_none_or(|only| name.starts_with(only)) {
            measure(long, name, expected, work);
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let shape = match (long, large) {
        (false, _) => SMALL,
        (true, false) => SMOLLM2,
        (true, true) => LARGE,
    };
    write_model(folder.path(), shape);
    let mut base = Base::load(folder.path(), 2).unwrap();
    if quantised {
        base = base.sampling_quantised();
    }
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let mut rng = Rng::new(1);
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| rng.below(base.config().vocab) as u32)
            .collect()
    };
    let scale = if long { 1 } else { 16 };
    for (sequences, length) in [(8, 128 / scale), (1, 512 / scale)] {
        let data: Vec<Datum> = (0..sequences)
            .map(|_| {
                let tokens = tokens(length + 1);
                tasks::datum(&tokens[..1], &tokens[1..], 0.0)
            })
            .collect();
        if base_only {
            continue;
        }
        let name = format!("training {sequences} x {length}");
        measure(&name, sequences * length, &mut || {
            let output = trainer.forward_backward(&data, &Loss::CrossEntropy);
            trainer.optim_step(&AdamParams::default()).unwrap();
            let data = output.unwrap().data;
            data.iter().map(|datum| datum.logprobs.len()).sum()
        });
    }
    let adapter = (!base_only).then(|| trainer.adapter());
    let grow = |request, samples| grow(&base, adapter.as_ref(), request, samples);
    let prompt = tokens(512 / scale);
    let read = prompt.len();
    measure("prefill", read, &mut || {
        grow(SampleRequest::new(prompt.clone(), 1), 1) - 1 + read
    });
    for samples in [1, 16, 64] {
        let length = 32 / scale;
        let request = SampleRequest::new(tokens(16), length);
        measure(&format!("decode {samples}"), samples * length, &mut || {
            grow(request.clone(), samples)
        });
    }
    println!("peak memory: {} MB", peak_memory() >> 20);
}

/// Samples, and counts the tokens.
fn grow(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    mut request: SampleRequest,
    samples: usize,
) -> usize {
    request.num_samples = samples;
    let outputs = sample_all(base, adapter, &[request]);
    let sequences = outputs.iter().flat_map(|output| &output.sequences);
    sequences.map(|sequence| sequence.tokens.len()).sum()
}
