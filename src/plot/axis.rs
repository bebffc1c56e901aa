//! Axes: where values fall, and which of them are named.

use std::ops::RangeInclusive;

/// A range of values and how it is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

/// Values beyond this are drawn at it: between two of them no difference overflows.
const FARTHEST: f64 = 1e300;

impl Axis {
    /// An axis that holds every value, with a little room where they are all the same.
    pub(super) fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            let value = scaled(value, log);
            if value.is_finite() {
                (low, high) = (low.min(value), high.max(value));
            }
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let size = low.abs().max(high.abs());
        // Closer together, values are the same but for the last bits of a float.
        let (least, room) = match log {
            true => (1e-9, (size * 0.1).max(0.1)),
            false if size < 1e-280 => (1e-280, 1.0),
            false => (size * 1e-12, size * 0.1),
        };
        if high - low <= least {
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
        (scaled(value, self.log) - self.low) / (self.high - self.low)
    }

    /// The axis with a twentieth of its length added at both ends.
    pub(super) fn padded(mut self) -> Self {
        let room = (self.high - self.low) * 0.05;
        (self.low, self.high) = (self.low - room, self.high + room);
        self
    }

    /// About so many round values on it, with their names.
    pub(super) fn ticks(&self, about: usize) -> Vec<(f64, String)> {
        match self.log {
            false => round_values(self.low..=self.high, about),
            true => self.log_ticks(about),
        }
    }

    /// Powers of ten; where the axis holds fewer than two, round values as on a linear one.
    fn log_ticks(&self, about: usize) -> Vec<(f64, String)> {
        let (first, last) = (self.low.ceil() as i32, self.high.floor() as i32);
        let count = (last - first + 1).max(0) as usize;
        let is_drawn = |value: f64| value > 0.0 && value.is_finite();
        if count >= 2 {
            let every = count.div_ceil(about.max(1)).max(1);
            let powers = (first..=last).step_by(every);
            let powers = powers.map(|power| 10f64.powf(power.into()));
            return powers
                .filter(|value| is_drawn(*value))
                .map(|value| (value, name(value, value)))
                .collect();
        }
        let end = |power: f64| 10f64.powf(power).min(FARTHEST);
        let mut values = round_values(end(self.low)..=end(self.high), about);
        values.retain(|tick| is_drawn(tick.0));
        values
    }
}

/// A value as it counts on an axis.
fn scaled(value: f64, log: bool) -> f64 {
    match log {
        true => value.log10(),
        false => value.clamp(-FARTHEST, FARTHEST),
    }
}

/// Multiples of 1, 2 or 5 times a power of ten within a range, about so many.
fn round_values(range: RangeInclusive<f64>, about: usize) -> Vec<(f64, String)> {
    let (low, high) = (*range.start(), *range.end());
    let rough = (high - low) / about.max(1) as f64;
    // No step is small enough for the smallest floats.
    if rough < f64::MIN_POSITIVE {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    let factor = factors
        .into_iter()
        .find(|factor| factor * power >= rough * 0.999);
    let step = factor.unwrap_or(10.0) * power;
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    let value = |index| index as f64 * step;
    (first..=last)
        .map(|index| (value(index), name(value(index), step)))
        .collect()
}

/// A value in few characters, but enough to tell it from those a step away.
fn name(value: f64, step: f64) -> String {
    // Powers of ten may be a little short of themselves.
    let power = |value: f64| (value.abs().log10() + 1e-9).floor() as i32;
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if value == 0.0 {
        return "0".into();
    }
    if (1e-3..1e5).contains(&value.abs()) {
        let decimals = (-power(step)).max(0) as usize;
        return trimmed(&format!("{value:.decimals$}"));
    }
    let decimals = (power(value) - power(step)).max(0) as usize;
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((digits, power)) => format!("{}e{power}", trimmed(digits)),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(values: &[f64], log: bool, expected: &[&str]) {
        let axis = Axis::of(values.iter().copied(), log);
        let names: Vec<String> = axis.ticks(5).into_iter().map(|tick| tick.1).collect();
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
        check(
            &[100_000.0, 110_000.0],
            false,
            &["1e5", "1.02e5", "1.04e5", "1.06e5", "1.08e5", "1.1e5"],
        );
        check(
            &[2.0, 2.000_01],
            false,
            &[
                "2", "2.000002", "2.000004", "2.000006", "2.000008", "2.00001",
            ],
        );
    }

    /// Whatever is finite can be drawn, and no two ticks look the same.
    #[test]
    fn no_values_are_too_large_small_or_close() {
        let sizes = [
            0.0,
            5e-324,
            1e-310,
            1e-290,
            1e-17,
            0.1,
            1.0,
            1e5,
            1e17,
            1e300,
            f64::MAX,
        ];
        let ends: Vec<f64> = sizes
            .iter()
            .flat_map(|size| [*size, -size, size * (1.0 + 1e-15), size * (1.0 - 1e-9)])
            .filter(|size| size.is_finite())
            .collect();
        for log in [false, true] {
            for (one, other) in ends.iter().flat_map(|a| ends.iter().map(move |b| (*a, *b))) {
                if log && (one <= 0.0 || other <= 0.0) {
                    continue;
                }
                for axis in [Axis::of([one, other].into_iter(), log)].map(|it| [it, it.padded()]) {
                    for axis in axis {
                        check_any(axis, &[one, other]);
                    }
                }
            }
        }
    }

    fn check_any(axis: Axis, values: &[f64]) {
        for value in values {
            let place = axis.place(*value);
            assert!((0.0..=1.0).contains(&place), "{place} {axis:?} {values:?}");
        }
        let ticks = axis.ticks(5);
        assert!(ticks.len() <= 12, "{axis:?} {ticks:?}");
        for (index, (value, name)) in ticks.iter().enumerate() {
            assert!(axis.place(*value).is_finite(), "{axis:?} {ticks:?}");
            let said: f64 = name.parse().unwrap();
            let near = (said - value).abs() <= value.abs() * 1e-9;
            assert!(near, "{said} {value} {axis:?}");
            let others = &ticks[..index];
            assert!(others.iter().all(|other| other.1 != *name), "{ticks:?}");
        }
    }

    #[test]
    fn values_fall_where_they_belong() {
        let axis = Axis::of([1.0, 100.0].into_iter(), true);
        assert_eq!(axis.place(10.0), 0.5);
        assert_eq!(Axis::of([0.0, 4.0].into_iter(), false).place(1.0), 0.25);
    }
}
