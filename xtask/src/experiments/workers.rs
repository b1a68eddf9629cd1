//! One job on 1 to 8 workers over four harts: does it become faster, and what happens with more workers than harts?
//!
//! Only the wall clock can tell: counting instructions QEMU runs the harts in turn, and for so long at a time that whoever
//! waits for another hart waits for very many instructions. What can be counted is the work that several workers are on
//! one hart; that is the other plot.

use anyhow::Result;

use super::{Lab, Notebook, Way, seeds, series_of, words};

const HARTS: u8 = 4;

fn harts(way: Way) -> u8 {
    if way == Way::Wall { HARTS } else { 1 }
}

/// What two workers should bring on a host with two free cores, and what too many may cost beside the best.
const SPEEDUP_GOAL: f64 = 1.8;
const OVERSUBSCRIBED_GOAL: f64 = 1.1;

pub fn measure(lab: &Lab<'_>, notebook: &mut Notebook<'_>) -> Result<()> {
    for way in lab.ways() {
        let plot = format!("workers on {} ({})", if way == Way::Wall { "4 harts" } else { "1 hart" }, way.name());
        // 64 coroutines, each with so many turns of so many steps.
        let (turns, steps) = if lab.quick { (100, 1000) } else { (1000, 1000) };
        let repetitions = if lab.quick || way == Way::Instructions { 1 } else { 3 };
        let command = words(&format!("workers all 64 {turns} {steps}"));
        let ours = best_of(repetitions, || {
            Ok(series_of(lab.on_cops(&plot, &command, harts(way), way.clock())?)
                .into_iter()
                .flat_map(|one| one.1)
                .collect())
        });
        if let Some(points) = notebook.part("COPS's workers", ours) {
            if way == Way::Wall {
                figures(lab, notebook, &points);
            }
            notebook.series(&plot, "COPS", "ns", "workers", points);
        }
        if lab.linux().is_some() {
            let command = words(&format!("workers {} {steps}", 64 * turns));
            let theirs = best_of(repetitions, || {
                Ok(series_of(lab.on_linux(&plot, &command, harts(way), way.clock())?)
                    .into_iter()
                    .flat_map(|one| one.1)
                    .collect())
            });
            if let Some(points) = notebook.part("Linux's threads", theirs) {
                notebook.series(&plot, "Linux pthreads", "ns", "workers", points);
            }
        }
        if way == Way::Wall {
            notebook.cite(&plot, "paper: ring job", "ns", "workers", &seeds::WORKERS_NS);
        }
    }
    Ok(())
}

/// For each number of workers the best of several runs: what others did on the host at the time is not ours.
fn best_of(repetitions: usize, run: impl Fn() -> Result<Vec<(f64, f64)>>) -> Result<Vec<(f64, f64)>> {
    let mut best = run()?;
    for _ in 1..repetitions {
        for (one, other) in best.iter_mut().zip(run()?) {
            one.1 = one.1.min(other.1);
        }
    }
    Ok(best)
}

fn figures(lab: &Lab<'_>, notebook: &mut Notebook<'_>, points: &[(f64, f64)]) {
    let at = |workers: f64| points.iter().find(|point| point.0 == workers).map_or(f64::NAN, |point| point.1);
    let best = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    notebook.at_least("speedup_2", at(1.0) / at(2.0), "times", SPEEDUP_GOAL);
    notebook.figure("speedup_4", at(1.0) / at(4.0), "times");
    notebook.at_most("oversubscribed_4_of_best", at(4.0) / best, "times", OVERSUBSCRIBED_GOAL);
    notebook.at_most("oversubscribed_8_of_best", at(8.0) / best, "times", OVERSUBSCRIBED_GOAL);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    notebook.note(format!(
        "{HARTS} harts on {cores} cores of the host: the speed-up cannot be more than {cores}{}",
        if lab.quick { ", and short runs show less" } else { "" }
    ));
}
