//! Keys and values in pages, which sequences share until one of them writes.
//!
//! A page has the keys and values of some consecutive positions in every layer. Pages begin at
//! fixed positions, whoever wrote them, so what a sequence computes does not depend on which of
//! its pages are shared.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;

use super::gemm::{View, add_rows, vectorised};
use super::lora::Merged;
use super::model::Weights;
use super::quant::to_bf16;

/// Positions of a page.
pub(crate) const PAGE: usize = 32;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// As `f32`.
    Single,
    /// As bf16.
    Half,
}

impl Precision {
    /// As the model itself is kept: in `f32` for small models and those in `f32`, else in bf16.
    /// Training [rounds](Self::round) them alike, so that it agrees with sampling.
    pub(crate) fn of(weights: &Weights) -> Self {
        match weights.len() <= Merged::LIMIT || weights.embed.as_f32().is_some() {
            true => Self::Single,
            false => Self::Half,
        }
    }

    /// Makes numbers what they would be after being kept.
    pub(crate) fn round(self, numbers: &mut [f32]) {
        if self == Self::Half {
            vectorised(|| {
                for number in numbers {
                    *number = f32::from_bits(u32::from(to_bf16(*number)) << 16);
                }
            });
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Single => size_of::<f32>(),
            Self::Half => size_of::<bf16>(),
        }
    }
}

/// Where pages come from, and how many there should be.
#[derive(Debug)]
pub(crate) struct Pool {
    shape: Shape,
    limit: usize,
    used: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: usize,
    width: usize,
    precision: Precision,
}

impl Shape {
    fn numbers(self) -> usize {
        self.layers * 2 * PAGE * self.width
    }
}

impl Pool {
    /// The fewest pages that requests can be run with side by side.
    const LEAST: usize = 16;

    /// Pages for a model's keys and values in so many bytes.
    pub(crate) fn new(weights: &Weights, precision: Precision, bytes: usize) -> Self {
        let shape = Shape {
            layers: weights.config.layers.len(),
            width: weights.config.kv_width(),
            precision,
        };
        let page = shape.numbers() * precision.bytes();
        Self {
            shape,
            limit: (bytes / page).max(Self::LEAST),
            used: Arc::default(),
        }
    }

    /// How many pages there should be at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// How many pages there are.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn page(&self) -> Arc<Page> {
        let len = self.shape.numbers();
        self.used.fetch_add(1, Ordering::Relaxed);
        Arc::new(Page {
            width: self.shape.width,
            numbers: match self.shape.precision {
                Precision::Single => Numbers::Single(vec![0.0; len]),
                Precision::Half => Numbers::Half(vec![[0; 2]; len]),
            },
            used: self.used.clone(),
        })
    }
}

/// The keys and values of [`PAGE`] positions. Per layer it has all keys, turned, so that the same
/// number of all of them is together, and then all values, a row each.
#[derive(Debug)]
pub(crate) struct Page {
    width: usize,
    numbers: Numbers,
    /// The pool's count.
    used: Arc<AtomicUsize>,
}

#[derive(Debug, Clone)]
enum Numbers {
    Single(Vec<f32>),
    Half(Vec<[u8; 2]>),
}

impl Page {
    fn copy(&self) -> Arc<Self> {
        self.used.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            width: self.width,
            numbers: self.numbers.clone(),
            used: self.used.clone(),
        })
    }

    /// Where a layer's keys are.
    fn keys(&self, layer: usize) -> Range<usize> {
        let all = PAGE * self.width;
        2 * layer * all..(2 * layer + 1) * all
    }

    /// Where some rows of a layer's values are.
    fn values(&self, layer: usize, rows: Range<usize>) -> Range<usize> {
        let first = (2 * layer + 1) * PAGE;
        (first + rows.start) * self.width..(first + rows.end) * self.width
    }

    /// Writes some rows of a layer.
    fn write(&mut self, layer: usize, rows: Range<usize>, keys: &[f32], values: &[f32]) {
        let first = self.keys(layer).start + rows.start;
        let (width, place) = (self.width, self.values(layer, rows));
        match &mut self.numbers {
            Numbers::Single(all) => {
                spell_keys(keys, width, &mut all[first..], |key| key);
                all[place].copy_from_slice(values);
            }
            Numbers::Half(all) => {
                let half = |number| to_bf16(number).to_le_bytes();
                spell_keys(keys, width, &mut all[first..], half);
                let all = &mut all[place];
                vectorised(|| {
                    for (number, value) in all.iter_mut().zip(values) {
                        *number = half(*value);
                    }
                });
            }
        }
    }

    /// Reads some rows of a layer, widened.
    fn read(&self, layer: usize, rows: Range<usize>, keys: &mut [f32], values: &mut [f32]) {
        let first = self.keys(layer).start + rows.start;
        let (width, place) = (self.width, self.values(layer, rows));
        match &self.numbers {
            Numbers::Single(all) => {
                read_keys(&all[first..], width, keys, |key| key);
                values.copy_from_slice(&all[place]);
            }
            Numbers::Half(all) => {
                let single = |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
                read_keys(&all[first..], width, keys, single);
                let all = &all[place];
                vectorised(|| {
                    for (value, number) in values.iter_mut().zip(all) {
                        *value = single(*number);
                    }
                });
            }
        }
    }
}

/// Turns keys, a row each, into columns.
fn spell_keys<T>(keys: &[f32], width: usize, out: &mut [T], spell: impl Fn(f32) -> T) {
    for (row, key) in keys.chunks_exact(width).enumerate() {
        let out = out[row..].iter_mut().step_by(PAGE);
        out.zip(key).for_each(|(out, number)| *out = spell(*number));
    }
}

/// And back.
fn read_keys<T: Copy>(from: &[T], width: usize, keys: &mut [f32], read: impl Fn(T) -> f32) {
    for (row, key) in keys.chunks_exact_mut(width).enumerate() {
        let from = from[row..].iter().step_by(PAGE);
        key.iter_mut()
            .zip(from)
            .for_each(|(number, from)| *number = read(*from));
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Some rows of one page that a sequence looks back at.
#[derive(Debug)]
pub(crate) struct Stretch<'a> {
    page: &'a Page,
    first: usize,
    layer: usize,
    rows: Range<usize>,
}

impl Stretch<'_> {
    /// The position of the page's first row.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Which of the page's rows.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Adds the products of queries, a row each, with all the page's keys, from some of their
    /// numbers on. What is no key, or not yet, has a product too, which means nothing.
    ///
    /// Rows of the result begin `stride` apart.
    pub(crate) fn add_scores(&self, q: View<'_>, start: usize, out: &mut [f32], stride: usize) {
        let place = self.page.keys(self.layer);
        let place = place.start + start * PAGE..place.end;
        match &self.page.numbers {
            Numbers::Single(keys) => add_rows(q, &keys[place], PAGE, PAGE, out, stride),
            Numbers::Half(keys) => add_rows(q, &keys[place], PAGE, PAGE, out, stride),
        }
    }

    /// Adds `dim` numbers of the values from `start` on, each as often as its weight says, to dense
    /// rows.
    pub(crate) fn add_values(&self, weights: View<'_>, start: usize, dim: usize, out: &mut [f32]) {
        let (place, width) = (
            self.page.values(self.layer, self.rows.clone()),
            self.page.width,
        );
        let place = place.start + start..place.end;
        match &self.page.numbers {
            Numbers::Single(values) => add_rows(weights, &values[place], width, dim, out, dim),
            Numbers::Half(values) => add_rows(weights, &values[place], width, dim, out, dim),
        }
    }
}

/// The pages of one sequence. A clone shares them, and copies what it writes to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pages: Vec<Arc<Page>>,
    rows: usize,
}

impl Table {
    /// How many positions are remembered.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The pages, in order of positions.
    pub(crate) fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// How many pages room for some more rows takes.
    pub(crate) fn lacks(&self, more: usize) -> usize {
        let new = (self.rows + more)
            .div_ceil(PAGE)
            .saturating_sub(self.pages.len());
        new + usize::from(more > 0 && self.shares_last())
    }

    /// Whether the next row would be written into a page that others have too.
    fn shares_last(&self) -> bool {
        let page = self.pages.get(self.rows / PAGE);
        page.is_some_and(|page| Arc::strong_count(page) > 1)
    }

    /// Makes room for some more rows.
    pub(crate) fn reserve(&mut self, more: usize, pool: &Pool) {
        if more > 0 && self.shares_last() {
            let page = &mut self.pages[self.rows / PAGE];
            *page = page.copy();
        }
        let pages = (self.rows + more).div_ceil(PAGE);
        while self.pages.len() < pages {
            self.pages.push(pool.page());
        }
    }

    /// Writes the next rows of a layer, for which room was made; [`advance`](Self::advance) follows
    /// when every layer has them.
    ///
    /// # Panics
    ///
    /// If no room was made.
    pub(crate) fn put(&mut self, layer: usize, keys: &[f32], values: &[f32]) {
        let width = self.pages[self.rows / PAGE].width;
        let count = keys.len() / width;
        for (page, rows) in spans(self.rows..self.rows + count) {
            let from = (page * PAGE + rows.start - self.rows) * width;
            let range = from..from + rows.len() * width;
            let page = Arc::get_mut(&mut self.pages[page]).expect("room was made before writing");
            page.write(layer, rows, &keys[range.clone()], &values[range]);
        }
    }

    /// Counts rows that every layer has.
    pub(crate) fn advance(&mut self, rows: usize) {
        self.rows += rows;
    }

    /// Goes on with rows that another sequence has written, in pages that begin where this ends.
    pub(crate) fn append(&mut self, pages: &[Arc<Page>], rows: usize) {
        debug_assert!(
            self.rows.is_multiple_of(PAGE),
            "pages begin at fixed positions"
        );
        self.pages.extend_from_slice(pages);
        self.rows += rows;
    }

    /// A layer's keys and values of the first so many rows, widened.
    pub(crate) fn gather(&self, layer: usize, rows: usize, keys: &mut [f32], values: &mut [f32]) {
        let mut from = 0;
        for (page, rows) in spans(0..rows) {
            let page = &self.pages[page];
            let to = from + rows.len() * page.width;
            page.read(layer, rows, &mut keys[from..to], &mut values[from..to]);
            from = to;
        }
    }

    /// The stretches of a layer that some rows lie in.
    pub(crate) fn stretches(
        &self,
        layer: usize,
        rows: Range<usize>,
    ) -> impl Iterator<Item = Stretch<'_>> {
        spans(rows).map(move |(page, rows)| Stretch {
            page: &self.pages[page],
            first: page * PAGE,
            layer,
            rows,
        })
    }
}

/// Cuts rows into pages: the page's number, and the rows within it.
fn spans(rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pages = rows.start / PAGE..rows.end.div_ceil(PAGE);
    pages.map(move |page| {
        let first = page * PAGE;
        let within = rows.start.max(first) - first..rows.end.min(first + PAGE) - first;
        (page, within)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::engine::Base;

    fn rows(table: &Table, layer: usize) -> Vec<f32> {
        let width = table.pages()[0].width;
        let mut keys = vec![0.0; table.rows() * width];
        let mut values = keys.clone();
        table.gather(layer, table.rows(), &mut keys, &mut values);
        assert!(
            values
                .iter()
                .zip(&keys)
                .all(|(value, key)| *value == key + 1.0)
        );
        keys.into_iter().step_by(width).collect()
    }

    fn write(table: &mut Table, pool: &Pool, first: f32, count: usize) {
        table.reserve(count, pool);
        for layer in 0..pool.shape.layers {
            let row = |index: usize| [first + index as f32].repeat(pool.shape.width);
            let keys: Vec<f32> = (0..count).flat_map(row).collect();
            let values: Vec<f32> = keys.iter().map(|key| key + 1.0).collect();
            table.put(layer, &keys, &values);
        }
        table.advance(count);
    }

    #[test]
    fn numbers_are_rounded_as_usual() {
        let mut bits: Vec<u32> = (0..=u16::MAX).map(|high| u32::from(high) << 16).collect();
        bits.extend(
            bits.clone()
                .iter()
                .flat_map(|high| [0x7fff, 0x8000, 0x8001].map(|low| high | low)),
        );
        for bits in bits {
            let number = f32::from_bits(bits);
            assert_eq!(
                to_bf16(number),
                bf16::from_f32(number).to_bits(),
                "{bits:08x}"
            );
        }
    }

    #[test]
    fn pages_are_shared_until_written_to() {
        let base = Base::builtin(1).unwrap();
        for precision in [Precision::Single, Precision::Half] {
            let pool = Pool::new(base.weights(), precision, 1 << 30);
            let mut one = Table::default();
            assert_eq!(one.lacks(PAGE + 8), 2);
            write(&mut one, &pool, 0.0, PAGE + 8);
            let mut other = one.clone();
            assert_eq!((pool.used(), other.lacks(1), other.lacks(PAGE)), (2, 1, 2));
            write(&mut other, &pool, 100.0, 3);
            assert_eq!((pool.used(), one.lacks(1)), (3, 0));
            write(&mut one, &pool, 50.0, PAGE);
            assert_eq!(pool.used(), 4);
            for layer in 0..pool.shape.layers {
                let (one, other) = (rows(&one, layer), rows(&other, layer));
                assert_eq!(one[PAGE + 7..PAGE + 10], [39.0, 50.0, 51.0]);
                assert_eq!(other[PAGE + 7..], [39.0, 100.0, 101.0, 102.0]);
            }
            drop((one, other));
            assert_eq!(pool.used(), 0);
        }
    }
}
