//! The examples, shortened, on the embedded server: what they claim is asserted.

use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tinker::local::{Fault, LocalServer};

/// An example's program, which plain `cargo test` builds beside the tests. `cargo test --test it`
/// alone does not, so the missing ones are built here.
fn example(name: &str) -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    let tests = std::env::current_exe().unwrap();
    let profile = tests.ancestors().nth(2).unwrap();
    let program = profile.join("examples").join(name);
    if !program.exists() {
        BUILT.get_or_init(|| {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "--offline", "--examples"]);
            if profile.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the examples build");
        });
    }
    let mut command = Command::new(program);
    command.env_clear();
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Runs a program that must succeed; its output.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The number after a word.
#[track_caller]
fn after(text: &str, word: &str) -> f64 {
    let (_, rest) = text
        .split_once(word)
        .unwrap_or_else(|| panic!("no {word:?} in {text}"));
    let number = rest.split_whitespace().next().unwrap();
    number.trim_end_matches(',').parse().unwrap()
}

fn loadgen(server: &LocalServer, args: &[&str]) -> Command {
    let mut command = example("loadgen");
    command.args(args);
    command.env("TINKER_BASE_URL", server.base_url());
    command.env("TINKER_API_KEY", "tml-local");
    command
}

fn line(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

/// Lines of code, without comments and those that the documentation hides.
fn lines_of_code(code: &str) -> usize {
    let shown =
        |line: &&str| !["//", "# "].iter().any(|mark| line.starts_with(mark)) && !line.is_empty();
    code.lines().map(str::trim).filter(shown).count()
}

#[test]
fn programs_are_as_short_as_promised() {
    let readme = include_str!("../../README.md");
    let programs = [
        ("## From a file of conversations", 25),
        ("## Reinforcement learning", 40),
    ];
    for (title, most) in programs {
        let (_, rest) = readme.split_once(title).unwrap();
        let (_, code) = rest.split_once("```rust,no_run\n").unwrap();
        let (code, _) = code.split_once("```").unwrap();
        assert!(code.contains(".train(&service, &mut run,"), "{code}");
        assert!(lines_of_code(code) <= most, "{title}");
    }
    // Only rustdoc hides lines, and it does not show the README.
    let blocks = readme.split("```").skip(1).step_by(2);
    for code in blocks.filter(|block| block.starts_with("rust")) {
        assert!(!code.lines().any(|line| line.starts_with("# ")), "{code}");
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "rs") {
            let code = std::fs::read_to_string(&path).unwrap();
            assert!(lines_of_code(&code) < 100, "{}", path.display());
        }
    }
}

#[test]
fn quickstart_learns_and_saves() {
    let text = succeed(example("quickstart").arg("12"));
    assert!(text.contains("embedded engine"), "{text}");
    let losses = text.lines().filter(|line| line.starts_with("step")).count();
    assert_eq!(losses, 2, "plain lines where there is no terminal: {text}");
    let (_, loss) = text.split_once("loss per token: ").unwrap();
    let before: f64 = loss.split_whitespace().next().unwrap().parse().unwrap();
    assert!(after(loss, "before,") < before, "{text}");
    assert!(text.contains("saved as tinker://"), "{text}");
}

/// The two numbers of `first -> last` after a word.
#[track_caller]
fn change(text: &str, word: &str) -> (f64, f64) {
    (
        after(text, word),
        after(text.split_once(word).unwrap().1, "->"),
    )
}

fn folder() -> (tempfile::TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("run").display().to_string();
    (root, path)
}

#[test]
fn sft_jsonl_halves_its_loss_and_resumes() {
    let (_root, path) = folder();
    let text = succeed(example("sft_jsonl").args([&path, "18"]));
    let (first, last) = change(&text, "test/nll");
    assert!(last < first / 2.0, "{text}");
    let plot = std::fs::read_to_string(format!("{path}/loss.svg")).unwrap();
    assert!(plot.contains("test/nll"));
    let text = succeed(example("sft_jsonl").args([&path, "24"]));
    assert!(
        text.contains("24 steps"),
        "it goes on from where it was: {text}"
    );
    let metrics = std::fs::read_to_string(format!("{path}/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 24, "each step once");
    let first = metrics.lines().position(|line| line.contains("\"final\""));
    assert_eq!(first, Some(23), "the run went on after step 17");
}

#[test]
fn rl_arithmetic_raises_its_reward() {
    let (_root, path) = folder();
    let text = succeed(example("rl_arithmetic").args([&path, "12"]));
    let (first, last) = change(&text, "env/all/reward/total");
    assert!(last > first, "{text}");
}

#[test]
fn dpo_learns_to_prefer() {
    let (_root, path) = folder();
    let text = succeed(example("dpo").args([&path, "8"]));
    let (first, last) = change(&text, "dpo_loss");
    assert!(first > 0.69 && last < first / 2.0, "{text}");
}

#[test]
fn distill_comes_closer_to_its_teacher() {
    let (_root, path) = folder();
    let text = succeed(example("distill").args([&path, "6"]));
    let (_, line) = text.split_once("distance from the teacher: ").unwrap();
    let before: f64 = line.split_whitespace().next().unwrap().parse().unwrap();
    assert!(after(line, "before,") < before, "{text}");
}

#[test]
fn custom_loss_stops_where_it_is_told_to() {
    let text = succeed(example("custom_loss").arg("60"));
    let reached = after(&text, "log probability of the answer:");
    assert!((reached + 0.5).abs() < 0.1, "{text}");
}

#[test]
fn batch_sampling_answers_every_prompt() {
    let text = succeed(example("batch_sampling").arg("40"));
    assert!(
        text.contains("40 answers,") && text.contains(" 0 failed"),
        "{text}"
    );
}

#[test]
fn resume_equals_one_go() {
    let (_root, path) = folder();
    let text = succeed(example("resume").arg(&path));
    assert!(after(&text, "largest difference:") <= 1e-5, "{text}");
}

#[test]
fn chat_answers_each_line() {
    use std::io::Write;
    use std::process::Stdio;

    let mut command = example("chat");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"hello\nand again\n\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.ends_with("2 turns\n"),
        "{text}"
    );
}

#[test]
fn logprobs_agree_with_themselves() {
    let text = succeed(&mut example("logprobs"));
    let sum = after(&text, "log probability");
    assert!((sum - after(&text, "asked again")).abs() < 1e-3, "{text}");
    assert!(after(&text, "perplexity") > 1.0, "{text}");
}

#[test]
fn checkpoints_are_saved_listed_and_downloaded() {
    let (_root, path) = folder();
    let text = succeed(example("checkpoints").arg(&path));
    assert!(
        text.contains("/weights/step-1") && text.contains("/sampler_weights/step-1"),
        "{text}"
    );
    assert!(
        after(&text, "downloaded") > 0.0 && text.ends_with("1 checkpoint left\n"),
        "{text}"
    );
}

#[test]
fn many_models_all_learn() {
    let text = succeed(example("many_models").args(["3", "6"]));
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("->")).collect();
    assert_eq!(lines.len(), 3, "{text}");
    for line in lines {
        let (first, last) = change(line, "loss");
        assert!(last < first, "{line}");
    }
}

#[test]
fn faults_are_mended_or_named() {
    let text = succeed(&mut example("faults"));
    assert!(
        text.contains("mended:") && text.contains("too long"),
        "{text}"
    );
    assert!(text.ends_with("the next step went through\n"), "{text}");
}

#[test]
fn the_built_in_model_begins_as_it_was_made() {
    let text = succeed(example("builtin_model").arg("check"));
    assert!(text.ends_with("all of it begins as it should\n"), "{text}");
}

#[test]
fn loadgen_measures() {
    #[track_caller]
    fn check(server: &LocalServer, args: &[&str], units: f64, unit: &str) {
        let result = line(&succeed(&mut loadgen(server, args)));
        assert_eq!(result["workload"], args[0]);
        assert_eq!(result["units"], units);
        assert_eq!(result["unit"], unit);
        for figure in ["wall_s", "cpu_s", "peak_rss_mb", "base_rss_mb", "per_s"] {
            let value = result[figure].as_f64().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{figure}: {result}");
        }
        assert_eq!(args[0] == "train_loop", result["ms_per_step"].is_number());
    }
    let server = LocalServer::start().unwrap();
    let (prompt, tokens) = ("prompt=8", "tokens=4");
    check(
        &server,
        &["sample_many", "n=20", prompt, tokens],
        20.0,
        "samples",
    );
    let groups = ["sample_groups", "prompts=3", "samples=2", prompt, tokens];
    check(&server, &groups, 6.0, "samples");
    check(
        &server,
        &["fwdbwd_big", "datums=3", "tokens=5"],
        15.0,
        "tokens",
    );
    let training = ["train_loop", "steps=3", "datums=2", tokens];
    check(&server, &training, 3.0, "steps");
    check(&server, &["first_sample", prompt], 1.0, "samples");
    check(&server, &["idle", "seconds=0", prompt], 0.0, "seconds");
    for kind in ["kind=sample", "kind=fwdbwd"] {
        let result = line(&succeed(&mut loadgen(&server, &["decode", kind, "mb=1"])));
        assert!(result["units"].as_f64().unwrap() >= 1.0, "{result}");
    }
}

#[test]
fn loadgen_counts_what_faults_do() {
    let server = LocalServer::start().unwrap();
    let args = ["faults_sample", "n=30", "deadline=60", "prompt=8"];
    let result = line(&succeed(&mut loadgen(&server, &args)));
    assert_eq!(
        (&result["ok"], &result["failed"]),
        (&30.into(), &0.into()),
        "{result}"
    );
    assert!(result["threads_max"].as_u64().unwrap() > 0, "{result}");

    let refused = Fault::status("optim_step", 400).with_body(r#"{"detail": "no"}"#);
    server.add_fault(refused.with_times(1)).unwrap();
    let args = ["faults_train", "steps=4", "deadline=60"];
    let result = line(&succeed(&mut loadgen(&server, &args)));
    assert_eq!(
        (&result["ok"], &result["failed"]),
        (&3.into(), &1.into()),
        "{result}"
    );
    assert_eq!(
        result["errors"]["optim_step: BadRequest 400"], 1,
        "{result}"
    );
}

#[test]
fn loadgen_refuses_what_it_does_not_know() {
    let server = LocalServer::start().unwrap();
    for args in [
        &["no_such_workload"][..],
        &["idle", "seconds"],
        &["idle", "seconds=x"],
    ] {
        let output = run(&mut loadgen(&server, args));
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn interop_walks_through_every_step() {
    let server = LocalServer::start().unwrap();
    let mut command = example("interop");
    command.args([
        "--base-url",
        &server.base_url(),
        "--base-model",
        "tinker-local/tiny",
    ]);
    let text = succeed(&mut command);
    let steps: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for step in &steps {
        assert_eq!(step["ok"], true, "{step}");
        assert!(
            !step["detail"].as_str().unwrap().contains("not offered"),
            "{step}"
        );
    }
    let trained = steps
        .iter()
        .filter(|step| step["step"].as_str().unwrap().starts_with("train "));
    assert_eq!(trained.count(), 15 + 2, "{text}");
}

#[test]
fn interop_tells_what_is_missing_from_what_is_broken() {
    let server = LocalServer::start().unwrap();
    server.add_fault(Fault::status("sessions", 404)).unwrap();
    let interop = |model: &str| {
        let mut command = example("interop");
        command.args(["--base-url", &server.base_url(), "--base-model", model]);
        command
    };
    let text = succeed(&mut interop("tinker-local/tiny"));
    let steps = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let missing: Vec<Value> = steps
        .filter(|step| step["detail"] == "not offered (404)")
        .map(|mut step| step["step"].take())
        .collect();
    assert_eq!(missing, ["sessions"], "{text}");
    let output = run(&mut interop("no/such-model"));
    assert_eq!(output.status.code(), Some(1), "a model must exist");
}
