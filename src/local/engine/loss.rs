//! The service's loss functions: scalar functions of target log-probabilities.
//!
//! A policy loss takes `weights` too, which multiply its terms token by token. Every loss is a sum
//! over tokens, so the engine needs only its value and `dL/dlogp`.

use super::train::Datum;
use crate::error::{Error, Result};

/// A loss function with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Loss {
    /// `-w logp`. Inputs: `weights`. The only loss that takes several targets per position.
    CrossEntropy,
    /// `-r A` with `r = exp(logp - logprobs)`. Inputs: `logprobs`, `advantages`.
    ImportanceSampling,
    /// `-min(r A, clip(r) A)`.
    Ppo(Clip),
    /// `-clip(r) A logp`, the clipped ratio held constant.
    Cispo(Clip),
    /// `-(A logp - beta/2 (logp - logprobs)²)`.
    Dro { beta: f64 },
    /// PPO with one ratio per sequence: `s = exp(mean(logp - logprobs))`, the mean taken where
    /// `sequence_ratio_mask` is not 0 (by default, where the advantage is not 0).
    Gspo(Clip),
}

/// The interval a ratio is clipped to; a datum's own thresholds override it token by token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clip {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// A loss at given log-probabilities.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// One number per target; their sum is the loss.
    pub(crate) elementwise: Vec<f32>,
    /// `dL/dlogp`, one per target.
    pub(crate) gradient: Vec<f32>,
}

impl Loss {
    /// A loss by its name on the wire, with `loss_fn_config` (numbers by name).
    ///
    /// # Errors
    ///
    /// If the name is unknown or not offered here, or a setting does not belong to the loss.
    pub(crate) fn parse<'a>(
        name: &str,
        config: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<Self> {
        let mut loss = match name {
            "cross_entropy" => Self::CrossEntropy,
            "importance_sampling" => Self::ImportanceSampling,
            "ppo" => Self::Ppo(Clip {
                low: 0.8,
                high: 1.2,
            }),
            // One-sided, as the service's tutorial has it since June 2026.
            "cispo" => Self::Cispo(Clip {
                low: 0.0,
                high: 4.0,
            }),
            // The service has published no defaults for dro and gspo: these are our reading, after
            // the papers that propose them.
            "dro" => Self::Dro { beta: 0.05 },
            "gspo" => Self::Gspo(Clip {
                low: 1.0 - 3e-4,
                high: 1.0 + 4e-4,
            }),
            // The service has published its name, but neither its formula nor its settings.
            "stable_reinforce" => {
                return Err(Error::invalid(
                    "loss_fn",
                    "`stable_reinforce` is not offered by this engine, because its formula is \
                     not public; ppo, cispo, gspo or a custom loss may serve instead",
                ));
            }
            other => {
                return Err(Error::invalid(
                    "loss_fn",
                    format!(
                        "`{other}` is not offered by this engine; it has cross_entropy, \
                         importance_sampling, ppo, cispo, dro, gspo and custom"
                    ),
                ));
            }
        };
        for (key, value) in config {
            if !value.is_finite() {
                return Err(Error::invalid(
                    format!("loss_fn_config.{key}"),
                    "must be finite",
                ));
            }
            match (&mut loss, key) {
                (Self::Ppo(clip) | Self::Cispo(clip) | Self::Gspo(clip), "clip_low_threshold") => {
                    clip.low = value;
                }
                (Self::Ppo(clip) | Self::Cispo(clip) | Self::Gspo(clip), "clip_high_threshold") => {
                    clip.high = value;
                }
                (Self::Dro { beta }, "beta") => *beta = value,
                _ => {
                    return Err(Error::invalid(
                        format!("loss_fn_config.{key}"),
                        format!("is not a setting of {name}"),
                    ));
                }
            }
        }
        Ok(loss)
    }

    /// Refuses a datum that lacks an input of this loss or has one of another length.
    ///
    /// # Errors
    ///
    /// Names the input.
    pub(crate) fn check(&self, datum: &Datum) -> Result<()> {
        let inputs = &datum.inputs;
        let all = [
            ("weights", &inputs.weights),
            ("logprobs", &inputs.logprobs),
            ("advantages", &inputs.advantages),
            ("clip_low_threshold", &inputs.clip_low_threshold),
            ("clip_high_threshold", &inputs.clip_high_threshold),
            ("sequence_ratio_mask", &inputs.sequence_ratio_mask),
        ];
        for (name, values) in all {
            let field = || format!("loss_fn_inputs.{name}");
            if values.is_empty() {
                if self.required().contains(&name) {
                    return Err(Error::invalid(field(), "is missing"));
                }
            } else if values.len() != datum.targets.len() {
                let problem = format!(
                    "has {} values for {} targets",
                    values.len(),
                    datum.targets.len()
                );
                return Err(Error::invalid(field(), problem));
            } else if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                return Err(Error::invalid(
                    format!("{}[{index}]", field()),
                    "must be finite",
                ));
            }
        }
        if matches!(self, Self::Gspo(_)) && inputs.weights.iter().any(|weight| *weight != 1.0) {
            return Err(Error::invalid(
                "loss_fn_inputs.weights",
                "gspo's ratio belongs to the whole sequence, so it takes no weights of tokens; \
                 sequence_ratio_mask says which tokens count",
            ));
        }
        if datum.width > 1 && *self != Self::CrossEntropy {
            return Err(Error::invalid(
                "loss_fn_inputs.target_tokens",
                "several targets per position are for cross_entropy only",
            ));
        }
        Ok(())
    }

    /// The loss and its gradient at the given log-probabilities of the datum's targets.
    pub(crate) fn evaluate(&self, datum: &Datum, logp: &[f32]) -> Terms {
        let inputs = &datum.inputs;
        let token = |index: usize| Token {
            logp: f64::from(logp[index]),
            behaviour: f64::from(inputs.logprobs[index]),
            advantage: f64::from(inputs.advantages[index]),
        };
        let terms = |term: &dyn Fn(usize) -> (f64, f64)| {
            let (elementwise, gradient) = (0..logp.len())
                .map(term)
                .map(|(value, gradient)| (value as f32, gradient as f32))
                .unzip();
            Terms {
                elementwise,
                gradient,
            }
        };
        let mut terms = match *self {
            Self::CrossEntropy => terms(&|index| {
                let weight = f64::from(inputs.weights[index]);
                (-weight * f64::from(logp[index]), -weight)
            }),
            Self::ImportanceSampling => terms(&|index| {
                let gain = token(index).ratio() * token(index).advantage;
                (-gain, -gain)
            }),
            Self::Ppo(clip) => terms(&|index| {
                let token = token(index);
                let (gain, open) = clip.of(datum, index).gain(token.ratio(), token.advantage);
                (-gain, if open { -gain } else { 0.0 })
            }),
            Self::Cispo(clip) => terms(&|index| {
                let token = token(index);
                let clip = clip.of(datum, index);
                let factor = clip.apply(token.ratio()) * token.advantage;
                (-factor * token.logp, -factor)
            }),
            Self::Dro { beta } => terms(&|index| {
                let token = token(index);
                let drift = token.logp - token.behaviour;
                let gain = token.advantage * token.logp - 0.5 * beta * drift * drift;
                (-gain, beta * drift - token.advantage)
            }),
            Self::Gspo(clip) => gspo(clip, datum, &(0..logp.len()).map(token).collect::<Vec<_>>()),
        };
        if *self != Self::CrossEntropy {
            let of_tokens = terms.elementwise.iter_mut().zip(&mut terms.gradient);
            for ((value, gradient), weight) in of_tokens.zip(&inputs.weights) {
                *value *= weight;
                *gradient *= weight;
            }
        }
        terms
    }

    fn required(&self) -> &'static [&'static str] {
        match self {
            Self::CrossEntropy => &["weights"],
            _ => &["logprobs", "advantages"],
        }
    }
}

#[derive(Clone, Copy)]
struct Token {
    logp: f64,
    /// Log-probability under the policy that sampled the token.
    behaviour: f64,
    advantage: f64,
}

impl Token {
    fn ratio(self) -> f64 {
        (self.logp - self.behaviour).exp()
    }
}

impl Clip {
    fn of(self, datum: &Datum, index: usize) -> Self {
        let own = |values: &[f32], default| values.get(index).map_or(default, |v| f64::from(*v));
        Self {
            low: own(&datum.inputs.clip_low_threshold, self.low),
            high: own(&datum.inputs.clip_high_threshold, self.high),
        }
    }

    /// Like `torch.clamp`: the upper bound wins when the bounds cross.
    fn apply(self, ratio: f64) -> f64 {
        ratio.max(self.low).min(self.high)
    }

    /// PPO's gain, and whether it still follows the ratio.
    fn gain(self, ratio: f64, advantage: f64) -> (f64, bool) {
        let clipped = self.apply(ratio);
        let (free, bound) = (ratio * advantage, clipped * advantage);
        if free <= bound {
            (free, true)
        } else {
            (bound, clipped == ratio)
        }
    }
}

/// The ratio is one function of every masked token, so each shares every term's gradient.
fn gspo(clip: Clip, datum: &Datum, tokens: &[Token]) -> Terms {
    let mask = |index: usize| match datum.inputs.sequence_ratio_mask.get(index) {
        Some(weight) => f64::from(*weight),
        None if tokens[index].advantage != 0.0 => 1.0,
        None => 0.0,
    };
    let count: f64 = (0..tokens.len()).map(mask).sum();
    let share = if count == 0.0 { 0.0 } else { 1.0 / count };
    let drift: f64 = tokens
        .iter()
        .enumerate()
        .map(|(index, token)| mask(index) * share * (token.logp - token.behaviour))
        .sum();
    let ratio = drift.exp();
    let mut pull = 0.0;
    let elementwise = tokens
        .iter()
        .enumerate()
        .map(|(index, token)| {
            let (gain, open) = clip.of(datum, index).gain(ratio, token.advantage);
            if open {
                pull -= gain;
            }
            -gain as f32
        })
        .collect();
    let gradient = (0..tokens.len())
        .map(|index| (pull * mask(index) * share) as f32)
        .collect();
    Terms {
        elementwise,
        gradient,
    }
}
