//! The official Python SDK, unmodified, against `tinker serve`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::python::{environment, interpreter};

/// `tinker serve` on a free port; SIGTERM ends it.
pub(crate) struct Served {
    process: Child,
    pub(crate) url: String,
}

impl Served {
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_tinker"))
            .args(["serve", "--port", "0"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        assert!(url.starts_with("http"), "the server did not start: {url:?}");
        Self {
            process,
            url: url.trim().to_owned(),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a script with an SDK and reads the JSON it prints; `None` without that SDK.
fn run(version: &str, script: &str, server: &Served) -> Option<Value> {
    run_with(version, script, server, &[("HF_HUB_OFFLINE", "1")])
}

fn run_with(
    version: &str,
    script: &str,
    server: &Served,
    environment: &[(&str, &str)],
) -> Option<Value> {
    let python = interpreter(version)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/python")
        .join(script);
    let output = Command::new(python)
        .arg(script)
        .env("TINKER_BASE_URL", &server.url)
        .env("TINKER_API_KEY", "tml-test")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{version}, {}: {errors}",
        output.status
    );
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[track_caller]
fn check(seen: &Value) {
    let numbers = |key: &str| -> Vec<f64> {
        let list = seen[key].as_array().unwrap().iter();
        list.map(|number| number.as_f64().unwrap()).collect()
    };
    assert_eq!(numbers("tokenizer"), [104.0, 105.0, 257.0]);
    let losses = numbers("losses");
    assert!(
        losses.windows(2).all(|pair| pair[1] < pair[0]),
        "{losses:?}"
    );
    assert_eq!(seen["resumed"], seen["uninterrupted"]);
    assert_eq!(numbers("weights_only")[0], numbers("uninterrupted")[0]);
    assert_eq!(seen["named"], seen["ephemeral"]);
    assert_ne!(seen["named"]["tokens"], seen["base"]["tokens"]);
    assert_eq!(seen["named"]["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(seen["named"]["prompt"].as_array().unwrap().len(), 4);
    assert_eq!(seen["refused"], "user");
    assert_eq!(seen["runs"], 3);
    let saved = ["sampler_weights/sampler", "weights/resume"];
    assert_eq!(seen["checkpoints"], json!(saved));
    assert_eq!(seen["checkpoint_run"], true);
}

#[test]
fn releases_of_both_eras_train_and_see_the_same_numbers() {
    let server = Served::start(&[]);
    let (Some(mut new), Some(mut old)) = (
        run("0.36.0", "train.py", &server),
        run("0.24.1", "train.py", &server),
    ) else {
        return;
    };
    check(&new);
    check(&old);
    for seen in [&mut new, &mut old] {
        seen.as_object_mut().unwrap().remove("version");
    }
    assert_eq!(new, old);
}

#[test]
fn every_switch_of_the_configuration_leads_to_the_same_numbers() {
    let plain = Served::start(&[]);
    let flags = [
        "--flag",
        "pjwt_auth_enabled=true",
        "--flag",
        "proto_compress_fwdbwd=true",
        "--flag",
        "fwdbwd_max_chunk_len=1",
        "--flag",
        "create_model_via_load_weights=true",
        "--flag",
        "sample_use_retrieve_futures=true",
        "--flag",
        "sample_join_sampling_session=true",
        "--flag",
        "sample_cancel_enabled=true",
    ];
    let switched = Served::start(&flags);
    let (Some(plain), Some(switched)) = (
        run("0.36.0", "train.py", &plain),
        run("0.36.0", "train.py", &switched),
    ) else {
        return;
    };
    check(&switched);
    // Gradients of chunks are added in another order than those of one call.
    let close = |key: &str| {
        let pairs = plain[key]
            .as_array()
            .unwrap()
            .iter()
            .zip(switched[key].as_array().unwrap());
        for (one, other) in pairs {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            assert!((one - other).abs() < 1e-2 * one, "{key}: {one} and {other}");
        }
    };
    assert_eq!(plain["forward"], switched["forward"]);
    close("losses");
    close("uninterrupted");
}

#[test]
fn releases_of_both_eras_know_a_model_by_its_name_and_its_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local/engine/builtin");
    let server = Served::start(&["--model", &format!("org/named={}", folder.display())]);
    // A sampler's tokenizer is asked for by the model's name alone, as the hub's tools keep it.
    let home = tempfile::tempdir().unwrap();
    let cached = home.path().join("hub/models--org--named");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = cached.join("snapshots").join(commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(cached.join("refs")).unwrap();
    fs::write(cached.join("refs/main"), commit).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder.join(name), snapshot.join(name)).unwrap();
    }
    let mut all = Vec::new();
    for version in ["0.36.0", "0.24.1"] {
        let environment = [
            ("MODEL", "org/named"),
            ("HF_HOME", home.path().to_str().unwrap()),
            ("HF_HUB_OFFLINE", "1"),
        ];
        let Some(mut seen) = run_with(version, "rest.py", &server, &environment) else {
            return;
        };
        let loss = seen.as_object_mut().unwrap().remove("loss").unwrap();
        assert!(loss.as_f64().unwrap() > 0.0, "{version}: {loss}");
        assert_eq!(seen["tokens"].as_array().unwrap().len(), 4);
        all.push(seen);
    }
    let mut expected = json!({
        "offered": ["org/named"],
        "model": "org/named",
        "sampled": "org/named",
        "sampler_of": "org/named",
        "tokenizers": [[104, 105, 257], [104, 105, 257]],
        "run": {"base": "org/named", "by_path": true, "metadata": {"run": "one"}, "weights": 4},
        "saved": {"weights/state": "training", "sampler_weights/weights": "sampler"},
        "sized": true,
        "public": [true, false],
        "expires": [true, false],
        "mine": true,
        "left": ["weights/state"],
        "missing": 404,
        "sessions": true,
        "session": [true, 2],
        "runs": true,
    });
    expected["tokens"] = all[0]["tokens"].clone();
    for seen in all {
        assert_eq!(seen, expected);
    }
}

#[test]
fn the_openai_package_streams_a_completion() {
    let Some(python) = environment("openai-2", &["openai>=2,<3"]) else {
        return;
    };
    let server = Served::start(&[]);
    let script = r#"
import os
from openai import NotFoundError, OpenAI

client = OpenAI(base_url=os.environ["TINKER_BASE_URL"] + "/oai/api/v1", api_key="tml-x")
model = client.models.list().data[0].id
options = dict(model=model, max_tokens=8, seed=1)
whole = client.completions.create(prompt="hello", **options).choices[0].text
pieces = [chunk.choices[0].text for chunk in client.completions.create(prompt="hello", stream=True, **options)]
assert "".join(pieces) == whole, (pieces, whole)

messages = [{"role": "user", "content": "hi"}]
whole = client.chat.completions.create(messages=messages, **options).choices[0].message.content
stream = client.chat.completions.create(messages=messages, stream=True, **options)
pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
assert "".join(pieces) == whole, (pieces, whole)

try:
    client.completions.create(model="other", prompt="hello")
    raise SystemExit("another model was served")
except NotFoundError as error:
    assert "other" in str(error), error
"#;
    let output = Command::new(python)
        .args(["-c", script])
        .env("TINKER_BASE_URL", &server.url)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}
