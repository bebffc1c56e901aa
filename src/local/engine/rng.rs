//! The engine's own random numbers, so that a seed means the same thing in every release.

/// SplitMix64: tiny, fast, and good enough to draw weights and tokens.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator whose numbers depend on the seed alone.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent stream of the same seed: one per sample, one per tensor.
    pub(crate) fn stream(seed: u64, stream: u64) -> Self {
        let mut rng = Self::new(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        Self::new(rng.next())
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.next(), 0x910A_2DEC_8902_5CC1);
        assert_ne!(Rng::stream(1, 0).next(), Rng::stream(1, 1).next());
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut rng = Rng::new(7);
        let draws: Vec<f64> = (0..20_000).map(|_| f64::from(rng.normal())).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05);
    }
}
