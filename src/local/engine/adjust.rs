//! What a request does to the logits before a token is drawn from them.

use crate::error::{Error, Result};

/// What is never drawn, whatever the temperature.
const NEVER: f32 = f32::NEG_INFINITY;

/// Biases and penalties. The log-probabilities that are reported stay the model's own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Adjust {
    /// Only tokens at least this likely, as a share of the likeliest one; 0 for all.
    pub(crate) min_p: f64,
    /// Taken off once from what was sampled before.
    pub(crate) presence: f64,
    /// Taken off for each time it was sampled before.
    pub(crate) frequency: f64,
    /// Divides what stands in the prompt or was sampled; 1 for nothing.
    pub(crate) repetition: f64,
    /// Added to single tokens.
    pub(crate) bias: Vec<(u32, f32)>,
}

impl Default for Adjust {
    fn default() -> Self {
        Self {
            min_p: 0.0,
            presence: 0.0,
            frequency: 0.0,
            repetition: 1.0,
            bias: Vec::new(),
        }
    }
}

impl Adjust {
    /// Whether it changes nothing.
    pub(crate) fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses numbers that mean nothing, and tokens there are none of.
    ///
    /// # Errors
    ///
    /// Names the setting and what is allowed.
    pub(crate) fn check(&self, vocab: usize) -> Result<()> {
        let within = |field: &str, value: f64, low: f64, high: f64| match value {
            value if (low..=high).contains(&value) => Ok(()),
            value => {
                let problem = format!("must be between {low} and {high}, got {value}");
                Err(Error::invalid(field, problem))
            }
        };
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency, -2.0, 2.0)?;
        within("repetition_penalty", self.repetition, 0.01, 100.0)?;
        for (token, bias) in &self.bias {
            within("logit_bias", f64::from(*bias), -100.0, 100.0)?;
            if *token as usize >= vocab {
                let problem = format!("token {token} is outside the vocabulary of {vocab}");
                return Err(Error::invalid("logit_bias", problem));
            }
        }
        Ok(())
    }

    /// The logits to draw from, after a prompt and what was sampled so far.
    pub(crate) fn apply(
        &self,
        logits: &[f32],
        prompt: &[u32],
        sampled: &[u32],
        temperature: f64,
    ) -> Vec<f32> {
        let mut logits = logits.to_vec();
        for (token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                // A hundred either way means always or never.
                *logit += *bias;
            }
        }
        if self.repetition != 1.0 {
            let mut seen = [prompt, sampled].concat();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                if let Some(logit) = logits.get_mut(token as usize) {
                    let by = self.repetition as f32;
                    *logit = if *logit > 0.0 {
                        *logit / by
                    } else {
                        *logit * by
                    };
                }
            }
        }
        if self.presence != 0.0 || self.frequency != 0.0 {
            let mut counted = sampled.to_vec();
            counted.sort_unstable();
            for same in counted.chunk_by(|one, other| one == other) {
                if let Some(logit) = logits.get_mut(same[0] as usize) {
                    *logit -= (self.presence + self.frequency * same.len() as f64) as f32;
                }
            }
        }
        if self.min_p > 0.0 && temperature > 0.0 {
            let peak = logits.iter().copied().fold(f32::MIN, f32::max);
            let least = peak + (temperature * self.min_p.ln()) as f32;
            for logit in logits.iter_mut().filter(|logit| **logit < least) {
                *logit = NEVER;
            }
        }
        logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [2.0, 1.0, 0.0, -1.0];

    #[track_caller]
    fn check(adjust: Adjust, sampled: &[u32], expected: [f32; 4]) {
        assert_eq!(adjust.apply(&LOGITS, &[3], sampled, 1.0), expected);
    }

    #[test]
    fn each_setting_moves_what_it_should() {
        let none = Adjust::default();
        assert!(none.is_idle());
        check(none.clone(), &[0, 0], LOGITS);
        let presence = Adjust {
            presence: 0.5,
            ..none.clone()
        };
        check(presence, &[0, 0, 2], [1.5, 1.0, -0.5, -1.0]);
        let frequency = Adjust {
            frequency: 0.5,
            ..none.clone()
        };
        check(frequency, &[0, 0, 2], [1.0, 1.0, -0.5, -1.0]);
        let repetition = Adjust {
            repetition: 2.0,
            ..none.clone()
        };
        check(repetition, &[0], [1.0, 1.0, 0.0, -2.0]);
        let bias = vec![(1, 100.0), (0, -100.0)];
        check(
            Adjust {
                bias,
                ..none.clone()
            },
            &[],
            [-98.0, 101.0, 0.0, -1.0],
        );
        // A share of 0.2 is 1.6 below the peak.
        check(Adjust { min_p: 0.2, ..none }, &[], [2.0, 1.0, NEVER, NEVER]);
    }

    /// However hot it is, and whatever the draw.
    #[test]
    fn what_is_excluded_is_never_drawn() {
        use crate::local::engine::pick::{Candidates, Picker};
        use crate::local::engine::rng::Rng;
        let adjust = Adjust {
            min_p: 1.0,
            ..Adjust::default()
        };
        for temperature in [0.5, 1.0, 1e8, 1e30, 1e300] {
            let logits = adjust.apply(&[0.0, 1.0, 2.0, 1.5], &[], &[], temperature);
            for (top_k, top_p) in [(None, 1.0), (Some(3), 1.0), (None, 0.999)] {
                let picker = Picker::new(temperature, top_k, top_p);
                let (mut rng, mut room) = (Rng::new(5), Candidates::default());
                for _ in 0..100 {
                    let token = picker.pick(&logits, &mut rng, &mut room);
                    assert_eq!(token, 2, "{temperature} {top_k:?} {top_p}");
                }
            }
        }
    }

    #[test]
    fn numbers_without_meaning_are_refused() {
        let refused = |adjust: Adjust| adjust.check(4).unwrap_err().to_string();
        let none = Adjust::default;
        assert!(none().check(4).is_ok());
        assert!(
            refused(Adjust {
                min_p: f64::NAN,
                ..none()
            })
            .contains("min_p")
        );
        assert!(
            refused(Adjust {
                presence: 3.0,
                ..none()
            })
            .contains("presence_penalty")
        );
        assert!(
            refused(Adjust {
                frequency: -3.0,
                ..none()
            })
            .contains("frequency_penalty")
        );
        assert!(
            refused(Adjust {
                repetition: 0.0,
                ..none()
            })
            .contains("repetition_penalty")
        );
        assert!(
            refused(Adjust {
                bias: vec![(4, 1.0)],
                ..none()
            })
            .contains("vocabulary")
        );
        assert!(
            refused(Adjust {
                bias: vec![(0, 101.0)],
                ..none()
            })
            .contains("logit_bias")
        );
    }
}
