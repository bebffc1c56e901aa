//! Run folders of the Python cookbook, recorded in `tests/fixtures/train/runfiles`, and ours.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tinker::train::{
    CheckpointRecord, Existing, Row, RunFolder, RunKind, RunReader, RunStatus, Summary,
};

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/train/runfiles")
        .join(name)
}

#[test]
fn runs_of_the_python_cookbook_are_read() {
    #[track_caller]
    fn check(name: &str, kind: RunKind, steps: usize, loss: &str, last: &str) {
        let run = RunReader::open(recorded(name)).unwrap();
        assert_eq!(run.kind(), kind);
        assert_eq!(run.model(), Some("Qwen/Qwen3-8B"));
        assert_eq!(run.curve(loss).len(), steps);
        assert_eq!(run.last_checkpoint().unwrap().name, last);
        let later = SystemTime::now() + Duration::from_secs(100_000);
        assert_eq!(run.status(later), RunStatus::Completed);
        let summary = Summary::of(&run);
        assert_eq!(summary.steps, steps);
        assert!(summary.plots().count() > 0, "{summary}");
    }
    check("sl", RunKind::Supervised, 6, "train_mean_nll", "final");
    check("dpo", RunKind::Dpo, 3, "dpo_loss", "final");
    check("rl", RunKind::Rl, 3, "env/all/reward/total", "final");
}

#[test]
fn a_run_of_one_step_is_of_one_step() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("metrics.jsonl"), "{\"step\": 0}\n").unwrap();
    let summary = Summary::of(&RunReader::open(folder.path()).unwrap()).to_string();
    assert!(summary.contains(" of a model: 1 step in "), "{summary}");
}

#[test]
fn their_rows_are_written_as_they_were_read() {
    for name in ["sl", "dpo", "rl"] {
        let run = RunReader::open(recorded(name)).unwrap();
        let text = std::fs::read_to_string(recorded(name).join("checkpoints.jsonl")).unwrap();
        let lines: Vec<String> = run
            .checkpoints
            .iter()
            .map(|r| r.to_row().to_line())
            .collect();
        assert_eq!(lines, text.lines().collect::<Vec<_>>(), "{name}");
        // Numbers may be spelled differently (1e-05), names and order may not.
        let text = std::fs::read_to_string(recorded(name).join("metrics.jsonl")).unwrap();
        for (row, line) in run.metrics.iter().zip(text.lines()) {
            let names = |line: &str| line.replace(|c: char| "0123456789.e-+".contains(c), "");
            assert_eq!(names(&row.to_line()), names(line), "{name}");
            assert_eq!(Row::parse(&row.to_line()).unwrap(), *row);
        }
    }
}

/// Python writes numbers into its settings that JSON does not have.
#[test]
fn settings_without_bounds_are_read() {
    let root = tempfile::tempdir().unwrap();
    let config =
        r#"{"loss_fn": "ppo", "timeout": Infinity, "deep": [{"x": NaN}], "model_name": "m NaN"}"#;
    std::fs::write(root.path().join("config.json"), config).unwrap();
    let run = RunReader::open(root.path()).unwrap();
    assert_eq!((run.kind(), run.model()), (RunKind::Rl, Some("m NaN")));
    assert!(run.config["timeout"].is_null() && run.config["deep"][0]["x"].is_null());
}

/// A run that came to its end and was given more to do is under way again.
#[test]
fn a_run_that_goes_on_after_its_end_is_running() {
    for (epoch, batch) in [(Some(1), 0), (Some(0), 2), (None, 2)] {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(root.path(), Existing::Raise).unwrap();
        let log = |step: usize, of: u64| {
            let row = Row::new().with("step", step).with("epoch", of);
            folder.append_metrics(&row).unwrap();
        };
        log(0, 0);
        log(1, 0);
        let mut record = CheckpointRecord::new("final");
        (record.epoch, record.batch, record.is_final) = (epoch, Some(batch), true);
        folder.append_checkpoint(&record).unwrap();
        let status = || folder.read().unwrap().status(SystemTime::now());
        assert_eq!(status(), RunStatus::Completed, "{epoch:?} {batch}");
        log(2, epoch.unwrap_or(0));
        assert_eq!(status(), RunStatus::Running, "{epoch:?} {batch}");
    }
}

#[test]
fn rollout_summaries_are_read() {
    let run = RunReader::open(recorded("rl")).unwrap();
    let rows = run.rollouts(0, "train");
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0].number("total_reward"), Some(1.0));
}

#[test]
fn a_folder_of_runs_is_searched_two_levels_deep() {
    let root = tempfile::tempdir().unwrap();
    for path in ["a", "b/c", "b/d/e", "f"] {
        std::fs::create_dir_all(root.path().join(path)).unwrap();
    }
    for path in ["a", "b/c", "b/d/e"] {
        std::fs::write(root.path().join(path).join("metrics.jsonl"), "").unwrap();
    }
    let found = RunReader::find(root.path());
    assert_eq!(found, [root.path().join("a"), root.path().join("b/c")]);
    assert!(RunReader::open(root.path().join("f")).is_err());
}
