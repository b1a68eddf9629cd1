//! From results to charts: systems that are compared stand in one chart.
//!
//! An experiment names the plot of each of its series. Older benchmarks and those that run in the machine do not: they
//! put operation, system and kind into the name of the series, and each would have a chart of its own, beside which
//! its rivals are looked for in vain. This module takes such names apart, makes charts of figures that are compared one
//! by one, and chooses form, scale and unit, so that no axis says "10 M us".

use crate::bench::{Results, Series};
use crate::chart::{Axis, Chart, Form, PlottedSeries, Scale, Style};
use crate::figures::figure;
use crate::microkernel;
use crate::systems::{self, PAPER};

/// Largest number of places that are bars.
const MOST_GROUPS: usize = 2;
/// An axis is logarithmic if the largest value is so many times the least.
const LOGARITHMIC_FROM: f64 = 4.0;

/// A series with its plot and the name of its system.
struct Member {
    plot: String,
    name: String,
    unit: String,
    x_unit: String,
    points: Vec<(f64, f64)>,
    ranges: Vec<(f64, f64, f64)>,
    cited: bool,
}

impl Member {
    fn of(bench: &str, series: &Series) -> Member {
        let (plot, name) = place_of(bench, series);
        Member {
            plot,
            name,
            unit: series.unit.replace("system calls", "entries"),
            x_unit: series.x_unit.clone(),
            points: series.points.clone(),
            ranges: series.ranges.clone(),
            cited: series.cited,
        }
    }
}

/// Returns the plot of a series, and the name of its system.
fn place_of(bench: &str, series: &Series) -> (String, String) {
    let id = series.id.as_str();
    let own = || (series.plot.clone().unwrap_or_else(|| id.to_string()), id.to_string());
    let found = match bench {
        "async-calls" => id.split_once('-').map(|(call, way)| {
            let what = if id.ends_with("-entries") { "kernel entries" } else { "instructions" };
            (series.plot.clone().unwrap_or_else(|| format!("{call}: {what}")), way.trim_end_matches("-entries").into())
        }),
        "peers" => series.plot.clone().map(|plot| (plot, format!("Linux {id}"))),
        "switch" => Some(("costs by the number of coroutines".into(), id.into())),
        "scheduler" => id.split_once('-').map(|(operation, rest)| match (rest, rest.strip_prefix("instructions-")) {
            ("ratio", _) => ("instructions beside the best of the others, by workers".into(), operation.into()),
            (_, Some(system)) => (format!("{operation} by workers: instructions"), system.into()),
            (system, None) => (format!("{operation} by workers: time"), system.into()),
        }),
        "micro-async" => micro_async(id),
        "micro-ipc" => ["instructions", "uintc", "one-hart", "two-harts"].iter().find_map(|place| {
            let way = id.strip_prefix(place)?.strip_prefix('-')?;
            // On the machine with UINTC instructions are counted, too.
            let counts = matches!(*place, "instructions" | "uintc");
            let place = if counts { "instructions" } else { &format!("time, {}", place.replace('-', " ")) };
            Some((format!("a call, by calls in flight: {place}"), way.replace('-', " ")))
        }),
        _ => None,
    };
    found.unwrap_or_else(own)
}

/// Returns plot and name of a series of `micro-async`: `WAY-PLACE`, `WAY-entries-PLACE`, or the papers'.
fn micro_async(id: &str) -> Option<(String, String)> {
    if let Some(place) = id.strip_prefix("paper-speed-") {
        return Some((speed_plot(place), format!("{PAPER}asynchronous")));
    }
    if let Some(place) = id.strip_prefix("paper-entries-") {
        return Some((entries_plot(place), format!("{PAPER}asynchronous")));
    }
    let (way, place) = id.split_once('-')?;
    Some(match place.strip_prefix("entries-") {
        Some(place) => (entries_plot(place), way.into()),
        None if place == "instructions" => ("an invocation, by frames: instructions".into(), way.into()),
        None => (format!("an invocation, by frames: time, {}", place.replace('-', " ")), way.into()),
    })
}

fn speed_plot(place: &str) -> String {
    format!("times as fast as synchronous invocations, {}", place.replace('-', " "))
}

fn entries_plot(place: &str) -> String {
    format!(
        "kernel entries of an invocation, {}",
        place.replace("instructions", "1 hart that counts").replace('-', " ")
    )
}

/// Series that follow from others and from figures.
fn derived(results: &Results) -> Vec<Member> {
    let member = |plot: String, name: &str, unit: &str, x_unit: &str, points: Vec<(f64, f64)>, cited: bool| Member {
        plot,
        name: name.into(),
        unit: unit.into(),
        x_unit: x_unit.into(),
        points,
        ranges: Vec::new(),
        cited,
    };
    let series = |id: &str| results.series.iter().find(|series| series.id == id);
    let value = |id: &str| results.figures.iter().find(|figure| figure.id == id).map(|figure| figure.value);
    let mut more = Vec::new();
    match results.bench.as_str() {
        "micro-async" => {
            for place in ["1-hart", "4-harts"] {
                let Some(base) = series(&format!("synchronous-{place}")) else { continue };
                for way in ["asynchronous", "adaptive"] {
                    let Some(one) = series(&format!("{way}-{place}")) else { continue };
                    let both = base.points.iter().zip(&one.points).filter(|(base, one)| base.0 == one.0);
                    let points = both.map(|(base, one)| (base.0, base.1 / one.1)).collect();
                    more.push(member(speed_plot(place), way, "times", "frames", points, false));
                }
            }
        }
        "micro-ipc" => {
            for place in ["instructions", "one-hart", "two-harts"] {
                let Some(beside) = series(&format!("{place}-asynchronous")) else { continue };
                let (plot, _) = place_of("micro-ipc", beside);
                for (id, name) in
                    [("synchronous-short", "synchronous, short"), ("synchronous-long", "synchronous, long")]
                {
                    let Some(value) = value(&format!("{place}-{id}")) else { continue };
                    let points = beside.points.iter().map(|point| (point.0, value)).collect();
                    more.push(member(plot.clone(), name, &beside.unit, &beside.x_unit, points, true));
                }
            }
        }
        "matrix-models" => {
            let paused = |series: &&Series| {
                series
                    .plot
                    .as_deref()
                    .is_some_and(|plot| plot.starts_with("throughput") && plot.contains("pauses of 100 ms"))
            };
            let mut plots: Vec<(String, Vec<f64>)> = Vec::new();
            for one in results.series.iter().filter(paused).filter(|series| !series.cited) {
                let plot = one.plot.clone().unwrap_or_default();
                if !plots.iter().any(|(other, _)| *other == plot) {
                    plots.push((plot, one.points.iter().map(|point| point.0).collect()));
                }
            }
            for (plot, places) in plots {
                let points = places.into_iter().map(|connections| (connections, connections * 10.0)).collect();
                more.push(member(plot, "asked for", "messages/s", "connections", points, true));
            }
        }
        _ => {}
    }
    more
}

/// A chart of figures: title, unit, names of the groups, and for each system its name, whether it is cited, and the
/// figure of each group.
type Groups = (String, String, Vec<String>, Vec<(String, bool, Vec<Option<f64>>)>);

/// Charts of figures that are compared one by one.
fn groups(results: &Results) -> Vec<Groups> {
    let value = |id: String| results.figures.iter().find(|figure| figure.id == id).map(|figure| figure.value);
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    match results.bench.as_str() {
        "scheduler" => {
            let operations = ["yield", "yield-by-waker", "wake", "spawn", "join"];
            let systems = ["cops", "embassy", "tokio-current-thread", "tokio-multi-thread", "async-executor"];
            let rows = systems.map(|system| {
                (system.to_string(), false, operations.map(|one| value(format!("{one}-{system}"))).to_vec())
            });
            vec![(
                "one worker: instructions of each operation".into(),
                "instructions".into(),
                owned(&operations),
                rows.into(),
            )]
        }
        "memory" => {
            let of = |what: &str| {
                let model = |model: &&str| (format!("COPS {model}"), false, vec![value(format!("{what}_{model}"))]);
                crate::experiments::MODELS.iter().map(model).collect::<Vec<_>>()
            };
            let mut connections = of("connections");
            connections.push((format!("{PAPER}coroutines"), true, vec![Some(PAPER_CONNECTIONS.0)]));
            connections.push((format!("{PAPER}threads"), true, vec![Some(PAPER_CONNECTIONS.1)]));
            vec![
                ("the kernel's heap for an idle connection".into(), "bytes".into(), Vec::new(), of("heap")),
                ("other memory of an idle connection".into(), "bytes".into(), Vec::new(), of("pages")),
                ("connections in the papers' memory".into(), "connections".into(), Vec::new(), connections),
            ]
        }
        "peers" => ["", "_wall"]
            .iter()
            .map(|way| {
                let costs = [
                    "null",
                    "pipe-1",
                    "pipe-4096",
                    "clock",
                    "switch-yield",
                    "switch-futex",
                    "wake-pipe",
                    "wake-eventfd",
                ];
                let ours = ["null", "pipe"].map(|cost| value(format!("cops_{cost}{way}"))).to_vec();
                let theirs = costs.map(|cost| value(format!("linux_{cost}{way}"))).to_vec();
                let names = [
                    "empty call",
                    "pipe, 1 byte",
                    "pipe, 4,096 bytes",
                    "clock",
                    "yield",
                    "futex",
                    "wake, pipe",
                    "wake, eventfd",
                ];
                let (what, unit) = if way.is_empty() { ("instructions", "instructions") } else { ("wall", "ns") };
                let rows = vec![("COPS".to_string(), false, ours), ("Linux".to_string(), false, theirs)];
                (format!("basic operations ({what})"), unit.to_string(), owned(&names), rows)
            })
            .collect(),
        "micro" => {
            let compared: Vec<_> = microkernel::SEL4.iter().filter(|(id, ..)| !id.contains("64-pages")).collect();
            let names = compared.iter().map(|(id, ..)| id.to_string()).collect();
            let ours = compared.iter().map(|(id, ..)| value(id.to_string())).collect();
            let theirs = compared.iter().map(|(_, value, _)| Some(*value)).collect();
            let rows = vec![("COPS microkernel".to_string(), false, ours), ("seL4".to_string(), true, theirs)];
            vec![("the microkernel beside seL4: instructions".into(), "instructions".into(), names, rows)]
        }
        _ => Vec::new(),
    }
}

/// Connections that the papers' machine could have with coroutines and with threads.
const PAPER_CONNECTIONS: (f64, f64) = (385.0, 186.0);

/// Returns the charts of a benchmark, in the order in which its series came.
pub fn charts(results: &Results) -> Vec<Chart> {
    // Cycles of a model: each part is measured at a few points, of one system. Its tables show more than fifty charts.
    if results.bench == "cycles" {
        return Vec::new();
    }
    let mut charts: Vec<Chart> = groups(results).into_iter().filter_map(of_groups).collect();
    let mut members: Vec<Member> = results.series.iter().map(|series| Member::of(&results.bench, series)).collect();
    members.extend(derived(results));
    let mut plots: Vec<&str> = Vec::new();
    for member in &members {
        if !plots.contains(&member.plot.as_str()) {
            plots.push(&member.plot);
        }
    }
    charts.extend(plots.into_iter().map(|plot| {
        let mut members: Vec<&Member> = members.iter().filter(|member| member.plot == plot).collect();
        // A system has its place in all charts, and its curve in the papers comes after it.
        members.sort_by_key(|member| (systems::place(&member.name).unwrap_or(usize::MAX), member.cited));
        of_series(plot, &members)
    }));
    charts
}

fn of_series(plot: &str, members: &[&Member]) -> Chart {
    let mut places: Vec<f64> = members.iter().flat_map(|one| &one.points).map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let form = if places.len() <= MOST_GROUPS { Form::Bars } else { Form::Lines };
    let x_unit = members.first().map_or("", |one| one.x_unit.as_str());
    let is_share = x_unit == "percent" && form == Form::Lines;
    let along = |percent: f64| if is_share { 1.0 / (1.0 - percent / 100.0) } else { percent };
    let x = if is_share { shares(&places) } else { across(x_unit, &places, form) };
    let (y, divisor) = up(members.first().map_or("", |one| one.unit.as_str()), values(members), form);
    let series = members.iter().map(|one| PlottedSeries {
        name: one.name.clone(),
        points: one.points.iter().map(|point| (along(point.0), point.1 / divisor)).collect(),
        ranges: one.ranges.iter().map(|one| (along(one.0), one.1 / divisor, one.2 / divisor)).collect(),
        style: if one.cited { Style::Reference } else { Style::Measured },
    });
    Chart { title: in_singular(plot), form, x, y, series: series.collect() }
}

fn values<'a>(members: &'a [&Member]) -> impl Iterator<Item = f64> + Clone + 'a {
    members.iter().flat_map(|one| &one.points).map(|point| point.1).filter(|value| value.is_finite())
}

fn of_groups((title, unit, names, rows): Groups) -> Option<Chart> {
    let values = rows.iter().flat_map(|(.., values)| values).flatten().copied();
    values.clone().next()?;
    let (y, divisor) = up(&unit, values.collect::<Vec<_>>().into_iter(), Form::Bars);
    let series = rows.iter().map(|(name, cited, values)| PlottedSeries {
        name: name.clone(),
        points: values
            .iter()
            .enumerate()
            .filter_map(|(place, value)| Some((place as f64, value.as_ref()? / divisor)))
            .collect(),
        ranges: Vec::new(),
        style: if *cited { Style::Reference } else { Style::Measured },
    });
    let series = series.filter(|series| !series.points.is_empty()).collect();
    let ticks = names.into_iter().enumerate().map(|(place, name)| (place as f64, name)).collect();
    Some(Chart { title, form: Form::Bars, x: Axis { label: String::new(), scale: Scale::Linear, ticks }, y, series })
}

/// The axis of shares of requests: each step to the right is a request ten times as rare.
fn shares(places: &[f64]) -> Axis {
    let rarest = places.last().map_or(1.0, |last| 1.0 / (1.0 - last / 100.0));
    let ticks = [(2.0, "50 %"), (10.0, "90 %"), (100.0, "99 %"), (1000.0, "99.9 %"), (10_000.0, "99.99 %")];
    Axis {
        label: "share of the requests that took no longer".into(),
        scale: Scale::Logarithmic,
        ticks: ticks.iter().filter(|tick| tick.0 <= rarest * 1.001).map(|tick| (tick.0, tick.1.into())).collect(),
    }
}

fn across(unit: &str, places: &[f64], form: Form) -> Axis {
    // Levels begin at zero and workers grow in steps; counts double.
    let linear = places.first().is_some_and(|first| *first <= 0.0) || unit == "workers";
    let ticks = match form {
        Form::Lines => places.iter().map(|place| (*place, figure(*place))).collect(),
        // A single group of bars needs no name.
        Form::Bars if places.len() == 1 => Vec::new(),
        Form::Bars => places.iter().map(|place| (*place, of_unit(*place, unit))).collect(),
    };
    Axis { label: unit.into(), scale: if linear { Scale::Linear } else { Scale::Logarithmic }, ticks }
}

/// Formats a number of things, one in the singular.
fn of_unit(number: f64, unit: &str) -> String {
    let unit = if number == 1.0 && !unit.contains(' ') { unit.strip_suffix('s').unwrap_or(unit) } else { unit };
    format!("{} {unit}", figure(number))
}

fn in_singular(title: &str) -> String {
    title.replace(" 1 bytes", " 1 byte").replace(" 1 harts", " 1 hart")
}

/// Returns the axis of values in a readable unit, and the divisor of the values.
fn up(unit: &str, values: impl Iterator<Item = f64> + Clone, form: Form) -> (Axis, f64) {
    let positive = values.clone().filter(|value| *value > 0.0);
    let (least, largest) =
        positive.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let has_zero = values.clone().any(|value| value <= 0.0);
    let spread = if has_zero { LOGARITHMIC_FROM * 25.0 } else { LOGARITHMIC_FROM };
    let logarithmic = form == Form::Lines && largest / least >= spread;
    let middle = if form == Form::Bars || !logarithmic { largest / 3.0 } else { (least * largest).sqrt() };
    let (label, divisor) = readable_unit(unit, middle);
    (Axis { label, scale: if logarithmic { Scale::Logarithmic } else { Scale::Linear }, ticks: Vec::new() }, divisor)
}

/// Returns a unit in which a value in the middle of the axis is some tens, with the divisor for values.
fn readable_unit(unit: &str, middle: f64) -> (String, f64) {
    let times = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let base = match unit {
        "ns" => Some(1.0),
        "us" => Some(1e3),
        "ms" => Some(1e6),
        _ => None,
    };
    if let Some(base) = base {
        let fits = times.iter().rev().find(|(_, ns)| middle * base / ns >= 0.5).unwrap_or(&times[0]);
        return (fits.0.into(), fits.1 / base);
    }
    match middle {
        middle if middle >= 3e7 => (format!("million {unit}"), 1e6),
        middle if middle >= 3e4 => (format!("thousand {unit}"), 1e3),
        _ => (unit.into(), 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(id: &str, unit: &str, plot: Option<&str>, points: &[(f64, f64)]) -> Series {
        Series {
            id: id.into(),
            unit: unit.into(),
            x_unit: "frames".into(),
            points: points.to_vec(),
            ranges: Vec::new(),
            plot: plot.map(str::to_string),
            cited: id.starts_with("paper"),
        }
    }

    fn results(bench: &str, series: Vec<Series>) -> Results {
        Results { bench: bench.into(), series, ..Results::default() }
    }

    #[test]
    fn every_recorded_system_has_its_look() {
        for results in crate::results::of_the_source() {
            for chart in charts(&results) {
                for series in &chart.series {
                    let name = &series.name;
                    assert!(systems::look(name).is_some(), "{}: {}: {name} is in no row", results.bench, chart.title);
                }
            }
        }
    }

    #[test]
    fn no_two_series_of_a_chart_look_alike_but_the_papers() {
        for results in crate::results::of_the_source() {
            for chart in charts(&results) {
                let measured: Vec<_> = chart.series.iter().filter(|one| one.style == Style::Measured).collect();
                for (number, one) in measured.iter().enumerate() {
                    for other in &measured[number + 1..] {
                        let (look, other_look) = (systems::look(&one.name), systems::look(&other.name));
                        assert_ne!(look, other_look, "{}: {} and {}", chart.title, one.name, other.name);
                    }
                }
            }
        }
    }

    #[test]
    fn systems_that_are_compared_stand_in_one_chart() {
        let all = crate::results::of_the_source();
        let of = |bench: &str| charts(all.iter().find(|one| one.bench == bench).unwrap());
        let scheduler = of("scheduler");
        let yields = scheduler.iter().find(|chart| chart.title.starts_with("yield by workers: instr")).unwrap();
        let names: Vec<_> = yields.series.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["cops", "tokio-multi-thread", "async-executor"]);
        let one = &scheduler[0];
        assert_eq!((one.form, one.series.len(), one.x.ticks.len()), (Form::Bars, 5, 5));
        let asynchronous = of("micro-async");
        let speed = asynchronous.iter().find(|chart| chart.title.ends_with("invocations, 4 harts")).unwrap();
        let names: Vec<_> = speed.series.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["adaptive", "asynchronous", "paper: asynchronous"]);
        assert!(of("micro-ipc").len() <= 3 && of("switch").len() == 1);
    }

    #[test]
    fn few_places_are_bars_and_many_are_lines() {
        let two = results("x", vec![series("COPS", "us", Some("p"), &[(1.0, 3.0), (64.0, 4.0)])]);
        let chart = &charts(&two)[0];
        assert_eq!((chart.form, chart.x.ticks[0].1.as_str(), chart.y.label.as_str()), (Form::Bars, "1 frame", "µs"));
        let three = results("x", vec![series("COPS", "us", Some("p"), &[(1.0, 3.0), (2.0, 3.0), (4.0, 4.0)])]);
        assert_eq!((charts(&three)[0].form, charts(&three)[0].y.scale), (Form::Lines, Scale::Linear));
    }

    #[test]
    fn units_are_chosen_by_the_values() {
        let unit = |unit: &str, middle: f64| readable_unit(unit, middle);
        assert_eq!(unit("us", 10e6), ("s".into(), 1e6));
        assert_eq!(unit("us", 700.0), ("ms".into(), 1e3));
        assert_eq!(unit("ns", 200.0), ("ns".into(), 1.0));
        assert_eq!(unit("instructions", 250_000.0), ("thousand instructions".into(), 1e3));
        assert_eq!(unit("times", 3.0), ("times".into(), 1.0));
        for results in crate::results::of_the_source() {
            for chart in charts(&results) {
                let largest = chart.series.iter().flat_map(|one| &one.points).map(|point| point.1).fold(0.0, f64::max);
                let time = ["ns", "µs", "ms"].contains(&chart.y.label.as_str());
                assert!(!time || largest < 1e6, "{}: {largest} {}", chart.title, chart.y.label);
            }
        }
    }

    #[test]
    fn shares_of_requests_are_an_axis_of_rarity() {
        let mut one = series("level 0", "us", Some("p"), &[(50.0, 10.0), (90.0, 20.0), (99.0, 30.0), (99.9, 50.0)]);
        one.x_unit = "percent".into();
        let chart = &charts(&results("priority-latency", vec![one]))[0];
        let places: Vec<_> = chart.series[0].points.iter().map(|point| point.0.round()).collect();
        assert_eq!(places, [2.0, 10.0, 100.0, 1000.0]);
        assert_eq!(chart.x.ticks.last().map(|tick| tick.1.as_str()), Some("99.9 %"));
    }

    #[test]
    fn offered_load_is_beside_the_achieved_one() {
        let plot = "throughput, 15x15 with pauses of 100 ms (wall)";
        let points = [(1.0, 9.0), (16.0, 150.0), (64.0, 300.0)];
        let chart = &charts(&results("matrix-models", vec![series("COPS kcuc", "messages/s", Some(plot), &points)]))[0];
        let asked = chart.series.iter().find(|one| one.name == "asked for").unwrap();
        assert_eq!((asked.points[2], asked.style), ((64.0, 640.0), Style::Reference));
    }
}
