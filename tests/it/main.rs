//! The one integration crate: a module per feature.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod cli;
mod clients;
mod config;
mod futures;
mod golden_index;
mod golden_types;
mod hostile_values;
mod loss;
<<<<<<< HEAD
mod python;
mod rest;
=======
mod resources;
>>>>>>> f8eaf70 (tests: count threads and memory, compare submissions with Python; bench the clients)
mod retries;
mod sampling;
mod server;
mod sessions;
mod support;
mod text;
mod training;
