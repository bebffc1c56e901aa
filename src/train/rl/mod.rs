//! Reinforcement learning: environments, rollouts, advantages and their training loop.
//!
//! An [`Env`] is plain blocking code on a thread of its own; a [`Problem`], the plainest group of
//! them, is a question and a function that grades answers. A [`MessageEnv`] is one in messages instead
//! of tokens, and an [`Agent`] a task for a model with [`Tool`]s. [`Rl`] plays groups, judges answers
//! against their group's mean and trains on them. Rewards that take time run on a pool of their
//! own, one thread per processor.

mod agent;
mod ahead;
mod env;
mod ledger;
mod messages;
mod metrics;
mod rollout;
mod settings;
mod teach;
mod tournament;
mod train;

pub use agent::{Agent, Tool, ToolOutput};
pub use env::{Answer, Env, EnvBatches, EnvDataset, EnvGroup, Grade, Observation, Problem, Step};
pub use messages::{ChatEnv, MessageEnv, ParseErrors};
pub use metrics::env_metrics;
pub use rollout::{FailurePolicy, Limits};
pub use settings::{Mode, PolicyLoss, Rl};
pub use teach::SelfDistillation;
pub use tournament::{PreferenceModel, matchups, tournament};
