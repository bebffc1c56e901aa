//! What a sampling request returns.

use std::fmt;

use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::tensor::{Brief, Floats, Numbers};
use super::{SequenceId, TensorData, Tokens};
use crate::{Error, Result};

/// Why a sequence ended.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopReason {
    /// A stop text, a stop token or the model's own end of sequence.
    Stop,
    /// The most tokens that were asked for.
    Length,
    /// A reason this version does not know.
    #[serde(other)]
    Unknown,
}

impl StopReason {
    /// The service's spelling: `stop` or `length`; `unknown` for any other.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The answer to a sampling request.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SampleResponse {
    /// The sampled sequences.
    pub sequences: Vec<SampledSequence>,
    /// The log-probability of each prompt token, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// The likeliest tokens at each prompt position, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "topk_lists")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    /// The log-probabilities of the tokens asked for in `target_prompt_logprobs`, in the same
    /// shape and layout, 0 where none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_prompt_logprobs: Option<TensorData>,
    /// The alternatives at each prompt position, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_alt_tokens: Option<PromptAltTokens>,
    /// Prompt tokens billed as prefix-cache hits. Counted once, however many samples were drawn.
    #[serde(default)]
    pub prompt_cache_hit_tokens: i64,
}

impl SampleResponse {
    /// The first sequence, which is the only one unless more were asked for.
    pub fn first(&self) -> Option<&SampledSequence> {
        self.sequences.first()
    }
}

impl SampleResponse {
    /// An answer with these sequences and nothing else; set the other fields directly.
    pub fn new(sequences: Vec<SampledSequence>) -> Self {
        Self {
            sequences,
            ..Self::default()
        }
    }
}

/// One sampled sequence.
#[non_exhaustive]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledSequence {
    /// Why it ended.
    pub stop_reason: StopReason,
    /// Its tokens.
    #[serde(default)]
    pub tokens: Tokens,
    /// The log-probability of each token, if the service sent them.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "float_list")]
    pub logprobs: Option<Vec<f32>>,
    /// The likeliest tokens at each position, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "topk_lists")]
    pub topk_logprobs: Option<TopkLogprobs>,
    /// The name by which later requests refer to this sequence; older services give none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_id: Option<SequenceId>,
}

impl SampledSequence {
    /// A sequence of these tokens; set the other fields directly.
    pub fn new(stop_reason: StopReason, tokens: impl Into<Tokens>) -> Self {
        Self {
            stop_reason,
            tokens: tokens.into(),
            logprobs: None,
            topk_logprobs: None,
            sequence_id: None,
        }
    }
}

impl fmt::Debug for SampledSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("SampledSequence");
        out.field("stop_reason", &self.stop_reason)
            .field("tokens", &self.tokens);
        if let Some(logprobs) = &self.logprobs {
            out.field("logprobs", &Brief(logprobs));
        }
        if let Some(topk) = &self.topk_logprobs {
            out.field("topk_logprobs", topk);
        }
        out.field("sequence_id", &self.sequence_id).finish()
    }
}

/// The log-probability of each prompt token. Some have none: the first, and those before the
/// last `n` if only those were asked for.
///
/// ```
/// use tinker::types::PromptLogprobs;
///
/// let logprobs = PromptLogprobs::from(vec![f32::NAN, -0.5]);
/// assert_eq!(logprobs.get(0), None);
/// assert_eq!(logprobs.get(1), Some(-0.5));
/// assert_eq!(logprobs.iter().flatten().sum::<f32>(), -0.5);
/// ```
#[derive(Clone, Default)]
pub struct PromptLogprobs(Vec<f32>);

impl PromptLogprobs {
    /// How many prompt tokens there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The log-probability of a token, if it has one.
    pub fn get(&self, index: usize) -> Option<f32> {
        self.0.get(index).copied().filter(|value| !value.is_nan())
    }

    /// All of them in order, `None` for tokens without one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<f32>> + '_ {
        self.0
            .iter()
            .map(|value| (!value.is_nan()).then_some(*value))
    }

    /// The plain numbers, NaN for tokens without one.
    pub fn as_raw(&self) -> &[f32] {
        &self.0
    }
}

/// NaN stands for "none".
impl From<Vec<f32>> for PromptLogprobs {
    fn from(values: Vec<f32>) -> Self {
        Self(values)
    }
}

impl FromIterator<Option<f32>> for PromptLogprobs {
    fn from_iter<I: IntoIterator<Item = Option<f32>>>(values: I) -> Self {
        Self(
            values
                .into_iter()
                .map(|value| value.unwrap_or(f32::NAN))
                .collect(),
        )
    }
}

/// Tokens without a log-probability are equal to each other.
impl PartialEq for PromptLogprobs {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for PromptLogprobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Brief(&self.0).fmt(f)
    }
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(|value| value.map(f64::from)))
    }
}

impl<'de> Deserialize<'de> for PromptLogprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<Option<f32>>::deserialize(deserializer)?;
        Ok(values.into_iter().collect())
    }
}

/// The likeliest tokens at each position: two matrices with a row per position.
///
/// Positions without an answer, and cells a position does not need, hold token 0 with
/// log-probability −99999; [`row`](Self::row) leaves them out.
///
/// ```
/// use tinker::types::TopkLogprobs;
///
/// let topk = TopkLogprobs::new(vec![1, 2, 3, 0], vec![-0.1, -2.0, -0.5, -99999.0], 2)?;
/// assert_eq!(topk.len(), 2);
/// assert_eq!(topk.row(0), Some((&[1, 2][..], &[-0.1, -2.0][..])));
/// assert_eq!(topk.row(1), Some((&[3][..], &[-0.5][..])));
/// assert_eq!(topk.to_lists(), [Some(vec![(1, -0.1), (2, -2.0)]), Some(vec![(3, -0.5)])]);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct TopkLogprobs {
    token_ids: Vec<i32>,
    logprobs: Vec<f32>,
    k: usize,
}

impl TopkLogprobs {
    /// The log-probability of a cell that holds nothing; its token is 0.
    pub const MASK: f32 = -99999.0;

    /// Matrices of `k` columns, row after row.
    ///
    /// # Errors
    ///
    /// If the two differ in length, or it is not a multiple of `k`.
    pub fn new(token_ids: Vec<i32>, logprobs: Vec<f32>, k: usize) -> Result<Self> {
        if token_ids.len() != logprobs.len() {
            return Err(Error::invalid(
                "topk_logprobs",
                format!(
                    "{} token ids but {} logprobs",
                    token_ids.len(),
                    logprobs.len()
                ),
            ));
        }
        // With k = 0 only an empty matrix passes.
        if !token_ids.len().is_multiple_of(k) {
            return Err(Error::invalid(
                "topk_logprobs",
                format!("{} cells do not fill rows of {k}", token_ids.len()),
            ));
        }
        Ok(Self {
            token_ids,
            logprobs,
            k,
        })
    }

    /// The matrices from one list per position; `None` where there is no answer.
    pub fn from_lists(lists: &[Option<Vec<(i32, f32)>>]) -> Self {
        let k = lists
            .iter()
            .flatten()
            .map(Vec::len)
            .max()
            .unwrap_or(0)
            .max(1);
        let mut token_ids = vec![0; lists.len() * k];
        let mut logprobs = vec![Self::MASK; lists.len() * k];
        for (position, list) in lists.iter().enumerate() {
            for (rank, &(token, logprob)) in list.iter().flatten().enumerate() {
                token_ids[position * k + rank] = token;
                logprobs[position * k + rank] = logprob;
            }
        }
        Self {
            token_ids,
            logprobs,
            k,
        }
    }

    /// How many tokens were asked for at each position.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How many positions there are.
    pub fn len(&self) -> usize {
        self.token_ids.len().checked_div(self.k).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All token ids, `k` per position.
    pub fn token_ids(&self) -> &[i32] {
        &self.token_ids
    }

    /// All log-probabilities, `k` per position.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The tokens at a position and their log-probabilities, likeliest first; `None` beyond the
    /// end and where the service has no answer.
    pub fn row(&self, position: usize) -> Option<(&[i32], &[f32])> {
        let start = position.checked_mul(self.k)?;
        let cells = start..start.checked_add(self.k)?;
        let (ids, logprobs) = (
            self.token_ids.get(cells.clone())?,
            self.logprobs.get(cells)?,
        );
        let empty = |index: usize| ids[index] == 0 && logprobs[index] == Self::MASK;
        if self.k == 0 || empty(0) {
            return None;
        }
        let end = (0..self.k)
            .rev()
            .find(|&index| !empty(index))
            .map_or(0, |last| last + 1);
        Some((&ids[..end], &logprobs[..end]))
    }

    /// One list of tokens and log-probabilities per position.
    pub fn to_lists(&self) -> Vec<Option<Vec<(i32, f32)>>> {
        let pair = |(ids, logprobs): (&[i32], &[f32])| {
            ids.iter().copied().zip(logprobs.iter().copied()).collect()
        };
        (0..self.len())
            .map(|position| self.row(position).map(pair))
            .collect()
    }
}

impl fmt::Debug for TopkLogprobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopkLogprobs")
            .field("k", &self.k)
            .field("token_ids", &Brief(&self.token_ids))
            .field("logprobs", &Brief(&self.logprobs))
            .finish()
    }
}

/// Tokens drawn from the model's own distribution at each prompt position after the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptAltTokens {
    /// Their ids: an int64 matrix, a row per position, a column per draw.
    pub tokens: TensorData,
    /// Their log-probabilities: a float32 matrix of the same shape.
    pub logprobs: TensorData,
}

/// Optional floats, written with the digits of their 64-bit value.
mod float_list {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        values: &Option<Vec<f32>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        values.as_deref().map(Floats).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<f32>>, D::Error> {
        Ok(Option::<Numbers>::deserialize(deserializer)?.map(Numbers::into_f32))
    }
}

/// Top-k matrices as the JSON form's nested lists of `[token, logprob]`.
mod topk_lists {
    use super::*;

    /// How many cells the matrix may have for each position and cell that was sent.
    const LARGEST_GROWTH: usize = 64;

    pub(super) fn serialize<S: Serializer>(
        topk: &Option<TopkLogprobs>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let widen = |list: Vec<(i32, f32)>| {
            list.into_iter()
                .map(|(token, logprob)| (token, f64::from(logprob)))
                .collect::<Vec<_>>()
        };
        match topk {
            Some(topk) => {
                serializer.collect_seq(topk.to_lists().into_iter().map(|list| list.map(widen)))
            }
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<TopkLogprobs>, D::Error> {
        let lists = Option::<Vec<Option<Vec<(i32, f32)>>>>::deserialize(deserializer)?;
        let Some(lists) = lists else {
            return Ok(None);
        };
        // The matrix is as wide as its widest row: one long row among many short ones would
        // take far more memory than its text.
        let widest = lists.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let listed: usize = lists.iter().flatten().map(Vec::len).sum();
        if lists.len().saturating_mul(widest) > LARGEST_GROWTH * (lists.len() + listed) {
            return Err(D::Error::custom(
                "the lists of likeliest tokens differ too much in length",
            ));
        }
        Ok(Some(TopkLogprobs::from_lists(&lists)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_must_have_whole_rows() {
        #[track_caller]
        fn check(ids: usize, logprobs: usize, k: usize, fits: bool) {
            let topk = TopkLogprobs::new(vec![1; ids], vec![-1.0; logprobs], k);
            assert_eq!(topk.is_ok(), fits);
        }
        check(4, 4, 2, true);
        check(0, 0, 0, true);
        check(4, 3, 1, false);
        check(3, 3, 2, false);
        check(1, 1, 0, false);
    }

    #[test]
    fn lists_of_very_different_length_are_refused() {
        let read = |rows: usize, long: usize| {
            let rows = vec!["null"; rows].join(",");
            let long = vec!["[1,-1.0]"; long].join(",");
            let text = format!(r#"{{"sequences":[],"topk_prompt_logprobs":[{rows},[{long}]]}}"#);
            serde_json::from_str::<SampleResponse>(&text)
        };
        let topk = read(1000, 20).unwrap().topk_prompt_logprobs.unwrap();
        assert_eq!((topk.len(), topk.k()), (1001, 20));
        assert_eq!(topk.row(1000).unwrap().0, [1; 20]);
        assert!(read(1000, 1000).is_err());
    }
}
