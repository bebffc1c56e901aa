//! What becomes of a batch of reinforcement learning: steps, groups left out, teachers, tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tinker::client::SamplerSource;
use tinker::local::LocalServer;
use tinker::text::data::KlPenalty;
use tinker::train::rl::{EnvBatches, Grade, Mode, Problem, Rl};
use tinker::train::{Existing, Model, Run, RunReader};
use tinker::{LoraConfig, Tokenizer};

use crate::support::local;

/// Questions of four answers each. Those of an even number are all worth the same, those of an odd
/// one are not; each is of the data set of its number.
fn questions(tokenizer: &Tokenizer, count: usize) -> EnvBatches {
    let question = |number: usize| {
        let prompt = tokenizer.encode(&format!("word {number}:")).unwrap();
        let answers = Arc::new(AtomicUsize::new(0));
        let problem = Problem::new(tokenizer, prompt, move |_| {
            let answer = answers.fetch_add(1, Ordering::SeqCst);
            Ok(Grade::reward((answer * (number % 2)) as f64))
        });
        problem.with_group_size(4).with_dataset(number).into_group()
    };
    EnvBatches::new((0..count).map(question), 2)
}

/// What one batch of two questions sends, in order, and its run.
fn train(settings: impl FnOnce(Rl, &Tokenizer) -> Rl) -> (Vec<String>, RunReader, TempDir) {
    let server = LocalServer::builder().record(true).start().unwrap();
    let service = local::service(&server);
    let name = local::base_model(&service);
    let sampler = service.create_sampling_client(name.as_str()).unwrap();
    let tokenizer = sampler.tokenizer().unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let model = Model::new(name).with_lora(LoraConfig::rank(4).with_seed(3));
    settings(Rl::new(model, 4), &tokenizer)
        .train(&service, &mut run, &questions(&tokenizer, 2))
        .unwrap();
    let requests = server.requests();
    let sent = requests.iter().map(|request| request.endpoint().to_owned());
    let steps = sent.filter(|name| ["forward_backward", "optim_step"].contains(&name.as_str()));
    (steps.collect(), RunReader::open(root.path()).unwrap(), root)
}

#[test]
fn a_batch_is_cut_into_substeps_and_minibatches() {
    #[track_caller]
    fn check(mode: Mode, substeps: usize, expected: &[&str]) {
        let (sent, _, _root) = train(|rl, _| rl.with_mode(mode).with_substeps(substeps));
        assert_eq!(sent, expected, "{mode:?}, {substeps} substeps");
    }
    let (gradient, update) = ("forward_backward", "optim_step");
    check(Mode::Sync, 1, &[gradient, update]);
    check(Mode::Sync, 2, &[gradient, update, gradient, update]);
    let parts = |minibatches: usize| Mode::Stream { minibatches };
    check(parts(2), 1, &[gradient, gradient, update]);
    check(parts(1), 2, &[gradient, update, gradient, update]);
}

#[test]
fn groups_of_equal_rewards_are_left_out_where_asked() {
    for (remove, episodes) in [(false, 8.0), (true, 4.0)] {
        let (_, run, _root) = train(|mut rl, _| {
            rl.remove_constant_reward_groups = remove;
            rl
        });
        let first = &run.metrics[0];
        assert_eq!(first.number("env/all/total_episodes"), Some(episodes));
        let mixed = 4.0 / episodes;
        assert_eq!(first.number("env/all/by_group/frac_mixed"), Some(mixed));
        assert_eq!(run.rollouts(0, "train").len(), 8, "all were played");
    }
}

#[test]
fn each_data_set_has_its_teacher_and_tests_are_played_apart() {
    let (_, run, _root) = train(|rl, tokenizer| {
        let penalty = KlPenalty {
            coefficient: 1.0,
            discount: 0.0,
        };
        let base = SamplerSource::base_model(rl.model.name.clone());
        rl.with_teacher(penalty, base.clone())
            .with_teacher(penalty, base)
            .with_test(questions(tokenizer, 2))
    });
    let first = &run.metrics[0];
    for name in ["teacher_kl", "teacher_kl/dataset_0", "teacher_kl/dataset_1"] {
        let distance = first.number(name).expect(name);
        assert!(distance.abs() < 1e-3, "{name} of itself is {distance}");
    }
    assert_eq!(first.number("env/all/total_episodes"), Some(8.0));
    assert_eq!(first.number("test/env/all/total_episodes"), Some(8.0));
    let tested = run.rollouts(0, "eval_test");
    assert_eq!(tested.len(), 8);
    assert_eq!(tested[0].text("split"), Some("eval/test"));
}

#[test]
fn playing_while_training_says_how_long_it_took() {
    let max_steps_off_policy = 1;
    for mode in [
        Mode::Stream { minibatches: 2 },
        Mode::Async {
            max_steps_off_policy,
        },
    ] {
        let (_, run, _root) = train(|rl, _| rl.with_mode(mode));
        let [least, mean, most] = ["min", "mean", "max"].map(|name| {
            let name = format!("time/sampling_time_{name}");
            run.metrics[0].number(&name).expect(&name)
        });
        assert!(0.0 < least && least <= mean && mean <= most, "{mode:?}");
    }
}
