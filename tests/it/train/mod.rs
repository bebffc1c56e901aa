//! The training toolkit.

mod data;
mod folders;
mod golden;
mod resume;
mod rl;
mod signals;
mod trackio;
