//! The training toolkit.

mod agents;
mod batches;
mod checkpoints;
mod data;
mod failures;
mod folders;
mod golden;
mod preference;
mod resume;
mod rl;
mod settings;
#[cfg(unix)]
mod signals;
mod trackio;
