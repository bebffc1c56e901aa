//! Rewards from comparing answers with each other.

use super::env::Grade;
use crate::client::SamplingClient;
use crate::text::Tokenizer;
use crate::types::{ModelInput, SamplingParams};
use crate::{Error, Result};

/// Which answers of a group meet: every pair within chunks of so many, once or both ways round.
///
/// ```
/// use tinker::train::rl::matchups;
/// assert_eq!(matchups(3, 2, true), [(0, 1), (1, 0)]);
/// ```
#[doc(alias = "get_pairs_chunked")]
pub fn matchups(n: usize, chunk: usize, both_ways: bool) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for start in (0..n).step_by(chunk.max(1)) {
        let end = (start + chunk.max(1)).min(n);
        for a in start..end {
            let others = (start..end).filter(|b| if both_ways { a != *b } else { a < *b });
            pairs.extend(others.map(|b| (a, b)));
        }
    }
    pairs
}

/// Grades a group by letting its answers meet: wins less losses, over the number of meetings, as
/// the reward and the metric `win_minus_loss`. `compare(a, b)` is above 0 if `b` is better, at
/// most 1, and below 0 if `a` is.
///
/// ```
/// use tinker::train::rl::{matchups, tournament};
///
/// let lengths = [3, 1, 2];
/// let shorter = |a: usize, b: usize| Ok(f64::from(lengths[b] < lengths[a]) * 2.0 - 1.0);
/// let grades = tournament(3, &matchups(3, 4, true), shorter)?;
/// let rewards: Vec<f64> = grades.iter().map(|grade| grade.reward).collect();
/// assert_eq!(rewards, [-1.0, 1.0, 0.0]);
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] for a meeting of an answer that is not there; what `compare` returns.
pub fn tournament(
    answers: usize,
    matchups: &[(usize, usize)],
    mut compare: impl FnMut(usize, usize) -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<Grade>> {
    let is_there = |(a, b): &&(usize, usize)| *a.max(b) < answers;
    if let Some(matchup) = matchups.iter().find(|matchup| !is_there(matchup)) {
        let problem = format!("{matchup:?} is none of {answers} answers, counted from 0");
        return Err(Error::invalid("matchups", problem).into());
    }
    let mut scores = vec![(0.0, 0); answers];
    for &(a, b) in matchups {
        let result = compare(a, b)?;
        for (answer, change) in [(a, -result), (b, result)] {
            scores[answer].0 += change;
            scores[answer].1 += 1;
        }
    }
    let grade = |(score, met): (f64, usize)| {
        let share = score / met.max(1) as f64;
        Grade::reward(share).with_metric("win_minus_loss", share)
    };
    Ok(scores.into_iter().map(grade).collect())
}

/// A model that was trained to say which of two answers is better, by one word: `A` or `B`.
///
/// It is trained with [`Supervised`](crate::train::Supervised) on rows of
/// [`Judgement`](crate::text::data::Judgement), whose only target is that word. Its word is a reward
/// for [`tournament`]: ask both ways round, so that a leaning to `A` or `B` cancels out.
///
/// ```no_run
/// # fn example(service: tinker::ServiceClient, renderer: tinker::text::Renderer) -> tinker::Result<()> {
/// use tinker::text::data::{Comparison, Judgement, Reader, RenderOptions};
/// use tinker::train::rl::PreferenceModel;
/// use tinker::train::{Batches, Existing, Run, Supervised};
///
/// let rows = Reader::<Judgement>::open("comparisons.jsonl")?;
/// let data = rows.datums(&renderer, RenderOptions::default()).collect::<Result<Vec<_>, _>>()?;
/// let mut run = Run::open("runs/judge", Existing::Resume)?;
/// let report = Supervised::new("Qwen/Qwen3-8B")
///     .with_learning_rate(3e-4)
///     .train(&service, &mut run, &Batches::new(data, 256)?)?;
/// let saved = report.checkpoint.and_then(|saved| saved.sampler_path).unwrap_or_default();
/// let judge = PreferenceModel::new(service.create_sampling_client(saved)?)?;
/// for row in Reader::<Comparison>::open("held-out.jsonl")? {
///     let score = judge.compare(&row?.preference_prompt(&renderer)?)?;
///     println!("{}", if score < 0.0 { "A" } else { "B" });
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct PreferenceModel {
    sampler: SamplingClient,
    tokenizer: Tokenizer,
}

impl PreferenceModel {
    /// A judge of these weights.
    ///
    /// # Errors
    ///
    /// If its tokenizer cannot be had.
    pub fn new(sampler: SamplingClient) -> Result<Self> {
        let tokenizer = sampler.tokenizer()?;
        Ok(Self { sampler, tokenizer })
    }

    /// Compares the two answers that a prompt shows: -1 if it says `A`, 1 if it says `B`, else 0.
    ///
    /// # Errors
    ///
    /// As [`SamplingClient::sample`].
    pub fn compare(&self, prompt: &ModelInput) -> Result<f64> {
        let params = SamplingParams::max_tokens(1).with_temperature(0.0);
        let said = self.sampler.sample(prompt, params)?;
        let said = said
            .first()
            .map(|sequence| sequence.tokens.as_slice().to_vec());
        let said = self.tokenizer.decode_plain(&said.unwrap_or_default())?;
        Ok(match said.trim() {
            "A" => -1.0,
            "B" => 1.0,
            _ => 0.0,
        })
    }
}
