//! Playing ahead of training, off-policy by a bounded number of steps.

use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::env::{EnvDataset, EnvGroup};
use super::rollout::{Played, Stage};
use super::settings::Rl;
use super::train::{Learner, Rollout, rollout, sampler_steps};
use crate::client::SamplingClient;
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::train::fault;
use crate::train::interrupt::Interrupt;
use crate::train::run::Run;
use crate::train::timing::Timing;

type Group = Arc<dyn EnvGroup>;

/// A group, what became of it, and the step of the weights it was played with.
type Outcome = (Group, Result<Option<Played>>, usize);

/// The newest sampler and its step.
type Newest = Arc<Mutex<(SamplingClient, usize)>>;

impl Learner<'_> {
    /// One thread hands out groups, as many as a batch has play them with the newest weights, and
    /// this one trains. Returns the batch to go on with.
    pub(super) fn go_async(
        &mut self,
        run: &mut Run,
        data: &dyn EnvDataset,
        start: usize,
        max_steps_off_policy: usize,
    ) -> Result<usize> {
        let first = data.batch(start);
        let size = first
            .map_err(|error| fault::callback("a batch", error))?
            .len()
            .max(1);
        let newest: Newest = Arc::new(Mutex::new((self.sampler.clone(), start)));
        let halt = Interrupt::new();
        let (queue, waiting) = bounded::<Group>(size);
        let (again, returned) = unbounded::<Group>();
        let (done, outcomes) = unbounded::<Outcome>();
        let players = Players {
            settings: self.settings,
            rewards: self.rewards.clone(),
            halt: halt.clone(),
            waiting,
            newest: newest.clone(),
            done,
        };
        let total = self.total;
        let stop = halt.clone();
        thread::scope(|scope| {
            let load = move || hand_out(data, start..total, &queue, &returned, &stop);
            let mut started = spawn(scope, "tinker-load".into(), load);
            for number in 0..size {
                let players = players.clone();
                let name = format!("tinker-play-{number}");
                started = started.and_then(|()| spawn(scope, name, move || players.play()));
            }
            if let Err(error) = started {
                halt.set();
                return Err(error);
            }
            // The trainer must hear when the last player has gone.
            drop(players);
            let trainer = Trainer {
                size,
                newest: &newest,
                outcomes: &outcomes,
                again: &again,
                max_steps_off_policy,
            };
            let reached = trainer.go(self, run, start);
            halt.set();
            // Players may be waiting for a group, the loader for a player: both find nobody.
            drop(again);
            drop(outcomes);
            reached
        })
    }
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    work: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    let named = thread::Builder::new().name(name).spawn_scoped(scope, work);
    named
        .map(drop)
        .map_err(|error| Error::Internal(Context::caused("cannot start a thread", error)))
}

/// Hands out every group once, and again those that came back too old.
fn hand_out(
    data: &dyn EnvDataset,
    batches: std::ops::Range<usize>,
    queue: &Sender<Group>,
    returned: &Receiver<Group>,
    halt: &Interrupt,
) {
    for batch in batches {
        let groups = match data.batch(batch) {
            Ok(groups) => groups,
            Err(error) => {
                ::log::error!("batch {batch} cannot be made, and is left out: {error}");
                continue;
            }
        };
        for group in groups {
            for group in returned.try_iter().chain([group]) {
                if halt.is_set() || queue.send(group).is_err() {
                    return;
                }
            }
        }
    }
}

/// What a player needs.
#[derive(Clone)]
struct Players<'a> {
    settings: &'a Rl,
    rewards: Arc<rayon::ThreadPool>,
    halt: Interrupt,
    waiting: Receiver<Group>,
    newest: Newest,
    done: Sender<Outcome>,
}

impl Players<'_> {
    fn play(self) {
        for group in &self.waiting {
            if self.halt.is_set() {
                return;
            }
            let (sampler, step) = lock(&self.newest).clone();
            let played = self.play_one(&sampler, step, &group);
            if self.done.send((group, played, step)).is_err() {
                return;
            }
        }
    }

    fn play_one(
        &self,
        sampler: &SamplingClient,
        step: usize,
        group: &Group,
    ) -> Result<Option<Played>> {
        let stage = Stage {
            params: &self.settings.sampling,
            limits: self.settings.limits,
            policy: self.settings.failures,
            // Which group is played with which weights depends on the speed of others, so the
            // same seeds would not give the same run.
            seed: None,
            iteration: step,
            threads: self.settings.threads.max(1),
            rewards: &self.rewards,
            interrupt: &self.halt,
        };
        let mut outcome = None;
        stage.play(
            sampler,
            std::slice::from_ref(group),
            &Timing::start(),
            |_, played| {
                outcome = Some(played);
                Ok(())
            },
        )?;
        Ok(outcome)
    }
}

/// Trains on what players bring.
struct Trainer<'a> {
    size: usize,
    newest: &'a Newest,
    outcomes: &'a Receiver<Outcome>,
    again: &'a Sender<Group>,
    max_steps_off_policy: usize,
}

impl Trainer<'_> {
    fn go(&self, learner: &mut Learner<'_>, run: &mut Run, start: usize) -> Result<usize> {
        let mut batch = start;
        while batch < learner.total && !run.is_interrupted() {
            let timing = Timing::start();
            let mut metrics = learner.heading("training_client/step", batch);
            metrics.merge(learner.evaluate(run, batch, false, &timing)?);
            let Some(rollouts) = timing.span("sampling", || self.collect(learner, run, batch))?
            else {
                break;
            };
            metrics.merge(sampler_steps(&rollouts));
            metrics.merge(learner.train_on(run, batch, rollouts, &timing)?);
            *lock(self.newest) = (learner.sampler.clone(), batch + 1);
            learner.log(run, batch, metrics, timing)?;
            batch += 1;
        }
        Ok(batch)
    }

    /// A batch of groups that are young enough; nothing when no more will come.
    fn collect(
        &self,
        learner: &mut Learner<'_>,
        run: &Run,
        batch: usize,
    ) -> Result<Option<Vec<Rollout>>> {
        let mut rollouts = Vec::new();
        while rollouts.len() < self.size {
            let Ok((group, played, step)) = self.outcomes.recv() else {
                return Ok(None);
            };
            if run.is_interrupted() {
                return Ok(None);
            }
            let Some(played) = played? else {
                continue;
            };
            learner.failures.count(&played);
            if batch - step > self.max_steps_off_policy {
                // Once everything has been handed out, nobody listens, and it is left out.
                let _ = self.again.send(group);
                continue;
            }
            rollouts.extend(rollout(played, &group, step));
        }
        Ok(Some(rollouts))
    }
}
