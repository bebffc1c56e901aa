//! The queues of models: requests go in by their numbers and are worked off by a shared crew.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Workshop, jobs, saving};
use crate::local::state::futures::Outcome;
use crate::local::state::memory::Memory;
use crate::local::state::models::Model;
use crate::local::state::queue::{Job, Queue, Work};
use crate::local::state::sequence::Admission;
use crate::local::state::{self, StateError};
use crate::sync::lock;

/// Takes a numbered request in and gives back its id: always the same for the same number.
pub(in crate::local) fn submit(
    workshop: &Arc<Workshop>,
    model: &Arc<Model>,
    number: Option<u64>,
    endpoint: &'static str,
    work: Work,
) -> Result<String, StateError> {
    // Protobuf cannot tell an absent number from 0, and numbers start at 1.
    let number = number.filter(|number| *number > 0);
    let request_id = match number {
        Some(number) => format!("{}:{number}", model.id),
        None => uuid::Uuid::new_v4().to_string(),
    };
    let mut hasher = DefaultHasher::new();
    work.signature().hash(&mut hasher);
    let promise = |memory: &Memory| memory.promise("data", work.bytes()).ok();
    let memory = promise(&workshop.waiting).zip(promise(&workshop.memory));
    let has_room = memory.is_some();
    let job = Job {
        request_id: request_id.clone(),
        endpoint,
        is_numbered: number.is_some(),
        work,
        memory: memory.map(Into::into),
    };
    let futures = &workshop.state.futures;
    let owner = workshop.owner_of(model);
    let mut queue = lock(&model.queue);
    // It was there when it was looked up.
    if queue.ended {
        let problem = format!("{} is no longer in training", model.id);
        return Err(StateError::Ended(problem));
    }
    // What nothing goes on without is let in all the same, and what comes again takes no room.
    let waits = !queue.ready.is_empty() || queue.sequence.would_hold(number);
    if !has_room && waits && !queue.sequence.knows(number) {
        let problem = "too much memory is taken by requests that wait";
        return Err(StateError::Full(problem.to_owned()));
    }
    let next = queue.sequence.next();
    match queue.sequence.admit(number, hasher.finish(), job) {
        Admission::Ready(jobs) => {
            for job in &jobs {
                futures.open(&job.request_id, &owner, None, None);
                futures.pause(&job.request_id, None);
            }
            queue.ready.extend(jobs);
            schedule(workshop, model, &mut queue);
        }
        Admission::Held => {
            futures.open(&request_id, &owner, None, None);
            let reason = format!("waiting for request {next} of model {}", model.id);
            futures.pause(&request_id, Some(reason));
        }
        Admission::Repeated => {}
        Admission::Taken => {
            return Err(StateError::Conflict(format!(
                "request number {} of model {} was used by another request",
                number.unwrap_or(0),
                model.id
            )));
        }
        Admission::Full => {
            let problem = "too many requests wait for this model";
            return Err(StateError::Full(problem.to_owned()));
        }
    }
    workshop.state.catalogue.touch_run(&model.id, state::now());
    Ok(request_id)
}

/// Runs work before everything else: how the model comes to be.
pub(in crate::local) fn begin(workshop: &Arc<Workshop>, model: &Arc<Model>, job: Job) {
    let mut queue = lock(&model.queue);
    queue.ready.push_front(job);
    schedule(workshop, model, &mut queue);
}

fn schedule(workshop: &Arc<Workshop>, model: &Arc<Model>, queue: &mut Queue) {
    if !queue.running && !queue.is_idle() {
        queue.running = true;
        let (model, shop) = (model.clone(), workshop.clone());
        workshop.trainers.run(move || run_next(&shop, &model));
    }
}

/// Has something other than a request done with a model.
pub(super) fn wish(workshop: &Arc<Workshop>, model: &Arc<Model>, change: impl FnOnce(&mut Queue)) {
    let mut queue = lock(&model.queue);
    change(&mut queue);
    schedule(workshop, model, &mut queue);
}

/// Being the only one at work on a model. However it ends, the queue goes on.
struct Turn<'a>(&'a Arc<Workshop>, &'a Arc<Model>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        wish(self.0, self.1, |queue| queue.running = false);
    }
}

/// Does something with a model that no task is at work on; nothing otherwise.
pub(super) fn while_idle(workshop: &Arc<Workshop>, model: &Arc<Model>, work: impl FnOnce()) {
    if std::mem::replace(&mut lock(&model.queue).running, true) {
        return;
    }
    let _turn = Turn(workshop, model);
    work();
}

/// Runs the front of the queue, then lets other models have a turn.
fn run_next(workshop: &Arc<Workshop>, model: &Arc<Model>) {
    let _turn = Turn(workshop, model);
    if std::mem::take(&mut lock(&model.queue).save_due) {
        saving::save(workshop, model);
    }
    let (job, farewell) = {
        let mut queue = lock(&model.queue);
        let job = queue.ready.pop_front();
        // Only the last one finds nothing to do before it.
        let farewell = queue.farewell.take_if(|_| job.is_none());
        (job, farewell)
    };
    if let Some(mut job) = job {
        // It waits no longer; what it takes now it promises itself.
        job.memory = None;
        let (state, start) = (&workshop.state, state::now());
        let work = || {
            saving::begin_request(workshop, model);
            run(workshop, model, job.work)
        };
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            state.catalogue.mark_corrupted(&model.id);
            Outcome::failed("the engine failed; restore the model from a checkpoint")
        });
        let id = &job.request_id;
        state.trace(&model.session_id, &model.id, job.endpoint, id, start);
        state.finish(job.endpoint, id, outcome);
    }
    if farewell.is_some() {
        saving::save(workshop, model);
    }
    drop(farewell);
}

fn run(workshop: &Workshop, model: &Model, work: Work) -> Outcome {
    // Taken out while it works, so that a panic leaves no half-changed model behind.
    let mut trainer = lock(&model.trainer).take();
    let outcome = jobs::run(workshop, model, &mut trainer, work);
    *lock(&model.trainer) = trainer;
    outcome
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ill, runtime, workshop};
    use super::*;
    use crate::types::OptimizerParams;

    /// Nobody would ever answer it.
    #[test]
    fn a_model_that_has_ended_takes_nothing_in() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        let ask = |number| {
            let step = Work::Step(OptimizerParams::default());
            submit(&workshop, &model, Some(number), "optim_step", step)
        };
        let waiting = ask(2).unwrap();
        assert_eq!(workshop.state.end_model(&model.id), [waiting]);
        for number in [2, 3, 1] {
            assert!(matches!(ask(number), Err(StateError::Ended(_))), "{number}");
        }
    }

    /// Whatever ends somebody's turn with a model: the next one has it.
    #[test]
    fn a_panic_leaves_no_model_at_work_for_ever() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        ill(&model);
        let idle = || while_idle(&workshop, &model, || saving::save(&workshop, &model));
        assert!(catch_unwind(AssertUnwindSafe(idle)).is_err());
        assert!(!lock(&model.queue).running);
        for is_last in [false, true] {
            let (sender, done) = crossbeam_channel::bounded::<()>(0);
            {
                let mut queue = lock(&model.queue);
                queue.running = true;
                queue.save_due = !is_last;
                queue.farewell = Some(sender).filter(|_| is_last);
            }
            let next = || run_next(&workshop, &model);
            assert!(catch_unwind(AssertUnwindSafe(next)).is_err());
            assert!(!lock(&model.queue).running, "{is_last}");
            assert!(done.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected));
        }
    }
}
