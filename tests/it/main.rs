//! The one integration crate: a module per feature, each with a sentence.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop there"
)]

/// Calls of the public API by name: raw requests, headers, queries.
mod calls;
/// The `tinker` binary.
mod cli;
/// What clients share: clones, drops, closing.
mod clients;
/// Keys, files and the environment.
mod config;
/// The console: its endpoints, and its page in a browser.
mod console;
/// The cookbook's recipes as guests of the embedded server.
mod cookbook;
/// Downloads of signed files: resumed, checked, signed again.
mod downloads;
/// Every example, run.
mod examples;
/// Trained models in other programs, and adapters from them.
mod export;
/// The fault matrix: what each answer or silence leads to, over real sockets.
mod faults;
/// Damaged input for every reader of bytes from outside.
mod fuzz;
/// Which recorded file is used by which test.
mod golden_index;
/// Public types against recorded values.
mod golden_types;
/// Values no server should send.
mod hostile_values;
/// Losses of one's own, here and on the server.
mod loss;
/// Python's exported names, found in the documentation.
mod names;
/// Work on the results of a batch.
mod parallel;
/// The official Python SDKs as guests of the embedded server.
mod python;
/// What the Python SDK can be asked for.
mod reach;
/// The README's programs, to the letter.
mod readme;
/// A server that is restarted in the middle of a run.
mod recovery;
/// Renderers against the service's own and the cookbook's.
mod renderers;
/// Threads, memory and sockets, counted in child processes.
#[cfg(target_os = "linux")]
mod resources;
/// Runs, checkpoints, sessions and accounts.
mod rest;
/// Samples, one and many.
mod sampling;
/// The embedded server, from outside.
mod server;
/// How a session lives and ends.
mod sessions;
/// Text in and out in one call.
mod short_calls;
/// The client on SkyRL, recorded and real.
mod skyrl;
/// A bad day from beginning to end.
mod soak;
/// What tests share: servers, clients, Python.
mod support;
/// Tokenizers, templates, the hub, and answers read while they come.
mod text;
/// Datums from text, conversations and trajectories.
mod text_data;
/// The doors between the rooms of the sources.
mod tidy;
/// The training toolkit: run folders, figures, loops, resuming.
mod train;
/// The training client's queue.
mod training;
/// What a running client shows and obeys.
mod watching;
