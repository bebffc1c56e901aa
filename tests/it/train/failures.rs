//! What a run that breaks off leaves behind: every row and every checkpoint, none of them cut.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tinker::local::LocalServer;
use tinker::train::rl::{
    Env, EnvBatches, EnvDataset, EnvGroup, Grade, Mode, Problem, Rl, SelfDistillation,
};
use tinker::train::{
    Batches, Checkpoints, Dpo, Evaluator, Existing, Interrupt, Logger, Position, Report, Row, Run,
    RunFolder, RunReader, SavePolicy, Snapshot, Supervised,
};
use tinker::{Datum, Result, ServiceClient};

use super::resume::{model, problems, tokenizer, words};
use crate::support::fake::Fake;
use crate::support::local;

/// Notes what was written down too early: a checkpoint before the rows of the steps it holds. Whoever
/// goes on from there would never log them.
struct TooEarly(PathBuf, Arc<Mutex<Vec<String>>>);

impl Logger for TooEarly {
    fn metrics(&mut self, step: usize, _row: &Row) {
        let read = RunReader::open(&self.0).unwrap();
        let held = |name: &str| name.parse().unwrap_or(usize::MAX);
        let early = read
            .checkpoints
            .iter()
            .filter(|record| record.state_path.is_some() && held(&record.name) > step)
            .map(|record| format!("{} before row {step}", record.name));
        self.1.lock().unwrap().extend(early);
    }
}

fn policies() -> [SavePolicy; 3] {
    [
        SavePolicy::every(2),
        SavePolicy::every(2).with_rolling(1),
        SavePolicy::every(2).with_rolling(1).in_background(),
    ]
}

/// Every way in which sampling and training take turns.
fn modes(minibatches: usize) -> [Mode; 3] {
    [
        Mode::Sync,
        Mode::Stream { minibatches },
        Mode::Async {
            max_steps_off_policy: 1,
        },
    ]
}

#[track_caller]
fn check_order(name: &str, train: impl Fn(&ServiceClient, &mut Run, SavePolicy) -> Result<Report>) {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    for policy in policies() {
        let root = tempfile::tempdir().unwrap();
        let early = Arc::new(Mutex::new(Vec::new()));
        let mut run = Run::open(root.path(), Existing::Raise)
            .unwrap()
            .with_logger(TooEarly(root.path().to_owned(), early.clone()));
        train(&service, &mut run, policy.clone()).unwrap();
        let early = early.lock().unwrap();
        assert!(early.is_empty(), "{name}, {policy:?}: {early:?}");
        let read = RunReader::open(root.path()).unwrap();
        let last = read.metrics.last().unwrap();
        assert!(last.is_true("final"), "{name}: {last:?}");
        assert!(
            read.checkpoints
                .iter()
                .any(|record| record.name == "000002")
        );
    }
}

#[test]
fn rows_come_before_the_checkpoints_that_hold_their_steps() {
    check_order("supervised", |service, run, policy| {
        let data = Batches::new(words(&tokenizer(service), 6), 1)?;
        Supervised::new(model(service))
            .with_submit_ahead(2)
            .with_save(policy)
            .train(service, run, &data)
    });
    check_order("preferences", |service, run, policy| {
        let pairs = Batches::of_pairs(words(&tokenizer(service), 10), 1)?;
        Dpo::new(model(service))
            .with_save(policy)
            .train(service, run, &pairs)
    });
    for mode in modes(1) {
        check_order(&format!("{mode:?}"), |service, run, policy| {
            Rl::new(model(service), 2)
                .with_mode(mode)
                .with_save(policy)
                .train(service, run, &problems(service, 8))
        });
    }
}

/// Fails at the evaluation of this number.
struct FailAt(usize, AtomicUsize);

impl Evaluator for FailAt {
    fn evaluate(&self, _snapshot: &Snapshot<'_>) -> anyhow::Result<Row> {
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        ensure!(number != self.0, "the evaluator failed");
        Ok(Row::new())
    }
}

/// A run whose evaluator fails right after a checkpoint goes on with no row missing.
#[track_caller]
fn check_rows(train: impl Fn(&ServiceClient, &mut Run, FailAt) -> Result<Report>) {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let open = || Run::open(root.path(), Existing::Resume).unwrap();
    let failing = FailAt(3, AtomicUsize::new(0));
    assert!(train(&service, &mut open(), failing).is_err());
    let fine = FailAt(usize::MAX, AtomicUsize::new(0));
    train(&service, &mut open(), fine).unwrap();
    let rows = RunReader::open(root.path()).unwrap().metrics;
    let steps: Vec<f64> = rows.iter().filter_map(|row| row.number("step")).collect();
    assert_eq!(steps, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn no_row_is_missing_after_a_failure() {
    check_rows(|service, run, evaluator| {
        let data = Batches::new(words(&tokenizer(service), 6), 1)?;
        Supervised::new(model(service))
            .with_save(SavePolicy::every(3))
            .with_eval_every(1)
            .with_evaluator(evaluator)
            .train(service, run, &data)
    });
    check_rows(|service, run, evaluator| {
        Rl::new(model(service), 2)
            .with_save(SavePolicy::every(3))
            .with_eval_every(1)
            .with_evaluator(evaluator)
            .train(service, run, &problems(service, 12))
    });
}

#[test]
fn what_was_saved_in_the_background_is_written_down_before_the_next_save() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let policies = [
        SavePolicy::every(0).with_rolling(5),
        SavePolicy::every(5).in_background(),
    ];
    for policy in policies {
        let training = local::train(&service);
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(root.path(), Existing::Raise).unwrap();
        folder.append_metrics(&Row::new()).unwrap();
        let mut checkpoints = Checkpoints::new(&service, &training, &folder, policy.clone(), 0);
        let at = |steps: usize| Position {
            steps,
            ..Position::default()
        };
        assert_eq!(checkpoints.save_if_due(&at(5)).unwrap(), None);
        let begun = Instant::now();
        while folder.read().unwrap().checkpoints.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{policy:?}");
            checkpoints.save_if_due(&at(6)).unwrap();
        }
    }
}

#[track_caller]
fn check_torn(written: &[u8], mended: &str) {
    let root = tempfile::tempdir().unwrap();
    for file in ["checkpoints.jsonl", "metrics.jsonl", "timing_spans.jsonl"] {
        let path = root.path().join(file);
        fs::write(&path, written).unwrap();
        RunFolder::open(root.path(), Existing::Resume).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, mended, "{file}: {written:?}");
    }
}

#[test]
fn lines_that_were_cut_short_do_not_spoil_those_after_them() {
    check_torn(b"{\"name\": \"a\"}\n", "{\"name\": \"a\"}\n");
    check_torn(b"{\"name\": \"a\"}\n{\"na", "{\"name\": \"a\"}\n");
    check_torn(
        b"{\"name\": \"a\"}\n{\"name\": \"\xc3",
        "{\"name\": \"a\"}\n",
    );
    check_torn(b"{\"na", "");
    check_torn(b"", "");
    // Only the line's end is missing, as an editor leaves it.
    check_torn(b"{\"name\": \"a\"}", "{\"name\": \"a\"}\n");
}

#[test]
fn a_line_with_a_damaged_byte_hides_no_other() {
    let root = tempfile::tempdir().unwrap();
    let lines = b"{\"name\": \"000001\", \"state_path\": \"tinker://a\"}\n{\"name\": \"\xff\"}\n";
    fs::write(root.path().join("checkpoints.jsonl"), lines).unwrap();
    let rows = b"{\"step\": 0}\n{\"x\": \"\xff\"}\n{\"step\": 1}\n";
    fs::write(root.path().join("metrics.jsonl"), rows).unwrap();
    let read = RunReader::open(root.path()).unwrap();
    assert_eq!(read.last_checkpoint().unwrap().name, "000001");
    assert_eq!(read.metrics.len(), 2);
    let folder = RunFolder::open(root.path(), Existing::Resume).unwrap();
    folder.rewind(1).unwrap();
    let left = fs::read_to_string(root.path().join("metrics.jsonl")).unwrap();
    assert_eq!(left, "{\"step\": 0}\n");
}

/// A file that cannot be read is not the same as one that is not there: the run would begin anew.
#[test]
fn checkpoints_that_cannot_be_read_are_an_error() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("config.json"), "{}").unwrap();
    fs::create_dir(root.path().join("checkpoints.jsonl")).unwrap();
    for error in [
        Run::open(root.path(), Existing::Resume).unwrap_err(),
        RunReader::open(root.path()).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("checkpoints.jsonl"), "{error}");
    }
}

/// Groups whose rewards do not differ, but for one.
fn mostly_alike(service: &ServiceClient, count: usize) -> EnvBatches {
    let tokenizer = tokenizer(service);
    let group = |index: usize| {
        let prompt = tokenizer.encode(&format!("word {index}:")).unwrap();
        let calls = AtomicUsize::new(0);
        let problem = Problem::new(&tokenizer, prompt, move |_| {
            let differs = index == 1 && calls.fetch_add(1, Ordering::Relaxed) == 0;
            Ok(Grade::reward(if differs { 1.0 } else { 0.0 }))
        });
        problem.with_group_size(2).into_group()
    };
    EnvBatches::new((0..count).map(group), count)
}

#[test]
fn groups_without_differences_are_left_out_in_every_mode() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    for mode in modes(2) {
        let root = tempfile::tempdir().unwrap();
        let mut run = Run::open(root.path(), Existing::Raise).unwrap();
        let mut rl = Rl::new(model(&service), 2).with_mode(mode);
        rl.remove_constant_reward_groups = true;
        rl.train(&service, &mut run, &mostly_alike(&service, 4))
            .unwrap();
        let read = RunReader::open(root.path()).unwrap();
        let of = |name: &str| read.curve(name)[0].1;
        assert_eq!(of("env/all/total_episodes"), 2.0, "{mode:?}");
        assert_eq!(of("env/all/by_group/frac_mixed"), 1.0, "{mode:?}");
    }
}

/// What a function of the user's fails at is the user's to mend, and no bug to report.
#[test]
fn a_reward_that_fails_or_panics_is_a_function_that_failed() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let tokenizer = tokenizer(&service);
    for (panics, words) in [(false, "failed: out of paper"), (true, "panicked")] {
        let prompt = tokenizer.encode("word:").unwrap();
        let problem = Problem::new(&tokenizer, prompt, move |_| {
            assert!(!panics, "out of ink");
            anyhow::bail!("out of paper")
        });
        let root = tempfile::tempdir().unwrap();
        let mut run = Run::open(root.path(), Existing::Raise).unwrap();
        let problems = EnvBatches::new([problem.with_group_size(2).into_group()], 1);
        let error = Rl::new(model(&service), 2)
            .train(&service, &mut run, &problems)
            .unwrap_err();
        assert_eq!(error.remedy(), tinker::error::Remedy::FixInput, "{error:?}");
        let text = format!("{:#}", anyhow::Error::from(error));
        assert!(
            text.starts_with("your function failed: ") && text.contains(words),
            "{text}"
        );
    }
}

/// Asks for the end when it is begun.
struct Ending(Arc<dyn EnvGroup>, Interrupt);

impl EnvGroup for Ending {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        self.1.set();
        self.0.envs()
    }
}

#[test]
fn a_test_that_was_broken_off_is_not_logged() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    for mode in modes(1) {
        let root = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::new();
        let mut run = Run::open(root.path(), Existing::Raise)
            .unwrap()
            .with_interrupt(interrupt.clone());
        let tests = problems(&service, 8);
        let test = (0..4).flat_map(|batch| tests.batch(batch).unwrap());
        let test = test.map(|group| Arc::new(Ending(group, interrupt.clone())) as _);
        Rl::new(model(&service), 2)
            .with_mode(mode)
            .with_eval_every(1)
            .with_test(EnvBatches::new(test, 8))
            .train(&service, &mut run, &problems(&service, 4))
            .unwrap();
        let read = RunReader::open(root.path()).unwrap();
        assert!(read.metrics.is_empty(), "{mode:?}: {:?}", read.metrics);
        assert_eq!(read.last_checkpoint().unwrap().name, "000000", "{mode:?}");
    }
}

/// Groups that know more, for a teacher.
struct Told(Arc<dyn EnvGroup>, tinker::ModelInput);

impl EnvGroup for Told {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        self.0.envs()
    }

    fn teacher_prompt(&self) -> Option<tinker::ModelInput> {
        Some(self.1.clone())
    }
}

#[test]
fn a_resumed_student_has_the_teacher_of_its_checkpoint() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let train = |run: &mut Run, fails: usize| {
        let told = tinker::ModelInput::from_ints(tokenizer(&service).encode("told:").unwrap());
        let plain = problems(&service, 10);
        let groups = (0..5).flat_map(|batch| plain.batch(batch).unwrap());
        let groups = groups.map(|group| Arc::new(Told(group, told.clone())) as _);
        let mut distillation = SelfDistillation::default();
        (distillation.skip_first, distillation.sync_every) = (0, Some(2));
        Rl::new(model(&service), 2)
            .with_learning_rate(5e-3)
            .with_self_distillation(distillation)
            .with_save(SavePolicy::every(3))
            .with_eval_every(1)
            .with_evaluator(FailAt(fails, AtomicUsize::new(0)))
            .train(&service, run, &EnvBatches::new(groups, 2))
    };
    let root = tempfile::tempdir().unwrap();
    let open = |name: &str| Run::open(root.path().join(name), Existing::Resume).unwrap();
    train(&mut open("whole"), usize::MAX).unwrap();
    // The teacher changes after steps 2 and 4; the checkpoint to go on from is that of step 3.
    assert!(train(&mut open("parts"), 4).is_err());
    train(&mut open("parts"), usize::MAX).unwrap();
    super::resume::same(root.path(), &["sdft/mean_teacher_entropy"]);
}

/// A service that scores fewer tokens than it was sent is not believed.
#[test]
fn scores_of_some_targets_are_no_scores() {
    let data = [Datum::supervised(&[1], &[2, 3])];
    let fake = Fake::start();
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let batches = Batches::new(data.to_vec(), 1).unwrap();
    let trained = Supervised::new("some/model").train(&fake.service(), &mut run, &batches);
    let error = trained.unwrap_err();
    assert!(error.to_string().contains("2 targets"), "{error}");
}
