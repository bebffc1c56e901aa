//! Settings that a loop would refuse at their first use, hours later, are refused before it begins.

use std::sync::Arc;
use std::time::Duration;

use tinker::local::{LocalServer, RecordedRequest};
use tinker::text::data::KlPenalty;
use tinker::text::{Message, Renderer};
use tinker::train::rl::{
    Agent, EnvBatches, EnvDataset, EnvGroup, FailurePolicy, Grade, Limits, Mode, Problem, Rl,
    SelfDistillation, tournament,
};
use tinker::train::{
    Batches, Dataset, Dpo, Existing, Model, Report, Run, SavePolicy, Schedule, Supervised,
};
use tinker::{Datum, Error, LoraConfig, LossFn, Result, ServiceClient, Tokenizer};

use crate::support::local;

const TINY: &str = "tinker-local/tiny";

/// Has a loop refused, with nothing sent and nothing in the run's folder.
#[track_caller]
fn check(field: &str, train: impl FnOnce(&ServiceClient, &mut Run) -> Result<Report>) {
    let server = LocalServer::builder().record(true).start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let error = train(&service, &mut run).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert!(error.to_string().contains(field), "{field}: {error}");
    let begun = |request: &_| RecordedRequest::endpoint(request).starts_with("create_model");
    assert!(!server.requests().iter().any(begun), "{field}");
    assert!(run.folder().read().is_err(), "{field}: nothing was begun");
}

fn datums() -> impl Dataset {
    let datum = |n| Datum::supervised(&[65, 66 + n], &[67, 68]);
    Batches::of_pairs((0..4).map(datum).collect::<Vec<_>>(), 1).unwrap()
}

#[test]
fn of_training_on_examples() {
    fn refused(field: &str, change: impl FnOnce(&mut Supervised)) {
        let mut settings = Supervised::new(TINY);
        change(&mut settings);
        check(field, |service, run| {
            settings.train(service, run, &datums())
        });
    }
    refused("learning_rate", |s| s.learning_rate = f64::NAN);
    refused("learning_rate", |s| s.learning_rate = -1e-4);
    refused("beta2", |s| s.adam.beta2 = f64::INFINITY);
    refused("rank", |s| s.model.lora = LoraConfig::rank(0));
    refused("save.ttl", |s| s.save.ttl = Some(Duration::from_secs(60)));
    refused("save.rolling_ttl", |s| {
        s.save.rolling_every = 5;
        s.save.rolling_ttl = Duration::MAX;
    });
}

#[test]
fn of_preferences() {
    fn refused(field: &str, change: impl FnOnce(&mut Dpo)) {
        let mut settings = Dpo::new(TINY);
        change(&mut settings);
        check(field, |service, run| {
            settings.train(service, run, &datums())
        });
    }
    for beta in [0.0, -0.1, f64::NAN] {
        refused("beta", |s| s.beta = beta);
    }
    refused("learning_rate", |s| s.learning_rate = f64::INFINITY);
    refused("save.ttl", |s| s.save.ttl = Some(Duration::ZERO));
}

#[test]
fn of_reinforcement() {
    fn refused(field: &str, change: impl FnOnce(Rl) -> Rl) {
        let settings = change(Rl::new(TINY, 4));
        let tokenizer = Tokenizer::for_model(TINY).unwrap();
        let prompt = tokenizer.encode("one:").unwrap();
        let problem = Problem::new(&tokenizer, prompt, |_| Ok(Grade::reward(1.0)));
        let data = EnvBatches::new([problem.into_group()], 1);
        check(field, |service, run| settings.train(service, run, &data));
    }
    fn penalty(coefficient: f32, discount: f32) -> KlPenalty {
        KlPenalty {
            coefficient,
            discount,
        }
    }
    refused("learning_rate", |rl| rl.with_learning_rate(-1.0));
    refused("substeps", |rl| rl.with_substeps(0));
    refused("minibatches", |rl| {
        rl.with_mode(Mode::Stream { minibatches: 0 })
    });
    refused("minibatches", |rl| {
        let mode = Mode::Stream {
            minibatches: usize::MAX,
        };
        rl.with_mode(mode).with_substeps(2)
    });
    refused("temperature", |mut rl| {
        rl.sampling.temperature = f64::NAN;
        rl
    });
    refused("max_tokens", |mut rl| {
        rl.sampling.max_tokens = Some(0);
        rl
    });
    for threshold in [f64::NAN, f64::INFINITY] {
        refused("loss_fn_config.clip_low_threshold", |rl| {
            rl.with_loss(LossFn::Ppo.with("clip_low_threshold", threshold))
        });
    }
    for (field, change) in [
        (
            "limits.max_turns",
            (|limits| limits.max_turns = Some(0)) as fn(&mut Limits),
        ),
        ("limits.max_trajectory_tokens", |limits| {
            limits.max_trajectory_tokens = Some(0);
        }),
        ("limits.max_sampled_tokens", |limits| {
            limits.max_sampled_tokens = Some(0);
        }),
        ("limits.timeout", |limits| {
            limits.timeout = Some(Duration::ZERO);
        }),
    ] {
        refused(field, |mut rl| {
            change(&mut rl.limits);
            rl
        });
    }
    for share in [-0.1, 1.1, f64::NAN] {
        refused("failures", |rl| {
            rl.with_failures(FailurePolicy::MinViable(share))
        });
    }
    refused("coefficient", |rl| {
        rl.with_kl_penalty_to_start(penalty(f32::NAN, 0.0))
    });
    refused("discount", |rl| rl.with_teacher(penalty(1.0, 1.5), TINY));
    refused("topk", |rl| {
        let mut distillation = SelfDistillation::default();
        distillation.topk = 21;
        rl.with_self_distillation(distillation)
    });
    refused("save.ttl", |rl| {
        let mut save = SavePolicy::default();
        save.ttl = Some(Duration::from_secs(1));
        rl.with_save(save)
    });
}

#[test]
fn of_groups_and_batches() {
    #[track_caller]
    fn check<T>(field: &str, result: anyhow::Result<T>) {
        let error = result.err().expect(field);
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
    let tokenizer = Tokenizer::for_model(TINY).unwrap();
    let problem = |size| {
        let problem = Problem::without_reward(&tokenizer, vec![65]).with_group_size(size);
        problem.into_group()
    };
    let renderer = Renderer::from_template(&tokenizer).unwrap();
    let agent = |size| {
        let task = [Message::user("x")];
        let agent = Agent::new(&renderer, task, [], |_| Ok(Grade::reward(0.0)));
        agent.unwrap().with_group_size(size).into_group()
    };
    let kinds: [&dyn Fn(usize) -> Arc<dyn EnvGroup>; 2] = [&problem, &agent];
    for group in kinds {
        assert_eq!(group(1).envs().unwrap().len(), 1);
        for size in [0, usize::MAX] {
            check("group_size", group(size).envs());
        }
    }
    let groups = EnvBatches::new([problem(1), problem(1)], 2);
    assert_eq!(groups.batch(0).unwrap().len(), 2);
    for index in [1, usize::MAX] {
        check("batch", groups.batch(index));
        check("batch", datums().batch(0, index.max(2)).map_err(Into::into));
    }
    let never = |_, _| -> anyhow::Result<f64> { unreachable!("the matchups are checked before") };
    for matchup in [(0, 2), (usize::MAX, 1)] {
        check("matchups", tournament(2, &[matchup], never));
    }
}

#[test]
fn what_is_unusual_is_no_mistake() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let mut settings = Supervised::new(Model::new(TINY).with_lora(LoraConfig::rank(1)))
        .with_learning_rate(0.0)
        .with_schedule(Schedule::default().with_warmup(99));
    // A rule that is switched off has no lifetime to be wrong.
    settings.save.rolling_ttl = Duration::ZERO;
    settings.save.ttl = None;
    let report = settings.train(&service, &mut run, &datums()).unwrap();
    assert_eq!(report.summary.steps, 2);
}
