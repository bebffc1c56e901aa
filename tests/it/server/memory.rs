//! Memory over many steps: what is not in use does not stay.

use serde_json::json;
use tinker::local::LocalServer;

use super::Caller;
use super::process::Process;

/// Every step of reinforcement learning makes a sampler of the new weights and leaves it behind.
///
/// `TINKER_TEST_LONG=1` takes 10,000 steps and prints the slope.
#[test]
fn samplers_left_behind_take_no_memory() {
    let long = std::env::var("TINKER_TEST_LONG").is_ok();
    let (steps, settled) = if long { (10_000, 4000) } else { (48, 16) };
    let process = Process::start(["--adapter-memory", "8"]);
    let caller = Caller::at(process.url.clone());
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
            start = process.memory();
        }
        if step % 1000 == 999 {
            println!(
                "{} KiB after {} steps",
                process.memory().unwrap_or(0.0),
                step + 1
            );
        }
    }
    let end = process.memory();
    // The first one has long been on disk, and gives what it gave.
    let (sampler, drawn) = first.unwrap();
    let body = json!({"sampling_session_id": sampler, "seq_id": 2, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
        "sampling_params": {"max_tokens": 2, "temperature": 0.0, "stop": []}});
    assert_eq!(
        caller.call("asample", body)["sequences"][0]["logprobs"],
        drawn
    );
    process.kill();
    if let (Some(start), Some(end)) = (start, end) {
        let slope = (end - start) / f64::from(steps - settled);
        println!("{start} KiB after {settled} steps, {end} after {steps}: {slope:.1} KiB a step");
        // What is kept of a sampler is its name and where its adapter lies.
        let allowed = if long { 2.0 } else { 800.0 };
        assert!(slope < allowed, "{slope} KiB a step");
    }
}

/// What became of a sampler's weights is told to whoever samples from it.
#[test]
fn a_sampler_whose_weights_are_gone_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder()
        .data(folder.path())
        .adapter_memory(1)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let snapshot = |seq_id: u64| {
        let body = json!({"model_id": model.id, "seq_id": seq_id,
            "sampling_session_seq_id": seq_id});
        caller.call("save_weights_for_sampler", body)["sampling_session_id"].clone()
    };
    let first = snapshot(1);
    model.train(&mut 2, &["hello"]);
    snapshot(4);
    // Nobody uses the first one, so its weights are on disk.
    let mut gone = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("tinker-local-") {
            for file in std::fs::read_dir(entry.path()).unwrap().flatten() {
                if file
                    .path()
                    .extension()
                    .is_some_and(|end| end == "safetensors")
                {
                    std::fs::remove_file(file.path()).unwrap();
                    gone += 1;
                }
            }
        }
    }
    assert_eq!(gone, 1);
    let body = json!({"sampling_session_id": first, "seq_id": 1, "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
        "sampling_params": {"max_tokens": 2}});
    let result = caller.wait(&caller.ok("asample", body));
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("disk failed it"), "{error}");
}
