//! How the learning rate changes over a run.

use std::f64::consts::PI;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::{Error, Result};

/// The shape of the learning rate over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decay {
    /// Stays as it is.
    Constant,
    /// Falls to zero in a straight line.
    #[default]
    Linear,
    /// Falls to zero along half a cosine.
    Cosine,
}

impl Decay {
    /// The name in configurations: `constant`, `linear`, `cosine`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Linear => "linear",
            Self::Cosine => "cosine",
        }
    }
}

impl FromStr for Decay {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        [Self::Constant, Self::Linear, Self::Cosine]
            .into_iter()
            .find(|decay| decay.as_str() == name)
            .ok_or_else(|| {
                let problem = format!("must be constant, linear or cosine, got {name:?}");
                Error::invalid("lr_schedule", problem)
            })
    }
}

/// What the learning rate is multiplied with at each step: a decay, after a warm-up if there is
/// one.
///
/// ```
/// use tinker::train::{Decay, Schedule};
///
/// let schedule = Schedule::from(Decay::Linear);
/// assert_eq!(schedule.multiplier(3, 10)?, 0.7);
/// let warm = schedule.with_warmup(4);
/// assert_eq!(warm.multiplier(0, 10)?, 0.25);
/// assert_eq!(warm.multiplier(4, 10)?, 1.0);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedule {
    decay: Decay,
    warmup: usize,
}

impl Schedule {
    /// Has the rate rise in a straight line over the first steps; the decay spans the others.
    /// Default: none.
    #[must_use]
    pub fn with_warmup(mut self, steps: usize) -> Self {
        self.warmup = steps;
        self
    }

    /// The factor of a step, counted from 0, of a run of `total` steps.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a run without steps.
    pub fn multiplier(&self, step: usize, total: usize) -> Result<f64> {
        if total == 0 {
            return Err(Error::invalid("total_steps", "must be at least 1, got 0"));
        }
        if step < self.warmup {
            return Ok((step + 1) as f64 / self.warmup as f64);
        }
        let span = total.saturating_sub(self.warmup).max(1);
        let done = (step - self.warmup) as f64 / span as f64;
        Ok(match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear => 1.0 - done,
            Decay::Cosine => 0.5 * (1.0 + (PI * (step - self.warmup) as f64 / span as f64).cos()),
        })
    }
}

impl From<Decay> for Schedule {
    fn from(decay: Decay) -> Self {
        Self { decay, warmup: 0 }
    }
}

/// By the name of its decay, as configurations have it.
impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.decay.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_meets_the_decay_without_a_jump() {
        let schedule = Schedule::from(Decay::Linear).with_warmup(2);
        let rates: Vec<f64> = (0..6).map(|s| schedule.multiplier(s, 6).unwrap()).collect();
        assert_eq!(rates, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]);
        assert_eq!(
            schedule.multiplier(1, 1).unwrap(),
            1.0,
            "longer than the run"
        );
    }

    #[test]
    fn names_and_their_refusal() {
        assert_eq!("cosine".parse::<Decay>().unwrap(), Decay::Cosine);
        assert!("sawtooth".parse::<Decay>().is_err());
        assert!(Schedule::default().multiplier(0, 0).is_err());
    }
}
