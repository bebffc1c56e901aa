//! The clients: short documented methods that delegate.
