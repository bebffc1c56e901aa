//! The values the service speaks in: plain data and its invariants.
