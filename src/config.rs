//! Configuration, and the only reader of environment variables.
