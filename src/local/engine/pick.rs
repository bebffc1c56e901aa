//! From logits to a token.

use super::gemm::vectorised;
use super::ops::{exp, largest, sum};
use super::rng::Rng;

/// Draws tokens at a temperature, among the likeliest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picker {
    /// What logits are multiplied by; `None` takes the likeliest.
    scale: Option<f32>,
    top_k: Option<usize>,
    top_p: f64,
}

/// Tokens whose probabilities are added up at a time.
const BLOCK: usize = 256;

/// Tokens that may be drawn: room to be used again.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// The unnormalised probability of every token.
    weights: Vec<f32>,
    /// Those of a block of tokens together.
    blocks: Vec<f64>,
    /// The tokens that are left after narrowing, with theirs.
    few: Vec<(u32, f32)>,
}

/// What a temperature multiplies logits by; `None` where that is no number, at 0 and next to it.
pub(crate) fn sharpness(temperature: f64) -> Option<f32> {
    let scale = (1.0 / temperature) as f32;
    scale.is_finite().then_some(scale)
}

impl Picker {
    /// A temperature of 0 always takes the likeliest token, and so does one that is next to 0.
    pub(crate) fn new(temperature: f64, top_k: Option<usize>, top_p: f64) -> Self {
        Self {
            scale: sharpness(temperature),
            top_k,
            top_p,
        }
    }

    /// Draws one token; of equal logits the lower id comes first.
    pub(crate) fn pick(&self, logits: &[f32], rng: &mut Rng, candidates: &mut Candidates) -> u32 {
        let peak = vectorised(|| largest(logits));
        let Some(scale) = self.scale else {
            let likeliest = logits.iter().position(|logit| *logit == peak);
            return likeliest.unwrap_or(0) as u32;
        };
        let Candidates {
            weights,
            blocks,
            few,
        } = candidates;
        weights.resize(logits.len(), 0.0);
        vectorised(|| {
            for (weight, logit) in weights.iter_mut().zip(logits) {
                // Ours never gets to 0, and no temperature may make up for what is excluded.
                *weight = match *logit == f32::NEG_INFINITY {
                    true => 0.0,
                    false => exp((logit - peak) * scale),
                };
            }
        });
        match self.narrows(weights.len()) {
            true => {
                few.clear();
                few.extend((0..).zip(weights.iter().copied()));
                self.narrow(few);
                draw(rng.unit() * total(few), few.iter().copied())
            }
            false => {
                blocks.clear();
                let sums = weights.chunks(BLOCK).map(|block| f64::from(sum(block)));
                vectorised(|| blocks.extend(sums));
                let mut left = rng.unit() * blocks.iter().sum::<f64>();
                let ends = |sum: &f64| {
                    let here = left < *sum;
                    left -= if here { 0.0 } else { *sum };
                    here
                };
                let block = blocks.iter().position(ends).unwrap_or(blocks.len() - 1);
                let tokens = block * BLOCK..weights.len().min((block + 1) * BLOCK);
                draw(left, tokens.map(|token| (token as u32, weights[token])))
            }
        }
    }

    /// Whether top-k or top-p exclude any of so many tokens.
    fn narrows(&self, tokens: usize) -> bool {
        self.top_k.is_some_and(|k| k < tokens) || self.top_p < 1.0
    }

    /// Drops what top-k and top-p exclude.
    fn narrow(&self, candidates: &mut Vec<(u32, f32)>) {
        let k = self.top_k.unwrap_or(usize::MAX);
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

/// The token at which the probabilities reach `left`; the likeliest if they fall short of it by what
/// was rounded.
fn draw(mut left: f64, tokens: impl Iterator<Item = (u32, f32)>) -> u32 {
    let mut best = (0, 0.0);
    for (token, weight) in tokens {
        left -= f64::from(weight);
        if left < 0.0 {
            return token;
        }
        if weight > best.1 {
            best = (token, weight);
        }
    }
    best.0
}

fn total(candidates: &[(u32, f32)]) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    #[track_caller]
    fn check(temperature: f64, top_k: Option<usize>, top_p: f64, expected: &[u32]) {
        let picker = Picker::new(temperature, top_k, top_p);
        let (mut rng, mut room) = (Rng::new(3), Candidates::default());
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
        check(1e-39, None, 1.0, &[1]);
        check(f64::MIN_POSITIVE, Some(3), 0.9, &[1]);
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
        let (mut rng, mut room) = (Rng::new(5), Candidates::default());
        let draws = 20_000;
        let hits = (0..draws)
            .filter(|_| picker.pick(&[0.0, 1.0], &mut rng, &mut room) == 1)
            .count();
        let expected = 1.0 / (1.0 + (-2.0f64).exp());
        assert!((hits as f64 / f64::from(draws) - expected).abs() < 0.01);
    }

    /// Tokens of several blocks, the last of which is not whole.
    #[test]
    fn draws_find_their_token_in_a_large_vocabulary() {
        let likely = [(0, 0.1), (255, 0.2), (256, 0.3), (999, 0.4)];
        let mut logits = vec![f32::NEG_INFINITY; 1000];
        for (token, share) in likely {
            logits[token] = f64::ln(share) as f32;
        }
        let picker = Picker::new(1.0, None, 1.0);
        let (mut rng, mut room) = (Rng::new(5), Candidates::default());
        let mut seen = vec![0u32; 1000];
        let draws = 20_000;
        for _ in 0..draws {
            seen[picker.pick(&logits, &mut rng, &mut room) as usize] += 1;
        }
        for (token, share) in likely {
            let found = f64::from(seen[token]) / f64::from(draws);
            assert!((found - share).abs() < 0.02, "{token}: {found}");
        }
        assert_eq!(
            likely.map(|(token, _)| seen[token]).iter().sum::<u32>(),
            draws
        );
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
