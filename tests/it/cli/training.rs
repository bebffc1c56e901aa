//! `tinker train`, `tinker runs` and `tinker cost` against the embedded engine.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tinker::LoraConfig;
use tinker::local::LocalServer;
use tinker::text::data::{Comparison, RenderOptions, Row as _, permutation};
use tinker::text::{Message, Renderer};
use tinker::train::{Batches, Dpo, Existing, Model, Run, RunReader};

use super::Desk;
use crate::support::local;

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
    let curves = desk.run(&["-f", "json", "runs", "plot", "run"]).json();
    let curve = &curves["curves"][0];
    assert_eq!(
        (&curve["run"], &curve["metric"]),
        (&json!("run"), &json!("train_mean_nll"))
    );
    let steps: Vec<&Value> = curve["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| &point[0])
        .collect();
    assert_eq!(steps, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
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

/// The file is shuffled once, and again in each epoch.
#[test]
fn conversations_come_in_the_order_of_the_cookbook() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let chat = |index: usize| {
        json!({"messages": [{"role": "user", "content": "say"},
            {"role": "assistant", "content": "x".repeat(index + 1)}]})
    };
    write(&desk, "chats.jsonl", &(0..5).map(chat).collect::<Vec<_>>());
    let args = ["train", "sft", "chats.jsonl", "-o", "run", "-f", "json"];
    let steps = ["--epochs", "2", "--batch-size", "1"];
    let rows = desk.run(&[&args[..], &steps, &COMMON[..]].concat()).ok();
    let tokens: Vec<u64> = rows
        .lines()
        .map(|row| serde_json::from_str::<Value>(row).unwrap()["num_tokens"].as_u64())
        .collect::<Option<_>>()
        .unwrap();
    let shortest = tokens.iter().min().unwrap();
    let trained: Vec<u64> = tokens.iter().map(|count| count - shortest).collect();
    // numpy.random.default_rng(seed).permutation(5): of seed 0, then of each epoch.
    let shuffled = permutation(5, 0);
    let epochs = [permutation(5, 0), permutation(5, 1)].concat();
    let expected: Vec<u64> = epochs.iter().map(|at| shuffled[*at] as u64).collect();
    assert_eq!(trained, expected);
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
    // As Python reads it.
    let question = r#"{"prompt": "1+1", "prompt": "2+2", "answer": "4", "seen": NaN}"#;
    fs::write(desk.path().join("q.jsonl"), question).unwrap();
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

    // A reward that is no number is the grader's fault, and said before it spoils a group.
    let grader = "command=echo nan";
    let options = ["--max-tokens", "4", "--grader", grader, "--overwrite"];
    let spoilt = train("rl", "q.jsonl", &options).failed(1);
    assert!(
        spoilt.contains("reward") && spoilt.contains("NaN"),
        "{spoilt}"
    );
}

/// The likelihoods of whole answers are compared, each token of which counts the same.
#[test]
fn long_answers_are_preferred_by_all_their_tokens() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let (prompt, chosen, rejected) = ("hi", "hello, and welcome", "go");
    let pair = json!({"prompt": prompt, "chosen": chosen, "rejected": rejected});
    write(&desk, "pairs.jsonl", &[pair]);
    let args = ["train", "dpo", "pairs.jsonl", "-o", "told", "--seed", "3"];
    let steps = ["--epochs", "2", "--batch-size", "1"];
    desk.run(&[&args[..], &steps, &COMMON[..]].concat()).ok();

    let service = local::service(&server);
    let sampler = service.create_sampling_client(MODEL).unwrap();
    let renderer = Renderer::named("role_colon", &sampler.tokenizer().unwrap()).unwrap();
    let row = json!({"label": "A", "comparison": {
        "prompt_conversation": [Message::user(prompt)],
        "completion_A": [Message::assistant(chosen)],
        "completion_B": [Message::assistant(rejected)]}});
    let rows = vec![Comparison::read(&row.to_string()).unwrap()];
    let data = renderer.datums(rows, RenderOptions::default()).unwrap();
    let mut run = Run::open(desk.path().join("own"), Existing::Raise).unwrap();
    Dpo::new(Model::new(MODEL).with_lora(LoraConfig::rank(2).with_seed(3)))
        .with_learning_rate(1e-3)
        .with_epochs(2)
        .train(&service, &mut run, &Batches::of_pairs(data, 1).unwrap())
        .unwrap();
    let reward = |folder: &str| {
        let read = RunReader::open(desk.path().join(folder)).unwrap();
        read.metrics[1].number("chosen_reward").unwrap()
    };
    assert_eq!(reward("told"), reward("own"));
}

#[test]
fn every_kind_keeps_lines_for_evaluation_and_refuses_what_it_does_not_heed() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let pair = json!({"prompt": "hi", "chosen": "hello", "rejected": "go"});
    write(&desk, "dpo.jsonl", &vec![pair; 3]);
    let question = json!({"prompt": "2+2", "answer": "4"});
    write(&desk, "rl.jsonl", &vec![question.clone(); 3]);
    write(&desk, "distill.jsonl", &vec![question; 3]);
    write(&desk, "sft.jsonl", &chats(3));
    let train = |kind: &str, more: &[&str]| {
        let file = format!("{kind}.jsonl");
        let args = ["train", kind, &file, "-o", kind, "--batch-size", "1"];
        desk.run(&[&args[..], &COMMON[..], more].concat())
    };
    let answers = ["--max-tokens", "4", "--group-size", "2"];
    let taught = [&answers[..], &["--teacher", MODEL]].concat();
    let kinds: [(&str, &[&str], &str, &str); 4] = [
        ("sft", &[], "test/nll", "--beta=1"),
        ("dpo", &[], "test/nll", "--group-size=2"),
        ("rl", &answers, "test/env/all/total_episodes", "--teacher=x"),
        (
            "distill",
            &taught,
            "test/env/all/total_episodes",
            "--train-on=all_tokens",
        ),
    ];
    for (kind, options, metric, unheeded) in kinds {
        let kept = [options, &["--test-size", "1", "--eval-every", "1"]].concat();
        train(kind, &kept).ok();
        let shown = desk.run(&["-f", "json", "runs", "show", kind]).json();
        assert_eq!(shown["steps"], 2, "{kind}: {shown}");
        let metrics = shown["metrics"].as_array().unwrap();
        assert!(metrics.contains(&json!(metric)), "{kind}: {shown}");
        let refused = train(kind, &[options, &["--resume", unheeded]].concat()).failed(2);
        let (option, _) = unheeded.split_once('=').unwrap();
        assert!(refused.contains(option), "{kind}: {refused}");
        let all = [options, &["--resume", "--test-size=3"]].concat();
        let refused = train(kind, &all).failed(2);
        assert!(refused.contains("nothing to train on"), "{kind}: {refused}");
    }
    for kind in ["sft", "dpo", "rl", "distill"] {
        let said = desk.run(&["train", kind]).failed(2);
        assert!(
            said.contains(&format!("'tinker train {kind} --help'")),
            "{said}"
        );
    }
    for (kind, senseless) in [
        ("sft", "--epochs=0"),
        ("dpo", "--batch-size=0"),
        ("rl", "--batch-size=0"),
        ("rl", "--group-size=0"),
        ("rl", "--max-tokens=0"),
        ("rl", "--kl=-1"),
        ("distill", "--kl=-1"),
    ] {
        let refused = train(kind, &["--resume", senseless]).failed(2);
        let (option, _) = senseless.split_once('=').unwrap();
        assert!(refused.contains(option), "{kind}: {refused}");
    }
    let many = [
        "--overwrite",
        "--epochs=18446744073709551615",
        "--max-steps=1",
    ];
    train("sft", &many).ok();
    train("rl", &[&many[..], &answers].concat()).ok();
}

/// Whoever was told that a checkpoint is being saved is told that it was not.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_cannot_be_saved_on_ctrl_c_is_told_of() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "rl.jsonl", &[json!({"prompt": "2+2"})]);
    let grader = "command=mkdir run/checkpoints.jsonl 2>&- && kill -INT $PPID; echo 0";
    let args = ["train", "rl", "rl.jsonl", "-o", "run", "--grader", grader];
    let endless = ["--epochs", "1000000", "--save-every", "0"];
    let answers = ["--max-tokens", "4", "--group-size", "1"];
    let said = desk.run(&[&args[..], &endless, &answers, &COMMON[..]].concat());
    assert!(said.stderr.contains("checkpoints.jsonl"), "{said:?}");
    assert!(said.stderr.contains("Saving a checkpoint"), "{said:?}");
    assert_eq!(said.exit, Some(130), "{said:?}");
}

#[test]
fn a_run_is_not_deleted_for_one_that_cannot_begin() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(2));
    let train = |file: &str, more: &[&str]| {
        desk.run(&[&["train", "sft", file, "-o", "run"], &COMMON[..], more].concat())
    };
    train("chats.jsonl", &[]).ok();
    // What it took is what was foretold.
    let layout = ["--model", MODEL, "--renderer", "role_colon"];
    let cost = |of: &[&str]| desk.run(&[&["-f", "json", "cost"], of].concat()).json();
    let foretold = cost(&[&["chats.jsonl"], &layout[..]].concat());
    assert_eq!(foretold["train_tokens"], cost(&["run"])["train_tokens"]);
    fs::write(desk.path().join("bad.jsonl"), "{\"messages\": 3}\n").unwrap();
    for (file, more) in [
        ("nosuch.jsonl", vec!["--overwrite"]),
        ("bad.jsonl", vec!["--overwrite"]),
        ("chats.jsonl", vec!["--overwrite", "--tokenizer", "nosuch"]),
    ] {
        train(file, &more).failed(1);
        let shown = desk.run(&["-f", "json", "runs", "show", "run"]).json();
        assert_eq!(shown["status"], "completed", "{file} {more:?}: {shown}");
    }
}

#[test]
fn a_run_that_cannot_begin_is_not_in_the_way_of_the_next() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(2));
    let train = |more: &[&str]| {
        let args = ["train", "sft", "chats.jsonl", "-o", "run"];
        desk.run(&[&args[..], &COMMON[..], more].concat())
    };
    let nosuch = "tinker://nosuch/weights/final";
    train(&["--load-checkpoint", nosuch]).failed(1);
    assert_eq!(fs::read_dir(desk.path().join("run")).unwrap().count(), 0);
    train(&[]).ok();
    // What has begun stays.
    train(&["--resume", "--load-checkpoint", nosuch]).ok();
    assert!(desk.path().join("run/config.json").exists());
}

/// Training on `chats.jsonl` under way, with its messages in a pipe.
fn start(desk: &Desk, more: &[&str]) -> Child {
    let args = [
        "train",
        "sft",
        "chats.jsonl",
        "-o",
        "run",
        "--batch-size",
        "1",
    ];
    desk.command(&[&args[..], &COMMON[..], more].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The reader of its messages goes away, as `2>&1 | head -1` does.
#[test]
fn training_goes_on_when_nobody_listens() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(4));
    let mut child = start(&desk, &[]);
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let shown = desk.run(&["-f", "json", "runs", "show", "run"]).json();
    assert_eq!(
        (&shown["status"], &shown["steps"]),
        (&json!("completed"), &json!(4))
    );
}

/// Who shuts a machine down sends this signal, and a kill soon after.
#[cfg(unix)]
#[test]
fn a_request_to_terminate_saves_a_checkpoint() {
    use std::io::{BufRead, BufReader};

    use rustix::process::{Pid, Signal, kill_process};

    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(2));
    let endless = ["--epochs", "1000000", "--save-every", "0"];
    let mut child = start(&desk, &endless);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let step = lines.find(|line| line.as_ref().unwrap().contains("step 0"));
    assert!(step.is_some());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // It goes on writing until it has saved.
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let shown = desk.run(&["-f", "json", "runs", "show", "run"]).json();
    let saved = shown["checkpoints"].as_array().unwrap();
    assert_eq!(saved.len(), 1, "{shown}");
    assert_eq!(
        saved[0]["batch"].as_u64().map(|batch| batch % 2),
        shown["steps"].as_u64().map(|steps| steps % 2)
    );
}

#[test]
fn json_is_json_whatever_the_numbers() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    write(&desk, "chats.jsonl", &chats(2));
    // Nothing of the answers is left to train on: the mean over no tokens is no number.
    let args = [
        "-f",
        "json",
        "train",
        "sft",
        "chats.jsonl",
        "-o",
        "run",
        "--max-length",
        "2",
    ];
    let rows = desk.run(&[&args[..], &COMMON[..]].concat()).ok();
    let tail = desk.run(&["-f", "json", "runs", "tail", "run"]).ok();
    for line in rows.lines().chain(tail.lines()) {
        let row: Value = serde_json::from_str(line).unwrap();
        assert_eq!(row["train_mean_nll"], Value::Null, "{row}");
    }
    let shown = desk.run(&["-f", "json", "runs", "show", "run"]).json();
    assert_eq!(shown["last"]["step"], 0, "{shown}");
}

#[test]
fn a_run_that_has_no_step_yet_has_an_empty_tail() {
    let desk = Desk::bare();
    fs::create_dir(desk.path().join("run")).unwrap();
    fs::write(desk.path().join("run/config.json"), "{}").unwrap();
    let tail = desk.run(&["runs", "tail", "run", "--no-follow"]).ok();
    assert_eq!(tail, "");
    // What it began with is nothing to sample from.
    let reference = r#"{"name": "reference", "batch": 0, "sampler_path": "tinker://a:train:0/sampler_weights/r"}"#;
    fs::write(desk.path().join("run/checkpoints.jsonl"), reference).unwrap();
    let shown = desk.run(&["runs", "show", "run"]).ok();
    assert!(!shown.contains("Sample from"), "{shown}");
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
