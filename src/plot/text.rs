//! Plots as text, for terminals.

use super::axis::Axis;
use super::{Plot, Series};

/// A row of blocks whose heights follow the values, one per value; a longer row is averaged down
/// to `width` blocks. Values that are not finite leave a gap.
///
/// ```
/// use tinker::plot::sparkline;
///
/// assert_eq!(sparkline(&[1.0, 5.0, 3.0, 9.0], 8), "▁▄▂█");
/// assert_eq!(sparkline(&[2.0, f64::NAN, 2.0], 8), "▄ ▄");
/// ```
pub fn sparkline(values: &[f64], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = shrink(values, width.max(1));
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let block = |value: &f64| match value.is_finite() {
        false => ' ',
        true if low == high => BLOCKS[3],
        true => BLOCKS[((value - low) / (high - low) * 7.999) as usize],
    };
    values.iter().map(block).collect()
}

/// At most so many values: each the mean of its share.
fn shrink(values: &[f64], width: usize) -> Vec<f64> {
    if values.len() <= width {
        return values.to_vec();
    }
    let share = |index: usize| {
        let part = &values[index * values.len() / width..(index + 1) * values.len() / width];
        part.iter().sum::<f64>() / part.len() as f64
    };
    (0..width).map(share).collect()
}

pub(super) fn draw(plot: &Plot, width: usize, height: usize) -> String {
    const MARKS: [char; 6] = ['•', '×', '+', 'o', '#', '*'];
    let series: Vec<Series> = plot.drawn().collect();
    let points = || series.iter().flat_map(|series| series.points.iter());
    let x = Axis::of(points().map(|point| point.0), false);
    let y = Axis::of(points().map(|point| point.1), plot.log_y);
    let names: Vec<(usize, String)> = y
        .ticks(height / 3)
        .into_iter()
        .map(|(tick, name)| (row(y.place(tick), height), name))
        .collect();
    let gutter = names
        .iter()
        .map(|(_, name)| name.chars().count())
        .max()
        .unwrap_or(0);
    let columns = width.saturating_sub(gutter + 2).max(1);
    let mut cells = vec![vec![' '; columns]; height];
    for (series, mark) in series.iter().zip(MARKS.iter().cycle()) {
        trace(&mut cells, &series.smoothed(), (x, y), *mark);
    }
    let mut lines = vec![heading(plot, &series, &MARKS)];
    for (index, cells) in cells.iter().enumerate() {
        let label = names.iter().find(|(at, _)| *at == index);
        let label = label.map_or("", |(_, name)| name);
        let curve: String = cells.iter().collect();
        lines.push(format!("{label:>gutter$} ┤{}", curve.trim_end()));
    }
    lines.push(format!("{:gutter$} └{}", "", "─".repeat(columns)));
    lines.push(numbers(x, gutter + 2, columns, &plot.x_label));
    let cut = |line: String| line.chars().take(width).collect::<String>();
    let lines: Vec<String> = lines.into_iter().map(cut).collect();
    lines.join("\n")
}

fn row(place: f64, height: usize) -> usize {
    ((1.0 - place) * (height - 1) as f64).round() as usize
}

/// Marks every column between the first and the last point, so that curves have no gaps.
fn trace(cells: &mut [Vec<char>], points: &[(f64, f64)], (x, y): (Axis, Axis), mark: char) {
    let (height, columns) = (cells.len(), cells[0].len());
    let at = |(px, py): (f64, f64)| {
        let column = (x.place(px) * (columns - 1) as f64).round() as usize;
        (column, row(y.place(py), height))
    };
    let mut last: Option<(usize, usize)> = None;
    for point in points.iter().copied().map(at) {
        let (from, from_row) = last.unwrap_or(point);
        let span = point.0.saturating_sub(from).max(1);
        for step in 0..=point.0.saturating_sub(from) {
            let way = step as f64 / span as f64;
            let between = from_row as f64 + (point.1 as f64 - from_row as f64) * way;
            cells[between.round() as usize][from + step] = mark;
        }
        last = Some(point);
    }
}

fn heading(plot: &Plot, series: &[Series], marks: &[char]) -> String {
    match series {
        [] => format!("{} (no data)", plot.title),
        [_] => plot.title.clone(),
        _ => {
            let names = series.iter().zip(marks.iter().cycle());
            let names: Vec<String> = names
                .map(|(s, mark)| format!("{mark} {}", s.name))
                .collect();
            format!("{}  {}", plot.title, names.join("  "))
        }
    }
}

/// The numbers below the axis: its two ends, and the label between them.
fn numbers(x: Axis, indent: usize, columns: usize, label: &str) -> String {
    let ticks = x.ticks(columns / 12);
    let mut line: Vec<char> = vec![' '; indent + columns];
    for (tick, text) in ticks {
        let middle = indent + (x.place(tick) * (columns - 1) as f64).round() as usize;
        let start = middle.saturating_sub(text.len() / 2);
        let start = start.min(line.len().saturating_sub(text.len()));
        let free = line[start.saturating_sub(1)..(start + text.len()).min(line.len())]
            .iter()
            .all(|cell| *cell == ' ');
        if free {
            for (cell, c) in line[start..].iter_mut().zip(text.chars()) {
                *cell = c;
            }
        }
    }
    let line: String = line.into_iter().collect();
    match label {
        "" => line.trim_end().to_owned(),
        label => format!("{} {label}", line.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Plot, Series};
    use super::*;

    #[test]
    fn a_falling_line_falls() {
        let line = Series::new(
            "loss",
            (0..=10).map(|x| (f64::from(x), 10.0 - f64::from(x))),
        );
        let text = Plot::new("loss").with_series(line).to_text(30, 5);
        let expected = "loss\n10 ┤••••\n   ┤    •••••\n   ┤         ••••••••\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 30),
            "{text}"
        );
        assert_eq!(text.lines().count(), 8);
    }

    #[test]
    fn what_is_no_number_smooths_nothing() {
        let line = Series::new("loss", [(0.0, 3.0), (1.0, 1.0), (2.0, 2.0)]);
        let plain = Plot::new("loss").with_series(line.clone());
        let other = Plot::new("loss").with_series(line.with_smoothing(f64::NAN));
        assert_eq!(other.to_text(30, 5), plain.to_text(30, 5));
    }

    #[test]
    fn long_rows_are_averaged() {
        let values: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(sparkline(&values, 4), "▁▃▆█");
        assert_eq!(sparkline(&[], 4), "");
    }
}
