//! From logits to a token.

use super::gemm::vectorised;
use super::ops::{exp, largest};
use super::rng::Rng;

/// Draws tokens at a temperature, among the likeliest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picker {
    temperature: f64,
    top_k: Option<usize>,
    top_p: f64,
}

/// Tokens that may be drawn and their unnormalised probabilities: room to be used again.
pub(crate) type Candidates = Vec<(u32, f32)>;

impl Picker {
    /// A temperature of 0 always takes the likeliest token.
    pub(crate) fn new(temperature: f64, top_k: Option<usize>, top_p: f64) -> Self {
        Self {
            temperature,
            top_k,
            top_p,
        }
    }

    /// Draws one token; of equal logits the lower id comes first.
    pub(crate) fn pick(&self, logits: &[f32], rng: &mut Rng, candidates: &mut Candidates) -> u32 {
        if self.temperature == 0.0 {
            return likeliest(logits);
        }
        let peak = largest(logits);
        let scale = (1.0 / self.temperature) as f32;
        candidates.clear();
        vectorised(|| {
            let weights = logits.iter().map(|logit| exp((logit - peak) * scale));
            candidates.extend((0..).zip(weights));
        });
        self.narrow(candidates);
        let mut left = rng.unit() * total(candidates);
        for (token, weight) in candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return *token;
            }
        }
        likeliest(logits)
    }

    /// Drops what top-k and top-p exclude.
    fn narrow(&self, candidates: &mut Candidates) {
        let k = self.top_k.unwrap_or(usize::MAX);
        if k >= candidates.len() && self.top_p >= 1.0 {
            return;
        }
        let better = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if k < candidates.len() {
            candidates.select_nth_unstable_by(k, better);
            candidates.truncate(k);
        }
        if self.top_p >= 1.0 {
            // Which ones are left decides, not their order; but draws walk along them.
            candidates.sort_unstable_by(better);
            return;
        }
        let enough = self.top_p * total(candidates);
        let (mut sum, mut sorted) = (0.0, 0);
        // The likeliest few mostly suffice, so only as many are sorted as are needed.
        let mut step = 64;
        while sorted < candidates.len() {
            let rest = &mut candidates[sorted..];
            let count = step.min(rest.len());
            if count < rest.len() {
                rest.select_nth_unstable_by(count, better);
            }
            rest[..count].sort_unstable_by(better);
            for (index, (_, weight)) in rest[..count].iter().enumerate() {
                sum += f64::from(*weight);
                if sum >= enough {
                    let kept = sorted + index + 1;
                    candidates.truncate(kept);
                    return;
                }
            }
            sorted += count;
            step *= 4;
        }
    }
}

fn total(candidates: &Candidates) -> f64 {
    candidates
        .iter()
        .map(|(_, weight)| f64::from(*weight))
        .sum()
}

/// The `k` likeliest tokens and their log-probabilities, best first.
pub(crate) fn top(logits: &[f32], total: f32, k: usize) -> Vec<(u32, f32)> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| {
        let (left, right) = (logits[*a as usize], logits[*b as usize]);
        right.total_cmp(&left).then(a.cmp(b))
    };
    if k < tokens.len() {
        tokens.select_nth_unstable_by(k, better);
        tokens.truncate(k);
    }
    tokens.sort_unstable_by(better);
    tokens
        .into_iter()
        .map(|token| (token, logits[token as usize] - total))
        .collect()
}

fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    #[track_caller]
    fn check(temperature: f64, top_k: Option<usize>, top_p: f64, expected: &[u32]) {
        let picker = Picker::new(temperature, top_k, top_p);
        let (mut rng, mut room) = (Rng::new(3), Candidates::new());
        let mut seen: Vec<u32> = (0..2000)
            .map(|_| picker.pick(&LOGITS, &mut rng, &mut room))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, expected);
    }

    #[test]
    fn draws_only_what_is_allowed() {
        check(0.0, None, 1.0, &[1]);
        check(1.0, None, 1.0, &[0, 1, 2, 3, 4]);
        check(1.0, Some(1), 1.0, &[1]);
        check(1.0, Some(3), 1.0, &[1, 2, 3]);
        check(1.0, None, 0.3, &[1]);
        check(1.0, None, 0.6, &[1, 3]);
        check(1.0, Some(100), 1.0, &[0, 1, 2, 3, 4]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let picker = Picker::new(0.5, None, 1.0);
        let (mut rng, mut room) = (Rng::new(5), Candidates::new());
        let draws = 20_000;
        let hits = (0..draws)
            .filter(|_| picker.pick(&[0.0, 1.0], &mut rng, &mut room) == 1)
            .count();
        let expected = 1.0 / (1.0 + (-2.0f64).exp());
        assert!((hits as f64 / f64::from(draws) - expected).abs() < 0.01);
    }

    #[test]
    fn top_sorts_by_probability_then_id() {
        let tokens: Vec<u32> = top(&LOGITS, 0.0, 3)
            .into_iter()
            .map(|(token, _)| token)
            .collect();
        assert_eq!(tokens, [1, 3, 2]);
        assert_eq!(top(&LOGITS, 0.0, 99).len(), 5);
    }
}
