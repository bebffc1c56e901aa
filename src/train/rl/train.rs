//! The loop: play, judge, train, save.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::env::{EnvDataset, EnvGroup};
use super::ledger::Ledger;
use super::metrics::{env_metrics, health};
use super::rollout::{Played, Stage, reward_pool, summaries};
use super::settings::{Mode, PolicyLoss, Rl};
use super::teach::{Lesson, LessonKind, distill, reverse_loss};
use crate::client::{SamplingClient, ServiceClient, TrainingClient};
use crate::loss::from_fn;
use crate::text::data::{KlEstimate, KlPenalty, TrajectoryGroup, full_sequence, trajectory_datums};
use crate::train::checkpoints::{Checkpoints, Due, Position};
use crate::train::evaluate::{Snapshot, evaluate_all};
use crate::train::fault;
use crate::train::interrupt::Interrupt;
use crate::train::model::freeze;
use crate::train::row::Row;
use crate::train::run::{Outcome, Report, Run};
use crate::train::scores::split;
use crate::train::steps::total_steps;
use crate::train::supervised::logprobs;
use crate::train::timing::Timing;
use crate::types::{
    AdamParams, Datum, ForwardBackwardOutput, LossFn, ModelInput, OptimStepResponse,
};
use crate::{Error, Pending, Result};

impl Rl {
    /// Trains, from the run's last checkpoint if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is nothing to train on, or a setting is wrong; else what the
    /// service returns, or an environment whose failures end the run. The run can be resumed from its last checkpoint.
    pub fn train(
        &self,
        service: &ServiceClient,
        run: &mut Run,
        data: &dyn EnvDataset,
    ) -> Result<Report> {
        self.check()?;
        let total = total_steps(data.batches(), 1, self.max_steps)?;
        let config = self.config(run);
        let Some((last, place)) = run.open_loop(&config, data.batches(), total)? else {
            return run.end(Outcome::Completed);
        };
        let start = place.step;
        let training = self.model.start(service, run, last.as_ref())?;
        let resumed = last.is_some();
        let frozen = |step| self.model.reference(service, run, &training, resumed, step);
        let reference = match (&self.kl_penalty, self.kl_to_start) {
            (_, Some(penalty)) => Some((penalty, frozen(0)?)),
            (Some((penalty, source)), None) if penalty.coefficient > 0.0 => {
                Some((*penalty, service.create_sampling_client(source.clone())?))
            }
            _ => None,
        };
        let own_teacher = match &self.self_distillation {
            Some(_) => Some(frozen(start)?),
            None => None,
        };
        let folder = run.folder().clone();
        let mut learner = Learner {
            settings: self,
            total,
            checkpoints: Checkpoints::new(service, &training, &folder, self.save.clone(), 0),
            sampler: training.save_weights_and_get_sampling_client()?,
            teachers: match &self.teachers {
                Some((penalty, sources)) => {
                    let teachers = sources
                        .iter()
                        .map(|s| service.create_sampling_client(s.clone()));
                    Some((*penalty, teachers.collect::<Result<Vec<_>>>()?))
                }
                None => None,
            },
            own_teacher,
            training,
            reference,
            rewards: Arc::new(reward_pool()?),
            failures: Failures::default(),
            ledger: match self.mode {
                Mode::Async { .. } => Some(Ledger::after(last.as_ref(), start)),
                _ => None,
            },
        };
        run.folder()
            .note(&format!("Will train on {total} batches"))?;
        let reached = match (self.mode, learner.ledger.clone()) {
            (
                Mode::Async {
                    max_steps_off_policy,
                },
                Some(ledger),
            ) => learner.go_async(run, data, start, (&ledger, max_steps_off_policy))?,
            _ => learner.go(run, data, start)?,
        };
        learner.end(run, reached)
    }
}

/// A group that was played, with what is known about it.
pub(super) struct Rollout {
    pub(super) group: TrajectoryGroup,
    pub(super) tags: Vec<String>,
    dataset: usize,
    teacher_prompt: Option<ModelInput>,
    /// The step of the weights it was played with.
    pub(super) sampler_step: usize,
    time: Duration,
}

/// A run under way.
pub(super) struct Learner<'a> {
    pub(super) settings: &'a Rl,
    pub(super) total: usize,
    pub(super) training: TrainingClient,
    pub(super) checkpoints: Checkpoints,
    pub(super) sampler: SamplingClient,
    reference: Option<(KlPenalty, SamplingClient)>,
    teachers: Option<(KlPenalty, Vec<SamplingClient>)>,
    /// The model as it began, or was last set to teach.
    own_teacher: Option<SamplingClient>,
    pub(super) rewards: Arc<rayon::ThreadPool>,
    pub(super) failures: Failures,
    /// Which groups are on their way, where several batches are.
    pub(super) ledger: Option<Ledger>,
}

/// What went wrong so far, by kind.
#[derive(Debug, Default)]
pub(super) struct Failures {
    kinds: BTreeMap<&'static str, usize>,
    groups: usize,
}

impl Failures {
    pub(super) fn count(&mut self, played: &Played) {
        for kind in &played.failures {
            *self.kinds.entry(kind).or_default() += 1;
        }
        self.groups += usize::from(played.group.is_none());
    }

    fn metrics(&self) -> Row {
        let mut row = Row::new();
        if self.kinds.is_empty() && self.groups == 0 {
            return row;
        }
        for (kind, count) in &self.kinds {
            row.set(format!("rollout_errors/{kind}"), *count as f64);
        }
        row.set(
            "rollout_errors/total",
            self.kinds.values().sum::<usize>() as f64,
        );
        row.set("rollout_errors/groups_skipped", self.groups as f64);
        row
    }
}

impl Learner<'_> {
    /// One batch after the other; returns the batch to go on with.
    fn go(&mut self, run: &mut Run, data: &dyn EnvDataset, start: usize) -> Result<usize> {
        for batch in start..self.total {
            if run.is_interrupted() {
                return Ok(batch);
            }
            let timing = Timing::start();
            let mut metrics = self.heading("progress/batch", batch);
            let stream = matches!(self.settings.mode, Mode::Stream { .. });
            metrics.merge(self.evaluate(run, batch, stream && batch + 1 == self.total, &timing)?);
            if run.is_interrupted() {
                return Ok(batch);
            }
            let groups = data.batch(batch);
            let groups = groups.map_err(|error| fault::callback("a batch", error))?;
            let trained = match self.settings.mode {
                Mode::Stream { minibatches } => {
                    Some(self.stream(run, batch, &groups, minibatches, &timing)?)
                }
                _ => self.play_and_train(run, batch, &groups, &timing)?,
            };
            if run.is_interrupted() && trained.is_none() {
                return Ok(batch);
            }
            metrics.merge(trained.unwrap_or_default());
            self.log(run, batch, metrics, timing)?;
        }
        Ok(self.total)
    }

    pub(super) fn heading(&self, name: &str, batch: usize) -> Row {
        Row::new()
            .with(name, batch)
            .with("optim/lr", self.settings.learning_rate)
            .with("progress/done_frac", (batch + 1) as f64 / self.total as f64)
    }

    fn stage<'s>(&'s self, batch: usize, interrupt: &'s Interrupt) -> Stage<'s> {
        Stage {
            params: &self.settings.sampling,
            limits: self.settings.limits,
            policy: self.settings.failures,
            seed: self.settings.seed,
            iteration: batch,
            threads: self.settings.threads.max(1),
            rewards: &self.rewards,
            interrupt,
        }
    }

    /// What evaluators and the test environments say about the weights before a batch.
    pub(super) fn evaluate(
        &mut self,
        run: &Run,
        batch: usize,
        anyway: bool,
        timing: &Timing,
    ) -> Result<Row> {
        let every = self.settings.eval_every;
        let mut metrics = Row::new();
        if every == 0 || !(batch.is_multiple_of(every) || anyway) {
            return Ok(metrics);
        }
        let snapshot = Snapshot::of(&self.training).with_sampler(self.sampler.clone());
        metrics.merge(evaluate_all(&self.settings.evaluators, &snapshot, timing)?);
        let Some(test) = &self.settings.test else {
            return Ok(metrics);
        };
        let mut groups = Vec::new();
        for index in 0..test.batches() {
            let more = test.batch(index);
            groups.extend(more.map_err(|error| fault::callback("a test batch", error))?);
        }
        let mut rollouts: Vec<Rollout> = Vec::new();
        let mut failures = Failures::default();
        let own = Timing::start();
        timing.span("run_evals", || {
            let stage = self.stage(batch, run.interrupt());
            stage.play(&self.sampler, &groups, &own, |index, played| {
                failures.count(&played);
                rollouts.extend(rollout(played, &groups[index], batch));
                Ok(())
            })
        })?;
        if run.is_interrupted() {
            // Some were not played, so the figures would be of others.
            return Ok(metrics);
        }
        run.folder()
            .write_rollouts(batch, "eval_test", &rows("eval/test", batch, &rollouts))?;
        for (name, value) in figures(&rollouts).iter().chain(failures.metrics().iter()) {
            metrics.set(format!("test/{name}"), value.clone());
        }
        Ok(metrics)
    }

    /// Plays a whole batch, then trains on it. Nothing if it was interrupted, an empty row if
    /// every group failed.
    fn play_and_train(
        &mut self,
        run: &Run,
        batch: usize,
        groups: &[Arc<dyn EnvGroup>],
        timing: &Timing,
    ) -> Result<Option<Row>> {
        let mut played: Vec<Option<Played>> = groups.iter().map(|_| None).collect();
        timing.span("sampling", || {
            let stage = self.stage(batch, run.interrupt());
            stage.play(&self.sampler, groups, timing, |index, group| {
                played[index] = Some(group);
                Ok(())
            })
        })?;
        if run.is_interrupted() {
            return Ok(None);
        }
        let mut rollouts = Vec::new();
        for (played, builder) in played.into_iter().zip(groups) {
            let played = played.expect("every group is handed over unless interrupted");
            self.failures.count(&played);
            rollouts.extend(rollout(played, builder, batch));
        }
        if rollouts.is_empty() {
            ::log::warn!("batch {batch}: every group failed; nothing to train on");
            return Ok(Some(Row::new()));
        }
        self.train_on(run, batch, rollouts, timing).map(Some)
    }

    /// Trains on rollouts and makes a sampler of the new weights.
    pub(super) fn train_on(
        &mut self,
        run: &Run,
        batch: usize,
        mut rollouts: Vec<Rollout>,
        timing: &Timing,
    ) -> Result<Row> {
        run.folder()
            .write_rollouts(batch, "train", &rows("train", batch, &rollouts))?;
        if self.settings.remove_constant_reward_groups {
            rollouts = without_constant(rollouts);
        }
        timing.span("do_train_step_and_get_sampling_client", || {
            let mut metrics = figures(&rollouts);
            let (data, lesson) = self.prepare(&rollouts, timing)?;
            if data.is_empty() {
                ::log::warn!("batch {batch}: nothing was said; nothing to train on");
                return Ok(metrics);
            }
            metrics.merge(lesson.metrics.clone());
            let trained = timing.span("train_step", || self.substeps(&lesson))?;
            metrics.merge(trained.metrics);
            let name = "compute_full_batch_metrics_and_get_sampling_client";
            let concluded = timing.span(name, || {
                self.conclude(run, batch, &data, &trained.logprobs, timing)
            });
            metrics.merge(concluded?);
            Ok(metrics)
        })
    }

    /// Examples of rollouts, with their mask, and what is trained on.
    fn prepare(&self, rollouts: &[Rollout], timing: &Timing) -> Result<(Vec<Datum>, Lesson)> {
        timing.span("prepare_minibatch", || {
            let groups: Vec<TrajectoryGroup> = rollouts.iter().map(|r| r.group.clone()).collect();
            let data = timing.span("assemble_training_data", || trajectory_datums(&groups))?;
            let origin: Vec<&Rollout> = data.iter().map(|datum| &rollouts[datum.group]).collect();
            let mut data: Vec<Datum> = data.into_iter().map(|datum| datum.datum).collect();
            let mut metrics = Row::new();
            if let Some((penalty, reference)) = &self.reference {
                let average = timing.span("kl_vs_base", || {
                    let scored = whole_logprobs(reference, &data)?;
                    penalty.apply(&mut data, &scored)
                })?;
                metrics.set("kl_policy_base", f64::from(average));
            }
            if let Some((penalty, teachers)) = &self.teachers {
                let datasets: Vec<usize> = origin.iter().map(|rollout| rollout.dataset).collect();
                let judged = timing.span("compute_teacher_logprobs", || {
                    distill(penalty, teachers, &mut data, &datasets)
                });
                metrics.merge(judged?);
            }
            let mut lesson = match (&self.settings.self_distillation, &self.own_teacher) {
                (Some(distillation), Some(teacher)) => {
                    let prompts = origin.iter().map(|rollout| {
                        rollout.teacher_prompt.clone().ok_or_else(|| {
                            Error::invalid("teacher_prompt", "self-distillation needs one")
                        })
                    });
                    let prompts = prompts.collect::<Result<Vec<_>>>()?;
                    timing.span("build_lesson", || {
                        distillation.lesson(teacher, &data, &prompts)
                    })?
                }
                _ => Lesson::policy(&data),
            };
            metrics.merge(std::mem::take(&mut lesson.metrics));
            lesson.metrics = metrics;
            Ok((data, lesson))
        })
    }

    /// Trains on parts of a batch, each submitted before the one before it is awaited.
    fn substeps(&self, lesson: &Lesson) -> Result<Trained> {
        let mut trained = Trained::default();
        let mut before: Option<Submitted> = None;
        for part in split(lesson.data.len(), self.settings.substeps) {
            let submitted = Submitted {
                gradients: vec![self.forward_backward(&lesson.data[part], lesson.kind)?],
                update: self.training.optim_step(self.adam())?,
            };
            if let Some(submitted) = before.replace(submitted) {
                trained.add(submitted, lesson.kind)?;
            }
        }
        if let Some(submitted) = before {
            trained.add(submitted, lesson.kind)?;
        }
        Ok(trained)
    }

    fn adam(&self) -> AdamParams {
        self.settings
            .adam
            .with_learning_rate(self.settings.learning_rate)
    }

    fn forward_backward(
        &self,
        data: &[Datum],
        kind: LessonKind,
    ) -> Result<Pending<ForwardBackwardOutput>> {
        match (kind, &self.settings.loss) {
            (LessonKind::Soft, _) => self.training.forward_backward(data, LossFn::CrossEntropy),
            (LessonKind::Reverse, _) => self
                .training
                .forward_backward_custom(data, from_fn(reverse_loss)),
            (_, PolicyLoss::Server(loss)) => self.training.forward_backward(data, loss.clone()),
            (_, PolicyLoss::Custom(objective)) => self
                .training
                .forward_backward_custom(data, objective.clone()),
        }
    }

    /// Plays a batch and trains on each part of it as soon as it is there.
    fn stream(
        &mut self,
        run: &Run,
        batch: usize,
        groups: &[Arc<dyn EnvGroup>],
        minibatches: usize,
        timing: &Timing,
    ) -> Result<Row> {
        let parts = self.settings.substeps * minibatches;
        if !groups.len().is_multiple_of(parts) {
            let problem = format!("{} groups cannot be cut into {parts} parts", groups.len());
            return Err(Error::invalid("minibatches", problem));
        }
        let mut part = Part::default();
        let mut kind = LessonKind::Policy;
        let (mut submitted, mut gradients): (Vec<Submitted>, Vec<_>) = (Vec::new(), Vec::new());
        let (mut data, mut rollouts, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let (mut metrics, mut failures) = (Row::new(), Vec::new());
        let constant_too = !self.settings.remove_constant_reward_groups;
        // Parts of the batch change the weights, so it is not broken off in the middle.
        let never = Interrupt::new();
        let stage = self.stage(batch, &never);
        timing.span("sampling", || {
            stage.play(&self.sampler, groups, timing, |index, played| {
                failures.push(count_only(&played));
                part.groups += 1;
                match rollout(played, &groups[index], batch) {
                    Some(rollout) if constant_too || !rollout.group.is_constant() => {
                        part.rollouts.push(rollout);
                    }
                    constant => left_out.extend(constant),
                }
                if part.groups < groups.len() / parts {
                    return Ok(());
                }
                let ready = std::mem::take(&mut part);
                if !ready.rollouts.is_empty() {
                    let (examples, lesson) = self.prepare(&ready.rollouts, timing)?;
                    if !examples.is_empty() {
                        gradients.push(self.forward_backward(&lesson.data, lesson.kind)?);
                        kind = lesson.kind;
                        metrics.merge(lesson.metrics);
                    }
                    data.extend(examples);
                    rollouts.extend(ready.rollouts);
                }
                part.done = ready.done + 1;
                if part.done.is_multiple_of(minibatches) && !gradients.is_empty() {
                    let gradients = std::mem::take(&mut gradients);
                    let update = self.training.optim_step(self.adam())?;
                    submitted.push(Submitted { gradients, update });
                }
                Ok(())
            })
        })?;
        for played in &failures {
            self.failures.count(played);
        }
        let mut figures = figures(&rollouts);
        let ages = sampler_steps(&rollouts);
        rollouts.extend(left_out);
        run.folder()
            .write_rollouts(batch, "train", &rows("train", batch, &rollouts))?;
        if data.is_empty() {
            return Ok(figures);
        }
        figures.merge(metrics);
        let mut trained = Trained::default();
        for step in submitted {
            timing.span("train_step", || trained.add(step, kind))?;
        }
        figures.merge(trained.metrics);
        figures.merge(ages);
        figures.merge(self.conclude(run, batch, &data, &trained.logprobs, timing)?);
        Ok(figures)
    }

    /// After a step: how healthy it was, a checkpoint if one is due, and a sampler of the new
    /// weights.
    fn conclude(
        &mut self,
        run: &Run,
        batch: usize,
        data: &[Datum],
        trained: &[Vec<f32>],
        timing: &Timing,
    ) -> Result<Row> {
        let mut metrics = Row::new();
        if !trained.is_empty() {
            let kl = timing.span("compute_kl_sample_train", || {
                KlEstimate::of_training(data, trained)
            });
            metrics.merge(health(kl?));
        }
        let every = self
            .settings
            .self_distillation
            .as_ref()
            .and_then(|s| s.sync_every);
        if every.is_some_and(|every| every > 0 && (batch + 1).is_multiple_of(every)) {
            self.own_teacher = Some(freeze(run, &self.training, batch + 1)?);
        }
        let position = self.position(batch + 1);
        let due = match batch + 1 == self.total {
            true => Due::Nothing,
            false => self.checkpoints.due(&position),
        };
        self.sampler = timing.span("save_checkpoint_and_get_sampling_client", || {
            let saved = match due {
                Due::Periodic => timing.span("save_checkpoint", || {
                    self.checkpoints.save_unwritten(due, &position)
                })?,
                _ => None,
            };
            match saved.and_then(|saved| saved.sampler_path) {
                Some(path) => self.training.create_sampling_client(path.as_str()),
                None => self.training.save_weights_and_get_sampling_client(),
            }
        })?;
        if self.settings.compute_post_kl {
            let after = timing.span("compute_post_kl", || whole_logprobs(&self.sampler, data))?;
            let kl = KlEstimate::of_sampler(data, &after)?;
            metrics.set("kl_pre_post_v1", kl.v1);
            metrics.set("kl_pre_post_v2", kl.v2);
        }
        if due == Due::Rolling {
            self.checkpoints.save_unwritten(due, &position)?;
        }
        Ok(metrics)
    }

    /// Logs a batch, then writes down the checkpoint that holds it.
    pub(super) fn log(
        &mut self,
        run: &mut Run,
        batch: usize,
        mut metrics: Row,
        timing: Timing,
    ) -> Result<()> {
        metrics.merge(timing.metrics());
        metrics.set("time/total", timing.elapsed().as_secs_f64());
        metrics.merge(self.failures.metrics());
        run.log(batch, &metrics, &timing)?;
        self.checkpoints.write_down()
    }

    /// The last checkpoint, of a run that came to its end or was interrupted.
    fn end(mut self, run: &mut Run, reached: usize) -> Result<Report> {
        let (outcome, position) = match run.is_interrupted() && reached < self.total {
            true => (Outcome::Interrupted, self.position(reached)),
            false => (Outcome::Completed, position(self.total)),
        };
        run.end_loop(&mut self.checkpoints, &position, outcome)
    }

    /// Where the run is after so many batches, and which groups are on their way then.
    fn position(&self, batch: usize) -> Position {
        let extra = self.ledger.as_ref().map(Ledger::to_row);
        Position {
            extra: extra.unwrap_or_default(),
            ..position(batch)
        }
    }
}

/// The groups of a part of a batch.
#[derive(Default)]
struct Part {
    groups: usize,
    done: usize,
    rollouts: Vec<Rollout>,
}

/// What came of a batch's steps.
#[derive(Default)]
struct Trained {
    /// Of every target, where targets are single tokens.
    logprobs: Vec<Vec<f32>>,
    metrics: Row,
}

impl Trained {
    fn add(&mut self, step: Submitted, kind: LessonKind) -> Result<()> {
        let (outputs, update) = step.join()?;
        for output in outputs {
            match kind {
                LessonKind::Policy => {
                    self.logprobs
                        .extend(logprobs(&output, output.loss_fn_outputs.len())?);
                }
                _ => {
                    let own = output
                        .metrics
                        .into_iter()
                        .filter(|(name, _)| name.starts_with("sdft/"));
                    own.for_each(|(name, value)| self.metrics.set(name, value));
                }
            }
        }
        for (name, value) in update.metrics.into_iter().flatten() {
            self.metrics.set(name, value);
        }
        Ok(())
    }
}

/// A step whose results are awaited.
struct Submitted {
    gradients: Vec<Pending<ForwardBackwardOutput>>,
    update: Pending<OptimStepResponse>,
}

impl Submitted {
    fn join(self) -> Result<(Vec<ForwardBackwardOutput>, OptimStepResponse)> {
        let outputs = crate::join_all(self.gradients)
            .into_iter()
            .collect::<Result<_>>()?;
        Ok((outputs, self.update.join()?))
    }
}

/// A batch is its own position.
fn position(batch: usize) -> Position {
    Position {
        steps: batch,
        batch: batch as u64,
        ..Position::default()
    }
}

pub(super) fn rollout(
    played: Played,
    builder: &Arc<dyn EnvGroup>,
    sampler_step: usize,
) -> Option<Rollout> {
    Some(Rollout {
        group: played.group?,
        tags: builder.tags(),
        dataset: builder.dataset(),
        teacher_prompt: builder.teacher_prompt(),
        sampler_step,
        time: played.time,
    })
}

/// A group's failures without the group.
fn count_only(played: &Played) -> Played {
    Played {
        group: played.group.as_ref().map(|_| TrajectoryGroup::default()),
        failures: played.failures.clone(),
        time: played.time,
    }
}

fn without_constant(rollouts: Vec<Rollout>) -> Vec<Rollout> {
    let (constant, mixed): (Vec<Rollout>, Vec<Rollout>) = rollouts
        .into_iter()
        .partition(|rollout| rollout.group.is_constant());
    match mixed.is_empty() {
        true => constant.into_iter().take(1).collect(),
        false => mixed,
    }
}

/// Nothing where nothing was played: a reward of 0 would be one that nobody got.
fn figures(rollouts: &[Rollout]) -> Row {
    if rollouts.is_empty() {
        return Row::new();
    }
    let groups: Vec<_> = rollouts
        .iter()
        .map(|r| (&r.group, r.tags.clone()))
        .collect();
    env_metrics(&groups)
}

fn rows(split: &str, batch: usize, rollouts: &[Rollout]) -> Vec<Row> {
    let groups = rollouts
        .iter()
        .map(|r| (&r.group, r.tags.as_slice(), r.sampler_step));
    summaries(split, batch, groups)
}

/// How old the weights were that groups were played with, and how long that took.
pub(super) fn sampler_steps(rollouts: &[Rollout]) -> Row {
    let steps = || rollouts.iter().map(|rollout| rollout.sampler_step);
    let times = || rollouts.iter().map(|rollout| rollout.time);
    let seconds = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
    let count = rollouts.len().max(1) as f64;
    Row::new()
        .with("sampling_client/step_max", steps().max().unwrap_or(0))
        .with("sampling_client/step_min", steps().min().unwrap_or(0))
        .with(
            "sampling_client/step_mean",
            steps().sum::<usize>() as f64 / count,
        )
        .with("time/sampling_time_max", seconds(times().max()))
        .with("time/sampling_time_min", seconds(times().min()))
        .with(
            "time/sampling_time_mean",
            seconds(Some(times().sum())) / count,
        )
}

/// The log probability of every token of every example's whole sequence.
pub(crate) fn whole_logprobs(sampler: &SamplingClient, data: &[Datum]) -> Result<Vec<Vec<f32>>> {
    let prompts = data.iter().map(full_sequence).collect::<Result<Vec<_>>>()?;
    let mut scored = vec![Vec::new(); data.len()];
    for (index, logprobs) in sampler.compute_logprobs_batch(prompts) {
        scored[index] = logprobs?.as_raw().to_vec();
    }
    Ok(scored)
}
