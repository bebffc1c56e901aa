//! The engine against PyTorch, transformers and peft; `tests/fixtures/engine/generate.py` made
//! the numbers.

use std::fs;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::batch::sample;
use super::family::FAMILIES;
use super::lora::Adapter;
use super::model::Net;
use super::peft::PeftFiles;
use super::train::{self, LossInputs, forward};
use super::*;

struct Fixture {
    folder: PathBuf,
    bytes: Vec<u8>,
}

impl Fixture {
    fn open(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/engine")
            .join(name);
        let bytes = fs::read(folder.join("expected.safetensors")).unwrap();
        Self { folder, bytes }
    }

    fn base(&self) -> Base {
        Base::load(&self.folder, 1).unwrap()
    }

    fn adapter(&self, base: &Base) -> Adapter {
        let files = PeftFiles {
            config: fs::read_to_string(self.folder.join("adapter/adapter_config.json")).unwrap(),
            weights: fs::read(self.folder.join("adapter/adapter_model.safetensors")).unwrap(),
        };
        Adapter::from_peft(base.config(), &files).unwrap()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32);
        let chunks = tensor.data().chunks_exact(4);
        chunks
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect()
    }

    fn tokens(&self, name: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        let chunks = tensor.data().chunks_exact(8);
        chunks
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as u32)
            .collect()
    }

    fn data(&self) -> Vec<Datum> {
        let datum = |index: usize| {
            let floats = |name: &str| self.floats(&format!("data.{index}.{name}"));
            Datum {
                tokens: self.tokens(&format!("data.{index}.tokens")),
                targets: self.tokens(&format!("data.{index}.target_tokens")),
                width: 1,
                inputs: LossInputs {
                    weights: floats("weights"),
                    logprobs: floats("logprobs"),
                    advantages: floats("advantages"),
                    ..LossInputs::default()
                },
            }
        };
        (0..3).map(datum).collect()
    }

    fn wide_data(&self) -> Vec<Datum> {
        let mut data = self.data();
        for (index, datum) in data.iter_mut().enumerate() {
            datum.targets = self.tokens(&format!("data.{index}.wide_tokens"));
            datum.width = 3;
            datum.inputs = LossInputs {
                weights: self.floats(&format!("data.{index}.wide_weights")),
                ..LossInputs::default()
            };
        }
        data
    }

    /// Tensors by peft's names, laid out like the adapter's parameters.
    fn flat(&self, prefix: &str, adapter: &Adapter) -> Vec<f32> {
        let mut out = vec![0.0; adapter.params().len()];
        for part in adapter.parts() {
            for (letter, range) in [("A", part.a.clone()), ("B", part.b.clone())] {
                let name = format!(
                    "{prefix}.base_model.model.{}.lora_{letter}.weight",
                    part.target.path()
                );
                out[range].copy_from_slice(&self.floats(&name));
            }
        }
        out
    }
}

/// As the reference's policy losses have it: every token counts the same.
fn unweighted(mut data: Vec<Datum>) -> Vec<Datum> {
    for datum in &mut data {
        datum.inputs.weights.clear();
    }
    data
}

/// The distance between two vectors, relative to the second.
fn distance(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = square(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(a - b)));
    difference / square(&mut theirs.iter().map(|b| f64::from(*b)))
}

#[track_caller]
fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(theirs) {
        assert!(
            (a - b).abs() <= tolerance * b.abs().max(1.0),
            "{a} is not {b}"
        );
    }
}

#[test]
fn log_probabilities_match_transformers_within_1e_4() {
    for name in ["llama", "qwen3"] {
        let fixture = Fixture::open(name);
        let base = fixture.base();
        let adapter = fixture.adapter(&base);
        let narrow = forward(
            &base,
            Some(&adapter),
            &fixture.data(),
            &Loss::ImportanceSampling,
        )
        .unwrap();
        let wide = forward(
            &base,
            Some(&adapter),
            &fixture.wide_data(),
            &Loss::CrossEntropy,
        )
        .unwrap();
        for index in 0..3 {
            let expected = fixture.floats(&format!("data.{index}.expected"));
            assert_close(&narrow.data[index].logprobs, &expected, 1e-5);
            let expected = fixture.floats(&format!("data.{index}.wide_expected"));
            assert_close(&wide.data[index].logprobs, &expected, 1e-5);
        }
    }
}

#[test]
fn gradients_match_pytorch_within_1e_5() {
    for name in ["llama", "qwen3"] {
        let fixture = Fixture::open(name);
        let base = fixture.base();
        let adapter = fixture.adapter(&base);
        let merged = Net::new(base.weights(), Some(&adapter));
        let unmerged = Net::unmerged(base.weights(), &adapter);
        for (loss, data) in [
            ("cross_entropy", fixture.data()),
            ("ppo", unweighted(fixture.data())),
            ("wide", fixture.wide_data()),
        ] {
            let expected = fixture.flat(&format!("gradient.{loss}"), &adapter);
            let loss = Loss::parse(loss, []).unwrap_or(Loss::CrossEntropy);
            for net in [merged, unmerged] {
                let fresh = || adapter.slots(base.config(), net.is_unmerged());
                let (_, total) = base.run(|| train::run(&base, net, &data, &loss, Some(&fresh)));
                let mut ours = vec![0.0; expected.len()];
                adapter.collect(&mut total.unwrap(), &mut ours);
                let distance = distance(&ours, &expected);
                assert!(distance < 1e-5, "{name} {loss:?}: {distance}");
            }
        }
    }
}

#[test]
fn losses_match_pytorch() {
    let fixture = Fixture::open("qwen3");
    #[track_caller]
    fn check(fixture: &Fixture, case: &str, config: &[(&str, f64)], with: &[&str]) {
        let name = case.split('.').next().unwrap();
        let loss = Loss::parse(name, config.iter().copied()).unwrap();
        let data = match name {
            "cross_entropy" => fixture.data(),
            _ => unweighted(fixture.data()),
        };
        for (index, mut datum) in data.into_iter().enumerate() {
            let own = |name: &str| match with.contains(&name) {
                true => fixture.floats(&format!("data.{index}.{name}")),
                false => Vec::new(),
            };
            datum.inputs.clip_low_threshold = own("clip_low_threshold");
            datum.inputs.clip_high_threshold = own("clip_high_threshold");
            datum.inputs.sequence_ratio_mask = own("sequence_ratio_mask");
            loss.check(&datum).unwrap();
            let terms = loss.evaluate(&datum, &fixture.floats(&format!("data.{index}.expected")));
            assert_close(
                &terms.elementwise,
                &fixture.floats(&format!("loss.{case}.{index}.terms")),
                2e-6,
            );
            assert_close(
                &terms.gradient,
                &fixture.floats(&format!("loss.{case}.{index}.gradient")),
                2e-6,
            );
        }
    }
    let clip = |low, high| [("clip_low_threshold", low), ("clip_high_threshold", high)];
    check(&fixture, "cross_entropy", &[], &[]);
    check(&fixture, "importance_sampling", &[], &[]);
    check(&fixture, "ppo", &[], &[]);
    check(&fixture, "ppo.config", &clip(0.95, 1.05), &[]);
    check(
        &fixture,
        "ppo.inputs",
        &[],
        &["clip_low_threshold", "clip_high_threshold"],
    );
    // Recorded with the interval that was the default before it became one-sided.
    check(&fixture, "cispo", &clip(0.8, 1.2), &[]);
    check(&fixture, "dro", &[], &[]);
    check(&fixture, "dro.config", &[("beta", 0.7)], &[]);
    check(&fixture, "gspo", &[], &[]);
    check(
        &fixture,
        "gspo.config",
        &clip(0.5, 2.0),
        &["sequence_ratio_mask"],
    );
}

#[test]
fn adam_matches_pytorch_step_by_step() {
    for name in ["llama", "qwen3"] {
        let fixture = Fixture::open(name);
        let base = fixture.base();
        let mut trainer = Trainer::from_adapter(&base, fixture.adapter(&base));
        let settings = fs::read(fixture.folder.join("adam.json")).unwrap();
        let settings: Vec<serde_json::Value> = serde_json::from_slice(&settings).unwrap();
        for (step, setting) in settings.iter().enumerate() {
            let params = AdamParams {
                learning_rate: setting["lr"].as_f64().unwrap(),
                weight_decay: setting["weight_decay"].as_f64().unwrap(),
                grad_clip_norm: setting["clip"].as_f64().unwrap(),
                ..AdamParams::default()
            };
            let output = trainer
                .forward_backward(&fixture.data(), &Loss::CrossEntropy)
                .unwrap();
            let metrics = trainer.optim_step(&params).unwrap();
            assert_close(
                &[output.loss as f32],
                &fixture.floats(&format!("adam.{step}.loss")),
                1e-5,
            );
            assert_close(
                &[metrics.grad_norm as f32],
                &fixture.floats(&format!("adam.{step}.norm")),
                1e-4,
            );
            let expected = fixture.flat(&format!("adam.{step}"), &trainer.adapter());
            let distance = distance(trainer.adapter().params(), &expected);
            assert!(distance < 1e-5, "{name} step {step}: {distance}");
        }
    }
}

#[test]
fn adapters_survive_the_way_through_peft_files() {
    for name in ["llama", "qwen3"] {
        let fixture = Fixture::open(name);
        let base = fixture.base();
        let adapter = fixture.adapter(&base);
        let files = adapter.to_peft("some/model", base.config()).unwrap();
        let again = Adapter::from_peft(base.config(), &files).unwrap();
        assert_eq!(adapter.params(), again.params());
        let doubled = PeftFiles {
            config: files.config.replace("32.0", "64.0"),
            ..files.clone()
        };
        let doubled = Adapter::from_peft(base.config(), &doubled).unwrap();
        let part = &adapter.parts()[0];
        assert_eq!(
            doubled.params()[part.b.start],
            2.0 * adapter.params()[part.b.start]
        );
        let dora = PeftFiles {
            config: files.config.replacen('{', "{\"use_dora\": true,", 1),
            ..files
        };
        let error = Adapter::from_peft(base.config(), &dora).unwrap_err();
        assert!(error.to_string().contains("use_dora"), "{error}");
    }
}

#[test]
fn folders_with_missing_or_damaged_files_are_refused_by_name() {
    let fixture = Fixture::open("llama");
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| fs::copy(fixture.folder.join(name), folder.path().join(name)).unwrap();
    let error = || Base::load(folder.path(), 1).unwrap_err().to_string();
    assert!(error().contains("config.json"));
    copy("config.json");
    assert!(error().contains("model.safetensors"));
    copy("model.safetensors.index.json");
    copy("model-00001-of-00002.safetensors");
    assert!(error().contains("model-00002-of-00002.safetensors"));
    fs::write(
        folder.path().join("model-00002-of-00002.safetensors"),
        b"nonsense",
    )
    .unwrap();
    assert!(error().contains("model-00002-of-00002.safetensors is damaged"));
    fs::write(
        folder.path().join("model.safetensors.index.json"),
        r#"{"weight_map": {"a": "../model.safetensors"}}"#,
    )
    .unwrap();
    assert!(error().contains("not a plain file name"));
    fs::write(
        folder.path().join("model.safetensors.index.json"),
        r#"{"weight_map": {"a": "model-00001-of-00002.safetensors"}}"#,
    )
    .unwrap();
    assert!(error().contains("is missing from the weights"));
}

#[test]
fn weights_may_be_in_half_precision_and_in_many_files() {
    let fixture = Fixture::open("qwen3");
    let whole = fs::read(fixture.folder.join("model.safetensors")).unwrap();
    let whole = SafeTensors::deserialize(&whole).unwrap();
    let numbers = |name: &str| {
        let bytes = whole.tensor(name).unwrap().data().as_chunks().0;
        bytes.iter().map(|four| f32::from_le_bytes(*four))
    };
    // One tensor per file, every number as `store` spells it.
    let write = |dtype: Dtype, store: &dyn Fn(f32) -> Vec<u8>, extra: Option<&str>| {
        let folder = tempfile::tempdir().unwrap();
        let config = fixture.folder.join("config.json");
        fs::copy(config, folder.path().join("config.json")).unwrap();
        let mut files = serde_json::Map::new();
        for (index, name) in whole.names().into_iter().chain(extra).enumerate() {
            let source = extra.map_or(name, |extra| {
                if name == extra {
                    "model.norm.weight"
                } else {
                    name
                }
            });
            let bytes: Vec<u8> = numbers(source).flat_map(store).collect();
            let shape = whole.tensor(source).unwrap().shape().to_vec();
            let view = TensorView::new(dtype, shape, &bytes).unwrap();
            let file = format!("model-{index}.safetensors");
            let bytes = safetensors::serialize([(name, view)], None).unwrap();
            fs::write(folder.path().join(&file), bytes).unwrap();
            files.insert(name.to_owned(), file.into());
        }
        let index = serde_json::json!({ "weight_map": files }).to_string();
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        Base::load(folder.path(), 1)
    };
    let check = |dtype: Dtype, store: &dyn Fn(f32) -> Vec<u8>, round: &dyn Fn(f32) -> f32| {
        let base = write(dtype, store, None).unwrap();
        let expected: Vec<f32> = numbers("model.embed_tokens.weight").map(round).collect();
        assert!(base.weights().embed.to_f32() == expected, "{dtype:?}");
        let norm: Vec<f32> = numbers("model.norm.weight").map(round).collect();
        assert_eq!(base.weights().norm, norm);
    };
    use half::{bf16, f16};
    check(Dtype::F32, &|x| x.to_le_bytes().to_vec(), &|x| x);
    check(
        Dtype::F16,
        &|x| f16::from_f32(x).to_le_bytes().to_vec(),
        &|x| f16::from_f32(x).to_f32(),
    );
    check(
        Dtype::BF16,
        &|x| bf16::from_f32(x).to_le_bytes().to_vec(),
        &|x| bf16::from_f32(x).to_f32(),
    );

    let error = write(Dtype::F64, &|x| f64::from(x).to_le_bytes().to_vec(), None).unwrap_err();
    assert!(
        error.to_string().contains("only F32, F16 and BF16"),
        "{error}"
    );
    let bias = "model.layers.0.self_attn.q_proj.bias";
    let error = write(Dtype::F32, &|x| x.to_le_bytes().to_vec(), Some(bias)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("q_proj.bias: projections with bias"),
        "{error}"
    );
}

/// Log-probabilities and greedy continuations of a tiny model of every family, which between
/// them use every kind of window, rotary scaling, bias and norm.
#[test]
fn every_family_says_what_transformers_says() {
    let mut families = Vec::new();
    for name in [
        "qwen2",
        "qwen2-yarn",
        "qwen3-yarn",
        "llama-bias",
        "llama-linear",
        "mistral",
        "gemma3",
        "gemma3-pattern",
        "smollm3",
        "phi3",
    ] {
        let fixture = Fixture::open(&format!("families/{name}"));
        let base = fixture.base();
        families.push(base.config().family.name);
        let tokens = fixture.tokens("tokens");
        let (input, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
        let datum = Datum {
            tokens: input.to_vec(),
            targets: targets.to_vec(),
            width: 1,
            inputs: LossInputs {
                weights: vec![1.0; targets.len()],
                ..LossInputs::default()
            },
        };
        let expected = fixture.floats("logprobs");
        let output = forward(&base, None, &[datum], &Loss::CrossEntropy).unwrap();
        assert_close(&output.data[0].logprobs, &expected, 2e-5);

        let greedy = fixture.tokens("greedy");
        let mut request = SampleRequest::new(tokens, greedy.len());
        request.temperature = 0.0;
        request.prompt_logprobs = true;
        let sampled = sample(&base, None, &request).unwrap();
        assert_eq!(sampled.sequences[0].tokens, greedy, "{name}");
        let read: Vec<f32> = sampled.prompt_logprobs.unwrap()[1..]
            .iter()
            .map(|logprob| logprob.unwrap())
            .collect();
        assert_close(&read, &expected, 2e-5);
    }
    for family in &FAMILIES {
        // The others have fixtures of their own above.
        let known = families.contains(&family.name) || matches!(family.name, "llama" | "qwen3");
        assert!(known, "{} has no fixture", family.name);
    }
}

/// A GGUF file is the same model as the folder it was made from.
#[test]
fn gguf_files_say_what_their_folders_say() {
    for name in [
        "llama",
        "qwen3",
        "families/llama-linear",
        "families/phi3",
        "families/gemma3-pattern",
    ] {
        let fixture = Fixture::open(name);
        let folder = fixture.base();
        let file = Base::load_gguf(&fixture.folder.join("model.gguf"), 1).unwrap();
        let tokens: Vec<u32> = (0..30).map(|index| (index * 7 + 3) % 40).collect();
        let data = [Datum {
            targets: tokens[1..].to_vec(),
            inputs: LossInputs {
                weights: vec![1.0; tokens.len() - 1],
                ..LossInputs::default()
            },
            tokens: tokens[..tokens.len() - 1].to_vec(),
            width: 1,
        }];
        let expected = forward(&folder, None, &data, &Loss::CrossEntropy).unwrap();
        let ours = forward(&file, None, &data, &Loss::CrossEntropy).unwrap();
        assert_close(&ours.data[0].logprobs, &expected.data[0].logprobs, 1e-5);
        assert_eq!(file.config().eos, folder.config().eos);
    }
}

/// Blocks of every type, whole and in pieces that begin and end within them.
#[test]
fn quantised_blocks_are_read_as_the_gguf_package_reads_them() {
    use super::mapping::Mapping;
    use super::matrix::{Matrix, Order};
    use super::quant::Dtype as Kind;

    let bytes: &'static [u8] = include_bytes!("../../../tests/fixtures/engine/quants.safetensors");
    let file = SafeTensors::deserialize(bytes).unwrap();
    for (name, dtype) in [
        ("F16", Kind::F16),
        ("BF16", Kind::Bf16),
        ("Q8_0", Kind::Q8_0),
        ("Q4_0", Kind::Q4_0),
        ("Q4_1", Kind::Q4_1),
        ("Q4_K", Kind::Q4K),
        ("Q6_K", Kind::Q6K),
    ] {
        let blocks = file.tensor(&format!("{name}.blocks")).unwrap().data();
        let numbers = file.tensor(&format!("{name}.numbers")).unwrap();
        let numbers: Vec<f32> = numbers
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        let width = numbers.len();
        let section = Mapping::embedded(blocks).section(0..blocks.len());
        let matrix = Matrix::mapped(1, width, section, dtype, Order::Plain);
        for cols in [0..width, 0..1, 5..width - 3, width / 2..width] {
            let mut ours = vec![f32::NAN; cols.len()];
            matrix.read_block(0..1, cols.clone(), &mut ours);
            assert_close(&ours, &numbers[cols], 1e-6);
        }
    }
}

#[test]
fn gguf_files_that_cannot_be_run_are_refused_by_name() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engine/llama");
    let whole = fs::read(folder.join("model.gguf")).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let check = |bytes: Vec<u8>, expected: &str| {
        let path = temporary.path().join("model.gguf");
        fs::write(&path, bytes).unwrap();
        let error = Base::load_gguf(&path, 1).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    let place = |bytes: &[u8], text: &str| {
        bytes
            .windows(text.len())
            .position(|window| window == text.as_bytes())
            .unwrap()
    };
    check(whole[..whole.len() - 64].to_vec(), "beyond the end");
    let mut other = whole.clone();
    let value = place(&whole, "general.architecture") + 32;
    other[value..value + 5].copy_from_slice(b"mamba");
    check(other, "`mamba` is not supported");
    let mut other = whole.clone();
    // The type follows the name, the number of dimensions and two of them.
    let kind = place(&whole, "token_embd.weight") + "token_embd.weight".len() + 4 + 16;
    other[kind] = 19;
    check(other, "ggml type 19");
}
