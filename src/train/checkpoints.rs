//! Saving on the way: when, under which name, for how long, and what is deleted again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::folder::RunFolder;
use super::record::CheckpointRecord;
use super::row::Row;
use crate::client::{RestClient, Save, ServiceClient, TrainingClient};
use crate::types::{SaveWeightsForSamplerResponse, SaveWeightsResponse, checkpoint_ttl};
use crate::{Pending, Result};

/// When checkpoints are saved, and how long they are kept. A number of 0 switches a rule off.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SavePolicy {
    /// Steps between periodic checkpoints. Default: 20.
    pub every: usize,
    /// Training tokens between them. Default: 0.
    pub every_tokens: u64,
    /// Time between them. Default: zero.
    pub every_time: Duration,
    /// How long the service keeps them; none keeps them for ever. Default: 7 days.
    pub ttl: Option<Duration>,
    /// Steps between rolling checkpoints, which hold no sampler weights and are deleted when the
    /// next one is there. Default: 0.
    pub rolling_every: usize,
    /// How long the service keeps those, should deleting fail. Default: 2 hours.
    pub rolling_ttl: Duration,
    /// Whether training goes on while a periodic checkpoint is written. Default: no.
    pub background: bool,
}

impl Default for SavePolicy {
    fn default() -> Self {
        Self {
            every: 20,
            every_tokens: 0,
            every_time: Duration::ZERO,
            ttl: Some(Duration::from_secs(604_800)),
            rolling_every: 0,
            rolling_ttl: Duration::from_secs(7200),
            background: false,
        }
    }
}

impl SavePolicy {
    /// Saves every so many steps.
    pub fn every(steps: usize) -> Self {
        Self {
            every: steps,
            ..Self::default()
        }
    }

    /// Saves a rolling checkpoint every so many steps too.
    #[must_use]
    pub fn with_rolling(mut self, steps: usize) -> Self {
        self.rolling_every = steps;
        self
    }

    /// Saves after so many training tokens too.
    #[must_use]
    pub fn with_tokens(mut self, tokens: u64) -> Self {
        self.every_tokens = tokens;
        self
    }

    /// Saves after so much time too.
    #[must_use]
    pub fn with_time(mut self, time: Duration) -> Self {
        self.every_time = time;
        self
    }

    /// Sets how long periodic checkpoints are kept; none keeps them for ever.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.ttl = ttl;
        self
    }

    /// Goes on training while a periodic checkpoint is written.
    #[must_use]
    pub fn in_background(mut self) -> Self {
        self.background = true;
        self
    }

    /// Checks that the service keeps checkpoints so long. Loops call this before they begin.
    ///
    /// # Errors
    ///
    /// If a lifetime is not from one hour to ten years.
    pub fn validate(&self) -> Result<()> {
        let rolling = (self.rolling_every > 0).then_some(self.rolling_ttl);
        checkpoint_ttl("save.rolling_ttl", rolling)?;
        checkpoint_ttl("save.ttl", self.ttl).map(drop)
    }

    /// What is due after so many steps, tokens and time since the last periodic checkpoint.
    pub fn due(&self, steps: usize, tokens: u64, time: Duration) -> Due {
        let on = |every: usize| every > 0 && steps.is_multiple_of(every);
        let tokens = self.every_tokens > 0 && tokens >= self.every_tokens;
        let time = !self.every_time.is_zero() && time >= self.every_time;
        match steps {
            0 => Due::Nothing,
            _ if on(self.every) || tokens || time => Due::Periodic,
            _ if on(self.rolling_every) => Due::Rolling,
            _ => Due::Nothing,
        }
    }
}

/// What [`SavePolicy::due`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// A checkpoint to go on from and to sample from.
    Periodic,
    /// A checkpoint to go on from, for a while.
    Rolling,
}

/// Where a run is: what a checkpoint says about how to go on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Position {
    /// Steps done.
    pub steps: usize,
    /// The next batch's epoch, where there are epochs.
    pub epoch: Option<u64>,
    /// The next batch, within its epoch.
    pub batch: u64,
    /// Training tokens so far, where they are counted.
    pub tokens: Option<u64>,
    /// What else the checkpoint's row says.
    pub extra: Row,
}

impl Position {
    fn record(&self, name: String) -> CheckpointRecord {
        let mut record = CheckpointRecord::new(name);
        (record.batch, record.epoch) = (Some(self.batch), self.epoch);
        if let Some(tokens) = self.tokens {
            record.extra.set("elapsed_tokens", tokens);
        }
        record.extra.merge(self.extra.clone());
        record
    }
}

/// Saves a run's checkpoints and keeps `checkpoints.jsonl`.
///
/// A save is an operation of the model's queue, so it holds exactly the steps that were submitted
/// before it, even while later ones are under way: `checkpoints.jsonl` says where to go on, and
/// no batch is trained twice or left out.
#[derive(Debug)]
pub struct Checkpoints {
    training: TrainingClient,
    rest: RestClient,
    folder: RunFolder,
    policy: SavePolicy,
    saved_tokens: u64,
    saved_at: Instant,
    last: Option<CheckpointRecord>,
    under_way: VecDeque<Saving>,
    /// Saved, and not in `checkpoints.jsonl` yet.
    unwritten: Vec<CheckpointRecord>,
    rolling: Option<String>,
}

/// A checkpoint on its way.
#[derive(Debug)]
struct Saving {
    record: CheckpointRecord,
    state: Pending<SaveWeightsResponse>,
    sampler: Option<Pending<SaveWeightsForSamplerResponse>>,
}

impl Checkpoints {
    /// Those of a model, written down in a folder. `tokens` is how many were trained on before.
    pub fn new(
        service: &ServiceClient,
        training: &TrainingClient,
        folder: &RunFolder,
        policy: SavePolicy,
        tokens: u64,
    ) -> Self {
        Self {
            training: training.clone(),
            rest: service.rest(),
            folder: folder.clone(),
            policy,
            saved_tokens: tokens,
            saved_at: Instant::now(),
            last: None,
            under_way: VecDeque::new(),
            unwritten: Vec::new(),
            rolling: None,
        }
    }

    /// What is due at this position.
    pub fn due(&self, position: &Position) -> Due {
        let tokens = position
            .tokens
            .unwrap_or(0)
            .saturating_sub(self.saved_tokens);
        self.policy
            .due(position.steps, tokens, self.saved_at.elapsed())
    }

    /// Saves what is due, and writes down what has been saved in the background; a periodic
    /// checkpoint is returned unless that is where it is saved. Log the steps before this position
    /// first: whoever goes on from its checkpoint does not do them again.
    ///
    /// # Errors
    ///
    /// If a periodic checkpoint cannot be saved. A rolling one that fails only warns.
    pub fn save_if_due(&mut self, position: &Position) -> Result<Option<CheckpointRecord>> {
        let saved = self.save_unwritten(self.due(position), position)?;
        self.write_down()?;
        Ok(saved)
    }

    /// Saves what is due, for [`write_down`](Self::write_down) once its last step is logged.
    pub(super) fn save_unwritten(
        &mut self,
        due: Due,
        position: &Position,
    ) -> Result<Option<CheckpointRecord>> {
        if due == Due::Nothing {
            return Ok(None);
        }
        self.settle()?;
        self.submit(position, due)?;
        if due == Due::Rolling || self.policy.background {
            return Ok(None);
        }
        self.join_all()?;
        Ok(self.unwritten.last().cloned())
    }

    /// Writes down what has been saved by now.
    pub(super) fn write_down(&mut self) -> Result<()> {
        while let Some(saving) = self.under_way.pop_front_if(|saving| saving.is_finished()) {
            self.join(saving)?;
        }
        for record in std::mem::take(&mut self.unwritten) {
            self.keep(record)?;
        }
        Ok(())
    }

    /// Saves a periodic checkpoint now and waits for it. One of the same number of steps is not
    /// saved twice.
    ///
    /// # Errors
    ///
    /// If it cannot be saved or written down.
    pub fn save(&mut self, position: &Position) -> Result<CheckpointRecord> {
        self.settle()?;
        let name = format!("{:06}", position.steps);
        match &self.last {
            Some(last) if last.name == name && !last.is_rolling() => return Ok(last.clone()),
            _ => {}
        }
        self.submit(position, Due::Periodic)?;
        self.settle()?;
        Ok(self.last.clone().expect("settling keeps the last record"))
    }

    /// Saves the last checkpoint, which is kept for ever, and deletes the rolling one.
    ///
    /// # Errors
    ///
    /// As [`save`](Self::save).
    pub fn save_final(&mut self, position: &Position) -> Result<CheckpointRecord> {
        self.settle()?;
        let mut record = position.record("final".into());
        record.is_final = true;
        self.begin(record, None, true)?;
        self.settle()?;
        self.delete_rolling();
        Ok(self.last.clone().expect("settling keeps the last record"))
    }

    /// Waits for what is written in the background.
    ///
    /// # Errors
    ///
    /// If a periodic checkpoint could not be saved or written down.
    pub fn settle(&mut self) -> Result<()> {
        self.join_all()?;
        self.write_down()
    }

    fn join_all(&mut self) -> Result<()> {
        while let Some(saving) = self.under_way.pop_front() {
            self.join(saving)?;
        }
        Ok(())
    }

    fn join(&mut self, saving: Saving) -> Result<()> {
        let rolling = saving.record.is_rolling();
        match saving.join() {
            Ok(record) => self.unwritten.push(record),
            Err(error) if rolling => {
                ::log::warn!("a rolling checkpoint was not saved: {error}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn keep(&mut self, record: CheckpointRecord) -> Result<()> {
        self.folder.append_checkpoint(&record)?;
        if record.is_rolling() {
            self.delete_rolling();
            self.rolling.clone_from(&record.state_path);
        } else if self.rolling == record.state_path {
            // What was saved over it stays.
            self.rolling = None;
        }
        self.last = Some(record);
        Ok(())
    }

    fn submit(&mut self, position: &Position, due: Due) -> Result<()> {
        let mut record = position.record(format!("{:06}", position.steps));
        if due == Due::Rolling {
            record.extra.set("rolling", true);
            return self.begin(record, Some(self.policy.rolling_ttl), false);
        }
        self.saved_tokens = position.tokens.unwrap_or(0);
        self.saved_at = Instant::now();
        self.begin(record, self.policy.ttl, true)
    }

    fn begin(
        &mut self,
        record: CheckpointRecord,
        ttl: Option<Duration>,
        sampler: bool,
    ) -> Result<()> {
        let mut save = Save::named(record.name.as_str());
        save.ttl = ttl;
        // A rolling one of this very step has the name already.
        let is_same = |last: &CheckpointRecord| last.is_rolling() && last.name == record.name;
        let mut state = save.clone();
        state.overwrite = self.last.as_ref().is_some_and(is_same);
        let state = self.training.save_state(state)?;
        let sampler = match sampler {
            true => Some(self.training.save_weights_for_sampler(save)?),
            false => None,
        };
        self.under_way.push_back(Saving {
            record,
            state,
            sampler,
        });
        Ok(())
    }

    fn delete_rolling(&mut self) {
        let Some(path) = self.rolling.take() else {
            return;
        };
        if let Err(error) = self.rest.delete_checkpoint(path.as_str()) {
            ::log::warn!("{path} was not deleted, and stays until it expires: {error}");
        }
    }
}

impl Saving {
    fn is_finished(&self) -> bool {
        let sampler = self.sampler.as_ref();
        self.state.is_finished() && sampler.is_none_or(Pending::is_finished)
    }

    fn join(mut self) -> Result<CheckpointRecord> {
        self.record.state_path = Some(self.state.join()?.path.to_string());
        if let Some(sampler) = self.sampler {
            self.record.sampler_path = sampler.join()?.path.map(|path| path.to_string());
        }
        Ok(self.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: &SavePolicy, steps: usize, tokens: u64, seconds: u64, due: Due) {
        let found = policy.due(steps, tokens, Duration::from_secs(seconds));
        assert_eq!(found, due, "{steps} steps, {tokens} tokens, {seconds} s");
    }

    #[test]
    fn what_is_due() {
        let policy = SavePolicy::every(4).with_rolling(2).with_tokens(100);
        check(&policy, 0, 500, 0, Due::Nothing);
        check(&policy, 1, 0, 0, Due::Nothing);
        check(&policy, 2, 0, 0, Due::Rolling);
        check(&policy, 3, 100, 0, Due::Periodic);
        check(&policy, 4, 0, 9_999_999, Due::Periodic);
        let timed = SavePolicy::every(0).with_time(Duration::from_secs(60));
        check(&timed, 5, 0, 59, Due::Nothing);
        check(&timed, 5, 0, 60, Due::Periodic);
    }
}
