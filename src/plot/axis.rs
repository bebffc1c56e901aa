//! Axes: where values fall, and which of them are named.

use std::ops::RangeInclusive;

/// A range of values and how it is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// An axis that holds every value, with a little room where they are all the same.
    pub(super) fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            let value = if log { value.log10() } else { value };
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if low == high {
            let room = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (low - room, high + room);
        }
        Self { low, high, log }
    }

    /// What lies at its two ends; the logarithms of it on a logarithmic axis.
    pub(super) fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// Where a value falls: 0 at the low end, 1 at the high end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// The axis with a twentieth of its length added at both ends.
    pub(super) fn padded(mut self) -> Self {
        let room = (self.high - self.low) * 0.05;
        (self.low, self.high) = (self.low - room, self.high + room);
        self
    }

    /// About so many round values on it.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        match self.log {
            false => round_values(self.low..=self.high, about),
            true => self.log_ticks(about),
        }
    }

    /// Powers of ten; where the axis holds fewer than two, round values as on a linear one.
    fn log_ticks(&self, about: usize) -> Vec<f64> {
        let (first, last) = (self.low.ceil() as i32, self.high.floor() as i32);
        let count = (last - first + 1).max(0) as usize;
        if count >= 2 {
            let every = count.div_ceil(about.max(1)).max(1);
            return (first..=last)
                .step_by(every)
                .map(|e| 10f64.powi(e))
                .collect();
        }
        let values = round_values(10f64.powf(self.low)..=10f64.powf(self.high), about);
        values.into_iter().filter(|value| *value > 0.0).collect()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten within a range, about so many.
fn round_values(range: RangeInclusive<f64>, about: usize) -> Vec<f64> {
    let (low, high) = (*range.start(), *range.end());
    let rough = (high - low) / about.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    let factor = factors
        .into_iter()
        .find(|factor| factor * power >= rough * 0.999);
    let step = factor.unwrap_or(10.0) * power;
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

/// A value in few characters.
pub(super) fn name(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-12..f64::EPSILON).contains(&size) {
        return "0".into();
    }
    if !(1e-3..1e5).contains(&size) {
        let text = format!("{value:.1e}");
        return text.replace(".0e", "e");
    }
    let decimals = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], log: bool, expected: &[&str]) {
        let axis = Axis::of(values.iter().copied(), log);
        let names: Vec<String> = axis.ticks(5).into_iter().map(name).collect();
        assert_eq!(names, expected, "{values:?}");
    }

    #[test]
    fn ticks_are_round_and_inside() {
        check(&[0.0, 10.0], false, &["0", "2", "4", "6", "8", "10"]);
        check(&[0.13, 0.97], false, &["0.2", "0.4", "0.6", "0.8"]);
        check(&[-1.0, 1.0], false, &["-1", "-0.5", "0", "0.5", "1"]);
        check(&[0.0, 123_456.0], false, &["0", "50000", "1e5"]);
        check(&[5.0], false, &["4.6", "4.8", "5", "5.2", "5.4"]);
        check(&[], false, &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        check(&[0.001, 100.0], true, &["0.001", "0.1", "10"]);
        check(&[1.9, 4.1], true, &["2", "2.5", "3", "3.5", "4"]);
    }

    #[test]
    fn values_fall_where_they_belong() {
        let axis = Axis::of([1.0, 100.0].into_iter(), true);
        assert_eq!(axis.place(10.0), 0.5);
        assert_eq!(Axis::of([0.0, 4.0].into_iter(), false).place(1.0), 0.25);
    }
}
