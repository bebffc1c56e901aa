//! The threads that run models, and the work they are given.

pub(super) mod batch;
pub(super) mod convert;
pub(super) mod crew;
pub(super) mod generate;
pub(super) mod jobs;
pub(super) mod losses;
pub(super) mod vocabulary;
