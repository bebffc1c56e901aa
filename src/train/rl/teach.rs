//! Learning from a teacher instead of a reward: on-policy distillation, and self-distillation
//! from a prompt that knows the answer.

use crate::client::SamplingClient;
use crate::loss::LossValue;
use crate::text::data::{KlPenalty, without_mask};
use crate::train::evaluate::check_count;
use crate::train::row::Row;
use crate::train::scores::floats;
use crate::train::soft::{Soft, check_k, likeliest};
use crate::types::{Datum, ModelInput, TensorData};
use crate::{Error, Result};

use super::train::whole_logprobs;

/// Self-distillation: the model as it began, whose prompt holds a model answer, teaches the model
/// that sees the question only. Groups give the teacher's prompt
/// ([`EnvGroup::teacher_prompt`](super::EnvGroup::teacher_prompt)).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SelfDistillation {
    /// How many of the teacher's likeliest tokens are learned at each place, at most 20; 0 learns
    /// from its judgement of the sampled tokens alone. Default: 20.
    pub topk: u32,
    /// Whether the student's own likely tokens count instead of the teacher's. Default: no.
    pub reverse: bool,
    /// How many tokens at the start of an answer are not learned from. Default: 3.
    pub skip_first: usize,
    /// The most tokens of a teacher's sequence; longer answers are cut. Default: 32768.
    pub max_context: usize,
    /// After how many steps the teacher is replaced by the student. Default: never.
    pub sync_every: Option<usize>,
}

impl Default for SelfDistillation {
    fn default() -> Self {
        Self {
            topk: 20,
            reverse: false,
            skip_first: 3,
            max_context: 32_768,
            sync_every: None,
        }
    }
}

/// What a batch is trained on.
pub(super) struct Lesson {
    /// The examples as they are sent.
    pub(super) data: Vec<Datum>,
    pub(super) kind: LessonKind,
    pub(super) metrics: Row,
}

/// Which loss a lesson is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LessonKind {
    /// The run's policy loss.
    Policy,
    /// Cross-entropy with soft targets.
    Soft,
    /// The reverse distance over soft targets.
    Reverse,
}

impl Lesson {
    /// Rollouts as they are.
    pub(super) fn policy(data: &[Datum]) -> Self {
        Self {
            data: data.iter().cloned().map(without_mask).collect(),
            kind: LessonKind::Policy,
            metrics: Row::new(),
        }
    }
}

/// Adds teachers' judgement to the advantages. `datasets` has each example's data set, which is
/// also the number of its teacher.
pub(super) fn distill(
    penalty: &KlPenalty,
    teachers: &[SamplingClient],
    data: &mut [Datum],
    datasets: &[usize],
) -> Result<Row> {
    let mut scored = vec![Vec::new(); data.len()];
    for (number, teacher) in teachers.iter().enumerate() {
        let own: Vec<usize> = (0..data.len()).filter(|&i| datasets[i] == number).collect();
        let examples: Vec<Datum> = own.iter().map(|&index| data[index].clone()).collect();
        for (index, logprobs) in own.into_iter().zip(whole_logprobs(teacher, &examples)?) {
            scored[index] = logprobs;
        }
    }
    if let Some(unknown) = datasets.iter().find(|number| **number >= teachers.len()) {
        let problem = format!("{unknown} has no teacher; there are {}", teachers.len());
        return Err(Error::invalid("dataset", problem));
    }
    let metrics = penalty.distill(data, &scored, datasets)?;
    Ok(metrics
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect())
}

impl SelfDistillation {
    /// Refuses settings that cannot go together.
    pub(super) fn check(&self) -> Result<()> {
        match (self.topk, self.reverse) {
            (0, true) => Err(Error::invalid(
                "topk",
                "must be from 1 to 20 where the distance is reversed, got 0",
            )),
            (0, false) => Ok(()),
            (topk, _) => check_k(topk),
        }
    }

    /// What is learned from examples, given the teacher's prompt of each.
    pub(super) fn lesson(
        &self,
        teacher: &SamplingClient,
        data: &[Datum],
        prompts: &[ModelInput],
    ) -> Result<Lesson> {
        let mut truncated = 0;
        let mut forced = Vec::new();
        for (datum, prompt) in data.iter().zip(prompts) {
            let mut said = sampled(datum)?;
            let room = self.max_context.saturating_sub(prompt.length()?);
            if said.len() > room {
                said.truncate(room);
                truncated += 1;
            }
            forced.push(prompt.clone().append_ints(said));
        }
        let metrics = Row::new()
            .with("sdft/teacher_truncated_count", f64::from(truncated))
            .with("sdft/num_datums", data.len() as f64)
            .with("sdft/topk", f64::from(self.topk));
        match self.topk {
            0 => judged(teacher, data, prompts, forced, metrics),
            _ => self.soft(teacher, data, prompts, forced, metrics),
        }
    }

    fn soft(
        &self,
        teacher: &SamplingClient,
        data: &[Datum],
        prompts: &[ModelInput],
        forced: Vec<ModelInput>,
        mut metrics: Row,
    ) -> Result<Lesson> {
        let rows = likeliest(teacher, forced, self.topk)?;
        let (mut lessons, mut entropy, mut learned, mut said) = (Vec::new(), 0.0, 0, 0);
        for ((datum, prompt), rows) in data.iter().zip(prompts).zip(&rows) {
            let places = places(datum)?;
            let start = prompt.length()?;
            let mut soft = Soft::new(floats(datum, "mask")?.len(), self.topk as usize);
            let reached = rows.len().saturating_sub(start).min(places.len());
            for (index, place) in places[..reached].iter().enumerate().skip(self.skip_first) {
                soft.set(*place, rows.row(start + index), i32::MAX);
            }
            (entropy, learned, said) =
                (entropy + soft.entropy, learned + soft.rows, said + reached);
            lessons.push(soft.into_datum(datum.model_input().clone())?);
        }
        let (name, count) = match self.reverse {
            true => ("sdft/total_completion_positions", learned),
            false => ("sdft/total_completion_tokens", said),
        };
        if count > 0 {
            metrics.set(name, count as f64);
            metrics.set("sdft/mean_teacher_entropy", entropy / count as f64);
        }
        let kind = if self.reverse {
            LessonKind::Reverse
        } else {
            LessonKind::Soft
        };
        Ok(Lesson {
            data: lessons,
            kind,
            metrics,
        })
    }
}

/// The teacher's judgement of the sampled tokens as their advantages.
fn judged(
    teacher: &SamplingClient,
    data: &[Datum],
    prompts: &[ModelInput],
    forced: Vec<ModelInput>,
    mut metrics: Row,
) -> Result<Lesson> {
    let mut scored = vec![Vec::new(); data.len()];
    for (index, logprobs) in teacher.compute_logprobs_batch(forced) {
        scored[index] = logprobs?.as_raw().to_vec();
    }
    let mut lessons = Vec::new();
    let (mut own_sum, mut teacher_sum, mut count) = (0.0, 0.0, 0.0);
    for ((datum, prompt), scored) in data.iter().zip(prompts).zip(&scored) {
        let own = floats(datum, "logprobs")?;
        let mut advantages = vec![0.0f32; own.len()];
        let start = prompt.length()?;
        for (place, teacher) in places(datum)?
            .into_iter()
            .zip(&scored[start.min(scored.len())..])
        {
            advantages[place] = teacher - own[place];
            own_sum += f64::from(own[place]);
            teacher_sum += f64::from(*teacher);
            count += 1.0;
        }
        lessons.push(without_mask(datum.clone().with_advantages(advantages)));
    }
    if count > 0.0 {
        metrics.set("sdft/mean_advantage", (teacher_sum - own_sum) / count);
        metrics.set("sdft/mean_teacher_lp", teacher_sum / count);
        metrics.set("sdft/mean_student_lp", own_sum / count);
    }
    Ok(Lesson {
        data: lessons,
        kind: LessonKind::Policy,
        metrics,
    })
}

/// The places of sampled tokens among the targets.
fn places(datum: &Datum) -> Result<Vec<usize>> {
    let mask = floats(datum, "mask")?.iter().enumerate();
    Ok(mask
        .filter(|(_, mask)| **mask > 0.0)
        .map(|(place, _)| place)
        .collect())
}

/// The sampled tokens.
fn sampled(datum: &Datum) -> Result<Vec<i32>> {
    let targets = crate::train::scores::targets(datum)?;
    Ok(places(datum)?
        .into_iter()
        .map(|place| targets[place])
        .collect())
}

/// The reverse distance from soft targets, Σ p·(log p − log q), where the model's p is taken
/// among the teacher's tokens and only the outer p is learned through.
pub(super) fn reverse_loss(data: &[Datum], logprobs: &[TensorData]) -> anyhow::Result<LossValue> {
    let (mut total, mut entropy, mut places) = (0.0, 0.0, 0.0);
    let mut gradients = Vec::new();
    for (datum, logprobs) in data.iter().zip(logprobs) {
        let weights = floats(datum, "weights")?;
        let shape = datum
            .input("weights")
            .and_then(TensorData::shape)
            .unwrap_or_default();
        let k = shape.last().copied().unwrap_or(1).max(1);
        let logprobs = logprobs.as_f32().unwrap_or_default();
        check_count(weights.len(), logprobs.len())?;
        let mut gradient = vec![0.0f32; weights.len()];
        for (row, (weights, logprobs)) in weights.chunks(k).zip(logprobs.chunks(k)).enumerate() {
            let valid: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0.0).collect();
            if valid.is_empty() {
                continue;
            }
            let highest = valid
                .iter()
                .map(|&i| f64::from(logprobs[i]))
                .fold(f64::MIN, f64::max);
            let mass: f64 = valid
                .iter()
                .map(|&i| (f64::from(logprobs[i]) - highest).exp())
                .sum();
            let own: Vec<f64> = valid
                .iter()
                .map(|&i| f64::from(logprobs[i]) - highest - mass.ln())
                .collect();
            let gap = |at: usize| own[at] - f64::from(weights[valid[at]]).ln();
            let mean: f64 = (0..valid.len()).map(|at| own[at].exp() * gap(at)).sum();
            for at in 0..valid.len() {
                // The derivative of a softmax by its own logits.
                gradient[row * k + valid[at]] = (own[at].exp() * (gap(at) - mean)) as f32;
                entropy -= own[at].exp() * own[at];
            }
            total += mean;
            places += 1.0;
        }
        gradients.push(gradient);
    }
    let mut value = LossValue::new(total, gradients).with_metric("sdft/reverse_kl_loss", total);
    if places > 0.0 {
        value = value
            .with_metric("sdft/reverse_kl_mean", total / places)
            .with_metric("sdft/student_entropy_mean", entropy / places);
    }
    Ok(value.with_metric("sdft/reverse_kl_positions", places))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradient lets the bracket stand still, as the formula says: d/dx Σ p·c.
    #[test]
    fn gradients_of_the_reverse_distance() {
        let weights = TensorData::from(vec![0.75f32, 0.25, 0.0, 0.0])
            .with_shape(vec![2, 2])
            .unwrap();
        let datum = Datum::new(ModelInput::from_ints(vec![1, 2])).with_weights(weights);
        let at = |x: f32| {
            let logprobs = [TensorData::from(vec![x, -1.0, -3.0, -4.0])];
            reverse_loss(std::slice::from_ref(&datum), &logprobs).unwrap()
        };
        let (p, q) = (0.5f64, 0.75f64);
        let bracket = [(p.ln() - q.ln()), (p.ln() - 0.25f64.ln())];
        let expected = p * (1.0 - p) * (bracket[0] - bracket[1]);
        let found = at(-1.0);
        assert!((f64::from(found.gradients[0][0]) - expected).abs() < 1e-6);
        assert_eq!(found.gradients[0][2..], [0.0, 0.0]);
        assert!((found.loss - (p * bracket[0] + p * bracket[1])).abs() < 1e-6);
        let few = [TensorData::from(vec![-1.0f32])];
        let error = reverse_loss(std::slice::from_ref(&datum), &few).unwrap_err();
        assert!(error.to_string().contains("4 targets"), "{error}");
    }
}
