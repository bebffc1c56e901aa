//! Weight matrices: in memory as `f32`, or left in their file as it spells them.

use std::ops::Range;

use rayon::prelude::*;

use super::mapping::{Mapping, Section};
use super::quant::{Dtype, Q8Block, quantise, widen};

/// A row-major weight matrix, `[outputs, inputs]` as checkpoints store it.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    rows: usize,
    cols: usize,
    store: Store,
    /// Whether it was [rounded](Self::quantised) for speed, so that it may be rounded on for speed.
    coarse: bool,
}

#[derive(Debug, Clone)]
enum Store {
    Memory(Vec<f32>),
    File(Stored),
}

/// A matrix left in its file.
#[derive(Debug, Clone)]
struct Stored {
    section: Section,
    dtype: Dtype,
    order: Order,
}

/// In which order a file keeps the rows of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Plain,
    /// Within every head of this many rows, the rows of its two halves alternate.
    Interleaved(usize),
}

impl Order {
    /// Where the file has a row.
    pub(crate) fn place(self, row: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::Interleaved(dim) => {
                let (head, within) = (row / dim, row % dim);
                let (half, pair) = (within / (dim / 2), within % (dim / 2));
                head * dim + 2 * pair + half
            }
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
            coarse: false,
        }
    }

    /// A matrix that stays in its file and is widened piece by piece when used.
    ///
    /// # Panics
    ///
    /// If the section has another size, or a row is no whole number of the type's blocks.
    pub(crate) fn mapped(
        rows: usize,
        cols: usize,
        section: Section,
        dtype: Dtype,
        order: Order,
    ) -> Self {
        assert!(
            cols.is_multiple_of(dtype.block().0)
                && section.bytes().len() == rows * dtype.bytes(cols),
            "matrix section does not fit its shape"
        );
        Self {
            rows,
            cols,
            store: Store::File(Stored {
                section,
                dtype,
                order,
            }),
            coarse: false,
        }
    }

    /// Some of its rows as a matrix of their own, in the same store.
    ///
    /// # Panics
    ///
    /// If there are fewer rows, or their order in the file is not plain.
    pub(crate) fn slice(&self, rows: Range<usize>) -> Self {
        match &self.store {
            Store::Memory(data) => {
                let data = data[rows.start * self.cols..rows.end * self.cols].to_vec();
                Self::new(rows.len(), self.cols, data)
            }
            Store::File(stored) => {
                assert_eq!(stored.order, Order::Plain, "rows are in another order");
                let row = stored.dtype.bytes(self.cols);
                let part = stored.section.part(rows.start * row..rows.end * row);
                Self::mapped(rows.len(), self.cols, part, stored.dtype, Order::Plain)
            }
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

    /// The bytes they take, in memory or mapped.
    pub(crate) fn bytes(&self) -> usize {
        match &self.store {
            Store::Memory(data) => size_of_val(&data[..]),
            Store::File(stored) => stored.section.bytes().len(),
        }
    }

    /// All weights, if they can be read without widening.
    pub(crate) fn as_f32(&self) -> Option<&[f32]> {
        match &self.store {
            Store::Memory(data) => Some(data),
            Store::File(Stored {
                section,
                dtype: Dtype::F32,
                order: Order::Plain,
            }) => bytemuck::try_cast_slice(section.bytes()).ok(),
            Store::File(_) => None,
        }
    }

    /// All weights, if they are in bf16 in plain order.
    pub(crate) fn as_bf16(&self) -> Option<&[[u8; 2]]> {
        match &self.store {
            Store::File(Stored {
                section,
                dtype: Dtype::Bf16,
                order: Order::Plain,
            }) => Some(section.bytes().as_chunks().0),
            _ => None,
        }
    }

    /// All weights, if they are blocks of Q8_0 in plain order.
    pub(crate) fn as_q8_0(&self) -> Option<&[Q8Block]> {
        match &self.store {
            Store::File(Stored {
                section,
                dtype: Dtype::Q8_0,
                order: Order::Plain,
            }) => Some(section.bytes().as_chunks().0),
            _ => None,
        }
    }

    /// Whether its products may be rounded to bf16: nothing is lost of weights in bf16, and not much
    /// of those that were rounded to Q8_0 before.
    pub(crate) fn suits_bf16(&self) -> bool {
        self.as_bf16().is_some() || self.coarse
    }

    /// The same in Q8_0, as near as that comes; as it is if rows are no whole number of blocks.
    pub(crate) fn quantised(&self) -> Self {
        if !self.cols.is_multiple_of(Dtype::Q8_0.block().0) {
            return self.clone();
        }
        let row = Dtype::Q8_0.bytes(self.cols);
        let mut bytes = vec![0; self.rows * row];
        let rows = bytes.par_chunks_exact_mut(row).enumerate();
        rows.for_each_init(
            || vec![0.0; self.cols],
            |numbers, (row, out)| {
                self.read_row(row, numbers);
                quantise(numbers, out.as_chunks_mut().0);
            },
        );
        let all = Mapping::memory(bytes);
        let section = all.section(0..all.bytes().len());
        let store = Self::mapped(self.rows, self.cols, section, Dtype::Q8_0, Order::Plain).store;
        Self {
            store,
            coarse: true,
            ..*self
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
        match &self.store {
            Store::Memory(data) => {
                let start = row * self.cols;
                out.copy_from_slice(&data[start + cols.start..start + cols.end]);
            }
            Store::File(stored) => stored.read(row, self.cols, cols, out),
        }
    }
}

impl Stored {
    fn read(&self, row: usize, width: usize, cols: Range<usize>, out: &mut [f32]) {
        let (count, size) = self.dtype.block();
        let row = &self.section.bytes()[self.order.place(row) * self.dtype.bytes(width)..];
        let whole = |at: usize| at.is_multiple_of(count);
        if whole(cols.start) && whole(cols.end) {
            let bytes = &row[cols.start / count * size..cols.end / count * size];
            return widen(bytes, self.dtype, out);
        }
        // A piece that begins or ends within a block: read whole blocks and copy what is wanted.
        let mut block = [0.0; 256];
        for (index, bytes) in row
            .chunks_exact(size)
            .enumerate()
            .take(cols.end.div_ceil(count))
            .skip(cols.start / count)
        {
            let block = &mut block[..count];
            widen(bytes, self.dtype, block);
            let (first, last) = (index * count, (index + 1) * count);
            let (start, end) = (cols.start.max(first), cols.end.min(last));
            out[start - cols.start..end - cols.start]
                .copy_from_slice(&block[start - first..end - first]);
        }
    }
}
