//! Trajectories of reinforcement learning, and the datums they become.

use std::collections::BTreeMap;

use super::example::shifted;
use crate::error::{Error, Result};
use crate::types::{Chunk, Datum, ModelInput, Tokens};

/// The metric with which an environment takes a turn out of training: its actions get no
/// advantage when it is 1 or more.
pub const PARSE_ERROR_MASKED: &str = "parse_error_masked";

/// One turn: what the policy saw, what it sampled, and what came of it.
#[derive(Debug, Clone, Default)]
pub struct Transition {
    /// The whole prompt of the turn.
    pub observation: ModelInput,
    /// The sampled tokens.
    pub action: Tokens,
    /// The log-probability of each sampled token.
    pub logprobs: Vec<f32>,
    /// The reward of this turn.
    pub reward: f64,
    /// Whether the episode ends with this turn.
    pub episode_done: bool,
    /// Numbers to average, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Things to look at, by name.
    pub logs: BTreeMap<String, String>,
}

impl Transition {
    /// A turn without a reward yet.
    pub fn new(
        observation: impl Into<ModelInput>,
        action: impl Into<Tokens>,
        logprobs: impl Into<Vec<f32>>,
    ) -> Self {
        Self {
            observation: observation.into(),
            action: action.into(),
            logprobs: logprobs.into(),
            ..Self::default()
        }
    }

    /// Sets the reward.
    #[must_use]
    pub fn with_reward(mut self, reward: f64) -> Self {
        self.reward = reward;
        self
    }

    fn is_masked(&self) -> bool {
        let masked = self.metrics.get(PARSE_ERROR_MASKED);
        masked.is_some_and(|masked| *masked >= 1.0)
    }
}

/// The turns of one episode.
#[derive(Debug, Clone, Default)]
pub struct Trajectory {
    /// The turns, in order.
    pub transitions: Vec<Transition>,
    /// What would have been the next prompt.
    pub final_observation: ModelInput,
}

impl Trajectory {
    /// The turns of one episode.
    pub fn new(transitions: impl Into<Vec<Transition>>) -> Self {
        Self {
            transitions: transitions.into(),
            final_observation: ModelInput::empty(),
        }
    }

    /// The rewards of all turns together.
    pub fn reward(&self) -> f64 {
        self.transitions.iter().map(|turn| turn.reward).sum()
    }

    /// Datums with the loss inputs `target_tokens`, `logprobs`, `advantages` and `mask` (1 where
    /// the policy sampled). A turn whose prompt starts with everything before it goes on in the
    /// same datum; any other begins a new one. `mask` is for [`KlPenalty`](super::KlPenalty) and
    /// its like: drop it with [`without_mask`] before sending.
    ///
    /// # Errors
    ///
    /// If a turn has not one log-probability per token, or a sequence has fewer than two tokens.
    pub fn to_datums(&self, advantage: f32) -> Result<Vec<Datum>> {
        let mut data = Vec::new();
        let mut open = Sequence::default();
        for (index, turn) in self.transitions.iter().enumerate() {
            let within = |error: Error| error.within(&format!("transitions[{index}]"));
            if turn.logprobs.len() != turn.action.len() {
                let (given, tokens) = (turn.logprobs.len(), turn.action.len());
                let problem = format!("{given} given for {tokens} sampled tokens");
                return Err(within(Error::invalid("logprobs", problem)));
            }
            let seen = flat(&turn.observation);
            if !seen.starts_with(&open.items) {
                data.push(std::mem::take(&mut open).into_datum().map_err(within)?);
            }
            open.read(&seen[open.items.len()..]).map_err(within)?;
            open.act(turn, advantage);
        }
        if !open.items.is_empty() {
            data.push(open.into_datum()?);
        }
        Ok(data)
    }
}

/// A token, or a chunk that is none.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    Token(i32),
    Other(Chunk),
}

fn flat(input: &ModelInput) -> Vec<Item> {
    let mut items = Vec::new();
    for chunk in input.chunks() {
        match chunk {
            Chunk::EncodedText(text) => items.extend(text.tokens.iter().map(|&t| Item::Token(t))),
            other => items.push(Item::Other(other.clone())),
        }
    }
    items
}

/// A datum under construction; the lists are as long as the items take tokens.
#[derive(Default)]
struct Sequence {
    items: Vec<Item>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<f32>,
}

impl Sequence {
    fn read(&mut self, items: &[Item]) -> Result<()> {
        let mut length = self.mask.len();
        for item in items {
            length += match item {
                Item::Token(_) => 1,
                Item::Other(chunk) => chunk.length()?,
            };
        }
        self.items.extend_from_slice(items);
        for list in [&mut self.logprobs, &mut self.advantages, &mut self.mask] {
            list.resize(length, 0.0);
        }
        Ok(())
    }

    fn act(&mut self, turn: &Transition, advantage: f32) {
        let trained = if turn.is_masked() { 0.0 } else { 1.0 };
        let length = self.mask.len() + turn.action.len();
        self.items
            .extend(turn.action.iter().map(|&t| Item::Token(t)));
        self.logprobs.extend_from_slice(&turn.logprobs);
        self.advantages.resize(length, advantage * trained);
        self.mask.resize(length, trained);
    }

    fn into_datum(self) -> Result<Datum> {
        let mut chunks = Vec::new();
        let mut text = Vec::new();
        for item in self.items {
            match item {
                Item::Token(token) => text.push(token),
                Item::Other(chunk) => {
                    if !text.is_empty() {
                        chunks.push(Chunk::tokens(std::mem::take(&mut text)));
                    }
                    chunks.push(chunk);
                }
            }
        }
        if !text.is_empty() {
            chunks.push(Chunk::tokens(text));
        }
        let (input, targets) = shifted(chunks)?;
        Ok(Datum::new(input)
            .with_target_tokens(targets)
            .with_logprobs(self.logprobs[1..].to_vec())
            .with_advantages(self.advantages[1..].to_vec())
            .with("mask", self.mask[1..].to_vec()))
    }
}

/// Episodes of one problem, judged against each other.
#[derive(Debug, Clone, Default)]
pub struct TrajectoryGroup {
    /// The episodes.
    pub trajectories: Vec<Trajectory>,
    /// What the group as a whole adds to each episode's reward.
    pub final_rewards: Vec<f64>,
    /// Numbers to average for each episode, by name.
    pub metrics: Vec<BTreeMap<String, f64>>,
}

impl TrajectoryGroup {
    /// Episodes with the rewards of their turns only.
    pub fn new(trajectories: impl Into<Vec<Trajectory>>) -> Self {
        let trajectories = trajectories.into();
        let count = trajectories.len();
        Self {
            trajectories,
            final_rewards: vec![0.0; count],
            metrics: vec![BTreeMap::new(); count],
        }
    }

    /// The whole reward of every episode.
    pub fn total_rewards(&self) -> Vec<f64> {
        let last = self.final_rewards.iter().chain(std::iter::repeat(&0.0));
        let each = self.trajectories.iter().zip(last);
        each.map(|(trajectory, last)| trajectory.reward() + last)
            .collect()
    }

    /// How much better every episode did than the mean of its group.
    pub fn advantages(&self) -> Vec<f32> {
        group_advantages(&self.total_rewards())
    }

    /// Whether all episodes got the same reward, so that there is nothing to learn from them.
    pub fn is_constant(&self) -> bool {
        let rewards = self.total_rewards();
        rewards.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// Rewards less their mean.
///
/// ```
/// assert_eq!(tinker::text::data::group_advantages(&[1.0, 0.0]), [0.5, -0.5]);
/// ```
pub fn group_advantages(rewards: &[f64]) -> Vec<f32> {
    let rewards: Vec<f32> = rewards.iter().map(|&reward| reward as f32).collect();
    let mean = rewards.iter().sum::<f32>() / rewards.len().max(1) as f32;
    rewards.into_iter().map(|reward| reward - mean).collect()
}

/// The groups one can learn from; if there is none, the first group, so that a step has data.
pub fn without_constant_groups(groups: Vec<TrajectoryGroup>) -> Vec<TrajectoryGroup> {
    match groups.iter().all(TrajectoryGroup::is_constant) {
        true => groups.into_iter().take(1).collect(),
        false => groups.into_iter().filter(|g| !g.is_constant()).collect(),
    }
}

/// A datum and the episode it came from.
#[derive(Debug, Clone)]
pub struct TrajectoryDatum {
    /// The datum, with its `mask`.
    pub datum: Datum,
    /// Which group.
    pub group: usize,
    /// Which of its episodes.
    pub trajectory: usize,
}

/// The datums of all groups with their [advantages](TrajectoryGroup::advantages), in order.
///
/// # Errors
///
/// As [`Trajectory::to_datums`]; the error names the group and the episode.
pub fn trajectory_datums(groups: &[TrajectoryGroup]) -> Result<Vec<TrajectoryDatum>> {
    let mut data = Vec::new();
    for (group, episodes) in groups.iter().enumerate() {
        let both = episodes.trajectories.iter().zip(episodes.advantages());
        for (trajectory, (episode, advantage)) in both.enumerate() {
            let place = format!("groups[{group}].trajectories[{trajectory}]");
            let datums = episode.to_datums(advantage).map_err(|e| e.within(&place))?;
            data.extend(datums.into_iter().map(|datum| TrajectoryDatum {
                datum,
                group,
                trajectory,
            }));
        }
    }
    Ok(data)
}

/// The datum as it is sent: no server knows `mask`.
pub fn without_mask(datum: Datum) -> Datum {
    datum.without("mask")
}
