//! Plots as SVG.

use std::fmt::Write;

use super::axis::Axis;
use super::{Plot, Series};

/// Colours that can be told apart on white and on black, and by people who see fewer colours.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9",
];

const STYLE: &str = "\
.tinker-plot{font:12px system-ui,sans-serif;color:#1f2328;background:#fff}\
.tinker-plot text{fill:currentColor}\
.tinker-plot .grid{stroke:currentColor;stroke-opacity:.15}\
.tinker-plot .axis{stroke:currentColor;stroke-opacity:.6;fill:none}\
.tinker-plot .curve{fill:none;stroke-width:1.8;stroke-linejoin:round}\
.tinker-plot .raw{fill:none;stroke-width:1;stroke-opacity:.3}\
@media(prefers-color-scheme:dark){.tinker-plot{color:#e6edf3;background:#0d1117}}";

/// Who shows the drawing.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Manner {
    /// It stands alone.
    Document,
    /// A page with a heading and a style of its own.
    Inline,
}

/// The rectangle the curves are drawn in, and the axes that fill it.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    x: Axis,
    y: Axis,
}

impl Frame {
    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let across = self.left + self.x.place(x) * self.width;
        let down = self.top + (1.0 - self.y.place(y)) * self.height;
        (across, down)
    }

    fn middle(&self) -> (f64, f64) {
        (self.left + self.width / 2.0, self.top + self.height / 2.0)
    }
}

pub(super) fn draw(plot: &Plot, manner: Manner) -> String {
    let series: Vec<Series> = plot.drawn().collect();
    let points = || series.iter().flat_map(|series| series.points.iter());
    let (width, height) = (f64::from(plot.size.0), f64::from(plot.size.1));
    let legend = if series.len() > 1 { 20.0 } else { 0.0 };
    let top = legend
        + match manner {
            Manner::Document => 34.0,
            Manner::Inline => 8.0,
        };
    let below = if plot.x_label.is_empty() { 24.0 } else { 44.0 };
    let frame = Frame {
        left: 58.0,
        top,
        width: width - 58.0 - 18.0,
        height: height - top - below,
        x: Axis::of(points().map(|point| point.0), false),
        y: Axis::of(points().map(|point| point.1), plot.log_y).padded(),
    };
    let mut svg = opening(plot, manner, &frame);
    grid(&mut svg, plot, &frame);
    if series.is_empty() {
        let (x, y) = frame.middle();
        push(
            &mut svg,
            format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">no data</text>"),
        );
    }
    for (number, series) in series.iter().enumerate() {
        curve(&mut svg, series, number, &frame);
    }
    if series.len() > 1 {
        names(&mut svg, &series, &frame);
    }
    svg + "</svg>"
}

/// The element's start; of a document also its style and title, of a part of a page the numbers
/// that a script on it needs.
fn opening(plot: &Plot, manner: Manner, frame: &Frame) -> String {
    let (width, height) = plot.size;
    let title = escaped(&plot.title);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tinker-plot\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\"",
    );
    match manner {
        Manner::Document => push(
            &mut svg,
            format_args!(
                "><style>{STYLE}</style><rect width=\"100%\" height=\"100%\" fill=\"none\"/>\
                 <text x=\"{:.1}\" y=\"20\" text-anchor=\"middle\" font-weight=\"600\">{title}</text>",
                frame.middle().0,
            ),
        ),
        Manner::Inline => {
            let (x, y) = (frame.x.ends(), frame.y.ends());
            let log = if plot.log_y { " data-log=\"\"" } else { "" };
            push(
                &mut svg,
                format_args!(
                    " data-frame=\"{} {} {} {}\" data-x=\"{} {}\" data-y=\"{} {}\"{log}>",
                    frame.left, frame.top, frame.width, frame.height, x.0, x.1, y.0, y.1
                ),
            );
        }
    }
    svg
}

fn grid(svg: &mut String, plot: &Plot, frame: &Frame) {
    let (left, right) = (frame.left, frame.left + frame.width);
    let (top, bottom) = (frame.top, frame.top + frame.height);
    for (tick, name) in frame.y.ticks((frame.height / 40.0) as usize) {
        let y = top + (1.0 - frame.y.place(tick)) * frame.height;
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                name,
            ),
        );
    }
    for (tick, name) in frame.x.ticks((frame.width / 80.0) as usize) {
        let x = left + frame.x.place(tick) * frame.width;
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                name,
            ),
        );
    }
    let (middle, below) = (left + frame.width / 2.0, bottom + 34.0);
    let (label, half) = (escaped(&plot.x_label), top + frame.height / 2.0);
    push(
        svg,
        format_args!(
            "<path class=\"axis\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>\
         <text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{label}</text>\
         <text x=\"14\" y=\"{half:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {half:.1})\">{}</text>",
            escaped(&plot.y_label),
        ),
    );
}

fn curve(svg: &mut String, series: &Series, number: usize, frame: &Frame) {
    let colour = COLOURS[number % COLOURS.len()];
    let stroke = |class: &str| {
        let number = number % COLOURS.len();
        format!("class=\"{class} s{number}\" stroke=\"{colour}\"")
    };
    if series.smoothing > 0.0 {
        path(svg, &stroke("raw"), &series.points, frame);
    }
    path(svg, &stroke("curve"), &series.smoothed(), frame);
    if let [only] = series.points[..] {
        let (x, y) = frame.place(only);
        push(
            svg,
            format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"),
        );
    }
}

fn path(svg: &mut String, stroke: &str, points: &[(f64, f64)], frame: &Frame) {
    let places = points.iter().map(|point| frame.place(*point)).collect();
    let line = line(&thinned(places, frame.width));
    push(svg, format_args!("<path {stroke} d=\"{line}\"/>"));
}

fn line(places: &[(f64, f64)]) -> String {
    let mut line = String::new();
    for (index, (x, y)) in places.iter().enumerate() {
        let stroke = if index == 0 { 'M' } else { 'L' };
        push(&mut line, format_args!("{stroke}{x:.1} {y:.1}"));
    }
    line
}

/// Of more places than can be told apart, the lowest and the highest of each pixel's column: what
/// is drawn looks the same, and a run of a million steps stays small.
fn thinned(places: Vec<(f64, f64)>, width: f64) -> Vec<(f64, f64)> {
    if (places.len() as f64) < width * 4.0 {
        return places;
    }
    let mut kept = Vec::new();
    for column in places.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let lowest = column.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let highest = column.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends = [lowest, highest].map(|end| *end.expect("a chunk is never empty"));
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        kept.extend(ends);
    }
    kept
}

/// A curve without axes, for a row of a table: an SVG element whose colour is the text's. Values
/// that are not finite are left out.
///
/// ```
/// use tinker::plot::sparkline_svg;
///
/// let svg = sparkline_svg(&[3.0, 2.0, f64::NAN, 1.0], 60, 16);
/// assert!(svg.contains("d=\"M1.0 1.0L30.0 8.0L59.0 15.0\""), "{svg}");
/// ```
pub fn sparkline_svg(values: &[f64], width: u32, height: u32) -> String {
    let values: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let (wide, high) = (f64::from(width) - 2.0, f64::from(height) - 2.0);
    let last = values.len().saturating_sub(1) as f64;
    let axes = (
        Axis::of([0.0, last.max(1.0)].into_iter(), false),
        Axis::of(values.iter().copied(), false),
    );
    let place = |(index, value): (usize, &f64)| {
        let across = 1.0 + axes.0.place(index as f64) * wide;
        (across, 1.0 + (1.0 - axes.1.place(*value)) * high)
    };
    let places = thinned(values.iter().enumerate().map(place).collect(), wide);
    let dot = places.last().map_or(String::new(), |(x, y)| {
        format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.5\" fill=\"currentColor\"/>")
    });
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tinker-sparkline\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" aria-hidden=\"true\">\
         <path fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.3\" stroke-linejoin=\"round\" d=\"{}\"/>{dot}</svg>",
        line(&places)
    )
}

/// The names of the curves, in a row above them.
fn names(svg: &mut String, series: &[Series], frame: &Frame) {
    let (mut x, y) = (frame.left, frame.top - 10.0);
    for (number, series) in series.iter().enumerate() {
        let (number, colour) = (number % COLOURS.len(), COLOURS[number % COLOURS.len()]);
        push(
            svg,
            format_args!(
                "<line class=\"s{number}\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                y - 4.0,
                x + 16.0,
                y - 4.0,
                x + 21.0,
                escaped(&series.name),
            ),
        );
        // Letters of this font are about 6.6 pixels wide.
        x += 36.0 + series.name.chars().count() as f64 * 6.6;
    }
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    text.write_fmt(piece)
        .expect("writing to a string cannot fail");
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::{Plot, Series};

    #[test]
    fn a_size_beyond_reason_is_cut() {
        let plot = Plot::new("x").with_series(Series::new("a", [(0.0, 1.0), (1.0, 2.0)]));
        let whole = |width, height| plot.clone().with_size(width, height).to_inline_svg();
        assert_eq!(whole(u32::MAX, u32::MAX), whole(10_000, 10_000));
        assert_eq!(whole(0, 0), whole(160, 120));
        let text = plot.to_text(usize::MAX, usize::MAX);
        assert_eq!(
            (
                text.lines().count(),
                text.lines().all(|line| line.chars().count() <= 1_000)
            ),
            (1_003, true)
        );
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let plot = Plot::new("<script>alert(\"x\")</script>")
            .with_series(Series::new("a&b", [(0.0, 1.0), (1.0, 2.0)]))
            .with_series(Series::new("c", [(0.0, 2.0), (1.0, f64::NAN), (2.0, 3.0)]));
        let svg = plot.to_svg();
        assert!(
            !svg.contains("<script") && svg.contains("&lt;script&gt;"),
            "{svg}"
        );
        assert!(svg.contains("a&amp;b") && !svg.contains("NaN"), "{svg}");
        assert_eq!(svg.matches("class=\"curve ").count(), 2);
    }

    #[test]
    fn long_curves_keep_their_peaks() {
        let spike = |x: i32| if x == 70_000 { 9.0 } else { f64::from(x % 2) };
        let points = (0..100_000).map(|x| (f64::from(x), spike(x)));
        let plot = Plot::new("x").with_series(Series::new("a", points));
        let svg = plot.to_inline_svg();
        assert!(svg.len() < 40_000, "{} bytes", svg.len());
        // The highest value is a twenty-second below the upper end of an axis padded by a twentieth.
        let top = 8.0 + (360.0 - 8.0 - 24.0) * 0.05 / 1.1;
        assert!(svg.contains(&format!(" {top:.1}L")), "{svg}");
        let near = plot.with_x_range(69_990.0, 70_010.0).to_inline_svg();
        assert!(near.contains("data-x=\"69990 70010\""), "{near}");
    }

    #[test]
    fn nothing_one_point_and_flat_lines_can_be_drawn() {
        assert!(Plot::new("x").to_svg().contains("no data"));
        let one = Plot::new("x").with_series(Series::new("a", [(3.0, 5.0)]));
        assert!(one.to_svg().contains("<circle"));
        let flat = Series::new("a", (0..3).map(|x| (f64::from(x), 0.0)));
        let svg = Plot::new("x").with_series(flat.clone()).to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(Plot::new("x").with_log_y().with_series(flat).is_empty());
    }
}
