//! What is exported is the model that was trained, for every family.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::gguf::Gguf;
use crate::local::engine::inside::{Rng, forward};
use crate::local::engine::{Base, Datum, LoraSpec, Loss, LossInputs};

/// A model's folder, changed as a test wants it, and an adapter of it beside it.
struct Scene {
    root: TempDir,
}

impl Scene {
    /// The fixture of a family; `change` sets what its configuration says.
    fn new(fixture: &str, change: Value) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (fixture_folder(fixture), root.path().join("base"));
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_file() {
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
        fs::remove_file(to.join("model.gguf")).ok();
        let file = to.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for (name, value) in change.as_object().unwrap() {
            config[name] = value.clone();
        }
        fs::write(&file, config.to_string()).unwrap();
        let letters = ('a'..='z').map(String::from);
        let letters = letters
            .zip(4..)
            .map(|(letter, id): (_, u32)| (letter, id.into()));
        let vocabulary: serde_json::Map<String, Value> = letters.collect();
        let tokenizer = json!({
            "added_tokens": [{"id": 0, "content": "<s>", "special": true},
                             {"id": 1, "content": "</s>", "special": true}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        });
        fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let special = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ 1 }}"});
        fs::write(to.join("tokenizer_config.json"), special.to_string()).unwrap();
        Self { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Writes an adapter that changes a lot, and gives the log-probabilities it should have.
    fn adapt(&self, base: &Base, unembed: bool) -> Vec<f32> {
        let spec = LoraSpec {
            rank: 3,
            seed: 5,
            attn: true,
            mlp: true,
            unembed,
        };
        let mut adapter = Adapter::new(spec, base.config()).unwrap();
        let mut rng = Rng::stream(7, 0);
        for value in adapter.params_mut() {
            *value += 0.05 * (rng.unit() as f32 - 0.5);
        }
        let files = adapter.to_peft("base", base.config()).unwrap();
        write_adapter(&self.path("adapter"), &files);
        let expected = logprobs(base, Some(&adapter));
        assert!(distance(&expected, &logprobs(base, None)) > 0.01);
        expected
    }

    fn export(&self) -> Export {
        Export::new(self.path("adapter")).with_model(self.path("base"))
    }
}

fn fixture_folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/fixtures/engine").join(name)
}

fn write_adapter(folder: &Path, files: &PeftFiles) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(PeftFiles::CONFIG), &files.config).unwrap();
    fs::write(folder.join(PeftFiles::WEIGHTS), &files.weights).unwrap();
}

fn datum(tokens: &[u32], targets: &[u32]) -> Datum {
    Datum {
        tokens: tokens.to_vec(),
        targets: targets.to_vec(),
        width: 1,
        inputs: LossInputs {
            weights: vec![1.0; targets.len()],
            ..LossInputs::default()
        },
    }
}

fn logprobs(base: &Base, adapter: Option<&Adapter>) -> Vec<f32> {
    let tokens: Vec<u32> = (0..30).map(|index| (index * 7 + 3) % 40).collect();
    let data = [datum(&tokens[..29], &tokens[1..])];
    let output = forward(base, adapter, &data, &Loss::CrossEntropy).unwrap();
    output.data[0].logprobs.clone()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

/// Every family, as it has to be for llama.cpp; the fixtures themselves try other settings too.
fn families() -> Vec<(&'static str, Value)> {
    let gemma = json!({
        "query_pre_attn_scalar": 16,
        "layer_types": vec!["sliding_attention"; 4],
    });
    let yarn = json!({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 32, "attention_factor": 1.1}});
    vec![
        ("llama", json!({})),
        ("qwen3", json!({})),
        ("families/llama-bias", json!({})),
        ("families/llama-linear", json!({})),
        ("families/mistral", json!({"sliding_window": null})),
        (
            "families/qwen2",
            json!({"use_sliding_window": false, "layer_types": null}),
        ),
        ("families/qwen2-yarn", json!({})),
        ("families/qwen3-yarn", yarn),
        ("families/gemma3", gemma),
        ("families/smollm3", json!({"no_rope_layers": [1, 1, 1, 0]})),
        ("families/phi3", json!({})),
    ]
}

#[test]
fn every_family_survives_the_way_through_a_folder() {
    for (fixture, change) in families() {
        for unembed in [false, true] {
            let scene = Scene::new(fixture, change.clone());
            let base = Base::load(&scene.path("base"), 1).unwrap();
            let expected = scene.adapt(&base, unembed);
            let done = scene
                .export()
                .to_hugging_face(scene.path("merged"))
                .unwrap();
            assert_eq!(done.weight_type, Some(WeightType::F32));
            assert_eq!(done.untied, unembed && base.config().tied_head, "{fixture}");
            let merged = Base::load(&scene.path("merged"), 1).unwrap();
            assert_eq!(
                merged.config().tied_head,
                base.config().tied_head && !unembed
            );
            let distance = distance(&logprobs(&merged, None), &expected);
            assert!(distance < 1e-4, "{fixture}: {distance}");
            for name in ["tokenizer.json", "tokenizer_config.json"] {
                let read = |folder| fs::read(scene.path(folder).join(name)).unwrap();
                assert_eq!(read("merged"), read("base"));
            }
            let read = fs::read_dir(scene.root.path()).unwrap().count();
            assert_eq!(read, 3, "nothing else is left");
        }
    }
}

/// In fewer bits the numbers differ by what was rounded, and the engine then keeps keys and values
/// in bf16 too. These models have random weights, which makes much of it: bounds are fractions of
/// the largest log-probability, a few times what was measured.
#[test]
fn every_family_survives_the_way_through_gguf() {
    for (fixture, change) in families() {
        let scene = Scene::new(fixture, change);
        let base = Base::load(&scene.path("base"), 1).unwrap();
        let expected = scene.adapt(&base, true);
        for (weight_type, bound) in [
            (WeightType::F32, 1e-6),
            (WeightType::F16, 1e-2),
            (WeightType::Bf16, 1e-1),
            (WeightType::Q8_0, 1e-1),
        ] {
            let file = scene.path(&format!("{weight_type}.gguf"));
            let done = scene
                .export()
                .with_type(weight_type)
                .to_gguf(&file)
                .unwrap();
            assert_eq!(done.bytes, fs::metadata(&file).unwrap().len());
            let merged = Base::load_gguf(&file, 1).unwrap();
            let distance = distance(&logprobs(&merged, None), &expected);
            let distance = distance / expected.iter().fold(1.0, |most, x| x.abs().max(most));
            assert!(distance < bound, "{fixture} {weight_type}: {distance}");
            assert_eq!(merged.config().eos, base.config().eos);
        }
        // A file made from the file: as folder and as file again.
        let empty = Adapter::new(
            LoraSpec {
                rank: 1,
                seed: 0,
                attn: true,
                mlp: false,
                unembed: false,
            },
            base.config(),
        );
        let files = empty.unwrap().to_peft("base", base.config()).unwrap();
        write_adapter(&scene.path("empty"), &files);
        let again = Export::new(scene.path("empty"))
            .with_model(scene.path("f32.gguf"))
            .with_type(WeightType::F32);
        again.to_gguf(scene.path("again.gguf")).unwrap();
        let front = |name: &str| Gguf::open(&scene.path(name)).unwrap();
        let (before, after) = (front("f32.gguf"), front("again.gguf"));
        for (name, value) in before.values().filter(|(name, _)| *name != "general.name") {
            assert_eq!(after.get(name), Some(value), "{fixture} {name}");
        }
        let bytes = |name: &str| fs::read(scene.path(name)).unwrap();
        let data = |name: &str| bytes(name)[front(name).data_start() as usize..].to_vec();
        assert!(data("f32.gguf") == data("again.gguf"), "{fixture}");
        if fixture == "llama" {
            // Its frequencies are none that a known model has.
            let error = again.to_hugging_face(scene.path("folder")).unwrap_err();
            assert!(error.to_string().contains("rope_freqs"), "{error}");
            continue;
        }
        again.to_hugging_face(scene.path("folder")).unwrap();
        let folder = Base::load(&scene.path("folder"), 1).unwrap();
        let distance = distance(&logprobs(&folder, None), &expected);
        assert!(distance < 1e-4, "{fixture}: {distance}");
    }
}

/// What `peft` computed with the adapter beside the model is what the merged model says.
#[test]
fn merged_models_say_what_peft_says() {
    use safetensors::SafeTensors;
    for fixture in ["llama", "qwen3"] {
        let scene = Scene::new(fixture, json!({}));
        let export =
            Export::new(fixture_folder(fixture).join("adapter")).with_model(scene.path("base"));
        // Small files, so that there are several.
        export
            .with_shard_bytes(2000)
            .to_hugging_face(scene.path("merged"))
            .unwrap();
        assert!(scene.path("merged/model.safetensors.index.json").exists());
        let merged = Base::load(&scene.path("merged"), 1).unwrap();
        let bytes = fs::read(fixture_folder(fixture).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name: &str| -> Vec<u32> {
            let data = file.tensor(name).unwrap().data().as_chunks::<8>().0;
            data.iter()
                .map(|id| i64::from_le_bytes(*id) as u32)
                .collect()
        };
        for index in 0..3 {
            let data = [datum(
                &ids(&format!("data.{index}.tokens")),
                &ids(&format!("data.{index}.target_tokens")),
            )];
            let output = forward(&merged, None, &data, &Loss::CrossEntropy).unwrap();
            let expected = file.tensor(&format!("data.{index}.expected")).unwrap();
            let expected = expected.data().as_chunks::<4>().0;
            let expected: Vec<f32> = expected.iter().map(|x| f32::from_le_bytes(*x)).collect();
            let distance = distance(&output.data[0].logprobs, &expected);
            assert!(distance < 1e-4, "{fixture}: {distance}");
        }
    }
}

#[test]
fn what_gguf_cannot_say_is_refused_by_name() {
    #[track_caller]
    fn check(fixture: &str, expected: &str) {
        let scene = Scene::new(fixture, json!({}));
        let base = Base::load(&scene.path("base"), 1).unwrap();
        scene.adapt(&base, false);
        let error = scene.export().to_gguf(scene.path("out.gguf")).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!scene.path("out.gguf").exists());
    }
    check("families/mistral", "layer_types: layer 0");
    check("families/qwen2", "layer_types: layer 2");
    check("families/smollm3", "layer_types: layer 2");
    check("families/gemma3", "layer_types: layer 2");
    check("families/qwen3-yarn", "rope_scaling");
}

#[test]
fn the_built_in_model_and_wrong_wishes() {
    let scene = Scene::new("qwen3", json!({}));
    let base = Base::builtin(1).unwrap();
    let expected = scene.adapt(&base, false);
    let export = Export::new(scene.path("adapter")).with_model("tinker-local/tiny");
    let file = scene.path("tiny.gguf");
    let done = export.clone().with_type(WeightType::Q8_0).to_gguf(&file);
    assert!(!done.unwrap().untied);
    let distance = distance(
        &logprobs(&Base::load_gguf(&file, 1).unwrap(), None),
        &expected,
    );
    assert!(distance < 0.2, "{distance}");
    let front = Gguf::open(&file).unwrap();
    assert_eq!(front.whole("tokenizer.ggml.eot_token_id"), Some(260));
    let tokenizer = crate::text::Tokenizer::open(&file).unwrap();
    assert_eq!(tokenizer.encode("hi<|im_end|>").unwrap(), [104, 105, 260]);

    let check = |result: Result<Exported>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(export.to_gguf(&file), "there already");
    let q8 = export.clone().with_type(WeightType::Q8_0);
    check(q8.to_hugging_face(scene.path("merged")), "q8_0");
    let other = export.clone().with_model(scene.path("base"));
    check(other.to_gguf(scene.path("x.gguf")), "shape");
    check(
        Export::new(scene.path("nowhere")).to_peft(scene.path("p")),
        "nowhere",
    );
    let stop = export.on_progress(|_, _| ControlFlow::Break(()));
    check(stop.to_gguf(scene.path("x.gguf")), "stopped");
    assert!(!scene.path("x.gguf").exists());
    assert_eq!(fs::read_dir(scene.root.path()).unwrap().count(), 3);
}
