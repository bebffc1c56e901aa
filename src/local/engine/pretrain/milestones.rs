//! What the shipped model must be able to learn, and how fast; run with
//! `cargo test --release --lib milestones -- --ignored --nocapture`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use super::super::builtin::{self, BOS, EOS};
use super::super::config::Config;
use super::super::lora::LoraSpec;
use super::super::loss::Loss;
use super::super::model::{Base, Projection};
use super::super::optim::AdamParams;
use super::super::rng::Rng;
use super::super::sample::{Hooks, SampleRequest, sample};
use super::super::train::{Datum, LossInputs, Trainer};
use super::tasks;

/// Leading consonants move to the end and "ay" follows; after a leading vowel, "way" does.
fn pig_latin(word: &str) -> String {
    let start = word.find(|letter| "aeiou".contains(letter)).unwrap_or(0);
    match start {
        0 => format!("{word}way"),
        _ => format!("{}{}ay", &word[start..], &word[..start]),
    }
}

fn question(word: &str) -> (Vec<u32>, Vec<u32>) {
    let mut prompt = vec![BOS];
    prompt.extend(builtin::encode(&format!("English: {word}\nPig Latin: ")));
    let mut answer = builtin::encode(&pig_latin(word));
    answer.push(EOS);
    (prompt, answer)
}

#[test]
#[ignore = "takes a minute"]
fn learns_pig_latin_on_words_it_has_never_seen() {
    let base = Base::builtin(2).unwrap();
    let mut words = tasks::words();
    let mut rng = Rng::new(4);
    for index in (1..words.len()).rev() {
        words.swap(index, rng.below(index + 1));
    }
    let (held_out, known) = words.split_at(100);
    let accuracy = |trainer: &Trainer| {
        let adapter = trainer.adapter();
        let hits = held_out.iter().filter(|word| {
            let (prompt, answer) = question(word);
            let mut request = SampleRequest::new(prompt, answer.len());
            request.temperature = 0.0;
            let output = sample(&base, Some(&adapter), &request, Hooks::default()).unwrap();
            output.sequences[0].tokens == answer
        });
        hits.count()
    };
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let before = accuracy(&trainer);
    let started = Instant::now();
    let steps = 300;
    for step in 0..steps {
        let batch: Vec<Datum> = (0..64)
            .map(|_| {
                let (prompt, answer) = question(known[rng.below(known.len())]);
                tasks::datum(&prompt, &answer, 0.0)
            })
            .collect();
        let count: f32 = batch.iter().flat_map(|datum| &datum.inputs.weights).sum();
        let loss = trainer
            .forward_backward(&batch, &Loss::CrossEntropy)
            .unwrap()
            .loss;
        let adam = AdamParams {
            learning_rate: 5e-3 * (1.0 - f64::from(step) / f64::from(steps)),
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
        if step % 50 == 49 {
            let elapsed = started.elapsed().as_secs_f32();
            println!(
                "{} {:.4} {} % after {elapsed:.1} s",
                step + 1,
                loss / f64::from(count),
                accuracy(&trainer)
            );
        }
    }
    let after = accuracy(&trainer);
    println!(
        "Pig Latin: {before} % -> {after} % in {:.1} s",
        started.elapsed().as_secs_f32()
    );
    assert!(before == 0 && after >= 95);
}

#[test]
#[ignore = "takes a minute"]
fn rewards_make_it_add_carefully() {
    let base = Base::builtin(2).unwrap();
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let mut rng = Rng::new(8);
    let started = Instant::now();
    let mut rewards = Vec::new();
    for step in 0..100 {
        let adapter = trainer.adapter();
        let (mut data, mut total) = (Vec::new(), 0.0);
        for _ in 0..32 {
            let (a, b) = (rng.below(10), rng.below(10));
            let (prompt, right) = tasks::Example::sum(a, b, a + b).tokens(tasks::Style::Plain);
            let mut request = SampleRequest::new(prompt.clone(), 4);
            request.num_samples = 16;
            request.seed = Some(rng.next());
            request.stop.tokens = vec![EOS];
            let samples = sample(&base, Some(&adapter), &request, Hooks::default())
                .unwrap()
                .sequences;
            let hits = samples
                .iter()
                .filter(|sample| sample.tokens == right)
                .count();
            let mean = hits as f32 / samples.len() as f32;
            total += f64::from(mean);
            for sample in &samples {
                let reward = f32::from(u8::from(sample.tokens == right));
                let pad = prompt.len() - 1;
                let mut datum = tasks::datum(&prompt, &sample.tokens, 0.0);
                datum.inputs = LossInputs {
                    logprobs: [vec![0.0; pad], sample.logprobs.clone()].concat(),
                    advantages: [vec![0.0; pad], vec![reward - mean; sample.tokens.len()]].concat(),
                    ..LossInputs::default()
                };
                data.push(datum);
            }
        }
        rewards.push(total / 32.0);
        trainer
            .forward_backward(&data, &Loss::ImportanceSampling)
            .unwrap();
        let adam = AdamParams {
            learning_rate: 2e-3,
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
        if step % 10 == 9 {
            println!(
                "{} reward {:.3} after {:.1} s",
                step + 1,
                rewards[step],
                started.elapsed().as_secs_f32()
            );
        }
    }
    let late = rewards[90..].iter().sum::<f64>() / 10.0;
    println!(
        "reward {:.2} -> {late:.2} in {:.1} s",
        rewards[0],
        started.elapsed().as_secs_f32()
    );
    assert!(rewards[0] < 0.5 && late > 0.85);
}

/// Prints tokens per second; `benches/training_speed.py` compares them with PyTorch's.
#[test]
#[ignore = "measures, asserts nothing"]
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
    measure("training", || {
        trainer
            .forward_backward(&data, &Loss::CrossEntropy)
            .unwrap();
        trainer.optim_step(&AdamParams::default()).unwrap();
        64 * 64
    });
    let adapter = trainer.adapter();
    for sequences in [1, 16] {
        let mut request = SampleRequest::new(builtin::encode("reverse something"), 256);
        request.num_samples = sequences;
        measure(&format!("sampling {sequences}"), || {
            let output = sample(&base, Some(&adapter), &request, Hooks::default()).unwrap();
            output
                .sequences
                .iter()
                .map(|sequence| sequence.tokens.len())
                .sum()
        });
    }
}

/// Repeats `work` for some seconds and prints its tokens per second, by the clock and per
/// second of processor time (which a busy machine does not distort).
fn measure(name: &str, mut work: impl FnMut() -> usize) {
    work();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut tokens = 0;
    while started.elapsed().as_secs() < 4 {
        tokens += work();
    }
    let (wall, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    println!(
        "{name}: {:.0} tokens/s, {:.0} per processor second",
        tokens as f64 / wall,
        tokens as f64 / cpu
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

/// Loads, trains and samples a model shaped like Qwen3-0.6B from a bf16 file it writes first.
#[test]
#[ignore = "writes 1.2 GB and takes minutes"]
fn a_model_of_600_million_weights_fits_in_3_gb() {
    let folder = tempfile::tempdir().unwrap();
    write_large_model(folder.path());
    let started = Instant::now();
    let base = Base::load(folder.path(), 2).unwrap();
    println!(
        "{} weights loaded in {:.2} s",
        base.weights().len(),
        started.elapsed().as_secs_f32()
    );
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    let mut rng = Rng::new(1);
    let data: Vec<Datum> = (0..4)
        .map(|_| {
            let tokens: Vec<u32> = (0..129).map(|_| rng.below(150_000) as u32).collect();
            tasks::datum(&tokens[..1], &tokens[1..], 0.0)
        })
        .collect();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        losses.push(
            trainer
                .forward_backward(&data, &Loss::CrossEntropy)
                .unwrap()
                .loss,
        );
        trainer
            .optim_step(&AdamParams {
                learning_rate: 1e-3,
                ..AdamParams::default()
            })
            .unwrap();
        println!(
            "training: {:.0} tokens/s",
            512.0 / started.elapsed().as_secs_f64()
        );
    }
    assert!(losses[2] < losses[0], "{losses:?}");
    let started = Instant::now();
    let request = SampleRequest::new(vec![1, 2, 3, 4], 16);
    let output = sample(&base, Some(&trainer.adapter()), &request, Hooks::default()).unwrap();
    assert_eq!(output.sequences[0].tokens.len(), 16);
    println!(
        "sampling: {:.1} tokens/s",
        16.0 / started.elapsed().as_secs_f64()
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    println!("peak resident memory: {}", peak.trim());
    let kilobytes: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 3_000_000);
}

fn write_large_model(folder: &Path) {
    let json = r#"{"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "rope_theta": 1000000, "tie_word_embeddings": true, "max_position_embeddings": 40960}"#;
    std::fs::write(folder.join("config.json"), json).unwrap();
    let config = Config::parse(json.as_bytes()).unwrap();
    let mut shapes = vec![(
        "model.embed_tokens".to_owned(),
        vec![config.vocab, config.width],
    )];
    shapes.push(("model.norm".to_owned(), vec![config.width]));
    for layer in 0..config.layers {
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

/// Writes the shipped model, a trained adapter and its log-probabilities to `target/peft`, where
/// `tests/fixtures/engine/check_peft.py` compares them with transformers and peft.
#[test]
#[ignore = "writes files for a Python script"]
fn exports_an_adapter_for_peft() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peft");
    std::fs::create_dir_all(folder.join("adapter")).unwrap();
    for (name, bytes) in [
        ("config.json", builtin::CONFIG.as_bytes()),
        ("model.safetensors", builtin::WEIGHTS),
        ("tokenizer.json", builtin::TOKENIZER.as_bytes()),
        (
            "tokenizer_config.json",
            builtin::TOKENIZER_CONFIG.as_bytes(),
        ),
    ] {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    let base = Base::builtin(2).unwrap();
    let mut trainer = Trainer::new(&base, LoraSpec::new(8, 1)).unwrap();
    let (prompt, answer) = question("elephant");
    let data = [tasks::datum(&prompt, &answer, 1.0)];
    for _ in 0..5 {
        trainer
            .forward_backward(&data, &Loss::CrossEntropy)
            .unwrap();
        trainer
            .optim_step(&AdamParams {
                learning_rate: 1e-3,
                ..AdamParams::default()
            })
            .unwrap();
    }
    let files = trainer.adapter().to_peft("target/peft").unwrap();
    std::fs::write(folder.join("adapter/adapter_config.json"), files.config).unwrap();
    std::fs::write(
        folder.join("adapter/adapter_model.safetensors"),
        files.weights,
    )
    .unwrap();
    let output = trainer.forward(&data, &Loss::CrossEntropy).unwrap();
    let expected = serde_json::json!({
        "tokens": data[0].tokens,
        "targets": data[0].targets,
        "logprobs": output.data[0].logprobs,
    });
    std::fs::write(folder.join("expected.json"), expected.to_string()).unwrap();
}
