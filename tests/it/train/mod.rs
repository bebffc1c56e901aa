//! The training toolkit.

mod folders;
mod golden;
mod resume;
