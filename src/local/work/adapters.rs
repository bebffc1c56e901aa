//! Adapters read from checkpoints, shared by all who sample from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use super::{Workshop, checkpoints};
use crate::error::Result;
use crate::local::engine::Adapter;
use crate::sync::lock;
use crate::types::TinkerPath;

#[derive(Debug, Default)]
pub(in crate::local) struct Adapters {
    /// Those somebody uses.
    loaded: Mutex<HashMap<TinkerPath, Weak<Adapter>>>,
}

impl Adapters {
    /// The adapter of a checkpoint.
    pub(in crate::local) fn load(
        &self,
        workshop: &Workshop,
        path: &TinkerPath,
    ) -> Result<Arc<Adapter>> {
        let mut loaded = lock(&self.loaded);
        if let Some(adapter) = loaded.get(path).and_then(Weak::upgrade) {
            return Ok(adapter);
        }
        let adapter = checkpoints::restore(workshop, path, false)?.adapter();
        loaded.retain(|_, adapter| adapter.strong_count() > 0);
        loaded.insert(path.clone(), Arc::downgrade(&adapter));
        Ok(adapter)
    }

    /// How many are in memory, and their bytes.
    pub(in crate::local) fn resident(&self) -> (usize, usize) {
        let loaded = lock(&self.loaded);
        let alive = loaded.values().filter_map(Weak::upgrade);
        alive.fold((0, 0), |(count, bytes), one| {
            (count + 1, bytes + one.bytes())
        })
    }

    /// Forgets what was read from a checkpoint that has changed.
    pub(in crate::local) fn forget(&self, path: &TinkerPath) {
        lock(&self.loaded).remove(path);
    }
}
