//! Weight matrices: in memory as `f32`, or left in their file at half precision.

use std::ops::Range;

use super::mapping::Section;

/// A row-major weight matrix, `[outputs, inputs]` as checkpoints store it.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    rows: usize,
    cols: usize,
    store: Store,
}

#[derive(Debug, Clone)]
enum Store {
    Memory(Vec<f32>),
    File(Section, Dtype),
}

/// How a checkpoint spells its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    /// Bytes per number.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl Matrix {
    /// A matrix in memory.
    pub(crate) fn new(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        assert_eq!(
            data.len(),
            rows * cols,
            "matrix data does not fit its shape"
        );
        Self {
            rows,
            cols,
            store: Store::Memory(data),
        }
    }

    /// A matrix that stays in its file and is widened piece by piece when used.
    pub(crate) fn mapped(rows: usize, cols: usize, section: Section, dtype: Dtype) -> Self {
        assert_eq!(
            section.bytes().len(),
            rows * cols * dtype.size(),
            "matrix section does not fit its shape"
        );
        Self {
            rows,
            cols,
            store: Store::File(section, dtype),
        }
    }

    /// Number of outputs.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Number of weights.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// All weights, if they can be read without widening.
    pub(crate) fn as_f32(&self) -> Option<&[f32]> {
        match &self.store {
            Store::Memory(data) => Some(data),
            Store::File(section, Dtype::F32) => bytemuck::try_cast_slice(section.bytes()).ok(),
            Store::File(..) => None,
        }
    }

    /// The weights to change in place, if they are in memory.
    #[cfg(test)]
    pub(crate) fn as_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.store {
            Store::Memory(data) => Some(data),
            Store::File(..) => None,
        }
    }

    /// Copies one row, widened, into `out`.
    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        self.read(row, 0..self.cols, out);
    }

    /// Copies a block, widened and dense, into `out`, which must have exactly its size.
    pub(crate) fn read_block(&self, rows: Range<usize>, cols: Range<usize>, out: &mut [f32]) {
        let width = cols.len();
        assert_eq!(
            out.len(),
            rows.len() * width,
            "block buffer has another size"
        );
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            self.read(row, cols.clone(), out);
        }
    }

    /// All weights, widened.
    pub(crate) fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.read_block(0..self.rows, 0..self.cols, &mut out);
        out
    }

    fn read(&self, row: usize, cols: Range<usize>, out: &mut [f32]) {
        let range = row * self.cols + cols.start..row * self.cols + cols.end;
        match &self.store {
            Store::Memory(data) => out.copy_from_slice(&data[range]),
            Store::File(section, dtype) => {
                let size = dtype.size();
                widen(
                    &section.bytes()[range.start * size..range.end * size],
                    *dtype,
                    out,
                );
            }
        }
    }
}

/// Converts little-endian numbers of a checkpoint to `f32`.
pub(crate) fn widen(bytes: &[u8], dtype: Dtype, out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Dtype::F16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        Dtype::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
    }
}
