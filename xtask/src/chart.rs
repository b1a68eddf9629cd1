//! Charts as SVG: lines where there are many places on the axis, bars where there are one or two.
//!
//! `plotters` draws: scales, grid with minor lines, axes, tick labels, shapes, escaping. This module says what is
//! drawn: ranges and ticks, the look of each system ([`systems`]), names at the ends of lines.
//!
//! # Limits of plotters
//!
//! * *Colours by style sheet.* Its colours are constants, and a page has a light and a dark form. Each of our colours
//!   is given to it as a constant that means nothing, and becomes a variable of the style sheet afterwards, with the
//!   dashes of the papers' curves; plotters' own dashes are an element for each dash.
//! * *Names at line ends.* Its legend is a box over the plot. With up to sixteen curves the names at the ends, moved
//!   apart, are easier to follow.
//! * *Ticks that are read easily.* Its logarithmic axis has labels at powers of ten only, and its linear axis ends
//!   anywhere. An axis of ours ([`Placed`]) takes the place of both.
//! * *Values under the pointer* are transparent circles with titles.
//!
//! Vega-Lite and uPlot were the other candidates: both need their megabytes of JavaScript in each page, show nothing
//! where scripts are off, and could not draw the files for the documents.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::{figure, short};
use crate::systems::{self, COLOURS, Look, Marker};

/// A series of points, joined by lines or drawn as bars.
#[derive(Clone, Debug, Default)]
pub struct PlottedSeries {
    /// Name of the system, which has its look by it.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// Place, least and largest value of several runs, where there were several.
    pub ranges: Vec<(f64, f64, f64)>,
    /// Style of the line.
    pub style: Style,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// A line with a marker at each point: measured values.
    #[default]
    Measured,
    /// A dashed line: values to compare with.
    Reference,
}

/// The mapping from values to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In equal steps, and on the upright axis from zero.
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

/// The form of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each series.
    Lines,
    /// A group of bars for each place on the axis.
    Bars,
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title, also read to readers unable to see the chart.
    pub title: String,
    /// Lines or bars.
    pub form: Form,
    /// From left to right; with bars the groups.
    pub x: Axis,
    /// From bottom to top; with bars from left to right, always linear.
    pub y: Axis,
    /// The drawn lines.
    pub series: Vec<PlottedSeries>,
}

/// Width of every chart, in pixels where it is shown in full size.
const WIDTH: i32 = 480;
/// Least height of lines.
const HEIGHT: i32 = 300;
/// Room for the labels of the upright axis, for its name above it, and below for the labels and the name of the other.
const LEFT: i32 = 58;
const TOP: i32 = 26;
const BOTTOM: i32 = 40;
/// Height of texts and their size, and the most that one letter takes.
const LINE: i32 = 15;
const TEXT: f64 = 12.0;
const LETTER: f64 = 6.7;
/// Height of a bar with its distance to the next one.
const BAR: i32 = 17;

/// plotters writes this share of a font's size.
const FONT_SHARE: f64 = 1.24;

/// The colours of text, of lesser text, of grid lines and of lesser grid lines, as names of variables.
const INKS: [&str; 4] = ["text", "dim", "line", "faint"];
const INK: RGBColor = RGBColor(3, 0, 0);
const DIM: RGBColor = RGBColor(3, 0, 1);
const GRID: RGBColor = RGBColor(3, 0, 2);
const FAINT: RGBColor = RGBColor(3, 0, 3);

/// Values of the inks where no page gives them, light and dark, with the ground behind them.
const INK_VALUES: [&str; 2] = [
    "--text:#1b1f27;--dim:#5d6675;--line:#d5dae2;--faint:#edf0f4;--card:#ffffff;",
    "--text:#e7eaf0;--dim:#9aa4b4;--line:#39424f;--faint:#232a34;--card:#181c23;",
];

fn solid(look: Look) -> RGBColor {
    RGBColor(1, 0, look.colour.index as u8)
}

fn dashed(look: Look) -> RGBColor {
    RGBColor(2, 0, look.colour.index as u8)
}

/// Replaces the constants by variables, and leaves out attributes that change nothing.
fn coloured(svg: &str) -> String {
    let mut svg = svg.replace(" opacity=\"1\"", "").replace(" font-family=\"sans-serif\"", "");
    for index in 0..COLOURS.len() {
        svg = svg.replace(&format!("\"#0100{index:02X}\""), &format!("\"var(--c{index})\""));
        let dashed = format!("\"var(--c{index})\" stroke-dasharray=\"5 4\"");
        svg = svg.replace(&format!("\"#0200{index:02X}\""), &dashed);
    }
    for (index, name) in INKS.iter().enumerate() {
        svg = svg.replace(&format!("\"#0300{index:02X}\""), &format!("\"var(--{name})\""));
    }
    svg
}

/// The width of a text, or rather more.
fn width(text: &str) -> i32 {
    (text.chars().count() as f64 * LETTER).ceil() as i32
}

/// An axis with its range and its ticks fixed, as plotters uses it.
#[derive(Clone)]
struct Placed {
    scale: Scale,
    low: f64,
    high: f64,
    bold: Vec<(f64, String)>,
    light: Vec<f64>,
}

impl Placed {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>, length: i32) -> Placed {
        let usable = values.chain(axis.ticks.iter().map(|tick| tick.0));
        let usable = usable.filter(|value| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0));
        let (low, high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        if !axis.ticks.is_empty() {
            let high = if high > low { high } else { low + low.abs().max(1.0) };
            let mut placed = Placed { scale: axis.scale, low, high, bold: Vec::new(), light: Vec::new() };
            placed.bold = placed.readable(&axis.ticks, length);
            placed.light = axis.ticks.iter().map(|tick| tick.0).collect();
            return placed;
        }
        match axis.scale {
            Scale::Linear => {
                let high = if high > 0.0 { high } else { 1.0 };
                let step = step_at_least(high / 5.0);
                let steps = (high / step).ceil().max(1.0);
                let bold = (0..=steps as u32).map(|number| f64::from(number) * step);
                let bold = bold.map(|value| (value, tick(value))).collect();
                Placed { scale: axis.scale, low: 0.0, high: steps * step, bold, light: Vec::new() }
            }
            Scale::Logarithmic => {
                let (low, high) = (step_down(low), step_at_least(high));
                let high = if high > low { high } else { low * 10.0 };
                let decades = (high / low).log10();
                let factors: &[f64] = if decades <= 2.4 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let all = |factors: &[f64]| -> Vec<f64> {
                    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                    let places = (first..=last).flat_map(|decade| {
                        factors.iter().map(move |factor| factor * 10f64.powi(decade)).collect::<Vec<_>>()
                    });
                    places.filter(|value| *value >= low * 0.999 && *value <= high * 1.001).collect()
                };
                let bold = all(factors).into_iter().map(|value| (value, tick(value))).collect();
                let light =
                    if decades <= 6.5 { all(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]) } else { Vec::new() };
                Placed { scale: axis.scale, low, high, bold, light }
            }
        }
    }

    /// Rows of bars, from the top to the bottom.
    fn rows(rows: i32) -> Placed {
        Placed { scale: Scale::Linear, low: f64::from(rows), high: 0.0, bold: Vec::new(), light: Vec::new() }
    }

    /// The place of a value between 0 and 1.
    fn part(&self, value: f64) -> f64 {
        let part = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        part.clamp(0.0, 1.0)
    }

    /// Returns a value within the range: on a logarithmic axis zero is at its beginning.
    fn within(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high)
    }

    /// Returns as many ticks as can be read beside each other: the last one always, the others if there is room.
    fn readable(&self, ticks: &[(f64, String)], length: i32) -> Vec<(f64, String)> {
        let middle = |tick: &(f64, String)| (self.part(tick.0) * f64::from(length)) as i32;
        let Some((last, others)) = ticks.split_last() else { return Vec::new() };
        let mut kept: Vec<(f64, String)> = Vec::new();
        for tick in others {
            let clear = |other: &(f64, String)| {
                (middle(other) - middle(tick)).abs() >= (width(&other.1) + width(&tick.1)) / 2 + 6
            };
            if clear(last) && kept.last().is_none_or(clear) {
                kept.push(tick.clone());
            }
        }
        kept.push(last.clone());
        kept
    }

    /// Returns the label of a tick.
    fn label(&self, value: f64) -> String {
        let near = |tick: &&(f64, String)| (tick.0 - value).abs() <= value.abs() * 1e-9 + 1e-12;
        self.bold.iter().find(near).map(|tick| tick.1.clone()).unwrap_or_default()
    }

    fn bold(&self) -> Vec<f64> {
        self.bold.iter().map(|tick| tick.0).collect()
    }
}

impl Ranged for Placed {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + (self.part(*value) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.light.clone() } else { self.bold() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Placed {
    fn format(value: &f64) -> String {
        short(*value)
    }

    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

/// Formats the value of a tick, which has one digit that counts, or two.
fn tick(value: f64) -> String {
    if value.abs() >= 1.0 || value == 0.0 {
        return short(value);
    }
    let text = format!("{value:.9}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Returns the least of 1, 2, 5 times a power of ten that is not less.
fn step_at_least(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * decade)
        .into_iter()
        .find(|step| *step >= value * 0.9999)
        .unwrap_or(value)
}

/// Returns the largest of 1, 2, 5 times a power of ten that is not more.
fn step_down(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].map(|factor| factor * decade).into_iter().find(|step| *step <= value * 1.0001).unwrap_or(decade)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn style_of_text(colour: RGBColor, h_pos: HPos, v_pos: VPos) -> TextStyle<'static> {
    ("sans-serif", TEXT * FONT_SHARE).into_font().color(&colour).pos(Pos::new(h_pos, v_pos))
}

fn write_text(area: &Area<'_>, text: &str, place: (i32, i32), colour: RGBColor, h_pos: HPos) -> Drawn {
    area.draw(&Text::new(text.to_string(), place, style_of_text(colour, h_pos, VPos::Center)))
}

/// Draws the marker of a system.
fn mark(area: &Area<'_>, look: Look, (x, y): (i32, i32)) -> Drawn {
    let colour = solid(look);
    let polygon = |corners: &[(i32, i32)]| {
        let corners: Vec<_> = corners.iter().map(|(right, down)| (x + right, y + down)).collect();
        area.draw(&Polygon::new(corners, colour.filled()))
    };
    let strokes = |ends: [[(i32, i32); 2]; 2]| {
        ends.iter().try_for_each(|ends| {
            let ends: Vec<_> = ends.iter().map(|(right, down)| (x + right, y + down)).collect();
            area.draw(&PathElement::new(ends, colour.stroke_width(2)))
        })
    };
    match look.marker {
        Marker::Circle => area.draw(&Circle::new((x, y), 3, colour.filled())),
        Marker::Ring => area.draw(&Circle::new((x, y), 3, colour.stroke_width(2))),
        Marker::Square => polygon(&[(-3, -3), (3, -3), (3, 3), (-3, 3)]),
        Marker::Diamond => polygon(&[(0, -4), (4, 0), (0, 4), (-4, 0)]),
        Marker::Triangle => polygon(&[(0, -4), (4, 3), (-4, 3)]),
        Marker::TriangleDown => polygon(&[(0, 4), (4, -3), (-4, -3)]),
        Marker::Plus => strokes([[(-4, 0), (4, 0)], [(0, -4), (0, 4)]]),
        Marker::Cross => strokes([[(-3, -3), (3, 3)], [(-3, 3), (3, -3)]]),
    }
}

/// Moves positions apart, within a range, so that neighbours in order have the distance of a line of text.
fn apart(wanted: &[i32], low: i32, high: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|index| wanted[*index]);
    let mut places = wanted.to_vec();
    // Down from the top, then up from the bottom where the last ones have left the range.
    let mut free = low;
    for &index in &order {
        places[index] = wanted[index].max(free);
        free = places[index] + LINE;
    }
    let mut free = high;
    for &index in order.iter().rev() {
        places[index] = places[index].min(free);
        free = places[index] - LINE;
    }
    places
}

impl Chart {
    /// The look of each series.
    fn looks(&self) -> Vec<Look> {
        let mut unknown = 0;
        let looks = self.series.iter().map(|series| {
            systems::look(&series.name).unwrap_or_else(|| {
                unknown += 1;
                systems::spare(unknown - 1)
            })
        });
        looks.collect()
    }

    /// The chart as an `svg` element.
    ///
    /// # Panics
    ///
    /// Never: drawing into memory does not fail.
    pub fn svg(&self) -> String {
        let mut hits = String::new();
        let mut svg = String::new();
        let height = match self.form {
            Form::Lines => self.draw_lines(&mut svg, &mut hits),
            Form::Bars => self.draw_bars(&mut svg, &mut hits),
        }
        .expect("drawing into memory does not fail");
        let inside = svg.split_once('>').map_or("", |(_, rest)| rest).trim_end().trim_end_matches("</svg>");
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{}{hits}</svg>\n",
            escape(&self.title),
            coloured(inside)
        )
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        let ranges = self.series.iter().flat_map(|series| &series.ranges).flat_map(|range| [range.1, range.2]);
        self.series.iter().flat_map(|series| &series.points).map(|point| point.1).chain(ranges)
    }

    fn draw_lines(&self, svg: &mut String, hits: &mut String) -> Result<i32, DrawingAreaErrorKind<std::io::Error>> {
        let right = self.series.iter().map(|series| width(&series.name)).max().unwrap_or(0) + 34;
        let height = HEIGHT.max(TOP + BOTTOM + LINE * self.series.len() as i32);
        let places = self.series.iter().flat_map(|series| &series.points).map(|point| point.0);
        let x = Placed::new(&self.x, places, WIDTH - LEFT - right);
        let y = Placed::new(&self.y, self.values(), height - TOP - BOTTOM);
        let area = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
        let ends = self.curves(&area, hits, right, &x, &y)?;
        write_text(&area, &self.y.label, (4, TOP / 2 - 2), DIM, HPos::Left)?;
        let middle = LEFT + (WIDTH - LEFT - right) / 2;
        write_text(&area, &self.x.label, (middle, height - 9), DIM, HPos::Center)?;
        self.write_names(&area, &ends, WIDTH - right, height)?;
        area.present()?;
        drop(area);
        Ok(height)
    }

    /// Draws grid, axes, lines and markers, and returns the end of each line.
    fn curves(
        &self,
        area: &Area<'_>,
        hits: &mut String,
        right: i32,
        x: &Placed,
        y: &Placed,
    ) -> Result<Vec<Option<(i32, i32)>>, DrawingAreaErrorKind<std::io::Error>> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP)
            .margin_right(right)
            .margin_bottom(BOTTOM - 20)
            .x_label_area_size(20)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(FAINT)
            .axis_style(GRID)
            .label_style(style_of_text(DIM, HPos::Left, VPos::Top))
            .draw()?;
        let mut ends = Vec::new();
        for (series, look) in self.series.iter().zip(self.looks()) {
            let points: Vec<_> = series.points.iter().filter(|point| point.1.is_finite()).copied().collect();
            let inside = |point: &(f64, f64)| (x.within(point.0), y.within(point.1));
            let colour = if series.style == Style::Reference { dashed(look) } else { solid(look) };
            let placed: Vec<_> = points.iter().map(|point| chart.backend_coord(&inside(point))).collect();
            chart.draw_series(LineSeries::new(points.iter().map(inside), colour.stroke_width(2)))?;
            for &(place, low, high) in &series.ranges {
                let [low, high] = [low, high].map(|value| chart.backend_coord(&inside(&(place, value))));
                area.draw(&PathElement::new(vec![low, high], solid(look).stroke_width(1)))?;
            }
            for (&(right, down), point) in placed.iter().zip(&points) {
                // A single point of the papers has no line that shows it.
                if series.style == Style::Measured || placed.len() == 1 {
                    mark(area, look, (right, down))?;
                }
                let _ = writeln!(
                    hits,
                    "<circle class=\"hit\" cx=\"{right}\" cy=\"{down}\" r=\"6\" fill=\"transparent\"><title>{}: {} at {}</title></circle>",
                    escape(&series.name),
                    escape(&figure(point.1)),
                    escape(&self.place_name(point.0))
                );
            }
            ends.push(placed.last().copied());
        }
        Ok(ends)
    }

    /// Writes the names of the series beside the ends of their lines.
    fn write_names(&self, area: &Area<'_>, ends: &[Option<(i32, i32)>], left: i32, height: i32) -> Drawn {
        let wanted: Vec<i32> = ends.iter().map(|end| end.map_or(height, |end| end.1)).collect();
        let places = apart(&wanted, TOP, height - BOTTOM);
        for (((series, look), end), place) in self.series.iter().zip(self.looks()).zip(ends).zip(places) {
            if let Some(end) = end
                && ((end.1 - place).abs() > 2 || left - end.0 > 12)
            {
                area.draw(&PathElement::new(vec![(end.0 + 5, end.1), (left + 8, place)], GRID.stroke_width(1)))?;
            }
            if series.style == Style::Reference {
                let dash = vec![(left + 7, place), (left + 21, place)];
                area.draw(&PathElement::new(dash, dashed(look).stroke_width(2)))?;
            } else {
                mark(area, look, (left + 14, place))?;
            }
            write_text(area, &series.name, (left + 26, place), INK, HPos::Left)?;
        }
        Ok(())
    }

    fn place_name(&self, place: f64) -> String {
        let tick = self.x.ticks.iter().find(|tick| tick.0 == place);
        tick.map_or_else(|| figure(place), |tick| tick.1.clone())
    }

    /// The places on the axis, in order.
    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.series.iter().flat_map(|one| &one.points).map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    fn draw_bars(&self, svg: &mut String, hits: &mut String) -> Result<i32, DrawingAreaErrorKind<std::io::Error>> {
        let places = self.places();
        let bars_at = |place: f64| {
            self.series.iter().zip(self.looks()).filter_map(move |(series, look)| {
                let value = series.points.iter().find(|point| point.0 == place && point.1.is_finite())?.1;
                let range = series.ranges.iter().find(|range| range.0 == place);
                Some((series, look, value, range))
            })
        };
        let named = places.len() > 1 || !self.x.ticks.is_empty();
        let rows: i32 = places.iter().map(|place| bars_at(*place).count() as i32 + i32::from(named)).sum();
        let group = |place: f64| {
            let unit = if self.x.ticks.is_empty() { format!(" {}", self.x.label) } else { String::new() };
            format!("{}{unit}", self.place_name(place))
        };
        let groups = places.iter().filter(|_| named).map(|place| width(&group(*place)));
        let left = self.series.iter().map(|series| width(&series.name)).chain(groups).max().unwrap_or(0) + 12;
        let right = self.values().map(|value| width(&short(value))).max().unwrap_or(0) + 14;
        let height = TOP + BOTTOM + BAR * rows.max(1);
        let axis = Axis { scale: Scale::Linear, ..self.y.clone() };
        let mut y = Placed::new(&axis, self.values(), WIDTH - left - right);
        y.bold = y.readable(&y.bold, WIDTH - left - right);
        let area = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin_top(8)
            .margin_right(right)
            .margin_bottom(BOTTOM - 20)
            .x_label_area_size(20)
            .margin_left(left)
            .build_cartesian_2d(y.clone(), Placed::rows(rows.max(1)))?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(FAINT)
            .axis_style(GRID)
            .disable_y_axis()
            .label_style(style_of_text(DIM, HPos::Left, VPos::Top))
            .draw()?;
        let mut row = 0.0;
        for &place in &places {
            if named {
                let (_, down) = chart.backend_coord(&(0.0, row + 0.5));
                write_text(&area, &group(place), (left - 8, down), DIM, HPos::Right)?;
                row += 1.0;
            }
            for (series, look, value, range) in bars_at(place) {
                let corners = [(0.0, row + 0.14), (y.within(value), row + 0.86)];
                let style = match series.style {
                    Style::Measured => solid(look).filled(),
                    Style::Reference => dashed(look).stroke_width(1),
                };
                chart.draw_series([Rectangle::new(corners, style)])?;
                let (end, down) = chart.backend_coord(&(y.within(value), row + 0.5));
                let mut after = end;
                if let Some(&(_, low, high)) = range {
                    let [low, high] = [low, high].map(|value| chart.backend_coord(&(y.within(value), row + 0.5)));
                    area.draw(&PathElement::new(vec![low, high], INK.stroke_width(1)))?;
                    after = after.max(high.0);
                }
                write_text(&area, &series.name, (left - 8, down), INK, HPos::Right)?;
                write_text(&area, &short(value), (after + 6, down), INK, HPos::Left)?;
                let _ = writeln!(
                    hits,
                    "<rect class=\"hit\" x=\"{left}\" y=\"{}\" width=\"{}\" height=\"{BAR}\" fill=\"transparent\"><title>{}: {}</title></rect>",
                    down - BAR / 2,
                    (end - left).max(6),
                    escape(&series.name),
                    escape(&figure(value))
                );
                row += 1.0;
            }
        }
        write_text(&area, &self.y.label, (left + (WIDTH - left - right) / 2, height - 9), DIM, HPos::Center)?;
        area.present()?;
        drop(chart);
        drop(area);
        Ok(height)
    }

    /// The chart as a file of its own: with its title, and its colours for light and dark.
    pub fn standalone(&self) -> String {
        // Titles of points are for the pointer on the page.
        let inside: String = self.svg().split_inclusive('\n').filter(|line| !line.contains("class=\"hit\"")).collect();
        let used = |variables: String| {
            let used =
                variables.split_inclusive(';').filter(|one| inside.contains(one.split(':').next().unwrap_or(one)));
            used.collect::<String>()
        };
        let height: i32 = inside
            .split_once(&format!("viewBox=\"0 0 {WIDTH} "))
            .and_then(|(_, rest)| rest.split_once('"')?.0.parse().ok())
            .unwrap_or(HEIGHT);
        let title = lines_of(&self.title, (f64::from(WIDTH - 16) / (LETTER * 1.1)) as usize);
        let head = 18 * title.len() as i32 + 8;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {0}\" width=\"{WIDTH}\" height=\"{0}\" font-family=\"sans-serif\">\n\
             <style>:root{{{1}{2}}}@media (prefers-color-scheme:dark){{:root{{{3}{4}}}}}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{0}\" fill=\"var(--card)\"/>\n",
            height + head,
            INK_VALUES[0],
            used(systems::variables(false)),
            INK_VALUES[1],
            used(systems::variables(true)),
        );
        for (number, line) in title.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<text x=\"8\" y=\"{}\" font-size=\"13\" font-weight=\"600\" fill=\"var(--text)\">{}</text>",
                18 * (number + 1),
                escape(line)
            );
        }
        let place = format!("<svg y=\"{head}\" width=\"{WIDTH}\" height=\"{height}\" ");
        svg + &inside.replacen("<svg ", &place, 1) + "</svg>\n"
    }

    /// The values as a table of comma-separated values: a row for each place, a column for each series, and two more
    /// for the least and the largest of several runs where there were several.
    pub fn csv(&self) -> String {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut rows: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        let places = self.places();
        let mut head = vec![quoted(&self.x.label)];
        for (number, place) in places.iter().enumerate() {
            let tick = self.x.ticks.iter().find(|tick| tick.0 == *place && tick.1.parse::<f64>().is_err());
            let name = tick.map_or_else(|| place.to_string(), |tick| quoted(&tick.1));
            rows.insert(number, vec![name]);
        }
        let cell = |value: Option<f64>| value.filter(|value| value.is_finite()).map(|value| value.to_string());
        for series in &self.series {
            head.push(quoted(&format!("{} ({})", series.name, self.y.label)));
            if !series.ranges.is_empty() {
                head.extend([quoted(&format!("{} least", series.name)), quoted(&format!("{} largest", series.name))]);
            }
            for (number, place) in places.iter().enumerate() {
                let Some(row) = rows.get_mut(&number) else { continue };
                let value = series.points.iter().find(|point| point.0 == *place).map(|point| point.1);
                row.push(cell(value).unwrap_or_default());
                if !series.ranges.is_empty() {
                    let range = series.ranges.iter().find(|range| range.0 == *place);
                    row.extend(
                        [range.map(|range| range.1), range.map(|range| range.2)].map(|v| cell(v).unwrap_or_default()),
                    );
                }
            }
        }
        let mut text = head.join(",") + "\n";
        for row in rows.values() {
            text += &(row.join(",") + "\n");
        }
        text
    }
}

/// Breaks a text into lines of at most so many letters, between words.
fn lines_of(text: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
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

    fn chart(points: Vec<(f64, f64)>, y: Scale, form: Form) -> Chart {
        Chart {
            title: "a \"title\"".into(),
            form,
            x: axis(Scale::Logarithmic, &[1.0, 16.0, 256.0]),
            y: axis(y, &[]),
            series: vec![
                PlottedSeries { name: "COPS kcuc".into(), points, ..PlottedSeries::default() },
                PlottedSeries {
                    name: "paper: kcuc".into(),
                    points: vec![(1.0, 1.0), (256.0, 100.0)],
                    style: Style::Reference,
                    ranges: vec![(1.0, 0.5, 2.0)],
                },
            ],
        }
    }

    #[test]
    fn ranges_end_at_ticks() {
        let placed = Placed::new(&axis(Scale::Linear, &[]), [3.0, 98.0].into_iter(), 300);
        assert_eq!((placed.low, placed.high), (0.0, 100.0));
        assert_eq!(
            placed.bold.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>(),
            ["0", "20", "40", "60", "80", "100"]
        );
        let placed = Placed::new(&axis(Scale::Logarithmic, &[]), [130.0, 850.0].into_iter(), 300);
        assert_eq!((placed.low, placed.high), (100.0, 1000.0));
        assert_eq!(placed.bold(), [100.0, 200.0, 500.0, 1000.0]);
        assert!(
            placed.light.contains(&300.0) && placed.light.contains(&900.0),
            "minor lines between: {:?}",
            placed.light
        );
        let placed = Placed::new(&axis(Scale::Logarithmic, &[]), [0.0, 2.0, 90_000.0].into_iter(), 300);
        assert_eq!((placed.part(0.0), placed.part(1e9)), (0.0, 1.0));
        assert_eq!(placed.within(0.0), placed.low);
        assert_eq!([0.0001, 0.5, 20_000.0, 0.0].map(tick), ["0.0001", "0.5", "20,000", "0"]);
        assert_eq!((step_down(7.0), step_down(5.0), step_at_least(5.1)), (5.0, 5.0, 10.0));
    }

    #[test]
    fn tick_labels_never_touch() {
        let powers: Vec<f64> = (0..=10).map(|power| f64::from(1 << power)).collect();
        let placed = Placed::new(&axis(Scale::Logarithmic, &powers), powers.iter().copied(), 200);
        let middles: Vec<_> = placed.bold.iter().map(|tick| (placed.part(tick.0) * 200.0, width(&tick.1))).collect();
        assert_eq!(placed.bold.last().map(|tick| tick.1.as_str()), Some("1,024"));
        assert!(placed.bold.len() >= 4);
        assert!(
            middles.windows(2).all(|two| two[1].0 - two[0].0 >= f64::from(two[0].1 + two[1].1) / 2.0),
            "{middles:?}"
        );
    }

    #[test]
    fn names_at_line_ends_are_moved_apart() {
        let places = apart(&[100, 101, 100, 10], 0, 110);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|two| two[1] - two[0] >= LINE), "{places:?}");
        assert!(sorted.iter().all(|place| *place <= 110) && places[3] == 10, "{places:?}");
        assert!(places[0] < places[1], "in their order: {places:?}");
    }

    #[test]
    fn charts_have_their_points_and_escape_their_text() {
        let lines = chart(vec![(1.0, 10.0), (16.0, 20.0), (256.0, 99.0)], Scale::Linear, Form::Lines).svg();
        assert_eq!(lines.matches("class=\"hit\"").count(), 5);
        assert!(lines.contains("a &quot;title&quot;") && lines.contains("values &lt;of&gt; something"), "{lines}");
        let bars = chart(vec![(1.0, 10.0), (256.0, 99.0)], Scale::Logarithmic, Form::Bars).svg();
        assert_eq!(bars.matches("class=\"hit\"").count(), 4);
        for svg in [lines, bars] {
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            assert_eq!((svg.matches("<svg").count(), svg.matches("</svg>").count()), (1, 1));
        }
    }

    #[test]
    fn colours_are_variables_and_the_papers_are_dashed_in_the_systems_own() {
        for form in [Form::Lines, Form::Bars] {
            let svg = chart(vec![(1.0, 10.0), (256.0, 20.0)], Scale::Linear, form).svg();
            assert!(!svg.contains("\"#"), "every colour is a variable: {svg}");
            assert!(svg.contains("stroke=\"var(--c0)\" stroke-dasharray"), "{svg}");
            assert!(!svg.contains("--c1)") && !svg.contains("--c2)"), "one system has one colour: {svg}");
        }
    }

    #[test]
    fn files_have_their_colours_and_tables_their_values() {
        let chart = chart(vec![(1.0, 10.0)], Scale::Linear, Form::Lines);
        let file = chart.standalone();
        assert!(
            file.starts_with("<svg xmlns=") && file.contains("--c0:#0072b2") && file.contains("prefers-color-scheme")
        );
        assert_eq!(file.matches("<svg").count(), file.matches("</svg>").count());
        let csv = chart.csv();
        let rows: Vec<_> = csv.lines().collect();
        assert!(rows[0].starts_with("\"values <of> something\",\"COPS kcuc (values"), "{csv}");
        assert_eq!(rows[1..], ["1,10,1,0.5,2", "256,,100,,"]);
    }

    #[test]
    fn empty_zero_and_broken_values_still_make_a_chart() {
        for form in [Form::Lines, Form::Bars] {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, f64::NAN), (2.0, f64::INFINITY)], vec![(4.0, 4.0)]]
                {
                    let mut chart = chart(points, scale, form);
                    chart.series.truncate(1);
                    let svg = chart.svg();
                    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                }
            }
        }
    }
}
