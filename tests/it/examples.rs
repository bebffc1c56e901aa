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
    rest.split_whitespace().next().unwrap().parse().unwrap()
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
