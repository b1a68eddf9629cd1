//! The matrix server in all models of COPS, and Linux's servers, under the same load.
//!
//! By the wall clock, the client of `bench/load` on the host keeps connections that pause for 100 ms after each answer,
//! as the papers' client does, and then connections that do not pause, which shows the most that a server can do. In
//! instructions, a client inside the machine does not pause either, on one hart, and a request is client, server, and
//! the network between.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use load::{Histogram, Measurement, Order, Pace, Plan, Visits};

use super::contest::{Contest, median, range};
use super::{Lab, Notebook, PATIENCE, Server, Way, figure_of, harts, numbers, seeds, series_of, words};
use crate::linux;

/// The models of COPS's server, ours first.
pub const MODELS: [&str; 6] = ["kcuc", "kcut", "ktut", "ktut-wait", "ktuc", "ktuc-epoll"];

const PAUSE: Duration = Duration::from_millis(100);

/// Goals of our latency and our instructions, as a share of Linux's best.
const LINUX_LATENCY_GOAL: f64 = 0.8;
const EPOLL_INSTRUCTIONS_GOAL: f64 = 0.5;

/// Returns the words that start COPS's server in a model; ours is the default.
pub fn server_words(model: &str, harts: u8) -> Vec<String> {
    let mut command = format!("--backlog 1024 --workers {harts}");
    if model != MODELS[0] {
        command += &format!(" --model {model}");
    }
    words(&command)
}

fn connections(lab: &Lab<'_>) -> Vec<usize> {
    if lab.quick { vec![1, 16, 64] } else { (0..=8).map(|power| 1 << power).collect() }
}

/// Measures throughput and latency by connections.
pub fn models(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        match way {
            Way::Instructions => instructions(lab, notebook, false),
            Way::Wall => wall(lab, notebook)?,
        }
    }
    Ok(())
}

/// Measures short connections, each with its request.
pub fn creation(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        match way {
            Way::Instructions => instructions(lab, notebook, true),
            Way::Wall => visits(lab, notebook)?,
        }
    }
    Ok(())
}

/// Returns the servers of Linux that are compared: in a hurry without mere variations.
fn linux_servers(lab: &Lab<'_>, quick: &[&str]) -> Vec<&'static str> {
    let servers = lab.linux().map_or(&[][..], |linux| &linux.servers);
    servers.iter().copied().filter(|name| !lab.quick || quick.contains(name)).collect()
}

fn instructions(lab: &Lab<'_>, notebook: &mut Notebook<'_>, fresh: bool) {
    let (scenario, what, x_unit) =
        if fresh { ("creation", "short connection", "visitors") } else { ("matrix-models", "request", "connections") };
    let counts: &[usize] = match (fresh, lab.quick) {
        (true, _) => &[1, 16],
        (false, true) => &[1, 64],
        (false, false) => &[1, 4, 16, 64, 256],
    };
    let orders: &[u32] = match (fresh, lab.quick) {
        (true, _) => &[1],
        (false, true) => &[1, 15],
        (false, false) => &[1, 15, 20],
    };
    let requests = if lab.quick { 512 } else { 2048 };
    for order in orders {
        let plot = format!("instructions of each {what}, {order}x{order}");
        let command = words(&format!("{scenario} {} {order} {requests} {}", MODELS.join(","), numbers(counts)));
        let measured = lab.on_cops(&plot, &command, 1, Way::Instructions.clock());
        add(notebook, &plot, x_unit, "COPS", measured);
        // On one hart `-each` are the same as one loop.
        let mut servers = linux_servers(lab, &["epoll", "io_uring", "thread", "thread3", "tokio", "go"]);
        servers.retain(|name| !name.ends_with("-each"));
        if !servers.is_empty() {
            let scenario = if fresh { "creation" } else { "matrix" };
            let command = words(&format!("{scenario} {} {order} {requests} {}", servers.join(","), numbers(counts)));
            let measured = lab.on_linux(&plot, &command, 1, Way::Instructions.clock());
            add(notebook, &plot, x_unit, "Linux", measured);
        }
        let suffix = if fresh { "creation".to_string() } else { format!("{order}x{order}") };
        for count in counts {
            let value = |id: &str| notebook.value(&plot, id, *count as f64);
            if let (Some(ours), Some(theirs)) = (value("COPS kcuc"), value("Linux epoll")) {
                let id = format!("kcuc_vs_linux-epoll_instructions_{suffix}_{count}");
                notebook.at_most(&id, ours / theirs, "times", EPOLL_INSTRUCTIONS_GOAL);
            }
            for model in &MODELS[1..] {
                let value = |id: &str| notebook.value(&plot, id, *count as f64);
                if let (Some(ours), Some(theirs)) = (value("COPS kcuc"), value(&format!("COPS {model}"))) {
                    let id = format!("kcuc_vs_{model}_instructions_{suffix}_{count}");
                    notebook.at_most(&id, ours / theirs, "times", 1.0);
                }
            }
        }
    }
}

fn add(notebook: &mut Notebook<'_>, plot: &str, x_unit: &str, system: &str, measured: Result<Vec<crate::bench::Line>>) {
    let Some(lines) = notebook.part(&format!("{plot}: {system}"), measured) else { return };
    let wrong = figure_of(&lines, "wrong").unwrap_or(f64::NAN) + figure_of(&lines, "lost").unwrap_or(f64::NAN);
    if wrong != 0.0 {
        notebook.note(format!("{plot}: {system} is left out: {wrong} answers were wrong or lost"));
        return;
    }
    for (id, points) in series_of(lines) {
        notebook.series(plot, &format!("{system} {id}"), "instructions", x_unit, points);
    }
}

/// The results of one server under a load, by connections.
#[derive(Default)]
struct Curves {
    throughput: Vec<(f64, f64)>,
    /// The least and the largest throughput of a round.
    rounds: Vec<(f64, f64, f64)>,
    mean: Vec<(f64, f64)>,
    quantiles: [Vec<(f64, f64)>; QUANTILES.len()],
}

/// Throughput and latencies, the median first of the quantiles.
const KINDS: [&str; 6] = ["throughput", "mean latency", "p50", "p99", "p99.9", "p99.99"];

/// The quantiles among [`KINDS`].
const QUANTILES: [f64; 4] = [0.5, 0.99, 0.999, 0.9999];

fn wall(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let orders: &[u32] = if lab.quick { &[15] } else { &[15, 1, 20] };
    let harts = harts();
    notebook.note(format!("machines of {harts} harts in the measurements by the wall clock"));
    let servers = linux_servers(lab, &["epoll-each", "io_uring-each", "thread", "thread3", "tokio", "go"]);
    for (index, &order) in orders.iter().enumerate() {
        // The paper's own load in full; the other sizes and the closed loop with fewer points.
        let mut loads = vec![(Pace::Pause(PAUSE), if index == 0 { connections(lab) } else { vec![1, 16, 64, 256] })];
        loads.push((Pace::ClosedLoop, if lab.quick { vec![1, 64] } else { vec![1, 16, 64, 256] }));
        let mut contest = Contest::default();
        for model in MODELS {
            let booted = lab.serve_cops(&format!("{order}x{order}: COPS {model}"), &server_words(model, harts), harts);
            if let Some(server) = notebook.part(&format!("{order}x{order}, COPS {model}"), booted) {
                contest.add(server, &[(linux::FIRST_PORT, format!("COPS {model}"))]);
            }
        }
        if lab.linux().is_some() {
            let booted = lab.serve_linux(&format!("{order}x{order}: Linux"), harts);
            if let Some(machine) = notebook.part(&format!("{order}x{order}, Linux"), booted) {
                let named = servers.iter().map(|server| {
                    Ok((linux::port(server).context("a server without a port")?, format!("Linux {server}")))
                });
                contest.add(machine, &named.collect::<Result<Vec<_>>>()?);
            }
        }
        measure(lab, notebook, &mut contest, order, &loads)?;
        compare(lab, notebook, order, &loads);
        if index == 0 {
            for (model, points) in seeds::throughputs() {
                notebook.cite(
                    &plot_name(order, loads[0].0, 0),
                    &format!("paper: {model}"),
                    "messages/s",
                    "connections",
                    &points,
                );
            }
            for (model, points) in seeds::latencies_us() {
                notebook.cite(
                    &plot_name(order, loads[0].0, 1),
                    &format!("paper: {model}"),
                    "us",
                    "connections",
                    &points,
                );
            }
        }
    }
    Ok(())
}

pub(super) fn plot_name(order: u32, pace: Pace, kind: usize) -> String {
    let pace = if pace == Pace::ClosedLoop { "without pauses" } else { "with pauses of 100 ms" };
    format!("{}, {order}x{order} {pace} (wall)", KINDS[kind])
}

/// Measures all servers of a contest under each load, and records the results.
pub(super) fn measure(
    lab: &Lab<'_>,
    notebook: &mut Notebook<'_>,
    contest: &mut Contest,
    order: u32,
    loads: &[(Pace, Vec<usize>)],
) -> Result<()> {
    let order_of_plan = Order::new(order)?;
    for (pace, counts) in loads {
        contest.begin();
        let mut curves: BTreeMap<String, Curves> = BTreeMap::new();
        for &count in counts {
            let what = format!("{}: {count} connections", plot_name(order, *pace, 0));
            let found = contest.in_turns(lab, notebook, &what, |machine, port| {
                let measured = machine.load(&Plan {
                    server: machine.address(port)?,
                    connections: count,
                    order: order_of_plan,
                    pace: *pace,
                    duration: lab.duration_of_round(),
                    patience: PATIENCE,
                    levels: 1,
                })?;
                if measured.wrong + measured.lost > 0 {
                    let why = measured.first_failure.unwrap_or_default();
                    bail!("{} answers were wrong and {} lost: {why}", measured.wrong, measured.lost);
                }
                Ok(measured)
            });
            for (id, rounds) in found {
                curves.entry(id).or_default().add(count as f64, &rounds);
            }
        }
        for (id, curves) in curves {
            let kinds = [curves.throughput, curves.mean].into_iter().chain(curves.quantiles);
            for (kind, points) in kinds.enumerate() {
                let unit = if kind == 0 { "messages/s" } else { "us" };
                if !points.is_empty() {
                    notebook.series(&plot_name(order, *pace, kind), &id, unit, "connections", points);
                    if kind == 0 {
                        notebook.ranges(curves.rounds.clone());
                    }
                }
            }
        }
    }
    Ok(())
}

impl Curves {
    /// Combines the rounds: the latencies of all, and the median of the throughputs.
    fn add(&mut self, x: f64, rounds: &[Measurement]) {
        let Some((first, others)) = rounds.split_first() else { return };
        let mut latencies = first.latency_us.clone();
        for other in others {
            // Both have the same bounds.
            let _ = latencies.add(&other.latency_us);
        }
        let throughputs: Vec<f64> = rounds.iter().map(Measurement::messages_per_second).collect();
        if let Some((least, largest)) = range(&throughputs) {
            self.rounds.push((x, least, largest));
        }
        self.throughput.push((x, median(throughputs)));
        self.mean.push((x, latencies.mean()));
        for (points, value) in self.quantiles.iter_mut().zip(quantiles_of(&latencies)) {
            points.extend(value.map(|value| (x, value as f64)));
        }
    }
}

/// Returns the values of [`QUANTILES`]; `None` where no answer is beyond one, which would be the slowest answer.
fn quantiles_of(latencies: &Histogram<u64>) -> [Option<u64>; QUANTILES.len()] {
    QUANTILES.map(|quantile| {
        let beyond = latencies.len() as f64 * (1.0 - quantile);
        (beyond + 1e-6 >= 1.0).then(|| latencies.value_at_quantile(quantile))
    })
}

/// Compares ours with each other server, at each number of connections.
fn compare(lab: &Lab<'_>, notebook: &mut Notebook<'_>, order: u32, loads: &[(Pace, Vec<usize>)]) {
    let mut rivals: Vec<(String, String)> =
        MODELS[1..].iter().map(|model| (model.to_string(), format!("COPS {model}"))).collect();
    if let Some(linux) = lab.linux() {
        rivals.extend(linux.servers.iter().map(|name| (format!("linux-{name}"), format!("Linux {name}"))));
    }
    let size = if order == 15 { String::new() } else { format!("{order}x{order}_") };
    for (pace, counts) in loads {
        let pace_name = if *pace == Pace::ClosedLoop { "closed_" } else { "" };
        for (name, id) in &rivals {
            for &count in counts {
                let pair = |kind: usize| {
                    let plot = plot_name(order, *pace, kind);
                    let at = |id: &str| notebook.value(&plot, id, count as f64);
                    Some(at("COPS kcuc")? / at(id)?)
                };
                let (throughput, p50) = (pair(0), pair(2));
                if let Some(ratio) = throughput {
                    notebook.at_least(
                        &format!("kcuc_vs_{name}_throughput_{size}{pace_name}{count}"),
                        ratio,
                        "times",
                        1.0,
                    );
                }
                if let Some(ratio) = p50 {
                    let goal = if name.starts_with("linux-") { LINUX_LATENCY_GOAL } else { 1.0 };
                    notebook.at_most(&format!("kcuc_vs_{name}_p50_{size}{pace_name}{count}"), ratio, "times", goal);
                }
            }
        }
    }
}

/// Measures short connections by the wall clock.
fn visits(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    let plots = ["short connections in each second (wall)", "p50 of a short connection (wall)"];
    let visitors: &[usize] = if lab.quick { &[1, 4] } else { &[1, 4, 16] };
    let measure = |notebook: &mut Notebook<'_>, server: &Server, port: u16, id: &str| -> Result<()> {
        let mut points = [Vec::new(), Vec::new()];
        for &count in visitors {
            let duration = Duration::from_secs(if lab.quick { 1 } else { 5 });
            let visits = Visits {
                server: server.address(port)?,
                order: Order::MINIMUM,
                visitors: count,
                duration,
                patience: PATIENCE,
            };
            let measured = load::visit(&visits).context("a visit failed");
            let Some(latencies) = notebook.part(&format!("{id} with {count} visitors"), measured) else { break };
            points[0].push((count as f64, latencies.len() as f64 / duration.as_secs_f64()));
            points[1].push((count as f64, latencies.value_at_quantile(0.5) as f64));
        }
        for ((plot, points), unit) in plots.iter().zip(points).zip(["visits/s", "us"]) {
            if !points.is_empty() {
                notebook.series(plot, id, unit, "visitors", points);
            }
        }
        Ok(())
    };
    let harts = harts();
    for model in MODELS {
        let booted = lab.serve_cops(&format!("creation: COPS {model}"), &server_words(model, harts), harts);
        if let Some(server) = notebook.part(&format!("COPS {model}"), booted) {
            measure(notebook, &server, linux::FIRST_PORT, &format!("COPS {model}"))?;
        }
    }
    if lab.linux().is_some() {
        let booted = lab.serve_linux("creation: Linux", harts);
        if let Some(server) = notebook.part("Linux", booted) {
            for name in linux_servers(lab, &["epoll-each", "io_uring-each", "thread", "thread3", "tokio", "go"]) {
                let port = linux::port(name).context("a server without a port")?;
                measure(notebook, &server, port, &format!("Linux {name}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_has_answers_beyond_it() {
        let of = |answers: u64| {
            let mut latencies = Histogram::new_with_max(1_000_000, 5).unwrap();
            (1..=answers).for_each(|latency| latencies.record(latency).unwrap());
            quantiles_of(&latencies)
        };
        assert_eq!(of(1), [None; 4]);
        assert_eq!(of(100), [Some(50), Some(99), None, None]);
        assert_eq!(of(9_999)[2..], [Some(9_990), None]);
        assert_eq!(of(10_000), [Some(5_000), Some(9_900), Some(9_990), Some(9_999)]);
    }
}
