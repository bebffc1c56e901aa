//! Memory over many steps: what is not in use does not stay.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::json;

use super::Caller;

/// Every step of reinforcement learning makes a sampler of the new weights and leaves it behind.
///
/// `TINKER_TEST_LONG=1` takes 10,000 steps and prints the slope.
#[test]
fn samplers_left_behind_take_no_memory() {
    let long = std::env::var("TINKER_TEST_LONG").is_ok();
    let (steps, settled) = if long { (10_000, 1000) } else { (48, 16) };
    let mut child = Command::new(env!("CARGO_BIN_EXE_tinker"))
        .args([
            "serve",
            "--port",
            "0",
            "--threads",
            "1",
            "--adapter-memory",
            "8",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut url).unwrap();
    let memory = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    let caller = Caller::at(url.trim().to_owned());
    let model = caller.model(0);
    let mut seq_id = 1;
    let sample = |sampler: &serde_json::Value| {
        let body = json!({"sampling_session_id": sampler, "seq_id": 1, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
            "sampling_params": {"max_tokens": 2, "temperature": 0.0, "stop": []}});
        caller.call("asample", body)["sequences"][0]["logprobs"].clone()
    };
    let (mut first, mut start) = (None, None);
    for step in 0..steps {
        model.train(&mut seq_id, &["hello"]);
        let body = json!({"model_id": model.id, "seq_id": seq_id, "sampling_session_seq_id": step});
        seq_id += 1;
        let sampler = caller.call("save_weights_for_sampler", body)["sampling_session_id"].clone();
        let drawn = sample(&sampler);
        first.get_or_insert((sampler, drawn));
        if step == settled {
            start = memory();
        }
    }
    let end = memory();
    // The first one has long been on disk, and gives what it gave.
    let (sampler, drawn) = first.unwrap();
    let body = json!({"sampling_session_id": sampler, "seq_id": 2, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
        "sampling_params": {"max_tokens": 2, "temperature": 0.0, "stop": []}});
    assert_eq!(
        caller.call("asample", body)["sequences"][0]["logprobs"],
        drawn
    );
    child.kill().unwrap();
    child.wait().unwrap();
    if let (Some(start), Some(end)) = (start, end) {
        let slope = (end - start) / f64::from(steps - settled);
        println!("{start} KiB after {settled} steps, {end} after {steps}: {slope:.1} KiB a step");
        let allowed = if long { 20.0 } else { 800.0 };
        assert!(slope < allowed, "{slope} KiB a step");
    }
}
