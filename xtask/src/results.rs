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

use crate::bench::{self, BenchName, Figure, Results};
use crate::browser;
use crate::chart::escape;
use crate::cli;
use crate::context::Context;
use crate::figures::{count, figure};
use crate::page;
use crate::plots::charts;
use crate::verdicts::{self, COUNTED, Outcome, WALL};
use crate::workspace::write_if_changed;

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
        draw(&place, results)?;
    }
    Ok(())
}

/// Writes table and plots.
fn draw(place: &Path, results: &Results) -> Result<()> {
    write_if_changed(&place.join(format!("{}.txt", results.bench)), bench::summary(results).as_bytes())?;
    // Removes plots of an earlier run that had more of them.
    for entry in std::fs::read_dir(place)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_plot_of(&name, &results.bench) {
            std::fs::remove_file(entry.path())?;
        }
    }
    for (number, chart) in charts(results).iter().enumerate() {
        let file = place.join(format!("{}-{}.svg", results.bench, number + 1));
        write_if_changed(&file, chart.standalone().as_bytes())?;
    }
    Ok(())
}

/// Reads the results of a directory, by benchmark. One that does not exist has none.
fn read(directory: &Path) -> Result<BTreeMap<String, Results>> {
    let mut all = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(all) };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path)?;
            let results: Results =
                serde_json::from_str(&text).with_context(|| format!("{} is no file of results", path.display()))?;
            all.insert(results.bench.clone(), results);
        }
    }
    Ok(all)
}

/// Whether a file is a numbered plot of this benchmark, and not of one whose name begins alike.
fn is_plot_of(file: &str, bench: &str) -> bool {
    let number = file.strip_prefix(bench).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".svg"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Makes the page.
///
/// # Errors
///
/// There are no results yet, or the page cannot be written.
pub fn report(context: &Context, arguments: &cli::Report) -> Result<()> {
    if arguments.redraw {
        for results in read(&recorded(context))?.values() {
            draw(&recorded(context), results)?;
        }
    }
    let file = write_report(context, arguments.html.as_deref())?;
    println!("{}", file.display());
    match &arguments.look {
        Some(directory) => look(context, &file, Some(directory)),
        None => Ok(()),
    }
}

/// Looks at the pages in a browser: at the report, and at the demonstration's if there is one.
///
/// # Errors
///
/// A page has faults, or the browser failed. Without a browser nothing is looked at, which one line says.
pub fn look_at_pages(context: &Context) -> Result<()> {
    let file = write_report(context, None)?;
    look(context, &file, None)
}

fn look(context: &Context, report: &Path, pictures: Option<&Path>) -> Result<()> {
    let Some(program) = browser::find() else {
        println!("left out: there is no chromium to look at the pages");
        return Ok(());
    };
    let demo = context.workspace.products().join("demo.html");
    for (name, file) in [("report", report), ("demo", demo.as_path())] {
        let Ok(page) = std::fs::read_to_string(file) else { continue };
        let activity = context.progress.start(format!("Looking at {}", file.display()));
        browser::look(&program, name, &page, browser::all_looks(), pictures)?;
        activity.clear();
    }
    Ok(())
}

/// Makes the page and returns its path.
///
/// # Errors
///
/// As [`report`].
pub fn write_report(context: &Context, file: Option<&Path>) -> Result<PathBuf> {
    let mut all = read(&recorded(context))?;
    all.extend(read(&directory(context))?);
    if all.is_empty() {
        bail!("there are no results yet: `cargo xtask bench paper --quick` makes some");
    }
    let html = page(all.values());
    let file = file.map_or_else(|| context.workspace.products().join("report.html"), Path::to_path_buf);
    write_if_changed(&file, html.as_bytes())?;
    Ok(file)
}

/// Description of each experiment, for readers of the papers.
const ABOUT: [(&str, &str); 15] = [
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
    (
        "linux-programs",
        "Programs that were built for Linux, among them redis and nginx, unmodified on COPS and on Linux.",
    ),
    (
        "servers",
        "Requests and bytes over the network card, with the client outside the machine: the same servers on COPS and on \
         Linux in the same emulator.",
    ),
    (
        "disk",
        "Files of ext4 on a disk, by the same program on COPS and on Linux, and what is lost when the power is cut.",
    ),
];

/// Returns an experiment's place: those of the papers come first, in their order; all others follow by name.
fn place(bench: &str) -> usize {
    ABOUT.iter().position(|(name, _)| *name == bench).unwrap_or(ABOUT.len())
}

/// A figure with a goal, and its benchmark.
struct Judged<'a> {
    bench: &'a str,
    figure: &'a Figure,
    outcome: Outcome,
}

fn page<'a>(results: impl Iterator<Item = &'a Results>) -> String {
    let mut all: Vec<&Results> = results.collect();
    all.sort_by_key(|one| (place(&one.bench), one.bench.clone()));
    let mut page = page::head("COPS measured");
    page += "<h1>COPS measured</h1>\n<p>COPS is an operating system for RISC-V that schedules coroutines, with \
             priorities, in the kernel and in programs alike. Here are the experiments of the papers that it grew out of, \
             repeated with it, with its own variants with threads, and with Linux beside it. Everything ran in QEMU, \
             COPS and Linux in the same one, one after the other.</p>\n";
    write_summary(&mut page, &all);
    page += "<section><h2>How to read the charts</h2><p><b>Wall</b> charts show time on the host's clock, with the client \
             outside the machine: what a user sees, and as noisy as the host. <b>Instructions</b> were counted by QEMU, \
             with the client inside the machine: repeatable, and blind to parallel speed-up. A system has the same \
             colour and marker in all charts; Linux's own servers are grey. <b>Dashed</b> curves are the papers' own \
             figures, in the colour of the system they belong to; they were measured on other machines (an FPGA at \
             100 MHz, for the rings QEMU), so compare their shape and not their height. Thin bars at points span the \
             least and the largest of several rounds, where they were recorded.</p>\n<p class=\"contents\" id=\"contents\">";
    for one in &all {
        let _ = write!(page, "<a href=\"#{0}\">{0}</a> ", escape(&one.bench));
    }
    page += "</p></section>\n";
    for one in &all {
        write_experiment(&mut page, one);
    }
    page + page::FOOT
}

/// Writes the summary: the papers' figures with their verdicts, the misses, ties and goals met.
fn write_summary(page: &mut String, all: &[&Results]) {
    let judged: Vec<Judged<'_>> = all
        .iter()
        .flat_map(|one| one.figures.iter().map(|figure| (one.bench.as_str(), figure)))
        .filter_map(|(bench, figure)| Some(Judged { bench, figure, outcome: verdicts::outcome(bench, figure)? }))
        .collect();
    let of = |outcome: Outcome| judged.iter().filter(move |one| one.outcome == outcome);
    let tile = |value: usize, name: &str, place: &str| {
        format!("<div><b>{}</b><span><a href=\"#{place}\">{name}</a></span></div>", count(value as u64))
    };
    let _ = writeln!(
        page,
        "<div class=\"tiles\">{}{}{}{}</div>",
        tile(all.len(), "experiments", "contents"),
        tile(of(Outcome::Met).count(), "goals met", "met"),
        tile(of(Outcome::Equal).count(), "equal within noise", "equal"),
        tile(of(Outcome::Missed).count(), "goals missed", "missed")
    );
    write_claims(page, all);
    *page += "<section id=\"missed\"><h2>Goals missed</h2>\n";
    let mut reasons: Vec<(&str, Vec<&Judged<'_>>)> = Vec::new();
    for one in of(Outcome::Missed) {
        let reason = verdicts::reason(one.bench, &one.figure.id).unwrap_or("No reason is known yet.");
        match reasons.iter_mut().find(|(other, group)| *other == reason && group[0].bench == one.bench) {
            Some((_, group)) => group.push(one),
            None => reasons.push((reason, vec![one])),
        }
    }
    let worst = |group: &[&Judged<'_>]| group.iter().map(|one| verdicts::excess(one.figure)).fold(0.0, f64::max);
    for (_, group) in &mut reasons {
        group.sort_by(|one, other| verdicts::excess(other.figure).total_cmp(&verdicts::excess(one.figure)));
    }
    reasons.sort_by(|one, other| worst(&other.1).total_cmp(&worst(&one.1)));
    *page += "<div class=\"reasons\">\n";
    for (reason, group) in reasons {
        let bench = escape(group[0].bench);
        let _ = writeln!(page, "<div><p><a href=\"#{bench}\">{bench}</a>: {}</p><ul class=\"misses\">", escape(reason));
        for one in group {
            let _ = writeln!(page, "<li>{}</li>", beside_goal(one.figure));
        }
        *page += "</ul></div>\n";
    }
    *page += "</div>\n";
    // A link to what lies inside unfolds it.
    let folded = |outcome: Outcome, place: &str, title: String| {
        let mut html = format!("<details><summary>{title}</summary><ul class=\"misses\" id=\"{place}\">\n");
        for one in of(outcome) {
            let _ = writeln!(html, "<li>{}: {}</li>", escape(one.bench), beside_goal(one.figure));
        }
        html + "</ul></details>\n"
    };
    let equal = format!(
        "{} goals equalled within noise: {} % by the clock of the host, {} % where instructions, bytes or entries are counted",
        of(Outcome::Equal).count(),
        WALL * 100.0,
        COUNTED * 100.0
    );
    *page += &folded(Outcome::Equal, "equal", equal);
    *page += &folded(Outcome::Met, "met", format!("{} goals met", of(Outcome::Met).count()));
    *page += "</section>\n";
}

/// Writes the table of the papers' figures.
fn write_claims(page: &mut String, all: &[&Results]) {
    *page += "<section id=\"papers\"><h2>The papers' figures</h2><table class=\"words stack\"><thead><tr>\
              <th>figure</th><th>chart</th><th>verdict</th><th>claim and result</th></tr></thead><tbody>\n";
    for claim in verdicts::CLAIMS {
        let Some(results) = all.iter().find(|one| one.bench == claim.bench) else { continue };
        let (words, class) = claim.verdict(results).words();
        let _ = writeln!(
            page,
            "<tr><td>{} {}</td><td><a href=\"#{2}\">{2}</a></td><td class=\"{class}\"><b>{words}</b></td><td>{3}</td></tr>",
            escape(claim.paper),
            escape(claim.figure),
            escape(claim.bench),
            escape(&claim.text(results))
        );
    }
    *page += "</tbody></table></section>\n";
}

/// Formats a figure with its goal.
fn beside_goal(one: &Figure) -> String {
    let goal = one.goal.map(|goal| format!(", goal\u{a0}{}", goal_of(one, goal))).unwrap_or_default();
    let unit = if one.unit == "times" { String::new() } else { format!(" {}", one.unit) };
    escape(&format!("{}: {}{unit}{goal}", one.id, figure(one.value)))
}

fn goal_of(one: &Figure, goal: f64) -> String {
    format!("{}\u{a0}{}", if one.at_least { "≥" } else { "≤" }, figure(goal))
}

/// Writes an experiment: its description, its charts, its figures and its conditions.
fn write_experiment(page: &mut String, one: &Results) {
    let _ = writeln!(page, "<section id=\"{0}\"><h2>{0}</h2>", escape(&one.bench));
    let known = ABOUT.iter().find(|(name, _)| *name == one.bench).map(|(_, about)| about.to_string());
    let about = known.or_else(|| {
        BenchName::value_variants().iter().find(|name| name.name() == one.bench).map(|name| name.description())
    });
    let _ = writeln!(page, "<p>{}</p>", page::prose(&about.unwrap_or_default()));
    let charts = charts(one);
    if !charts.is_empty() {
        *page += &page::charts(&charts, &one.bench);
    }
    if !one.figures.is_empty() {
        let _ = writeln!(page, "<details><summary>{} figures</summary>", count(one.figures.len() as u64));
        *page += &page::table(&["figure", "value", "unit", "goal", "outcome"], &figure_rows(one));
        *page += "</details>\n";
    }
    let raw = serde_json::to_string(one).unwrap_or_default();
    let _ = writeln!(
        page,
        "<details><summary>Table and raw data</summary><pre>{}</pre><pre>{}</pre></details>",
        escape(&bench::summary(one)),
        escape(&raw)
    );
    for note in &one.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", page::prose(note));
    }
    let _ = writeln!(
        page,
        "<p class=\"note\">Measured at commit {} on {}.</p></section>",
        escape(&one.commit),
        escape(&one.machine)
    );
}

fn figure_rows(results: &Results) -> Vec<Vec<String>> {
    let row = |one: &Figure| {
        let outcome = match verdicts::outcome(&results.bench, one) {
            Some(Outcome::Met) => "met",
            Some(Outcome::Equal) => "equal",
            Some(Outcome::Missed) => "missed",
            None => "",
        };
        let goal = one.goal.map(|goal| goal_of(one, goal)).unwrap_or_default();
        vec![one.id.clone(), figure(one.value), one.unit.clone(), goal, outcome.into()]
    };
    results.figures.iter().map(row).collect()
}

/// The page of the recorded results.
#[cfg(test)]
pub fn page_of_the_source() -> String {
    page(of_the_source().iter())
}

/// The recorded results of the source.
#[cfg(test)]
pub fn of_the_source() -> Vec<Results> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/results");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Style;

    fn results() -> Results {
        let series = |id: &str, plot: Option<&str>, cited: bool| bench::Series {
            id: id.into(),
            unit: "ns".into(),
            x_unit: "tasks".into(),
            points: vec![(1.0, 10.0), (4000.0, 1e9)],
            ranges: Vec::new(),
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
        assert!(page.contains("<b>1</b><span><a href=\"#met\">goals met"), "{page}");
        assert!(!page.contains("=\"http") && !page.contains("url("), "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
        assert_eq!(page.matches("<details").count(), page.matches("</details>").count());
        let downloads = page.matches("download=").count();
        assert_eq!(downloads, 2 * page.matches("<figure").count());
    }

    #[test]
    fn the_summary_has_real_misses_first_and_ties_apart() {
        let figure = |id: &str, value: f64| Figure {
            id: id.into(),
            value,
            unit: "times".into(),
            goal: Some(1.0),
            met: Some(value <= 1.0),
            at_least: false,
        };
        let figures = vec![figure("a_tie", 1.003), figure("kcuc_vs_small", 1.2), figure("kcuc_vs_large", 3.0)];
        let results = Results { bench: "matrix-models".into(), figures, ..results() };
        let page = page([&results].into_iter());
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing: {page}"));
        assert!(
            at("kcuc_vs_large: 3, goal\u{a0}≤\u{a0}1") < at("kcuc_vs_small: 1.20")
                && at("kcuc_vs_small: 1.20") < at("a_tie: 1")
        );
        assert!(page.contains("<b>2</b><span><a href=\"#missed\">goals missed"));
        assert!(page.contains("<b>1</b><span><a href=\"#equal\">equal within noise"));
        for (link, _) in page.match_indices("href=\"#") {
            let place = page[link + 7..].split('"').next().unwrap();
            assert!(page.contains(&format!(" id=\"{place}\"")), "nothing is at {place}");
        }
        assert!(at("figure 5") < at("kcuc_vs_large"), "the papers' figures come first");
    }

    #[test]
    fn the_readme_has_the_recorded_figures() {
        let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
        let all = of_the_source();
        let of = |bench: &str| all.iter().find(|one| one.bench == bench).unwrap();
        let value = |bench: &str, id: &str| of(bench).figures.iter().find(|one| one.id == id).unwrap().value;
        let request = |id: &str| {
            let plot = Some("instructions of each request, 1x1".to_string());
            let series = of("matrix-models").series.iter().find(|one| one.plot == plot && one.id == id).unwrap();
            series.points.iter().find(|point| point.0 == 64.0).unwrap().1
        };
        let mut values: Vec<f64> = ["COPS kcuc", "Linux epoll", "Linux tokio", "Linux go"].map(request).into();
        for (bench, id) in [
            ("syscall", "null"),
            ("peers", "linux_null"),
            ("scheduler", "yield-cops"),
            ("scheduler", "yield-tokio-multi-thread"),
            ("scheduler", "yield-async-executor"),
            ("scheduler", "yield-embassy"),
            ("memory", "connections_kcuc"),
            ("memory", "connections_ktut"),
            ("ring-counter", "vs_threads_yield_4000"),
            ("ring-counter", "vs_pthreads_4000"),
        ] {
            values.push(value(bench, id));
        }
        for value in values {
            assert!(readme.contains(&figure(value)), "README.md does not have {}", figure(value));
        }
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
