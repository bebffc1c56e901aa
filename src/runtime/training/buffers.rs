//! Buffers to encode into.

use std::sync::Mutex;

use crate::sync::lock;

/// Buffers to encode into, used again: fresh memory costs more than the copy.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// As many as are on the wire at once; more would only hold memory.
    const KEPT: usize = 8;

    pub(super) fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut kept = lock(&self.0);
        if kept.len() < Self::KEPT {
            kept.push(buffer);
        }
    }
}
