//! Line charts as SVG, for reports in one file.
//!
//! Both axes can be logarithmic, since connections double from one row to the next and latencies span decades. Colours
//! are the page's: series `N` has the class `sN`, which the page's style sheet fills in for light and dark.

use std::fmt::Write;

use crate::figures::{figure, short};

/// A series of points, joined by lines.
#[derive(Clone, Debug)]
pub struct PlottedSeries {
    /// Name in the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Style of the line.
    pub style: Style,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line with a dot at each point: measured values.
    Measured,
    /// A dashed line: values to compare with.
    Reference,
}

/// The mapping from values to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero, in equal steps.
    Linear,
    /// Each step is a factor.
    Logarithmic,
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Quantity of the axis, with the unit.
    pub label: String,
    /// Mapping from values to positions.
    pub scale: Scale,
    /// Positions and labels of the ticks; empty means that the chart chooses.
    pub ticks: Vec<(f64, String)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title, also read to readers unable to see the chart.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// The drawn lines.
    pub series: Vec<PlottedSeries>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;

/// Distinct colours that the style sheet defines.
pub const COLOURS: usize = 12;

/// Values of these colours where there is no style sheet, and the rest of the style.
const PALETTE: [&str; COLOURS] = [
    "#1f6feb", "#b25e09", "#8250df", "#c3314b", "#11777c", "#57606a", "#1a7f37", "#9a6700", "#bf3989", "#0550ae",
    "#6e4a1f", "#3d4a8a",
];
const STYLE: &str = ".grid{stroke:#e1e5eb}.tick{fill:#5d6675;font-size:12px}.label{fill:#5d6675;font-size:13px}.line{fill:none;stroke-width:2}.reference{stroke-dasharray:5 4;stroke-width:1.5}";

/// An axis with its range fixed.
struct Placed<'a> {
    axis: &'a Axis,
    low: f64,
    high: f64,
    start: f64,
    length: f64,
}

impl Placed<'_> {
    fn new(axis: &Axis, values: impl Iterator<Item = f64> + Clone, start: f64, length: f64) -> Placed<'_> {
        let usable = values.chain(axis.ticks.iter().map(|tick| tick.0));
        let usable = usable.filter(|value| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0));
        let (low, high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = match axis.scale {
            _ if low > high => (1.0, 10.0),
            Scale::Linear if high <= 0.0 => (0.0, 1.0),
            Scale::Linear => (0.0, if axis.ticks.is_empty() { high * 1.05 } else { high }),
            Scale::Logarithmic if axis.ticks.is_empty() => {
                let (low, high) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
                (low, if high > low { high } else { low * 10.0 })
            }
            Scale::Logarithmic => (low, if high > low { high } else { low * 10.0 }),
        };
        Placed { axis, low, high, start, length }
    }

    /// The position of a value, within the axis.
    fn position(&self, value: f64) -> f64 {
        let part = match self.axis.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.start + part.clamp(0.0, 1.0) * self.length
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if !self.axis.ticks.is_empty() {
            return self.axis.ticks.clone();
        }
        let values: Vec<f64> = match self.axis.scale {
            Scale::Logarithmic => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|decade| self.low * 10f64.powi(decade)).collect()
            }
            Scale::Linear => {
                let rough = self.high / 5.0;
                let decade = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade).into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(rough);
                (0..).map(|number| f64::from(number) * step).take_while(|tick| *tick <= self.high * 1.0001).collect()
            }
        };
        values.into_iter().map(|value| (value, short(value))).collect()
    }
}

impl Chart {
    /// The chart as an `svg` element.
    pub fn svg(&self) -> String {
        let points = self.series.iter().flat_map(|series| &series.points);
        let x = Placed::new(&self.x, points.clone().map(|point| point.0), LEFT, WIDTH - LEFT - RIGHT);
        let y = Placed::new(&self.y, points.map(|point| point.1), HEIGHT - BOTTOM, -(HEIGHT - TOP - BOTTOM));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>\n",
            title = escape(&self.title)
        );
        let (left, right, bottom) = (LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (tick, text) in y.ticks() {
            let position = y.position(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{position:.1}\" y2=\"{position:.1}\"/>"
            );
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                position + 4.0,
                escape(&text)
            );
        }
        for (tick, text) in x.ticks() {
            let position = x.position(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{position:.1}\" x2=\"{position:.1}\" y1=\"{bottom}\" y2=\"{:.1}\"/>",
                bottom + 5.0
            );
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{position:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                escape(&text)
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (left + right) / 2.0,
            HEIGHT - 10.0,
            escape(&self.x.label)
        );
        let middle = (TOP + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"16\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle:.1})\">{}</text>",
            escape(&self.y.label)
        );
        for (number, series) in self.series.iter().enumerate() {
            self.draw(&mut svg, number % COLOURS, series, &x, &y);
        }
        svg + "</svg>\n"
    }

    fn draw(&self, svg: &mut String, colour: usize, series: &PlottedSeries, x: &Placed<'_>, y: &Placed<'_>) {
        let placed: Vec<_> = series.points.iter().filter(|point| point.1.is_finite()).collect();
        let path: Vec<_> =
            placed.iter().map(|point| format!("{:.1},{:.1}", x.position(point.0), y.position(point.1))).collect();
        let dashed = if series.style == Style::Reference { " reference" } else { "" };
        let _ = writeln!(svg, "<polyline class=\"line s{colour}{dashed}\" points=\"{}\"/>", path.join(" "));
        // A line needs two points; a single one is seen only as a dot.
        if series.style == Style::Measured || placed.len() == 1 {
            for point in placed {
                let _ = writeln!(
                    svg,
                    "<circle class=\"dot s{colour}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {} at {}</title></circle>",
                    x.position(point.0),
                    y.position(point.1),
                    escape(&series.name),
                    figure(point.1),
                    figure(point.0)
                );
            }
        }
    }

    /// The chart as a file of its own: with its styles, its title and its legend.
    pub fn standalone(&self) -> String {
        let (row, text) = (20.0, 12.0);
        let height = HEIGHT + row * (self.series.len() + 2) as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n<style>{STYLE}"
        );
        for (number, colour) in PALETTE.iter().enumerate() {
            let _ = write!(svg, ".line.s{number}{{stroke:{colour}}}.dot.s{number}{{fill:{colour}}}");
        }
        let _ = write!(svg, "</style>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n");
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{LEFT}\" y=\"{text}\">{}</text>\n<svg y=\"{row}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">{}</svg>",
            escape(&self.title),
            self.svg()
        );
        for (number, series) in self.series.iter().enumerate() {
            let y = HEIGHT + row * (number as f64 + 1.5);
            let dashed = if series.style == Style::Reference { " reference" } else { "" };
            let _ = writeln!(
                svg,
                "<line class=\"line s{}{dashed}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/><text class=\"tick\" x=\"{}\" y=\"{}\">{}</text>",
                number % COLOURS,
                LEFT + 24.0,
                LEFT + 32.0,
                y + text / 3.0,
                escape(&series.name)
            );
        }
        svg + "</svg>\n"
    }

    /// The names of the series with their colours, as HTML.
    pub fn legend(&self) -> String {
        let entries = self.series.iter().enumerate().map(|(number, series)| {
            let dashed = if series.style == Style::Reference { " reference" } else { "" };
            format!(
                "<span class=\"key\"><svg viewBox=\"0 0 24 8\" aria-hidden=\"true\"><line class=\"line s{}{dashed}\" x1=\"0\" x2=\"24\" y1=\"4\" y2=\"4\"/></svg>{}</span>",
                number % COLOURS,
                escape(&series.name)
            )
        });
        format!("<p class=\"legend\">{}</p>\n", entries.collect::<Vec<_>>().join(" "))
    }
}

/// Text escaped for HTML and SVG, in attributes as well.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, ticks: &[f64]) -> Axis {
        Axis {
            label: "values <of> something".into(),
            scale,
            ticks: ticks.iter().map(|tick| (*tick, figure(*tick))).collect(),
        }
    }

    fn chart(points: Vec<(f64, f64)>, y: Scale) -> Chart {
        Chart {
            title: "a \"title\"".into(),
            x: axis(Scale::Logarithmic, &[1.0, 16.0, 256.0]),
            y: axis(y, &[]),
            series: vec![
                PlottedSeries { name: "one".into(), points, style: Style::Measured },
                PlottedSeries { name: "two".into(), points: vec![(1.0, 1.0), (256.0, 100.0)], style: Style::Reference },
            ],
        }
    }

    #[test]
    fn positions_follow_the_scale() {
        let linear = axis(Scale::Linear, &[]);
        let placed = Placed::new(&linear, [0.0, 100.0].into_iter(), 0.0, 105.0);
        assert_eq!((placed.position(0.0), placed.position(50.0).round()), (0.0, 50.0));
        let ticks = |placed: &Placed<'_>| placed.ticks().into_iter().map(|tick| tick.1).collect::<Vec<_>>();
        assert_eq!(ticks(&placed), ["0", "50", "100"]);
        let logarithmic = axis(Scale::Logarithmic, &[]);
        let placed = Placed::new(&logarithmic, [2.0, 900.0].into_iter(), 10.0, -9.0);
        assert_eq!((placed.low, placed.high), (1.0, 1000.0));
        assert!((placed.position(10.0) - 7.0).abs() < 1e-9 && placed.position(0.0) == 10.0);
        assert_eq!(ticks(&placed), ["1", "10", "100", "1,000"]);
    }

    #[test]
    fn charts_have_their_points_and_escape_their_text() {
        let svg = chart(vec![(1.0, 10.0), (16.0, 20.0), (256.0, 99.0)], Scale::Linear).svg();
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &quot;title&quot;") && svg.contains("values &lt;of&gt; something"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn empty_zero_and_broken_values_still_make_a_chart() {
        for scale in [Scale::Linear, Scale::Logarithmic] {
            for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, f64::NAN), (2.0, f64::INFINITY)], vec![(4.0, 4.0)]] {
                let mut chart = chart(points, scale);
                chart.series.truncate(1);
                let svg = chart.svg();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
