//! Results on disk, as plots, and as the one page for readers.
//!
//! Each benchmark leaves `cops/results/NAME.json` in the target directory, with a table `NAME.txt` and a plot
//! `NAME-N.svg` for each of its plots beside it; `--record` copies all of it to `bench/results`, with the source. The
//! page uses the latest measurements here, and the recorded ones for the rest.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::bench::{self, BenchName, Results};
use crate::chart::{Axis, Chart, PlottedSeries, Scale, Style, escape};
use crate::cli;
use crate::context::Context;
use crate::figures::figure;
use crate::report::{HEAD, TITLE};
use crate::workspace::write_if_changed;

/// Largest number of places on an axis that all have ticks.
const MOST_TICKS: usize = 12;

fn directory(context: &Context) -> PathBuf {
    context.workspace.products().join("results")
}

fn recorded(context: &Context) -> PathBuf {
    context.workspace.root.join("bench/results")
}

/// Saves the figures so far.
///
/// # Errors
///
/// The file cannot be written.
pub fn save(context: &Context, results: &Results) -> Result<()> {
    write(&directory(context), results)
}

fn write(directory: &Path, results: &Results) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let json = serde_json::to_string_pretty(results)? + "\n";
    write_if_changed(&directory.join(format!("{}.json", results.bench)), json.as_bytes())?;
    Ok(())
}

/// Saves figures, table and plots, also with the source if they are to be recorded.
///
/// # Errors
///
/// A file cannot be written.
pub fn keep(context: &Context, results: &Results, record: bool) -> Result<()> {
    let mut places = vec![directory(context)];
    if record {
        places.push(recorded(context));
    }
    for place in places {
        write(&place, results)?;
        write_if_changed(&place.join(format!("{}.txt", results.bench)), bench::summary(results).as_bytes())?;
        // Removes plots of an earlier run that had more of them.
        for entry in std::fs::read_dir(&place)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_plot_of(&name, &results.bench) {
                std::fs::remove_file(entry.path())?;
            }
        }
        for (number, chart) in charts(results).iter().enumerate() {
            let file = place.join(format!("{}-{}.svg", results.bench, number + 1));
            write_if_changed(&file, chart.standalone().as_bytes())?;
        }
    }
    Ok(())
}

/// Whether a file is a numbered plot of this benchmark, and not of one whose name begins alike.
fn is_plot_of(file: &str, bench: &str) -> bool {
    let number = file.strip_prefix(bench).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".svg"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Groups the series of a benchmark to plots, in the order in which they came.
fn charts(results: &Results) -> Vec<Chart> {
    let mut plots: Vec<String> = Vec::new();
    for series in &results.series {
        let plot = series.plot.clone().unwrap_or_else(|| series.id.clone());
        if !plots.contains(&plot) {
            plots.push(plot);
        }
    }
    let chart = |plot: &String| {
        let members: Vec<_> =
            results.series.iter().filter(|series| series.plot.as_ref().unwrap_or(&series.id) == plot).collect();
        let mut places: Vec<f64> = members.iter().flat_map(|series| &series.points).map(|point| point.0).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        // Levels and shares begin at zero and grow in steps; counts double.
        let linear = places.first().is_some_and(|first| *first == 0.0)
            || members.iter().any(|series| ["workers", "percent"].contains(&series.x_unit.as_str()));
        let scale = if linear { Scale::Linear } else { Scale::Logarithmic };
        let ticks = if places.len() <= MOST_TICKS {
            places.iter().map(|place| (*place, figure(*place))).collect()
        } else {
            Vec::new()
        };
        let unit = |choose: fn(&bench::Series) -> &String| members.first().map(|one| choose(one).clone());
        Chart {
            title: plot.clone(),
            x: Axis { label: unit(|series| &series.x_unit).unwrap_or_default(), scale, ticks },
            y: Axis {
                label: unit(|series| &series.unit).unwrap_or_default(),
                scale: Scale::Logarithmic,
                ticks: Vec::new(),
            },
            series: members
                .iter()
                .map(|series| PlottedSeries {
                    name: series.id.clone(),
                    points: series.points.clone(),
                    style: if series.cited { Style::Reference } else { Style::Measured },
                })
                .collect(),
        }
    };
    plots.iter().map(chart).collect()
}

/// Makes the page.
///
/// # Errors
///
/// There are no results yet, or the page cannot be written.
pub fn report(context: &Context, arguments: &cli::Report) -> Result<()> {
    println!("{}", write_report(context, arguments.html.as_deref())?.display());
    Ok(())
}

/// Makes the page and returns its path.
///
/// # Errors
///
/// As [`report`].
pub fn write_report(context: &Context, file: Option<&Path>) -> Result<PathBuf> {
    let mut all: BTreeMap<String, Results> = BTreeMap::new();
    for place in [recorded(context), directory(context)] {
        let Ok(entries) = std::fs::read_dir(place) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path)?;
                let results: Results =
                    serde_json::from_str(&text).with_context(|| format!("{} is no file of results", path.display()))?;
                all.insert(results.bench.clone(), results);
            }
        }
    }
    if all.is_empty() {
        bail!("there are no results yet: `cargo xtask bench paper --quick` makes some");
    }
    let html = page(all.values());
    let file = file.map_or_else(|| context.workspace.products().join("report.html"), Path::to_path_buf);
    write_if_changed(&file, html.as_bytes())?;
    Ok(file)
}

/// Description of each experiment, for readers of the papers.
const ABOUT: [(&str, &str); 12] = [
    (
        "matrix-models",
        "A server multiplies matrices for its clients; each connection has three stages: receive, multiply, send. The \
         stages are coroutines or threads, in the kernel (k) and in the program (u): kcuc, kcut, ktut, ktuc. kcuc is \
         COPS as it is meant. `ktut` tries again and yields, as the papers' system does; `ktut-wait` sleeps in a queue; \
         `ktuc` has the papers' polling thread; `ktuc-epoll` uses epoll. Linux's servers do the same work beside it, \
         under the same emulator and the same load.",
    ),
    (
        "creation",
        "Short connections: connect, one request, close. It shows what making and ending the coroutines or threads of a \
         connection costs.",
    ),
    (
        "matrix-priorities",
        "The connections have eight levels of importance, 0 is the most important. When there is more to do than can be \
         done, the important ones should keep what they have.",
    ),
    ("priority-latency", "How the latencies of four levels are distributed: the further right, the rarer."),
    (
        "ring-counter",
        "Experiment A: tasks with numbers share a counter; each waits until the counter is its own number, and then \
         counts on. Coroutines beside threads.",
    ),
    (
        "ring-pipes",
        "Experiment B: each task reads a message from the pipe before it and writes it to the one behind it. Coroutines, \
         all alike or with priorities, beside threads.",
    ),
    (
        "workers",
        "One job, 64 coroutines, run by 1 to 8 workers on four harts. The papers' executor had one lock for all, and \
         with one worker too many its time grew by a factor of 4.6.",
    ),
    (
        "memory",
        "The kernel's memory for idle connections and calls in flight. The papers could have 385 connections with \
         coroutines and 186 with threads in the memory of their machine.",
    ),
    ("async-calls", "System calls made synchronously, asynchronously one by one, and through shared rings."),
    (
        "user-interrupt",
        "Signals that reach a program without the kernel running, beside the kernel's own way, and beside eventfd, pipe \
         and signal on Linux.",
    ),
    ("scheduler", "The scheduler alone, on the host, beside other executors for Rust."),
    ("peers", "The costs of Linux's basic operations under the same emulator."),
];

/// Returns an experiment's place: those of the papers come first, in their order; all others follow by name.
fn place(bench: &str) -> usize {
    ABOUT.iter().position(|(name, _)| *name == bench).unwrap_or(ABOUT.len())
}

fn page<'a>(results: impl Iterator<Item = &'a Results>) -> String {
    let mut all: Vec<&Results> = results.collect();
    all.sort_by_key(|one| (place(&one.bench), one.bench.clone()));
    let mut page = HEAD.replace(TITLE, "COPS measured");
    page += "<h1>COPS measured</h1>\n<p>COPS is an operating system for RISC-V that schedules coroutines, with \
             priorities, in the kernel and in programs alike. Here are the experiments of the papers that it grew out of, \
             repeated with it, with its own variants with threads, and with Linux beside it. Everything ran in QEMU, \
             COPS and Linux in the same one, one after the other.</p>\n\
             <p><b>Wall</b> plots show time on the host's clock, with the client outside the machine: what a user sees, \
             and as noisy as the host. <b>Instructions</b> were counted by QEMU, with the client inside the machine: \
             repeatable, and blind to parallel speed-up. Dashed lines are the papers' own figures; they were measured on \
             other machines (an FPGA at 100 MHz, for the rings QEMU), so compare their shape and not their height.</p>\n";
    let (met, missed) = all.iter().flat_map(|one| &one.figures).fold((0, 0), |(met, missed), one| match one.met {
        Some(true) => (met + 1, missed),
        Some(false) => (met, missed + 1),
        None => (met, missed),
    });
    let _ = writeln!(
        page,
        "<div class=\"tiles\"><div><b>{}</b><span>experiments</span></div><div><b>{met}</b><span>goals met</span></div>\
         <div><b>{missed}</b><span>goals missed</span></div></div>",
        all.len()
    );
    page += "<section><h2>Contents</h2><p>";
    for one in &all {
        let _ = write!(page, "<a href=\"#{0}\">{0}</a> ", escape(&one.bench));
    }
    page += "</p></section>\n";
    for one in &all {
        let _ = writeln!(page, "<section id=\"{0}\"><h2>{0}</h2>", escape(&one.bench));
        let known = ABOUT.iter().find(|(name, _)| *name == one.bench).map(|(_, about)| about.to_string());
        let about = known.or_else(|| {
            BenchName::value_variants().iter().find(|name| name.name() == one.bench).map(|name| name.description())
        });
        let _ = writeln!(page, "<p>{}</p>", escape(&about.unwrap_or_default()));
        for chart in charts(one) {
            let _ = writeln!(page, "<h3>{}</h3>{}{}", escape(&chart.title), chart.legend(), chart.svg());
        }
        if !one.figures.is_empty() {
            page += &figures_table(one);
        }
        for note in &one.notes {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(note));
        }
        let _ = writeln!(
            page,
            "<p class=\"note\">Measured at commit {} on {}.</p>",
            escape(&one.commit),
            escape(&one.machine)
        );
        let raw = serde_json::to_string(one).unwrap_or_default();
        let _ = writeln!(
            page,
            "<details><summary>Table and raw data</summary><pre>{}</pre><pre>{}</pre></details></section>",
            escape(&bench::summary(one)),
            escape(&raw)
        );
    }
    page + "</main>\n</body>\n</html>\n"
}

fn figures_table(results: &Results) -> String {
    let mut text = String::from(
        "<div class=\"scroll\"><table><thead><tr><th>figure</th><th>value</th><th>unit</th><th>goal</th><th></th></tr></thead><tbody>\n",
    );
    for one in &results.figures {
        let sign = if one.at_least { "≥" } else { "≤" };
        let goal = one.goal.map(|goal| format!("{sign} {}", figure(goal))).unwrap_or_default();
        let (met, class) = match one.met {
            Some(true) => ("met", "good"),
            Some(false) => ("missed", "bad"),
            None => ("", ""),
        };
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{goal}</td><td class=\"{class}\">{met}</td></tr>",
            escape(&one.id),
            figure(one.value),
            escape(&one.unit)
        );
    }
    text + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Figure;

    fn results() -> Results {
        let series = |id: &str, plot: Option<&str>, cited: bool| bench::Series {
            id: id.into(),
            unit: "ns".into(),
            x_unit: "tasks".into(),
            points: vec![(1.0, 10.0), (4000.0, 1e9)],
            plot: plot.map(str::to_string),
            cited,
        };
        Results {
            bench: "ring-counter".into(),
            commit: "c".into(),
            machine: "m".into(),
            figures: vec![Figure {
                id: "vs_threads_2".into(),
                value: 0.5,
                unit: "times".into(),
                goal: Some(1.0),
                met: Some(true),
                at_least: false,
            }],
            series: vec![
                series("COPS", Some("a <b>"), false),
                series("paper", Some("a <b>"), true),
                series("x", None, false),
            ],
            notes: vec!["something & else".into()],
        }
    }

    #[test]
    fn series_of_one_plot_are_drawn_together() {
        let charts = charts(&results());
        assert_eq!(charts.len(), 2);
        assert_eq!(charts[0].series.len(), 2);
        assert_eq!(charts[0].series[1].style, Style::Reference);
        assert_eq!(charts[1].title, "x");
        let svg = charts[0].standalone();
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("<style>"), "{svg}");
    }

    #[test]
    fn the_page_is_self_contained_and_counts_the_goals_met() {
        let results = results();
        let page = page([&results].into_iter());
        assert!(page.contains("Experiment A") && page.contains("a &lt;b&gt;") && page.contains("something &amp; else"));
        assert!(page.contains("<b>1</b><span>goals met"), "{page}");
        assert!(!page.contains("http"), "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
    }

    #[test]
    fn plots_are_told_from_those_of_other_benchmarks() {
        assert!(is_plot_of("memory-1.svg", "memory") && is_plot_of("memory-12.svg", "memory"));
        for other in ["memory-models-1.svg", "memory.json", "memory-.svg", "memory-1.txt", "x-1.svg"] {
            assert!(!is_plot_of(other, "memory"), "{other}");
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let results = results();
        let text = serde_json::to_string(&results).unwrap();
        let read: Results = serde_json::from_str(&text).unwrap();
        assert_eq!((read.figures, read.series, read.notes), (results.figures, results.series, results.notes));
        let old = r#"{"bench":"x","commit":"c","machine":"m","figures":[],"series":[]}"#;
        assert!(serde_json::from_str::<Results>(old).is_ok());
    }
}
