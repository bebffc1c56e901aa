//! What was trained here in other programs, and what they trained here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tinker::local::{LocalServer, ModelSource};
use tinker::{AdamParams, LossFn, ModelInput, SamplingClient, ServiceClient};

use crate::cli::Desk;
use crate::support::http::request;
use crate::support::python::{self, environment};
use crate::support::{local, packages};

const TINY: &str = "tinker-local/tiny";

/// A server with a trained checkpoint, and a desk whose commands talk to it.
struct Scene {
    server: LocalServer,
    service: ServiceClient,
    desk: Desk,
    path: String,
    /// What the checkpoint says of [`TOKENS`].
    expected: Vec<f32>,
}

const TOKENS: &[u8] = b"English: hello\nPig Latin: ellohay\n";

impl Scene {
    fn new() -> Self {
        let server = LocalServer::start().unwrap();
        let service = local::service(&server);
        let training = local::train(&service);
        for _ in 0..3 {
            let data = [local::datum(24)];
            let pass = training.forward_backward(&data, LossFn::CrossEntropy);
            let step = training.optim_step(AdamParams::learning_rate(1e-2));
            pass.unwrap().join().unwrap();
            step.unwrap().join().unwrap();
        }
        let path = training.save_state("trained").unwrap().join().unwrap().path;
        let sampler = training.save_weights_and_get_sampling_client().unwrap();
        let expected = scores(&sampler, &bytes());
        let base = service.create_sampling_client(TINY).unwrap();
        assert!(distance(&expected, &scores(&base, &bytes())) > 0.1);
        Self {
            desk: Desk::at(&server.base_url()),
            server,
            service,
            path: path.to_string(),
            expected,
        }
    }

    fn export(&self, args: &[&str]) -> Value {
        let args = [&["-f", "json", "export", &self.path], args].concat();
        self.desk.run(&args).json()
    }
}

fn bytes() -> Vec<i32> {
    TOKENS.iter().map(|byte| i32::from(*byte)).collect()
}

fn scores(sampler: &SamplingClient, tokens: &[i32]) -> Vec<f32> {
    let prompt = ModelInput::from_ints(tokens.to_vec());
    let scores = sampler.compute_logprobs(&prompt).unwrap();
    scores.iter().skip(1).map(Option::unwrap).collect()
}

/// What a served model says, of its own or of a checkpoint.
fn scores_of(server: &LocalServer, source: &str, tokens: &[i32]) -> Vec<f32> {
    let service = local::service(server);
    scores(&service.create_sampling_client(source).unwrap(), tokens)
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}

#[test]
fn a_checkpoint_becomes_a_model_of_its_own() {
    let scene = Scene::new();
    let place = |name: &str| scene.desk.path().join(name);
    let made = scene.export(&["--as", "hf", "--type", "f32", "--out", "merged"]);
    assert_eq!(
        (&made["form"], &made["type"], &made["untied"]),
        (&json!("hf"), &json!("f32"), &json!(true))
    );
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert!(place("merged").join(name).exists(), "{name}");
    }
    for (weight_type, file) in [("f16", "f16.gguf"), ("q8_0", "q8.gguf")] {
        let made = scene.export(&["--as", "gguf", "--type", weight_type, "-o", file]);
        assert_eq!(made["size_bytes"], fs::metadata(place(file)).unwrap().len());
    }
    let mut server = LocalServer::builder();
    for name in ["merged", "f16.gguf", "q8.gguf"] {
        server = server.model(ModelSource::new(name, place(name)));
    }
    let server = server.start().unwrap();
    for (name, bound) in [("merged", 1e-4), ("f16.gguf", 2e-2), ("q8.gguf", 0.5)] {
        let scores = scores_of(&server, name, &bytes());
        let distance = distance(&scores, &scene.expected);
        assert!(distance < bound, "{name}: {distance}");
    }

    // Nothing is replaced unless that is asked for, and a failure leaves nothing.
    let path = scene.path.as_str();
    let before = fs::read_dir(scene.desk.path()).unwrap().count();
    for (args, expected) in [
        (&["--as", "hf", "-o", "merged"][..], "--force replaces it"),
        (&["--as", "peft", "--type", "q8_0"], "q8_0"),
        (&["--as", "peft", "--type", "f32"], "f32"),
        (&["--as", "hf", "--type", "q8_0"], "q8_0"),
        (
            &["--as", "gguf", "--model", "nobody/nothing"],
            "nobody/nothing",
        ),
        (&["--as", "onnx"], "onnx"),
    ] {
        let said = scene.desk.run(&[&["export", path], args].concat());
        assert_ne!(said.exit, Some(0));
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
    assert_eq!(fs::read_dir(scene.desk.path()).unwrap().count(), before);
    scene.export(&["--as", "hf", "--out", "merged", "--force"]);
    let config = fs::read(place("merged/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["dtype"], "bfloat16", "as the base's");
}

/// The hosted service's archives name the head otherwise; what comes back is the same model.
#[test]
fn adapters_from_elsewhere_are_served_sampled_and_trained_further() {
    let scene = Scene::new();
    let place = |name: &str| scene.desk.path().join(name);
    scene.export(&["--as", "peft", "--out", "adapter"]);
    let hosted = place("hosted");
    fs::create_dir(&hosted).unwrap();
    let weights = fs::read(place("adapter/adapter_model.safetensors")).unwrap();
    let renamed = rename(&weights, "model.lm_head.", "model.model.unembed_tokens.");
    fs::write(hosted.join("adapter_model.safetensors"), renamed).unwrap();
    let config = place("adapter/adapter_config.json");
    fs::copy(config, hosted.join("adapter_config.json")).unwrap();
    let archive = place("hosted.tar.gz");
    let tar = Command::new("tar")
        .args(["-czf"])
        .arg(&archive)
        .args(["-C", scene.desk.path().to_str().unwrap(), "hosted"])
        .status();
    assert!(tar.unwrap().success());

    let data = scene.desk.path().join("data");
    let start = || {
        LocalServer::builder()
            .data(&data)
            .adapter("folder", place("adapter"))
            .adapter("archive", &archive)
            .start()
            .unwrap()
    };
    // Twice: the second finds those of the first, and takes their place.
    drop(start());
    let server = start();
    assert_eq!(server.problems(), Vec::<String>::new());
    for name in ["folder", "archive"] {
        let path = format!("tinker://adapter-{name}:train:0/sampler_weights/{name}");
        let distance = distance(&scores_of(&server, &path, &bytes()), &scene.expected);
        assert!(distance < 1e-4, "{name}: {distance}");
    }
    let service = local::service(&server);
    let listed = service.rest().list_user_checkpoints(100);
    assert_eq!(listed.unwrap().checkpoints.len(), 4);

    let path = "tinker://adapter-archive:train:0/weights/archive";
    let training = service.create_training_client_from_state(path).unwrap();
    let step = || {
        let pass = training.forward_backward(&[local::datum(24)], LossFn::CrossEntropy);
        let step = training.optim_step(AdamParams::learning_rate(1e-3));
        step.unwrap().join().unwrap();
        pass.unwrap().join().unwrap().loss().unwrap()
    };
    let first = step();
    assert!(step() < first);

    let body = json!({"model": "tinker://adapter-folder:train:0/sampler_weights/folder",
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
    let body = body.to_string();
    let headers = [("content-type", "application/json")];
    let url = server.base_url();
    let reply = request(
        &url,
        "POST",
        "/v1/chat/completions",
        &headers,
        body.as_bytes(),
    );
    let reply = reply.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.json());
    drop((training, service));
    drop(scene.service);
    drop(scene.server);
}

/// Renames tensors of a safetensors file.
fn rename(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, rest) = file[8..].split_at(length);
    let header = String::from_utf8(header.to_vec()).unwrap();
    assert!(header.contains(from));
    let mut header = header.trim_end().replace(from, to);
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(rest);
    out
}

/// A fixture's model with a tokenizer, which a server wants.
fn fixture(name: &str, root: &Path) -> PathBuf {
    let folder = root.join("model");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(fixtures().join(name)).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engine")
}

/// The numbers of a tensor in a safetensors file, as they are stored.
fn tensor<const N: usize>(file: &Path, name: &str) -> Vec<[u8; N]> {
    let file = fs::read(file).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let place = |at: usize| {
        let offset = header[name]["data_offsets"][at].as_u64().unwrap();
        8 + length + offset as usize
    };
    file[place(0)..place(1)].as_chunks().0.to_vec()
}

/// Ranks and scales by module, rsLoRA, some modules only, matrices that are stored as one.
#[test]
fn adapters_of_peft_say_what_peft_says() {
    for (name, model) in [("patterns", "llama"), ("fused", "families/phi3")] {
        let root = tempfile::tempdir().unwrap();
        let adapter = fixtures().join("adapters").join(name);
        let server = LocalServer::builder()
            .model(ModelSource::new("test/model", fixture(model, root.path())))
            .adapter(name, &adapter)
            .start()
            .unwrap();
        let expected = adapter.join("expected.safetensors");
        let tokens = tensor(&expected, "tokens").into_iter();
        let tokens: Vec<i32> = tokens.map(|id| i64::from_le_bytes(id) as i32).collect();
        let expected = tensor(&expected, "logprobs").into_iter();
        let expected: Vec<f32> = expected.map(f32::from_le_bytes).collect();
        let path = format!("tinker://adapter-{name}:train:0/sampler_weights/{name}");
        let distance = distance(&scores_of(&server, &path, &tokens), &expected);
        assert!(distance < 1e-4, "{name}: {distance}");
    }
}

#[test]
fn what_cannot_be_served_is_refused_at_the_start_by_name() {
    let root = tempfile::tempdir().unwrap();
    let model = fixture("llama", root.path());
    let adapter = root.path().join("adapter");
    fs::create_dir(&adapter).unwrap();
    let from = fixtures().join("adapters/patterns");
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(from.join(name), adapter.join(name)).unwrap();
    }
    let start = |model: &Path, name: &str| {
        let server = LocalServer::builder().model(ModelSource::new("test/model", model));
        server.adapter(name, &adapter).start()
    };
    let check = |expected: &[&str]| {
        let error = start(&model, "mine").unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{error}");
        }
    };
    drop(start(&model, "mine").unwrap());
    let error = start(&model, "a/b").unwrap_err().to_string();
    assert!(error.contains("a/b"), "{error}");
    // Another model's.
    let other = tempfile::tempdir().unwrap();
    let error = start(&fixture("qwen3", other.path()), "mine").unwrap_err();
    assert!(error.to_string().contains("q_proj"), "{error}");

    let file = adapter.join("adapter_config.json");
    let whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for (name, value) in [
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("modules_to_save", json!(["embed_tokens"])),
        ("peft_type", json!("IA3")),
        ("init_lora_weights", json!("pissa")),
        ("rank_pattern", json!({".*q_proj": 2})),
        ("lora_bias", json!(true)),
    ] {
        let mut config = whole.clone();
        config[name] = value;
        fs::write(&file, config.to_string()).unwrap();
        check(&["adapter mine", name]);
    }
    fs::remove_file(&file).unwrap();
    check(&["adapter mine", "adapter_config.json"]);
}

/// The `gguf` package reads the same numbers, and quantises to the same bytes.
#[test]
fn the_gguf_package_reads_what_is_written() {
    let Some(python) = environment("gguf-0.19", &["gguf==0.19.0"]) else {
        return;
    };
    let scene = Scene::new();
    for weight_type in ["f32", "f16", "q8_0"] {
        let file = format!("{weight_type}.gguf");
        scene.export(&["--as", "gguf", "--type", weight_type, "-o", &file]);
    }
    let script = "
import sys, numpy, gguf
read = {name: gguf.GGUFReader(name + '.gguf') for name in ['f32', 'f16', 'q8_0']}
tensors = {name: {one.name: one for one in reader.tensors} for name, reader in read.items()}
assert len(tensors['f32']) == 3 + 3 * 11, sorted(tensors['f32'])
for name, one in tensors['f32'].items():
    exact = one.data.astype(numpy.float32)
    half, small = tensors['f16'][name], tensors['q8_0'][name]
    if len(one.shape) == 1:
        assert half.tensor_type == small.tensor_type == gguf.GGMLQuantizationType.F32, name
        continue
    assert half.tensor_type == gguf.GGMLQuantizationType.F16, name
    assert (half.data == exact.astype(numpy.float16)).all(), name
    assert small.tensor_type == gguf.GGMLQuantizationType.Q8_0, name
    assert (small.data == gguf.quants.quantize(exact, small.tensor_type)).all(), name
value = lambda key: read['q8_0'].get_field(key).contents()
assert value('general.architecture') == 'qwen3' and value('general.file_type') == 7
assert value('qwen3.block_count') == 3 and value('qwen3.attention.key_length') == 32
assert value('qwen3.vocab_size') == len(value('tokenizer.ggml.tokens')) == 264
assert value('tokenizer.ggml.eos_token_id') == 257 and value('tokenizer.ggml.eot_token_id') == 260
assert value('tokenizer.ggml.add_bos_token') is False and 'im_start' in value('tokenizer.chat_template')
";
    let mut check = Command::new(python);
    check.args(["-c", script]).current_dir(scene.desk.path());
    python::run(&mut check).unwrap();
}

/// transformers loads merged folders. PyTorch takes gigabytes, hence only with
/// `TINKER_TEST_LONG=1`; recorded numbers of it are compared with always, in the library's tests.
#[test]
fn transformers_loads_merged_folders() {
    if std::env::var_os("TINKER_TEST_LONG").is_none() {
        return;
    }
    let needed = ["torch", "transformers==5.5.4"];
    let Some(python) = environment("transformers-torch", &needed) else {
        return;
    };
    let scene = Scene::new();
    scene.export(&["--as", "hf", "--type", "f32", "--out", "merged"]);
    let expected = json!({"tokens": bytes(), "logprobs": scene.expected}).to_string();
    fs::write(scene.desk.path().join("expected.json"), expected).unwrap();
    let script = "
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
expected = json.load(open('expected.json'))
tokens = torch.tensor([expected['tokens']])
model, notes = AutoModelForCausalLM.from_pretrained('merged', dtype=torch.float32, output_loading_info=True)
assert not notes['missing_keys'] and not notes['unexpected_keys'], notes
rows = torch.log_softmax(model(tokens).logits[0].detach(), -1)
ours = torch.tensor(expected['logprobs'])
theirs = rows[:-1].gather(1, tokens[0, 1:, None])[:, 0]
difference = (ours - theirs).abs().max().item()
print('largest difference', difference)
assert difference < 1e-4, difference
assert AutoTokenizer.from_pretrained('merged').encode('hi<|im_end|>') == [104, 105, 260]
";
    let mut check = Command::new(python);
    check.args(["-c", script]).current_dir(scene.desk.path());
    python::run(&mut check).unwrap();
}

/// A real model there and back: from its file into a folder, and from the folder into a file.
#[test]
fn a_real_model_survives() {
    if std::env::var_os("TINKER_TEST_LONG").is_none() {
        return;
    }
    let Some(file) = packages::smollm_gguf() else {
        return;
    };
    let name = "HuggingFaceTB/SmolLM2-135M-Instruct";
    let server = LocalServer::builder().model(ModelSource::new(name, &file));
    let server = server.start().unwrap();
    let training = local::train(&local::service(&server));
    let path = training.save_state("fresh").unwrap().join().unwrap().path;
    let desk = Desk::at(&server.base_url());
    let model = format!("{name}={}", file.display());
    let path = path.to_string();
    for (args, out) in [
        (["--as", "hf", "--type", "f16"], "folder"),
        (["--as", "gguf", "--type", "q8_0"], "q8.gguf"),
    ] {
        let args = [&["export", &path, "--model", &model, "-o", out], &args[..]].concat();
        let said = desk.run(&args);
        assert_eq!(said.exit, Some(0), "{}", said.stderr);
    }
    let mut again = LocalServer::builder();
    for out in ["folder", "q8.gguf"] {
        again = again.model(ModelSource::new(out, desk.path().join(out)));
    }
    let again = again.start().unwrap();
    let sampler = local::service(&server)
        .create_sampling_client(name)
        .unwrap();
    let text = "The capital of France is Paris, and the capital of Italy is Rome.";
    let tokens = sampler.tokenizer().unwrap().encode(text).unwrap();
    let expected = scores(&sampler, &tokens);
    for (out, bound) in [("folder", 0.05), ("q8.gguf", 0.2)] {
        let sampler = local::service(&again).create_sampling_client(out).unwrap();
        assert_eq!(sampler.tokenizer().unwrap().encode(text).unwrap(), tokens);
        let distance = distance(&scores(&sampler, &tokens), &expected);
        assert!(distance < bound, "{out}: {distance}");
    }
}
