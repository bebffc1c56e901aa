//! `tinker train`, `tinker runs` and `tinker cost` against the embedded engine.

use std::fs;

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::Desk;

const MODEL: &str = "tinker-local/tiny";

fn write(desk: &Desk, name: &str, lines: &[Value]) {
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(desk.path().join(name), text.join("\n")).unwrap();
}

fn chats(count: usize) -> Vec<Value> {
    (0..count)
        .map(|index| {
            json!({"messages": [{"role": "user", "content": format!("say {index}")},
                {"role": "assistant", "content": format!("{index}!")}]})
        })
        .collect()
}

const COMMON: [&str; 8] = [
    "--model",
    MODEL,
    "--renderer",
    "role_colon",
    "--rank",
    "2",
    "--learning-rate",
    "1e-3",
];

#[test]
fn conversations_are_trained_on_and_runs_looked_at() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(8));
    fs::write(
        desk.path().join("t.toml"),
        "epochs = 2\nbatch_size = 2\ntest_size = 2\n",
    )
    .unwrap();
    let train = |more: &[&str]| {
        let args = [
            &[
                "train",
                "sft",
                "chats.jsonl",
                "-o",
                "run",
                "--config",
                "t.toml",
            ],
            &COMMON[..],
            more,
        ]
        .concat();
        desk.run(&args)
    };
    let said = train(&["--max-steps", "3"]);
    assert!(
        said.stderr.contains("step 0  ") && said.stderr.contains("train_mean_nll"),
        "{said:?}"
    );
    assert!(said.stderr.contains("tinker chat tinker://"), "{said:?}");
    said.ok();
    let again = train(&[]).failed(1);
    assert!(again.contains("--resume"), "{again}");
    let said = train(&["--overwrite", "-f", "json", "--max-steps", "2"]);
    let rows = said.ok();
    let rows = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps: Vec<u64> = rows.map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [0, 1]);
    train(&["--overwrite"]).ok();

    let shown = desk.run(&["-f", "json", "runs", "show", "run"]).json();
    assert_eq!(
        (shown["kind"].as_str(), shown["steps"].as_u64()),
        (Some("sl"), Some(6))
    );
    assert_eq!(shown["status"], "completed");
    let table = desk.run(&["runs", "show", "run"]).ok();
    assert!(
        table.contains("train_mean_nll") && table.contains("Sample from"),
        "{table}"
    );
    let listed = desk.run(&["-f", "json", "runs", "ls", "."]).json();
    assert_eq!(listed["runs"][0]["steps"], 6);
    let tail = desk.run(&["runs", "tail", "run", "-n", "2"]).ok();
    assert_eq!(tail.lines().count(), 2, "{tail}");
    let drawn = desk.run(&["runs", "plot", "run"]).ok();
    assert!(
        drawn.contains("train_mean_nll") && drawn.lines().count() > 8,
        "{drawn}"
    );
    desk.run(&["runs", "plot", "run", "--svg", "p.svg"]).ok();
    assert!(
        fs::read_to_string(desk.path().join("p.svg"))
            .unwrap()
            .starts_with("<svg")
    );
    let unknown = desk.run(&["runs", "plot", "run", "-m", "nosuch"]).failed(1);
    assert!(unknown.contains("train_mean_nll"), "{unknown}");

    let cost = desk.run(&["-f", "json", "cost", "run"]).json();
    assert!(cost["train_tokens"].as_u64().unwrap() > 10, "{cost}");
    fs::write(
        desk.path().join("p.toml"),
        format!("[\"{MODEL}\"]\ntrain = 1000000.0\n"),
    )
    .unwrap();
    let priced = desk
        .run(&["-f", "json", "cost", "run", "--prices", "p.toml"])
        .json();
    assert_eq!(priced["dollars"].as_f64(), cost["train_tokens"].as_f64());
}

#[test]
fn preferences_rewards_and_teachers_are_learnt_from() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(
        &desk,
        "pairs.jsonl",
        &[json!({"prompt": "hi", "chosen": "hello", "rejected": "go"})],
    );
    let train = |kind: &str, file: &str, more: &[&str]| {
        let args = [
            &[
                "train",
                kind,
                file,
                "-o",
                kind,
                "--batch-size",
                "1",
                "--max-steps",
                "1",
            ],
            &COMMON[..],
            more,
        ]
        .concat();
        desk.run(&args)
    };
    train("dpo", "pairs.jsonl", &[]).ok();
    write(&desk, "q.jsonl", &[json!({"prompt": "2+2", "answer": "4"})]);
    let grader = "command=wc -c";
    train(
        "rl",
        "q.jsonl",
        &["--max-tokens", "4", "--group-size", "2", "--grader", grader],
    )
    .ok();
    train(
        "distill",
        "q.jsonl",
        &["--max-tokens", "4", "--group-size", "2", "--teacher", MODEL],
    )
    .ok();
    for kind in ["dpo", "rl", "distill"] {
        let shown = desk.run(&["-f", "json", "runs", "show", kind]).json();
        assert_eq!(shown["steps"], 1, "{kind}: {shown}");
    }
    let none = train("distill", "q.jsonl", &["--overwrite"]).failed(2);
    assert!(none.contains("--teacher"), "{none}");
}

#[test]
fn runs_of_the_python_cookbook_are_read() {
    let desk = Desk::bare();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/train/runfiles");
    let listed = desk.run(&["-f", "json", "runs", "ls", root]).json();
    let mut kinds: Vec<&str> = listed["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| run["kind"].as_str().unwrap())
        .collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["dpo", "rl", "sl"]);
    assert!(
        desk.run(&["runs", "show", &format!("{root}/rl")])
            .ok()
            .contains("env/all/reward/total")
    );
    let missing = desk.run(&["runs", "show", "nosuch"]).failed(1);
    assert!(missing.contains("nosuch"), "{missing}");
}
