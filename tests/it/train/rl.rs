//! Reinforcement learning and distillation on the embedded engine: turns, failures, penalties,
//! losses, teachers.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use tempfile::TempDir;
use tinker::client::SamplerSource;
use tinker::local::LocalServer;
use tinker::loss::{Objective, input, logprobs};
use tinker::text::data::KlPenalty;
use tinker::train::rl::{
    Env, EnvBatches, EnvGroup, FailurePolicy, Grade, Limits, Mode, Observation, Problem, Rl,
    SelfDistillation, Step,
};
use tinker::train::{Batches, Dataset, Existing, Model, Run, RunReader, SoftTargets, Supervised};
use tinker::types::{SampledSequence, SamplingParams, Stop};
use tinker::{Datum, LoraConfig, LossFn, ModelInput, Result, ServiceClient};

use crate::support::local;

/// Speaks for two turns; fails as often as it is told to.
struct Talk {
    said: Vec<i32>,
    turns: usize,
    failures: Arc<AtomicUsize>,
}

impl Env for Talk {
    fn start(&mut self) -> anyhow::Result<Observation> {
        let left = |left: usize| left.checked_sub(1);
        let fails = self
            .failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
        anyhow::ensure!(fails.is_err(), "the sandbox is down");
        runs_on("tinker-env-")?;
        Ok(Observation::new(ModelInput::from_ints(self.said.clone())))
    }

    fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step> {
        self.said.extend_from_slice(answer.tokens.as_slice());
        self.said.push(65);
        self.turns += 1;
        let reward = answer.tokens.len() as f64;
        Ok(match self.turns {
            2 => Step::done(reward).with_metric("polite", 1.0),
            _ => Step::next(Observation::new(ModelInput::from_ints(self.said.clone()))),
        })
    }
}

/// Whether this is a thread of that kind.
fn runs_on(kind: &str) -> anyhow::Result<()> {
    let thread = std::thread::current();
    anyhow::ensure!(
        thread.name().is_some_and(|name| name.starts_with(kind)),
        "{thread:?}"
    );
    Ok(())
}

/// Three talks.
struct Talks(Arc<AtomicUsize>);

impl EnvGroup for Talks {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        let talk = |token: i32| -> Box<dyn Env> {
            let failures = self.0.clone();
            Box::new(Talk {
                said: vec![66, 67 + token],
                turns: 0,
                failures,
            })
        };
        Ok((0..3).map(talk).collect())
    }

    fn tags(&self) -> Vec<String> {
        vec!["talk".into()]
    }
}

fn model(service: &ServiceClient) -> Model {
    let lora = LoraConfig::rank(4).with_seed(3);
    Model::new(local::base_model(service)).with_lora(lora)
}

/// Trains in a folder of its own, which goes with the first of the two, and reads it.
fn trained(
    train: impl FnOnce(&ServiceClient, &mut Run) -> Result<()>,
) -> Result<(TempDir, RunReader)> {
    let server = LocalServer::start()?;
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let path: &Path = root.path();
    let mut run = Run::open(path, Existing::Raise)?;
    train(&service, &mut run)?;
    let read = RunReader::open(path)?;
    Ok((root, read))
}

/// Two batches of two groups, the first of whose episodes fail so often.
fn talk(failures: usize, policy: FailurePolicy) -> Result<(TempDir, RunReader)> {
    trained(|service, run| {
        let failing = Arc::new(AtomicUsize::new(failures));
        let group = |_| Arc::new(Talks(failing.clone())) as Arc<dyn EnvGroup>;
        let data = EnvBatches::new((0..4).map(group), 2);
        let rl = Rl::new(model(service), 3).with_failures(policy);
        rl.train(service, run, &data).map(drop)
    })
}

#[test]
fn turns_are_one_episode() {
    let (_root, run) = talk(0, FailurePolicy::FailFast).unwrap();
    let first = &run.metrics[0];
    assert_eq!(first.number("env/all/turns_per_episode"), Some(2.0));
    assert_eq!(first.number("env/all/total_episodes"), Some(6.0));
    assert_eq!(first.number("env/all/polite"), Some(1.0));
    // An episode that goes on after an answer without an end says how many there were.
    let unended = first.number("env/all/num_truncations_max_turn_tokens");
    assert_eq!(unended, Some(1.0));
    assert!(
        first.get("env/talk/polite").is_none(),
        "a tag on every group shows nothing new"
    );
    assert!(
        first.number("optim/kl_sample_train_v1").unwrap().abs() < 1e-3,
        "on-policy"
    );
    let rollouts = run.rollouts(0, "train");
    assert_eq!(rollouts.len(), 6);
    assert_eq!(rollouts[5].number("group_idx"), Some(1.0));
}

#[test]
fn failures_are_counted_retried_or_done_without() {
    let error = talk(1, FailurePolicy::FailFast).unwrap_err();
    assert!(format!("{:#}", anyhow::Error::new(error)).contains("the sandbox is down"));

    let (_, run) = talk(2, FailurePolicy::Retry(3)).unwrap();
    assert_eq!(run.metrics[0].number("rollout_errors/total"), Some(2.0));
    assert_eq!(
        run.metrics[0].number("rollout_errors/groups_skipped"),
        Some(0.0)
    );
    assert_eq!(run.metrics[0].number("env/all/total_episodes"), Some(6.0));

    let (_, run) = talk(1, FailurePolicy::MinViable(0.0)).unwrap();
    assert_eq!(
        run.metrics[0].number("rollout_errors/environment"),
        Some(1.0)
    );
    assert_eq!(run.metrics[0].number("env/all/total_episodes"), Some(5.0));

    // Two of three are enough, and are there however the failures fall.
    let (_, run) = talk(4, FailurePolicy::MinViable(0.6)).unwrap();
    assert_eq!(
        run.metrics[0].number("rollout_errors/groups_skipped"),
        Some(0.0)
    );
    assert!(run.metrics[0].number("env/all/total_episodes") >= Some(4.0));

    // Every episode of the first batch fails, again too: nothing to train on, and the run goes on.
    let (_, run) = talk(12, FailurePolicy::MinViable(0.6)).unwrap();
    assert_eq!(
        run.metrics[0].number("rollout_errors/groups_skipped"),
        Some(2.0)
    );
    assert!(run.metrics[0].get("env/all/reward/total").is_none());
    assert!(run.metrics[1].get("env/all/reward/total").is_some());
}

/// An environment that cannot bear the first answer it hears.
struct Picky(Arc<Mutex<Vec<Vec<i32>>>>);

impl Env for Picky {
    fn start(&mut self) -> anyhow::Result<Observation> {
        Ok(Observation::new(ModelInput::from_ints(vec![66, 67])))
    }

    fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step> {
        let mut heard = self.0.lock().unwrap();
        heard.push(answer.tokens.to_vec());
        anyhow::ensure!(
            *heard.last().unwrap() != heard[0],
            "this breaks the sandbox"
        );
        Ok(Step::done(1.0))
    }
}

struct Pick(Arc<Mutex<Vec<Vec<i32>>>>);

impl EnvGroup for Pick {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        Ok(vec![Box::new(Picky(self.0.clone()))])
    }
}

#[test]
fn what_is_played_anew_is_not_said_again() {
    let run = trained(|service, run| {
        let group = Arc::new(Pick(Arc::default())) as Arc<dyn EnvGroup>;
        let rl = Rl::new(model(service), 8).with_failures(FailurePolicy::Retry(1));
        rl.train(service, run, &EnvBatches::new([group], 1))
            .map(drop)
    });
    let (_, run) = run.unwrap();
    let first = &run.metrics[0];
    assert_eq!(first.number("rollout_errors/total"), Some(1.0));
    assert_eq!(first.number("rollout_errors/groups_skipped"), Some(0.0));
}

/// Two episodes of one group: one fails once the other has begun, which has more turns than anybody
/// waits for.
#[derive(Clone)]
struct Unequal {
    fails: bool,
    begun: Arc<Barrier>,
    turns: Arc<AtomicUsize>,
}

const TURNS: usize = 100_000;

impl Env for Unequal {
    fn start(&mut self) -> anyhow::Result<Observation> {
        if self.fails {
            self.begun.wait();
            anyhow::bail!("the sandbox is down");
        }
        Ok(Observation::new(ModelInput::from_ints(vec![66])))
    }

    fn step(&mut self, _: &SampledSequence) -> anyhow::Result<Step> {
        match self.turns.fetch_add(1, Ordering::SeqCst) {
            0 => drop(self.begun.wait()),
            TURNS.. => return Ok(Step::done(0.0)),
            _ => {}
        }
        let again = ModelInput::from_ints(vec![66]);
        Ok(Step::next(Observation::new(again)))
    }
}

impl EnvGroup for Unequal {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        let other = Self {
            fails: !self.fails,
            ..self.clone()
        };
        Ok(vec![Box::new(self.clone()), Box::new(other)])
    }
}

#[test]
fn a_failure_does_not_wait_for_episodes_nobody_wants() {
    let turns = Arc::new(AtomicUsize::new(0));
    let run = trained(|service, run| {
        let group = Unequal {
            fails: true,
            begun: Arc::new(Barrier::new(2)),
            turns: turns.clone(),
        };
        let rl = Rl::new(model(service), 1).with_failures(FailurePolicy::FailFast);
        let group = Arc::new(group) as Arc<dyn EnvGroup>;
        rl.train(service, run, &EnvBatches::new([group], 1))
            .map(drop)
    });
    let error = run.unwrap_err().to_string();
    assert!(error.contains("an environment failed"), "{error}");
    assert!(turns.load(Ordering::SeqCst) < TURNS);
}

#[test]
fn answers_without_a_limit_take_what_the_model_has_room_for() {
    let run = trained(|service, run| {
        let name = local::base_model(service);
        let tokenizer = service.create_sampling_client(name.as_str())?.tokenizer()?;
        let problem = Problem::without_reward(&tokenizer, tokenizer.encode("word:")?);
        // Some byte is said soon.
        let ends = Stop::Tokens((0..200).collect());
        let group = problem.with_group_size(1).with_stop(ends).into_group();
        let rl = Rl::new(model(service), 8).with_sampling(SamplingParams::default());
        rl.train(service, run, &EnvBatches::new([group], 1))
            .map(drop)
    });
    assert_eq!(run.unwrap().1.metrics.len(), 1);
}

#[test]
fn a_group_without_episodes_is_a_mistake() {
    struct Nobody;
    impl EnvGroup for Nobody {
        fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
            Ok(Vec::new())
        }
    }
    let run = |policy: FailurePolicy| {
        trained(|service, run| {
            let group: Arc<dyn EnvGroup> = Arc::new(Nobody);
            let rl = Rl::new(model(service), 4).with_failures(policy);
            rl.train(service, run, &EnvBatches::new([group], 1))
                .map(drop)
        })
    };
    let error = run(FailurePolicy::FailFast).unwrap_err().to_string();
    assert!(error.contains("envs"), "{error}");
    let (_, run) = run(FailurePolicy::Retry(1)).unwrap();
    let skipped = run.metrics[0].number("rollout_errors/groups_skipped");
    assert_eq!(skipped, Some(1.0));
}

#[test]
fn limits_end_episodes() {
    let run = trained(|service, run| {
        let group = |_| Arc::new(Talks(Arc::default())) as Arc<dyn EnvGroup>;
        let mut limits = Limits::default();
        limits.max_turns = Some(1);
        let rl = Rl::new(model(service), 3).with_limits(limits);
        rl.train(service, run, &EnvBatches::new((0..1).map(group), 1))
            .map(drop)
    });
    let (_, run) = run.unwrap();
    assert_eq!(
        run.metrics[0].number("env/all/turns_per_episode"),
        Some(1.0)
    );
    assert_eq!(run.metrics[0].number("env/all/stop/max_turns"), Some(1.0));
}

/// Asks the same again and again, with prompts of these lengths.
#[derive(Clone)]
struct Asked(Vec<usize>);

impl Env for Asked {
    fn start(&mut self) -> anyhow::Result<Observation> {
        Ok(Observation::new(ModelInput::from_ints(vec![66; self.0[0]])))
    }

    fn step(&mut self, _: &SampledSequence) -> anyhow::Result<Step> {
        Ok(Step::next(self.start()?).with_metric("stop/tool_stopped", 1.0))
    }
}

impl EnvGroup for Asked {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        let env = |length: &usize| Box::new(Self(vec![*length])) as Box<dyn Env>;
        Ok(self.0.iter().map(env).collect())
    }
}

/// What was not begun is no example, and a step has nothing to do where nothing was.
#[test]
fn episodes_without_room_to_begin_leave_nothing_to_train_on() {
    for mode in [Mode::Sync, Mode::Stream { minibatches: 1 }] {
        let run = trained(|service, run| {
            let groups = [vec![9, 9], vec![2, 9]];
            let group = |lengths| Arc::new(Asked(lengths)) as Arc<dyn EnvGroup>;
            let mut limits = Limits::default();
            (limits.max_turns, limits.max_trajectory_tokens) = (Some(1), Some(6));
            let rl = Rl::new(model(service), 3)
                .with_limits(limits)
                .with_mode(mode);
            rl.train(service, run, &EnvBatches::new(groups.map(group), 1))
                .map(drop)
        });
        let (_root, run) = run.unwrap();
        let second = &run.metrics[1];
        assert_eq!(second.number("env/all/total_ob_tokens"), Some(2.0));
        assert_eq!(second.number("env/all/stop/max_tokens"), Some(1.0));
        assert_eq!(second.number("env/all/stop/max_turns"), Some(1.0));
        let overruled = second.get("env/all/stop/tool_stopped");
        assert!(overruled.is_none(), "an episode stops for one reason");
        assert!(second.get("optim/entropy").is_some());
        assert!(run.metrics[0].get("optim/entropy").is_none());
        let first = &run.rollouts(0, "train")[0];
        assert_eq!(first.number("final_ob_len"), Some(9.0));
    }
}

#[test]
fn failures_of_tests_are_counted_apart() {
    let run = trained(|service, run| {
        let group = |failures| {
            let failures = Arc::new(AtomicUsize::new(failures));
            Arc::new(Talks(failures)) as Arc<dyn EnvGroup>
        };
        let rl = Rl::new(model(service), 3)
            .with_failures(FailurePolicy::MinViable(0.6))
            .with_test(EnvBatches::new([group(6)], 1));
        rl.train(service, run, &EnvBatches::new([group(0)], 1))
            .map(drop)
    });
    let (_root, run) = run.unwrap();
    let first = &run.metrics[0];
    assert_eq!(first.number("test/rollout_errors/total"), Some(6.0));
    let skipped = first.number("test/rollout_errors/groups_skipped");
    assert_eq!(skipped, Some(1.0));
    assert!(first.get("rollout_errors/total").is_none());
    assert!(first.get("test/env/all/reward/total").is_none());
}

#[test]
fn every_loss_of_the_service_trains_on_rewards_of_their_own_pool() {
    for loss in [LossFn::Ppo, LossFn::Cispo, LossFn::Dro, LossFn::Gspo] {
        let run = trained(|service, run| {
            let name = local::base_model(service);
            let tokenizer = service.create_sampling_client(name.as_str())?.tokenizer()?;
            let problem = Problem::new(&tokenizer, tokenizer.encode("word:")?, |answer| {
                runs_on("tinker-reward-")?;
                Ok(Grade::reward(answer.text.matches('a').count() as f64))
            });
            let group = problem.with_group_size(8).into_group();
            let mut rl = Rl::new(model(service), 6).with_loss(loss.clone());
            (rl.learning_rate, rl.compute_post_kl) = (1e-2, true);
            rl.train(service, run, &EnvBatches::new([group], 1))
                .map(drop)
        });
        let (_, run) = run.unwrap();
        assert_eq!(run.config["loss_fn"], loss.as_str());
        assert!(
            run.metrics[0].number("kl_pre_post_v2").unwrap() > 0.0,
            "{loss:?}"
        );
    }
}

fn questions(service: &ServiceClient, count: usize) -> Result<EnvBatches> {
    let name = local::base_model(service);
    let tokenizer = service.create_sampling_client(name.as_str())?.tokenizer()?;
    let mut groups = Vec::new();
    for number in 0..count {
        let prompt = tokenizer.encode(&format!("word {number}:"))?;
        let told = tokenizer.encode(&format!("The word is ant. word {number}:"))?;
        let question = Problem::without_reward(&tokenizer, prompt).with_teacher_prompt(told);
        groups.push(question.with_group_size(2).into_group());
    }
    Ok(EnvBatches::new(groups, 2))
}

#[test]
fn penalties_and_losses_of_ones_own() {
    let run = trained(|service, run| {
        let ratio = (logprobs() - input("logprobs")).exp();
        let loss = Objective::new(-(ratio * input("advantages")).sum());
        let base = SamplerSource::base_model(local::base_model(service));
        let penalty = KlPenalty {
            coefficient: 0.1,
            discount: 0.0,
        };
        let mut rl = Rl::new(model(service), 4)
            .with_loss(loss)
            .with_kl_penalty(penalty, base);
        rl.compute_post_kl = true;
        rl.train(service, run, &questions(service, 4)?).map(drop)
    });
    let (_, run) = run.unwrap();
    assert!(
        run.metrics[0].number("kl_policy_base").unwrap().abs() < 1e-4,
        "the base at first"
    );
    assert!(run.metrics[1].number("kl_policy_base").is_some());
    assert!(run.metrics[0].number("kl_pre_post_v2").is_some());
    assert_eq!(run.config["loss_fn"], "custom");
}

#[test]
fn a_run_from_saved_weights_is_held_to_them() {
    let run = trained(|service, run| {
        let name = local::base_model(service);
        let taught =
            service.create_lora_training_client(&name, LoraConfig::rank(4).with_seed(1))?;
        let adam = tinker::AdamParams::learning_rate(5e-2);
        let data = [Datum::supervised(&[65, 66], &[67, 68])];
        taught
            .train_step(&data, LossFn::CrossEntropy, adam)?
            .join()?;
        let saved = taught.save_state("taught")?.join()?;
        let penalty = KlPenalty {
            coefficient: 0.1,
            discount: 0.0,
        };
        Rl::new(model(service).with_weights(saved.path.to_string()), 4)
            .with_kl_penalty_to_start(penalty)
            .train(service, run, &questions(service, 4)?)
            .map(drop)
    });
    let (_, run) = run.unwrap();
    let distance = run.metrics[0].number("kl_policy_base").unwrap();
    assert!(distance.abs() < 1e-4, "{distance}");
    assert_eq!(run.checkpoints[0].name, "reference");
    assert!(run.config["kl_reference_config"]["load_checkpoint_path"].is_string());
}

#[test]
fn a_model_learns_from_itself_that_knows_more() {
    for (topk, reverse, metric) in [
        (5, false, "sdft/mean_teacher_entropy"),
        (5, true, "sdft/reverse_kl_mean"),
        (0, false, "sdft/mean_advantage"),
    ] {
        let run = trained(|service, run| {
            let mut distillation = SelfDistillation::default();
            (distillation.topk, distillation.reverse) = (topk, reverse);
            (distillation.skip_first, distillation.sync_every) = (0, Some(1));
            let rl = Rl::new(model(service), 4).with_self_distillation(distillation);
            rl.train(service, run, &questions(service, 4)?).map(drop)
        });
        let (_, run) = run.unwrap();
        assert!(
            run.metrics[1].number(metric).unwrap().is_finite(),
            "{metric}"
        );
        assert_eq!(run.metrics[0].number("sdft/topk"), Some(f64::from(topk)));
        let references = run
            .checkpoints
            .iter()
            .filter(|record| record.name == "reference");
        assert_eq!(references.count(), 3, "at the start, and after each step");
    }
}

#[test]
fn a_model_comes_closer_to_itself_that_knows_more() {
    let run = trained(|service, run| {
        let mut distillation = SelfDistillation::default();
        (distillation.topk, distillation.reverse) = (5, true);
        distillation.skip_first = 0;
        let rl = Rl::new(model(service), 4).with_self_distillation(distillation);
        let rl = rl.with_learning_rate(5e-3);
        rl.train(service, run, &questions(service, 16)?).map(drop)
    });
    let distances = run.unwrap().1.curve("sdft/reverse_kl_mean");
    assert_eq!(distances.len(), 8);
    let last = distances[5..].iter().map(|point| point.1).sum::<f64>() / 3.0;
    assert!(last < distances[0].1 / 2.0, "{distances:?}");
}

#[test]
fn what_no_teacher_can_judge_has_no_mean() {
    let run = trained(|service, run| {
        let mut distillation = SelfDistillation::default();
        (distillation.topk, distillation.max_context) = (0, 1);
        let rl = Rl::new(model(service), 4).with_self_distillation(distillation);
        rl.train(service, run, &questions(service, 2)?).map(drop)
    });
    let (_root, run) = run.unwrap();
    let cut = run.metrics[0].number("sdft/teacher_truncated_count");
    assert_eq!(cut, Some(4.0));
    assert!(run.metrics[0].get("sdft/mean_advantage").is_none());
}

#[test]
fn settings_of_self_distillation_that_exclude_each_other_are_refused_before_it_begins() {
    for (topk, reverse) in [(0, true), (21, false)] {
        let run = trained(|service, run| {
            let mut distillation = SelfDistillation::default();
            (distillation.topk, distillation.reverse) = (topk, reverse);
            let rl = Rl::new(model(service), 4).with_self_distillation(distillation);
            let trained = rl.train(service, run, &questions(service, 2)?);
            assert!(run.folder().read().is_err(), "nothing was begun");
            trained.map(drop)
        });
        let error = run.unwrap_err().to_string();
        assert!(error.contains("topk"), "{error}");
    }
}

#[test]
fn soft_targets_are_learned() {
    let run = trained(|service, run| {
        let name = local::base_model(service);
        let data: Vec<Datum> = (0..8)
            .map(|n| Datum::supervised(&[65, 66 + n], &[67, 68]))
            .collect();
        let taught =
            service.create_lora_training_client(&name, LoraConfig::rank(4).with_seed(1))?;
        for _ in 0..5 {
            let adam = tinker::AdamParams::learning_rate(5e-3);
            taught
                .train_step(&data, tinker::LossFn::CrossEntropy, adam)?
                .join()?;
        }
        let teacher = taught.save_weights_and_get_sampling_client()?;
        for k in [0, 21] {
            let soft = SoftTargets::new(Batches::new(data.clone(), 4)?, teacher.clone());
            let error = soft.with_k(k).batch(0, 0).unwrap_err().to_string();
            assert!(error.contains("from 1 to 20"), "{k}: {error}");
        }
        // A weight below 0 is none: what the teacher says instead would be learned.
        let unlearned = data[0].clone().with_weights(vec![-1.0f32, 1.0]);
        let soft = SoftTargets::new(Batches::new([unlearned], 1)?, teacher.clone());
        let batch = soft.with_k(5).batch(0, 0)?;
        let weights = batch[0].input("weights").unwrap().as_f32().unwrap();
        assert_eq!(weights[..5], [0.0; 5]);
        let soft = SoftTargets::new(Batches::new(data, 4)?, teacher).with_k(5);
        let settings = Supervised::new(model(service))
            .with_learning_rate(5e-3)
            .with_epochs(4);
        settings.train(service, run, &soft).map(drop)
    });
    let losses = run.unwrap().1.curve("train_mean_nll");
    assert!(losses[7].1 < losses[0].1, "{losses:?}");
}
