//! What every loop does alike: how it opens, how it ends, and the setters of what all are told.

use serde::Serialize;

use super::checkpoints::{Checkpoints, Position, SavePolicy};
use super::model::Model;
use super::record::CheckpointRecord;
use super::run::{Outcome, Report, Run};
use crate::types::AdamParams;
use crate::{Error, Result};

/// The setters of the settings that every loop has, for the body of its `impl`.
macro_rules! common_setters {
    () => {
        /// Sets the learning rate; where there is a schedule, the highest.
        #[must_use]
        pub fn with_learning_rate(mut self, rate: f64) -> Self {
            self.learning_rate = rate;
            self
        }

        /// Sets the most steps.
        #[must_use]
        pub fn with_max_steps(mut self, steps: usize) -> Self {
            self.max_steps = Some(steps);
            self
        }

        /// Sets when checkpoints are saved.
        #[must_use]
        pub fn with_save(mut self, policy: $crate::train::SavePolicy) -> Self {
            self.save = policy;
            self
        }

        /// Sets the steps between evaluations; 0 for none.
        #[must_use]
        pub fn with_eval_every(mut self, steps: usize) -> Self {
            self.eval_every = steps;
            self
        }

        /// Adds an evaluator.
        #[must_use]
        pub fn with_evaluator(
            mut self,
            evaluator: impl $crate::train::Evaluator + 'static,
        ) -> Self {
            self.evaluators.push(Box::new(evaluator));
            self
        }
    };
}

pub(super) use common_setters;

/// Checks what every loop is told before anything begins: a setting that its first use refuses costs
/// whatever was trained until then.
pub(super) fn check_settings(model: &Model, adam: &AdamParams, save: &SavePolicy) -> Result<()> {
    if adam.learning_rate < 0.0 {
        let problem = format!("must be at least 0, got {}", adam.learning_rate);
        return Err(Error::invalid("learning_rate", problem));
    }
    adam.validate()?;
    model.lora.validate()?;
    save.validate()
}

/// How many steps a run has, which must be at least one.
pub(super) fn total_steps(batches: usize, epochs: usize, most: Option<usize>) -> Result<usize> {
    let steps = batches.saturating_mul(epochs);
    match most.map_or(steps, |most| most.min(steps)) {
        0 => {
            let problem = format!("{batches} batches and {epochs} epochs make no step");
            Err(Error::invalid("steps", problem))
        }
        total => Ok(total),
    }
}

/// Where a run begins: the step, and the tokens trained on before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) step: usize,
    pub(super) tokens: u64,
}

impl Place {
    /// After a checkpoint; a new run begins at the beginning.
    fn of(last: Option<&CheckpointRecord>, batches: usize) -> Self {
        let epoch = last.and_then(|last| last.epoch).unwrap_or(0) as usize;
        let batch = last.and_then(|last| last.batch).unwrap_or(0) as usize;
        let tokens = last.and_then(|last| last.extra.count("elapsed_tokens"));
        Self {
            step: epoch.saturating_mul(batches).saturating_add(batch),
            tokens: tokens.unwrap_or(0),
        }
    }
}

impl Run {
    /// Opens a loop: the settings are noted, and what was logged after the last checkpoint, which
    /// will be done again, is forgotten. Gives that checkpoint and where to go on; nothing if the
    /// run had come to its end before.
    pub(super) fn open_loop(
        &mut self,
        config: &impl Serialize,
        batches: usize,
        total: usize,
    ) -> Result<Option<(Option<CheckpointRecord>, Place)>> {
        let last = self.begin(config)?;
        let place = Place::of(last.as_ref(), batches);
        if place.step < total {
            self.folder().rewind(place.step)?;
            return Ok(Some((last, place)));
        }
        self.folder()
            .note("Training was already complete; nothing to do")?;
        if last.is_some_and(|last| last.is_final) {
            self.folder().mark_final()?;
        }
        Ok(None)
    }

    /// Ends a loop, all of whose steps are logged: the last checkpoint is saved, and the last row
    /// says so if that checkpoint is final.
    pub(super) fn end_loop(
        &mut self,
        checkpoints: &mut Checkpoints,
        position: &Position,
        outcome: Outcome,
    ) -> Result<Report> {
        match outcome {
            Outcome::Completed => {
                checkpoints.save_final(position)?;
                self.folder().mark_final()?;
            }
            Outcome::Interrupted => {
                checkpoints.save(position)?;
            }
        }
        self.end(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_run() {
        assert_eq!(total_steps(4, 2, None).unwrap(), 8);
        assert_eq!(total_steps(4, 2, Some(3)).unwrap(), 3);
        assert_eq!(total_steps(4, 2, Some(99)).unwrap(), 8);
        assert_eq!(total_steps(4, usize::MAX, Some(99)).unwrap(), 99);
        let error = total_steps(0, 2, None).unwrap_err().to_string();
        assert!(error.contains("0 batches and 2 epochs"), "{error}");
    }

    #[test]
    fn a_run_goes_on_after_its_last_checkpoint() {
        let mut record = CheckpointRecord::new("000007");
        (record.epoch, record.batch) = (Some(1), Some(3));
        record.extra.set("elapsed_tokens", 50u64);
        let place = Place::of(Some(&record), 4);
        assert_eq!((place.step, place.tokens), (7, 50));
        assert_eq!(Place::of(None, 4).step, 0);
        record.epoch = Some(u64::MAX);
        assert_eq!(Place::of(Some(&record), 4).step, usize::MAX);
    }
}
