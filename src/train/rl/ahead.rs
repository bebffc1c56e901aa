//! Playing ahead of training, off-policy by a bounded number of steps.

use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::env::{EnvDataset, EnvGroup};
use super::ledger::{Ledger, Place};
use super::rollout::{Played, Stage};
use super::settings::Rl;
use super::train::{Learner, Rollout, rollout, sampler_steps};
use crate::client::SamplingClient;
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::text::data::TrajectoryGroup;
use crate::train::fault;
use crate::train::interrupt::Interrupt;
use crate::train::run::Run;
use crate::train::timing::Timing;

/// A group and its place in the data.
#[derive(Clone)]
struct Ticket {
    place: Place,
    group: Arc<dyn EnvGroup>,
}

/// What the trainer hears.
enum News {
    /// A group was played with the weights of this step; nothing came of it if it was broken off.
    Played(Ticket, Option<Played>, usize),
    /// Every group has been handed out.
    AllOut,
}

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
        (ledger, max_steps_off_policy): (&Ledger, usize),
    ) -> Result<usize> {
        let first = data.batch(start);
        let first = first.map_err(|error| fault::callback("a batch", error))?;
        let size = first.len().max(1);
        if ledger.open() > 0 {
            let open = ledger.open();
            run.folder().note(&format!(
                "{open} groups were on their way and are played anew"
            ))?;
        }
        let newest: Newest = Arc::new(Mutex::new((self.sampler.clone(), start)));
        let halt = Interrupt::new();
        let (queue, waiting) = bounded::<Ticket>(size);
        let (again, returned) = unbounded::<Ticket>();
        let (done, news) = unbounded::<Result<News>>();
        let loader = Loader {
            data,
            batches: self.total,
            ledger: ledger.clone(),
            queue,
            returned,
            done: done.clone(),
            halt: halt.clone(),
        };
        let players = Players {
            settings: self.settings,
            rewards: self.rewards.clone(),
            halt: halt.clone(),
            waiting,
            newest: newest.clone(),
            done,
        };
        thread::scope(|scope| {
            let mut started = spawn(scope, "tinker-load".into(), move || loader.load());
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
            let mut trainer = Trainer {
                size,
                ledger,
                newest: &newest,
                news: &news,
                again: &again,
                max_steps_off_policy,
                all_out: false,
            };
            let reached = trainer.go(self, run, start);
            halt.set();
            // Players may be waiting for a group, the loader for a player: both find nobody.
            drop(again);
            drop(news);
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
struct Loader<'a> {
    data: &'a dyn EnvDataset,
    batches: usize,
    ledger: Ledger,
    queue: Sender<Ticket>,
    returned: Receiver<Ticket>,
    done: Sender<Result<News>>,
    halt: Interrupt,
}

impl Loader<'_> {
    fn load(self) {
        for batch in self.ledger.first_batch()..self.batches {
            let groups = match self.data.batch(batch) {
                Ok(groups) => groups,
                Err(error) => {
                    let _ = self.done.send(Err(fault::callback("a batch", error)));
                    return;
                }
            };
            for (index, group) in groups.into_iter().enumerate() {
                let place = (batch, index);
                if !self.ledger.hand_out(place) {
                    continue;
                }
                for ticket in self.returned.try_iter().chain([Ticket { place, group }]) {
                    if self.halt.is_set() || self.queue.send(ticket).is_err() {
                        return;
                    }
                }
            }
        }
        let _ = self.done.send(Ok(News::AllOut));
        for ticket in &self.returned {
            if self.queue.send(ticket).is_err() {
                return;
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
    waiting: Receiver<Ticket>,
    newest: Newest,
    done: Sender<Result<News>>,
}

impl Players<'_> {
    fn play(self) {
        for ticket in &self.waiting {
            if self.halt.is_set() {
                return;
            }
            let (sampler, step) = lock(&self.newest).clone();
            let played = self.play_one(&sampler, step, &ticket.group);
            let news = played.map(|played| News::Played(ticket, played, step));
            if self.done.send(news).is_err() {
                return;
            }
        }
    }

    fn play_one(
        &self,
        sampler: &SamplingClient,
        step: usize,
        group: &Arc<dyn EnvGroup>,
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
    ledger: &'a Ledger,
    newest: &'a Newest,
    news: &'a Receiver<Result<News>>,
    again: &'a Sender<Ticket>,
    max_steps_off_policy: usize,
    all_out: bool,
}

impl Trainer<'_> {
    fn go(&mut self, learner: &mut Learner<'_>, run: &mut Run, start: usize) -> Result<usize> {
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

    /// A batch of groups that are young enough, or what is left of them; nothing when no more
    /// will come.
    fn collect(
        &mut self,
        learner: &mut Learner<'_>,
        run: &Run,
        batch: usize,
    ) -> Result<Option<Vec<Rollout>>> {
        let (mut rollouts, mut places) = (Vec::new(), Vec::new());
        let without_constant = learner.settings.remove_constant_reward_groups;
        let is_left_out = |group: &TrajectoryGroup| without_constant && group.is_constant();
        while rollouts.len() < self.size && !(self.all_out && self.ledger.open() == places.len()) {
            let Ok(news) = self.news.recv() else {
                return Ok(None);
            };
            if run.is_interrupted() {
                return Ok(None);
            }
            match news? {
                News::AllOut => self.all_out = true,
                News::Played(_, None, _) => {}
                News::Played(ticket, Some(_), step) if batch - step > self.max_steps_off_policy => {
                    // The loader listens for as long as there is a trainer.
                    let _ = self.again.send(ticket);
                }
                News::Played(ticket, Some(played), step) => {
                    learner.failures.count(&played);
                    places.push(ticket.place);
                    let rollout = rollout(played, &ticket.group, step);
                    // Others are played in their place, so that batches stay full.
                    rollouts.extend(rollout.filter(|rollout| !is_left_out(&rollout.group)));
                }
            }
        }
        self.ledger.close(&places);
        Ok(Some(rollouts).filter(|rollouts| !rollouts.is_empty()))
    }
}
