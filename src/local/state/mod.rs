//! What the server remembers.

pub(super) mod catalogue;
pub(super) mod disk;
pub(super) mod downloads;
pub(super) mod folder;
pub(super) mod futures;
pub(super) mod ledger;
pub(super) mod models;
pub(super) mod samplers;
pub(super) mod sequence;
pub(super) mod sessions;
pub(super) mod traces;
