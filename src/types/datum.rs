//! Training examples, where their tokens came from, and how a batch is cut into requests.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Dtype, ModelInput, SequenceId, TensorData};
use crate::{Error, Result};

/// One training example: what the model reads and what its loss function needs.
///
/// ```
/// use tinker::{Datum, ModelInput};
///
/// let datum = Datum::new(ModelInput::from_ints(vec![1, 2, 3]))
///     .with_target_tokens(vec![2, 3, 4])
///     .with_weights(vec![0.0, 1.0, 0.5]);
/// assert_eq!(datum.input("weights").unwrap().as_f32(), Some(&[0.0, 1.0, 0.5][..]));
/// ```
///
/// Cloning copies no tokens and no tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawDatum")]
pub struct Datum {
    model_input: ModelInput,
    loss_fn_inputs: BTreeMap<String, TensorData>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    provenance: Option<Provenance>,
}

impl Datum {
    /// An example with this input and no loss inputs yet.
    pub fn new(model_input: impl Into<ModelInput>) -> Self {
        Self {
            model_input: model_input.into(),
            loss_fn_inputs: BTreeMap::new(),
            provenance: None,
        }
    }

    /// An example for supervised training: the model reads the prompt and is to continue with
    /// the answer. Targets are the tokens shifted by one; only the answer's count.
    ///
    /// ```
    /// use tinker::Datum;
    ///
    /// let datum = Datum::supervised(&[1, 2], &[3, 4]);
    /// assert_eq!(datum.model_input().to_ints()?, [1, 2, 3]);
    /// assert_eq!(datum.input("target_tokens").unwrap().as_i64(), Some(&[2, 3, 4][..]));
    /// assert_eq!(datum.input("weights").unwrap().as_f32(), Some(&[0.0, 1.0, 1.0][..]));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// With an empty prompt the answer's first token is not predicted from anything, so it does
    /// not count.
    pub fn supervised(prompt: &[i32], answer: &[i32]) -> Self {
        let mut tokens = [prompt, answer].concat();
        let targets: Vec<i32> = tokens.iter().skip(1).copied().collect();
        tokens.truncate(targets.len());
        let mut weights = vec![0.0f32; prompt.len().saturating_sub(1)];
        weights.resize(targets.len(), 1.0);
        Self::new(ModelInput::from_ints(tokens))
            .with_target_tokens(targets)
            .with_weights(weights)
    }

    /// An example for the policy-gradient losses: the model read the prompt and sampled the
    /// answer with these log probabilities, which earned this advantage. Targets are the tokens
    /// shifted by one; the prompt's have no advantage, so they do not count.
    ///
    /// ```
    /// use tinker::Datum;
    ///
    /// let datum = Datum::policy(&[1, 2], &[3, 4], &[-0.5, -0.25], 2.0)?;
    /// assert_eq!(datum.model_input().to_ints()?, [1, 2, 3]);
    /// assert_eq!(datum.input("target_tokens").unwrap().as_i64(), Some(&[2, 3, 4][..]));
    /// assert_eq!(datum.input("logprobs").unwrap().as_f32(), Some(&[0.0, -0.5, -0.25][..]));
    /// assert_eq!(datum.input("advantages").unwrap().as_f32(), Some(&[0.0, 2.0, 2.0][..]));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// With an empty prompt the answer's first token was not sampled after anything the model can
    /// read again, so it does not count.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless there is one log probability for each token of the answer.
    pub fn policy(
        prompt: &[i32],
        answer: &[i32],
        logprobs: &[f32],
        advantage: f32,
    ) -> Result<Self> {
        if logprobs.len() != answer.len() {
            let (given, tokens) = (logprobs.len(), answer.len());
            let problem = format!("has {given} values for an answer of {tokens} tokens");
            return Err(Error::invalid("logprobs", problem));
        }
        let datum = Self::supervised(prompt, answer).without("weights");
        // As many positions before the first that counts as `supervised` has.
        let (before, skipped) = match prompt.len() {
            0 => (0, 1.min(answer.len())),
            length => (length - 1, 0),
        };
        let after = |padding: f32, values: &[f32]| [&vec![padding; before], values].concat();
        let counted = &logprobs[skipped..];
        Ok(datum
            .with_logprobs(after(0.0, counted))
            .with_advantages(after(0.0, &vec![advantage; counted.len()])))
    }

    /// Sets a loss input by name, in the tensor's own number type.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, tensor: impl Into<TensorData>) -> Self {
        self.loss_fn_inputs.insert(name.into(), tensor.into());
        self
    }

    /// Takes a loss input away.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.loss_fn_inputs.remove(name);
        self
    }

    /// The token the model should predict at each position.
    #[must_use]
    pub fn with_target_tokens(self, tokens: impl Into<TensorData>) -> Self {
        self.with("target_tokens", tokens.into().cast(Dtype::Int64))
    }

    /// How much each position counts.
    #[must_use]
    pub fn with_weights(self, weights: impl Into<TensorData>) -> Self {
        self.with("weights", weights.into().cast(Dtype::Float32))
    }

    /// The advantage at each position, for policy-gradient losses.
    #[must_use]
    pub fn with_advantages(self, advantages: impl Into<TensorData>) -> Self {
        self.with("advantages", advantages.into().cast(Dtype::Float32))
    }

    /// The log-probability of each token under the policy that sampled it.
    #[must_use]
    pub fn with_logprobs(self, logprobs: impl Into<TensorData>) -> Self {
        self.with("logprobs", logprobs.into().cast(Dtype::Float32))
    }

    /// Says which tokens were sampled where, as some losses need to know.
    ///
    /// The first list tiles the model input, the second one `target_tokens`: consecutive
    /// stretches that cover every position once, in order.
    ///
    /// # Errors
    ///
    /// If the lengths of a list do not add up to what it describes.
    ///
    /// ```
    /// use tinker::{Datum, ModelInput};
    /// use tinker::types::ProvenanceSpan;
    ///
    /// let datum = Datum::new(ModelInput::from_ints(vec![1, 2, 3]))
    ///     .with_target_tokens(vec![2, 3, 4])
    ///     .with_provenance(
    ///         vec![ProvenanceSpan::prompt("q-1", 0, 2)?, ProvenanceSpan::sampled("q-1", 0, 1)?],
    ///         vec![ProvenanceSpan::prompt("q-1", 1, 1)?, ProvenanceSpan::sampled("q-1", 0, 2)?],
    ///     )?;
    /// assert!(datum.provenance().is_some());
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn with_provenance(
        mut self,
        model_input: impl Into<Vec<ProvenanceSpan>>,
        loss_fn_inputs: impl Into<Vec<ProvenanceSpan>>,
    ) -> Result<Self> {
        self.provenance = Some(Provenance {
            model_input: model_input.into(),
            loss_fn_inputs: loss_fn_inputs.into(),
        });
        self.validate()?;
        Ok(self)
    }

    /// What the model reads.
    pub fn model_input(&self) -> &ModelInput {
        &self.model_input
    }

    /// What the loss function needs, by name.
    pub fn loss_fn_inputs(&self) -> &BTreeMap<String, TensorData> {
        &self.loss_fn_inputs
    }

    /// One loss input.
    pub fn input(&self, name: &str) -> Option<&TensorData> {
        self.loss_fn_inputs.get(name)
    }

    /// Where the tokens came from, if that was said.
    pub fn provenance(&self) -> Option<&Provenance> {
        self.provenance.as_ref()
    }

    /// Checks what ties the parts together: provenance must tile the input and the targets.
    /// Clients call this before they send anything.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn validate(&self) -> Result<()> {
        let Some(provenance) = &self.provenance else {
            return Ok(());
        };
        let length = self
            .model_input
            .length()
            .map_err(|error| error.within("model_input"))?;
        check_tiling("model_input_spans", &provenance.model_input, length)?;
        match self.input("target_tokens").and_then(TensorData::length_1d) {
            Some(length) => check_tiling("loss_fn_input_spans", &provenance.loss_fn_inputs, length),
            None => Ok(()),
        }
    }

    /// Estimated bytes in a training request: four per token, images and audio as they are,
    /// and the tensors' numbers and indices.
    pub fn byte_estimate(&self) -> usize {
        let tensors: usize = self
            .loss_fn_inputs
            .values()
            .map(TensorData::byte_estimate)
            .sum();
        self.model_input.byte_estimate() + tensors
    }
}

fn check_tiling(field: &str, spans: &[ProvenanceSpan], length: usize) -> Result<()> {
    let covered = spans
        .iter()
        .try_fold(0i64, |sum, span| sum.checked_add(span.length));
    if covered.and_then(|covered| usize::try_from(covered).ok()) == Some(length) {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!(
            "must cover the {length} positions exactly, cover {}",
            match covered {
                Some(covered) => covered.to_string(),
                None => "too many".to_owned(),
            }
        ),
    ))
}

/// Where the tokens of a [`Datum`] came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Provenance {
    #[serde(rename = "model_input_spans")]
    model_input: Vec<ProvenanceSpan>,
    #[serde(rename = "loss_fn_input_spans")]
    loss_fn_inputs: Vec<ProvenanceSpan>,
}

impl Provenance {
    /// Stretches that tile the model input.
    pub fn model_input(&self) -> &[ProvenanceSpan] {
        &self.model_input
    }

    /// Stretches that tile the targets.
    pub fn loss_fn_inputs(&self) -> &[ProvenanceSpan] {
        &self.loss_fn_inputs
    }
}

/// Which part of a sampled sequence a [`ProvenanceSpan`] refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Tokens of the prompt it was sampled from.
    #[doc(alias = "PromptProvenanceSpan")]
    Prompt,
    /// Tokens that were sampled.
    #[doc(alias = "SampledProvenanceSpan")]
    Sampled,
}

/// A stretch of consecutive tokens that came from one sampled sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProvenanceSpan {
    kind: SpanKind,
    sequence_id: SequenceId,
    offset: i64,
    length: i64,
}

impl ProvenanceSpan {
    /// Tokens `offset..offset + length` of the prompt that the sequence was sampled from.
    ///
    /// # Errors
    ///
    /// If the sequence id is empty, or the offset or the length is negative.
    pub fn prompt(sequence_id: impl Into<SequenceId>, offset: i64, length: i64) -> Result<Self> {
        Self::new(SpanKind::Prompt, sequence_id.into(), offset, length)
    }

    /// Tokens `offset..offset + length` of the sequence's sampled tokens.
    ///
    /// # Errors
    ///
    /// If the sequence id is empty, or the offset or the length is negative.
    pub fn sampled(sequence_id: impl Into<SequenceId>, offset: i64, length: i64) -> Result<Self> {
        Self::new(SpanKind::Sampled, sequence_id.into(), offset, length)
    }

    fn new(kind: SpanKind, sequence_id: SequenceId, offset: i64, length: i64) -> Result<Self> {
        if sequence_id.is_empty() {
            return Err(Error::invalid("sequence_id", "must not be empty"));
        }
        for (field, value) in [("offset", offset), ("length", length)] {
            if value < 0 {
                return Err(Error::invalid(
                    field,
                    format!("must be at least 0, got {value}"),
                ));
            }
        }
        Ok(Self {
            kind,
            sequence_id,
            offset,
            length,
        })
    }

    /// Whether the tokens were given or sampled.
    pub fn kind(&self) -> SpanKind {
        self.kind
    }

    /// The sequence.
    pub fn sequence_id(&self) -> &SequenceId {
        &self.sequence_id
    }

    /// Where the stretch starts in the prompt or the sampled tokens.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// How many tokens it has.
    pub fn length(&self) -> i64 {
        self.length
    }
}

impl<'de> Deserialize<'de> for ProvenanceSpan {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            kind: SpanKind,
            sequence_id: SequenceId,
            #[serde(default)]
            offset: i64,
            length: i64,
        }
        let raw = Raw::deserialize(deserializer)?;
        Self::new(raw.kind, raw.sequence_id, raw.offset, raw.length)
            .map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDatum {
    model_input: ModelInput,
    #[serde(default)]
    loss_fn_inputs: BTreeMap<String, TensorData>,
    #[serde(default)]
    model_input_spans: Option<Vec<ProvenanceSpan>>,
    #[serde(default)]
    loss_fn_input_spans: Option<Vec<ProvenanceSpan>>,
}

impl TryFrom<RawDatum> for Datum {
    type Error = Error;

    fn try_from(raw: RawDatum) -> Result<Self> {
        let datum = Self {
            model_input: raw.model_input,
            loss_fn_inputs: raw.loss_fn_inputs,
            provenance: None,
        };
        match (raw.model_input_spans, raw.loss_fn_input_spans) {
            (None, None) => Ok(datum),
            (Some(model_input), Some(loss_fn_inputs)) => {
                datum.with_provenance(model_input, loss_fn_inputs)
            }
            _ => Err(Error::invalid(
                "loss_fn_input_spans",
                "provenance comes as a pair: both lists or neither",
            )),
        }
    }
}

/// A stretch of a batch that travels in one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatumRange {
    /// Which examples.
    pub range: Range<usize>,
    /// Their estimated bytes.
    pub bytes: usize,
}

/// Cuts a batch into requests of at most `max_len` examples and `max_bytes` estimated bytes.
///
/// Greedy, in order; an example over the limit travels alone. An empty batch gives none.
///
/// ```
/// use tinker::{Datum, ModelInput, types::chunk_ranges};
///
/// let data = vec![Datum::new(ModelInput::from_ints(vec![0; 10])); 3]; // 40 bytes each
/// let requests = chunk_ranges(&data, 1024, 80);
/// assert_eq!(requests.len(), 2);
/// assert_eq!((requests[0].range.clone(), requests[0].bytes), (0..2, 80));
/// ```
pub fn chunk_ranges(data: &[Datum], max_len: usize, max_bytes: usize) -> Vec<DatumRange> {
    let mut chunks: Vec<DatumRange> = Vec::new();
    for (index, datum) in data.iter().enumerate() {
        let bytes = datum.byte_estimate();
        match chunks.last_mut() {
            Some(chunk) if chunk.range.len() < max_len && chunk.bytes + bytes <= max_bytes => {
                chunk.range.end = index + 1;
                chunk.bytes += bytes;
            }
            _ => chunks.push(DatumRange {
                range: index..index + 1,
                bytes,
            }),
        }
    }
    chunks
}
