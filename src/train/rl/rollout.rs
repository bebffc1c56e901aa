//! Playing episodes: threads for environments, a pool for rewards, and what happens to failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::env::{Env, EnvGroup, Observation};
use crate::client::SamplingClient;
use crate::error::{Context, Error, Result};
use crate::text::data::{Trajectory, TrajectoryGroup, Transition};
use crate::train::fault;
use crate::train::interrupt::Interrupt;
use crate::train::row::Row;
use crate::train::timing::Timing;
use crate::types::{ModelInput, SampledSequence, SamplingParams, StopReason};

/// The metric of how many answers of an episode were cut off and went on all the same.
const UNENDED: &str = "num_truncations_max_turn_tokens";

/// What happens when an episode fails.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// The run ends with the episode's error.
    #[default]
    FailFast,
    /// The episode is played anew, at most so often for all episodes of a group; after that the
    /// group is left out.
    Retry(u32),
    /// The group does without it, as long as this share of its episodes is there in the end; else
    /// it is left out. Until so many are done, up to three episodes of a group are played anew.
    MinViable(f64),
}

/// How often [`FailurePolicy::MinViable`] begins episodes of a group anew.
const VIABLE_RETRIES: u32 = 3;

impl FailurePolicy {
    /// Checks that a share is one.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::MinViable(share) if !(0.0..=1.0).contains(&share) => {
                let problem = format!("a share of episodes must be from 0 to 1, got {share}");
                Err(Error::invalid("failures", problem))
            }
            Self::MinViable(_) | Self::FailFast | Self::Retry(_) => Ok(()),
        }
    }

    /// How many of a group's episodes must be there in the end.
    fn enough(self, wanted: usize) -> usize {
        match self {
            // A share of 0.55 of 100 is 55, whatever the digits behind it.
            Self::MinViable(share) => (share * wanted as f64 - 1e-9).ceil() as usize,
            Self::FailFast | Self::Retry(_) => wanted,
        }
    }

    /// Whether a failed episode is begun anew, where `done` of the `wanted` ones are there, and so
    /// many were begun anew before.
    fn retries(self, (done, wanted): (usize, usize), before: u32) -> bool {
        match self {
            Self::FailFast => false,
            Self::Retry(most) => before < most,
            Self::MinViable(_) => before < VIABLE_RETRIES && done < self.enough(wanted),
        }
    }
}

/// How long an episode may become. What ends by a limit says so by the metric `stop/<reason>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Limits {
    /// The most turns, at least 1. Default: none.
    pub max_turns: Option<usize>,
    /// The most tokens of a prompt and its answer, at least 1. Default: none.
    pub max_trajectory_tokens: Option<usize>,
    /// The most sampled tokens of all turns, at least 1. Default: none.
    pub max_sampled_tokens: Option<usize>,
    /// How long it may take, more than 0; looked at before each turn. Default: as long as it takes.
    #[doc(alias = "rollout_timeout_seconds")]
    pub timeout: Option<Duration>,
    /// Whether an episode that was ended by one of these, or by the most calls of an
    /// [`Agent`](super::Agent), is worth no more than 0, however it is graded. Default: no.
    pub zero_reward_on_limit: bool,
}

/// The metrics of episodes that did not end by themselves.
const BY_LIMIT: [&str; 5] = [
    "stop/max_turns",
    "stop/max_tokens",
    "stop/max_sampled_tokens",
    "stop/max_tool_calls",
    "stop/rollout_timeout",
];

impl Limits {
    /// What an episode's group makes of it beside the rewards of its turns.
    fn clamped(&self, episode: &Trajectory, reward: f64) -> f64 {
        let last = episode.transitions.last();
        let by_limit = |name: &&str| last.is_some_and(|turn| turn.metrics.contains_key(*name));
        match self.zero_reward_on_limit && BY_LIMIT.iter().any(by_limit) {
            true => reward.min(-episode.reward()),
            false => reward,
        }
    }

    /// Checks that they leave room for an episode, as the cookbook does.
    pub(super) fn check(&self) -> Result<()> {
        let limits = [
            ("limits.max_turns", self.max_turns),
            ("limits.max_trajectory_tokens", self.max_trajectory_tokens),
            ("limits.max_sampled_tokens", self.max_sampled_tokens),
        ];
        match limits.into_iter().find(|(_, most)| *most == Some(0)) {
            Some((field, _)) => Err(Error::invalid(field, "must be at least 1, got 0")),
            None if self.timeout == Some(Duration::ZERO) => {
                Err(Error::invalid("limits.timeout", "must be more than 0"))
            }
            None => Ok(()),
        }
    }

    /// What a turn may sample, or why there is none.
    fn budget(
        &self,
        per_turn: u32,
        turns: usize,
        prompt: usize,
        sampled: usize,
    ) -> std::result::Result<u32, &'static str> {
        if self.max_turns.is_some_and(|most| turns >= most) {
            return Err("stop/max_turns");
        }
        let left = |most: Option<usize>, used: usize| {
            most.map_or(u32::MAX, |most| {
                most.saturating_sub(used).min(u32::MAX as usize) as u32
            })
        };
        let whole = left(self.max_trajectory_tokens, prompt);
        let said = left(self.max_sampled_tokens, sampled);
        match (whole, said) {
            (0..=1, _) => Err("stop/max_tokens"),
            (_, 0..=1) => Err("stop/max_sampled_tokens"),
            _ => Ok(per_turn.min(whole).min(said)),
        }
    }
}

/// What is needed to play.
pub(super) struct Stage<'a> {
    pub(super) params: &'a SamplingParams,
    pub(super) limits: Limits,
    pub(super) policy: FailurePolicy,
    /// Makes samples the same in every run of the same numbers.
    pub(super) seed: Option<u64>,
    pub(super) iteration: usize,
    pub(super) threads: usize,
    pub(super) rewards: &'a rayon::ThreadPool,
    pub(super) interrupt: &'a Interrupt,
}

/// A group that was played.
#[derive(Debug)]
pub(super) struct Played {
    /// Nothing if too many of its episodes failed.
    pub(super) group: Option<TrajectoryGroup>,
    /// The kinds of failures on the way.
    pub(super) failures: Vec<&'static str>,
    /// How long it took, its rewards included.
    pub(super) time: Duration,
}

/// An episode to be played.
struct Task {
    group: usize,
    episode: usize,
    /// How often it was begun before.
    again: u32,
    env: Box<dyn Env>,
}

/// The episodes of a group so far.
struct Tally {
    episodes: Vec<Option<Trajectory>>,
    open: usize,
    /// How often each episode was begun anew.
    again: Vec<u32>,
    failures: Vec<&'static str>,
    hopeless: Option<Error>,
}

type Done = (usize, usize, Result<Trajectory>);

impl Stage<'_> {
    /// Plays groups and hands each over as it is done, on this thread. Ends early if that returns
    /// an error, or the run is interrupted: then what is not done is missing.
    pub(super) fn play(
        &self,
        sampler: &SamplingClient,
        groups: &[Arc<dyn EnvGroup>],
        timing: &Timing,
        mut each: impl FnMut(usize, Played) -> Result<()>,
    ) -> Result<()> {
        let (tasks, waiting) = unbounded::<Task>();
        let (done, results) = unbounded::<Done>();
        let mut tallies = Vec::new();
        for (group, builder) in groups.iter().enumerate() {
            let envs = guarded("making environments", || builder.envs());
            let envs = envs.and_then(|envs| match envs.is_empty() {
                true => Err(Error::invalid("envs", "a group must have at least one")),
                false => Ok(envs),
            });
            let tally = match (envs, self.policy) {
                (Ok(envs), _) => Tally::of(group, envs, &tasks),
                (Err(error), FailurePolicy::FailFast) => return Err(error),
                (Err(error), _) => Tally::hopeless(error),
            };
            tallies.push(tally);
        }
        let episodes: usize = tallies.iter().map(|tally| tally.open).sum();
        // Nobody wants what is still being played.
        let over = &Interrupt::new();
        thread::scope(|scope| {
            let spawn = |number: usize| {
                let (waiting, done) = (waiting.clone(), done.clone());
                let work = move || self.perform(sampler, (&waiting, over), &done, timing);
                let named = thread::Builder::new().name(format!("tinker-env-{number}"));
                let spawned = named.spawn_scoped(scope, work).map(drop);
                spawned.map_err(|error| {
                    Error::Internal(Context::caused("cannot start a thread", error))
                })
            };
            let started: Result<()> = (0..self.threads.min(episodes)).try_for_each(spawn);
            let played = started
                .and_then(|()| self.gather(groups, tallies, &tasks, &results, timing, &mut each));
            // What nobody has begun is not begun any more, and the rest ends with its turn.
            over.set();
            drop(tasks);
            while waiting.try_recv().is_ok() {}
            played
        })
    }

    /// Collects episodes until every group is done.
    fn gather(
        &self,
        groups: &[Arc<dyn EnvGroup>],
        mut tallies: Vec<Tally>,
        tasks: &Sender<Task>,
        results: &Receiver<Done>,
        timing: &Timing,
        each: &mut impl FnMut(usize, Played) -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        let finish = |index: usize, tally: &mut Tally| {
            let failures = std::mem::take(&mut tally.failures);
            let judged = timing.span("do_group_rollout_and_filter_constant_reward", || {
                self.judge(&groups[index], tally, timing)
            });
            judged.map(|group| Played {
                group,
                failures,
                time: begun.elapsed(),
            })
        };
        let mut left = 0;
        for (index, tally) in tallies.iter_mut().enumerate() {
            match tally.open {
                0 => each(index, finish(index, tally)?)?,
                _ => left += 1,
            }
        }
        while left > 0 {
            let (group, episode, result) = results.recv().expect("a sender is held above");
            if self.interrupt.is_set() {
                return Ok(());
            }
            let tally = &mut tallies[group];
            self.take(&groups[group], tally, (group, episode), result, tasks)?;
            if tally.open == 0 {
                left -= 1;
                each(group, finish(group, tally)?)?;
            }
        }
        Ok(())
    }

    /// Enters the end of an episode, or begins it anew.
    fn take(
        &self,
        builder: &Arc<dyn EnvGroup>,
        tally: &mut Tally,
        (group, episode): (usize, usize),
        result: Result<Trajectory>,
        tasks: &Sender<Task>,
    ) -> Result<()> {
        let error = match result {
            Ok(trajectory) => {
                tally.episodes[episode] = Some(trajectory);
                tally.open -= 1;
                return Ok(());
            }
            Err(error) => error,
        };
        ::log::warn!("an episode failed: {error}");
        tally.failures.push(kind(&error));
        if self.policy == FailurePolicy::FailFast {
            return Err(error);
        }
        let done = tally.episodes.iter().flatten().count();
        let before = tally.again.iter().sum();
        let retries = (self.policy).retries((done, tally.episodes.len()), before);
        if retries && tally.hopeless.is_none() {
            tally.again[episode] += 1;
            let fresh = guarded("making environments", || builder.envs());
            if let Some(env) = fresh.ok().and_then(|envs| envs.into_iter().next()) {
                let again = tally.again[episode];
                let _ = tasks.send(Task {
                    group,
                    episode,
                    again,
                    env,
                });
                return Ok(());
            }
        }
        if matches!(self.policy, FailurePolicy::Retry(_)) {
            tally.hopeless = Some(error);
        }
        tally.open -= 1;
        Ok(())
    }

    /// Makes a group of its episodes; nothing if too many of them failed.
    fn judge(
        &self,
        builder: &Arc<dyn EnvGroup>,
        tally: &mut Tally,
        timing: &Timing,
    ) -> Result<Option<TrajectoryGroup>> {
        let wanted = tally.episodes.len();
        let episodes: Vec<Trajectory> = tally.episodes.drain(..).flatten().collect();
        let enough = self.policy.enough(wanted);
        if tally.hopeless.is_some() || episodes.is_empty() || episodes.len() < enough {
            return Ok(None);
        }
        let judge = builder.clone();
        let judged = timing.span("compute_group_rewards", || {
            let episodes = episodes.clone();
            self.on_pool(move || judge.judge(&episodes))
        });
        let judged = judged.and_then(|grades| {
            let mut rewards = grades.iter().map(|grade| grade.reward);
            rewards.try_for_each(check_reward).map(|()| grades)
        });
        let grades = match judged {
            Ok(grades) if grades.len() == episodes.len() => grades,
            Ok(grades) => {
                let problem = format!("{} for {} episodes", grades.len(), episodes.len());
                return Err(Error::invalid("grades of a group", problem));
            }
            Err(error) if self.policy == FailurePolicy::FailFast => return Err(error),
            Err(error) => {
                ::log::warn!("a group could not be judged: {error}");
                return Ok(None);
            }
        };
        let rewards = episodes.iter().zip(&grades);
        let rewards = rewards.map(|(episode, grade)| self.limits.clamped(episode, grade.reward));
        let rewards = rewards.collect();
        let mut group = TrajectoryGroup::new(episodes);
        group.final_rewards = rewards;
        group.metrics = grades.into_iter().map(|grade| grade.metrics).collect();
        Ok(Some(group))
    }

    /// A thread's work: episodes, one after the other.
    fn perform(
        &self,
        sampler: &SamplingClient,
        (waiting, over): (&Receiver<Task>, &Interrupt),
        done: &Sender<Done>,
        timing: &Timing,
    ) {
        for mut task in waiting {
            let number = (task.group as u64) << 20 | task.episode as u64;
            // With the seeds it had before, an episode would say again what it failed by.
            let number = number ^ u64::from(task.again) << 48;
            let played = catch_unwind(AssertUnwindSafe(|| {
                self.episode(sampler, task.env.as_mut(), (number, over), timing)
            }));
            let result = played
                .unwrap_or_else(|_| Err(Error::Callback(Context::new("an environment panicked"))));
            if done.send((task.group, task.episode, result)).is_err() {
                return;
            }
        }
    }

    fn episode(
        &self,
        sampler: &SamplingClient,
        env: &mut dyn Env,
        (number, over): (u64, &Interrupt),
        timing: &Timing,
    ) -> Result<Trajectory> {
        let begun = Instant::now();
        let start = timing.span("env_initial_observation", || env.start());
        let mut next = Some(start.map_err(in_env)?);
        let mut turns: Vec<Transition> = Vec::new();
        let (mut sampled, mut unended) = (0, 0);
        let mut last = ModelInput::empty();
        while let Some(observation) = next.take() {
            if self.interrupt.is_set() || over.is_set() {
                return Err(Error::Cancelled(Context::new("the run was interrupted")));
            }
            let prompt = observation.prompt.length()?;
            let most = self.params.max_tokens.unwrap_or(u32::MAX);
            let is_late = (self.limits.timeout).is_some_and(|most| begun.elapsed() >= most);
            let budget = match self.limits.budget(most, turns.len(), prompt, sampled) {
                _ if is_late => Err("stop/rollout_timeout"),
                budget => budget,
            };
            let budget = match budget {
                Ok(budget) => budget,
                Err(reason) => {
                    stopped(&mut turns, reason);
                    last = observation.prompt;
                    break;
                }
            };
            let answer = timing.span("policy_sample", || {
                self.sample(sampler, &observation, budget, (number, turns.len()))
            })?;
            sampled += answer.tokens.len();
            let step = timing
                .span("env_step", || env.step(&answer))
                .map_err(in_env)?;
            let logprobs = answer.logprobs.clone();
            let logprobs = logprobs.ok_or_else(|| fault::reply("samples came without logprobs"))?;
            let mut turn = Transition::new(observation.prompt, answer.tokens.clone(), logprobs);
            (turn.reward, turn.metrics, turn.logs) = (step.reward, step.metrics, step.logs);
            if let Some(grading) = step.grading {
                let grade = self.on_pool(grading)?;
                turn.reward += grade.reward;
                turn.metrics.extend(grade.metrics);
            }
            check_reward(turn.reward)?;
            turn.episode_done = step.next.is_none();
            let is_cut = answer.stop_reason == StopReason::Length;
            unended += usize::from(is_cut && !turn.episode_done);
            next = step.next;
            turns.push(turn);
        }
        if let Some(turn) = turns.last_mut().filter(|_| unended > 0) {
            turn.metrics.insert(UNENDED.to_owned(), unended as f64);
        }
        let mut trajectory = Trajectory::new(turns);
        trajectory.final_observation = last;
        Ok(trajectory)
    }

    fn sample(
        &self,
        sampler: &SamplingClient,
        observation: &Observation,
        budget: u32,
        (number, turn): (u64, usize),
    ) -> Result<SampledSequence> {
        let mut params = self.params.clone();
        if budget < u32::MAX {
            params = params.with_max_tokens(budget);
        }
        if let Some(stop) = &observation.stop {
            params = params.with_stop(stop.clone());
        }
        if let Some(seed) = self.seed {
            params = params.with_seed(sample_seed(seed, self.iteration, number, turn));
        }
        let response = sampler.sample(&observation.prompt, params)?;
        let first = response.sequences.into_iter().next();
        first.ok_or_else(|| fault::reply("no sequence was sampled"))
    }

    /// Runs a reward on the pool and waits for it.
    fn on_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, result) = bounded(1);
        self.rewards.spawn(move || {
            let _ = sender.send(guarded("a reward", work));
        });
        result.recv().expect("the pool runs what it is given")
    }
}

impl Tally {
    fn of(group: usize, envs: Vec<Box<dyn Env>>, tasks: &Sender<Task>) -> Self {
        let open = envs.len();
        for (episode, env) in envs.into_iter().enumerate() {
            let _ = tasks.send(Task {
                group,
                episode,
                again: 0,
                env,
            });
        }
        Self {
            episodes: (0..open).map(|_| None).collect(),
            open,
            again: vec![0; open],
            failures: Vec::new(),
            hopeless: None,
        }
    }

    fn hopeless(error: Error) -> Self {
        Self {
            episodes: Vec::new(),
            open: 0,
            again: Vec::new(),
            failures: vec![kind(&error)],
            hopeless: Some(error),
        }
    }
}

/// Notes on the last turn why there is no other, whatever the environment noted there; an episode
/// without any gets an empty one, of which nothing is learned.
fn stopped(turns: &mut Vec<Transition>, reason: &str) {
    if turns.is_empty() {
        turns.push(Transition::default());
    }
    if let Some(last) = turns.last_mut() {
        last.metrics.retain(|name, _| !name.starts_with("stop/"));
        last.metrics.insert(reason.to_owned(), 1.0);
        last.episode_done = true;
    }
}

/// Runs a user's code; a panic is an error too.
fn guarded<T>(what: &str, work: impl FnOnce() -> anyhow::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| fault::callback(what, error)),
        Err(_) => Err(Error::Callback(Context::new(format!("{what} panicked")))),
    }
}

fn in_env(error: anyhow::Error) -> Error {
    fault::callback("an environment", error)
}

/// What is not a number would spoil its whole group.
fn check_reward(reward: f64) -> Result<()> {
    match reward.is_finite() {
        true => Ok(()),
        false => Err(Error::invalid(
            "reward",
            format!("must be finite, got {reward}"),
        )),
    }
}

/// The name a failure is counted under.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Callback(_) | Error::Internal(_) => "environment",
        Error::Invalid(_) => "invalid",
        Error::Timeout(_) => "timeout",
        _ => "service",
    }
}

/// A seed for every sample of a run, none like another.
fn sample_seed(seed: u64, iteration: usize, number: u64, turn: usize) -> i64 {
    let mut mixed = seed;
    for word in [iteration as u64, number, turn as u64] {
        // The finalizer of splitmix64.
        mixed = (mixed ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    (mixed >> 33) as i64
}

/// Rows of a rollout summary file.
pub(super) fn summaries<'a>(
    split: &str,
    iteration: usize,
    groups: impl IntoIterator<Item = (&'a TrajectoryGroup, &'a [String], usize)>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, (group, tags, sampler_step)) in groups.into_iter().enumerate() {
        let totals = group.total_rewards();
        for (episode, trajectory) in group.trajectories.iter().enumerate() {
            let turns = trajectory
                .transitions
                .iter()
                .enumerate()
                .map(|(index, turn)| {
                    Row::new()
                        .with("step_idx", index)
                        .with("ob_len", turn.observation.length().unwrap_or(0))
                        .with("ac_len", turn.action.len())
                        .with("reward", turn.reward)
                        .with("episode_done", turn.episode_done)
                        .with("metrics", serde_json::json!(turn.metrics))
                        .with("logs", serde_json::json!(turn.logs))
                });
            rows.push(
                Row::new()
                    .with("schema_version", 1usize)
                    .with("split", split)
                    .with("iteration", iteration)
                    .with("group_idx", index)
                    .with("traj_idx", episode)
                    .with("tags", serde_json::json!(tags))
                    .with("sampling_client_step", sampler_step)
                    .with("total_reward", totals[episode])
                    .with("final_reward", group.final_rewards[episode])
                    .with(
                        "trajectory_metrics",
                        serde_json::json!(group.metrics[episode]),
                    )
                    .with("steps", turns.collect::<Vec<Row>>())
                    .with(
                        "final_ob_len",
                        trajectory.final_observation.length().unwrap_or(0),
                    ),
            );
        }
    }
    rows
}

/// The pool for rewards, of as many threads as there are processors.
pub(super) fn reward_pool() -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .thread_name(|number| format!("tinker-reward-{number}"))
        .build()
        .map_err(|error| Error::Internal(Context::caused("cannot start threads", error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_of_turns() {
        let limits = Limits {
            max_turns: Some(3),
            max_trajectory_tokens: Some(100),
            max_sampled_tokens: Some(50),
            ..Limits::default()
        };
        for (turns, prompt, sampled, expected) in [
            (0, 10, 0, Ok(20)),
            (1, 90, 20, Ok(10)),
            (1, 99, 20, Err("stop/max_tokens")),
            (1, 99, 49, Err("stop/max_tokens")),
            (1, 60, 45, Ok(5)),
            (1, 60, 49, Err("stop/max_sampled_tokens")),
            (3, 10, 0, Err("stop/max_turns")),
        ] {
            assert_eq!(
                limits.budget(20, turns, prompt, sampled),
                expected,
                "{turns} {prompt} {sampled}"
            );
        }
        assert_eq!(Limits::default().budget(20, 99, 1 << 20, 1 << 20), Ok(20));
    }

    #[test]
    fn what_a_limit_ended_is_worth_no_more_than_nothing() {
        #[track_caller]
        fn check(stop: &str, (turn, last): (f64, f64), expected: f64) {
            let transition = Transition {
                reward: turn,
                metrics: [(stop.to_owned(), 1.0)].into(),
                ..Transition::default()
            };
            let episode = Trajectory::new([transition]);
            let strict = Limits {
                zero_reward_on_limit: true,
                ..Limits::default()
            };
            assert_eq!(turn + strict.clamped(&episode, last), expected, "{stop}");
            assert_eq!(Limits::default().clamped(&episode, last), last, "{stop}");
        }
        check("stop/max_turns", (1.0, 0.5), 0.0);
        check("stop/max_tool_calls", (0.25, -1.0), -0.75);
        check("stop/rollout_timeout", (-1.0, 0.5), -0.5);
        check("stop/completed", (1.0, 0.5), 1.5);
        check("stop/parse_error", (1.0, 0.5), 1.5);
    }

    #[test]
    fn failures_are_retried_while_it_is_of_use() {
        let viable = FailurePolicy::MinViable(0.75);
        for (policy, done, before, expected) in [
            (FailurePolicy::FailFast, 0, 0, false),
            (FailurePolicy::Retry(2), 3, 1, true),
            (FailurePolicy::Retry(2), 0, 2, false),
            (viable, 2, 0, true),
            (viable, 2, 2, true),
            (viable, 2, 3, false),
            (viable, 3, 0, false),
            (FailurePolicy::MinViable(0.0), 0, 0, false),
        ] {
            let retries = policy.retries((done, 4), before);
            assert_eq!(retries, expected, "{policy:?} {done} {before}");
        }
        assert_eq!((viable.enough(4), viable.enough(5)), (3, 4));
        assert_eq!(FailurePolicy::MinViable(0.55).enough(100), 55);
        assert_eq!(FailurePolicy::Retry(3).enough(4), 4);
    }

    #[test]
    fn no_two_samples_share_a_seed() {
        let mut seeds: Vec<i64> = (0..4u64)
            .flat_map(|number| {
                (0..4).flat_map(move |turn| (0..4).map(move |i| sample_seed(0, i, number, turn)))
            })
            .collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 64);
        assert!(
            seeds
                .iter()
                .all(|seed| (0..=i64::from(u32::MAX)).contains(seed))
        );
    }
}
