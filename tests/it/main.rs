//! The one integration crate: a module per feature.

mod cli;
mod server;
mod support;
