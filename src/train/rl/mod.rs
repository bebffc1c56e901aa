//! Reinforcement learning: environments, rollouts, advantages and their training loop.
//!
//! An [`Env`] is plain blocking code on a thread of its own; a [`Problem`], the plainest group of
//! them, is a question and a function that grades answers. [`Rl`] plays groups, judges answers
//! against their group's mean and trains on them. Rewards that take time run on a pool of their
//! own, one thread per processor.

mod ahead;
mod env;
mod ledger;
mod metrics;
mod rollout;
mod settings;
mod teach;
mod tournament;
mod train;

pub use env::{Answer, Env, EnvBatches, EnvDataset, EnvGroup, Grade, Observation, Problem, Step};
pub use metrics::env_metrics;
pub use rollout::{FailurePolicy, Limits};
pub use settings::{Mode, PolicyLoss, Rl};
pub use teach::SelfDistillation;
pub use tournament::{PreferenceModel, matchups, tournament};
