//! Models in training: what each is, its queue and its weights.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::StateError;
use super::memory::Promise;
use super::queue::Queue;
use crate::local::engine::Trainer;
use crate::sync::lock;
use crate::types::LoraConfig;

/// The models alive now, by id.
#[derive(Debug, Default)]
pub(in crate::local) struct Models {
    live: Mutex<HashMap<String, Arc<Model>>>,
}

/// A model in training.
#[derive(Debug)]
pub(in crate::local) struct Model {
    pub(in crate::local) id: String,
    pub(in crate::local) session_id: String,
    pub(in crate::local) base_model: String,
    pub(in crate::local) lora: LoraConfig,
    pub(in crate::local) queue: Mutex<Queue>,
    /// Only the task that runs the queue's front uses it; `None` until the model is created.
    pub(in crate::local) trainer: Mutex<Option<Trainer>>,
    /// The memory it takes, as long as it lives.
    pub(in crate::local) memory: Mutex<Option<Promise>>,
    /// Whether it began in an earlier process.
    pub(in crate::local) came_back: bool,
    pub(in crate::local) on_disk: Mutex<OnDisk>,
}

/// How what is on disk relates to the model.
#[derive(Debug)]
pub(in crate::local) struct OnDisk {
    /// Which of the model's states it is, counted from 1; 0 if there is none.
    pub(in crate::local) generation: u64,
    /// Whether a request has run since.
    pub(in crate::local) is_behind: bool,
    /// When it was written, or when there was nothing to write yet.
    pub(in crate::local) at: Instant,
}

impl Models {
    pub(in crate::local) fn get(&self, id: &str) -> Result<Arc<Model>, StateError> {
        lock(&self.live)
            .get(id)
            .cloned()
            .ok_or_else(|| StateError::Missing(format!("no such model: {id}")))
    }

    pub(in crate::local) fn add(&self, model: Arc<Model>) {
        lock(&self.live).insert(model.id.clone(), model);
    }

    pub(in crate::local) fn len(&self) -> usize {
        lock(&self.live).len()
    }

    pub(in crate::local) fn all(&self) -> Vec<Arc<Model>> {
        lock(&self.live).values().cloned().collect()
    }

    /// How many requests wait for their turn.
    pub(in crate::local) fn queued(&self) -> usize {
        self.all()
            .iter()
            .map(|model| lock(&model.queue).len())
            .sum()
    }

    /// Takes a model out; what its queue already runs ends by itself.
    pub(in crate::local) fn remove(&self, id: &str) -> Option<Arc<Model>> {
        lock(&self.live).remove(id)
    }
}

impl Model {
    pub(in crate::local) fn new(
        id: String,
        session_id: String,
        base_model: String,
        lora: LoraConfig,
    ) -> Self {
        Self {
            id,
            session_id,
            base_model,
            lora,
            queue: Mutex::default(),
            trainer: Mutex::default(),
            memory: Mutex::default(),
            came_back: false,
            on_disk: Mutex::new(OnDisk {
                generation: 0,
                is_behind: false,
                at: Instant::now(),
            }),
        }
    }
}
