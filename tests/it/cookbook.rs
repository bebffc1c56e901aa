//! The cookbook's recipes, unmodified, on `tinker serve` with a model under the recipes' own name.
//!
//! `TINKER_TEST_LONG=1 cargo test --test it cookbook` installs the cookbook with PyTorch under
//! `target/`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::python::Served;
use crate::support::http;
use crate::support::python::environment;

/// What both recipes ask for if they are told nothing else.
const MODEL: &str = "Qwen/Qwen3.5-9B-Base";

const SUFFIX: &str = " Provide a numerical answer without units, written inside \\boxed{}.";

/// What `rl_loop` puts before every question.
const SHOT: [(&str, &str); 2] = [
    (
        "user",
        "How many r's are in strawberry? Provide a numerical answer without units, written inside \\boxed{}.",
    ),
    (
        "assistant",
        "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y. We have r's at positions 3, 8, and 9. \\boxed{3}",
    ),
];

/// Supervised training teaches the tiny model to answer in boxes, rightly or not; reinforcement goes
/// on from there, so that some answers of a group are right and some are not.
#[test]
fn the_loops_of_the_cookbook_run_unmodified_to_their_end() {
    if std::env::var_os("TINKER_TEST_LONG").is_none() {
        return;
    }
    let packages = ["tinker-cookbook[math-rl]==0.5.8", "tinker==0.36.0"];
    let Some(python) = environment("cookbook-0.5.8", &packages) else {
        return;
    };
    let builtin = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/local/engine/builtin");
    let server = Served::start(&["--model", &format!("{MODEL}={}", builtin.display())]);
    let place = tempfile::tempdir().unwrap();
    let work = place.path();
    // The hub's tools look for a folder of a repository's name before they ask the hub.
    write_datasets(work);
    let tokenizer = work.join(MODEL);
    fs::create_dir_all(&tokenizer).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(builtin.join(name), tokenizer.join(name)).unwrap();
    }
    let run = |recipe: &str, options: &[&str]| {
        let output = Command::new(&python)
            .args(["-m", &format!("tinker_cookbook.recipes.{recipe}")])
            .args(options)
            .current_dir(work)
            .env("TINKER_BASE_URL", &server.url)
            .env("TINKER_API_KEY", "tml-test")
            .env("HF_HOME", work.join("hf"))
            .env("HF_HUB_OFFLINE", "1")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{recipe}: {errors}");
    };

    let options = [
        "log_path=sl",
        "batch_size=8",
        "learning_rate=1e-2",
        "train_on_what=last_assistant_message",
    ];
    run("sl_loop", &options);
    let losses = column(&work.join("sl/metrics.jsonl"), "train_mean_nll");
    assert_eq!(losses.len(), ROWS / 8);
    assert!(losses[losses.len() - 1] < 0.1 * losses[0], "{losses:?}");
    let learned = last(&work.join("sl/checkpoints.jsonl"));
    assert_eq!(learned["name"], "final");

    // The other loop begins where this one ended: it finds a checkpoint in its folder.
    fs::create_dir(work.join("rl")).unwrap();
    let begin = json!({"name": "begin", "batch": 0, "state_path": learned["state_path"]});
    fs::write(work.join("rl/checkpoints.jsonl"), format!("{begin}\n")).unwrap();
    let options = [
        "log_path=rl",
        "batch_size=4",
        "max_tokens=24",
        "max_steps=4",
    ];
    run("rl_loop", &options);
    let rewards = column(&work.join("rl/metrics.jsonl"), "reward/total");
    assert_eq!(rewards.len(), 4);
    assert!(
        rewards.iter().any(|mean| *mean > 0.0 && *mean < 1.0),
        "{rewards:?}"
    );
    let last = last(&work.join("rl/checkpoints.jsonl"));
    assert_eq!(last["name"], "final");
    let run = last["sampler_path"].as_str().unwrap().split('/').nth(2);
    let found = http::get(&server.url, &format!("training_runs/{}", run.unwrap()));
    assert_eq!(found.json()["base_model"], MODEL);
}

const ROWS: usize = 64 * 8;

/// Files with the columns of the real ones.
fn write_datasets(work: &Path) {
    let lines =
        |rows: Vec<Value>| -> String { rows.iter().map(|row| format!("{row}\n")).collect() };
    let question = |index: usize| format!("What is {} plus {}?", index % 3, index % 2);
    let robots = (0..ROWS).map(|index| {
        let asked = question(index) + SUFFIX;
        let answer = format!("\\boxed{{{}}}", index % 4);
        let shot = SHOT.map(|(role, content)| json!({"role": role, "content": content}));
        let mut messages = shot.to_vec();
        messages.push(json!({"role": "user", "content": asked}));
        messages.push(json!({"role": "assistant", "content": answer}));
        json!({"prompt": asked, "prompt_id": index.to_string(), "messages": messages, "category": "Closed QA"})
    });
    let robots: Vec<Value> = robots.collect();
    let folder = work.join("HuggingFaceH4/no_robots");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("test.jsonl"), lines(robots[..2].to_vec())).unwrap();
    fs::write(folder.join("train.jsonl"), lines(robots)).unwrap();

    let school = (0..ROWS / 2).map(|index| {
        let answer = format!("One adds them.\n#### {}", index % 3 + index % 2);
        json!({"question": question(index), "answer": answer})
    });
    let school: Vec<Value> = school.collect();
    let folder = work.join("openai/gsm8k");
    fs::create_dir_all(folder.join("main")).unwrap();
    let card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train.jsonl\n  - split: test\n    path: main/test.jsonl\n---\n";
    fs::write(folder.join("README.md"), card).unwrap();
    fs::write(folder.join("main/test.jsonl"), lines(school[..2].to_vec())).unwrap();
    fs::write(folder.join("main/train.jsonl"), lines(school)).unwrap();
}

fn rows(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let rows = text.lines().map(serde_json::from_str);
    rows.map(Result::unwrap).collect()
}

fn column(file: &Path, name: &str) -> Vec<f64> {
    let rows = rows(file);
    rows.iter().filter_map(|row| row[name].as_f64()).collect()
}

fn last(file: &Path) -> Value {
    rows(file).pop().unwrap()
}
