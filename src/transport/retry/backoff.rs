//! Waits between attempts, as a value.

use std::time::Duration;

/// Waits that double from `first` to `most` seconds, varied by chance so that clients that failed
/// together do not come back together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Backoff {
    first: f64,
    most: f64,
    /// The shortest and the longest share of a wait.
    spread: (f64, f64),
}

impl Backoff {
    /// Between the HTTP layer's attempts at one request.
    pub(crate) const HTTP: Self = Self::new(0.5, 10.0, (0.75, 1.0));
    /// Between rounds of the HTTP layer, between polls that fail, between submissions of a sample
    /// that nobody took.
    pub(crate) const OUTAGE: Self = Self::new(1.0, 30.0, (0.75, 1.0));

    const fn new(first: f64, most: f64, spread: (f64, f64)) -> Self {
        Self {
            first,
            most,
            spread,
        }
    }

    /// Before a sample whose result was lost is submitted again: waits that a user may choose,
    /// varied by a share to either side.
    pub(crate) fn between(first: Duration, most: Duration, jitter: f64) -> Self {
        let (first, most) = (first.as_secs_f64(), most.as_secs_f64());
        Self::new(first, most, (1.0 - jitter, 1.0 + jitter))
    }

    /// The wait after `tries` earlier ones. `chance` is between 0 (the longest) and 1.
    pub(crate) fn delay(self, tries: u32, chance: f64) -> Duration {
        let whole = f64::min(
            self.first * f64::from(2_u32.saturating_pow(tries)),
            self.most,
        );
        let (low, high) = self.spread;
        let share = high - (high - low) * chance.clamp(0.0, 1.0);
        // What a user chose may be more seconds than there are.
        Duration::try_from_secs_f64(f64::min(whole * share, self.most)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_vary() {
        let seconds = |chance| {
            let wait = move |tries| Backoff::OUTAGE.delay(tries, chance).as_secs_f64();
            [0, 1, 4, 5, 1_000].map(wait)
        };
        assert_eq!(seconds(0.0), [1.0, 2.0, 16.0, 30.0, 30.0]);
        assert_eq!(seconds(1.0), [0.75, 1.5, 12.0, 22.5, 22.5]);
        let sampling = Backoff::between(Duration::from_millis(500), Duration::from_secs(10), 0.25);
        assert_eq!(sampling.delay(9, 0.0), Duration::from_secs(10));
        let endless = Backoff::between(Duration::MAX, Duration::MAX, 1.0);
        assert_eq!(endless.delay(0, 0.0), Duration::MAX);
        assert_eq!(endless.delay(u32::MAX, 1.0), Duration::ZERO);
    }
}
