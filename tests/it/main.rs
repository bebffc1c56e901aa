//! The one integration crate: a module per feature.

mod cli;
mod loss;
mod server;
mod support;
