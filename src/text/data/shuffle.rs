//! Orders from a seed, the same as numpy's `default_rng(seed).permutation(n)`.
//!
//! A run started in Python and one started here then see the same data in the same order.

/// The numbers below `n` in a random order that only depends on the seed: the order in which
/// Hugging Face's `datasets` and the Tinker cookbook shuffle.
///
/// ```
/// use tinker::text::data::permutation;
///
/// assert_eq!(permutation(10, 0), [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]);
/// ```
pub fn permutation(n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    shuffle(&mut order, seed);
    order
}

/// Puts items into the order of [`permutation`].
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut random = Pcg64::new(seed);
    for last in (1..items.len()).rev() {
        items.swap(last, random.up_to(last as u64) as usize);
    }
}

/// The generator behind numpy's `default_rng`: PCG XSL RR 128/64.
struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of the last 64 bits, when only the lower one was asked for.
    half: Option<u32>,
}

impl Pcg64 {
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    fn new(seed: u64) -> Self {
        let [a, b, c, d] = seed_words(seed);
        let wide = |high: u64, low: u64| (u128::from(high) << 64) | u128::from(low);
        let mut random = Self {
            state: 0,
            increment: (wide(c, d) << 1) | 1,
            half: None,
        };
        random.step();
        random.state = random.state.wrapping_add(wide(a, b));
        random.step();
        random
    }

    fn step(&mut self) {
        self.state = self
            .state
            .wrapping_mul(Self::MULTIPLIER)
            .wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let both = self.next_u64();
        self.half = Some((both >> 32) as u32);
        both as u32
    }

    /// A number up to `max`, each as likely: as many bits as `max` has, drawn until they are not
    /// above it. Up to 32 bits they come from halves.
    fn up_to(&mut self, max: u64) -> u64 {
        let mask = u64::MAX >> max.leading_zeros();
        loop {
            let bits = match u32::try_from(max) {
                Ok(_) => u64::from(self.next_u32()),
                Err(_) => self.next_u64(),
            };
            if bits & mask <= max {
                return bits & mask;
            }
        }
    }
}

/// numpy's `SeedSequence(seed).generate_state(4, uint64)`: spreads a seed over 256 bits.
fn seed_words(seed: u64) -> [u64; 4] {
    fn fold(value: u32) -> u32 {
        value ^ (value >> 16)
    }
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        fold(value.wrapping_mul(constant))
    };
    let mut pool = entropy.map(&mut hash);
    for from in 0..4 {
        for to in 0..4 {
            if from != to {
                let mixed = hash(pool[from]);
                pool[to] = fold(
                    pool[to]
                        .wrapping_mul(0xca01_f9dd)
                        .wrapping_sub(mixed.wrapping_mul(0x4973_f715)),
                );
            }
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |index: usize| {
        let value = pool[index % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        u64::from(fold(value.wrapping_mul(constant)))
    };
    [0, 2, 4, 6].map(|index| word(index) | (word(index + 1) << 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_numpys() {
        #[track_caller]
        fn check(n: usize, seed: u64, expected: &[usize]) {
            assert_eq!(permutation(n, seed), expected);
        }
        check(0, 0, &[]);
        check(1, 0, &[0]);
        check(10, 0, &[4, 6, 2, 7, 3, 5, 9, 0, 8, 1]);
        check(10, 1, &[8, 4, 7, 0, 1, 2, 5, 9, 6, 3]);
        check(8, 1 << 40, &[3, 7, 0, 6, 4, 2, 5, 1]);
        let long = permutation(100_000, 7);
        assert_eq!(long[..4], [45070, 71435, 99538, 45453]);
    }
}
