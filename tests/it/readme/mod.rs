//! The README's programs, to the letter: each runs in a folder of its own, and again where it has run.

use std::path::Path;
use std::process::Command;

use tinker::train::{RunReader, RunStatus};

#[allow(clippy::print_stdout, reason = "as it is printed")]
mod conversations {
    include!("conversations.rs");
    pub(super) const TEXT: &str = include_str!("conversations.rs");
    pub(super) fn run() -> anyhow::Result<()> {
        main()
    }
}

#[allow(clippy::print_stdout, reason = "as it is printed")]
mod rewards {
    include!("rewards.rs");
    pub(super) const TEXT: &str = include_str!("rewards.rs");
    pub(super) fn run() -> anyhow::Result<()> {
        main()
    }
}

const NAME: &str = "TINKER_TEST_README";

/// What another process does, where the program's relative paths lead to a folder of its own.
#[test]
fn child() {
    match std::env::var(NAME).as_deref() {
        Ok("conversations") => conversations::run().unwrap(),
        Ok("rewards") => rewards::run().unwrap(),
        _ => {}
    }
}

#[track_caller]
fn check(name: &str, text: &str, run: &str, steps: usize) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(package.join("README.md")).unwrap();
    let printed = format!("```rust,no_run\n{text}```\n");
    assert!(readme.contains(&printed), "the README prints {name}.rs");

    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("examples")).unwrap();
    let chats = "examples/chats.jsonl";
    std::fs::copy(package.join(chats), root.path().join(chats)).unwrap();
    for _ in 0..2 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "readme::child", "--nocapture"])
            .current_dir(root.path())
            .env(NAME, name)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let run = RunReader::open(root.path().join(run)).unwrap();
        assert_eq!(
            run.status(std::time::SystemTime::now()),
            RunStatus::Completed
        );
        assert_eq!(run.metrics.len(), steps, "each step once");
    }
}

#[test]
fn conversations_become_a_better_model() {
    check("conversations", conversations::TEXT, "runs/chats", 10);
}

#[test]
fn rewards_of_ones_own_are_learned() {
    check("rewards", rewards::TEXT, "runs/sums", 2);
}
