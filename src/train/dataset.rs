//! Data in batches, the same ones every time.

use std::ops::Range;

use crate::text::data::permutation;
use crate::types::Datum;
use crate::{Error, Result};

/// Batches of examples by number. The same numbers give the same batch whenever they are asked
/// for, which is what makes resuming exact.
pub trait Dataset: Sync {
    /// How many batches an epoch has.
    fn batches(&self) -> usize;

    /// A batch of an epoch.
    ///
    /// # Errors
    ///
    /// If it cannot be read or made.
    fn batch(&self, epoch: usize, index: usize) -> Result<Vec<Datum>>;
}

/// Examples in memory, shuffled anew for each epoch with the epoch as seed, as the Python
/// cookbook does. A last batch that is not full is left out.
///
/// ```
/// use tinker::Datum;
/// use tinker::train::{Batches, Dataset};
///
/// let data: Vec<Datum> = (0..10).map(|n| Datum::supervised(&[n], &[n + 1])).collect();
/// let batches = Batches::new(data, 4)?;
/// assert_eq!(batches.batches(), 2);
/// assert_eq!(batches.batch(0, 1)?, batches.batch(0, 1)?);
/// assert_ne!(batches.batch(0, 1)?, batches.batch(1, 1)?);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Batches {
    data: Vec<Datum>,
    size: usize,
    /// How many examples stay together, such as a chosen and a rejected answer.
    together: usize,
}

impl Batches {
    /// Examples in batches of this size.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is not one full batch.
    pub fn new(data: impl Into<Vec<Datum>>, size: usize) -> Result<Self> {
        Self::of(data.into(), size, 1)
    }

    /// Pairs, one after the other, in batches of so many pairs; pairs stay together.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is not one full batch of pairs.
    pub fn of_pairs(data: impl Into<Vec<Datum>>, pairs: usize) -> Result<Self> {
        Self::of(data.into(), pairs, 2)
    }

    fn of(data: Vec<Datum>, size: usize, together: usize) -> Result<Self> {
        let items = data.len() / together;
        if size == 0 || items < size {
            let problem = format!("must be from 1 to the number of examples, {items}; got {size}");
            return Err(Error::invalid("batch_size", problem));
        }
        Ok(Self {
            data,
            size,
            together,
        })
    }
}

impl Dataset for Batches {
    fn batches(&self) -> usize {
        self.data.len() / self.together / self.size
    }

    fn batch(&self, epoch: usize, index: usize) -> Result<Vec<Datum>> {
        let items = self.data.len() / self.together;
        let places = places(index, self.size, items)?;
        let order = permutation(items, epoch as u64);
        let picked = &order[places];
        let items = picked.iter().flat_map(|item| {
            let start = item * self.together;
            &self.data[start..start + self.together]
        });
        Ok(items.cloned().collect())
    }
}

/// Where a batch of this size lies among so many items.
pub(super) fn places(index: usize, size: usize, items: usize) -> Result<Range<usize>> {
    let start = index.checked_mul(size);
    let end = start.and_then(|start| start.checked_add(size));
    match (start, end) {
        (Some(start), Some(end)) if end <= items => Ok(start..end),
        _ => {
            let problem = format!("there is no batch {index}: there are {}", items / size);
            Err(Error::invalid("batch", problem))
        }
    }
}

impl<D: Dataset + ?Sized> Dataset for &D {
    fn batches(&self) -> usize {
        (**self).batches()
    }

    fn batch(&self, epoch: usize, index: usize) -> Result<Vec<Datum>> {
        (**self).batch(epoch, index)
    }
}
