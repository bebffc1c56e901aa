//! The training toolkit.

mod batches;
mod checkpoints;
mod data;
mod folders;
mod golden;
mod preference;
mod resume;
mod rl;
mod signals;
mod trackio;
