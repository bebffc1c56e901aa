//! Which models a server has: by folder, by name, several at once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tinker::local::{LocalServer, ModelSource};
use tinker::types::Stop;
use tinker::{LoraConfig, ModelInput, SamplingParams, ServiceClient};

use super::Caller;
use super::process::Process;
use crate::support::http as plain;
use crate::support::hub::{FakeRepo, HubServer};
use crate::support::logs;

const FILES: [&str; 4] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The built-in model as a folder.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local/engine/builtin")
}

/// A copy of it that is another model: its head norm is another.
fn other(parent: &Path) -> PathBuf {
    let copy = parent.join("other");
    fs::create_dir_all(&copy).unwrap();
    for name in FILES {
        fs::copy(folder().join(name), copy.join(name)).unwrap();
    }
    let file = copy.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = header["model.norm.weight"]["data_offsets"][0].as_u64();
    // The sign of the first number, which is in bf16.
    bytes[8 + length + start.unwrap() as usize + 1] ^= 0x80;
    fs::write(&file, bytes).unwrap();
    copy
}

/// A copy of it that is kept as in its file, as large models are: the vocabulary goes on with rows of
/// zeros.
fn large(parent: &Path) -> PathBuf {
    const ROWS: usize = 90_000;
    let copy = parent.join("large");
    fs::create_dir_all(&copy).unwrap();
    for name in FILES {
        fs::copy(folder().join(name), copy.join(name)).unwrap();
    }
    let config = copy.join("config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    fields["vocab_size"] = json!(ROWS);
    fs::write(&config, fields.to_string()).unwrap();

    let file = copy.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut tensors = header.as_object().unwrap().clone();
    tensors.remove("__metadata__");
    let mut data = Vec::new();
    for (name, tensor) in &mut tensors {
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        let start = data.len();
        data.extend_from_slice(&bytes[8 + length + from..8 + length + to]);
        if name == "model.embed_tokens.weight" {
            let rows = tensor["shape"][0].as_u64().unwrap() as usize;
            data.resize(start + (to - from) / rows * ROWS, 0);
            tensor["shape"][0] = json!(ROWS);
        }
        tensor["data_offsets"] = json!([start, data.len()]);
    }
    let header = Value::Object(tensors).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&file, [&length[..], header.as_bytes(), &data].concat()).unwrap();
    copy
}

fn sample(caller: &Caller, number: u64, model: &str) -> Value {
    let body = json!({"session_id": caller.session, "sampling_session_seq_id": number,
        "base_model": model});
    let sampler = caller.ok("create_sampling_session", body)["sampling_session_id"].clone();
    let body = json!({"sampling_session_id": sampler, "seq_id": 1, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
        "sampling_params": {"max_tokens": 8, "temperature": 0.0, "stop": []}});
    caller.call("asample", body)["sequences"][0]["logprobs"].clone()
}

fn models_in_memory(server: &LocalServer) -> String {
    let reply = plain::request(&server.base_url(), "GET", "/metrics", &[], b"").unwrap();
    let text = String::from_utf8(reply.body).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| line.contains("base_models "));
    line.unwrap().rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn several_models_share_one_memory_budget() {
    let temporary = tempfile::tempdir().unwrap();
    let server = LocalServer::builder()
        .model(ModelSource::new("org/one", folder()))
        .model(ModelSource::new("org/other", other(temporary.path())))
        // Room for one of them.
        .max_memory(2_500_000)
        .start()
        .unwrap();
    assert_eq!(models_in_memory(&server), "1");
    let caller = Caller::new(&server);
    let listed = caller.get("get_server_capabilities")["supported_models"].clone();
    let listed: Vec<(&str, u64)> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|model| {
            let length = model["max_context_length"].as_u64().unwrap();
            (model["model_name"].as_str().unwrap(), length)
        })
        .collect();
    assert_eq!(listed, [("org/one", 4096), ("org/other", 4096)]);

    let one = sample(&caller, 0, "org/one");
    assert_eq!(models_in_memory(&server), "1", "the other made room");
    let other = sample(&caller, 1, "org/other");
    assert_ne!(one, other);
    for number in 2..6 {
        let (name, expected) = match number % 2 {
            0 => ("org/one", &one),
            _ => ("org/other", &other),
        };
        assert_eq!(sample(&caller, number, name), *expected);
    }
    let body = json!({"session_id": caller.session, "sampling_session_seq_id": 9,
        "base_model": "org/third"});
    let refused = caller.post("create_sampling_session", body);
    assert_eq!(refused.status, 400);
    let text = String::from_utf8(refused.body).unwrap();
    assert!(
        text.contains("this server has org/one, org/other"),
        "{text}"
    );
}

#[test]
fn each_model_has_its_own_runs_and_checkpoints() {
    let temporary = tempfile::tempdir().unwrap();
    let server = LocalServer::builder()
        .model(ModelSource::new("org/one", folder()))
        .model(ModelSource::new("org/other", other(temporary.path())))
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let mut made = Vec::new();
    for (number, name) in (0..).zip(["org/one", "org/other"]) {
        let body = json!({"session_id": caller.session, "model_seq_id": number,
            "base_model": name, "lora_config": {"rank": 4, "seed": 7}});
        let id = caller.call("create_model", body)["model_id"].clone();
        let info = caller.ok("get_info", json!({ "model_id": id }));
        assert_eq!(info["model_name"], name);
        let tokenizer = info["model_data"]["tokenizer_id"].as_str().unwrap();
        assert!(Path::new(tokenizer).join("tokenizer.json").exists());
        let saved = caller.call(
            "save_weights",
            json!({"model_id": id, "seq_id": 1, "path": "a"}),
        );
        made.push((id, saved["path"].clone()));
    }
    // The other model's adapter has the same shape, and is refused all the same.
    let body = json!({"model_id": made[0].0, "seq_id": 2, "path": made[1].1,
        "optimizer": false});
    let refused = caller.wait(&caller.ok("load_weights", body));
    assert!(refused["error"].is_string(), "{refused}");
    let mut body = json!({"session_id": caller.session, "model_seq_id": 2, "path": made[1].1,
        "optimizer": false, "base_model": "org/one"});
    let refused = caller.post("load_weights", body.clone());
    assert_eq!(refused.status, 400, "it is not ignored");
    assert!(refused.detail().contains("was made on org/other"));
    body["base_model"] = json!("org/other");
    let id = caller.call("load_weights", body)["model_id"].clone();
    let info = caller.ok("get_info", json!({ "model_id": id }));
    assert_eq!(info["model_name"], "org/other");
}

#[test]
fn usage_is_counted_by_model() {
    let temporary = tempfile::tempdir().unwrap();
    let server = LocalServer::builder()
        .model(ModelSource::new("org/one", folder()))
        .model(ModelSource::new("org/other", other(temporary.path())))
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    sample(&caller, 0, "org/one");
    sample(&caller, 1, "org/other");
    sample(&caller, 2, "org/other");
    let body = json!({"session_id": caller.session, "model_seq_id": 0,
        "base_model": "org/other", "lora_config": {"rank": 4}});
    let id = caller.call("create_model", body)["model_id"].clone();
    let body = json!({"model_id": id, "seq_id": 1, "path": "a"});
    caller.call("save_weights", body);
    let hour = tinker::types::Timestamp::now().as_second() / 3600 * 3600;
    let time = |second| tinker::types::Timestamp::from_second(second).unwrap();
    let (from, to) = (time(hour - 3600), time(hour + 7200));
    let path = format!("billing/usage/events?starting_on={from}&ending_before={to}");
    // Summed over the hours, since one may have begun meanwhile.
    let mut used = BTreeMap::<(String, String), u64>::new();
    for event in caller.get(&path)["data"].as_array().unwrap() {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let info = &event["event_info"];
        let count = info["token_count"].as_u64().or(info["count"].as_u64());
        let key = (text(&event["base_model"]), text(&info["type"]));
        *used.entry(key).or_default() += count.unwrap();
    }
    let used: Vec<(&str, &str, u64)> = used
        .iter()
        .map(|((model, kind), count)| (model.as_str(), kind.as_str(), *count))
        .collect();
    assert_eq!(
        used,
        [
            ("org/one", "sampling_prefill", 2),
            ("org/one", "sampling_sample", 8),
            ("org/other", "checkpoint", 1),
            ("org/other", "sampling_prefill", 4),
            ("org/other", "sampling_sample", 16),
        ]
    );
}

#[test]
fn two_models_of_one_name_are_refused() {
    let model = || ModelSource::new("org/one", folder());
    let server = LocalServer::builder().model(model()).model(model());
    let error = server.start().unwrap_err().to_string();
    assert!(error.contains("two models are called org/one"), "{error}");
}

#[test]
fn that_samples_are_drawn_from_rounded_weights_is_warned_of() {
    logs::capture();
    let temporary = tempfile::tempdir().unwrap();
    let large = large(temporary.path());
    for (name, folder, on) in [
        ("org/rounded", large.clone(), true),
        ("org/not-asked-for", large, false),
        // Not worth it, so it is not done.
        ("org/too-small", folder(), true),
    ] {
        let server = LocalServer::builder()
            .model(ModelSource::new(name, folder))
            .quantized_sampling(on);
        drop(server.start().unwrap());
    }
    let lines = logs::with("rounded to Q8_0");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let is_told = lines[0].starts_with("WARN: ") && lines[0].contains("samples of org/rounded ");
    assert!(is_told, "{lines:?}");
}

#[test]
fn a_client_of_a_model_of_ones_own() {
    let named = ModelSource::new("org/mine", folder());
    let service = ServiceClient::local_with(named).unwrap();
    let sampler = service.create_sampling_client("org/mine").unwrap();
    let tokenizer = sampler.tokenizer().unwrap();
    let prompt = ModelInput::from_ints(tokenizer.encode("hi").unwrap());
    let params = SamplingParams::max_tokens(3).with_stop(Stop::never());
    let response = sampler.sample(&prompt, params).unwrap();
    assert_eq!(response.sequences[0].tokens.len(), 3);
    service
        .create_lora_training_client("org/mine", LoraConfig::rank(2))
        .unwrap();
}

/// `tinker serve` with a hub of the test's own.
fn serve(hub: &HubServer, home: &Path, offline: &str) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinker"));
    command
        .args(["serve", "--port", "0", "--threads", "1"])
        .args(["--model", "org/small", "--model", "tinker-local/tiny"])
        .env("HF_HOME", home)
        .env("HF_ENDPOINT", hub.url())
        .env("HF_HUB_OFFLINE", offline)
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN");
    Process::spawn(command)
}

#[test]
fn a_model_is_served_by_its_name_on_the_hub() {
    let hub = HubServer::start();
    let mut repo = FakeRepo::new("0123456789abcdef0123456789abcdef01234567");
    for name in FILES {
        let bytes = fs::read(folder().join(name)).unwrap();
        repo = match name {
            "model.safetensors" => repo.with_large_file(name, bytes),
            _ => repo.with_file(name, bytes),
        };
    }
    let repo = repo.with_large_file("pytorch_model.bin", vec![0; 1 << 20]);
    hub.put("org/small", repo);
    let home = tempfile::tempdir().unwrap();
    // The second time everything is in the cache, and nobody is asked.
    let mut asked = Vec::new();
    for offline in ["0", "1", "0"] {
        let served = serve(&hub, home.path(), offline);
        let caller = Caller::at(served.url.clone());
        assert_eq!(caller.base_model(), "org/small");
        let named = sample(&caller, 0, "org/small");
        assert_eq!(named, sample(&caller, 1, "tinker-local/tiny"));
        asked.push(hub.api.requests().len() + hub.storage.requests().len());
    }
    assert!(asked[0] > 0);
    assert_eq!(asked[1..], [asked[0]; 2]);
    let unwanted = |path: &str| path.contains("pytorch_model");
    assert!(!hub.api.requests().iter().any(|one| unwanted(&one.path)));
}
