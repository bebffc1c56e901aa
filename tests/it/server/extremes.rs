//! Numbers no client would send: the process stays, and stays small.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{Caller, datum};
use crate::support::http::request;

/// What every number of every request is replaced by, one at a time.
fn extremes() -> Vec<Value> {
    let mut values = vec![
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1e308),
        json!(-1e308),
    ];
    for number in [
        -1,
        0,
        1,
        64,
        65_536,
        1_000_000_000,
        i64::from(u32::MAX),
        1 << 31,
        i64::MAX,
    ] {
        values.push(json!(number));
    }
    values
}

/// Every variant of a body with one number replaced.
fn variants(body: &Value) -> Vec<Value> {
    fn numbers(value: &Value, at: String, found: &mut Vec<String>) {
        match value {
            Value::Number(_) => found.push(at),
            // One of a list stands for all.
            Value::Array(list) => {
                if let Some(first) = list.first() {
                    numbers(first, format!("{at}/0"), found);
                }
            }
            Value::Object(map) => {
                for (key, value) in map {
                    numbers(value, format!("{at}/{key}"), found);
                }
            }
            _ => {}
        }
    }
    let mut places = Vec::new();
    numbers(body, String::new(), &mut places);
    let mut all = Vec::new();
    for place in places {
        for extreme in extremes() {
            let mut variant = body.clone();
            *variant.pointer_mut(&place).unwrap() = extreme;
            all.push(variant);
        }
    }
    all
}

struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tinker"))
            .args([
                "serve",
                "--port",
                "0",
                "--threads",
                "1",
                "--max-memory",
                "256",
                "--log",
                "off",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        Self(child, url.trim().to_owned())
    }

    /// Resident memory in MiB, where the system says.
    fn memory(&self) -> Option<usize> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).ok()?;
        let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib / 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn extreme_numbers_are_refused_or_served_by_a_small_process() {
    let mut server = Server::start();
    let caller = Caller::at(server.1.clone());
    let model = caller.model(0);
    let (session, base) = (caller.session.clone(), caller.base_model());
    let sparse = json!({"data": [98], "dtype": "int64", "shape": [4, 100],
        "sparse_crow_indices": [0, 1, 1, 1, 1], "sparse_col_indices": [0]});
    let mut wide = datum("hello");
    wide["loss_fn_inputs"]["target_tokens"] = sparse.clone();
    wide["loss_fn_inputs"]["weights"] = json!({"data": [1.0], "dtype": "float32",
        "shape": [4, 100], "sparse_crow_indices": [0, 1, 1, 1, 1], "sparse_col_indices": [0]});
    let pass = |datum: Value, name: &str| {
        json!({"model_id": model.id, "seq_id": 1,
        name: {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": {"x": 1.0}}})
    };
    let prompt = json!({"chunks": [{"type": "encoded_text", "tokens": [104, 101, 108, 108, 111]}]});
    let sample = json!({"base_model": base, "num_samples": 1, "prompt": prompt,
        "prompt_logprobs": true, "prompt_logprobs_last_n": 2, "topk_prompt_logprobs": 2,
        "topk_sample_logprobs": 2, "prompt_alt_tokens_k": 2, "target_prompt_logprobs": sparse,
        "sampling_params": {"max_tokens": 2, "temperature": 1.0, "top_p": 0.9, "top_k": 3,
            "seed": 1, "stop": [5]}});
    let chat = json!({"model": base, "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1, "temperature": 1.0, "top_p": 0.9, "n": 1, "seed": 1, "logprobs": true});
    let text = json!({"model": base, "prompt": "hi", "max_tokens": 1, "n": 1, "logprobs": 1,
        "temperature": 1.0, "top_p": 0.9, "seed": 1});
    let lists = json!({"model": base, "prompt": [[104]], "max_tokens": 1});
    let save = json!({"model_id": model.id, "seq_id": 9, "path": "a", "ttl_seconds": 3600,
        "sampling_session_seq_id": 3});
    let adam = json!({"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12,
        "weight_decay": 0.0, "grad_clip_norm": 0.0});
    let bodies = [
        ("/api/v1/asample", sample),
        (
            "/api/v1/forward_backward",
            pass(datum("hello"), "forward_backward_input"),
        ),
        (
            "/api/v1/forward_backward",
            pass(wide.clone(), "forward_backward_input"),
        ),
        ("/api/v1/forward", pass(wide, "forward_input")),
        (
            "/api/v1/optim_step",
            json!({"model_id": model.id, "seq_id": 1, "adam_params": adam}),
        ),
        (
            "/api/v1/create_model",
            json!({"session_id": session, "model_seq_id": 1,
            "base_model": base, "lora_config": {"rank": 2, "seed": 1}}),
        ),
        ("/api/v1/save_weights", save.clone()),
        ("/api/v1/save_weights_for_sampler", save.clone()),
        ("/api/v1/save_weights_external", save),
        (
            "/api/v1/load_weights",
            json!({"session_id": session, "model_seq_id": 1, "seq_id": 1,
            "path": "tinker://x/weights/y", "optimizer": true}),
        ),
        (
            "/api/v1/create_sampling_session",
            json!({"session_id": session,
            "sampling_session_seq_id": 1, "base_model": base}),
        ),
        (
            "/api/v1/retrieve_futures",
            json!({"target": {"sampling_session_id": "x",
            "cloned_sampler_id": 1}, "prev_cursor": 1, "timeout": 0.001,
            "retrieved_request_ids": []}),
        ),
        (
            "/api/v1/sessions/search",
            json!({"limit": 1, "owner": {"type": "own"}}),
        ),
        (
            "/api/v1/weights/copy",
            json!({"source_path": "tinker://x/weights/y", "model_seq_id": 1,
            "session_id": session, "ttl_seconds": 3600}),
        ),
        (
            "/api/v1/create_custom_loss",
            json!({"session_id": session, "custom_loss_seq_id": 1,
            "name": "n", "inputs": [], "graph": {"x": 1}}),
        ),
        ("/oai/api/v1/chat/completions", chat),
        ("/oai/api/v1/completions", text),
        ("/oai/api/v1/completions", lists),
    ];
    let mut sent = 0;
    let url = &server.1;
    let send = |path: &str, body: &Value| {
        let text = body.to_string();
        let reply = request(url, "POST", path, &[], text.as_bytes());
        let reply = reply.unwrap_or_else(|error| panic!("{path} {text}: {error}"));
        assert_ne!(reply.status, 500, "{path} {text}: {reply:?}");
    };
    for (path, body) in &bodies {
        let variants = variants(body);
        // Many at once: those who ask for a long wait get one.
        for some in variants.chunks(64) {
            std::thread::scope(|scope| {
                for variant in some {
                    scope.spawn(move || send(path, variant));
                }
            });
        }
        sent += variants.len();
    }
    for query in ["offset", "limit", "day", "starting_on", "ending_before"] {
        for value in extremes() {
            for list in [
                "training_runs",
                "checkpoints",
                "sessions",
                "billing/usage/events",
            ] {
                let path = format!("/api/v1/{list}?{query}={value}");
                assert_ne!(
                    request(&server.1, "GET", &path, &[], b"").unwrap().status,
                    500
                );
                sent += 1;
            }
        }
    }
    assert!(server.0.try_wait().unwrap().is_none(), "the process lives");
    let again = caller.model(1_000_000);
    caller.call("forward", again.forward(1, &["hello"]));
    let memory = server.memory();
    println!("{sent} requests, at most {memory:?} MiB");
    assert!(
        memory.is_none_or(|mebibytes| mebibytes < 900),
        "{memory:?} MiB"
    );
}
