//! The one integration crate: a module per feature.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

mod calls;
mod cli;
mod clients;
mod config;
mod downloads;
mod examples;
mod faults;
mod golden_index;
mod golden_types;
mod hostile_values;
mod loss;
mod names;
mod python;
mod resources;
mod rest;
mod sampling;
mod server;
mod sessions;
mod support;
mod text;
mod text_data;
mod training;
