//! How weights are spelt in files.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::local::engine::quantise;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightType {
    /// 32 bits.
    F32,
    /// 16 bits, with a narrow range.
    F16,
    /// 16 bits, with few digits.
    Bf16,
    /// 8 bits, with a scale for every 32 numbers. In GGUF files only.
    Q8_0,
}

/// Numbers of a block of [`WeightType::Q8_0`].
const BLOCK: usize = 32;

impl WeightType {
    const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0];

    /// Its name: `f32`, `f16`, `bf16`, `q8_0`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// Bytes of some numbers, a whole number of blocks.
    pub(super) fn bytes(self, numbers: usize) -> usize {
        match self {
            Self::F32 => numbers * 4,
            Self::F16 | Self::Bf16 => numbers * 2,
            Self::Q8_0 => numbers / BLOCK * (BLOCK + 2),
        }
    }

    /// Whether rows of this width can be stored so.
    pub(super) fn fits(self, width: usize) -> bool {
        self != Self::Q8_0 || width.is_multiple_of(BLOCK)
    }

    /// Spells numbers, whole blocks of them.
    ///
    /// # Errors
    ///
    /// If one is too large for the type.
    pub(super) fn spell(self, numbers: &[f32], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::F32 => out.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            Self::Bf16 => out.extend(
                numbers
                    .iter()
                    .flat_map(|x| bf16::from_f32(*x).to_le_bytes()),
            ),
            Self::F16 => {
                for number in numbers {
                    let half = f16::from_f32(*number);
                    if half.is_infinite() && number.is_finite() {
                        return Err(format!("has {number}, too large for f16: use bf16 or f32"));
                    }
                    out.extend(half.to_le_bytes());
                }
            }
            Self::Q8_0 => {
                let mut blocks = vec![[0; BLOCK + 2]; numbers.len() / BLOCK];
                quantise(numbers, &mut blocks);
                out.extend(blocks.as_flattened());
            }
        }
        Ok(())
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for WeightType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|one| one.as_str() == text);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            let problem = format!("{text:?} is none of {names}");
            Error::invalid("weight type", problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_within_half_a_step() {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32 - 20.5).collect();
        let mut out = Vec::new();
        WeightType::Q8_0.spell(&numbers, &mut out).unwrap();
        assert_eq!(out.len(), WeightType::Q8_0.bytes(64));
        for (block, numbers) in out.chunks_exact(34).zip(numbers.chunks_exact(32)) {
            let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
            for (byte, number) in block[2..].iter().zip(numbers) {
                let read = f32::from(*byte as i8) * scale;
                assert!((read - number).abs() < 0.52 * scale, "{read} {number}");
            }
        }
        let mut zeros = Vec::new();
        WeightType::Q8_0.spell(&[0.0; 32], &mut zeros).unwrap();
        assert_eq!(zeros, [0; 34]);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let error = WeightType::F16.spell(&[1e6], &mut Vec::new()).unwrap_err();
        assert!(error.contains("use bf16"), "{error}");
        assert!("q4_0".parse::<WeightType>().is_err());
        assert_eq!("bf16".parse::<WeightType>().unwrap(), WeightType::Bf16);
    }
}
