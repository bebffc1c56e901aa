//! The embedded service: a real engine behind the real protocol, on one machine.

pub mod engine;
