//! Plots as SVG.

use std::fmt::Write;

use super::axis::{Axis, name};
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
}

pub(super) fn draw(plot: &Plot) -> String {
    let series: Vec<Series> = plot.drawn().collect();
    let points = || series.iter().flat_map(|series| series.points.iter());
    let (width, height) = (f64::from(plot.size.0), f64::from(plot.size.1));
    let legend = if series.len() > 1 { 20.0 } else { 0.0 };
    let frame = Frame {
        left: 58.0,
        top: 34.0 + legend,
        width: width - 58.0 - 18.0,
        height: height - 34.0 - legend - 44.0,
        x: Axis::of(points().map(|point| point.0), false),
        y: Axis::of(points().map(|point| point.1), plot.log_y).padded(),
    };
    let title = escaped(&plot.title);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tinker-plot\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\
         <style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"none\"/>\
         <text x=\"{:.1}\" y=\"20\" text-anchor=\"middle\" font-weight=\"600\">{title}</text>",
        frame.left + frame.width / 2.0,
    );
    grid(&mut svg, plot, &frame);
    if series.is_empty() {
        let (x, y) = (
            frame.left + frame.width / 2.0,
            frame.top + frame.height / 2.0,
        );
        push(
            &mut svg,
            format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">no data</text>"),
        );
    }
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        curve(&mut svg, series, colour, &frame);
    }
    if series.len() > 1 {
        names(&mut svg, &series, &frame);
    }
    svg + "</svg>"
}

fn grid(svg: &mut String, plot: &Plot, frame: &Frame) {
    let (left, right) = (frame.left, frame.left + frame.width);
    let (top, bottom) = (frame.top, frame.top + frame.height);
    for tick in frame.y.ticks((frame.height / 50.0) as usize) {
        let y = top + (1.0 - frame.y.place(tick)) * frame.height;
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                name(tick),
            ),
        );
    }
    for tick in frame.x.ticks((frame.width / 80.0) as usize) {
        let x = left + frame.x.place(tick) * frame.width;
        push(
            svg,
            format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                name(tick),
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

fn curve(svg: &mut String, series: &Series, colour: &str, frame: &Frame) {
    if series.smoothing > 0.0 {
        path(svg, "raw", &series.points, colour, frame);
    }
    path(svg, "curve", &series.smoothed(), colour, frame);
    if let [only] = series.points[..] {
        let (x, y) = frame.place(only);
        push(
            svg,
            format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"),
        );
    }
}

fn path(svg: &mut String, class: &str, points: &[(f64, f64)], colour: &str, frame: &Frame) {
    let mut line = String::new();
    for (index, point) in points.iter().enumerate() {
        let (x, y) = frame.place(*point);
        let stroke = if index == 0 { 'M' } else { 'L' };
        push(&mut line, format_args!("{stroke}{x:.1} {y:.1}"));
    }
    push(
        svg,
        format_args!("<path class=\"{class}\" stroke=\"{colour}\" d=\"{line}\"/>"),
    );
}

/// The names of the curves, in a row above them.
fn names(svg: &mut String, series: &[Series], frame: &Frame) {
    let (mut x, y) = (frame.left, frame.top - 10.0);
    for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        push(
            svg,
            format_args!(
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
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
        assert_eq!(svg.matches("class=\"curve\"").count(), 2);
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
