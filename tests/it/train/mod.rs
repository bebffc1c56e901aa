//! The training toolkit.

mod data;
mod folders;
mod golden;
mod preference;
mod resume;
mod rl;
mod signals;
mod trackio;
