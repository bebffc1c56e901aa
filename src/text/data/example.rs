//! [`Example`]: tokens with weights, and the datum they become.

use crate::error::{Error, Result};
use crate::types::{Chunk, Datum, ModelInput};

/// A sequence to train on: what it holds and how much each of its tokens counts.
///
/// ```
/// use tinker::ModelInput;
/// use tinker::text::{DatumOptions, Example};
///
/// let example = Example::new(ModelInput::from_ints(vec![1, 2, 3]), vec![0.0, 1.0, 1.0])?;
/// let datum = example.to_datum(&DatumOptions::default())?;
/// assert_eq!(datum.model_input().to_ints()?, [1, 2]);
/// assert_eq!(datum.input("target_tokens").unwrap().as_i64(), Some(&[2, 3][..]));
/// assert_eq!(datum.input("weights").unwrap().as_f32(), Some(&[0.5, 0.5][..]));
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    input: ModelInput,
    weights: Vec<f32>,
}

impl Example {
    /// A sequence with the weight of each of its tokens, not shifted.
    ///
    /// # Errors
    ///
    /// If there are not as many weights as tokens.
    pub fn new(input: ModelInput, weights: Vec<f32>) -> Result<Self> {
        let length = input.length()?;
        if length != weights.len() {
            let problem = format!("{} given for {length} tokens", weights.len());
            return Err(Error::invalid("weights", problem));
        }
        Ok(Self { input, weights })
    }

    /// The whole sequence, the last token included.
    pub fn input(&self) -> &ModelInput {
        &self.input
    }

    /// The weight of every token of the sequence.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// How many tokens carry weight.
    pub fn loss_tokens(&self) -> usize {
        self.weights.iter().filter(|weight| **weight > 0.0).count()
    }

    /// The training example: cut to length from the right, targets shifted by one, weights
    /// reduced.
    ///
    /// # Errors
    ///
    /// If fewer than two tokens are left.
    pub fn to_datum(&self, options: &DatumOptions) -> Result<Datum> {
        let chunks = cut(self.input.chunks(), options.max_length)?;
        let (input, targets) = shifted(chunks)?;
        let mut weights = self.weights[1..=targets.len()].to_vec();
        if options.reduction == Reduction::Mean {
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            if total > 0.0 {
                let share = |weight: &mut f32| *weight = (f64::from(*weight) / total) as f32;
                weights.iter_mut().for_each(share);
            }
        }
        Ok(Datum::new(input)
            .with_target_tokens(targets)
            .with_weights(weights))
    }
}

/// How an [`Example`] becomes a [`Datum`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DatumOptions {
    /// The most tokens of a sequence; what is over is cut from its end. Default: no limit.
    pub max_length: Option<usize>,
    /// What is done to the weights. Default: [`Reduction::Mean`].
    pub reduction: Reduction,
}

impl DatumOptions {
    /// Sets [`max_length`](Self::max_length).
    #[must_use]
    pub fn with_max_length(mut self, tokens: usize) -> Self {
        self.max_length = Some(tokens);
        self
    }

    /// Sets [`reduction`](Self::reduction).
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }
}

/// What is done to the weights of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// They are divided by their sum, so that every sequence counts the same.
    #[default]
    Mean,
    /// They stay, so that every token counts the same.
    None,
}

/// The chunks that fit: text is cut inside a chunk, images go whole, and nothing is left to
/// predict after a last image.
fn cut(chunks: &[Chunk], max_length: Option<usize>) -> Result<Vec<Chunk>> {
    let mut chunks = chunks.to_vec();
    if let Some(max) = max_length {
        let mut total = 0;
        for chunk in &chunks {
            total += chunk.length()?;
        }
        while total > max
            && let Some(last) = chunks.pop()
        {
            let length = last.length()?;
            let over = total - max;
            total -= length;
            if let (Chunk::EncodedText(text), true) = (&last, over < length) {
                chunks.push(Chunk::tokens(text.tokens[..length - over].to_vec()));
                break;
            }
        }
    }
    chunks.retain(|chunk| !matches!(chunk, Chunk::EncodedText(text) if text.tokens.is_empty()));
    while matches!(
        chunks.last(),
        Some(Chunk::Image(_) | Chunk::ImageAssetPointer(_))
    ) {
        chunks.pop();
    }
    Ok(chunks)
}

/// What the model reads and what it is to predict at each position: all but the last token, and
/// all but the first. Where an image stands, the target is 0.
pub(super) fn shifted(mut chunks: Vec<Chunk>) -> Result<(ModelInput, Vec<i64>)> {
    let mut targets: Vec<i64> = Vec::new();
    for chunk in &chunks {
        match chunk {
            Chunk::EncodedText(text) => targets.extend(text.tokens.iter().map(|&t| i64::from(t))),
            other => targets.extend(std::iter::repeat_n(0, other.length()?)),
        }
    }
    if targets.len() < 2 {
        let problem = "at least two tokens are needed, one to read and one to predict";
        return Err(Error::invalid("tokens", problem));
    }
    targets.remove(0);
    let Some(Chunk::EncodedText(last)) = chunks.pop() else {
        return Err(Error::invalid("chunks", "the last one must be text"));
    };
    if last.tokens.len() > 1 {
        let read = last.tokens[..last.tokens.len() - 1].to_vec();
        chunks.push(Chunk::tokens(read));
    }
    Ok((ModelInput::from_chunks(chunks), targets))
}
