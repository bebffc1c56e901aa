//! Curves, drawn as SVG and as text.
//!
//! One module draws for everyone: the training toolkit, the command line and the server's
//! console. An SVG follows the reader's light or dark scheme and needs nothing from elsewhere.
//!
//! ```
//! use tinker::plot::{Plot, Series};
//!
//! let loss = Series::new("loss", (0..50).map(|x| (x as f64, 4.0 / (1.0 + x as f64))));
//! let plot = Plot::new("Training").with_x_label("step").with_series(loss.with_smoothing(0.6));
//! assert!(plot.to_svg().starts_with("<svg"));
//! assert_eq!(plot.to_text(60, 10).lines().count(), 13);
//! ```

mod axis;
mod svg;
mod text;

pub use svg::sparkline_svg;
pub use text::sparkline;

/// A curve with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    smoothing: f64,
}

impl Series {
    /// A curve through these points. Points that are not finite are left out.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
        Self {
            name: name.into(),
            points: points.into_iter().filter(finite).collect(),
            smoothing: 0.0,
        }
    }

    /// Draws the curve smoothed, and the points as they are faintly behind it: each value is an
    /// average in which the one before counts this much, from 0 up to but not including 1.
    /// Default: 0, not smoothed.
    #[must_use]
    pub fn with_smoothing(mut self, factor: f64) -> Self {
        self.smoothing = match factor > 0.0 {
            true => factor.min(0.999),
            false => 0.0,
        };
        self
    }

    /// The smoothed points. The average is corrected for starting from nothing.
    fn smoothed(&self) -> Vec<(f64, f64)> {
        let (mut sum, mut weight) = (0.0, 0.0);
        let smooth = |&(x, y): &(f64, f64)| {
            sum = sum * self.smoothing + y * (1.0 - self.smoothing);
            weight = weight * self.smoothing + (1.0 - self.smoothing);
            (x, sum / weight)
        };
        self.points.iter().map(smooth).collect()
    }
}

/// Curves over a common pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    title: String,
    x_label: String,
    y_label: String,
    log_y: bool,
    x_range: Option<(f64, f64)>,
    size: (u32, u32),
    series: Vec<Series>,
}

impl Plot {
    /// A plot without curves.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            x_label: String::new(),
            y_label: String::new(),
            log_y: false,
            x_range: None,
            size: (640, 360),
            series: Vec::new(),
        }
    }

    /// Adds a curve. Curves without any point do not show.
    #[must_use]
    pub fn with_series(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Names the horizontal axis. Default: no name.
    #[must_use]
    pub fn with_x_label(mut self, label: impl Into<String>) -> Self {
        self.x_label = label.into();
        self
    }

    /// Names the vertical axis. Default: no name.
    #[must_use]
    pub fn with_y_label(mut self, label: impl Into<String>) -> Self {
        self.y_label = label.into();
        self
    }

    /// Makes the vertical axis logarithmic; points at or below zero are left out. Default:
    /// linear.
    #[must_use]
    pub fn with_log_y(mut self) -> Self {
        self.log_y = true;
        self
    }

    /// Draws only what lies between these values of the horizontal axis. Default: everything.
    #[must_use]
    pub fn with_x_range(mut self, from: f64, to: f64) -> Self {
        self.x_range = Some((from.min(to), from.max(to)));
        self
    }

    /// Sets the size of the SVG, in pixels, from 160 by 120 to 10,000 each. Default: 640 by 360.
    #[must_use]
    pub fn with_size(mut self, width: u32, height: u32) -> Self {
        self.size = (width.clamp(160, 10_000), height.clamp(120, 10_000));
        self
    }

    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.drawn().next().is_none()
    }

    /// The plot as an SVG document.
    pub fn to_svg(&self) -> String {
        svg::draw(self, svg::Manner::Document)
    }

    /// The plot as an SVG element for a page that has a heading and a style of its own: no title,
    /// no style sheet (a strict content-security policy refuses one), and what a script needs to
    /// find values under the pointer. `data-frame` holds left, top, width and height of the
    /// rectangle the curves are drawn in; `data-x` and `data-y` what lies at its ends, the latter
    /// as powers of ten where `data-log` is there.
    ///
    /// ```
    /// use tinker::plot::{Plot, Series};
    ///
    /// let line = Series::new("loss", [(0.0, 1.0), (4.0, 3.0)]);
    /// let svg = Plot::new("Loss").with_series(line).to_inline_svg();
    /// assert!(!svg.contains("<style") && svg.contains("data-x=\"0 4\""), "{svg}");
    /// ```
    pub fn to_inline_svg(&self) -> String {
        svg::draw(self, svg::Manner::Inline)
    }

    /// The plot as lines of text: the title, `height` rows, from 2 to 1,000, an axis and its
    /// numbers, each at most `width` characters wide, from 20 to 1,000.
    pub fn to_text(&self, width: usize, height: usize) -> String {
        text::draw(self, width.clamp(20, 1_000), height.clamp(2, 1_000))
    }

    /// The curves that have points to draw.
    fn drawn(&self) -> impl Iterator<Item = Series> + '_ {
        let (from, to) = self.x_range.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        let keep = move |point: &(f64, f64)| {
            (from..=to).contains(&point.0) && (!self.log_y || point.1 > 0.0)
        };
        let kept = self.series.iter().cloned().map(move |mut series| {
            series.points.retain(keep);
            series
        });
        kept.filter(|series| !series.points.is_empty())
    }
}
