//! What a data set is like.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::reader::Facts;
use crate::types::{Chunk, Datum};

/// Counts over the datums of a data set.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Rows rendered.
    pub rows: usize,
    /// Sequences they became.
    pub examples: usize,
    /// Sequences that were cut to length.
    pub truncated: usize,
    /// Tokens of all sequences, before cutting.
    pub tokens: usize,
    /// Tokens that carry weight, after cutting.
    pub loss_tokens: usize,
    /// Sequences in which no token carries weight: nothing is learnt from them.
    pub without_loss: usize,
    /// Sequences that are the same as one before, where this was asked for.
    pub duplicates: usize,
    /// How long the sequences are, before cutting.
    pub lengths: Lengths,
    seen: HashSet<u64>,
}

impl Statistics {
    pub(super) fn add(&mut self, datum: &Datum, facts: Facts, find_duplicates: bool) {
        let weights = datum.input("weights").and_then(|weights| weights.as_f32());
        let trained = weights
            .unwrap_or_default()
            .iter()
            .filter(|w| **w != 0.0)
            .count();
        self.examples += 1;
        self.truncated += usize::from(facts.truncated);
        self.tokens += facts.length;
        self.loss_tokens += trained;
        self.without_loss += usize::from(trained == 0);
        self.lengths.add(facts.length);
        if find_duplicates && !self.seen.insert(fingerprint(datum)) {
            self.duplicates += 1;
        }
    }
}

fn fingerprint(datum: &Datum) -> u64 {
    let mut hasher = DefaultHasher::new();
    for chunk in datum.model_input().chunks() {
        match chunk {
            Chunk::EncodedText(text) => {
                text.tokens.iter().for_each(|token| token.hash(&mut hasher))
            }
            Chunk::Image(image) => image.data.hash(&mut hasher),
            other => format!("{other:?}").hash(&mut hasher),
        }
    }
    datum
        .input("target_tokens")
        .and_then(|t| t.as_i64())
        .hash(&mut hasher);
    hasher.finish()
}

/// How long sequences are, in a few hundred numbers however many there are.
#[derive(Clone, Default)]
pub struct Lengths {
    /// How many are of about one length; see [`bucket`].
    counts: Vec<usize>,
    count: usize,
    sum: usize,
    shortest: usize,
    longest: usize,
}

impl Lengths {
    fn add(&mut self, length: usize) {
        let bucket = bucket(length);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.shortest = match self.count {
            0 => length,
            _ => self.shortest.min(length),
        };
        self.longest = self.longest.max(length);
        self.count += 1;
        self.sum += length;
    }

    /// The shortest.
    pub fn shortest(&self) -> usize {
        self.shortest
    }

    /// The longest.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// A length that this part of them, from 0 to 1, does not exceed; up to 7 % too high from 32
    /// on.
    ///
    /// ```
    /// # use tinker::text::data::{Reader, RenderOptions, Text};
    /// # use tinker::text::{Renderer, Tokenizer};
    /// # let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
    /// # let renderer = Renderer::named("role_colon", &tokenizer)?;
    /// let lines = "{\"text\": \"the cat\"}\n{\"text\": \"the cat sat\"}";
    /// let rows = Reader::<Text>::new("texts.jsonl", lines.as_bytes());
    /// let mut datums = rows.datums(&renderer, RenderOptions::default());
    /// assert_eq!(datums.by_ref().count(), 2);
    /// let lengths = &datums.statistics().lengths;
    /// assert_eq!(lengths.quantile(1.0), lengths.longest());
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn quantile(&self, part: f64) -> usize {
        let wanted = (part.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as usize;
        let mut passed = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            passed += count;
            if passed >= wanted {
                return last_of(bucket).min(self.longest);
            }
        }
        self.longest
    }
}

impl fmt::Debug for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lengths")
            .field("shortest", &self.shortest)
            .field("mean", &self.mean())
            .field("longest", &self.longest)
            .finish()
    }
}

/// Exact up to 31; from there sixteen buckets for every doubling.
fn bucket(length: usize) -> usize {
    if length < 32 {
        return length;
    }
    let doublings = length.ilog2() as usize;
    32 + (doublings - 5) * 16 + (length >> (doublings - 4)) - 16
}

/// The longest length of a bucket.
fn last_of(bucket: usize) -> usize {
    if bucket < 32 {
        return bucket;
    }
    let (doublings, step) = ((bucket - 32) / 16 + 5, (bucket - 32) % 16);
    ((16 + step + 1) << (doublings - 4)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        for length in 0..100_000 {
            assert!(last_of(bucket(length)) >= length, "{length}");
            assert!(
                last_of(bucket(length)) as f64 <= length as f64 * 1.07,
                "{length}"
            );
            assert!(bucket(length + 1) - bucket(length) <= 1, "{length}");
        }
    }

    #[test]
    fn quantiles_are_about_right() {
        let mut lengths = Lengths::default();
        (1..=1000).for_each(|length| lengths.add(length));
        assert_eq!((lengths.shortest(), lengths.longest()), (1, 1000));
        assert_eq!(lengths.mean(), 500.5);
        assert_eq!(lengths.quantile(0.01), 10);
        assert!((500..=535).contains(&lengths.quantile(0.5)));
        assert_eq!(lengths.quantile(1.0), 1000);
        assert_eq!(Lengths::default().quantile(0.5), 0);
    }
}
