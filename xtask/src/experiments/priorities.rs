//! Connections of several levels of priority: the share of each level under overload.
//!
//! Connection `n` has level `n` modulo the number of levels, on both sides: the server gives its coroutines that
//! priority, the client measures each level apart.
//!
//! # Three clocks
//!
//! The client's clock shows the user's view. It also shows whether the host had a processor for a hart, for the
//! emulator's network and for the client, which share the host's cores. So the kernel measures too, from the card's
//! interrupt to the answer in the card's queue ([`latencies`]). In the same run it uses the host's time (*machine*),
//! which leaves out client and network, but not the times in which the host does not run a hart. On one hart it uses a
//! clock that counts instructions (*instructions*), where the host affects only the moments at which requests come.
//! With several harts there is no such clock: QEMU runs them in turn then, and a busy hart may get no turn.
//!
//! While it counts instructions the emulator is slow and the client is not, so several of eight connections at level 0
//! would always be at the server at once, and wait for each other. There each connection has a priority of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use load::{Level, Order, Pace, Plan};

use super::latencies::{self, Latencies};
use super::{Lab, Notebook, PATIENCE, Way, harts, seeds, words};
use crate::linux;

/// Clients pause for so long after each answer.
const PAUSE: Duration = Duration::from_millis(50);
const ORDER: u32 = 15;

/// Quantiles of the distribution plot.
const QUANTILES: [f64; 10] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999];

/// Largest loss of level 0 beside an idle system.
const LEVEL_0_GOAL: f64 = 1.2;

/// The results of one load, for each level.
struct PriorityRun {
    /// By the client's clock.
    client: Vec<Level>,
    /// By the kernel's.
    machine: Vec<Latencies>,
}

impl Way {
    /// Returns the name of the machine's own clock.
    fn machine_clock(self) -> &'static str {
        match self {
            Way::Wall => "machine",
            Way::Instructions => "instructions",
        }
    }
}

/// Runs a load of levels on a server of its own.
fn run(lab: &Lab<'_>, title: &str, connections: usize, levels: usize, harts: u8, way: Way) -> Result<PriorityRun> {
    let command = words(&format!("--backlog 1024 --workers {harts} --levels {levels}"));
    let title = format!("{title} ({})", way.machine_clock());
    let mut server = lab.serve_measured(&title, &command, harts, way.clock())?;
    let activity = lab.context.progress.start(&title);
    let before = server.latencies()?;
    // The connection that tested the server was number 0; so ours begin at level 1, and go round.
    let measured = server.load(&Plan {
        server: server.address(linux::FIRST_PORT)?,
        connections,
        order: Order::new(ORDER)?,
        pace: Pace::Pause(PAUSE),
        duration: duration(lab),
        patience: PATIENCE,
        levels,
    })?;
    let machine = latencies::since(&server.latencies()?, &before);
    activity.clear();
    if measured.wrong + measured.lost > 0 {
        anyhow::bail!(
            "{} answers were wrong and {} lost: {}",
            measured.wrong,
            measured.lost,
            measured.first_failure.unwrap_or_default()
        );
    }
    let mut client = measured.levels;
    client.rotate_right(1);
    Ok(PriorityRun { client, machine: machine.into_iter().take(levels).collect() })
}

fn duration(lab: &Lab<'_>) -> Duration {
    Duration::from_secs(if lab.quick { 2 } else { 5 })
}

/// The latency of the most important of 64 busy connections in the machine, in multiples of one lone connection's.
pub struct OfAlone {
    /// The mean.
    pub mean: f64,
    /// The median, which is hardly affected by the times in which the host did not run a hart.
    pub median: f64,
}

/// Measures [`OfAlone`] on a machine of this number of harts: counted in instructions on one hart, in the machine's
/// time, which is the host's, on more. Each connection has a priority of its own.
///
/// # Errors
///
/// The machine failed, or has measured nothing.
pub fn level0_of_alone(lab: &Lab<'_>, harts: u8) -> Result<OfAlone> {
    let way = if harts == 1 { Way::Instructions } else { Way::Wall };
    let measure = |title: &str, connections, levels| {
        let title = format!("level 0: {title}, {harts} harts");
        let measured = run(lab, &title, connections, levels, harts, way)?;
        let level0 = measured.machine.into_iter().next().filter(|level0| level0.count > 0);
        level0.context("the kernel has measured no request of level 0")
    };
    let (busy, alone) = (measure("64 connections", 64, 64)?, measure("one alone", 1, 1)?);
    Ok(OfAlone { mean: busy.mean_us() / alone.mean_us(), median: busy.quantile_us(0.5) / alone.quantile_us(0.5) })
}

/// Measures 64 and 128 connections in 8 levels on 1 to 4 harts.
pub fn levels(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        levels_by(lab, notebook, way);
    }
    notebook.note(
        "by the client's clock a figure has the emulator's network, the client, and the host's scheduling of harts in it; \
         `machine` is measured by the kernel in the same run, and has the host's scheduling of harts in it; `instructions` \
         are counted on one hart, and have nothing of the host in them; there each connection has a priority of its own"
            .into(),
    );
    Ok(())
}

/// Measures level 0 alone: one connection and no others. Returns the mean latencies by the client's clock and by the
/// machine's, for each number of harts.
fn one_alone(lab: &Lab<'_>, notebook: &mut Notebook<'_>, way: Way, counts: &[u8]) -> BTreeMap<u8, (f64, f64)> {
    let clock = way.machine_clock();
    let mut alone = BTreeMap::new();
    for &harts in counts {
        let measured = run(lab, &format!("levels: one connection alone, {harts} harts"), 1, 1, harts, way);
        if let Some(levels) = notebook.part(&format!("one connection alone on {harts} harts ({clock})"), measured) {
            let client = levels.client[0].latency_us.mean();
            let machine = levels.machine[0].mean_us();
            if way == Way::Wall {
                notebook.figure(&format!("alone_mean_{harts}"), client, "us");
            }
            notebook.figure(&format!("alone_mean_{harts}_{clock}"), machine, "us");
            alone.insert(harts, (client, machine));
        }
    }
    alone
}

fn levels_by(lab: &Lab<'_>, notebook: &mut Notebook<'_>, way: Way) {
    let cores = harts();
    let counts = match way {
        Way::Instructions => vec![1],
        Way::Wall if lab.quick => vec![1, 2, 4],
        Way::Wall => vec![1, 2, 3, 4],
    };
    if cores < 4 && way == Way::Wall {
        notebook.note(format!("more than {cores} harts share the host's cores: each hart waits for its turn there"));
    }
    let clock = way.machine_clock();
    let alone = one_alone(lab, notebook, way, &counts);
    for connections in if lab.quick { vec![64] } else { vec![64, 128] } {
        let plot = |what: &str, clock: &str| format!("{what} of each level, {connections} connections ({clock})");
        for &harts in &counts {
            let id = format!("COPS, {harts} hart{}", if harts == 1 { "" } else { "s" });
            let title = format!("levels: {connections} connections, {harts} harts");
            let levels = if way == Way::Wall { 8 } else { connections.min(64) };
            let measured = run(lab, &title, connections, levels, harts, way);
            let what = format!("{connections} connections, {id} ({clock})");
            let Some(PriorityRun { client, machine }) = notebook.part(&what, measured) else { continue };
            let numbered =
                |values: Vec<f64>| values.into_iter().enumerate().map(|(n, value)| (n as f64, value)).collect();
            let latency: Vec<_> = machine.iter().map(Latencies::mean_us).collect();
            if way == Way::Wall {
                let throughput: Vec<_> =
                    client.iter().map(|one| one.answered as f64 / duration(lab).as_secs_f64()).collect();
                let seen: Vec<_> = client.iter().map(|one| one.latency_us.mean()).collect();
                if let Some((alone, _)) = alone.get(&harts) {
                    let figure = format!("level0_mean_of_alone_{connections}_{harts}");
                    notebook.at_most(&figure, seen[0] / alone, "times", LEVEL_0_GOAL);
                }
                let worst = client.iter().map(|one| one.latency_us.max()).max().unwrap_or(0) as f64;
                notebook.figure(&format!("longest_{connections}_{harts}"), worst, "us");
                notebook.series(&plot("throughput", "wall"), &id, "messages/s", "level", numbered(throughput));
                notebook.series(&plot("mean latency", "wall"), &id, "us", "level", numbered(seen));
            }
            if let Some((_, alone)) = alone.get(&harts) {
                let figure = format!("level0_mean_of_alone_{connections}_{harts}_{clock}");
                notebook.at_most(&figure, latency[0] / alone, "times", LEVEL_0_GOAL);
            }
            // As many points in the plot as with eight levels.
            let latency =
                latency.chunks(latency.len().div_ceil(8)).map(|some| some.iter().sum::<f64>() / some.len() as f64);
            notebook.series(&plot("mean latency", clock), &id, "us", "level", numbered(latency.collect()));
        }
        if connections == 64 && way == Way::Wall {
            let paper = seeds::levels_on_one_hart();
            notebook.cite(&plot("throughput", "wall"), "paper: 1 hart", "messages/s", "level", &paper);
        }
    }
}

/// Measures the distribution of latencies of 4 levels on 2 and 4 harts, and in instructions on one.
pub fn distribution(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        let counts: &[u8] = if way == Way::Wall { &[2, 4] } else { &[1] };
        for &harts in counts {
            distribution_by(lab, notebook, way, harts);
        }
    }
    Ok(())
}

fn distribution_by(lab: &Lab<'_>, notebook: &mut Notebook<'_>, way: Way, harts: u8) {
    let plot =
        |clock: &str| format!("latency by share of the requests, 64 connections in 4 levels, {harts} harts ({clock})");
    let clock = way.machine_clock();
    let measured = run(lab, &format!("distribution: {harts} harts"), 64, 4, harts, way);
    let Some(PriorityRun { client, machine }) = notebook.part(&plot(clock), measured) else { return };
    let curve = |count: u64, value: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
        let shown = QUANTILES.iter().filter(|quantile| count as f64 * (1.0 - **quantile) >= 1.0);
        shown.map(|quantile| (quantile * 100.0, value(*quantile))).collect()
    };
    for level in 0..4 {
        let id = format!("level {level}");
        if way == Way::Wall {
            let one = &client[level];
            let value = |quantile| one.latency_us.value_at_quantile(quantile) as f64;
            notebook.series(&plot("wall"), &id, "us", "percent", curve(one.answered, &value));
            notebook.figure(&format!("level{level}_p50_{harts}_harts"), value(0.5), "us");
        }
        let one = &machine[level];
        let value = |quantile| one.quantile_us(quantile);
        notebook.series(&plot(clock), &id, "us", "percent", curve(one.count, &value));
        notebook.figure(&format!("level{level}_p50_{harts}_harts_{clock}"), value(0.5), "us");
    }
}
