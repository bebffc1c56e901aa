//! A model shaped like Qwen3-0.6B: loads, trains and samples in less than 3 GB.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use crate::drive::sample;
use crate::local::engine::inside::{Config, Projection, Rng};
use crate::local::engine::{AdamParams, Base, Datum, LoraSpec, Loss, SampleRequest, Trainer};
use crate::tasks;

/// Qwen3-0.6B.
pub(crate) const LARGE: &str = r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "rope_theta": 1000000, "tie_word_embeddings": true,
    "max_position_embeddings": 40960}"#;

/// Large enough to be run the way large models are: in bf16, with the adapter kept apart.
pub(crate) const SMALL: &str = r#"{"model_type": "qwen3", "vocab_size": 32768, "hidden_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 256, "rope_theta": 1000000, "tie_word_embeddings": true,
    "max_position_embeddings": 40960}"#;

pub(crate) fn a_model_of_600_million_weights_fits_in_3_gb(long: bool) {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), if long { LARGE } else { SMALL });
    let started = Instant::now();
    let base = Base::load(folder.path(), 2).unwrap();
    let seconds = started.elapsed().as_secs_f32();
    println!("{} weights loaded in {seconds:.2} s", base.weights().len());
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let mut rng = Rng::new(1);
    let (sequences, length) = if long { (4, 129) } else { (2, 17) };
    let data: Vec<Datum> = (0..sequences)
        .map(|_| {
            let mut token = || rng.below(base.config().vocab) as u32;
            let tokens: Vec<u32> = (0..length).map(|_| token()).collect();
            tasks::datum(&tokens[..1], &tokens[1..], 0.0)
        })
        .collect();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let output = trainer.forward_backward(&data, &Loss::CrossEntropy);
        losses.push(output.unwrap().loss);
        let adam = AdamParams {
            learning_rate: 1e-3,
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
        let tokens = (sequences * (length - 1)) as f64;
        let rate = tokens / started.elapsed().as_secs_f64();
        println!("training: {rate:.0} tokens/s");
    }
    assert!(losses[2] < losses[0], "{losses:?}");
    let started = Instant::now();
    let request = SampleRequest::new(vec![1, 2, 3, 4], 16);
    let output = sample(&base, Some(&trainer.adapter()), &request).unwrap();
    assert_eq!(output.sequences[0].tokens.len(), 16);
    let rate = 16.0 / started.elapsed().as_secs_f64();
    println!("sampling: {rate:.1} tokens/s");
    if long {
        let peak = peak_memory();
        println!("peak resident memory: {} MB", peak >> 20);
        assert!(peak < 3_000_000_000);
    }
}

/// The most memory this process has had, in bytes, where the system tells (Linux), else 0.
pub(crate) fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Writes a folder with random weights in bf16.
pub(crate) fn write_model(folder: &Path, json: &str) {
    std::fs::write(folder.join("config.json"), json).unwrap();
    let config = Config::parse(json.as_bytes()).unwrap();
    let mut shapes = vec![(
        "model.embed_tokens".to_owned(),
        vec![config.vocab, config.width],
    )];
    shapes.push(("model.norm".to_owned(), vec![config.width]));
    for layer in 0..config.layers.len() {
        let mut push = |name: &str, shape: Vec<usize>| {
            shapes.push((format!("model.layers.{layer}.{name}"), shape))
        };
        for projection in Projection::ALL {
            let (rows, cols) = projection.shape(&config);
            push(projection.path(), vec![rows, cols]);
        }
        push("input_layernorm", vec![config.width]);
        push("post_attention_layernorm", vec![config.width]);
        push("self_attn.q_norm", vec![config.head_dim]);
        push("self_attn.k_norm", vec![config.head_dim]);
    }
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in &shapes {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        let entry =
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("{name}.weight"), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    let mut rng = Rng::new(6);
    for (_, shape) in &shapes {
        for _ in 0..shape.iter().product() {
            let value = if shape.len() == 1 {
                1.0
            } else {
                (rng.unit() as f32 - 0.5) * 0.1
            };
            file.write_all(&half::bf16::from_f32(value).to_le_bytes())
                .unwrap();
        }
    }
    file.flush().unwrap();
}
