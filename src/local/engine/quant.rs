//! How checkpoints spell their numbers, and how to read them as `f32`.
//!
//! Quantised types come in blocks that share a scale; a row is always a whole number of blocks.

use half::f16;

use super::gemm::vectorised;

/// How a checkpoint spells its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
    /// 32 bytes and a scale.
    Q8_0,
    /// 32 halves of a byte and a scale.
    Q4_0,
    /// The same with an offset.
    Q4_1,
    /// 256 halves of a byte in eight parts, each with a scale and an offset of six bits.
    Q4K,
    /// 256 times six bits in sixteen parts with a scale each.
    Q6K,
}

impl Dtype {
    /// The type ggml gives this number.
    pub(crate) fn from_ggml(kind: u32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// Numbers in a block, and the bytes they take.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes that some numbers take; their count must be a whole number of blocks.
    pub(crate) fn bytes(self, numbers: usize) -> usize {
        let (count, bytes) = self.block();
        numbers / count * bytes
    }
}

/// Converts whole blocks of a checkpoint's little-endian numbers to `f32`.
pub(crate) fn widen(bytes: &[u8], dtype: Dtype, out: &mut [f32]) {
    vectorised(|| widen_all(bytes, dtype, out));
}

#[inline(always)]
fn widen_all(bytes: &[u8], dtype: Dtype, out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::F16 => widen_f16(bytes, out),
        Dtype::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        Dtype::Q8_0 => blocks(bytes, out, q8_0),
        Dtype::Q4_0 => blocks(bytes, out, q4_0),
        Dtype::Q4_1 => blocks(bytes, out, q4_1),
        Dtype::Q4K => blocks(bytes, out, q4_k),
        Dtype::Q6K => blocks(bytes, out, q6_k),
    }
}

/// Half precision without a branch, so that it vectorises: the exponent is moved by a product,
/// which also takes care of numbers too small to be normal.
#[inline(always)]
fn widen_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = from_f16(u16::from_le_bytes(*bytes));
    }
}

#[inline(always)]
fn from_f16(bits: u16) -> f32 {
    let (bits, shift) = (u32::from(bits), f32::from_bits((254 - 15) << 23));
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * shift;
    // Infinities and NaN need the largest exponent again.
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

#[inline(always)]
fn blocks<const BYTES: usize, const COUNT: usize>(
    bytes: &[u8],
    out: &mut [f32],
    read: impl Fn(&[u8; BYTES], &mut [f32; COUNT]),
) {
    for (bytes, out) in bytes
        .as_chunks()
        .0
        .iter()
        .zip(out.as_chunks_mut().0.iter_mut())
    {
        read(bytes, out);
    }
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> f32 {
    from_f16(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The nearest number in bf16, without a branch, so that loops over it vectorise.
#[inline(always)]
pub(crate) fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // What is no number stays none.
    let kept = if number.is_nan() {
        bits | 0x40_0000
    } else {
        rounded
    };
    (kept >> 16) as u16
}

/// A block of [`Dtype::Q8_0`]: a scale in half precision, then 32 signed bytes.
pub(crate) type Q8Block = [u8; 34];

/// Spells numbers in blocks as ggml does: the largest number of a block becomes 127.
pub(crate) fn quantise(numbers: &[f32], out: &mut [Q8Block]) {
    for (numbers, block) in numbers.chunks_exact(32).zip(out) {
        let largest = numbers.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (quant, number) in block[2..].iter_mut().zip(numbers) {
            *quant = (number * inverse).round() as i8 as u8;
        }
    }
}

#[inline(always)]
fn q8_0(block: &Q8Block, out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (out, quant) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*quant as i8) * scale;
    }
}

#[inline(always)]
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), pair) in low.iter_mut().zip(high).zip(&block[2..]) {
        *low = (f32::from(pair & 15) - 8.0) * scale;
        *high = (f32::from(pair >> 4) - 8.0) * scale;
    }
}

#[inline(always)]
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = out.split_at_mut(16);
    for ((low, high), pair) in low.iter_mut().zip(high).zip(&block[4..]) {
        *low = f32::from(pair & 15) * scale + offset;
        *high = f32::from(pair >> 4) * scale + offset;
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, offset) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = block[4..].split_at(12);
    // Scale and offset of a part, six bits each, spread over twelve bytes.
    let part = |index: usize| {
        let (scale, offset) = match index {
            0..4 => (packed[index] & 63, packed[index + 4] & 63),
            _ => (
                packed[index + 4] & 15 | packed[index - 4] >> 6 << 4,
                packed[index + 4] >> 4 | packed[index] >> 6 << 4,
            ),
        };
        (f32::from(scale), f32::from(offset))
    };
    for (index, (out, quants)) in out
        .chunks_exact_mut(64)
        .zip(quants.chunks_exact(32))
        .enumerate()
    {
        let (low, high) = out.split_at_mut(32);
        let (one, other) = (part(2 * index), part(2 * index + 1));
        for ((low, high), pair) in low.iter_mut().zip(high).zip(quants) {
            *low = scale * one.0 * f32::from(pair & 15) - offset * one.1;
            *high = scale * other.0 * f32::from(pair >> 4) - offset * other.1;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let scale = half_at(rest, 16);
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&low[64 * half..], &high[32 * half..]);
        let scales = &rest[8 * half..];
        for index in 0..32 {
            let bits = high[index];
            let quants = [
                low[index] & 15 | (bits & 3) << 4,
                low[index + 32] & 15 | (bits >> 2 & 3) << 4,
                low[index] >> 4 | (bits >> 4 & 3) << 4,
                low[index + 32] >> 4 | (bits >> 6 & 3) << 4,
            ];
            for (part, quant) in quants.into_iter().enumerate() {
                let own = f32::from(scales[index / 16 + 2 * part] as i8);
                out[32 * part + index] = scale * own * (f32::from(quant) - 32.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_read_exactly() {
        for bits in 0..=u16::MAX {
            let mut out = [0.0];
            widen(&bits.to_le_bytes(), Dtype::F16, &mut out);
            let expected = f16::from_bits(bits).to_f32();
            assert!(
                out[0].to_bits() == expected.to_bits() || (out[0].is_nan() && expected.is_nan()),
                "{bits:04x}: {} is not {expected}",
                out[0]
            );
        }
    }
}
