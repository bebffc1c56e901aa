//! Runs that are interrupted and resumed end as if they had not been, on the embedded engine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tinker::local::LocalServer;
use tinker::train::rl::{Env, EnvBatches, EnvGroup, Grade, Mode, Problem, Rl};
use tinker::train::{
    AutoResume, Batches, Dpo, Existing, Interrupt, Logger, Model, NllEvaluator, Outcome, Report,
    Row, Run, RunReader, RunStatus, SavePolicy, Supervised,
};
use tinker::{Datum, LoraConfig, Result, ServiceClient, Tokenizer};

use crate::support::{local, logs};

/// Interrupts a run once it has logged a step.
struct StopAfter(usize, Interrupt);

impl Logger for StopAfter {
    fn metrics(&mut self, step: usize, _row: &Row) {
        if step >= self.0 {
            self.1.set();
        }
    }
}

pub(super) fn model(service: &ServiceClient) -> Model {
    let lora = LoraConfig::rank(4).with_seed(3);
    Model::new(local::base_model(service)).with_lora(lora)
}

pub(super) fn tokenizer(service: &ServiceClient) -> Tokenizer {
    let model = local::base_model(service);
    let sampler = service.create_sampling_client(model.as_str()).unwrap();
    sampler.tokenizer().unwrap()
}

pub(super) fn words(tokenizer: &Tokenizer, count: usize) -> Vec<Datum> {
    let words = [
        "ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay",
    ];
    let datum = |index: usize| {
        let prompt = tokenizer.encode(&format!("word {index}:")).unwrap();
        let answer = tokenizer.encode_plain(words[index % words.len()]).unwrap();
        Datum::supervised(&prompt, &answer)
    };
    (0..count).map(datum).collect()
}

/// Trains in one go, and in another folder with an interruption; both must log the same.
#[track_caller]
fn check(
    golden: &str,
    metrics: &[&str],
    train: impl Fn(&ServiceClient, &mut Run) -> Result<Report>,
) {
    let server = LocalServer::start().unwrap();
    let root = tempfile::tempdir().unwrap();
    let open = |name: &str| Run::open(root.path().join(name), Existing::Resume).unwrap();
    let service = local::service(&server);
    let whole = train(&service, &mut open("whole")).unwrap();
    assert_eq!(whole.outcome, Outcome::Completed);

    let interrupt = Interrupt::new();
    let stop = StopAfter(1, interrupt.clone());
    let mut run = open("parts").with_interrupt(interrupt).with_logger(stop);
    let part = train(&service, &mut run).unwrap();
    assert_eq!(part.outcome, Outcome::Interrupted);
    part.close(&service).unwrap();
    let read = RunReader::open(root.path().join("parts")).unwrap();
    assert_ne!(
        read.status(std::time::SystemTime::now()),
        RunStatus::Completed
    );

    let service = local::service(&server);
    let rest = train(&service, &mut open("parts")).unwrap();
    assert_eq!(rest.outcome, Outcome::Completed);
    same(root.path(), metrics);
    same_names(golden, &root.path().join("whole"));
    files_are_there(&root.path().join("whole"), golden == "rl");
    let again = train(&service, &mut open("parts")).unwrap();
    assert_eq!(
        again.outcome,
        Outcome::Completed,
        "a finished run has nothing to do"
    );
    same(root.path(), metrics);
}

#[track_caller]
pub(super) fn same(root: &Path, metrics: &[&str]) {
    let [whole, parts] = ["whole", "parts"].map(|name| RunReader::open(root.join(name)).unwrap());
    assert_eq!(
        parts.status(std::time::SystemTime::now()),
        RunStatus::Completed
    );
    assert_eq!(
        parts
            .metrics
            .iter()
            .filter(|row| row.is_true("final"))
            .count(),
        1
    );
    for name in metrics {
        let (whole, parts) = (whole.curve(name), parts.curve(name));
        assert!(!whole.is_empty(), "{name}");
        assert_eq!(whole.len(), parts.len(), "{name}: each step once");
        for (a, b) in whole.iter().zip(&parts) {
            assert_eq!(a.0, b.0, "{name}");
            assert!((a.1 - b.1).abs() <= 1e-5, "{name}: {whole:?} {parts:?}");
        }
    }
}

/// What is set otherwise than when the run began is in its log; a model that a checkpoint decides is
/// told of.
#[test]
fn a_run_that_goes_on_with_other_settings_says_so() {
    logs::capture();
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let data = || Batches::new(words(&tokenizer(&service), 4), 2).unwrap();
    let train = |rank: u32, steps: usize| {
        let mut run = Run::open(root.path(), Existing::Resume).unwrap();
        let model = Model::new(local::base_model(&service)).with_lora(LoraConfig::rank(rank));
        let settings = Supervised::new(model).with_epochs(2).with_max_steps(steps);
        settings.train(&service, &mut run, &data()).unwrap();
        std::fs::read_to_string(root.path().join("logs.log")).unwrap()
    };
    assert!(!train(4, 1).contains("Settings changed"));
    assert!(!train(4, 1).contains("Settings changed"));
    let log = train(2, 2);
    assert!(log.contains("Settings changed: "), "{log}");
    assert!(log.contains("lora_rank 4 -> 2"), "{log}");
    assert!(!logs::with("whatever is set: lora_rank 4 -> 2").is_empty());
}

/// Files name things as those of the Python cookbook do, in the same order.
#[track_caller]
fn same_names(golden: &str, path: &Path) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/train/runfiles");
    let lines = |folder: &Path, file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        match file.ends_with(".json") {
            true => vec![Row::parse(&text).unwrap()],
            false => text.lines().map(|line| Row::parse(line).unwrap()).collect(),
        }
    };
    let names = |row: &Row| -> Vec<String> {
        let names = row.iter().map(|(name, _)| name.to_owned());
        names.filter(|name| !name.starts_with("time/")).collect()
    };
    let both =
        |file: &str| [fixtures.join(golden), path.to_owned()].map(|f| names(&lines(&f, file)[0]));
    let [theirs, mut ours] = both("config.json");
    ours.retain(|name| name != "seed");
    assert_eq!(ours, theirs, "config.json");
    let [theirs, ours] = both("metrics.jsonl");
    let common = |names: &[String], other: &[String]| -> Vec<String> {
        names
            .iter()
            .filter(|name| other.contains(name))
            .cloned()
            .collect()
    };
    assert_eq!(
        common(&ours, &theirs),
        common(&theirs, &ours),
        "metrics.jsonl"
    );
    let missing = common(&theirs, &theirs)
        .into_iter()
        .filter(|name| !ours.contains(name));
    let missing: Vec<String> = missing.collect();
    let own = |name: &String| name.starts_with("env/all/") || name.contains("grad");
    assert!(missing.iter().all(own), "{missing:?}");
    let [theirs, ours] = both("timing_spans.jsonl");
    assert_eq!(ours, theirs, "timing_spans.jsonl");
    let [theirs, ours] =
        [&fixtures.join(golden), path].map(|folder| spans(&lines(folder, "metrics.jsonl")));
    // There they are measured also where there is nothing to do.
    let seldom = [
        "save_checkpoint",
        "save_checkpoint_async",
        "infrequent_evals",
    ];
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(
        missing.iter().all(|name| seldom.contains(&name.as_str())),
        "{missing:?}"
    );
    let last = |folder: &Path| names(lines(folder, "checkpoints.jsonl").last().unwrap());
    let mut ours = last(path);
    ours.retain(|name| name != "final");
    assert_eq!(ours, last(&fixtures.join(golden)), "checkpoints.jsonl");
}

/// What was timed in any step.
fn spans(rows: &[Row]) -> BTreeSet<String> {
    let names = rows
        .iter()
        .flat_map(|row| row.iter().map(|(name, _)| name.to_owned()));
    let timed = names.filter_map(|name| Some(name.strip_prefix("time/")?.to_owned()));
    timed
        .map(|name| name.split(':').next().unwrap().to_owned())
        .collect()
}

/// The files that say how a run was made and how it went.
#[track_caller]
fn files_are_there(path: &Path, rollouts: bool) {
    let text = |file: &str| std::fs::read_to_string(path.join(file)).unwrap();
    assert!(
        text("code.diff").starts_with("### "),
        "{}",
        text("code.diff")
    );
    let program = std::env::args().next().unwrap();
    let log = text("logs.log");
    let command = log.lines().next().unwrap();
    assert!(
        command.contains(" [INFO] ") && command.contains(&program),
        "{log}"
    );
    assert!(text("summary.txt").contains(" steps in "));
    let plot = text(if rollouts { "reward.svg" } else { "loss.svg" });
    assert!(plot.starts_with("<svg"), "{plot}");
    if rollouts {
        let file = "iteration_000000/train_rollout_summaries.jsonl";
        let fixture = "tests/fixtures/train/runfiles/rl";
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(fixture)
            .join(file);
        let theirs = std::fs::read_to_string(fixture).unwrap();
        let [theirs, ours] = [theirs, text(file)].map(|text| {
            let row = Row::parse(text.lines().next().unwrap()).unwrap();
            let names: Vec<String> = row.iter().map(|(name, _)| name.to_owned()).collect();
            let steps: serde_json::Value =
                serde_json::from_str(&row.get("steps").unwrap().to_string()).unwrap();
            let step: BTreeSet<String> = steps[0].as_object().unwrap().keys().cloned().collect();
            (names, step)
        });
        assert_eq!(ours, theirs, "{file}");
    }
}

#[test]
fn supervised() {
    check(
        "sl",
        &["train_mean_nll", "test/nll", "learning_rate"],
        supervise,
    );
}

pub(super) fn supervise(service: &ServiceClient, run: &mut Run) -> Result<Report> {
    let data = words(&tokenizer(service), 20);
    let test = NllEvaluator::new(data[..4].to_vec()).with_tokenizer(tokenizer(service));
    Supervised::new(model(service))
        .with_learning_rate(2e-3)
        .with_epochs(2)
        .with_submit_ahead(2)
        .with_save(SavePolicy::every(4).with_rolling(1).in_background())
        .with_eval_every(3)
        .with_evaluator(test)
        .train(service, run, &Batches::new(data, 4)?)
}

#[test]
fn preferences_keep_their_reference() {
    check("dpo", &["dpo_loss", "margin", "accuracy"], prefer);
}

pub(super) fn prefer(service: &ServiceClient, run: &mut Run) -> Result<Report> {
    let pairs = words(&tokenizer(service), 16);
    Dpo::new(model(service))
        .with_learning_rate(2e-3)
        .with_beta(0.5)
        .train(service, run, &Batches::of_pairs(pairs, 2)?)
}

pub(super) fn problems(service: &ServiceClient, count: usize) -> EnvBatches {
    let tokenizer = tokenizer(service);
    let problem = |index: usize| {
        let prompt = tokenizer.encode(&format!("word {index}:")).unwrap();
        let vowels = |text: &str| text.chars().filter(|c| "aeiou".contains(*c)).count();
        let problem = Problem::new(&tokenizer, prompt, move |answer| {
            Ok(Grade::reward(vowels(&answer.text) as f64)
                .with_metric("length", answer.tokens.len() as f64))
        });
        problem.with_group_size(4).into_group()
    };
    EnvBatches::new((0..count).map(problem), 2)
}

#[test]
fn reinforcement() {
    let names = [
        "env/all/reward/total",
        "env/all/length",
        "optim/kl_sample_train_v1",
        "optim/entropy",
    ];
    check("rl", &names, reinforce);
}

pub(super) fn reinforce(service: &ServiceClient, run: &mut Run) -> Result<Report> {
    Rl::new(model(service), 6)
        .with_learning_rate(2e-3)
        .with_substeps(2)
        .train(service, run, &problems(service, 8))
}

#[test]
fn every_mode_trains_on_every_batch() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let modes = [
        Mode::Stream { minibatches: 2 },
        Mode::Async {
            max_steps_off_policy: 1,
        },
    ];
    for mode in modes {
        let path = root.path().join(format!("{mode:?}").replace(' ', "-"));
        let mut run = Run::open(&path, Existing::Raise).unwrap();
        let data = problems(&service, 8);
        let report = Rl::new(model(&service), 6)
            .with_mode(mode)
            .train(&service, &mut run, &data);
        assert_eq!(report.unwrap().outcome, Outcome::Completed);
        let read = RunReader::open(&path).unwrap();
        let rewards = read.curve("env/all/reward/total");
        let steps: Vec<f64> = rewards.iter().map(|point| point.0).collect();
        assert_eq!(steps, [0.0, 1.0, 2.0, 3.0], "{mode:?}");
        assert_eq!(read.rollouts(0, "train").len(), 8, "{mode:?}");
        assert!(
            read.curve("sampling_client/step_max").len() == steps.len(),
            "{mode:?}"
        );
    }
}

/// Groups of one answer each that bear their number; the first is not begun before `begin` is
/// dropped or says so.
struct Numbered(usize, Tokenizer, Option<crossbeam_channel::Receiver<()>>);

impl EnvGroup for Numbered {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        if let Some(begin) = &self.2 {
            let _ = begin.recv();
        }
        let prompt = self.1.encode(&format!("word {}:", self.0))?;
        let graded = Problem::new(&self.1, prompt, |_| Ok(Grade::reward(1.0)));
        graded.with_group_size(1).into_group().envs()
    }

    fn tags(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
}

/// Ends a run after a step, and lets the group begin that was held back.
struct Release(StopAfter, Option<crossbeam_channel::Sender<()>>);

impl Logger for Release {
    fn metrics(&mut self, step: usize, row: &Row) {
        self.0.metrics(step, row);
        if self.0.1.is_set() {
            self.1.take();
        }
    }
}

#[test]
fn playing_ahead_trains_on_every_group_once() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    for max_steps_off_policy in [0, 9] {
        let path = root.path().join(max_steps_off_policy.to_string());
        let (release, begin) = crossbeam_channel::bounded(0);
        let interrupt = Interrupt::new();
        let stop = Release(StopAfter(1, interrupt.clone()), Some(release));
        let part = Run::open(&path, Existing::Raise).unwrap();
        let part = part.with_interrupt(interrupt).with_logger(stop);
        let rest = || Run::open(&path, Existing::Resume).unwrap();
        // Its first group is left behind when four others have been trained on.
        for (mut run, begin) in [(part, Some(begin)), (rest(), None)] {
            let tokenizer = tokenizer(&service);
            let group = |number: usize| {
                let begin = begin.clone().filter(|_| number == 0);
                Arc::new(Numbered(number, tokenizer.clone(), begin)) as Arc<dyn EnvGroup>
            };
            let data = EnvBatches::new((0..8).map(group), 2);
            let rl = Rl::new(model(&service), 2).with_mode(Mode::Async {
                max_steps_off_policy,
            });
            rl.train(&service, &mut run, &data).unwrap();
        }
        let read = RunReader::open(&path).unwrap();
        let rows = (0..4).flat_map(|step| read.rollouts(step, "train"));
        let mut trained: Vec<String> = rows
            .map(|row| row.get("tags").unwrap().to_string())
            .collect();
        trained.sort();
        let all: Vec<String> = (0..8).map(|number| format!("[\"{number}\"]")).collect();
        assert_eq!(trained, all, "off-policy by {max_steps_off_policy}");
        assert_eq!(read.curve("training_client/step").len(), 4);
    }
}

/// Stops the server once, after a step.
struct Outage(usize, Server);

type Server = Arc<Mutex<Option<LocalServer>>>;

impl Logger for Outage {
    fn metrics(&mut self, step: usize, _row: &Row) {
        if step == self.0 {
            let server = self.1.lock().unwrap().take();
            drop(server);
        }
    }
}

#[test]
fn a_server_that_dies_and_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let (runs, path) = (root.path().join("engine"), root.path().join("run"));
    let server = Server::default();
    let connect = || {
        let mut server = server.lock().unwrap();
        let start = || LocalServer::builder().data(&runs).start().unwrap();
        // It comes back at another address, so a step that was accepted is not waited for.
        let config = local::config(server.get_or_insert_with(start))
            .with_result_patience(Duration::from_secs(60));
        tinker::unversioned::client_with_clock(config, tinker::unversioned::Clock::recorded())
    };
    let mut outages = [3, usize::MAX].into_iter();
    let resume = AutoResume::attempts(1).with_pause(Duration::ZERO);
    let report = resume.run(connect, |service| {
        let outage = Outage(outages.next().unwrap(), server.clone());
        let mut run = Run::open(&path, Existing::Resume)?.with_logger(outage);
        let data = words(&tokenizer(service), 20);
        Supervised::new(model(service))
            .with_save(SavePolicy::every(2))
            .with_epochs(2)
            .train(service, &mut run, &Batches::new(data, 4)?)
    });
    assert_eq!(report.unwrap().outcome, Outcome::Completed);
    let steps: Vec<f64> = RunReader::open(&path)
        .unwrap()
        .curve("epoch")
        .iter()
        .map(|p| p.0)
        .collect();
    let expected: Vec<f64> = (0..10).map(f64::from).collect();
    assert_eq!(steps, expected, "each step once");
}
