//! Models in training: one ordered queue each, worked off by a shared crew.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::local::api::service::Service;
use crate::local::engine::Trainer;
use crate::local::http::Refusal;
use crate::local::state::futures::Outcome;
use crate::local::state::sequence::{Admission, Sequence};
use crate::local::work::jobs::{self, Work};
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
    queue: Mutex<Queue>,
    /// Only the task that runs the queue's front uses it; `None` until the model is created.
    trainer: Mutex<Option<Trainer>>,
}

#[derive(Debug, Default)]
struct Queue {
    sequence: Sequence<Job>,
    ready: VecDeque<Job>,
    /// Whether a task is at work on this queue.
    running: bool,
}

/// A request that was accepted.
#[derive(Debug)]
pub(in crate::local) struct Job {
    pub(in crate::local) request_id: String,
    /// The endpoint it came by, which latencies are set for.
    pub(in crate::local) endpoint: &'static str,
    pub(in crate::local) work: Work,
}

impl Models {
    pub(in crate::local) fn get(&self, id: &str) -> Result<Arc<Model>, Refusal> {
        self.lock()
            .get(id)
            .cloned()
            .ok_or_else(|| Refusal::missing(format!("no such model: {id}")))
    }

    pub(in crate::local) fn add(&self, model: Arc<Model>) {
        self.lock().insert(model.id.clone(), model);
    }

    /// Takes a model out; what its queue already runs ends by itself.
    pub(in crate::local) fn remove(&self, id: &str) -> Option<Arc<Model>> {
        self.lock().remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Model>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
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
        }
    }

    /// Takes a numbered request in and gives back its id: always the same for the same number.
    pub(in crate::local) fn submit(
        self: &Arc<Self>,
        service: &Arc<Service>,
        number: Option<u64>,
        endpoint: &'static str,
        work: Work,
    ) -> Result<String, Refusal> {
        // Protobuf cannot tell an absent number from 0, and numbers start at 1.
        let number = number.filter(|number| *number > 0);
        let request_id = match number {
            Some(number) => format!("{}:{number}", self.id),
            None => uuid::Uuid::new_v4().to_string(),
        };
        let mut hasher = DefaultHasher::new();
        work.signature().hash(&mut hasher);
        let job = Job {
            request_id: request_id.clone(),
            endpoint,
            work,
        };
        let mut queue = self.lock();
        let next = queue.sequence.next();
        match queue.sequence.admit(number, hasher.finish(), job) {
            Admission::Ready(jobs) => {
                for job in &jobs {
                    service.futures.open(&job.request_id, None, None);
                    service.futures.pause(&job.request_id, None);
                }
                queue.ready.extend(jobs);
                self.schedule(service, &mut queue);
            }
            Admission::Held => {
                service.futures.open(&request_id, None, None);
                let reason = format!("waiting for request {next} of model {}", self.id);
                service.futures.pause(&request_id, Some(reason));
            }
            Admission::Repeated => {}
            Admission::Taken => {
                return Err(Refusal::conflict(format!(
                    "request number {} of model {} was used by another request",
                    number.unwrap_or(0),
                    self.id
                )));
            }
            Admission::Full => return Err(Refusal::busy("too many requests wait for this model")),
        }
        service.catalogue.touch_run(&self.id, jobs::now());
        Ok(request_id)
    }

    /// Runs work before everything else: how the model comes to be.
    pub(in crate::local) fn begin(self: &Arc<Self>, service: &Arc<Service>, job: Job) {
        let mut queue = self.lock();
        queue.ready.push_front(job);
        self.schedule(service, &mut queue);
    }

    /// Fails whatever still waits for lower numbers.
    pub(in crate::local) fn abandon(&self, service: &Service, reason: &str) {
        for job in self.lock().sequence.drain() {
            let outcome = Outcome::refused(reason);
            service.futures.finish(&job.request_id, outcome);
        }
    }

    fn schedule(self: &Arc<Self>, service: &Arc<Service>, queue: &mut Queue) {
        if !queue.running && !queue.ready.is_empty() {
            queue.running = true;
            let (model, service) = (self.clone(), service.clone());
            let crew = service.clone();
            crew.trainers.run(move || model.run_next(&service));
        }
    }

    /// Runs the front of the queue, then lets other models have a turn.
    fn run_next(self: &Arc<Self>, service: &Arc<Service>) {
        let job = self.lock().ready.pop_front();
        if let Some(job) = job {
            let start = jobs::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.run(service, job.work)))
                .unwrap_or_else(|_| {
                    service.catalogue.mark_corrupted(&self.id);
                    Outcome::failed("the engine failed; restore the model from a checkpoint")
                });
            service.trace(
                &self.session_id,
                &self.id,
                job.endpoint,
                &job.request_id,
                start,
            );
            service.finish(job.endpoint, &job.request_id, outcome);
        }
        let mut queue = self.lock();
        queue.running = false;
        self.schedule(service, &mut queue);
    }

    fn run(&self, service: &Arc<Service>, work: Work) -> Outcome {
        // Taken out while it works, so that a panic leaves no half-changed model behind.
        let mut trainer = self.lock_trainer().take();
        let outcome = jobs::run(service, self, &mut trainer, work);
        *self.lock_trainer() = trainer;
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_trainer(&self) -> MutexGuard<'_, Option<Trainer>> {
        self.trainer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
