//! Connections of several levels of priority: what each level gets when there is more to do than can be done.
//!
//! Connection `n` has level `n` modulo the number of levels, on both sides: the server gives its coroutines that
//! priority, the client measures each level apart. Clients pause for 50 ms after each answer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use load::{Level, Order, Pace, Plan};

use super::{Lab, Notebook, PATIENCE, Way, harts, seeds, words};
use crate::linux;

const PAUSE: Duration = Duration::from_millis(50);
const ORDER: u32 = 15;

/// Quantiles of the distribution plot.
const QUANTILES: [f64; 9] = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// How much level 0 may lose beside an idle system.
const LEVEL_0_GOAL: f64 = 1.2;

/// Runs a load of levels on a server of its own.
fn run(lab: &Lab<'_>, title: &str, connections: usize, levels: usize, harts: u8) -> Result<Vec<Level>> {
    let command = words(&format!("--backlog 1024 --workers {harts} --levels {levels}"));
    let mut server = lab.serve_cops(title, &command, harts)?;
    let activity = lab.context.progress.start(title);
    // The connection that looked whether the server answers was number 0; so ours begin at level 1, and go round.
    let measured = server.load(&Plan {
        server: server.address(linux::FIRST_PORT)?,
        connections,
        order: Order::new(ORDER)?,
        pace: Pace::Pause(PAUSE),
        duration: Duration::from_secs(if lab.quick { 2 } else { 5 }),
        patience: PATIENCE,
        levels,
    })?;
    activity.clear();
    if measured.wrong + measured.lost > 0 {
        anyhow::bail!(
            "{} answers were wrong and {} lost: {}",
            measured.wrong,
            measured.lost,
            measured.first_failure.unwrap_or_default()
        );
    }
    let mut found = measured.levels;
    found.rotate_right(1);
    Ok(found)
}

fn seconds(lab: &Lab<'_>) -> f64 {
    if lab.quick { 2.0 } else { 5.0 }
}

/// 64 and 128 connections in 8 levels on 1 to 4 harts.
pub fn levels(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if !lab.ways().any(|way| way == Way::Wall) {
        anyhow::bail!("levels compete only in time: this experiment is measured by the wall clock");
    }
    let cores = harts();
    let mut counts = if lab.quick { vec![1, cores, 4] } else { vec![1, 2, 3, 4] };
    counts.dedup();
    if cores < 4 {
        notebook.note(format!("more than {cores} harts share the host's cores: each hart waits for its turn there"));
    }
    // Level 0 alone: one connection of its own, nobody else, on a machine of as many harts.
    let mut alone = BTreeMap::new();
    for &harts in &counts {
        let measured = run(lab, &format!("levels: one connection alone, {harts} harts"), 1, 1, harts);
        if let Some(levels) = notebook.part(&format!("one connection alone on {harts} harts"), measured) {
            let mean = levels[0].latency_us.mean();
            notebook.figure(&format!("alone_mean_{harts}"), mean, "us");
            alone.insert(harts, mean);
        }
    }
    for connections in if lab.quick { vec![64] } else { vec![64, 128] } {
        let plots = [
            format!("throughput of each level, {connections} connections (wall)"),
            format!("mean latency of each level, {connections} connections (wall)"),
        ];
        for &harts in &counts {
            let id = format!("COPS, {harts} hart{}", if harts == 1 { "" } else { "s" });
            let measured =
                run(lab, &format!("levels: {connections} connections, {harts} harts"), connections, 8, harts);
            let Some(measured) = notebook.part(&format!("{connections} connections, {id}"), measured) else { continue };
            let throughput: Vec<_> = measured
                .iter()
                .enumerate()
                .map(|(level, one)| (level as f64, one.answered as f64 / seconds(lab)))
                .collect();
            let latency: Vec<_> =
                measured.iter().enumerate().map(|(level, one)| (level as f64, one.latency_us.mean())).collect();
            if let Some(alone) = alone.get(&harts) {
                let id = format!("level0_mean_of_alone_{connections}_{harts}");
                notebook.at_most(&id, latency[0].1 / alone, "times", LEVEL_0_GOAL);
            }
            let worst = measured.iter().map(|one| one.latency_us.max()).max().unwrap_or(0) as f64;
            notebook.figure(&format!("longest_{connections}_{harts}"), worst, "us");
            notebook.series(&plots[0], &id, "messages/s", "level", throughput);
            notebook.series(&plots[1], &id, "us", "level", latency);
        }
        if connections == 64 {
            notebook.cite(&plots[0], "paper: 1 hart", "messages/s", "level", &seeds::levels_on_one_hart());
        }
    }
    Ok(())
}

/// The distribution of latencies of 4 levels on 2 and 4 harts.
pub fn distribution(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    if !lab.ways().any(|way| way == Way::Wall) {
        anyhow::bail!("levels compete only in time: this experiment is measured by the wall clock");
    }
    for harts in [2, 4] {
        let plot = format!("latency by share of the requests, 64 connections in 4 levels, {harts} harts (wall)");
        let measured = run(lab, &format!("distribution: {harts} harts"), 64, 4, harts);
        for (level, one) in notebook.part(&plot, measured).unwrap_or_default().iter().enumerate() {
            let points = QUANTILES.iter().filter(|quantile| one.answered as f64 * (1.0 - **quantile) >= 1.0);
            let points = points.map(|quantile| (quantile * 100.0, one.latency_us.value_at_quantile(*quantile) as f64));
            notebook.series(&plot, &format!("level {level}"), "us", "percent", points.collect());
            notebook.figure(
                &format!("level{level}_p50_{harts}_harts"),
                one.latency_us.value_at_quantile(0.5) as f64,
                "us",
            );
        }
    }
    Ok(())
}
