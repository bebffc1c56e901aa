//! Runs that are interrupted and resumed end as if they had not been, on the embedded engine.

use std::path::Path;

use tinker::local::LocalServer;
use tinker::train::rl::{EnvBatches, Grade, Mode, Problem, Rl};
use tinker::train::{
    Batches, Dpo, Existing, Interrupt, Logger, Model, NllEvaluator, Outcome, Report, Row, Run,
    RunReader, RunStatus, SavePolicy, Supervised,
};
use tinker::{Datum, LoraConfig, Result, ServiceClient, Tokenizer};

use crate::support::local;

/// Interrupts a run once it has logged a step.
struct StopAfter(usize, Interrupt);

impl Logger for StopAfter {
    fn metrics(&mut self, step: usize, _row: &Row) {
        if step >= self.0 {
            self.1.set();
        }
    }
}

fn model(service: &ServiceClient) -> Model {
    let lora = LoraConfig::rank(4).with_seed(3);
    Model::new(local::base_model(service)).with_lora(lora)
}

fn tokenizer(service: &ServiceClient) -> Tokenizer {
    let model = local::base_model(service);
    let sampler = service.create_sampling_client(model.as_str()).unwrap();
    sampler.tokenizer().unwrap()
}

fn words(tokenizer: &Tokenizer, count: usize) -> Vec<Datum> {
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
fn check(metrics: &[&str], train: impl Fn(&ServiceClient, &mut Run) -> Result<Report>) {
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
    let again = train(&service, &mut open("parts")).unwrap();
    assert_eq!(
        again.outcome,
        Outcome::Completed,
        "a finished run has nothing to do"
    );
    same(root.path(), metrics);
}

#[track_caller]
fn same(root: &Path, metrics: &[&str]) {
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

#[test]
fn supervised() {
    check(
        &["train_mean_nll", "test/nll", "learning_rate"],
        |service, run| {
            let data = words(&tokenizer(service), 20);
            Supervised::new(model(service))
                .with_learning_rate(2e-3)
                .with_epochs(2)
                .with_submit_ahead(2)
                .with_save(SavePolicy::every(4).with_rolling(1).in_background())
                .with_eval_every(3)
                .with_evaluator(NllEvaluator::new(data[..4].to_vec()))
                .train(service, run, &Batches::new(data, 4)?)
        },
    );
}

#[test]
fn preferences_keep_their_reference() {
    check(&["dpo_loss", "margin", "accuracy"], |service, run| {
        let pairs = words(&tokenizer(service), 16);
        Dpo::new(model(service))
            .with_learning_rate(2e-3)
            .with_beta(0.5)
            .train(service, run, &Batches::of_pairs(pairs, 2)?)
    });
}

fn problems(service: &ServiceClient, count: usize) -> EnvBatches {
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
    check(&names, |service, run| {
        Rl::new(model(service), 6)
            .with_learning_rate(2e-3)
            .with_substeps(2)
            .train(service, run, &problems(service, 8))
    });
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
        match mode {
            Mode::Stream { .. } => assert_eq!(steps, [0.0, 1.0, 2.0, 3.0], "{mode:?}"),
            // Groups that came back too old after the last was handed out are left out.
            _ => assert!(steps.len() >= 2, "{mode:?}: {steps:?}"),
        }
        assert_eq!(read.rollouts(0, "train").len(), 8, "{mode:?}");
        assert!(
            read.curve("sampling_client/step_max").len() == steps.len(),
            "{mode:?}"
        );
    }
}
