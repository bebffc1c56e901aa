//! Numbers with a shape, and PyTorch's broadcasting between shapes.

use crate::error::{Error, Result};

/// Row-major numbers with a shape; rank 0 holds one number.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

impl Array {
    /// An array of `shape`, whose size the caller guarantees.
    pub(super) fn new(shape: Vec<usize>, data: Vec<f64>) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Self { shape, data }
    }

    pub(super) fn scalar(value: f64) -> Self {
        Self::new(Vec::new(), vec![value])
    }

    /// The only number of an array with one element, whatever its rank.
    pub(super) fn item(&self) -> Option<f64> {
        match self.data[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    pub(super) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::new(
            self.shape.clone(),
            self.data.iter().map(|&x| f(x)).collect(),
        )
    }
}

/// The common shape of operands: aligned at the right, sizes equal or 1.
pub(super) fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>> {
    let rank = left.len().max(right.len());
    let size = |shape: &[usize], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(index) => shape[index],
        None => 1,
    };
    (0..rank)
        .map(|axis| match (size(left, axis), size(right, axis)) {
            (a, b) if a == b => Ok(a),
            (1, b) => Ok(b),
            (a, 1) => Ok(a),
            _ => Err(Error::invalid(
                "loss",
                format!("shapes {left:?} and {right:?} do not broadcast"),
            )),
        })
        .collect()
}

/// Where the elements of a broadcast result come from in one operand.
pub(super) enum Source {
    /// The operand has the result's shape.
    Same,
    /// The operand is a single number.
    Single,
    /// Offsets, one per element of the result.
    Table(Vec<usize>),
}

impl Source {
    /// How `operand` is read to fill `result`, a shape it broadcasts to.
    pub(super) fn new(operand: &[usize], result: &[usize]) -> Self {
        if operand == result {
            return Self::Same;
        }
        if operand.iter().product::<usize>() == 1 {
            return Self::Single;
        }
        let padding = result.len() - operand.len();
        let mut strides = vec![0; result.len()];
        let mut step = 1;
        for axis in (padding..result.len()).rev() {
            let size = operand[axis - padding];
            strides[axis] = if size == 1 { 0 } else { step };
            step *= size;
        }
        let mut offsets = Vec::with_capacity(result.iter().product());
        for index in 0..result.iter().product::<usize>() {
            let (mut rest, mut offset) = (index, 0);
            for axis in (0..result.len()).rev() {
                offset += rest % result[axis] * strides[axis];
                rest /= result[axis];
            }
            offsets.push(offset);
        }
        Self::Table(offsets)
    }

    pub(super) fn at(&self, index: usize) -> usize {
        match self {
            Self::Same => index,
            Self::Single => 0,
            Self::Table(offsets) => offsets[index],
        }
    }
}

/// The sizes before, at and after an axis; PyTorch's rules for negative axes and rank 0.
pub(super) fn split_axis(shape: &[usize], axis: i64) -> Result<(usize, usize, usize)> {
    if shape.is_empty() && matches!(axis, 0 | -1) {
        return Ok((1, 1, 1));
    }
    let axis = resolve_axis(shape.len(), axis)
        .filter(|&axis| axis < shape.len())
        .ok_or_else(|| {
            Error::invalid("loss", format!("shape {shape:?} does not have axis {axis}"))
        })?;
    let size = |sizes: &[usize]| sizes.iter().product();
    Ok((size(&shape[..axis]), shape[axis], size(&shape[axis + 1..])))
}

/// An axis counted from the front, given one that may count from the back.
pub(super) fn resolve_axis(rank: usize, axis: i64) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_from_the_right() {
        #[track_caller]
        fn check(left: &[usize], right: &[usize], expected: Option<&[usize]>) {
            assert_eq!(
                broadcast(left, right).ok().as_deref(),
                expected,
                "{left:?} {right:?}"
            );
        }
        check(&[], &[], Some(&[]));
        check(&[], &[3], Some(&[3]));
        check(&[3], &[3], Some(&[3]));
        check(&[3], &[4], None);
        check(&[3, 2], &[2], Some(&[3, 2]));
        check(&[3, 2], &[3], None);
        check(&[3, 1], &[1, 2], Some(&[3, 2]));
        check(&[1], &[0], Some(&[0]));
    }

    #[test]
    fn sources_repeat_missing_and_single_axes() {
        #[track_caller]
        fn check(operand: &[usize], result: &[usize], expected: &[usize]) {
            let source = Source::new(operand, result);
            let offsets: Vec<usize> = (0..expected.len()).map(|i| source.at(i)).collect();
            assert_eq!(offsets, expected);
        }
        check(&[2, 3], &[2, 3], &[0, 1, 2, 3, 4, 5]);
        check(&[1], &[2], &[0, 0]);
        check(&[3], &[2, 3], &[0, 1, 2, 0, 1, 2]);
        check(&[2, 1], &[2, 3], &[0, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn axes_count_from_either_end() {
        assert_eq!(split_axis(&[2, 3, 4], 1).unwrap(), (2, 3, 4));
        assert_eq!(split_axis(&[2, 3, 4], -1).unwrap(), (6, 4, 1));
        assert_eq!(split_axis(&[], -1).unwrap(), (1, 1, 1));
        assert!(split_axis(&[2], 1).is_err());
        assert!(split_axis(&[2], -2).is_err());
    }
}
