//! Reinforcement learning in messages: conversations, and tasks for a model with tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tinker::client::SamplingClient;
use tinker::local::LocalServer;
use tinker::text::{Message, Renderer};
use tinker::train::rl::{
    Agent, ChatEnv, Env, EnvBatches, EnvGroup, Grade, Limits, MessageEnv, Rl, Step, Tool,
};
use tinker::train::{Existing, Model, Run, RunReader};
use tinker::{LoraConfig, ServiceClient};

use crate::support::local;

/// One batch of a group, under these limits, and its run.
fn train(
    limits: Limits,
    group: impl FnOnce(&Renderer) -> Arc<dyn EnvGroup>,
) -> (RunReader, tempfile::TempDir) {
    let server = LocalServer::start().unwrap();
    let service: ServiceClient = local::service(&server);
    let name = local::base_model(&service);
    let sampler: SamplingClient = service.create_sampling_client(name.as_str()).unwrap();
    let data = EnvBatches::new([group(&sampler.renderer().unwrap())], 1);
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let model = Model::new(name).with_lora(LoraConfig::rank(4).with_seed(3));
    let rl = Rl::new(model, 6).with_limits(limits);
    rl.train(&service, &mut run, &data).unwrap();
    (RunReader::open(root.path()).unwrap(), root)
}

fn tool() -> Tool {
    Tool::new("look", "Looks.", json!({"type": "object"}), |_: Value| {
        Ok("nothing")
    })
}

#[test]
fn a_task_with_tools_is_played_graded_and_trained_on() {
    let graded = Arc::new(AtomicUsize::new(0));
    let count = graded.clone();
    let (run, _root) = train(Limits::default(), move |renderer| {
        let task = [Message::user("Say something.")];
        let agent = Agent::new(renderer, task, [tool()], move |conversation| {
            assert_eq!(conversation[0].text(), "Say something.");
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Grade::reward(conversation.len() as f64).with_metric("length", 2.0))
        });
        let agent = agent.unwrap().with_group_size(6).with_tag("tasks");
        agent.going_on_when_cut_off().with_max_turns(2).into_group()
    });
    let row = &run.metrics[0];
    assert_eq!(row.number("env/all/total_episodes"), Some(6.0));
    assert_eq!(row.number("env/all/stop/completed"), Some(1.0));
    assert_eq!(row.number("env/all/length"), Some(2.0));
    assert_eq!(graded.load(Ordering::SeqCst), 6, "each once");
    assert!(row.number("optim/entropy").is_some());
}

/// Says "more" until it has heard three answers.
struct Insists(usize);

impl MessageEnv for Insists {
    fn start(&mut self) -> anyhow::Result<Vec<Message>> {
        Ok(vec![Message::user("Say something.")])
    }

    fn step(&mut self, said: &Message) -> anyhow::Result<Step<Vec<Message>>> {
        anyhow::ensure!(said.role() == "assistant" && said.tokens().is_some());
        self.0 += 1;
        Ok(match self.0 {
            3 => Step::done(1.0),
            _ => Step::next(vec![Message::user("More.")]).with_reward(0.5),
        })
    }
}

struct Conversations(Renderer);

impl EnvGroup for Conversations {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        let env = |_| Box::new(ChatEnv::new(&self.0, Insists(0))) as Box<dyn Env>;
        Ok((0..4).map(env).collect())
    }
}

fn talk(limits: Limits) -> RunReader {
    let group = |renderer: &Renderer| Arc::new(Conversations(renderer.clone())) as _;
    train(limits, group).0
}

#[test]
fn a_conversation_goes_on_until_it_is_over_or_cut_off() {
    let run = talk(Limits::default());
    let row = &run.metrics[0];
    let [turns, cut] = ["turns_per_episode", "stop/max_tokens"]
        .map(|name| row.number(&format!("env/all/{name}")).unwrap_or(0.0));
    assert!((1.0..=3.0).contains(&turns), "{turns} turns");
    assert!(
        turns == 3.0 || cut > 0.0,
        "what is cut off ends it: {row:?}"
    );
}

#[test]
fn what_a_limit_ends_can_be_worth_nothing() {
    let mut limits = Limits::default();
    limits.zero_reward_on_limit = true;
    limits.max_turns = Some(1);
    let run = talk(limits);
    let rewards = run.metrics[0].number("env/all/reward/total").unwrap();
    assert!(rewards <= 0.0, "{rewards}");

    let mut limits = Limits::default();
    limits.timeout = Some(Duration::from_nanos(1));
    let run = talk(limits);
    let late = run.metrics[0].number("env/all/stop/rollout_timeout");
    assert_eq!(late, Some(1.0), "each ends before it has begun");
}
