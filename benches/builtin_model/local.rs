//! The engine, under the name it has in the library.

#[path = "../../src/local/engine/mod.rs"]
pub(crate) mod engine;
